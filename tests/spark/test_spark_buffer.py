"""The buffer of one shard: what is cut, and when."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as some
from spark_helpers import put

from streamclient.model import PendingCheckpoint
from streamclient.records import SequenceInfo
from streamclient.spark import SparkConfig
from streamclient.spark.processor.buffer import BufferedPage, ShardBuffer
from streamclient.wire.columns import record_batch


@cache
def columns(number: int, count: int, text: str) -> Any:
    return record_batch([put(number * 100 + one, one, v=text) for one in range(count)], None)


def page(number: int, count: int = 1, at: float = 0.0, text: str = "") -> BufferedPage:
    return BufferedPage(columns(number, count, text), f"after {number}", at)


def prepared(number: int, records: int) -> PendingCheckpoint:
    return PendingCheckpoint(f"after {number}", b"", records, 1)


@given(some.lists(some.integers(1, 5), max_size=12), some.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_cuts_follow_each_other_without_gap_or_overlap(pages: list[int], limit: int) -> None:
    config = SparkConfig(max_records=limit)
    buffer = ShardBuffer("TRIM_HORIZON")
    for number, count in enumerate(pages):
        buffer.add(page(number, count))
    expected = list(buffer.pages)
    seen, position = [], "TRIM_HORIZON"
    while buffer.pages:
        cut = buffer.cut(config)
        assert cut.start_position == position
        assert sum(one.record_count for one in cut.pages[:-1]) < limit
        seen += cut.pages
        position = cut.end_position
    assert seen == expected
    assert (buffer.record_count, buffer.size_bytes, buffer.start_position) == (0, 0, position)


def test_batch_is_due_by_count_size_or_age_of_its_first_page() -> None:
    config = SparkConfig(max_records=3, max_bytes=4_000, max_age_millis=2_000)
    buffer = ShardBuffer("start")
    assert buffer.due_at(config) is None
    buffer.add(page(1, at=10.0))
    buffer.add(page(2, at=11.0))
    assert buffer.due_at(config) == 12.0
    buffer.add(page(3, at=11.5))
    assert buffer.due_at(config) == 10.0
    buffer.clear()
    buffer.add(page(4, at=20.0, text="x" * 4_000))
    assert buffer.due_at(config) == 20.0


@given(some.lists(some.integers(1, 5), min_size=1, max_size=8), some.integers(1, 8), some.booleans(), some.data())
@settings(max_examples=80, deadline=None)
def test_what_was_prepared_is_cut_as_a_whole_and_nothing_more(
    pages: list[int], limit: int, is_found: bool, data: some.DataObject
) -> None:
    """By its end, or by the number of its records where no page ends there."""
    last = data.draw(some.integers(0, len(pages) - 1))
    config, count = SparkConfig(max_records=limit), sum(pages[: last + 1])
    buffer = ShardBuffer("start", prepared(last if is_found else 99, count))
    for number, records in enumerate(pages):
        assert buffer.is_incomplete is (number <= last)
        assert (buffer.due_at(config) is None) is (number <= last)
        buffer.add(page(number, records))

    cut = buffer.cut(config)
    assert (cut.record_count, cut.end_position, buffer.prepared) == (count, f"after {last}", None)


@pytest.mark.parametrize("gone", [0, 2, 3])
@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
def test_what_is_left_of_a_prepared_batch_ends_before_the_first_page_behind_it(gone: int, ends: bool) -> None:
    """Else it would wait for records that have left the stream, for ever on an idle shard."""
    buffer = ShardBuffer("start", evolve(prepared(99, 6), last=SequenceInfo(0, 201, 0)))
    for number in range(gone, 3):
        buffer.add(page(number, 2))
        assert buffer.is_incomplete
    buffer.add(BufferedPage(None, "SHARD_END", 0.0) if ends else page(3, 5))

    assert not buffer.is_incomplete
    sizes = []
    while buffer.pages:
        sizes.append(buffer.cut(SparkConfig()).record_count)
    assert sizes == [*([2 * (3 - gone)] if gone < 3 else []), 0 if ends else 5]


def test_end_of_a_shard_alone_is_a_batch_without_records() -> None:
    buffer = ShardBuffer("start", PendingCheckpoint("SHARD_END", b"", 0, 1))
    buffer.add(BufferedPage(None, "SHARD_END", 1.0))
    cut = buffer.cut(SparkConfig())
    assert (cut.record_count, cut.first, cut.last, cut.end_position) == (0, None, None, "SHARD_END")


def test_a_batch_knows_its_first_and_last_record() -> None:
    buffer = ShardBuffer("start")
    buffer.add(page(1, 2))
    buffer.add(page(2, 3))
    cut = buffer.cut(SparkConfig())
    assert (cut.first, cut.last) == (SequenceInfo(0, 100, 0), SequenceInfo(0, 202, 0))
