"""The conversion of change records into rows of a table, and of such rows back into records.

Each change becomes one row. The row has the columns of the source table, followed by the columns ``ADDED``. The row
keeps all of the record, so ``records_of`` returns an equal record. Only the order of the record's cells may differ.
``records_of`` gives deletions first, and the cells of each kind sorted by name. So a record that puts a column and then
deletes it looks like one that first deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from streamclient.base.checks import LONGEST_SHOWN
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.arrow_schemas import check_not_null
from streamclient.destinations.rows.column_layout import (
    NO_VERSION,
    Cells,
    ChangeColumns,
    arrow_type,
    as_columns,
    column_type,
    in_order,
    integers,
)
from streamclient.destinations.rows.column_names import original_name, stored_names
from streamclient.destinations.rows.column_types import shown, text_of, type_of, value_of
from streamclient.errors import CodecError, UnfitValueError
from streamclient.records import (
    ColumnOperation,
    ColumnType,
    ColumnValue,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema, Table

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
"""The columns that a row has in addition to the columns of the source table, in their order. A source column with the
name of an added column is renamed; see ``column_names``."""

DAY = "_day"
KEY = "_key"
"""``DAY`` and ``KEY`` are the names of the columns by which a destination may partition its rows; see
``delta.partitions``."""

VERSION = "_version"
READ_AT = "_read_at"
"""``VERSION`` and ``READ_AT`` are the names of two columns that only a mirror has; see ``folding.row_changes``."""

VALIDITY = VALID_FROM, VALID_TO = "_valid_from", "_valid_to"
"""The names of two columns in a history of rows: the time from which, and the time until which, a row had a state."""

PASSING = ("_gone", "_place", "_key_beside")
"""The names of columns that tables and frames have only while they are processed, and never in storage."""

RESERVED = frozenset({*ADDED, DAY, KEY, VERSION, READ_AT, *VALIDITY, *PASSING})


def added_types() -> dict[str, DataType]:
    """Return the Arrow type of each column in ``ADDED``."""
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
    changes: Iterable[StreamRecord] | ChangeColumns,
    *,
    shard: str,
    number: int,
    columns: Schema | None = None,
    declared: Mapping[str, ColumnType] | None = None,
) -> Table:
    """Convert the changes of one commit to rows, in the order of their sequence.

    Args:
        changes: the changes of the commit, as records or as columns. Columns (``page_columns.columns_of_pages``) give
            the same rows with a fraction of the CPU time.
        shard: the id of the shard of the changes.
        number: the number of the commit, ``Commit.number``. By this number a proof finds the commit's rows.
        columns: the columns that the destination already has, from ``Destination.columns()``. They keep their types and
            names. If the type of one is not a type that Tablestore stores, ``_unfit`` has the values of the source's
            column with this name. A key column of such a type keeps the source's type, and the destination refuses it.
        declared: the types of columns that the destination does not have yet. The keys are the columns' names in the
            source table. A new column without a declared type takes the type of its first value.
    """
    given = as_columns(changes)
    cells = values_by_name(given)
    types = settle_types(cells, columns, declared or {})
    names = stored_names(types, [] if columns is None else columns.names, RESERVED)
    unfit: ByPlace = {}
    others = columns_of_others(columns) - {names[name] for name in given.key}
    arrays = {}
    for name in [*given.key, *sorted({*cells, *(declared or {})} - set(given.key))]:
        if names[name] in others:
            _add_unfit(name, cells.get(name, {}), unfit)
        else:
            arrays[names[name]] = column_values(given, name, cells.get(name, {}), types[name], unfit)
    makers = _added_makers(given, shard, number) | {UNFIT: lambda: _spread_lists(given, unfit, UNFIT)}
    return pyarrow().table(arrays | {name: makers[name]() for name in ADDED})


def rows_of_schema(changes: ChangeColumns, *, shard: str, columns: Schema) -> Table:
    """Convert ``changes`` to rows with exactly the columns ``columns``.

    If the name of a column is in ``ADDED``, this function makes the column, with the type in ``added_types``. All other
    columns are columns of the source table. If ``_unfit`` is one of ``columns``, it has the values that do not fit
    their column or have no column.

    Raises:
        UnfitValueError: a value does not fit its column, and ``columns`` lacks ``_unfit``. Or a column that is declared
            NOT NULL lacks a value.
    """
    cells = values_by_name(changes)
    own = {original_name(name): name for name in columns.names if name not in RESERVED}
    unfit: ByPlace = {}
    arrays = {}
    for name, stored in own.items():
        kind = column_type(columns.field(stored).type)
        assert kind is not None, f"the type of column {stored!r} is not one that Tablestore stores"
        arrays[stored] = column_values(changes, name, cells.get(name, {}), kind, unfit)
    if UNFIT in columns.names:
        for name in sorted(cells.keys() - own.keys()):
            _add_unfit(name, cells[name], unfit)
    elif unfit:
        place, ((name, misfit), *_) = min(unfit.items())
        raise UnfitValueError(
            f"column {name!r} is {columns.field(own[name]).type} and holds the {misfit['type']} "
            f"{misfit['value'][:LONGEST_SHOWN]!r} in {_named_change(changes.sequences, shard, place)}: declare the "
            f"column {UNFIT}, which keeps such values, or give the column another type"
        )
    makers = _added_makers(changes, shard, 0) | {UNFIT: lambda: _spread_lists(changes, unfit, UNFIT)}
    arrays |= {name: makers[name]() for name in columns.names if name in makers}
    made = pyarrow().table([arrays[name] for name in columns.names], schema=columns)
    check_not_null(made, partial(_named_change, changes.sequences, shard))
    return made


OF_CHANGES = frozenset({OPERATION, EPOCH, TIMESTAMP, ROW_INDEX, SHARD})
"""The added columns whose values do not depend on a record's cells."""


