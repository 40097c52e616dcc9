"""A store of parked records in a Tablestore table, for fleets on many machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from attrs import evolve
from tablestore import (
    INF_MAX,
    INF_MIN,
    Condition,
    DeleteRowItem,
    NoRetryPolicy,
    OTSClient,
    PutRowItem,
    Row,
    RowExistenceExpectation,
)

from streamclient.base import checks
from streamclient.base.kept_formats import FORMAT_COLUMN
from streamclient.errors import (
    CodecError,
    DependencyException,
    StreamClientError,
    StreamClientException,
)
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.tablestore.own_table import OwnTable, TablePurpose
from streamclient.tablestore.ranges import scan
from streamclient.tablestore.row_batches import ROWS_PER_READ, batches, read_rows, send_items, translated
from streamclient.tablestore.signed_calls import with_own_connection
from streamclient.wire.sdk_logging import silence
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL, OBJECT_NOT_EXIST
from streamclient.worker.parking.parked_fleets import fleet_of, require_own
from streamclient.worker.parking.parked_frames import PARKED_FORMAT, frame_of, key_text, parse_key, record_of

PARKING_TABLE = TablePurpose(
    "table",
    "hold parked records",
    "parked records",
    (("StreamId", "STRING"), ("ShardId", "STRING"), ("RecordId", "STRING")),
)

CELL_BYTES = 1024 * 1024
"""The largest number of bytes in a cell. A record with its previous values may exceed the service's limit of 2 MB, so
its bytes are cut into cells of half that size: ``Frame0000``, ``Frame0001`` and so on."""

FLEET_COLUMN = "Fleet"
"""The column with ``ParkedRecord.fleet``. It is absent if the record counts as a record of every fleet. An earlier
version ignores the column."""

REQUEST_BYTES = 2 * 1024 * 1024
"""The largest number of bytes of records in one request. The service accepts 4 MB, and each row also holds the text of
an error."""


@checks.explains_names
class TableParkingStore(IParkingStore):
    """A parking store with one row per record in a separate table, which is created when needed. Thread-safe.

    Fleets of different streams may share the table. Each fleet of one stream needs a table of its own; another fleet is
    refused. A failed call raises an error, and the worker repeats the call.

    Args:
        client: a ``tablestore.OTSClient``; the store uses a copy that makes every call once.
        table_name: the name of the table. The store creates it with the key ``StreamId``, ``ShardId``, ``RecordId``,
            all STRING.
        wait: waits a number of seconds between two checks of a new table, which is not ready immediately.

    Raises:
        ConfigurationError: ``client`` or ``table_name`` cannot be used.
    """

    def __init__(self, client: OTSClient, table_name: str, *, wait: Callable[[float], object] = time.sleep) -> None:
        self._client = with_own_connection(checks.client.require("client", client))
        checks.identifier.require("table_name", table_name)
        checks.function("with a number of seconds").require("wait", wait)
        self._client.retry_policy = NoRetryPolicy()
        silence(self._client)
        self._table_name = table_name
        self._table = OwnTable(self._client, table_name, PARKING_TABLE, sleep=wait)
        self._is_there = False

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Write a row for each of ``records`` that has no row yet.

        Raises:
            ConfigurationError: another fleet has parked records of the stream. If it did so at the same time, the
                records may have been stored.
            StreamClientException: a record that had a row was removed during this call; repeat the call.
        """
        self._have_table()
        self._require_own(records)
        absent = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
        unique = {tuple(_row_key(parked)): parked for parked in records}.values()
        items = [
            (PutRowItem(Row(_row_key(parked), _columns(parked)), absent), len(frame_of(parked.record)))
            for parked in unique
        ]
        refused = self._write(items, ignored=CONDITION_CHECK_FAIL)
        self._require_rows([parked for parked, is_refused in zip(unique, refused, strict=True) if is_refused])
        self._require_own(records)

    def _require_own(self, records: Sequence[ParkedRecord]) -> None:
        for stream_id in sorted({parked.stream_id for parked in records if parked.fleet}):
            require_own(fleet_of(records, stream_id), self.parked_keys(stream_id), self)

    def _require_rows(self, records: Sequence[ParkedRecord]) -> None:
        """Check that each of ``records``, whose rows existed before, still has a row, and that it is of its fleet.

        Existence and fleet come from one read. If they came from two, another fleet could remove its row in between,
        and this fleet would take that row for its own.
        """
        named = [parked for parked in records if parked.fleet]
        for parked, fleet in zip(named, self._fleets(named), strict=True):
            if fleet is None:
                raise StreamClientException(
                    f"record {parked.record_id} of shard {parked.shard_id} was removed from {self!r} while it was "
                    "parked again; park it again"
                )
            require_own(parked.fleet, [evolve(parked, fleet=fleet)], self)

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Yield the parked records of the rows, sorted by the key of the row.

        Raises:
            StreamClientException: a row is not a parked record; the message names the row.
        """
        for row in self._scan(stream_id, None):
            yield _parked(row)

    def parked_keys(self, stream_id: str) -> Iterable[ParkedKey]:
        """Return the keys of a stream that have parked records. Only small columns of each row are read.

        Raises:
            StreamClientException: the version of a row is unknown; the message names the row.
        """
        keys: dict[tuple[str, str, str], ParkedKey] = {}
        for row in self._scan(stream_id, ["RecordKey", "Generation", FLEET_COLUMN, FORMAT_COLUMN]):
            _, shard_id, record_id = _key_values(row)
            cells = _known_cells(row)
            text, fleet = cells["RecordKey"], cells.get(FLEET_COLUMN, "")
            if (text, shard_id, fleet) not in keys:
                key = ParkedKey(parse_key(text), shard_id, record_id, cells["Generation"], fleet)
                keys[text, shard_id, fleet] = key
        return keys.values()

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Delete the rows of ``records``."""
        self._have_table()
        any_state = Condition(RowExistenceExpectation.IGNORE)
        keys = {tuple(_row_key(parked)) for parked in records}
        self._write([(DeleteRowItem(Row(list(key)), any_state), 0) for key in keys], ignored=None)

    def still_parked(self, records: Sequence[ParkedRecord]) -> Sequence[ParkedRecord]:
        """Return those of ``records`` that have a row now, in the same order. One request reads up to 100 rows."""
        self._have_table()
        return [parked for parked, fleet in zip(records, self._fleets(records), strict=True) if fleet is not None]

    # --- calls ---------------------------------------------------------------------------------------------------

    def _fleets(self, records: Sequence[ParkedRecord]) -> list[str | None]:
        """Return the fleet in the row of each of ``records``, in order; ``None`` for a record without a row."""
        keys = {tuple(_row_key(parked)): parked for parked in records}
        found: dict[Any, str | None] = {}
        for batch in batches(keys, lambda key: key, lambda key: 0, most_rows=ROWS_PER_READ):
            rows = read_rows(self._client, self._table_name, list(map(list, batch)), ["RecordKey", FLEET_COLUMN])
            for key, row in zip(batch, rows, strict=True):
                if isinstance(row, StreamClientError):
                    raise self._noted(row)
                found[key] = None if row is None else _cells(row).get(FLEET_COLUMN, "")
        return [found[tuple(_row_key(parked))] for parked in records]

    def _write(self, items: Sequence[tuple[Any, int]], *, ignored: str | None) -> list[bool]:
        """Write items of different rows, each with its size; ignore errors with the code ``ignored``.

        Return for each item whether its error was ignored.
        """
        refused: list[bool] = []
        for batch in batches(items, id, itemgetter(1), most_bytes=REQUEST_BYTES):
            for error in send_items(self._client, self._table_name, [item for item, _ in batch]):
                if error is not None and not (isinstance(error, DependencyException) and error.code == ignored):
                    raise self._noted(error)
                refused.append(error is not None)
        return refused

    def _scan(self, stream_id: str | None, columns: list[str] | None) -> Iterator[Any]:
        self._have_table()
        first, last = (INF_MIN, INF_MAX) if stream_id is None else (stream_id, stream_id)
        start = [("StreamId", first), ("ShardId", INF_MIN), ("RecordId", INF_MIN)]
        end = [("StreamId", last), ("ShardId", INF_MAX), ("RecordId", INF_MAX)]
        call = partial(self._call, write=False)
        return scan(self._client, self._table_name, start, end, columns=columns, call=call)

    def _call(self, call: Callable[[], Any], *, write: bool) -> Any:
        try:
            return call()
        except Exception as error:
            failure = self._noted(translated(error, write=write, client=self._client))
            raise failure from failure.__cause__

    def _noted(self, failure: StreamClientError) -> StreamClientError:
        """Return ``failure``. If it says that the table does not exist, let the next call create the table first."""
        if isinstance(failure, DependencyException) and failure.code == OBJECT_NOT_EXIST:
            self._is_there = False
        return failure

    # --- the table -----------------------------------------------------------------------------------------------

    def _have_table(self) -> None:
        """Create the table if it does not exist, and wait until it answers.

        Two threads may do this at the same time.
        """
        if self._is_there:
            return
        self._table.create_if_absent()
        failure = self._table.wait_until_ready([(name, "-") for name, _ in PARKING_TABLE.key])
        if failure is not None:
            raise failure
        self._is_there = True

    def exists(self) -> bool:
        """Return whether the table exists. This sends one request, and does not create the table.

        Raises:
            ConfigurationError: the table exists, but cannot hold parked records.
            DependencyException: the service refused or did not answer.
        """
        return self._table.exists()

    def __repr__(self) -> str:
        return f"TableParkingStore({self._table_name!r})"


