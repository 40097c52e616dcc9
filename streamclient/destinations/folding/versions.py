"""The versions of cells, as a mirror stores them for many rows in the columns ``_version`` and ``_versions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.folding.row_changes import own_types
from streamclient.destinations.rows.change_rows import UNFIT, VERSION, VERSIONS
from streamclient.destinations.rows.column_layout import integers

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Table


class CellVersions:
    """The versions of all cells in a fold: of the cells of present rows, and of the cells that changes put.

    Row numbers and sources have the same meaning as in ``fold``.
    """

    def __init__(self, present: Table, kept: Array, result: Array) -> None:
        """Prepare the versions of a fold into the rows ``present``.

        ``kept`` has one item for each row: the row's number if the row is in ``present`` and keeps cells, otherwise
        null. ``result`` has the numbers of the rows that exist after the fold.
        """
        self._count = present.num_rows
        self._kept = kept
        self.late: set[int] = set()
        self._base = whole(present.column(VERSION))
        self._result = result
        self._names: list[str] = []
        self._rows: list[Array] = []
        self._numbers: list[Array] = []
        self._different = versions_by_name(whole(present.column(VERSIONS)))
        self._beside = _places_beside(present)

    def there(self, name: str, values: Array | None) -> Array | None:
        """Return the version of each present row's cell in column ``name``; null for a row without the cell.

        ``values`` has the values of this column. The result is ``None`` if no present row has such a cell.
        """
        pa, pc, count = pyarrow(), compute(), self._count
        if not count or (values is None and name not in self._beside):
            return None
        has_cell = pa.nulls(count, pa.bool_()).is_valid() if values is None else values.is_valid()
        if name in self._beside:
            has_cell = pc.or_(has_cell, pc.is_in(integers(range(count)), value_set=self._beside[name]))
        numbers = self._base
        if name in self._different:
            rows, different = self._different[name]
            numbers = pc.coalesce(different.take(pc.index_in(integers(range(count)), value_set=rows)), numbers)
        return pc.if_else(has_cell, numbers, None)

    def put(self, name: str, rows: Array, numbers: Array) -> None:
        """Remember that changes put cells of column ``name`` into ``rows``, with the versions ``numbers``."""
        if not len(rows):
            return
        pc = compute()
        if self._count:
            base = self._base.take(self._kept.take(rows))
            is_late = pc.fill_null(pc.less(numbers, base), False)
            self.late.update(rows.filter(is_late).to_pylist())
        self._names.append(name)
        self._rows.append(rows)
        self._numbers.append(numbers)

    def finish(self, kept: Array, sources: Mapping[str, Array], written: Array) -> dict[str, Array]:
        """Return the columns ``_version`` and ``_versions`` of the result.

        For each changed column, ``sources`` has the source of each row's cell. For all other columns, ``kept`` has the
        sources. ``written`` has the time of each row's last change in milliseconds, which becomes the version of a row
        without cells.
        """
        pa, pc = pyarrow(), compute()
        size = len(self._result)
        every_row = integers(range(len(self._kept)))
        place_of = pc.index_in(every_row, value_set=self._result).cast(pa.int64())
        places = [place_of.take(rows) for rows in self._rows]
        codes = [pa.repeat(pa.scalar(code), len(rows)) for code, rows in enumerate(self._rows)]
        names = list(self._names)
        numbers = list(self._numbers)
        for name, (rows, different) in self._different.items():
            # A row whose cell was not changed keeps its entry in ``_versions``.
            now = place_of.take(rows)
            still = pc.fill_null(pc.equal(sources.get(name, kept).take(now), rows), False)
            codes.append(pa.repeat(pa.scalar(len(names)), still.true_count))
            names.append(name)
            places.append(now.filter(still))
            numbers.append(different.filter(still))
        if not places:
            base = pc.coalesce(self._base.take(kept), written)
            return {VERSION: base, VERSIONS: pa.nulls(size, own_types()[VERSIONS])}
        table = pa.table(
            {"place": pa.concat_arrays(places), "code": pa.concat_arrays(codes), "number": pa.concat_arrays(numbers)}
        )
        table = table.filter(pc.is_valid(table.column("place")))
        least = table.group_by("place", use_threads=False).aggregate([("number", "min")])
        smallest = whole(least.column("number_min")).take(
            pc.index_in(integers(range(size)), value_set=whole(least.column("place")))
        )
        base = pc.coalesce(self._base.take(kept), smallest, written)
        table = table.filter(pc.not_equal(table.column("number"), base.take(whole(table.column("place")))))
        return {VERSION: base, VERSIONS: _map_of(table, names, size)}


def _map_of(table: Table, names: Sequence[str], size: int) -> Array:
    """Return ``size`` maps from column name to version, one for each row of the fold's result.

    Each row of ``table`` is one entry of a map. Its columns are the index of the map (``place``), the index of the
    column name in ``names`` (``code``), and the version (``number``). A map without entries is null.
    """
    pa, pc = pyarrow(), compute()
    kind = own_types()[VERSIONS]
    if not table.num_rows:
        return pa.nulls(size, kind)
    by_name = sorted(range(len(names)), key=lambda code: names[code])
    ranks = pc.sort_indices(integers(by_name)).cast(pa.int64())
    table = table.set_column(1, "code", ranks.take(whole(table.column("code"))))
    table = table.take(pc.sort_indices(table, sort_keys=[("place", "ascending"), ("code", "ascending")]))
    places = whole(table.column("place"))
    counted = pc.value_counts(places)
    counts = counted.field("counts").take(pc.index_in(integers(range(size)), value_set=counted.field("values")))
    ends = pc.cumulative_sum(pc.fill_null(counts, 0))
    starts = pa.concat_arrays([integers([0]), ends.cast(pa.int64())]).cast(pa.int32())
    keys = pa.array([names[code] for code in by_name], pa.string()).take(whole(table.column("code")))
    return pa.MapArray.from_arrays(starts, keys, whole(table.column("number")), mask=pc.is_null(counts)).cast(kind)


def versions_by_name(maps: Array) -> dict[str, tuple[Array, Array]]:
    """Return the row indexes and the versions of each column in ``maps``, by column name.

    The first array has the indexes of the rows whose maps have the column, the second array the versions in these maps.
    """
    pa, pc = pyarrow(), compute()
    if maps.null_count == len(maps):
        return {}
    lists = as_lists(maps.cast(pa.map_(pa.string(), pa.int64())))
    rows = pc.list_parent_indices(lists).cast(pa.int64())
    names, numbers = pc.list_flatten(lists).flatten()
    names = names.dictionary_encode()
    order = pc.sort_indices(names.indices)
    rows, numbers = rows.take(order), numbers.take(order)
    found, first = {}, 0
    counts = {count["values"]: count["counts"] for count in pc.value_counts(names.indices).to_pylist()}
    for code, name in enumerate(names.dictionary.to_pylist()):
        found[name] = (rows.slice(first, counts[code]), numbers.slice(first, counts[code]))
        first += counts[code]
    return found


def as_lists(array: Array) -> Any:
    """Turn an array of maps into an array of lists of their entries. Return an array of lists unchanged."""
    pa, kind = pyarrow(), array.type
    if not pa.types.is_map(kind):
        return array
    return array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))


def _places_beside(present: Table) -> dict[str, Array]:
    """Return, by column name, the indexes of the rows whose value does not fit this column and is in ``_unfit``."""
    found: dict[str, list[int]] = {}
    maps = whole(present.column(UNFIT))
    for place, pairs in enumerate(maps.to_pylist() if maps.null_count < len(maps) else ()):
        for name, _ in pairs or ():
            found.setdefault(name, []).append(place)
    return {name: integers(places) for name, places in found.items()}


def whole(array: Array | ChunkedArray) -> Any:
    """Return ``array`` as an Arrow array of a single chunk."""
    pa = pyarrow()
    if not isinstance(array, pa.ChunkedArray):
        return array
    return (
        array.chunk(0)
        if array.num_chunks == 1
        else array.combine_chunks()
        if array.num_chunks
        else pa.array([], array.type)
    )
