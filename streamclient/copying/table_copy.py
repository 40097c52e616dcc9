"""Full data without a tunnel: a scan in key order whose place is kept in the status table."""

from __future__ import annotations

import threading
from typing import Any

from attrs import define, field
from tablestore import Condition, OTSClient, RowExistenceExpectation
from tablestore import Row as SdkRow

from streamclient.base.times import now_micros
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.records import KeyValue
from streamclient.tablestore.ranges import TableScan, key_from, key_text, record_of
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.service_errors import classify
from streamclient.worker.lease.lease_rows import STATUS_TYPE, STATUS_VALUE, STREAM_ID

FULL_COPY_STATUS_TYPE = "FullCopy"
"""``StatusType`` of the row that keeps the scan's place; lease workers, Java's too, leave other types alone."""

_IGNORE = Condition(RowExistenceExpectation.IGNORE)


@define(eq=False)
class FullCopy:
    """Copies every row of a table once; goes on where an earlier run stored its place."""

    client: OTSClient
    table: str
    status_table: str
    processors: ReplicationProcessors
    stop: threading.Event
    start_micros: int = field(init=False, default=0)
    """From when on changes must be read."""
    rows: int = field(init=False, default=0)
    is_done: bool = field(init=False, default=False)
    _stream_id: str = field(init=False, default="")
    _next: tuple[KeyValue, ...] | None = field(init=False, default=None)
    _repeater: Repeater = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._repeater = Repeater(ReadRetry(), self.stop)

    def load(self, stream_id: str) -> None:
        """Read the place that an earlier run stored; without one, a new copy begins now."""
        self._stream_id = stream_id
        found = self._repeater.call("GetRow", self._read_place)
        if found is None:
            self.start_micros = now_micros() - CLOCKS_MARGIN_MICROS
            self._store()
            return
        self.start_micros, self.rows, self.is_done = found["StartMicros"], found["Rows"], bool(found["Done"])
        self._next = key_from(found["Next"])

    def run(self) -> None:
        """Copy until everything is copied, or ``stop`` is set."""
        description = TablestoreStreamApi(self.client).describe_table(self.table)
        scan = TableScan(
            calls=SignedCalls(self.client),
            table=self.table,
            key=[name for name, _ in description.definition.primary_key],
            max_versions=description.options.max_versions or 1,
            repeater=self._repeater,
        )
        pages = scan.pages(self._next)
        while not self.is_done and not self.stop.is_set():
            self._next, rows = next(pages)
            self.processors.copy([record_of(row) for row in rows])
            self.rows += len(rows)
            self.is_done = self._next is None
            self._store()

    def _key(self) -> list[tuple[str, str]]:
        return [(STREAM_ID, self._stream_id), (STATUS_TYPE, FULL_COPY_STATUS_TYPE), (STATUS_VALUE, self.table)]

    def _read_place(self) -> dict[str, Any] | None:
        try:
            _, row, _ = self.client.get_row(self.status_table, self._key(), max_version=1)
        except Exception as error:
            raise classify(error, write=False, client=self.client) from error
        return None if row is None else {name: value for name, value, _ in row.attribute_columns}

    def _store(self) -> None:
        """Put the row whole; putting it again is harmless."""
        columns = [
            ("StartMicros", self.start_micros),
            ("Rows", self.rows),
            ("Done", int(self.is_done)),
            ("Next", key_text(self._next)),
        ]

        def put() -> None:
            try:
                self.client.put_row(self.status_table, SdkRow(self._key(), columns), _IGNORE)
            except Exception as error:
                raise classify(error, write=True, client=self.client) from error

        self._repeater.call("PutRow", put)
