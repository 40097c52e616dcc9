"""Reading a table's rows on executors: by key ranges, as Arrow batches of one schema, restricted by filters.

The service omits a row that has none of the columns that a request names. But the columns that a query selects must not
decide which rows the query gets. So a request names columns only if the query selects nothing but key columns, which
each row has.

A filter is sent to the service only if every row that Spark would accept also passes the filter in the service. Spark
applies every filter itself, too. So the service may return rows that Spark rejects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from streamclient.destinations.rows.arrow_schemas import check_not_null
from streamclient.destinations.rows.change_rows import ADDED, UNFIT, VERSIONS, added_types
from streamclient.destinations.rows.column_layout import arrow_type, column_type
from streamclient.destinations.rows.column_names import original_name
from streamclient.destinations.rows.column_types import fits, shown, text_of, type_of
from streamclient.errors import UnfitValueError
from streamclient.records import ColumnType
from streamclient.spark.source.partition_reading import asked, calls_of, check_key
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.source_schemas import describe
from streamclient.spark.spark_packages import pyarrow
from streamclient.tablestore.ranges import TableScan, key_order
from streamclient.tablestore.stream_tables import split_points, split_request
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, encode_value
from streamclient.wire.rows import KeyBound
from streamclient.wire.schema import ComparatorType, FilterType, LogicalOperator

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

BATCH_ROWS = 10_000
"""The number of rows at which an Arrow batch is complete. It is the number of rows in two full responses of the
service."""

BATCH_PAGES = 16
"""The largest number of responses in one Arrow batch. A response of the service has at most 4 MB."""

MOST_FILTERS = 10
"""The largest number of comparisons and logical operators in the filter of one request. By the service's documentation,
every instance accepts this number."""

INTEGER_MAX = 2**63 - 1
"""The greatest integer that a key column can hold."""


@frozen
class KeyRange:
    """The part of a table that one task reads: the keys from ``start`` up to ``end``, without ``end``, and a filter."""

    start: tuple[Any, ...]
    end: tuple[Any, ...]
    row_filter: bytes | None = None


@frozen
class PushedComparison:
    """A filter of Spark that compares a column with one or more values."""

    column: str
    comparator: ComparatorType
    values: tuple[Any, ...]
    """The values that the column is compared with. If there are several, the column must equal one of them."""


@frozen
class TablePlan:
    """Divides a table into key ranges, one for each task of a query."""

    options: SourceOptions
    columns: Schema
    conditions: tuple[PushedComparison, ...] = ()

    def with_conditions(self, conditions: Iterable[PushedComparison]) -> TablePlan:
        """Return a copy of the plan with the filters ``conditions``. ``ranges`` uses only the safe ones."""
        return evolve(self, conditions=tuple(conditions))

    def ranges(self) -> list[KeyRange]:
        """Return the key ranges of the query, each of about ``splitSizeMb`` megabytes.

        Raises:
            ConfigurationError: the table does not exist, or the schema spells a key column in a different case.
        """
        definition = describe(self.options).definition
        key = [name for name, _ in definition.primary_key]
        check_key(self.columns, key, f"table {self.options.table!r}")
        types = self._declared()
        for name, kind in definition.primary_key:
            if types.get(name) is not kind:
                types.pop(name, None)  # a filter on a key column is safe only if its values have the key's type
        safe = [condition for condition in self.conditions if _is_safe(condition, types)]
        points = [list(point) + [KeyBound.INF_MIN] * (len(key) - len(point)) for point in self._split_points()]
        ends = [*points, [KeyBound.INF_MAX] * len(key)]
        row_filter = _filter_of(safe)
        ranges = []
        for start, end in zip([[KeyBound.INF_MIN] * len(key), *points], ends, strict=True):
            narrowed = _narrowed(start, end, [condition for condition in safe if condition.column == key[0]])
            if narrowed is not None:
                ranges.append(KeyRange(tuple(narrowed[0]), tuple(narrowed[1]), row_filter))
        return ranges

    def _declared(self) -> dict[str, ColumnType]:
        kinds = {
            original_name(column.name): column_type(column.type) for column in self.columns if column.name not in ADDED
        }
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def _split_points(self) -> list[tuple[Any, ...]]:
        request = split_request(self.options.table, self.options.split_megabytes)
        return split_points(asked(self.options.connection, "ComputeSplitPointsBySize", request))


@frozen
class TableRows:
    """Reads the rows of key ranges as Arrow batches of one schema. Spark pickles this object for the executors."""

    options: SourceOptions
    columns: Schema
    key: tuple[str, ...]

    def read(self, part: KeyRange) -> Iterator[RecordBatch]:
        """Yield the rows of the key range ``part`` in the order of their keys.

        Raises:
            UnfitValueError: a value does not fit its column, and the schema lacks ``_unfit``.
            StreamClientError: the service does not answer.
        """
        wanted = {original_name(name) for name in self.columns.names}
        only = sorted(wanted) if wanted <= set(self.key) else []
        scan = TableScan(
            calls=calls_of(self.options.connection),
            table=self.options.table,
            key=self.key,
            columns=only,
            row_filter=part.row_filter,
        )
        waiting: list[Row] = []
        pages = 0
        for following, rows in scan.pages(part.start, part.end):
            waiting += rows
            pages += 1
            if waiting and (len(waiting) >= BATCH_ROWS or pages >= BATCH_PAGES or following is None):
                yield rows_as_columns(waiting, self.columns, self.options.table)
                waiting, pages = [], 0


def rows_as_columns(rows: Sequence[Row], columns: Schema, table: str) -> RecordBatch:
    """Return ``rows`` as an Arrow batch with exactly the schema ``columns``.

    A value that does not fit its column goes to the column ``_unfit``.

    Raises:
        UnfitValueError: a value does not fit its column, and the schema lacks ``_unfit``. Or a column that is declared
            NOT NULL lacks a value.
    """
    pa = pyarrow()
    own = {original_name(column.name): column for column in columns if column.name not in (UNFIT, VERSIONS)}
    kinds = {name: column_type(column.type) for name, column in own.items()}
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in own}
    unfit: list[list[Any]] = [[] for _ in rows]
    keeps_unfit = UNFIT in columns.names
    for index, row in enumerate(rows):
        for name, value in _values_of(row):
            kind = kinds.get(name)
            if kind is not None:
                values[name][index] = shown(value, kind)
                if fits(value, kind):
                    continue
                if not keeps_unfit:
                    raise _misfit(table, row, name, value, own[name].type)
            if keeps_unfit:
                unfit[index].append((name, {"type": type_of(value).value, "value": text_of(value)}))
    arrays = {}
    for name, column in own.items():
        kind = kinds[name]
        assert kind is not None
        arrays[column.name] = pa.array(values[name], arrow_type(kind))
    if keeps_unfit:
        arrays[UNFIT] = pa.array(unfit, added_types()[UNFIT])
    if VERSIONS in columns.names:
        versions = [[(cell.name, cell.timestamp_millis) for cell in row.cells] for row in rows]
        arrays[VERSIONS] = pa.array(versions, added_types()[VERSIONS])
    made = [
        arrays[column.name] if arrays[column.name].type == column.type else arrays[column.name].cast(column.type)
        for column in columns
    ]
    batch = pa.RecordBatch.from_arrays(made, schema=columns)
    check_not_null(batch, lambda index: f"row {dict(rows[index].primary_key)} in table {table!r}")
    return batch


def _values_of(row: Row) -> Iterator[tuple[str, Any]]:
    yield from row.primary_key
    for cell in row.cells:
        if cell.value is not None:
            yield cell.name, cell.value


def _misfit(table: str, row: Row, name: str, value: Any, expected: Any) -> UnfitValueError:
    return UnfitValueError(
        f"column {name!r} of row {dict(row.primary_key)} in table {table!r} holds the {type_of(value).value} "
        f"{text_of(value)[:200]!r}, and the schema says {expected}: declare the column {UNFIT}, which keeps such "
        "values, or give the column another type"
    )


# --- filters that the service applies ---------------------------------------------------------------------------------


def _is_safe(condition: PushedComparison, types: Mapping[str, ColumnType]) -> bool:
    """Return whether every row that Spark accepts also satisfies ``condition`` in the service.

    For the service, values of different types are never equal. So the condition's values must have the column's type.
    Only columns of the types INTEGER and STRING are safe. Spark and the service both compare strings byte by byte. A
    DOUBLE column is not safe, because a frame also shows integers of the table in it as doubles. A BOOLEAN column is
    not safe, because only Spark puts booleans in an order.
    """
    kind = types.get(condition.column)
    if kind not in (ColumnType.INTEGER, ColumnType.STRING):
        return False
    return bool(condition.values) and all(
        value is not None and isinstance(value, int | str) and type_of(value) is kind for value in condition.values
    )


def _filter_of(conditions: Sequence[PushedComparison]) -> bytes | None:
    """Return an encoded filter for the service, made of ``conditions``; ``None`` without conditions.

    The filter leaves out a condition that would exceed ``MOST_FILTERS``. Only Spark checks this condition.
    """
    filters: list[Any] = []
    count = 0
    for condition in conditions:
        size = len(condition.values) + (len(condition.values) > 1)
        if count + size + bool(filters) <= MOST_FILTERS:
            filters.append(_either([_single(condition, value) for value in condition.values]))
            count += size
    if not filters:
        return None
    message = filters[0] if len(filters) == 1 else _composite(LogicalOperator.AND, filters)
    return bytes(message.SerializeToString())


def _single(condition: PushedComparison, value: Any) -> Any:
    single = schema.SingleColumnValueFilter(
        comparator=condition.comparator,
        column_name=condition.column,
        column_value=encode_value(value),
        filter_if_missing=True,
        latest_version_only=True,
    )
    return schema.Filter(type=FilterType.SINGLE_COLUMN_VALUE, filter=single.SerializeToString())


def _either(filters: Sequence[Any]) -> Any:
    return filters[0] if len(filters) == 1 else _composite(LogicalOperator.OR, filters)


def _composite(operator: LogicalOperator, filters: Sequence[Any]) -> Any:
    made = schema.CompositeColumnValueFilter(combinator=operator, sub_filters=filters)
    return schema.Filter(type=FilterType.COMPOSITE_COLUMN_VALUE, filter=made.SerializeToString())


def _narrowed(
    start: list[Any], end: list[Any], conditions: Iterable[PushedComparison]
) -> tuple[list[Any], list[Any]] | None:
    """Return the part of a key range that satisfies ``conditions`` on the first key column; ``None`` if it is empty."""
    rest = len(start) - 1
    for condition in conditions:
        if condition.comparator in (ComparatorType.EQUAL, ComparatorType.GREATER_EQUAL, ComparatorType.GREATER_THAN):
            start = max(start, [min(condition.values)] + [KeyBound.INF_MIN] * rest, key=key_order)
        if condition.comparator in (ComparatorType.EQUAL, ComparatorType.LESS_EQUAL, ComparatorType.LESS_THAN):
            end = min(end, _end_after(max(condition.values), rest), key=key_order)
    return (start, end) if key_order(start) < key_order(end) else None


def _end_after(value: Any, rest: int) -> list[Any]:
    """Return the key that ends a range after all keys with ``value`` in the first column.

    ``rest`` is the number of further key columns.
    """
    if rest:
        return [value] + [KeyBound.INF_MAX] * rest
    if isinstance(value, str):
        return [value + "\0"]
    return [value + 1 if value < INTEGER_MAX else KeyBound.INF_MAX]
