"""The buffer of one shard: what is cut, and when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some
from spark_helpers import put

from streamclient.spark import SparkConfig
from streamclient.spark.buffer import Page, ShardBuffer, estimate_bytes


def page(number: int, count: int = 1, size: int = 10, at: float = 0.0) -> Page:
    return Page(tuple(put(number * 100 + one, one) for one in range(count)), f"after {number}", size, at)


@given(some.lists(some.tuples(some.integers(1, 5), some.integers(1, 50)), max_size=12), some.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_cuts_follow_each_other_without_gap_or_overlap(pages: list[tuple[int, int]], limit: int) -> None:
    config = SparkConfig(max_records=limit, max_bytes=60)
    buffer, expected = ShardBuffer("TRIM_HORIZON"), []
    for number, (count, size) in enumerate(pages):
        buffer.add(page(number, count, size))
        expected += buffer.pages[-1].records
    seen, position = [], "TRIM_HORIZON"
    while buffer.pages:
        cut = buffer.cut(config)
        assert cut.start_position == position
        assert sum(len(one.records) for one in cut.pages[:-1]) < limit
        seen += cut.records
        position = cut.end_position
    assert seen == expected
    assert (buffer.record_count, buffer.size_bytes, buffer.start_position) == (0, 0, position)


def test_batch_is_due_by_count_size_or_age_of_its_first_page() -> None:
    config = SparkConfig(max_records=3, max_bytes=100, max_age_millis=2_000)
    buffer = ShardBuffer("start")
    assert buffer.due_at(config) is None
    buffer.add(page(1, at=10.0))
    buffer.add(page(2, at=11.0))
    assert buffer.due_at(config) == 12.0
    buffer.add(page(3, at=11.5))
    assert buffer.due_at(config) == 10.0
    buffer.clear()
    buffer.add(page(4, size=100, at=20.0))
    assert buffer.due_at(config) == 20.0


def test_estimate_grows_with_the_text_it_holds() -> None:
    small, large = put(1, 1, a="x"), put(1, 1, a="x" * 1_000)
    assert estimate_bytes([large]) - estimate_bytes([small]) == 999
    assert estimate_bytes([small, small]) == 2 * estimate_bytes([small])
