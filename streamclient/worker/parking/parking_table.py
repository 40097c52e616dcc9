"""Parked records in a Tablestore table, for fleets on many machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tablestore import (
    INF_MAX,
    INF_MIN,
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    DeleteRowItem,
    NoRetryPolicy,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient.base import checks, logs
from streamclient.errors import CodecError, ConfigurationError, DependencyException, ErrorKind, StreamClientException
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.tablestore.ranges import scan
from streamclient.tablestore.signed_calls import with_own_connection
from streamclient.wire.sdk_logging import silence
from streamclient.wire.service_errors import (
    CONDITION_CHECK_FAIL,
    OBJECT_ALREADY_EXIST,
    OBJECT_NOT_EXIST,
    classify,
    from_answer,
)
from streamclient.worker.parking.parked_frames import frame_of, key_text, parse_key, record_of

_log = logs.logger(__name__)

KEY_SCHEMA = (("StreamId", "STRING"), ("ShardId", "STRING"), ("RecordId", "STRING"))

CELL_BYTES = 1024 * 1024
"""A cell may hold 2 MB, and a record with its previous values more than that, so its bytes are cut into cells of half
as much: ``Frame0000``, ``Frame0001`` and so on."""

ROWS_PER_REQUEST = 100
"""The service takes 200 rows in one BatchWriteRow."""

REQUEST_BYTES = 2 * 1024 * 1024
"""The service takes 4 MB; a single record above this goes out alone."""

READY_SECONDS = 120.0
"""How long a new table may take until it answers, as for the status table."""


@checks.explains_names
class TableParkingStore(IParkingStore):
    """Keeps records in a table of their own, one row each, which it makes when it first needs it. Thread-safe.

    Any number of streams and fleets may share the table. A failed call raises; the worker repeats it.

    Args:
        client: a ``tablestore.OTSClient``; it is used through a copy that makes every call once.
        table_name: made with this key: ``StreamId``, ``ShardId``, ``RecordId``, all STRING.
        wait: waits so many seconds, between questions whether a new table is ready.

    Raises:
        ConfigurationError: the client or the name is none.
    """

    def __init__(self, client: OTSClient, table_name: str, *, wait: Callable[[float], object] = time.sleep) -> None:
        self._client = with_own_connection(checks.client.require("client", client))
        checks.identifier.require("table_name", table_name)
        checks.function("with a number of seconds").require("wait", wait)
        self._client.retry_policy = NoRetryPolicy()
        silence(self._client)
        self._table_name = table_name
        self._wait = wait
        self._is_there = False

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Put the rows that are not there yet."""
        self._have_table()
        absent = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
        unique = {tuple(_row_key(each)): each for each in records}.values()
        items = [PutRowItem(Row(_row_key(each), _columns(each)), absent) for each in unique]
        self._write(items, [len(frame_of(each.record)) for each in unique], ignored=CONDITION_CHECK_FAIL)

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Every row, by key.

        Raises:
            StreamClientException: a row is no parked record; it names the row.
        """
        for row in self._scan(stream_id, None):
            yield _parked(row)

    def parked_keys(self, stream_id: str) -> Iterable[ParkedKey]:
        """As the interface says; reads two small columns of each row."""
        keys: dict[tuple[str, str], ParkedKey] = {}
        for row in self._scan(stream_id, ["RecordKey", "Generation"]):
            _, shard_id, record_id = _key_values(row)
            cells = _cells(row)
            if (cells["RecordKey"], shard_id) not in keys:
                key = ParkedKey(parse_key(cells["RecordKey"]), shard_id, record_id, cells["Generation"])
                keys[cells["RecordKey"], shard_id] = key
        return keys.values()

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Delete the rows."""
        self._have_table()
        any_state = Condition(RowExistenceExpectation.IGNORE)
        items = [DeleteRowItem(Row(list(key)), any_state) for key in {tuple(_row_key(each)) for each in records}]
        self._write(items, [0] * len(items), ignored=None)

    # --- calls ---------------------------------------------------------------------------------------------------

    def _write(self, items: Sequence[Any], sizes: Sequence[int], *, ignored: str | None) -> None:
        for group in _groups(items, sizes):
            request = BatchWriteRowRequest()
            request.add(TableInBatchWriteRowItem(self._table_name, group))
            response = self._call(partial(self._client.batch_write_row, request), write=True)
            tables = (response.table_of_put, response.table_of_delete)
            answers = [answer for table in tables for answer in table.get(self._table_name, ())]
            if len(answers) != len(group):
                raise DependencyException(
                    f"BatchWriteRow answered for {len(answers)} of {len(group)} rows", kind=ErrorKind.AMBIGUOUS
                )
            for answer in answers:
                if not answer.is_ok and answer.error_code != ignored:
                    raise from_answer(answer.error_code, answer.error_message, write=True)

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
            failure = classify(error, write=write, client=self._client)
            if isinstance(failure, DependencyException) and failure.code == OBJECT_NOT_EXIST:
                self._is_there = False
            raise failure from error

    # --- the table -----------------------------------------------------------------------------------------------

    def _have_table(self) -> None:
        """Make the table if need be, and wait until it answers; two threads that do so at once do no harm."""
        if self._is_there:
            return
        if not self._exists():
            self._create()
        probe = [(name, "-") for name, _ in KEY_SCHEMA]
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._call(partial(self._client.get_row, self._table_name, probe, max_version=1), write=False)
                break
            except DependencyException as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                self._wait(0.1)
        self._is_there = True

    def exists(self) -> bool:
        """Whether the table is there: one request, which makes nothing.

        Raises:
            ConfigurationError: it is there and cannot hold parked records.
            DependencyException: the service refused or did not answer.
        """
        return self._exists()

    def _exists(self) -> bool:
        try:
            description = self._call(partial(self._client.describe_table, self._table_name), write=False)
        except DependencyException as error:
            if error.code == OBJECT_NOT_EXIST:
                return False
            raise
        schema = tuple((column[0], column[1]) for column in description.table_meta.schema_of_primary_key)
        if schema != KEY_SCHEMA:
            raise ConfigurationError(
                f"table {self._table_name!r} cannot hold parked records: its primary key is {schema}, expected "
                f"{KEY_SCHEMA}; give the name of a table that does not exist, and it will be created"
            )
        if description.table_options.time_to_live != -1:
            raise ConfigurationError(
                f"table {self._table_name!r} forgets rows after {description.table_options.time_to_live} s, and with "
                "them parked records; set its time to live to -1 (never)"
            )
        return True

    def _create(self) -> None:
        meta, options = TableMeta(self._table_name, list(KEY_SCHEMA)), TableOptions(time_to_live=-1, max_version=1)
        throughput = ReservedThroughput(CapacityUnit(0, 0))
        try:
            self._call(partial(self._client.create_table, meta, options, throughput), write=True)
        except DependencyException as error:
            if error.code != OBJECT_ALREADY_EXIST:
                raise
        else:
            _log.info("created table %s for parked records", self._table_name)

    def __repr__(self) -> str:
        return f"TableParkingStore({self._table_name!r})"


def _groups(items: Sequence[Any], sizes: Sequence[int]) -> Iterator[list[Any]]:
    """Cut into requests that the service takes."""
    group: list[Any] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and (len(group) >= ROWS_PER_REQUEST or total + size > REQUEST_BYTES):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


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
        *((f"Frame{number:04d}", bytearray(piece)) for number, piece in enumerate(pieces)),
    ]


def _key_values(row: Any) -> tuple[str, str, str]:
    stream_id, shard_id, record_id = (value for _, value, *_ in row.primary_key)
    return stream_id, shard_id, record_id


def _cells(row: Any) -> dict[str, Any]:
    return {name: value for name, value, *_ in row.attribute_columns}


def _parked(row: Any) -> ParkedRecord:
    stream_id, shard_id, record_id = _key_values(row)
    cells = _cells(row)
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
        )
    except (CodecError, KeyError, TypeError) as error:
        raise StreamClientException(
            f"row {record_id} of shard {shard_id} is no parked record ({error}); repair or delete the row"
        ) from error
