"""A table's rows on executors: ranges of keys side by side, as Arrow batches of one schema; and what filters narrow.

A row that has none of the columns that a request names is left out by the service. So requests name none, unless they
want the key alone, which each row has: a row is never lost for what is selected of it.

Filters only ever *narrow* what the service sends. Spark keeps every one of them and looks at each row again, so that a
comparison which both make differently costs time, not rows; one is handed on only if the service cannot reject a row
that Spark would take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from streamclient.destinations.destination_packages import pyarrow
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
from streamclient.tablestore.ranges import TableScan, key_order
from streamclient.tablestore.stream_tables import split_points, split_request
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, encode_value
from streamclient.wire.rows import KeyBound
from streamclient.wire.schema import ComparatorType, FilterType, LogicalOperator

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

BATCH_ROWS = 10_000
"""Rows that become one Arrow batch; two answers of the service."""

BATCH_PAGES = 16
"""Answers of the service, of 4 MB at most, that become one Arrow batch where rows are large."""

MOST_FILTERS = 10
"""Parts of the filter of one request, those included that join others: what the service's documentation allows on every
instance."""

INTEGER_MAX = 2**63 - 1
"""The greatest number of a key: behind it is only the table's end."""


@frozen
class KeyRange:
    """Rows of a table from one key up to another, and a filter as bytes; what one task reads."""

    start: tuple[Any, ...]
    end: tuple[Any, ...]
    row_filter: bytes | None = None


@frozen
class PushedComparison:
    """A comparison of a column with a value, as Spark asks for it."""

    column: str
    comparator: ComparatorType
    values: tuple[Any, ...]
    """One, or several of which any may be equal."""


@frozen
class TablePlan:
    """Which ranges to read of a table."""

    options: SourceOptions
    columns: Schema
    conditions: tuple[PushedComparison, ...] = ()

    def with_conditions(self, conditions: Iterable[PushedComparison]) -> TablePlan:
        """The same, narrowed by those conditions that are safe to hand on."""
        return evolve(self, conditions=tuple(conditions))

    def ranges(self) -> list[KeyRange]:
        """Ranges of about ``splitSizeMb`` each; one if the table is smaller.

        Raises:
            ConfigurationError: there is no such table, or the schema has a column of its key in another case.
        """
        definition = describe(self.options).definition
        key = [name for name, _ in definition.primary_key]
        check_key(self.columns, key, f"table {self.options.table!r}")
        types = self._declared()
        for name, kind in definition.primary_key:
            if types.get(name) is not kind:
                types.pop(name, None)  # a value of another type is none that the key can be compared with
        safe = [one for one in self.conditions if _is_safe(one, types)]
        points = [list(point) + [KeyBound.INF_MIN] * (len(key) - len(point)) for point in self._split_points()]
        ends = [*points, [KeyBound.INF_MAX] * len(key)]
        row_filter = _filter_of(safe)
        ranges = []
        for start, end in zip([[KeyBound.INF_MIN] * len(key), *points], ends, strict=True):
            narrowed = _narrowed(start, end, [one for one in safe if one.column == key[0]])
            if narrowed is not None:
                ranges.append(KeyRange(tuple(narrowed[0]), tuple(narrowed[1]), row_filter))
        return ranges

    def _declared(self) -> dict[str, ColumnType]:
        kinds = {original_name(one.name): column_type(one.type) for one in self.columns if one.name not in ADDED}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def _split_points(self) -> list[tuple[Any, ...]]:
        request = split_request(self.options.table, self.options.split_megabytes)
        return split_points(asked(self.options.connection, "ComputeSplitPointsBySize", request))


