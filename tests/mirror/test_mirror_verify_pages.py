"""The changes since a mirror's position, read from pages of which one cannot be true: each once, and in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from streamclient.base.position import Position
from streamclient.copying.mirror_comparison import _records_from
from streamclient.core.shard_tree import ListedEnds
from streamclient.errors import DisorderError
from streamclient.tablestore import RecordPage, StreamDescription
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.testing.fakes import FakeStream
from tests.placed_records import make_record

OTHER = RecordPage((make_record("b1", 1), make_record("b2", 2)), Position("b@2"))


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("harm", ["another shard", "goes back", "stays", "disorder"])
def test_changes_behind_a_position_are_read_once_although_a_page_cannot_be_true(harm: str, at: int) -> None:
    stream = FakeStream("orders", ["a", "b"])
    stream.append("a", *[make_record(f"k{number}", number + 10) for number in range(10)])
    reads, read = [0], stream.get_stream_record

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        reads[0] += 1
        page = read(iterator, 3)
        if reads[0] != at:
            return page
        if harm == "disorder":
            raise DisorderError("record 1 of a page of 2 stands before the one before it")
        back = {"goes back": Position("a@0"), "stays": Position(iterator)}
        return evolve(page, next_position=back[harm]) if harm in back else OTHER

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    repeater = Repeater(ReadRetry(shortest_pause_millis=0, longest_pause_millis=0))
    source: Any = SimpleNamespace(api=stream, repeated=repeater.call)
    found = _records_from(source, "a@0", (stream.stream_id, "a"), ListedEnds())

    assert [record.key["id"] for record in found] == [f"k{number}" for number in range(10)]


def test_pages_that_were_cut_end_no_shard_that_one_list_lacks() -> None:
    stream = FakeStream("orders", ["a", "b"])
    stream.append("a", *[make_record(f"k{number}", number + 10) for number in range(10)])
    reads, read = [0], stream.get_stream_record
    lists, describe = [0], stream.describe_stream

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        reads[0] += 1
        page = read(iterator, 3)
        return evolve(page, next_position=Position.SHARD_END) if reads[0] <= 2 else page

    def describe_stream(stream_id: str) -> StreamDescription:
        lists[0] += 1
        described = describe(stream_id)
        return evolve(described, shards=described.shards[1:]) if lists[0] == 1 else described

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    stream.describe_stream = describe_stream  # type: ignore[method-assign]
    repeater = Repeater(ReadRetry(shortest_pause_millis=0, longest_pause_millis=0))
    source: Any = SimpleNamespace(api=stream, repeated=repeater.call)
    found = _records_from(source, "a@0", (stream.stream_id, "a"), ListedEnds())

    assert [record.key["id"] for record in found] == [f"k{number}" for number in range(10)]


def test_a_skipped_part_of_a_shard_does_not_hide_the_changes_after_it() -> None:
    """The service may return any number of empty pages, each with another position, before the next record."""
    stream = FakeStream("orders", ["a"])
    stream.append("a", make_record("k1", 1))
    skips, read = iter(range(300)), stream.get_stream_record

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        at, number = iterator.partition("+")[0], next(skips, None)
        return read(at, limit) if number is None else RecordPage((), Position(f"{at}+{number}"))

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    source: Any = SimpleNamespace(api=stream, repeated=Repeater(ReadRetry()).call)
    found = _records_from(source, "a@0", (stream.stream_id, "a"), ListedEnds())

    assert [record.key["id"] for record in found] == ["k1"]
