"""Pages that cannot be true: cut before their next iterator, repeated, going back; and ends that nothing shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from streamclient.base.position import Position
from streamclient.base.reasons import Cause
from streamclient.core import leases as rule
from streamclient.errors import DependencyException, DisorderError, ErrorKind, StreamClientException
from streamclient.model import Pause, Shard
from streamclient.tablestore.stream_api import RecordPage, StreamDescription
from streamclient.testing.fakes import FakeStream
from tests.placed_records import make_record
from tests.worker.stage import Stage

Change = Callable[[RecordPage, str], RecordPage]
BUSY = DependencyException("busy", kind=ErrorKind.THROTTLED)
HEALTH_SECONDS = 60.0


def cut(page: RecordPage, asked: str) -> RecordPage:
    """Between two records, before the next iterator."""
    return RecordPage(tuple(page.records[:2]), Position.SHARD_END)


def emptied(page: RecordPage, asked: str) -> RecordPage:
    return RecordPage((), Position.SHARD_END)


def repeated(page: RecordPage, asked: str) -> RecordPage:
    return evolve(page, next_position=Position(asked))


def going_back(page: RecordPage, asked: str) -> RecordPage:
    """The next page begins anew."""
    return evolve(page, next_position=Position("a@0"))


def disordered(page: RecordPage, asked: str) -> RecordPage:
    raise DisorderError("record 1 of a page of 2 stands before the one before it")


KINDS = [cut, emptied, repeated, going_back, disordered]


def disturb(stream: FakeStream, change: Change, is_on: Callable[[], bool]) -> list[int]:
    """Change each page with records of shard a while it is on; return their number, which is kept up to date."""
    read, changed = stream.get_stream_record, [0]

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        page = read(iterator, limit)
        if not (iterator.startswith("a@") and page.records and is_on()):
            return page
        changed[0] += 1
        return change(page, iterator)

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    return changed


def count_listings(stream: FakeStream) -> list[int]:
    listings, describe = [0], stream.describe_stream

    def describe_stream(stream_id: str) -> StreamDescription:
        listings[0] += 1
        return describe(stream_id)

    stream.describe_stream = describe_stream  # type: ignore[method-assign]
    return listings


def records(count: int, start: int = 1) -> list[Any]:
    return [make_record(f"k{number}", number) for number in range(start, start + count)]


def keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("change", KINDS)
@pytest.mark.parametrize("times", [1, 5])
def test_a_page_that_cannot_be_true_is_read_again_and_nothing_is_lost_or_delivered_twice(
    change: Change, times: int
) -> None:
    world = Stage("a", "other")
    left = [times]

    def is_on() -> bool:
        left[0] -= 1
        return left[0] >= 0

    disturb(world.stream, change, is_on)
    world.stream.append("a", *records(10))
    worker = world.worker(max_records=3)
    world.until(lambda: len(world.journal.delivered("a")) >= 10, 120)
    world.advance(60)

    assert world.journal.delivered("a") == keys(10)
    assert world.checkpoint("a") == "a@10"
    assert worker.error is None
    assert worker.statuses()["a"].reason == ""
    world.stream.append("a", *records(2, 11))
    world.until(lambda: world.journal.delivered("a") == keys(12), 60)


@pytest.mark.parametrize(
    ("change", "cause"),
    [(each, Cause.END_NOT_SHOWN if each in (cut, emptied) else Cause.NO_PROGRESS) for each in KINDS],
)
def test_a_shard_whose_pages_stay_untrue_is_named_in_status_and_health_and_others_go_on(
    change: Change, cause: Cause
) -> None:
    world = Stage("a", "other")
    untrue = disturb(world.stream, change, lambda: True)
    world.stream.append("a", *records(10))
    worker = world.worker(max_records=3, max_duration_before_last_successful_renew_or_take_lease=60_000)
    world.advance(HEALTH_SECONDS / 2)
    assert worker.statuses()["a"].reasons[0].cause is cause
    assert worker.worker.health.is_healthy
    before = untrue[0]
    world.advance(HEALTH_SECONDS)
    world.stream.append("other", make_record("x", 1))
    world.until(lambda: world.journal.delivered("other") == ["x"], 60)

    assert world.journal.delivered("a") in ([], keys(3))
    assert world.checkpoint("a") != "SHARD_END"
    assert "shard a has not moved for" in worker.worker.health.reason
    assert 1 < untrue[0] - before < 60, "pauses grow"


def test_an_end_that_a_listing_shows_already_costs_no_listing_and_ends_at_once_share_one() -> None:
    """Also the one that was made after each finished shard, for children that were listed before."""
    names = [f"p{number}" for number in range(10)]
    world = Stage(*names)
    for name in names:
        world.stream.append(name, make_record("k1", 1))
        world.stream.split(name, f"{name}-l", f"{name}-r")
    listings = count_listings(world.stream)
    worker = world.worker(sync_shard_interval_millis=3_600_000)
    world.until(lambda: all(world.leases.get_lease(name) is not None for name in names), 60)
    world.until(lambda: all(world.checkpoint(name) == "SHARD_END" for name in names), 60)
    history = listings[0]
    assert history <= 2, "the worker's own"
    leaves = [f"{name}-l" for name in names]
    world.until(lambda: set(leaves) <= worker.reads, 60)
    before = listings[0]
    for name in leaves:
        world.stream.split(name, f"{name}-l", f"{name}-r")
    world.until(lambda: all(world.checkpoint(name) == "SHARD_END" for name in leaves), 60)

    assert listings[0] - before <= 3


def test_children_that_are_listed_late_are_waited_for_and_read_at_once_then(world: Stage) -> None:
    worker = world.reader()
    describe, is_late = world.stream.describe_stream, [True]

    def describe_stream(stream_id: str) -> StreamDescription:
        found = describe(stream_id)
        shards = tuple(shard for shard in found.shards if shard.shard_id == "a" or not is_late[0])
        return evolve(found, shards=shards)

    world.stream.describe_stream = describe_stream  # type: ignore[method-assign]
    world.stream.append("a", *records(3))
    world.stream.split("a", "b", "c")
    world.advance(100)
    assert world.checkpoint("a") != "SHARD_END"
    is_late[0] = False
    world.until(lambda: worker.reads == {"b", "c"}, 30)

    assert world.journal.delivered("a") == keys(3)
    assert world.checkpoint("a") == "SHARD_END"


def test_a_shard_that_two_listings_lack_has_ended_and_one_that_a_single_listing_lacks_has_not() -> None:
    world = Stage("a", "b")
    world.reader(sync_shard_interval_millis=3_600_000)
    describe, hidden = world.stream.describe_stream, ["one"]

    def describe_stream(stream_id: str) -> StreamDescription:
        found = describe(stream_id)
        if not hidden:
            return found
        if hidden[0] == "one":
            hidden.clear()
        return evolve(found, shards=(Shard("b"),))

    world.stream.describe_stream = describe_stream  # type: ignore[method-assign]
    world.stream.append("a", *records(3))
    world.stream.close("a", child="")
    world.advance(100)
    assert world.checkpoint("a") != "SHARD_END", "one answer lacked it"
    hidden.append("all")
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 100)

    assert world.journal.delivered("a") == keys(3)


def test_an_end_that_nothing_shows_is_accepted_by_the_program() -> None:
    world = Stage("a", "b")
    world.stream.append("a", *records(3))
    world.stream.close("a", child="")
    worker = world.worker()
    world.advance(100)
    assert world.journal.delivered("a") == []
    with pytest.raises(StreamClientException, match="b does not wait for its end"):
        worker.worker.accept_end("b")
    worker.worker.accept_end("a")
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 5)

    assert world.journal.delivered("a") == keys(3)


@pytest.mark.parametrize(("age_seconds", "is_accepted"), [(60, True), (3_600, False)])
def test_an_operators_order_in_the_row_accepts_the_end_for_a_while(age_seconds: int, is_accepted: bool) -> None:
    world = Stage("a", "b")
    world.stream.append("a", *records(3))
    world.stream.close("a", child="")
    world.worker()
    world.advance(100)
    lease = world.lease()
    now = world.simulation.runtime().wall_micros()
    order = Pause("o1", "ann", "it was closed", now - age_seconds * 1_000_000, accepts_end=True)
    world.leases.write_many([rule.set_pause(lease, order)])
    world.advance(100)

    assert (world.checkpoint("a") == "SHARD_END") is is_accepted
    assert world.journal.delivered("a") == (keys(3) if is_accepted else [])


@pytest.mark.parametrize(
    "circle",
    [
        [("c1", "c2", None), ("c2", "c1", None)],
        [("c1", "c2", None), ("c2", "c3", "b"), ("c3", "c1", None)],
        [("c1", "c1", "c2"), ("c2", "c2", "c1")],
    ],
)
def test_circles_of_parents_are_named_and_other_shards_go_on(circle: list[tuple[str, str, str | None]]) -> None:
    world = Stage("a", "b")
    describe = world.stream.describe_stream
    shards = [Shard(*each) for each in (*circle, ("own", "own", None), ("twice", "b", "b"))]

    def describe_stream(stream_id: str) -> StreamDescription:
        found = describe(stream_id)
        return evolve(found, shards=(*found.shards, *shards))

    world.stream.split("a", "left", "right")
    world.stream.describe_stream = describe_stream  # type: ignore[method-assign]
    worker = world.worker(max_duration_before_last_successful_renew_or_take_lease=60_000)
    world.until(lambda: {"left", "right", "b"} <= worker.reads, 60)
    world.advance(2 * HEALTH_SECONDS)

    names = ", ".join(sorted({each[0] for each in circle}))
    assert f"lists the shard before itself: {names} are each other's parents" in worker.worker.health.reason
    assert "own" in worker.statuses(), "it is before nothing but itself"
