"""The rules by which a change modifies one row of a mirror, cell by cell.

Tablestore changes the rows of a table by the same rules:

* PUT replaces the row by the record's cells. DELETE removes the row. UPDATE applies its cells in their order, and
  creates a missing row if it puts a cell. If it only deletes cells, a missing row stays missing, and an existing row
  stays even without cells.
* The table keeps the ``max_versions`` greatest versions of a column, whatever the order of writing. A later write of an
  existing version replaces its value. Readers see the greatest version. If ``max_versions`` is lowered, readers
  immediately see no more than this number of versions. The table removes further versions when the column is changed.
* If the table has a time to live, a cell expires when its version is older than this time, and a row expires with its
  last cell. A row without cells expires when its last write is older than this time. No record reports an expiry, so
  each reader computes it.

``fold`` applies the same rules to whole columns. This module handles the rows for which whole columns would be wrong or
too slow. Tests compare the results of the two modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.rows.change_rows import (
    EPOCH,
    OLDER_VERSIONS,
    READ_AT,
    RESERVED,
    ROW_INDEX,
    SHARD,
    TIMESTAMP,
    UNFIT,
    VERSION,
    VERSIONS,
    added_types,
    columns_of_others,
    moved_beside,
)
from streamclient.destinations.rows.column_layout import arrow_type, version_number
from streamclient.destinations.rows.column_names import original_name, stored_names
from streamclient.destinations.rows.column_types import fits, shown, text_of, type_of, value_of
from streamclient.records import (
    ColumnOperation,
    ColumnType,
    ColumnValue,
    KeyValue,
    RecordType,
    SequenceInfo,
    StreamRecord,
)

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

OWN = (VERSION, VERSIONS, OLDER_VERSIONS, UNFIT, EPOCH, TIMESTAMP, ROW_INDEX, SHARD, READ_AT)
"""The columns that a mirror adds to the columns of its source table. A column is null if it does not apply to the row.

A cell has the version that ``_versions`` names for its column, which is greater than ``_version``. If ``_versions``
does not name the column, the cell has the version ``_version``. For a row without cells, ``_version`` is the time of
its last change, or of its copy. Epoch, timestamp and row index are the sequence of the row's last change, and ``SHARD``
is the shard of that change. All four are null in a copied row that no change has modified. ``_read_at`` is the time
when the row was read from the source table. It is null after a PUT or DELETE.
"""

CLOCKS_MARGIN_MICROS = 60_000_000
"""The largest expected difference between this machine's clock and the clocks of the service, in microseconds.

Each comparison of a local time with a time of the service allows for this difference. Such comparisons find the first
change to apply to a copy, the end of a stream's retention, the expiry of cells, and the end of a replication.
"""


@frozen
class TableRule:
    """The settings of a table that decide how changes modify its rows, as DescribeTable returns them."""

    key: tuple[str, ...]
    """The names of the key columns, in the order of the key."""
    max_versions: int = 1
    ttl_millis: int | None = None
    """The table's time to live in milliseconds; ``None`` keeps data forever."""
    declared: Mapping[str, ColumnType] = field(factory=dict)
    """The types of the key columns and of the attribute columns that the table declares, by name."""