def _row_key(parked: ParkedRecord) -> list[tuple[str, str]]:
    return [("StreamId", parked.stream_id), ("ShardId", parked.shard_id), ("RecordId", parked.record_id)]


def _columns(parked: ParkedRecord) -> list[tuple[str, Any]]:
    frame = frame_of(parked.record)
    pieces = [frame[start : start + CELL_BYTES] for start in range(0, len(frame), CELL_BYTES)]
    return [
        ("RecordKey", key_text(parked.record.primary_key)),
        ("Generation", parked.generation),
        ("Position", parked.position),
        ("Index", parked.index),
        ("Error", parked.error),
        ("Traceback", parked.traceback),
        ("Attempts", parked.attempts),
        ("ParkedMicros", parked.parked_micros),
        *([(FLEET_COLUMN, parked.fleet)] if parked.fleet else ()),
        *((f"Frame{number:04d}", bytearray(piece)) for number, piece in enumerate(pieces)),
    ]


def _key_values(row: Any) -> tuple[str, str, str]:
    stream_id, shard_id, record_id = (value for _, value, *_ in row.primary_key)
    return stream_id, shard_id, record_id


def _cells(row: Any) -> dict[str, Any]:
    return {name: value for name, value, *_ in row.attribute_columns}


def _known_cells(row: Any) -> dict[str, Any]:
    cells = _cells(row)
    if problem := PARKED_FORMAT.problem(cells.get(FORMAT_COLUMN)):
        _, shard_id, record_id = _key_values(row)
        raise StreamClientException(f"row {record_id} of shard {shard_id}: {problem}")
    return cells


def _parked(row: Any) -> ParkedRecord:
    stream_id, shard_id, record_id = _key_values(row)
    cells = _known_cells(row)
    try:
        frame = b"".join(bytes(cells[name]) for name in sorted(cells) if name.startswith("Frame"))
        return ParkedRecord(
            record_id=record_id,
            stream_id=stream_id,
            shard_id=shard_id,
            record=record_of(frame),
            position=cells["Position"],
            index=cells["Index"],
            generation=cells["Generation"],
            error=cells["Error"],
            traceback=cells["Traceback"],
            attempts=cells["Attempts"],
            parked_micros=cells["ParkedMicros"],
            fleet=cells.get(FLEET_COLUMN, ""),
        )
    except (CodecError, KeyError, TypeError) as error:
        raise StreamClientException(
            f"row {record_id} of shard {shard_id} is not a parked record ({error}); repair or delete the row"
        ) from error
