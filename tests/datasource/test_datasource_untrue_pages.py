"""Pages that cannot be true, for planner and executors: nothing is lost, nothing comes twice, and it is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from streamclient.errors import DependencyException, StreamClientException
from streamclient.model import Shard
from streamclient.spark.source import partition_reading
from streamclient.spark.source.offsets import ShardOffset
from streamclient.spark.source.partition_reading import StreamPages
from streamclient.spark.source.prefetch import MOST_DOUBTS
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.wire import schema
from tests.datasource.query import MemoryStream, Query, options, two_shards

Change = Callable[[Any, str], None]
ROUNDS = 40


def cut(message: Any, asked: str) -> None:
    """Between two records, before the next iterator."""
    del message.stream_records[2:]
    message.ClearField("next_shard_iterator")


def emptied(message: Any, asked: str) -> None:
    message.Clear()


def repeated(message: Any, asked: str) -> None:
    message.next_shard_iterator = asked


def going_back(message: Any, asked: str) -> None:
    message.next_shard_iterator = "s1/0"


KINDS = [cut, emptied, repeated, going_back]


@define(eq=False)
class UntrueStream(MemoryStream):
    """Pages of s1 with records that are changed on their way, from some page on, so many of them."""

    change: Change = cut
    first: int = 0
    left: int = 0
    _pages: int = field(init=False, default=0)

    def _body(self, iterator: str, limit: int) -> bytes:
        body = super()._body(iterator, limit)
        message = schema.parse(schema.GetStreamRecordResponse, body)
        if not iterator.startswith("s1/") or not message.stream_records:
            return body
        self._pages += 1
        if self._pages <= self.first or not self.left:
            return body
        self.left -= 1
        self.change(message, iterator)
        return bytes(message.SerializeToString())


def ordered(stream: UntrueStream) -> Query:
    query = Query(stream, options())
    query.planner.sleep = lambda seconds: None
    return query


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("change", KINDS)
def test_a_query_outlives_pages_that_cannot_be_true(change: Change, first: int, times: int) -> None:
    """Of the planner and of the executors, as they come."""
    stream = UntrueStream(change=change, first=first, left=times)
    two_shards(20, stream)
    query = ordered(stream)
    for _ in range(ROUNDS):
        if query.plan(most=10):
            try:
                query.run()
            except StreamClientException:
                query.run()  # as Spark runs a task again

    assert query.keys() == list(range(40))
    assert not query.offset(len(query.log) - 1).shards["s1"].is_ended


@pytest.mark.parametrize("change", KINDS)
def test_a_shard_whose_pages_stay_untrue_does_not_hold_up_the_others(
    change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    stream = UntrueStream(change=change, left=10**6)
    two_shards(20, stream)
    query = ordered(stream)
    for _ in range(ROUNDS):
        query.plan()
    last = query.offset(len(query.log) - 1).shards

    assert last["s2"].count == 20
    assert last["s1"].count in (0, 7)
    assert not last["s1"].is_ended
    assert "shard s1 does not move" in caplog.text
    assert "the service is at fault" in caplog.text


def test_a_query_that_ends_by_itself_says_that_it_cannot_read_up_to_the_present() -> None:
    stream = UntrueStream(change=cut, left=10**6)
    two_shards(20, stream)
    query = Query(stream, options())
    pauses: list[float] = []
    query.planner.sleep = pauses.append
    query.planner.stop_at_present()
    with pytest.raises(StreamClientException, match=r"shard s1 does not move: .*cannot read up to the present"):
        query.plan()

    assert len(pauses) == MOST_DOUBTS
    assert pauses == sorted(pauses)


def test_an_end_that_a_listing_shows_already_costs_no_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = two_shards(5)
    for shard in ("s1", "s2"):
        stream.split(shard)
    listings = [0]
    describe = MemoryStream.describe_stream

    def describe_stream(self: MemoryStream, stream_id: str) -> Any:
        listings[0] += 1
        return describe(self, stream_id)

    monkeypatch.setattr(MemoryStream, "describe_stream", describe_stream)
    query = Query(stream, options())
    query.planner.monotonic = lambda: 0.0
    query.catch_up()

    assert query.offset(len(query.log) - 1).shards["s1"].is_ended
    assert listings == [1]


@pytest.mark.parametrize(
    "parents", [{"c1": ("c2",), "c2": ("c1",)}, {"c1": ("c3",), "c2": ("c1",), "c3": ("c2", "s1")}]
)
def test_circles_of_parents_end_and_are_named_and_a_shard_before_itself_is_read(
    parents: dict[str, tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    stream = two_shards(5)
    stream.open("own")
    stream.shards["own"] = Shard("own", "own")
    stream.write("own", 5)
    for shard, named in parents.items():
        stream.open(shard, *named)
    query = Query(stream, options())
    query.catch_up()

    assert query.keys() == list(range(15))
    assert f"shards {', '.join(sorted(parents))} are each other's parents" in caplog.text


def test_what_a_task_read_before_its_range_is_not_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = two_shards(20)
    query = Query(stream, options())
    query.plan(most=10)
    query.run()
    query.plan(most=10)
    part = next(part for part in query.parts(1) if part.shard_id == "s1")
    body = MemoryStream._body
    monkeypatch.setattr(MemoryStream, "_body", lambda self, iterator, limit: body(self, "s1/0", limit))

    monkeypatch.setattr(partition_reading, "_repeater", lambda: Repeater(ReadRetry(retries=0)))
    with pytest.raises(DependencyException, match="s1 cannot be read: the page begins with record"):
        list(StreamPages(stream)(part))  # type: ignore[arg-type]


def test_walking_from_the_oldest_record_ends_where_iterators_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = two_shards(20)
    query = Query(stream, options())
    passed = ShardOffset("s1/10", 10, stream.records["s1"][9].sequence_info)
    body = MemoryStream._body

    def round_and_round(self: MemoryStream, iterator: str, limit: int) -> bytes:
        message = schema.parse(schema.GetStreamRecordResponse, body(self, iterator, min(limit, 2)))
        message.next_shard_iterator = {"s1/0": "s1/2", "s1/2": "s1/0"}[iterator]
        return bytes(message.SerializeToString())

    monkeypatch.setattr(MemoryStream, "_body", round_and_round)
    with pytest.raises(DependencyException, match=r"everything up to .* was read before"):
        query.planner._first_unread(query.offset(-1).with_shard("s1", passed), "s1", 10)
