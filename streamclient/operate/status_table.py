"""The reading of a status table, with the stamps that the service put on its cells."""

from __future__ import annotations

from typing import Any

from tablestore import INF_MAX, INF_MIN, OTSClient

from streamclient.base.times import MICROS_PER_MILLI
from streamclient.core.membership import WorkerRow
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import Lease
from streamclient.operate.facts import RowFacts, WorkerFacts
from streamclient.operate.local_processes import process_of
from streamclient.operate.service_clock import ServiceClock
from streamclient.tablestore.ranges import scan
from streamclient.worker.lease.lease_rows import (
    CHECKPOINT,
    COUNTER,
    LEASE_STATUS_TYPE,
    OWNER,
    STATUS_TYPE,
    STATUS_VALUE,
    STEALER,
    STREAM_ID,
    UnreadableRow,
    parse_row,
)
from streamclient.worker.lease.own_columns import PAUSE
from streamclient.worker.lease.worker_directory import BEAT, WORKER_STATUS_TYPE, parse_worker

MOST_STREAMS = 200
"""The largest number of stream ids that ``stream_ids`` returns. A status table serves one application, so it has few
streams."""


class StatusTableReader:
    """The reader of one status table. It does not repeat a failed call. Thread-safe."""

    def __init__(self, client: OTSClient, name: str, clock: ServiceClock) -> None:
        self._client = client
        self._name = name
        self._clock = clock

    def leases(self, stream_id: str) -> dict[str, RowFacts]:
        """Return all lease rows of a stream by shard, including malformed rows.

        The rows are not a consistent snapshot: some may be read earlier than others.
        """
        rows = self.scan(stream_id, LEASE_STATUS_TYPE)
        parsed = [self._row_facts(row) for row in rows]
        return {row.shard_id: row for row in parsed}

    def workers(self, stream_id: str) -> dict[str, WorkerFacts]:
        """Return the session rows of a stream's workers, by worker name. Malformed rows are left out."""
        parsed = [self._worker_facts(row) for row in self.scan(stream_id, WORKER_STATUS_TYPE)]
        return {worker.name: worker for worker in parsed if worker is not None}

    def stream_ids(self) -> list[str]:
        """Return the ids of the streams that have rows of any kind in the table, by one request for each stream."""
        ids: list[str] = []
        start: Any = [(STREAM_ID, INF_MIN), (STATUS_TYPE, INF_MIN), (STATUS_VALUE, INF_MIN)]
        end = [(STREAM_ID, INF_MAX), (STATUS_TYPE, INF_MAX), (STATUS_VALUE, INF_MAX)]
        while len(ids) < MOST_STREAMS:
            first = next(scan(self._client, self._name, start, end, limit=1), None)
            if first is None:
                break
            ids.append({name: value for name, value, *_ in first.primary_key}[STREAM_ID])
            start = [(STREAM_ID, ids[-1]), (STATUS_TYPE, INF_MAX), (STATUS_VALUE, INF_MAX)]
        return ids

    def scan(
        self,
        stream_id: str,
        status_type: str,
        *,
        since: str | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> list[Any]:
        """Return the rows of the kind ``status_type``, sorted by their keys, in the SDK's form.

        With ``newest``, the order is descending. Rows whose keys are before ``since`` are left out. If ``limit`` is
        given, return only the first ``limit`` rows in this order.
        """

        def key(value: object) -> Any:
            return [(STREAM_ID, stream_id), (STATUS_TYPE, status_type), (STATUS_VALUE, value)]

        first, last = key(INF_MIN if since is None else since), key(INF_MAX)
        start, end = (last, first) if newest else (first, last)
        return list(scan(self._client, self._name, start, end, is_backward=newest, limit=limit))

    def _worker_facts(self, row: Any) -> WorkerFacts | None:
        stamps = stamps_of(row)
        parsed = parse_worker(row)
        if not isinstance(parsed, WorkerRow):
            return None
        self._clock.note_stamp(stamps.get(BEAT, 0))
        info = WorkerInfo.from_json(parsed.info)
        return WorkerFacts(
            name=parsed.worker_id,
            state=parsed.state.value,
            nonce=parsed.nonce,
            beat=parsed.beat,
            beat_micros=stamps.get(BEAT, 0),
            info=info,
            process=process_of(info),
        )

    def _row_facts(self, row: Any) -> RowFacts:
        stamps = stamps_of(row)
        for micros in stamps.values():
            self._clock.note_stamp(micros)
        parsed = parse_row(row)
        return RowFacts(
            shard_id=parsed.lease_key,
            lease=parsed if isinstance(parsed, Lease) else None,
            problem="" if isinstance(parsed, Lease) else parsed.problem,
            is_of_unknown_version=isinstance(parsed, UnreadableRow) and parsed.is_of_unknown_version,
            beat_micros=stamps.get(COUNTER, 0),
            checkpoint_micros=stamps.get(CHECKPOINT, 0),
            owner_micros=stamps.get(OWNER, 0),
            stealer_micros=stamps.get(STEALER, 0),
            pause_micros=stamps.get(PAUSE, 0),
        )


def stamps_of(row: Any) -> dict[str, int]:
    """Return the time of the last write of each cell of a row, in microseconds since 1970, by column name."""
    return {name: millis * MICROS_PER_MILLI for name, _, millis, *_ in row.attribute_columns or ()}
