"""A follower without leases: long histories, ends that nothing shows, pages that cannot be true, circles of parents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from math import log
from typing import Any

import pytest
from attrs import evolve

from streamclient.base.position import Position
from streamclient.errors import DisorderError
from streamclient.model import Shard
from streamclient.tablestore.following import (
    LONGEST_DOUBT_SECONDS,
    Followed,
    FollowedRecord,
    Interruption,
    StreamFollower,
)
from streamclient.tablestore.stream_api import RecordPage, StreamDescription
from streamclient.testing.fakes import FakeStream
from tests.placed_records import make_record

Change = Callable[[RecordPage, str], RecordPage]


class Clock(threading.Event):
    """Time passes only while somebody waits, and it is counted."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[float] = []
        self._limit_seconds = limit_seconds

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self.now += timeout or 0.0
        if self.now >= self._limit_seconds:
            self.set()
        return self.is_set()

    def monotonic(self) -> float:
        return self.now


def follow(stream: FakeStream, clock: Clock, shard_ids: list[str] | None = None) -> list[Followed]:
    follower = StreamFollower(stream, stream.stream_id, shard_ids=shard_ids, stop=clock, monotonic=clock.monotonic)
    return list(islice(follower.changes(), 1_000))


def keys_of(found: list[Followed]) -> list[str]:
    return [each.record.key["id"] for each in found if isinstance(each, FollowedRecord)]


def said(found: list[Followed]) -> str:
    return "\n".join(str(each.error) for each in found if isinstance(each, Interruption))


def count_listings(stream: FakeStream) -> list[int]:
    listings, describe = [0], stream.describe_stream

    def describe_stream(stream_id: str) -> StreamDescription:
        listings[0] += 1
        return describe(stream_id)

    stream.describe_stream = describe_stream  # type: ignore[method-assign]
    return listings


def test_a_long_history_costs_no_pause_and_no_listing_for_each_split() -> None:
    stream = FakeStream("orders", ["s0"])
    generations = 30
    for number in range(generations):
        if number % 3 == 0:
            stream.append(f"s{number}", make_record(f"k{number}", number + 1))
        stream.split(f"s{number}", f"s{number + 1}", f"t{number + 1}")
    stream.append(f"s{generations}", make_record("last", generations + 1))
    listings, clock = count_listings(stream), Clock(3.0)

    follower = StreamFollower(stream, stream.stream_id, stop=clock, monotonic=clock.monotonic)
    expected = [*(f"k{number}" for number in range(0, generations, 3)), "last"]
    assert keys_of(list(islice(follower.changes(), len(expected)))) == expected
    assert listings == [1]
    assert clock.waits == []


def test_reads_follow_the_traffic() -> None:
    """Every 100 ms for 10 s after a record, then ever more seldom; after ten minutes of silence every 0.9 s."""
    stream = FakeStream("orders", ["a", "b"])
    stream.append("a", make_record("k1", 1))
    clock, reads = Clock(3_600.0), list[float]()
    read = stream.get_stream_record

    def get_stream_record(shard_iterator: str, limit: int | None = None) -> RecordPage:
        reads.append(clock.now)
        return read(shard_iterator, limit)

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    follow(stream, clock)
    both_at_once = 2

    def count(begin: float, end: float) -> int:
        return sum(begin <= at < end for at in reads) // both_at_once

    assert 90 <= count(0, 10) <= 110
    assert 60 / 0.9 <= count(1_000, 1_060) <= 70
    assert count(10, 600) < 1_500


def test_children_begin_in_the_order_of_the_listing() -> None:
    """Not in that of their names."""
    stream = FakeStream("orders", ["a"])
    stream.append("a", make_record("k1", 1))
    stream.split("a", "z", "b")
    for number, shard in enumerate(("b", "z"), 2):
        stream.append(shard, make_record(f"of {shard}", number))

    assert keys_of(follow(stream, Clock(3.0))) == ["k1", "of z", "of b"]


