"""Rows that are in doubt and read from the table again, as changes for the history.

No change holds the content of a row in doubt, so a fold of the history would get the row wrong. So the row as it was
read stands in the history as a change of its own, after the changes that left it in doubt: a PUT, or a DELETE if the
row was gone. Later changes are applied to that row as in the mirror. The history has the row before the mirror has it.
A merge that is repeated stores the row again, at the same position, so it counts once.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from streamclient.copying.source_table import COPY
from streamclient.destinations.commit import Commit, Destination
from streamclient.destinations.folding.folded_batches import ChangeBatch, ShardChanges
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.destinations.rows.change_rows import change_rows
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import StreamClientException
from streamclient.model import CheckpointPosition
from streamclient.records import KeyValue, RecordType, SequenceInfo, StreamRecord

AGAIN = f"{COPY}/again"
"""The shard under which the history stores these rows."""

_INDEX = 1 << 31
"""A row index above the index of any change, because the row was read after all changes of that time."""

Key = tuple[KeyValue, ...]


def as_changes(
    batch: ChangeBatch, rule: TableRule, keys: Sequence[Key], records: Sequence[StreamRecord]
) -> ShardChanges:
    """Return the rows with the keys ``keys`` as changes, each after the changes of the same row in the batch."""

    def key_of(record: StreamRecord) -> Key:
        key = dict(record.primary_key)
        return tuple(key[name] for name in rule.key)

    lasts = dict.fromkeys(keys, SequenceInfo(0, 0, 0))
    for record in batch.records:
        if (key := key_of(record)) in lasts:
            lasts[key] = max(lasts[key], record.sequence_info)
    present = {key_of(record): record for record in records}
    made = []
    for key, last in lasts.items():
        read = present.get(key) or StreamRecord(RecordType.DELETE, tuple(zip(rule.key, key, strict=True)))
        made.append(evolve(read, sequence_info=evolve(last, row_index=_INDEX)))
    return ShardChanges.of(AGAIN, made)


def remember(history: Destination, read: ShardChanges, read_at_micros: int, rule: TableRule) -> None:
    """Store rows that were read in the history. All processes of the mirror take turns in one shard."""
    while True:
        last = history.last_commits([AGAIN])[AGAIN]
        commit = Commit.after(
            last,
            application=history.application,
            shard=AGAIN,
            epoch=0,
            start=CheckpointPosition.TRIM_HORIZON if last is None else last.end,
            end=str(read_at_micros),
            count=len(read.records),
            content=records_digest(read.changes),
        )
        rows = change_rows(
            read.changes, shard=AGAIN, number=commit.number, columns=history.columns(), declared=rule.declared
        )
        try:
            history.commit(rows, [commit])
            return
        except StreamClientException:
            # Another process was quicker, or the history refuses the rows.
            if history.last_commits([AGAIN])[AGAIN] == last:
                raise
