"""The judge of deliveries sees what is wrong, and accepts what at-least-once allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from attrs import evolve

from streamclient.base.position import Position
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
)
from streamclient.model import Lease, Shard, ShardInfo
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.tablestore.stream_api import RecordPage
from streamclient.testing.deliveries import (
    Delivery,
    DeliveryRecorder,
    ShardHistory,
    judge,
    key_text,
    read_deliveries,
    unread,
)
from streamclient.testing.fakes import FakeStream

KEY = (("id", "a"),)


def record(number: int) -> StreamRecord:
    return StreamRecord(RecordType.PUT, KEY, sequence_info=SequenceInfo(0, number, 0))


def delivery(shard_id: str, numbers: Sequence[int], *, at: int, life: str = "one", **more: Any) -> Delivery:
    records = tuple((key_text(KEY), SequenceInfo(0, number, 0)) for number in numbers)
    return evolve(Delivery("worker", shard_id, life, at, records), **more)


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


def test_one_epoch_of_two_workers_is_found() -> None:
    mine, again = delivery("p", [1], at=1, epoch=4), delivery("p", [2], at=2, epoch=4, life="two")
    later = delivery("c", [3], at=3, epoch=4, worker="b", life="three")

    assert judge([PARENT, CHILD], [mine, again, later]).problems == []
    assert judge([PARENT], [mine, evolve(again, worker="b")]).broken == {
        "epochs grow": ["epoch 4 of p was that of worker and of b"]
    }


def test_what_nobody_wrote_is_invented() -> None:
    verdict = judge([PARENT], [delivery("p", [1, 2], at=1), delivery("p", [7], at=2, life="two")])

    assert list(verdict.broken) == ["nothing is invented"]


def test_the_changes_of_a_key_are_counted_along_its_shards_whatever_their_sequences_say() -> None:
    """A child on another machine, whose clock is late."""
    child = evolve(CHILD, records=(record(0),))
    in_turn = [delivery("p", [1, 2], at=1), delivery("c", [0], at=2, life="two")]

    assert judge([child, PARENT], in_turn).problems == []
    assert judge([child, PARENT], in_turn[::-1]).out_of_order != []


class Nothing(IRecordProcessorCheckpointer, IShutdownMarker):
    """Takes every call."""

    def checkpoint(self, checkpoint_value: str | None = None) -> None: ...

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> Any: ...

    def mark_for_process_done(self) -> None: ...

    def mark_for_process_restart(self) -> None: ...

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        return ""


def test_recorder_writes_down_what_it_is_given_and_under_which_epoch(tmp_path: Path) -> None:
    path, nothing = tmp_path / "a.lines", cast(Any, Nothing())
    with path.open("w", encoding="utf-8") as lines:
        recorder = DeliveryRecorder("a", lines)
        info = ShardInfo("p", "stream", frozenset(), "tenancy", epoch=7)
        recorder.initialize(InitializationInput(info, "TRIM_HORIZON", nothing, nothing))
        recorder.process_records(ProcessRecordsInput((record(1), record(2)), nothing, nothing))
        lines.write('{"worker": "cut sho')
    (found,) = read_deliveries([path])

    assert (found.worker, found.shard_id, found.epoch) == ("a", "p", 7)
    assert [sequence.timestamp_micros for _, sequence in found.records] == [1, 2]


def test_a_record_behind_a_page_without_records_is_unread() -> None:
    """The service skips a part of a shard with such a page."""

    class Skipping(FakeStream):
        def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
            return super().get_shard_iterator(stream_id, shard_id, timestamp_micros) + "~"

        def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
            if shard_iterator.endswith("~"):
                return RecordPage((), Position(shard_iterator[:-1]))
            return super().get_stream_record(shard_iterator, limit)

    stream, lease = Skipping("orders", ("a",)), Lease("a", "orders_1500000000000000")
    assert unread(stream, stream.stream_id, [lease]) == []
    stream.append("a", record(1))
    assert unread(stream, stream.stream_id, [lease]) == ["a is unread from TRIM_HORIZON (owner none)"]
