"""What a worker tells operators about itself."""

from __future__ import annotations

import os
import socket

from attrs import evolve

from streamclient import ClientConfig
from streamclient.base.processes import process_space
from streamclient.base.reasons import Cause, Reason
from streamclient.core.costs import Cost
from streamclient.core.worker_info import MOST_LEFT, MOST_SHARDS, ShardTrouble, WorkerInfo
from streamclient.model import ShardState, ShardStatus
from streamclient.worker.health import WorkerHealth
from streamclient.worker.statuses import COST_SECONDS, PublishedInfo, because
from tests.worker.stage import Stage

WELL = WorkerHealth(is_healthy=True)


FAILED_ONCE = Reason(Cause.PROCESSOR_FAILED, "process_records", "once: process_records: ValueError: parent p")


def status(*reasons: Reason) -> ShardStatus:
    return because(ShardStatus("s", ShardState.PROCESSING, "it"), reasons)


def test_a_worker_says_where_it_runs_from_the_start() -> None:
    told = WorkerInfo.from_json(PublishedInfo(20_000, 5).text)

    assert (told.host, told.pid, told.started_micros) == (socket.gethostname(), os.getpid(), 5)
    assert told.space == process_space()
    assert told.lease_duration_millis == 20_000
    assert told.version


def test_a_worker_says_that_it_obeys_orders_and_at_which_record_a_shard_stopped() -> None:
    """Commands go by both; a row that says neither is one of an earlier version."""
    stopped = Reason(Cause.FAILING_RECORD, "record k", "after one failed call: ValueError: bad", "0000000001-abc")
    published = PublishedInfo(20_000, 5)
    text = published.changed({"s": status(stopped)}, WELL, ())

    assert text is not None
    told = WorkerInfo.from_json(text)
    assert told.obeys_orders
    assert told.shards["s"].reasons == (stopped,)
    assert not WorkerInfo.from_json("{}").obeys_orders
    assert "record" not in ShardTrouble("r", "processor", (FAILED_ONCE,)).to_document()["reasons"][0]


def test_a_worker_names_the_shards_whose_last_records_it_has_set_aside_once_they_are_caught_up() -> None:
    published = PublishedInfo(20_000, 5)
    caught_up, late = evolve(status(), lag_seconds=0.0), evolve(status(), lag_seconds=3.0)
    statuses = {"b": caught_up, "a": caught_up, "late": late, "other": caught_up, "unknown": status()}
    text = published.changed(statuses, WELL, (), set_aside=["b", "late", "a", "unknown", "ended"])

    assert text is not None
    assert WorkerInfo.from_json(text).set_aside == ("a", "b")
    assert "set_aside" not in (published.changed(statuses, WELL, ()) or ""), "an empty list costs no bytes"


def test_only_shards_that_do_not_move_are_told_and_only_what_the_rows_do_not_show() -> None:
    published = PublishedInfo(20_000, 5)
    text = published.changed(
        {
            "moving": status(),
            "finished": status(Reason(Cause.FINISHED)),
            "child": status(Reason(Cause.PARENT, "p", "is not finished")),
            "failing": status(FAILED_ONCE),
        },
        WELL,
        ["left"],
    )

    assert text is not None
    told = WorkerInfo.from_json(text)
    text = "processor failed once: process_records: ValueError: parent p"
    assert told.shards == {"failing": ShardTrouble(text, "processor", (FAILED_ONCE,))}
    assert told.left == ("left",)


def test_what_has_not_changed_is_not_told_again() -> None:
    published = PublishedInfo(20_000, 5)
    failing = {"s": status(FAILED_ONCE)}

    assert published.changed({}, WELL, ()) is None
    assert published.changed(failing, WELL, ()) is not None
    assert published.changed(failing, WELL, ()) is None
    assert published.changed({}, WorkerHealth(is_healthy=False, reason="no scan succeeded"), ()) is not None
    assert published.changed({}, WELL, ()) == published.text


