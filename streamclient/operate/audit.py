"""The audit of operators' changes: a row in the status table for each lease that a command touches.

Laws:

* The row is written before the lease and completed after it: a command that dies in between stays visible.
* This package adds and completes rows; it never removes them.

Workers of every language leave these rows alone: their ``StatusType`` is ``Audit``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen
from tablestore import Condition, OTSClient, PutRowItem, Row, RowExistenceExpectation, UpdateRowItem

from streamclient.core.leases import LeaseWrite
from streamclient.model import Lease, Pause
from streamclient.tablestore.row_batches import ROWS_PER_BATCH, send_items
from streamclient.worker.lease.lease_rows import STATUS_TYPE, STATUS_VALUE, STREAM_ID

AUDIT_STATUS_TYPE = "Audit"

INTENDED = "intended"
"""Outcome of a record that is not completed: the command is under way, or its process died."""
DONE = "done"

_COLUMNS = {
    "who": "Who",
    "command": "Command",
    "shard_id": "Shard",
    "before": "Before",
    "after": "After",
    "reason": "Reason",
    "outcome": "Outcome",
}


@frozen(kw_only=True)
class AuditRecord:
    """One lease that a command changes, or meant to change."""

    at_micros: int
    """Time at which the audit row was written, by the service's clock."""
    change_id: str
    """The id of the command, the same for all its leases."""
    number: int
    """The number of the lease among those of the command, counted from 0."""
    who: str
    """``user@host`` of the operator."""
    command: str
    shard_id: str
    before: str
    """The columns that the write changes, as JSON, with their values before the write."""
    after: str
    """The same columns, with the values that the write should give them."""
    reason: str = ""
    outcome: str = INTENDED

    @property
    def key(self) -> str:
        """The row's key, which sorts by time."""
        return f"{self.at_micros:016d}-{self.change_id}-{self.number:05d}"


def records_for(
    writes: Iterable[LeaseWrite], *, at_micros: int, who: str, command: str, reason: str
) -> list[AuditRecord]:
    """Return the records of one command's writes."""
    change_id = uuid.uuid4().hex[:8]
    return [
        AuditRecord(
            at_micros=at_micros,
            change_id=change_id,
            number=number,
            who=who,
            command=command,
            shard_id=write.lease_key,
            before=changed_fields(write.seen, write),
            after=changed_fields(write.result, write),
            reason=reason,
        )
        for number, write in enumerate(writes)
    ]


def changed_fields(lease: Lease | None, write: LeaseWrite) -> str:
    """Return the fields of a lease that a write changes, as JSON, except the counter, which most writes change."""
    if lease is None:
        return "null"
    names = [name for name in write.changes if name != "counter"]
    return json.dumps({name: _plain(getattr(lease, name)) for name in names}, ensure_ascii=False, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if hasattr(value, "__attrs_attrs__"):
        fields = value.as_plain() if isinstance(value, Pause) else asdict(value, recurse=False)
        return {name: _plain(content) for name, content in fields.items()}
    return value.hex() if isinstance(value, bytes) else value


class AuditLog:
    """The audit rows of one stream. Each call is made once."""

    def __init__(self, client: OTSClient, table_name: str, stream_id: str) -> None:
        self._client = client
        self._table_name = table_name
        self._stream_id = stream_id

    def intend(self, records: Sequence[AuditRecord]) -> None:
        """Store new records.

        Raises:
            StreamClientError: a record is perhaps not stored; then nothing may be changed.
        """
        condition = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
        self._write([PutRowItem(Row(self._key(record), _cells(record)), condition) for record in records])

    def complete(self, records: Sequence[AuditRecord], outcomes: Mapping[str, str]) -> list[AuditRecord]:
        """Store the outcomes by shard; return the completed records.

        Raises:
            StreamClientError: a record is perhaps not completed.
        """
        completed = [evolve(record, outcome=outcomes.get(record.shard_id, record.outcome)) for record in records]
        condition = Condition(RowExistenceExpectation.EXPECT_EXIST)
        self._write(
            [
                UpdateRowItem(Row(self._key(record), {"PUT": [(_COLUMNS["outcome"], record.outcome)]}), condition)
                for record in completed
            ]
        )
        return completed

    def _key(self, record: AuditRecord) -> Any:
        return [(STREAM_ID, self._stream_id), (STATUS_TYPE, AUDIT_STATUS_TYPE), (STATUS_VALUE, record.key)]

    def _write(self, items: Sequence[Any]) -> None:
        for start in range(0, len(items), ROWS_PER_BATCH):
            for error in send_items(self._client, self._table_name, items[start : start + ROWS_PER_BATCH]):
                if error is not None:
                    raise error


def _cells(record: AuditRecord) -> list[tuple[str, object]]:
    return [(column, getattr(record, name)) for name, column in _COLUMNS.items()]


def parse_audit_row(row: Any) -> AuditRecord | None:
    """Return the record in a row that the SDK read; ``None`` if the row is not an audit record."""
    key = {name: value for name, value, *_ in row.primary_key}[STATUS_VALUE]
    cells = {name: value for name, value, *_ in row.attribute_columns or ()}
    at, _, rest = key.partition("-")
    change_id, _, number = rest.partition("-")
    if not (at.isdigit() and number.isdigit()):
        return None
    values = {name: cells.get(column) for name, column in _COLUMNS.items()}
    texts = {name: value if isinstance(value, str) else "" for name, value in values.items()}
    return AuditRecord(at_micros=int(at), change_id=change_id, number=int(number), **texts)
