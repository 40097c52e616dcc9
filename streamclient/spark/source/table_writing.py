"""Writing a frame's rows into a table on executors: batches, retries row by row, and errors that name row and column.

A row is put, updated or deleted without a condition, so writing it again changes nothing: a task that Spark repeats, a
batch that a restarted query repeats and an answer that was lost leave the same table. Two rows of one key in one task
are written in their order, the later one in a later request. Between tasks there is no order: a frame that has a key
twice has to be reduced to one row per key before.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.destinations.rows.change_rows import RESERVED
from streamclient.destinations.rows.column_names import marked, original_name
from streamclient.destinations.rows.column_types import text_of
from streamclient.errors import ConfigurationError, DependencyException, StreamClientError, StreamClientException
from streamclient.records import ColumnType, ColumnValue, KeyValue
from streamclient.spark.source.partition_reading import calls_of
from streamclient.spark.source.source_options import SourceOptions, WriteMode
from streamclient.spark.source.source_schemas import SPARK_TYPES, check_once, describe
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.rows import Cell
from streamclient.wire.schema import OperationType, RowExistenceExpectation
from streamclient.wire.service_errors import classify, from_answer

if TYPE_CHECKING:
    from pyarrow import DataType, Field, RecordBatch, Schema

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 5_000
MOST_FAILURES = 20
"""In a row, without one row written, before the task fails and Spark decides: about a minute and a half of pauses."""

REQUEST_BYTES = 3_500_000
"""Of the rows of one request; the service takes 4 MiB, frames and names included."""

_KINDS = {
    WriteMode.PUT: OperationType.PUT,
    WriteMode.UPDATE: OperationType.UPDATE,
    WriteMode.DELETE: OperationType.DELETE,
}

Pending = tuple[tuple[tuple[str, KeyValue], ...], bytes]
"""A key, and the row as the request carries it."""


def types_of(columns: Iterable[Field]) -> dict[str, ColumnType]:
    """What each column of the frame is stored as.

    Raises:
        ConfigurationError: a column is there twice, has a type that Tablestore does not store, or is one that the
            source adds.
    """
    columns = list(columns)
    check_once(columns, "the frame")
    found: dict[str, ColumnType] = {}
    for one in columns:
        if one.name in RESERVED:
            raise ConfigurationError(
                f"the frame has the column {one.name}, a name of columns that this package adds to those of a table: "
                f"drop it, or select the others; the source's own column of that name is {marked(one.name)!r} here"
            )
        kind = _stored_as(one.type)
        if kind is None:
            raise ConfigurationError(f"column {one.name!r} is {one.type}: Tablestore stores {SPARK_TYPES}; cast it")
        found[one.name] = kind
    return found


def _stored_as(kind: DataType) -> ColumnType | None:
    import pyarrow as pa  # noqa: PLC0415

    tests = {
        ColumnType.INTEGER: pa.types.is_signed_integer,
        ColumnType.DOUBLE: lambda one: one in (pa.float32(), pa.float64()),
        ColumnType.BOOLEAN: pa.types.is_boolean,
        ColumnType.STRING: lambda one: pa.types.is_string(one) or pa.types.is_large_string(one),
        ColumnType.BINARY: lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one),
    }
    return next((name for name, is_such in tests.items() if is_such(kind)), None)


@frozen
class RowWriter:
    """Writes batches of one schema to one table. Pickled: it goes to the executors with the query."""

    options: SourceOptions
    columns: tuple[str, ...]
    """Names in the frame of what is written: of a frame that deletes, the key."""
    key: tuple[str, ...]
    """Names of the key columns in the frame, in key order."""

    @classmethod
    def checked(cls, options: SourceOptions, columns: Schema) -> RowWriter:
        """A writer for a frame.

        Raises:
            ConfigurationError: the frame cannot be written to the table; nothing was.
        """
        described = describe(options)
        key = dict(described.definition.primary_key)
        deletes = options.write_mode is WriteMode.DELETE
        types = types_of(one for one in columns if not deletes or original_name(one.name) in key)
        names = {original_name(name): name for name in types}
        for name, kind in key.items():
            if name == described.auto_increment_key:
                raise ConfigurationError(
                    f"key column {name!r} of table {options.table!r} is generated by the service: a row that is "
                    "written again would be another row, so the writer cannot be idempotent"
                )
            if name not in names:
                other = next((f"; rename {one!r}" for one in columns.names if one.lower() == name.lower()), "")
                raise ConfigurationError(f"the frame lacks {name!r}, a key column of table {options.table!r}{other}")
            if types[names[name]] is not kind:
                raise ConfigurationError(
                    f"column {name!r} of the frame is {types[names[name]].value}, and the key column of table "
                    f"{options.table!r} is {kind.value}: cast it"
                )
        for name, kind in described.definition.defined_columns.items():
            if name in names and types[names[name]] is not kind:
                raise ConfigurationError(
                    f"column {name!r} of the frame is {types[names[name]].value}, and table {options.table!r} declares "
                    f"{kind.value}: cast it"
                )
        return cls(options, tuple(types), tuple(names[name] for name in key))

    def write(self, batches: Iterable[RecordBatch]) -> int:
        """Write all rows; returns how many.

        Raises:
            StreamClientException: a row cannot be written; the message names it, and its column where it is one. Rows
                before it may be written.
            DependencyException: the service did not take rows for too long.
        """
        count = 0
        for some in self._requests(batches):
            self._send(some)
            count += len(some)
        return count

    def _requests(self, batches: Iterable[RecordBatch]) -> Iterator[list[Pending]]:
        """Rows in requests, each key once in each."""
        waiting: list[Pending] = []
        keys: set[tuple[tuple[str, KeyValue], ...]] = set()
        size = 0
        for key, row in self._rows(batches):
            is_full = len(waiting) >= self.options.batch_rows or size + len(row) > REQUEST_BYTES
            if waiting and (is_full or key in keys):
                yield waiting
                waiting, keys, size = [], set(), 0
            waiting.append((key, row))
            keys.add(key)
            size += len(row)
        if waiting:
            yield waiting

    def _rows(self, batches: Iterable[RecordBatch]) -> Iterator[Pending]:
        names = {name: original_name(name) for name in self.columns}
        others = [name for name in self.columns if name not in self.key]
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self.columns}
            for place in range(batch.num_rows):
                key = tuple((names[name], columns[name][place]) for name in self.key)
                values = {names[name]: columns[name][place] for name in others}
                yield key, self._encoded(key, values)

    def _encoded(self, key: tuple[tuple[str, KeyValue], ...], values: Mapping[str, ColumnValue | None]) -> bytes:
        for name, value in key:
            if value is None:
                raise StreamClientException(
                    f"key column {name!r} is null in the row {dict(key)} for table {self.options.table!r}"
                )
        if self.options.write_mode is WriteMode.DELETE:
            return encode_row(Row(key, delete_marker=True))
        cells = tuple(Cell(name, value) for name, value in values.items() if value is not None)
        if self.options.write_mode is WriteMode.UPDATE and not cells:
            raise StreamClientException(
                f"every column of the row {dict(key)} for table {self.options.table!r} is null: an update with "
                "writeMode=update sets at least one"
            )
        return encode_row(Row(key, cells))

    def _send(self, rows: Sequence[Pending]) -> None:
        left, failures, dice = list(rows), 0, random.Random()
        while left:
            errors = self._try(left)
            failed = [(row, error) for row, error in zip(left, errors, strict=True) if error is not None]
            failures = 0 if len(failed) < len(left) else failures + 1
            for row, error in failed:
                if not (isinstance(error, DependencyException) and error.retriable):
                    raise self._refused(row, error) from error
            left = [row for row, _ in failed]
            if left and failures >= MOST_FAILURES:
                raise self._refused(left[0], failed[0][1]) from failed[0][1]
            if left:
                pause = doubling_millis(max(1, failures), SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS)
                threading.Event().wait(with_jitter(pause, dice) / 1_000)

    def _refused(self, row: Pending, error: StreamClientError) -> StreamClientError:
        text = ", ".join(f"{name}={text_of(value)[:100]!r}" for name, value in row[0])
        kind = type(error) if isinstance(error, StreamClientException) else StreamClientException
        mode = self.options.write_mode.value
        return kind(f"table {self.options.table!r} does not take the {mode} of row {{{text}}}: {error}")

    def _try(self, rows: Sequence[Pending]) -> list[StreamClientError | None]:
        """One request; for each row what the service said against it. A refusal as a whole is narrowed down."""
        messages = [
            schema.RowInBatchWriteRowRequest(
                type=_KINDS[self.options.write_mode],
                row_change=row,
                condition=schema.Condition(row_existence=RowExistenceExpectation.IGNORE),
            )
            for _, row in rows
        ]
        table = schema.TableInBatchWriteRowRequest(table_name=self.options.table, rows=messages)
        request = schema.BatchWriteRowRequest(tables=[table])
        calls = calls_of(self.options.connection)
        try:
            answer = calls.ask("BatchWriteRow", request, is_repeatable=False)
        except Exception as error:
            failure = classify(error, write=True, client=calls.client)
            is_final = not (isinstance(failure, DependencyException) and failure.retriable)
            if is_final and len(rows) > 1:
                middle = len(rows) // 2
                return [*self._try(rows[:middle]), *self._try(rows[middle:])]
            return [failure] * len(rows)
        results = [row for table in answer.tables for row in table.rows]
        return [_error_of(result) for _, result in zip_longest(rows, results[: len(rows)])]


def _error_of(result: Any) -> StreamClientError | None:
    if result is None:
        return from_answer("OTSInternalServerError", "the answer lacks this row", write=True)
    if result.is_ok:
        return None
    return from_answer(result.error.code, result.error.message, write=True)