def rows_of_values(values: RecordBatch, *, shard: str, columns: Schema) -> RecordBatch:
    """Make the same rows as ``rows_of_schema`` from ``values``, the batch that ``DecodedPage.values`` returns.

    ``OF_CHANGES`` names the only added columns that ``columns`` may have. All other columns are taken from ``values``,
    by their names in the source table.

    Raises:
        UnfitValueError: a column that is declared NOT NULL has no value.
    """
    pa = pyarrow()
    found = values.column("columns")
    own = {field.name: array for field, array in zip(found.type, found.flatten(), strict=True)}
    operations = values.column("record_type").cast(pa.string())
    sequences = values.column("sequence_info").flatten()
    makers = _change_makers(operations, sequences, shard)
    arrays = [makers[name]() if name in makers else own[original_name(name)] for name in columns.names]
    made = pa.RecordBatch.from_arrays(arrays, schema=columns)
    check_not_null(made, partial(_named_change, sequences, shard))
    return made


def _named_change(sequences: Sequence[Array], shard: str, place: int) -> str:
    return f"the change {'/'.join(str(numbers[place]) for numbers in sequences)} of shard {shard}"


ByPlace = dict[int, list[Any]]
"""The entries of one added column for each record that has entries. The keys are the records' places (indexes)."""


def values_by_name(changes: ChangeColumns) -> dict[str, dict[ColumnType, Cells]]:
    """Return the values of key and attribute columns, by the column's name and by the type of the values."""
    found: dict[str, dict[ColumnType, Cells]] = {}
    for (_, name, value_type), cells in changes.values.items():
        found.setdefault(name, {})[value_type] = cells
    return found


def columns_of_others(columns: Schema | None) -> set[str]:
    """Return the names of the columns whose types Tablestore does not have, so that other programs have made them.

    A column of another program that has a type of Tablestore looks like a column of the source, and is left out.
    """
    return {name for name in _own_names(columns) if column_type(columns.field(name).type) is None}  # type: ignore[union-attr]


def moved_beside(rows: Table, moved: Mapping[str, Sequence[ColumnValue | None]]) -> Table:
    """Add the values of the stored columns ``moved``, one for each of ``rows``, to the map ``_unfit`` of the rows.

    Nulls are left out. A value that the map already has under the column's name is the exact one, and stays.
    """
    unfit = rows.column(UNFIT).to_pylist()
    for stored, values in moved.items():
        name = original_name(stored)
        for place, value in enumerate(values):
            if value is not None and name not in dict(unfit[place] or ()):
                typed = {"type": type_of(value).value, "value": text_of(value)}
                unfit[place] = [*(unfit[place] or ()), (name, typed)]
    array = pyarrow().array(unfit, rows.schema.field(UNFIT).type)
    return rows.set_column(rows.column_names.index(UNFIT), UNFIT, array)


def _add_unfit(name: str, by_type: Mapping[ColumnType, Cells], unfit: ByPlace) -> None:
    """Add all values of the column ``name`` to ``unfit``."""
    for value_type, held in by_type.items():
        for place, value in zip(held.places.to_pylist(), held.values.to_pylist(), strict=True):
            unfit.setdefault(place, []).append((name, {"type": value_type.value, "value": text_of(value)}))


def _own_names(columns: Schema | None) -> list[str]:
    return [] if columns is None else [name for name in columns.names if name not in RESERVED]