def test_the_first_parked_record_is_told_at_once_and_later_ones_once_in_a_while() -> None:
    published = PublishedInfo(20_000, 5)

    def told(now: float, **parked: int) -> dict[str, int] | None:
        text = published.changed({}, WELL, (), parked=parked, now=now)
        return None if text is None else dict(WorkerInfo.from_json(text).parked_of)

    assert told(1_000.0) is None
    assert told(1_001.0, s1=1) == {"s1": 1}
    assert told(1_002.0, s1=2) is None, "a storm of them is not written with every heartbeat"
    assert told(1_001.0 + COST_SECONDS, s1=2, s2=3) == {"s1": 2, "s2": 3}
    assert WorkerInfo.from_json(published.text).parked == 5


def test_a_cost_is_stated_once_in_its_least_time_and_is_that_of_the_time_since_the_last_one() -> None:
    asked = [Cost(seconds=0.1, stream_requests=9)]
    published = PublishedInfo(20_000, 5, lambda: asked[-1])

    def told(seconds: float, stream_requests: int) -> Cost | None:
        asked.append(Cost(seconds=seconds, stream_requests=stream_requests))
        published.changed({}, WELL, ())
        return WorkerInfo.from_json(published.text).cost

    assert told(COST_SECONDS - 1, 100) is None
    assert told(COST_SECONDS + 2, 120) == Cost(seconds=COST_SECONDS + 2, stream_requests=120)
    assert told(2 * COST_SECONDS, 999) == Cost(seconds=COST_SECONDS + 2, stream_requests=120)
    assert told(2 * COST_SECONDS + 7, 1_120) == Cost(seconds=COST_SECONDS + 5, stream_requests=1_000)


def test_a_worker_tells_that_its_reads_are_at_their_ceiling() -> None:
    """With the next heartbeat; reads then come as often as the ceiling says, whatever the number of shards."""
    default = ClientConfig().worker_idle_time_millis
    world = Stage(*[f"s{number}" for number in range(8)], max_reads_per_second=100, worker_idle_time_millis=default)
    world.reader()
    world.advance(7.0)
    before = world.stream.reads
    world.advance(2.0)

    (row,) = world.leases.list_workers(with_info=True)
    assert WorkerInfo.from_json(row.info).pace.startswith("reads are at their ceiling of 100 a second: each shard ")
    assert 150 <= world.stream.reads - before <= 205


def test_no_text_keeps_it_from_being_stored_or_read() -> None:
    """UTF-8 has no bytes for what a file name or a host name of another encoding brings along."""
    reason = Reason(Cause.CALL_RUNS, "caf\udce9", "caf\udce9")
    info = WorkerInfo(host="caf\udce9", trouble="caf\udce9", shards={"s": ShardTrouble("caf\udce9", "", (reason,))})
    text = info.to_json()
    text.encode()

    told = WorkerInfo.from_json(text)
    assert (told.host, told.trouble) == ("caf\\udce9", "caf\\udce9")
    assert told.shards["s"].reasons == (Reason(Cause.CALL_RUNS, "caf\\udce9", "caf\\udce9"),)


def test_the_shards_that_need_somebody_are_named_and_of_those_that_were_left_the_latest() -> None:
    kinds = ["lease", "reading", "user_code", "parking", "processor", "decision"]
    shards = {f"z{number}": ShardTrouble("r", kind) for number, kind in enumerate(kinds)}
    shards |= {f"b{number:03}": ShardTrouble("r", "lease") for number in range(MOST_SHARDS - 6)}
    shards |= {f"a{number}": ShardTrouble("r", "reading") for number in range(2)}
    left = tuple(f"l{number}" for number in range(MOST_LEFT + 9))
    told = WorkerInfo.from_json(WorkerInfo(shards=shards, left=left).to_json())
    assert shards.keys() - told.shards.keys() == {"z0", f"b{MOST_SHARDS - 7:03}"}
    assert told.unnamed == 2
    assert (told.left, told.left_unnamed) == (left[9:], 9)

    many = {
        f"k{kinds.index(kind)}-{number:03}": ShardTrouble("r", kind) for number in range(MOST_SHARDS) for kind in kinds
    }
    for kind in reversed(kinds):
        named = WorkerInfo.from_json(WorkerInfo(shards=many).to_json()).shards
        assert {trouble.kind for trouble in named.values()} == {kind}
        many = {key: trouble for key, trouble in many.items() if trouble.kind != kind}