@define
class RowCells:
    """The state of one row while changes are applied to it: its cells by column and version."""

    key: tuple[KeyValue, ...]
    exists: bool = False
    cells: dict[str, dict[int, ColumnValue]] = field(factory=dict)
    """The values of the row's cells, by column and version."""
    written_millis: int = 0
    """The time of the row's last write, in milliseconds since 1970. It matters only for a row without cells."""
    sequence: SequenceInfo | None = None
    shard: str = ""
    read_at_micros: int | None = None
    is_in_doubt: bool = False
    """Whether the row's content is unknown, so that the row must be read from the source table again. The reason is a
    change that deletes a single version, if the row may already have contained this change when the row was read. See
    law 3 in ``fold``."""

    def lacks(self, record: StreamRecord, shard: str) -> bool:
        """Return whether the row lacks the change ``record`` of ``shard``, so that the change must be applied."""
        return self.sequence is None or self.shard != shard or record.sequence_info > self.sequence

    def apply(self, record: StreamRecord, shard: str, rule: TableRule) -> None:
        """Apply the change ``record`` of ``shard`` to the row. If the row has this change already, do nothing."""
        if not self.lacks(record, shard):
            return
        millis = record.sequence_info.timestamp_micros // 1_000
        if rule.ttl_millis is not None:
            self.expire(millis - rule.ttl_millis)
        if record.record_type is not RecordType.UPDATE:
            self.cells, self.read_at_micros, self.is_in_doubt = {}, None, False
            self.exists = record.record_type is RecordType.PUT
        for cell in record.columns:
            self._apply_cell(cell, record, rule.max_versions)
        self.keep_newest(rule.max_versions, {cell.name for cell in record.columns})
        self.cells = {name: versions for name, versions in self.cells.items() if versions}
        self.sequence, self.shard, self.written_millis = record.sequence_info, shard, millis

    def _apply_cell(self, cell: Any, record: StreamRecord, max_versions: int) -> None:
        version = version_number(cell.timestamp_millis)
        versions = self.cells.setdefault(cell.name, {})
        if cell.operation is ColumnOperation.PUT:
            self.exists = True
            versions[version] = cell.value
            while len(versions) > max_versions:
                del versions[min(versions)]
        elif cell.operation is ColumnOperation.DELETE_ALL_VERSION:
            versions.clear()
        else:
            versions.pop(version, None)
            known_until = -1 if self.read_at_micros is None else self.read_at_micros + CLOCKS_MARGIN_MICROS
            self.is_in_doubt |= record.sequence_info.timestamp_micros <= known_until

    def keep_newest(self, count: int, columns: Iterable[str]) -> None:
        """Keep only the ``count`` greatest versions of each of ``columns``."""
        for name in columns:
            versions = self.cells.get(name, {})
            if len(versions) > count:
                self.cells[name] = dict(sorted(versions.items())[-count:])

    def expire(self, before_millis: int) -> None:
        """Remove cells whose version is older than ``before_millis``, and the row if no cell is left.

        A row that has no cells at the start is removed if its last write is older than ``before_millis``.
        """
        if not self.cells:
            self.exists &= self.written_millis >= before_millis
            return
        for versions in self.cells.values():
            for version in [old for old in versions if old < before_millis]:
                del versions[version]
        self.cells = {name: versions for name, versions in self.cells.items() if versions}
        self.exists &= bool(self.cells)


def own_types() -> dict[str, DataType]:
    """Return the Arrow type of each column in ``OWN``."""
    pa = pyarrow()
    return {name: added_types().get(name, pa.int64()) for name in OWN} | {READ_AT: pa.timestamp("us", tz="UTC")}


def cells_of(rows: Table, key: Sequence[str]) -> Iterator[RowCells]:
    """Yield each of ``rows``, rows of a mirror, as ``RowCells``; ``key`` has the key columns of the source table.

    Columns of other programs (``columns_of_others``) are left out.
    """
    pa, rows = pyarrow(), without_others(rows, key)
    names = {name: original_name(name) for name in rows.column_names if name not in RESERVED}
    columns = {name: rows.column(name).to_pylist() for name in names}
    own = {name: rows.column(name) for name in OWN}
    own |= {name: own[name].cast(pa.int64()) for name in (TIMESTAMP, READ_AT)}
    plain = {name: column.to_pylist() for name, column in own.items()}
    for place in range(rows.num_rows):
        values = {names[name]: listed[place] for name, listed in columns.items() if listed[place] is not None}
        yield _cells_of_row(values, {name: listed[place] for name, listed in plain.items()}, key)


