"""The conversion of decoded pages of a stream, which have columns already, into ``ChangeColumns``.

``streamclient.wire.columns`` describes the columns of a page. In each column, a page has one cell of each record. If a
record has several cells in the column, the page has the other cells in a separate list. The cell with the highest
version has the column's value (see ``digest``), and may be any of these cells. So this module collects the cells of
such a record, and looks for the value. It uses all other cells unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.column_layout import (
    NO_VERSION,
    Cells,
    ChangeColumns,
    Collector,
    column_type,
    counted,
    integers,
    key_order,
)
from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, ColumnType, ColumnValue, RecordColumn

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

_FIELDS = ("record_type", "sequence_info", "primary_key", "columns", "other_cells", "original_columns")
_SEQUENCE = ("epoch", "timestamp_micros", "row_index")


def columns_of_pages(pages: Iterable[Any], *, keeps_order: bool = False) -> ChangeColumns:
    """Convert pages of one shard to the columns of its changes. ``pages`` has ``DecodedPage.arrow()`` of each page.

    Pages may be decoded with or without a schema. The result equals ``ChangeColumns.of_records`` of the same records.
    With ``keeps_order``, the records stay in the order of the pages. Use this for the full data of a tunnel: all its
    rows have the same sequence, and sorting them by key would be slow.

    Raises:
        CodecError: a page lacks the expected fields, or has other key columns than the first page.
    """
    pa = pyarrow()
    batches = [batch for batch in map(pa.record_batch, pages) if _checked(batch).num_rows]
    if not batches:
        return ChangeColumns.of_records(())
    key = tuple(field.name for field in batches[0].schema.field("primary_key").type)
    count = sum(batch.num_rows for batch in batches)
    everywhere = counted(count)
    collector = Collector()
    first = 0
    for batch in batches:
        names = tuple(field.name for field in batch.schema.field("primary_key").type)
        if names != key:
            raise CodecError(f"a page has the key columns {names}, the first page {key}: they are not of one table")
        _add_page(collector, batch, everywhere.slice(first, batch.num_rows), first)
        first += batch.num_rows
    operations = pa.concat_arrays([batch.column("record_type").cast(pa.string()) for batch in batches])
    flat = [dict(zip(_SEQUENCE, _children(batch, "sequence_info"), strict=True)) for batch in batches]
    epochs, stamps, rows = (pa.concat_arrays([sequence[name] for sequence in flat]) for name in _SEQUENCE)
    order = None if keeps_order else _order((epochs, stamps, rows), batches)
    if order is None:
        return collector.finish(count, key, operations, (epochs, stamps, rows))
    sequences = (epochs.take(order), stamps.take(order), rows.take(order))
    ranks = compute().sort_indices(order).cast(pa.int64())
    return collector.finish(count, key, operations.take(order), sequences, ranks)


def _checked(batch: RecordBatch) -> RecordBatch:
    if tuple(batch.schema.names) != _FIELDS:
        raise CodecError(f"expected a page in columns, with the fields {_FIELDS}, got {tuple(batch.schema.names)}")
    return batch


def _children(batch: RecordBatch, name: str) -> list[Array]:
    children: list[Array] = batch.column(name).flatten()
    return children


def _order(sequences: tuple[Array, ...], batches: Sequence[RecordBatch]) -> Array | None:
    """Return the indexes that sort the records (see ``in_order``); ``None`` if the records are sorted already."""
    pa, pc = pyarrow(), compute()
    epochs, stamps, rows = sequences
    if _ascend(epochs, stamps, rows):
        return None
    table = pa.table({"epoch": epochs, "stamp": stamps, "row": rows})
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    if _ascend(*(numbers.take(order) for numbers in sequences)):
        return order
    numbers = list(zip(*(column.to_pylist() for column in sequences), strict=True))
    keys = [key_order(tuple(key.items())) for batch in batches for key in batch.column("primary_key").to_pylist()]
    return pa.array(sorted(range(len(keys)), key=lambda index: (numbers[index], keys[index])), pa.uint64())


def _ascend(epochs: Array, stamps: Array, rows: Array) -> bool:
    """Return whether each sequence (epoch, timestamp and row index) is greater than the previous one."""
    if not len(epochs):
        return True
    pc = compute()
    later = [pc.greater(column[1:], column[:-1]) for column in (epochs, stamps, rows)]
    equal = [pc.equal(column[1:], column[:-1]) for column in (epochs, stamps)]
    deeper = pc.or_(later[1], pc.and_(equal[1], later[2]))
    return bool(pc.or_(later[0], pc.and_(equal[0], deeper)).true_count == len(epochs) - 1)


# --- cells ------------------------------------------------------------------------------------------------------------

_Beside = dict[str, dict[int, list[RecordColumn]]]
"""The cells that a page has in a separate list outside its columns. The keys are column names, then row indexes."""


def _add_page(collector: Collector, batch: RecordBatch, places: Array, first: int) -> None:
    pc = compute()
    for field, values in zip(batch.schema.field("primary_key").type, _children(batch, "primary_key"), strict=True):
        collector.part(("key", field.name, _column_type(field.type)), Cells(places, values))
    beside: _Beside = {}
    others, originals = batch.column("other_cells"), batch.column("original_columns")
    for row, cells in _listed(others, pc.greater(pc.list_value_length(others), 0)):
        for cell in cells:
            beside.setdefault(cell.name, {}).setdefault(row, []).append(cell)
    single: dict[int, list[RecordColumn]] = {}
    """The cells of columns that cannot be used whole, by the index of their row. ``collector`` gets them one by one."""
    for field, column in zip(batch.schema.field("columns").type, _children(batch, "columns"), strict=True):
        listed = beside.get(field.name, {})
        for row, cell in _add_column(collector, field.name, column, places, listed):
            single.setdefault(row, []).append(cell)
    for rows in beside.values():
        for row, cells in rows.items():
            single.setdefault(row, []).extend(cells)
    for row in sorted(single):
        collector.cells(first + row, single[row])
    for row, cells in _listed(originals, originals.is_valid()):
        collector.original(first + row, cells)


def _add_column(
    collector: Collector, name: str, column: Array, places: Array, listed: Mapping[int, Sequence[RecordColumn]]
) -> Iterator[tuple[int, RecordColumn]]:
    """Add to ``collector`` the cells of a page's column that can be used unchanged. Yield the others with their rows.

    A cell cannot be used unchanged if it is a deletion, or if its row has ``listed`` cells in this column, too. A cell
    without its value is left out if ``listed`` has the same cell with the value.
    """
    pa, pc = pyarrow(), compute()
    operations, values, versions = column.flatten()
    put = operations.dictionary.to_pylist().index(ColumnOperation.PUT.value)
    puts = pc.equal(operations.indices, pa.scalar(put, operations.indices.type))
    if listed:
        rows = counted(len(column))
        puts = pc.and_(puts, pc.invert(pc.is_in(rows, value_set=integers(sorted(listed)))))
    taken = puts.true_count
    if taken < len(column):
        some = pc.indices_nonzero(puts)
        _take(collector, name, Cells(places.take(some), values.take(some)), versions.take(some))
    else:
        _take(collector, name, Cells(places, values), versions)
    if taken + column.null_count < len(column):
        rest = pc.indices_nonzero(pc.and_(pc.is_valid(column), pc.invert(pc.fill_null(puts, False))))
        for row, cell in zip(rest.to_pylist(), _shown(name, column.take(rest)), strict=True):
            if not _is_listed_whole(cell, listed.get(row, ())):
                yield row, cell


def _take(collector: Collector, name: str, cells: Cells, versions: Array) -> None:
    pa, pc = pyarrow(), compute()
    if versions.null_count:
        versions = pc.fill_null(versions, pa.scalar(NO_VERSION, pa.int64()))
    collector.version_part(name, Cells(cells.places, versions))
    if pa.types.is_null(cells.values.type):
        return  # no cell of this column in the page has a value
    if cells.values.null_count:
        cells = Cells(cells.places.filter(cells.values.is_valid()), cells.values.drop_null())
    collector.part(("value", name, _column_type(cells.values.type)), cells)


def _is_listed_whole(cell: RecordColumn, listed: Collection[RecordColumn]) -> bool:
    """Return whether ``cell`` has no value because ``listed`` has the same cell with its value.

    A page lists a cell in this way if the value has another type than the page's column.
    """
    return (
        cell.operation is ColumnOperation.PUT
        and cell.value is None
        and any(
            other.operation is ColumnOperation.PUT
            and other.value is not None
            and other.timestamp_millis == cell.timestamp_millis
            for other in listed
        )
    )


def _shown(name: str, cells: Array) -> Iterator[RecordColumn]:
    for cell in cells.to_pylist():
        yield RecordColumn(name, ColumnOperation(cell["operation"]), cell["value"], cell["timestamp_millis"])


def _listed(lists: Array, some: Array) -> Iterator[tuple[int, list[RecordColumn]]]:
    """Yield each row for which ``some`` is true, with its cells in ``lists``."""
    rows = compute().indices_nonzero(some)
    for row, cells in zip(rows.to_pylist(), lists.take(rows).to_pylist(), strict=True):
        yield row, [_plain(cell) for cell in cells]


_VALUES = tuple(kind.name.lower() for kind in ColumnType)


def _plain(cell: Mapping[str, Any]) -> RecordColumn:
    found: Iterator[ColumnValue] = (cell[name] for name in _VALUES if cell[name] is not None)
    return RecordColumn(cell["name"], ColumnOperation(cell["operation"]), next(found, None), cell["timestamp_millis"])


def _column_type(kind: Any) -> ColumnType:
    found = column_type(kind)
    if found is None:
        raise CodecError(f"a column of a page holds {kind}, expected one of the types that Tablestore stores")
    return found
