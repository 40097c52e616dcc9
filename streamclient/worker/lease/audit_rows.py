"""Audit rows of the status table: changes of leases by operators' commands, and outcomes of orders about records.

An order about records is an operator's order to park or skip records. A command stores such an order in a lease row,
and a worker obeys it later. When the order has ended, a worker writes an audit row that says how it ended.

The ``StatusType`` of audit rows is ``Audit``, so workers of every language ignore these rows.
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
"""The outcome in an audit row whose command still runs, or whose process died before the command had ended."""
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
"""The ``number`` of the audit row in which a worker records how an order about records ended. The command that gave the
order has written only the row with the number 0."""


@frozen(kw_only=True)
class AuditRecord:
    """One audit row: a command's change of a lease, done or intended, or the end of an order about records.

    An order about records is an operator's order to park or skip records.
    """

    at_micros: int
    """The time at which the audit row was written, in microseconds since 1970 by the service's clock. In a row with the
    outcome of an order, it is the time by the worker's clock."""
    change_id: str
    """The id of the command, which is the same in the rows of all leases of the command."""
    number: int
    """The number of the lease among the leases of the command, counted from 0."""
    who: str
    """``user@host`` of the operator. In a row with the outcome of an order, it is the name of the worker."""
    command: str
    shard_id: str
    before: str
    """The columns that the write changes, as JSON, with their values before the write."""
    after: str
    """The same columns as in ``before``, with the values that the write should give them."""
    reason: str = ""
    outcome: str = INTENDED

    @property
    def key(self) -> str:
        """The last part of the row's primary key. Keys sort by time."""
        return f"{self.at_micros:016d}-{self.change_id}-{self.number:05d}"


def audit_key(stream_id: str, record: AuditRecord) -> Any:
    """Return the primary key of the audit row of ``record``, whose lease belongs to the stream ``stream_id``."""
    return [(STREAM_ID, stream_id), (STATUS_TYPE, AUDIT_STATUS_TYPE), (STATUS_VALUE, record.key)]


def audit_cells(record: AuditRecord) -> list[tuple[str, object]]:
    """Return the columns of the audit row of ``record``, as pairs of a name and a value."""
    return [(column, getattr(record, name)) for name, column in _COLUMNS.items()]


def put_note(client: OTSClient, table_name: str, stream_id: str, note: NoteOrder) -> None:
    """Store an audit row that says how an operator's order to park or skip records ended.

    The row has ``note.outcome``, for example ``parked 3 records``. A repeated call replaces the row.

    Raises:
        StreamClientError: the write failed, or it is unknown whether the row was stored.
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
    """Return the audit record in ``row``, which the SDK has read; ``None`` if the row is not an audit row.

    If the version of the row is unknown, only its time, id and number are read, and ``outcome`` says why.
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