def settle_types(
    cells: Mapping[str, Mapping[ColumnType, Cells]], columns: Schema | None, declared: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    """Return the type of each column. The keys are the columns' names in the source table.

    A column in ``columns`` keeps the type that it has there. Any other column has its declared type, or otherwise the
    type of its first value.
    """
    types = dict(declared)
    for stored in _own_names(columns):
        known = column_type(columns.field(stored).type)  # type: ignore[union-attr]
        if known is not None:
            types[original_name(stored)] = known
    for name, by_type in cells.items():
        if name not in types:
            types[name] = min(by_type, key=lambda value_type: by_type[value_type].places[0].as_py())
    return types


def column_values(
    changes: ChangeColumns, name: str, by_type: Mapping[ColumnType, Cells], kind: ColumnType, unfit: ByPlace
) -> Array:
    """Return the column ``name``, of type ``kind``, for all records; add its values of other types to ``unfit``."""
    pa = pyarrow()
    held = by_type.get(kind)
    others = [(value_type, cells) for value_type, cells in by_type.items() if value_type is not kind]
    places: list[int] = []
    converted = []
    _add_unfit(name, dict(others), unfit)
    for _, cells in others:
        for place, value in zip(cells.places.to_pylist(), cells.values.to_pylist(), strict=True):
            equal = shown(value, kind)
            if equal is not None:
                places.append(place)
                converted.append(equal)
    if held is None and not converted:
        return pa.nulls(changes.count, arrow_type(kind))
    made = changes.spread(held) if held is not None else pa.nulls(changes.count, arrow_type(kind))
    if converted:
        beside = changes.spread(Cells(integers(places), pa.array(converted, arrow_type(kind))))
        made = compute().coalesce(made, beside)
    return made


def _change_makers(operations: Array, sequences: Sequence[Array], shard: str) -> dict[str, Callable[[], Array]]:
    """Return the functions that make the columns in ``OF_CHANGES``. The keys are the columns' names."""
    pa = pyarrow()
    epochs, stamps, rows = sequences
    return {
        OPERATION: lambda: operations,
        EPOCH: lambda: epochs,
        TIMESTAMP: lambda: stamps.cast(added_types()[TIMESTAMP]),
        ROW_INDEX: lambda: rows,
        SHARD: lambda: pa.repeat(pa.scalar(shard, pa.string()), len(operations)),
    }


def _added_makers(changes: ChangeColumns, shard: str, number: int) -> dict[str, Callable[[], Array]]:
    """Return the functions that make the columns in ``ADDED`` without ``_unfit``. The keys are the columns' names."""
    pa = pyarrow()
    return _change_makers(changes.operations, changes.sequences, shard) | {
        COMMIT: lambda: pa.repeat(pa.scalar(number, pa.int64()), changes.count),
        VERSIONS: lambda: _versions(changes),
        DELETED_COLUMNS: lambda: _spread_lists(changes, _deleted_columns(changes), DELETED_COLUMNS),
        DELETED_VERSIONS: lambda: _spread_lists(changes, _deleted_versions(changes), DELETED_VERSIONS),
        OLDER_VERSIONS: lambda: _spread_lists(changes, _plain_cells(changes, "older"), OLDER_VERSIONS),
        ORIGINAL_COLUMNS: lambda: _spread_lists(changes, _originals(changes), ORIGINAL_COLUMNS),
    }


def _spread_lists(changes: ChangeColumns, lists: ByPlace, name: str) -> Array:
    """Make the added column ``name`` from ``lists``, with an empty list for each record that has no entries."""
    pa, kind = pyarrow(), added_types()[name]
    if not lists:
        return pa.array([()], kind).take(pa.repeat(pa.scalar(0, pa.int32()), changes.count))
    return pa.array([lists.get(place, ()) for place in range(changes.count)], kind)


def _versions(changes: ChangeColumns) -> Array:
    """Make the column ``_versions``: a map for each record, with the version of each column that the record puts."""
    pa, pc = pyarrow(), compute()
    names = sorted(changes.versions)
    parts = [changes.versions[name] for name in names]
    kind = added_types()[VERSIONS]
    if not parts:
        return pa.array([()] * changes.count, kind)
    places = pa.concat_arrays([part.places for part in parts])
    order = pc.sort_indices(places)  # the sort is stable, so within a record the names stay sorted
    numbers = [pa.repeat(pa.scalar(index, pa.int32()), len(part.places)) for index, part in enumerate(parts)]
    keys = pa.array(names, pa.string()).take(pa.concat_arrays(numbers).take(order))
    versions = pa.concat_arrays([part.values for part in parts]).take(order)
    is_absent = pc.equal(versions, NO_VERSION)
    if is_absent.true_count:
        versions = pc.if_else(is_absent, pa.scalar(None, pa.int64()), versions)
    return pa.MapArray.from_arrays(_ends(changes, places), keys, versions).cast(kind)


def _ends(changes: ChangeColumns, places: Array) -> Array:
    """Return the offsets of an Arrow list column: the start of each record's list, and the end of the last list.

    ``places`` has one item for each entry of the lists: the place of the entry's record.
    """
    pa, pc = pyarrow(), compute()
    counted = pc.value_counts(places)
    counts = counted.field("counts").take(pc.index_in(changes.everywhere, value_set=counted.field("values")))
    ends = pc.cumulative_sum(pc.fill_null(counts, 0))
    return pa.concat_arrays([integers([0]), ends]).cast(pa.int32())


def _deleted_columns(changes: ChangeColumns) -> ByPlace:
    found: ByPlace = {}
    for name in sorted(changes.deleted):
        for place in changes.deleted[name].to_pylist():
            found.setdefault(place, []).append(name)
    return found


def _deleted_versions(changes: ChangeColumns) -> ByPlace:
    found: dict[int, dict[str, list[int | None]]] = {}
    for (kind, name), cells in sorted(changes.lists.items()):
        for place, version, _ in cells if kind == "deleted version" else ():
            found.setdefault(place, {}).setdefault(name, []).append(_stored_version(version))
    return {place: list(by_name.items()) for place, by_name in found.items()}


def _originals(changes: ChangeColumns) -> ByPlace:
    found = _plain_cells(changes, "original")
    return {place: found.get(place, [_NOTHING]) for place in changes.originals.to_pylist()}


_NOTHING: dict[str, Any] = dict.fromkeys(("column", "version", "type", "value"))
"""The entry in ``_original_columns`` for a record that is known to have had no previous cells. An empty list would not
do, because some libraries that write tables do not distinguish an empty list from null."""


def _plain_cells(changes: ChangeColumns, wanted: str) -> ByPlace:
    found: ByPlace = {}
    for (kind, name), cells in sorted(changes.lists.items()):
        for place, version, text in cells if kind == wanted else ():
            kind_name, separator, value = text.partition(":")
            plain = {"column": name, "version": _stored_version(version)}
            plain |= {"type": kind_name, "value": value} if separator else {"type": None, "value": None}
            found.setdefault(place, []).append(plain)
    return found


def _stored_version(version: int) -> int | None:
    return None if version == NO_VERSION else version


# --- rows back to records ---------------------------------------------------------------------------------------------


def records_of(rows: Table) -> list[StreamRecord]:
    """Convert ``rows``, which ``change_rows`` has made, back to records, in the order of their sequence.

    The rows may lack columns that were added to the table after the rows were made. The key columns of a record have
    the order of the table's columns.

    Raises:
        CodecError: ``change_rows`` cannot have made these rows.
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
        raise CodecError(f"the rows were not made from changes: {error!r}") from error


def _record(place: int, cells: Mapping[str, Sequence[Any]], added: Mapping[str, Sequence[Any]]) -> StreamRecord:
    versions = dict(added[VERSIONS][place])
    unfit = {name: value_of(held["type"], held["value"]) for name, held in added[UNFIT][place] or ()}
    held = {name: values[place] for name, values in cells.items() if values[place] is not None} | unfit
    key = tuple(
        (name, held[name]) for name in (*cells, *(unfit.keys() - cells.keys())) if name in held and name not in versions
    )
    columns = [
        *_deletions(added, place),
        *(
            RecordColumn(name, ColumnOperation.PUT, held.get(name), version)
            for name, version in sorted(versions.items())
        ),
        *map(_cell, added[OLDER_VERSIONS][place] or ()),
    ]
    originals = added[ORIGINAL_COLUMNS][place] or None
    return StreamRecord(
        record_type=RecordType(added[OPERATION][place]),
        primary_key=key,
        columns=tuple(columns),
        sequence_info=SequenceInfo(added[EPOCH][place], added[TIMESTAMP][place], added[ROW_INDEX][place]),
        original_columns=None if originals is None else tuple(_cell(cell) for cell in originals if cell != _NOTHING),
    )


def _deletions(added: Mapping[str, Sequence[Any]], place: int) -> Iterator[RecordColumn]:
    for name in added[DELETED_COLUMNS][place] or ():
        yield RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION)
    for name, versions in added[DELETED_VERSIONS][place] or ():
        for version in versions:
            yield RecordColumn(name, ColumnOperation.DELETE_ONE_VERSION, None, version)


def _cell(plain: Mapping[str, Any]) -> RecordColumn:
    value = None if plain["type"] is None else value_of(plain["type"], plain["value"])
    return RecordColumn(plain["column"], ColumnOperation.PUT, value, plain["version"])