def test_children_that_are_listed_late_are_found_as_soon_as_the_end_is_in_doubt() -> None:
    stream = FakeStream("orders", ["a"])
    stream.append("a", make_record("k1", 1))
    listings, clock = count_listings(stream), Clock(20.0)
    follower = StreamFollower(stream, stream.stream_id, stop=clock, monotonic=clock.monotonic)
    changes = follower.changes()
    first = next(changes)
    stream.append("a", make_record("k2", 2))
    stream.split("a", "b", "c")
    stream.append("b", make_record("k3", 3))
    found = [first, next(changes), next(changes)]

    assert keys_of(found) == ["k1", "k2", "k3"]
    assert listings == [2]


def cut(page: RecordPage, asked: str) -> RecordPage:
    return RecordPage(tuple(page.records[:2]), Position.SHARD_END)


def emptied(page: RecordPage, asked: str) -> RecordPage:
    return RecordPage((), Position.SHARD_END)


def repeated(page: RecordPage, asked: str) -> RecordPage:
    return evolve(page, next_position=Position(asked))


def going_back(page: RecordPage, asked: str) -> RecordPage:
    return evolve(page, next_position=Position("a@0"))


def disordered(page: RecordPage, asked: str) -> RecordPage:
    raise DisorderError("record 1 of a page of 2 stands before the one before it")


def elsewhere(page: RecordPage, asked: str) -> RecordPage:
    """A page of shard b, whose records are old; the first page of a shard cannot be told from it."""
    return page if asked == "a@0" else RecordPage((make_record("b1", 1), make_record("b2", 2)), Position("b@2"))


KINDS = [cut, emptied, repeated, going_back, disordered, elsewhere]


def disturb(stream: FakeStream, change: Change, times: int) -> None:
    read, left = stream.get_stream_record, [times]

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        page = read(iterator, 3)
        if not iterator.startswith("a@") or not page.records:
            return page
        left[0] -= 1
        return change(page, iterator) if left[0] >= 0 else page

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]


def filled() -> FakeStream:
    stream = FakeStream("orders", ["a", "b"])
    stream.append("a", *[make_record(f"k{number}", number + 1) for number in range(1, 11)])
    return stream


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("change", KINDS)
@pytest.mark.parametrize("shard_ids", [None, ["a"]])
def test_a_page_that_cannot_be_true_is_read_again(change: Change, times: int, shard_ids: list[str] | None) -> None:
    stream = filled()
    disturb(stream, change, times)
    assert keys_of(follow(stream, Clock(60.0), shard_ids)) == [f"k{number}" for number in range(1, 11)]


@pytest.mark.parametrize("change", KINDS)
def test_a_shard_whose_pages_stay_untrue_is_named_and_others_go_on(change: Change) -> None:
    stream = filled()
    disturb(stream, change, 10**6)
    stream.append("b", make_record("x", 1))
    reads, clock = stream.reads, Clock(200.0)
    found = follow(stream, clock)

    assert keys_of(found) in (["x"], ["k1", "k2", "k3", "x"])
    assert "shard a does not move: " in said(found)
    assert said(found).count("\n") < 5, "now and then"
    of_b = 100 + 100 * (1 + log(200.0 / 10))  # every 0.1 s for ten seconds, then every hundredth of the silence
    assert stream.reads - reads < of_b + 5 + 2 * 200.0 / LONGEST_DOUBT_SECONDS + 10


@pytest.mark.parametrize("parents", [{"c1": ["c2"], "c2": ["c1"]}, {"c1": ["c3"], "c2": ["c1"], "c3": ["c2", "a"]}])
def test_circles_of_parents_are_named_once_and_a_shard_before_itself_is_read(parents: dict[str, list[str]]) -> None:
    stream = filled()
    describe = stream.describe_stream
    circle = tuple(Shard(key, *named) for key, named in parents.items())

    def describe_stream(stream_id: str) -> Any:
        found = describe(stream_id)
        turned = tuple(Shard("b", "b") if shard.shard_id == "b" else shard for shard in found.shards)
        return evolve(found, shards=(*turned, *circle))

    stream.describe_stream = describe_stream  # type: ignore[method-assign]
    stream.append("b", make_record("x", 1))
    found = follow(stream, Clock(30.0))

    assert set(keys_of(found)) == {"x", *(f"k{number}" for number in range(1, 11))}
    assert said(found) == (
        f"shards {', '.join(sorted(parents))} are each other's parents in the list of shards, so none of them is ever "
        "read: the service is at fault"
    )
