"""Rows in doubt. A mirror reads them from the source table, and stores them in its history as additional changes.

A row is in doubt if its changes do not tell its content (see ``fold``). A fold of the history alone would give a wrong
row. So the history gets the row from the table as an additional change: a PUT, or a DELETE if the table has no such
row. The sequence of this change is after the changes that left the row in doubt, and before later changes. The history
gets the change before the mirror gets the row. A repeated merge stores the change once more with the same sequence, so
a fold counts it once.
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
"""The name in ``Commit.shard`` of the commits that store rows in doubt in the history."""

_INDEX = 1 << 31
"""The row index of a row in doubt. It is above the row index of any change, so the row comes after all changes with the
same time."""

Key = tuple[KeyValue, ...]


def as_changes(
    batch: ChangeBatch, rule: TableRule, keys: Sequence[Key], records: Sequence[StreamRecord]
) -> ShardChanges:
    """Return the rows with the keys ``keys`` as changes, each with a sequence after the row's changes in ``batch``.

    ``records`` are the rows that the mirror has read from the table. A key without a row becomes a DELETE.
    """

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
    """Store the changes ``read``, which ``as_changes`` has made, in the history.

    All processes of the mirror commit such changes under the shard name ``AGAIN``. If another process commits first,
    this function tries again with the next commit number.
    """
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
            # If the last commit has changed, another process was quicker. Otherwise the history refuses the rows.
            if history.last_commits([AGAIN])[AGAIN] == last:
                raise
