"""Holding still at the wish of the worker's own program, on virtual time and over real HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from test_worker_streams import Tables

from streamclient.model import ShutdownReason
from tests.placed_records import make_record
from tests.worker.stage import Stage

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore


def test_a_paused_shard_keeps_its_lease_and_says_who_paused_it_and_why() -> None:
    world = Stage("a", "b")
    worker = world.worker()
    world.stream.append("a", make_record("k0", 0))
    world.until(lambda: world.journal.accepted["a"] == ["k0"], 60)
    worker.worker.pause("a", reason="the database is being moved")
    world.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.PAUSED], 60)
    for shard_id in ("a", "b"):
        world.stream.append(shard_id, make_record("k1", 1))
    world.advance(300)
    assert world.journal.accepted == {"a": ["k0"], "b": ["k1"]}
    assert world.owner("a") == "w1"
    assert worker.statuses()["a"].reason == "paused by its own program: the database is being moved"
    assert "paused" not in worker.statuses()["b"].reason

    worker.worker.resume("a")
    world.until(lambda: world.journal.accepted["a"] == ["k0", "k1"], 60)
    assert worker.statuses()["a"].reason == ""


def test_a_paused_worker_hands_its_shards_over_when_it_stops(world: Stage) -> None:
    first, second = world.worker("w1"), world.worker("w2")
    first.worker.pause(reason="no more here")
    second.worker.pause(reason="nor here")
    world.until(lambda: world.owner("a") != "", 60)
    world.advance(30)
    owner, other = (first, second) if world.owner("a") == "w1" else (second, first)
    world.stop(owner)
    other.worker.resume()
    world.stream.append("a", make_record("k0", 0))
    world.until(lambda: world.journal.accepted["a"] == ["k0"], 60)

    assert world.owner("a") == other.worker.worker_identifier


def test_streams_of_one_worker_are_paused_apart_and_together(local: LocalTablestore) -> None:
    tables = Tables(local, "orders", "visits")
    worker = tables.worker(tables.config("orders"), tables.config("visits"))
    worker.pause(reason="starting quietly")
    with worker:
        tables.until(lambda: len(worker.shard_statuses()) == 2)
        quiet = ["paused by its own program: starting quietly"] * 2
        tables.until(lambda: [status.reason for status in worker.shard_statuses().values()] == quiet)
        assert not tables.seen
        orders, visits = sorted(worker.shard_statuses())
        worker.pause(visits, reason="its index is being rebuilt")
        worker.resume()
        for name in ("orders", "visits"):
            tables.write(name, 1)
        tables.until(lambda: tables.seen["orders"] == [1])
        reasons = {key: status.reason for key, status in worker.shard_statuses().items()}
        assert reasons[visits] == "paused by its own program: its index is being rebuilt"
        assert "paused" not in reasons[orders]
        assert "visits" not in tables.seen

        worker.resume(visits)
        tables.until(lambda: tables.seen["visits"] == [1])
        worker.pause(orders)
        tables.until(lambda: tables.shutdowns["orders"] == [ShutdownReason.PAUSED])
        worker.resume(orders)
        tables.write("orders", 2)
        tables.until(lambda: tables.seen["orders"] == [1, 2])
