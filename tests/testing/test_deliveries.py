"""The judge of deliveries sees what is wrong, and accepts what at-least-once allows."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.model import Shard
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.testing.deliveries import Delivery, ShardHistory, judge, key_text

KEY = (("id", "a"),)


def record(number: int) -> StreamRecord:
    return StreamRecord(RecordType.PUT, KEY, sequence_info=SequenceInfo(0, number, 0))


def delivery(shard_id: str, numbers: Sequence[int], *, at: int, life: str = "one") -> Delivery:
    records = tuple((key_text(KEY), SequenceInfo(0, number, 0)) for number in numbers)
    return Delivery("worker", shard_id, life, at, records)


PARENT = ShardHistory(Shard("p"), (record(1), record(2)))
CHILD = ShardHistory(Shard("c", parent_id="p"), (record(3),))


def test_complete_delivery_is_clean() -> None:
    verdict = judge([PARENT, CHILD], [delivery("p", [1, 2], at=1), delivery("c", [3], at=2, life="two")])

    assert (verdict.is_clean, verdict.changes, verdict.delivered) == (True, 3, 3)


def test_repeats_after_a_restart_are_allowed() -> None:
    verdict = judge([PARENT], [delivery("p", [1], at=1), delivery("p", [1, 2], at=2, life="two")])

    assert (verdict.is_clean, verdict.delivered) == (True, 3)


def test_a_missing_record_is_lost() -> None:
    verdict = judge([PARENT], [delivery("p", [2], at=1)])

    assert len(verdict.lost) == 1


def test_a_skipped_record_that_comes_later_is_out_of_order() -> None:
    verdict = judge([PARENT], [delivery("p", [2], at=1), delivery("p", [1, 2], at=2, life="two")])

    assert len(verdict.out_of_order) == 1


def test_one_processor_never_goes_back() -> None:
    verdict = judge([PARENT], [delivery("p", [1, 2], at=1), delivery("p", [1], at=2)])

    assert len(verdict.out_of_order) == 1


def test_a_child_before_the_end_of_its_parent_is_found() -> None:
    late_parent = [delivery("p", [1], at=1), delivery("c", [3], at=2, life="two"), delivery("p", [2], at=3)]
    verdict = judge([PARENT, CHILD], late_parent)

    assert len(verdict.children_before_parents) == 1
