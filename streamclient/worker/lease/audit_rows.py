"""Audit rows of the status table: what operators ordered, and how workers ended orders about records.

Workers of every language leave these rows alone: their ``StatusType`` is ``Audit``.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import asdict, frozen
from tablestore import Condition, OTSClient, PutRowItem, Row, RowExistenceExpectation

from streamclient.base.kept_formats import FORMAT_COLUMN, KeptFormat
from streamclient.core.events import NoteOrder
from streamclient.tablestore.row_batches import send_items
from streamclient.worker.lease.lease_rows import STATUS_TYPE, STATUS_VALUE, STREAM_ID

AUDIT_STATUS_TYPE = "Audit"

AUDIT_FORMAT = KeptFormat("the audit row")

INTENDED = "intended"
"""The outcome of a record that is not completed: the command is under way, or its process died."""
DONE = "done"

OUTCOME = "Outcome"

_COLUMNS = {
    "who": "Who",
    "command": "Command",
    "shard_id": "Shard",
    "before": "Before",
    "after": "After",
    "reason": "Reason",
    "outcome": OUTCOME,
}

END_NUMBER = 1
"""The number of the row in which a worker tells the end of an order. The order's own command has only row 0."""


@frozen(kw_only=True)
class AuditRecord:
    """One lease that a command changes or meant to change, or one order of a command that a worker ended."""

    at_micros: int
    """The time at which the audit row was written, by the service's clock. For the end of an order it is by the
    worker's clock."""
    change_id: str
    """The id of the command, the same for all its leases."""
    number: int
    """The number of the lease among the leases of the command, counted from 0."""
    who: str
    """``user@host`` of the operator, or the worker that ended an order."""
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


def audit_key(stream_id: str, record: AuditRecord) -> Any:
    """Return the primary key of a record's row."""
    return [(STREAM_ID, stream_id), (STATUS_TYPE, AUDIT_STATUS_TYPE), (STATUS_VALUE, record.key)]


def audit_cells(record: AuditRecord) -> list[tuple[str, object]]:
    """Return the columns of a record's row."""
    return [(column, getattr(record, name)) for name, column in _COLUMNS.items()]


def put_note(client: OTSClient, table_name: str, stream_id: str, note: NoteOrder) -> None:
    """Store the end of an order as a row of its own. A repetition replaces it.

    Raises:
        StreamClientError: the row is perhaps not stored.
    """
    order = note.order
    record = AuditRecord(
        at_micros=note.at_micros,
        change_id=order.request_id,
        number=END_NUMBER,
        who=note.who,
        command=f"end of {'skip' if order.is_skip else 'park'}",
        shard_id=note.lease_key,
        before=json.dumps({"orders": [asdict(order)]}, ensure_ascii=False, sort_keys=True),
        after=json.dumps({"orders": []}),
        reason=order.reason,
        outcome=note.outcome,
    )
    item = PutRowItem(Row(audit_key(stream_id, record), audit_cells(record)), Condition(RowExistenceExpectation.IGNORE))
    (error,) = send_items(client, table_name, [item])
    if error is not None:
        raise error


def parse_audit_row(row: Any) -> AuditRecord | None:
    """Return the record in a row that the SDK read; ``None`` if the row is not an audit record.

    If the record's version is unknown, only its time, id and number are read, and its outcome says why.
    """
    key = {name: value for name, value, *_ in row.primary_key}[STATUS_VALUE]
    cells = {name: value for name, value, *_ in row.attribute_columns or ()}
    at, _, rest = key.partition("-")
    change_id, _, number = rest.partition("-")
    if not (at.isdigit() and number.isdigit()):
        return None
    if problem := AUDIT_FORMAT.problem(cells.get(FORMAT_COLUMN)):
        cells = {OUTCOME: f"not read: {problem}"}
    values = {name: cells.get(column) for name, column in _COLUMNS.items()}
    texts = {name: value if isinstance(value, str) else "" for name, value in values.items()}
    return AuditRecord(at_micros=int(at), change_id=change_id, number=int(number), **texts)
