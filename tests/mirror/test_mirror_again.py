"""What is read of rows in doubt is in the history, too."""

from __future__ import annotations

from typing import Any

from tablestore import Row

from streamclient.copying import Mirror
from streamclient.copying.reread import AGAIN, as_changes, remember
from streamclient.destinations import records_of
from streamclient.destinations.folding.folded_batches import ChangeBatch, ShardChanges
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.destinations.proof.verification import verify
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.destination_contract import change
from tests.folding.table_model import TableModel
from tests.mirror.mirroring import IGNORE, LIMITS, QUICK, caught_up, make_table, put, running
from tests.mirror.test_mirror import DAY_SECONDS, SetClock

RULE = TableRule(("id",))
KEY = (("id", 1),)


def records_in(history: MemoryDestination) -> list[StreamRecord]:
    records = [record for table in history.rows() for record in records_of(table)]
    return sorted(records, key=lambda one: one.sequence_info)


def test_a_row_that_is_read_again_is_in_the_history_as_it_was_read() -> None:
    """It held 30, was given 10, which is older, and then lost 30; no change tells that 10 went, too."""
    clock = SetClock()
    clock.shift_micros = -120_000_000  # before the changes that are read
    history = MemoryDestination()
    with LocalTablestore(clock=clock) as local:
        client = local.client()
        make_table(client, max_time_deviation=DAY_SECONDS)
        now = clock.now_micros() // 1_000
        put(client, 1, ("b", 0, now), ("a", "thirty", now + 30))
        clock.shift_micros = 0
        for changed in ({"PUT": [("a", "ten", now + 10)]}, {"DELETE": [("a", None, now + 30)]}):
            client.update_row("orders", Row([("id", 1)], changed), IGNORE)
        mirror = Mirror(
            client, "orders", "status", MemoryDestination(), history=history, client_config=QUICK, limits=LIMITS
        )
        with running(mirror):
            caught_up(mirror)
            assert TableModel.after(records_in(history), 1).rows == {KEY: {"b": {now: 0}}}
            client.update_row("orders", Row([("id", 1)], {"PUT": [("a", "five", now + 5)]}), IGNORE)
            caught_up(mirror)
            assert mirror.verify().count == 0

    records = records_in(history)
    assert [one.record_type.value for one in records] == ["PUT", "UPDATE", "UPDATE", "PUT", "UPDATE"]
    assert TableModel.after(records, 1).rows == {KEY: {"b": {now: 0}, "a": {now + 5: "five"}}}
    assert verify(history, with_rows=True).is_whole


def test_a_row_that_is_gone_when_it_is_read_again_is_deleted_in_the_history() -> None:
    changes = [StreamRecord(RecordType.UPDATE, KEY, (), SequenceInfo(2, micros, 7)) for micros in (5, 6)]
    read = as_changes(ChangeBatch.of([ShardChanges.of("shard", changes)]), RULE, [(1,)], [])

    assert [(one.record_type, one.primary_key) for one in read.records] == [(RecordType.DELETE, KEY)]
    assert changes[-1].sequence_info < read.records[0].sequence_info < SequenceInfo(2, 7, 0)


def test_processes_that_read_rows_again_at_once_take_turns() -> None:
    class Slow(MemoryDestination):
        def commit(self, rows: Any, commits: Any) -> None:
            if not self.place.entries:
                remember(MemoryDestination(self.place), ShardChanges.of(AGAIN, [change(1)]), 10, RULE)
            super().commit(rows, commits)

    history = Slow()
    remember(history, ShardChanges.of(AGAIN, [change(2)]), 11, RULE)

    assert [one.number for entry in history.place.entries for one in entry.commits] == [1, 2]
    assert len(records_in(history)) == 2
