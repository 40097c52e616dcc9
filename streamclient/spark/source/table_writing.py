"""The writer of a frame's rows on executors: it writes in batches, retries single rows, and names refused rows.

The writer puts, updates or deletes each row without a condition. So the table is the same if Spark repeats a task, if a
restarted query repeats a batch, or if a response is lost. A task writes two rows of one key in their order, by two
requests. But Spark runs tasks in any order. If a frame may have several rows of one key, reduce it to one row for each
key before you write it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from attrs import frozen

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.destinations.rows.change_rows import RESERVED
from streamclient.destinations.rows.column_names import marked, original_name
from streamclient.destinations.rows.column_types import text_of
from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException
from streamclient.records import ColumnType, ColumnValue, KeyValue
from streamclient.spark.source.partition_reading import calls_of
from streamclient.spark.source.source_options import SourceOptions, WriteMode
from streamclient.spark.source.source_schemas import SPARK_TYPES, check_once, describe
from streamclient.spark.spark_packages import pyarrow
from streamclient.tablestore.row_batches import attempts
from streamclient.tablestore.row_batches import batches as cut
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.rows import Cell
from streamclient.wire.schema import OperationType

if TYPE_CHECKING:
    from pyarrow import DataType, Field, RecordBatch, Schema

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 5_000
MOST_FAILURES = 20
"""The number of consecutive attempts that write no row, after which a task fails. The pauses between the attempts take
about a minute and a half in all. Spark may repeat a failed task."""

_KINDS = {
    WriteMode.PUT: OperationType.PUT,
    WriteMode.UPDATE: OperationType.UPDATE,
    WriteMode.DELETE: OperationType.DELETE,
}

Pending = tuple[tuple[tuple[str, KeyValue], ...], bytes]
"""A row that waits to be written: its key, and its encoded form in the request."""


def types_of(columns: Iterable[Field]) -> dict[str, ColumnType]:
    """Return the type with which Tablestore stores each column of a frame.

    Raises:
        ConfigurationError: a column occurs twice, has a type that Tablestore does not store, or has a name that is
            reserved for columns that this package adds to frames.
    """
    columns = list(columns)
    check_once(columns, "the frame")
    types: dict[str, ColumnType] = {}
    for column in columns:
        if column.name in RESERVED:
            raise ConfigurationError(
                f"the frame has the column {column.name}, a name that is reserved for a column of this package: drop "
                "the column, or select the others; the source's own column of that name is "
                f"{marked(column.name)!r} in frames"
            )
        kind = _stored_as(column.type)
        if kind is None:
            raise ConfigurationError(
                f"column {column.name!r} is {column.type}: Tablestore stores {SPARK_TYPES}; cast it"
            )
        types[column.name] = kind
    return types


def _stored_as(kind: DataType) -> ColumnType | None:
    pa = pyarrow()
    tests = {
        ColumnType.INTEGER: pa.types.is_signed_integer,
        ColumnType.DOUBLE: lambda given: given in (pa.float32(), pa.float64()),
        ColumnType.BOOLEAN: pa.types.is_boolean,
        ColumnType.STRING: lambda given: pa.types.is_string(given) or pa.types.is_large_string(given),
        ColumnType.BINARY: lambda given: pa.types.is_binary(given) or pa.types.is_large_binary(given),
    }
    return next((name for name, is_such in tests.items() if is_such(kind)), None)


@frozen
class RowWriter:
    """Writes Arrow batches of one schema to one table. Spark pickles the writer and sends it to executors."""

    options: SourceOptions
    columns: tuple[str, ...]
    """The names that the written columns have in the frame. A writer that deletes rows needs only the key columns."""
    key: tuple[str, ...]
    """The names that the key columns have in the frame, in the order of the primary key."""

    @classmethod
    def checked(cls, options: SourceOptions, columns: Schema) -> RowWriter:
        """Return a writer for frames with the schema ``columns``.

        Raises:
            ConfigurationError: the table cannot store the rows of a frame with this schema.
        """
        described = describe(options)
        key = dict(described.definition.primary_key)
        deletes = options.write_mode is WriteMode.DELETE
        types = types_of(column for column in columns if not deletes or original_name(column.name) in key)
        names = {original_name(name): name for name in types}
        for name, kind in key.items():
            if name == described.auto_increment_key:
                raise ConfigurationError(
                    f"key column {name!r} of table {options.table!r} is generated by the service: a row that is "
                    "written again would be another row, so the writer cannot be idempotent"
                )
            if name not in names:
                other = next((f"; rename {given!r}" for given in columns.names if given.lower() == name.lower()), "")
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
        """Write all rows of a task; return their number.

        Raises:
            StreamClientException: a row cannot be written. The message names the row, and the column if a column is the
                cause. Other rows may already be written.
            DependencyException: the service accepted no row in ``MOST_FAILURES`` attempts.
        """
        count = 0
        for rows in cut(self._rows(batches), itemgetter(0), _size_of, most_rows=self.options.batch_rows):
            self._send(rows)
            count += len(rows)
        return count

    def _rows(self, batches: Iterable[RecordBatch]) -> Iterator[Pending]:
        names = {name: original_name(name) for name in self.columns}
        others = [name for name in self.columns if name not in self.key]
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self.columns}
            for index in range(batch.num_rows):
                key = tuple((names[name], columns[name][index]) for name in self.key)
                values = {names[name]: columns[name][index] for name in others}
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
                f"every column of the row {dict(key)} for table {self.options.table!r} is null: with "
                "writeMode=update a row needs a value in at least one column beside the key"
            )
        return encode_row(Row(key, cells))

    def _send(self, rows: Sequence[Pending]) -> None:
        dice, kind = random.Random(), _KINDS[self.options.write_mode]
        calls = calls_of(self.options.connection)
        for attempt in attempts(calls, self.options.table, rows, lambda row: (kind, row[1])):
            failed = [*attempt.refused, *(attempt.left if attempt.failures >= MOST_FAILURES else ())]
            for row, error in failed:
                raise self._refused(row, error) from error
            if attempt.left:
                pause = doubling_millis(max(1, attempt.failures), SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS)
                threading.Event().wait(with_jitter(pause, dice) / 1_000)

    def _refused(self, row: Pending, error: StreamClientError) -> StreamClientError:
        text = ", ".join(f"{name}={text_of(value)[:100]!r}" for name, value in row[0])
        kind = type(error) if isinstance(error, StreamClientException) else StreamClientException
        mode = self.options.write_mode.value
        return kind(f"table {self.options.table!r} does not take the {mode} of row {{{text}}}: {error}")


def _size_of(row: Pending) -> int:
    return len(row[1])
