"""Change records as rows of a table, and back.

One row per change: the columns of the table, then the added ones below. Nothing of a record is lost, so ``records_of``
gives back equal records (with the cells of a record in the order of their names).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from streamclient.destinations.digest import cell_order, in_order, split_cells
from streamclient.destinations.extra import pyarrow
from streamclient.destinations.names import original_name, stored_names
from streamclient.destinations.types import fits, shown, text_of, type_of, value_of
from streamclient.errors import CodecError
from streamclient.model import ColumnType
from streamclient.records import ColumnOperation, ColumnValue, RecordColumn, RecordType, SequenceInfo, StreamRecord

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Schema, Table

OPERATION = "_operation"
EPOCH = "_epoch"
TIMESTAMP = "_timestamp"
ROW_INDEX = "_row_index"
SHARD = "_shard_id"
COMMIT = "_commit"
VERSIONS = "_versions"
DELETED_COLUMNS = "_deleted_columns"
DELETED_VERSIONS = "_deleted_versions"
OLDER_VERSIONS = "_older_versions"
ORIGINAL_COLUMNS = "_original_columns"
UNFIT = "_unfit"

ADDED = (
    OPERATION,
    EPOCH,
    TIMESTAMP,
    ROW_INDEX,
    SHARD,
    COMMIT,
    VERSIONS,
    DELETED_COLUMNS,
    DELETED_VERSIONS,
    OLDER_VERSIONS,
    ORIGINAL_COLUMNS,
    UNFIT,
)
"""The added columns, in their order. A column of the source with such a name gets another one; see ``names``."""

DAY = "_day"
KEY = "_key"
"""Columns that a destination adds to divide its rows by; see ``partitions``."""

RESERVED = frozenset({*ADDED, DAY, KEY})


def arrow_type(column: ColumnType) -> DataType:
    """Type of the column that holds values of a type."""
    pa = pyarrow()
    return {
        ColumnType.INTEGER: pa.int64(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.STRING: pa.string(),
        ColumnType.BINARY: pa.binary(),
    }[column]


def column_type(kind: DataType) -> ColumnType | None:
    """Type of the values that a column holds; ``None`` for one that holds none of the five."""
    return next((one for one in ColumnType if arrow_type(one) == kind), None)


def added_types() -> dict[str, DataType]:
    """Types of the added columns."""
    pa = pyarrow()
    cells = pa.list_(
        pa.struct([("column", pa.string()), ("version", pa.int64()), ("type", pa.string()), ("value", pa.string())])
    )
    kinds = (
        pa.string(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int64(),
        pa.string(),
        pa.int64(),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.list_(pa.int64())),
        cells,
        cells,
        pa.map_(pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])),
    )
    return dict(zip(ADDED, kinds, strict=True))


def change_rows(
    records: Sequence[StreamRecord],
    *,
    shard: str,
    number: int,
    columns: Schema | None = None,
    declared: Mapping[str, ColumnType] | None = None,
) -> Table:
    """Rows of one commit's records, in the order of their sequence.

    Args:
        records: what lies between the start and the end of the commit.
        shard: their shard.
        number: of the commit, so that a proof finds its rows.
        columns: those of the destination, ``Destination.columns()``; they keep their types and spellings.
        declared: types of columns that the destination need not have yet, by their name in the source. A column in
            neither takes the type of the first value among the records.
    """
    ordered = in_order(records)
    collected = _Collected.of(ordered)
    types = _settle_types(collected, columns, declared or {})
    names = stored_names(types, [] if columns is None else columns.names, RESERVED)
    unfit: list[list[tuple[str, dict[str, str]]]] = [[] for _ in ordered]
    present = collected.order({*collected.values, *(declared or {})})
    arrays = {names[name]: _own_array(name, collected.values.get(name, {}), types[name], unfit) for name in present}
    added = _added_values(ordered, collected, shard, number) | {UNFIT: unfit}
    pa = pyarrow()
    arrays |= {name: pa.array(added[name], kind) for name, kind in added_types().items()}
    return pa.table(arrays)


@define
class _Collected:
    """The records, column by column, before types are settled."""

    keys: tuple[str, ...] = ()
    values: dict[str, dict[int, ColumnValue]] = field(factory=dict)
    """By column, the value at each place that has one."""
    shown: list[dict[str, RecordColumn]] = field(factory=list)
    older: list[list[RecordColumn]] = field(factory=list)

    @classmethod
    def of(cls, records: Sequence[StreamRecord]) -> _Collected:
        made = cls()
        for place, record in enumerate(records):
            values, older = split_cells(record.columns)
            made.shown.append(values)
            made.older.append(older)
            for name, key in record.primary_key:
                made.values.setdefault(name, {})[place] = key
            for name, cell in values.items():
                if cell.value is not None:
                    made.values.setdefault(name, {})[place] = cell.value
        made.keys = tuple(name for name, _ in records[0].primary_key) if records else ()
        return made

    def order(self, names: Iterable[str]) -> list[str]:
        """Keys in key order, then the other columns by name."""
        return [*self.keys, *sorted(set(names) - set(self.keys))]


def _own_names(columns: Schema | None) -> list[str]:
    return [] if columns is None else [name for name in columns.names if name not in RESERVED]


def _settle_types(
    collected: _Collected, columns: Schema | None, declared: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    types = dict(declared)
    for stored in _own_names(columns):
        known = column_type(columns.field(stored).type)  # type: ignore[union-attr]
        if known is not None:
            types[original_name(stored)] = known
    for name, values in collected.values.items():
        if name not in types:
            types[name] = type_of(next(iter(values.values())))
    return types


def _own_array(
    name: str, values: Mapping[int, ColumnValue], kind: ColumnType, unfit: list[list[tuple[str, dict[str, str]]]]
) -> Array:
    """One column; what does not fit goes to ``unfit``, by place."""
    held: list[ColumnValue | None] = [None] * len(unfit)
    for place, value in values.items():
        if fits(value, kind):
            held[place] = value
        else:
            held[place] = shown(value, kind)
            unfit[place].append((name, {"type": type_of(value).value, "value": text_of(value)}))
    return pyarrow().array(held, arrow_type(kind))


def _added_values(
    records: Sequence[StreamRecord], collected: _Collected, shard: str, number: int
) -> dict[str, list[Any]]:
    sequences = [record.sequence_info for record in records]
    return {
        OPERATION: [record.record_type.value for record in records],
        EPOCH: [one.epoch for one in sequences],
        TIMESTAMP: [one.timestamp_micros for one in sequences],
        ROW_INDEX: [one.row_index for one in sequences],
        SHARD: [shard] * len(records),
        COMMIT: [number] * len(records),
        VERSIONS: [sorted((name, cell.timestamp_millis) for name, cell in cells.items()) for cells in collected.shown],
        DELETED_COLUMNS: [_deleted_columns(record) for record in records],
        DELETED_VERSIONS: [_deleted_versions(record) for record in records],
        OLDER_VERSIONS: [[_plain(cell) for cell in cells] for cells in collected.older],
        ORIGINAL_COLUMNS: [_originals(record) for record in records],
    }


def _deleted_columns(record: StreamRecord) -> list[str]:
    return sorted({cell.name for cell in record.columns if cell.operation is ColumnOperation.DELETE_ALL_VERSION})


def _deleted_versions(record: StreamRecord) -> list[tuple[str, list[int | None]]]:
    deleted: dict[str, list[RecordColumn]] = {}
    for cell in record.columns:
        if cell.operation is ColumnOperation.DELETE_ONE_VERSION:
            deleted.setdefault(cell.name, []).append(cell)
    return [
        (name, [cell.timestamp_millis for cell in sorted(cells, key=cell_order)])
        for name, cells in sorted(deleted.items())
    ]


def _originals(record: StreamRecord) -> list[dict[str, Any]]:
    if record.original_columns is None:
        return []
    if not record.original_columns:
        return [_NOTHING]
    return [_plain(cell) for cell in sorted(record.original_columns, key=lambda one: (one.name, cell_order(one)))]


_NOTHING: dict[str, Any] = dict.fromkeys(("column", "version", "type", "value"))
"""Stands for previous cells that are known to be none. Null and the empty list could say it, but not every library that
writes tables keeps them apart."""


def _plain(cell: RecordColumn) -> dict[str, Any]:
    value = cell.value
    return {
        "column": cell.name,
        "version": cell.timestamp_millis,
        "type": None if value is None else type_of(value).value,
        "value": None if value is None else text_of(value),
    }


# --- back -------------------------------------------------------------------------------------------------------------


def records_of(rows: Table) -> list[StreamRecord]:
    """The records that ``change_rows`` made rows of, whatever columns the table has gained since, in their order.

    Key columns come in the order of the table's columns.

    Raises:
        CodecError: the rows hold something that no record became.
    """
    own = [name for name in rows.column_names if name not in RESERVED and column_type(rows.schema.field(name).type)]
    cells = {original_name(name): rows.column(name).to_pylist() for name in own}
    pa = pyarrow()
    micros = rows.column(TIMESTAMP).cast(pa.int64())
    added = {name: rows.column(name).to_pylist() for name in ADDED if name not in {TIMESTAMP}}
    added[TIMESTAMP] = micros.to_pylist()
    try:
        return in_order([_record(place, cells, added) for place in range(rows.num_rows)])
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"the rows are not those of changes: {error!r}") from error


def _record(place: int, cells: Mapping[str, Sequence[Any]], added: Mapping[str, Sequence[Any]]) -> StreamRecord:
    versions = dict(added[VERSIONS][place])
    unfit = {name: value_of(one["type"], one["value"]) for name, one in added[UNFIT][place] or ()}
    held = {name: values[place] for name, values in cells.items() if values[place] is not None} | unfit
    key = tuple(
        (name, held[name]) for name in (*cells, *(unfit.keys() - cells.keys())) if name in held and name not in versions
    )
    columns = [
        RecordColumn(name, ColumnOperation.PUT, held.get(name), version) for name, version in sorted(versions.items())
    ]
    columns += _more_cells(added, place)
    originals = added[ORIGINAL_COLUMNS][place] or None
    return StreamRecord(
        record_type=RecordType(added[OPERATION][place]),
        primary_key=key,
        columns=tuple(columns),
        sequence_info=SequenceInfo(added[EPOCH][place], added[TIMESTAMP][place], added[ROW_INDEX][place]),
        original_columns=None if originals is None else tuple(_cell(one) for one in originals if one != _NOTHING),
    )


def _more_cells(added: Mapping[str, Sequence[Any]], place: int) -> Iterator[RecordColumn]:
    for name in added[DELETED_COLUMNS][place] or ():
        yield RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION)
    for name, versions in added[DELETED_VERSIONS][place] or ():
        for version in versions:
            yield RecordColumn(name, ColumnOperation.DELETE_ONE_VERSION, None, version)
    yield from map(_cell, added[OLDER_VERSIONS][place] or ())


def _cell(plain: Mapping[str, Any]) -> RecordColumn:
    value = None if plain["type"] is None else value_of(plain["type"], plain["value"])
    return RecordColumn(plain["column"], ColumnOperation.PUT, value, plain["version"])
