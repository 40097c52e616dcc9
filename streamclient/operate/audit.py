"""The audit of operators' changes: a row in the status table for each lease that a command writes.

Laws:

* A command adds an audit row before it writes the lease, and adds the outcome to the row afterwards. So the audit also
  shows a command that died in between.
* This package never removes an audit row. ``streamclient.worker.lease.audit_rows`` describes the columns of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve
from tablestore import Condition, OTSClient, PutRowItem, Row, RowExistenceExpectation, UpdateRowItem

from streamclient.core.leases import LeaseWrite
from streamclient.model import Lease, Pause
from streamclient.operate.facts import FleetFacts, OperatorChange
from streamclient.operate.site import Site
from streamclient.tablestore.row_batches import ROWS_PER_BATCH, send_items
from streamclient.worker.lease.audit_rows import (
    AUDIT_STATUS_TYPE,
    OUTCOME,
    AuditRecord,
    audit_cells,
    audit_key,
    parse_audit_row,
)

CHANGES_READ = 200
"""The number of newest audit rows in which ``with_changes`` looks for the last change of each shard."""

AUDIT_ROWS_READ = 10_000
"""The number of newest audit rows in which ``read_audit`` looks for the changes of one shard. To read this number of
rows takes two or three requests."""


def records_for(
    writes: Iterable[LeaseWrite], *, change_id: str, at_micros: int, who: str, command: str, reason: str
) -> list[AuditRecord]:
    """Return one new audit record for each of ``writes``, the lease writes of one command."""
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
    """Return the values that ``lease`` has in the fields that ``write`` changes, as JSON; ``null`` without a lease.

    The field ``counter`` is left out, because most writes change it.
    """
    if lease is None:
        return "null"
    names = [name for name in write.changes if name != "counter"]
    return json.dumps({name: plain(getattr(lease, name)) for name in names}, ensure_ascii=False, sort_keys=True)


def plain(value: Any) -> Any:
    """Return ``value``, the value of a field of ``Lease``, in a form that JSON can hold."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__attrs_attrs__"):
        fields = value.as_plain() if isinstance(value, Pause) else asdict(value, recurse=False)
        return {name: plain(content) for name, content in fields.items()}
    return value.hex() if isinstance(value, bytes) else value


class AuditLog:
    """The writer of one stream's audit rows. It does not repeat a failed call."""

    def __init__(self, client: OTSClient, table_name: str, stream_id: str) -> None:
        self._client = client
        self._table_name = table_name
        self._stream_id = stream_id

    def intend(self, records: Sequence[AuditRecord]) -> None:
        """Store new audit records. The caller makes the changes that the records describe only after this call.

        Raises:
            StreamClientError: perhaps not all records are stored. The caller must not make the changes.
        """
        condition = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
        self._write(
            [PutRowItem(Row(audit_key(self._stream_id, record), audit_cells(record)), condition) for record in records]
        )

    def complete(self, records: Sequence[AuditRecord], outcomes: Mapping[str, str]) -> list[AuditRecord]:
        """Store the outcome of each record, and return the records with their outcomes.

        The keys of ``outcomes`` are shard ids.

        Raises:
            StreamClientError: perhaps not all outcomes are stored.
        """
        completed = [evolve(record, outcome=outcomes.get(record.shard_id, record.outcome)) for record in records]
        condition = Condition(RowExistenceExpectation.EXPECT_EXIST)
        self._write(
            [
                UpdateRowItem(Row(audit_key(self._stream_id, record), {"PUT": [(OUTCOME, record.outcome)]}), condition)
                for record in completed
            ]
        )
        return completed

    def _write(self, items: Sequence[Any]) -> None:
        for start in range(0, len(items), ROWS_PER_BATCH):
            for error in send_items(self._client, self._table_name, items[start : start + ROWS_PER_BATCH]):
                if error is not None:
                    raise error


def read_audit(site: Site, limit: int, shard_id: str | None = None) -> list[AuditRecord]:
    """Return at most ``limit`` changes by operators, newest first.

    If ``shard_id`` is ``None``, return changes of all shards, otherwise those of one shard. An audit row that an
    unknown version wrote may concern any shard, so it is returned for every shard.

    Raises:
        StreamClientError: the status table could not be read.
    """

    def read() -> list[AuditRecord]:
        wanted = limit if shard_id is None else AUDIT_ROWS_READ
        rows = site.table.scan(site.stream_id, AUDIT_STATUS_TYPE, limit=wanted, newest=True)
        records = [record for row in rows if (record := parse_audit_row(row)) is not None]
        return [record for record in records if shard_id is None or record.shard_id in (shard_id, "")][:limit]

    return site.read("reading the audit", read)


def with_changes(site: Site, facts: FleetFacts) -> FleetFacts:
    """Return ``facts`` with the last change of each shard by an operator.

    Only the ``CHANGES_READ`` newest audit rows are searched, by one request. For a shard with no change in these rows,
    the returned facts have no change.
    """
    if facts.trouble or facts.stream.stream_id is None:
        return facts
    changes: dict[str, OperatorChange] = {}
    for record in read_audit(site, CHANGES_READ):
        change = OperatorChange(
            at_micros=record.at_micros, who=record.who, command=record.command, outcome=record.outcome
        )
        changes.setdefault(record.shard_id, change)
    return evolve(facts, changes=changes)