def _cells_of_row(values: dict[str, Any], own: Mapping[str, Any], key: Sequence[str]) -> RowCells:
    values |= {name: value_of(held["type"], held["value"]) for name, held in own[UNFIT] or ()}
    found = RowCells(tuple(values.pop(name) for name in key), exists=True, read_at_micros=own[READ_AT])
    versions = dict(own[VERSIONS] or ())
    found.cells = {name: {versions.get(name, own[VERSION]): value} for name, value in values.items()}
    for cell in own[OLDER_VERSIONS] or ():
        found.cells.setdefault(cell["column"], {})[cell["version"]] = value_of(cell["type"], cell["value"])
    if own[EPOCH] is not None:
        found.sequence = SequenceInfo(own[EPOCH], own[TIMESTAMP], own[ROW_INDEX])
        found.shard = own[SHARD]
    found.written_millis = own[VERSION] or 0
    return found


def table_of(
    rows: Iterable[RowCells], key: Sequence[str], types: Mapping[str, ColumnType], names: Mapping[str, str]
) -> Table:
    """Return ``rows`` as a table with a mirror's columns; ``names`` has the stored name of each column in ``types``."""
    pa = pyarrow()
    there = [row for row in rows if row.exists]
    lines = [_Line.of(row, key, types) for row in there]
    arrays = {
        names[name]: pa.array([line.values.get(name) for line in lines], arrow_type(kind))
        for name, kind in types.items()
    }
    own = own_types()
    return pa.table(arrays | {name: pa.array([line.own[name] for line in lines], own[name]) for name in OWN})


def without_others(rows: Table, key: Sequence[str]) -> Table:
    """Return ``rows`` without the columns of other programs (``columns_of_others``). The columns of ``key`` stay."""
    return rows.drop_columns(sorted(name for name in columns_of_others(rows.schema) if original_name(name) not in key))


def beside_others(rows: Table, columns: Schema) -> Table:
    """Return ``rows`` for a table with ``columns``: without those whose names other programs have taken there.

    The values of these columns move into the map ``_unfit``.
    """
    taken = [name for name in rows.column_names if name in columns_of_others(columns)]
    if not taken:
        return rows
    return moved_beside(rows, {name: rows.column(name).to_pylist() for name in taken}).drop_columns(taken)


@frozen
class _Line:
    values: Mapping[str, ColumnValue | None]
    own: Mapping[str, Any]

    @classmethod
    def of(cls, row: RowCells, key: Sequence[str], types: Mapping[str, ColumnType]) -> _Line:
        newest = {name: max(versions) for name, versions in row.cells.items()}
        values: dict[str, ColumnValue] = dict(zip(key, row.key, strict=True))
        values |= {name: row.cells[name][version] for name, version in newest.items()}
        unfit = {name: _typed(value) for name, value in values.items() if not fits(value, types[name])}
        older = [
            {"column": name, "version": version, **_typed(value)}
            for name, versions in sorted(row.cells.items())
            for version, value in sorted(versions.items(), reverse=True)
            if version != newest[name]
        ]
        everything = [version for versions in row.cells.values() for version in versions]
        base = min(everything, default=row.written_millis)
        different = {name: version for name, version in sorted(newest.items()) if version != base}
        sequence = row.sequence
        own = {
            VERSION: base,
            VERSIONS: list(different.items()) or None,
            OLDER_VERSIONS: older or None,
            UNFIT: sorted(unfit.items()) or None,
            EPOCH: None if sequence is None else sequence.epoch,
            TIMESTAMP: None if sequence is None else sequence.timestamp_micros,
            ROW_INDEX: None if sequence is None else sequence.row_index,
            SHARD: None if sequence is None else row.shard,
            READ_AT: row.read_at_micros,
        }
        return cls({name: shown(value, types[name]) for name, value in values.items()}, own)


def _typed(value: ColumnValue) -> dict[str, str]:
    return {"type": type_of(value).value, "value": text_of(value)}


def expired(rows: Table, before_millis: int, rule: TableRule, types: Mapping[str, ColumnType]) -> Table:
    """Return ``rows``, rows of a mirror, without the cells and rows that are older than ``before_millis``.

    The result lacks the columns of other programs.
    """
    left = list(cells_of(rows, rule.key))
    for row in left:
        row.expire(before_millis)
    made = table_of(left, rule.key, types, stored_names(types, rows.column_names, RESERVED))
    return beside_others(made, rows.schema)