@frozen
class TableRows:
    """Reads ranges as batches of one schema. Pickled: it goes to the executors with the query."""

    options: SourceOptions
    columns: Schema
    key: tuple[str, ...]

    def read(self, part: KeyRange) -> Iterator[RecordBatch]:
        """The rows of a range in the order of their keys.

        Raises:
            UnfitValueError: a value does not fit, and the schema has no column for such values.
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
    """Rows by column, in exactly this schema; what does not fit stands in ``_unfit``.

    Raises:
        UnfitValueError: a value does not fit, and the schema has no such column; or a column that is declared NOT NULL
            has none.
    """
    pa = pyarrow()
    own = {original_name(one.name): one for one in columns if one.name not in (UNFIT, VERSIONS)}
    kinds = {name: column_type(one.type) for name, one in own.items()}
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in own}
    unfit: list[list[Any]] = [[] for _ in rows]
    keeps_unfit = UNFIT in columns.names
    for place, row in enumerate(rows):
        for name, value in _values_of(row):
            kind = kinds.get(name)
            if kind is not None:
                values[name][place] = shown(value, kind)
                if fits(value, kind):
                    continue
                if not keeps_unfit:
                    raise _misfit(table, row, name, value, own[name].type)
            if keeps_unfit:
                unfit[place].append((name, {"type": type_of(value).value, "value": text_of(value)}))
    arrays = {}
    for name, one in own.items():
        kind = kinds[name]
        assert kind is not None
        arrays[one.name] = pa.array(values[name], arrow_type(kind))
    if keeps_unfit:
        arrays[UNFIT] = pa.array(unfit, added_types()[UNFIT])
    if VERSIONS in columns.names:
        versions = [[(cell.name, cell.timestamp_millis) for cell in row.cells] for row in rows]
        arrays[VERSIONS] = pa.array(versions, added_types()[VERSIONS])
    made = [
        arrays[one.name] if arrays[one.name].type == one.type else arrays[one.name].cast(one.type) for one in columns
    ]
    batch = pa.RecordBatch.from_arrays(made, schema=columns)
    check_not_null(batch, lambda place: f"row {dict(rows[place].primary_key)} in table {table!r}")
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


# --- narrowing --------------------------------------------------------------------------------------------------------


def _is_safe(one: PushedComparison, types: Mapping[str, ColumnType]) -> bool:
    """Whether the service rejects no row that Spark takes.

    It finds unlike types never equal, so values must have the column's own type. A DOUBLE column shows integers too,
    and strings are compared byte by byte on both sides; truth values have an order here only.
    """
    kind = types.get(one.column)
    if kind not in (ColumnType.INTEGER, ColumnType.STRING):
        return False
    return bool(one.values) and all(
        value is not None and isinstance(value, int | str) and type_of(value) is kind for value in one.values
    )


def _filter_of(conditions: Sequence[PushedComparison]) -> bytes | None:
    """The conditions as the service takes them, all of which must hold; ``None`` without any.

    One that finds no room is left to Spark.
    """
    found: list[Any] = []
    count = 0
    for one in conditions:
        size = len(one.values) + (len(one.values) > 1)
        if count + size + bool(found) <= MOST_FILTERS:
            found.append(_either([_single(one, value) for value in one.values]))
            count += size
    if not found:
        return None
    message = found[0] if len(found) == 1 else _composite(LogicalOperator.AND, found)
    return bytes(message.SerializeToString())


def _single(one: PushedComparison, value: Any) -> Any:
    single = schema.SingleColumnValueFilter(
        comparator=one.comparator,
        column_name=one.column,
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
    """The range within what conditions on the first key column leave; ``None`` if they leave nothing."""
    rest = len(start) - 1
    for one in conditions:
        if one.comparator in (ComparatorType.EQUAL, ComparatorType.GREATER_EQUAL, ComparatorType.GREATER_THAN):
            start = max(start, [min(one.values)] + [KeyBound.INF_MIN] * rest, key=key_order)
        if one.comparator in (ComparatorType.EQUAL, ComparatorType.LESS_EQUAL, ComparatorType.LESS_THAN):
            end = min(end, _behind(max(one.values), rest), key=key_order)
    return (start, end) if key_order(start) < key_order(end) else None


def _behind(value: Any, rest: int) -> list[Any]:
    """The first key behind all that begin with the value: the end of a range is not in it."""
    if rest:
        return [value] + [KeyBound.INF_MAX] * rest
    if isinstance(value, str):
        return [value + "\0"]
    return [value + 1 if value < INTEGER_MAX else KeyBound.INF_MAX]
