"""Records turned into columns, and the growing schema they are fitted to. Pure Python: Arrow comes afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from streamclient.errors import ConfigurationError, UnfitValueError
from streamclient.model import ColumnType, TableDefinition
from streamclient.records import ColumnOperation, RecordColumn, StreamRecord
from streamclient.spark.config import UnfitValue
from streamclient.spark.context import FrameColumn, RejectedRecord, UnfitReport
from streamclient.spark.types import column_type, fits, type_of_value, wider

SYSTEM_NAMES = (
    "operation",
    "sequence",
    "epoch",
    "timestamp",
    "row_index",
    "shard_id",
    "versions",
    "deleted_columns",
    "deleted_versions",
    "older_versions",
    "original_columns",
    "unfit",
)
"""Columns that are added to those of the table, each behind the prefix."""

DIRECTORY_NAMES = ("shard", "start", "part")
"""Directory keys of the lake, which Spark's own readers show as columns, each behind the prefix."""

Cell = tuple[str, Any]


def newest_cells(columns: Sequence[RecordColumn]) -> dict[str, RecordColumn]:
    """The put cell that shows, by column: the one with the newest version, or the first of equals."""
    newest = {cell.name: cell for cell in columns if cell.operation is ColumnOperation.PUT}
    if len(newest) == len(columns):
        return newest
    newest.clear()
    for cell in columns:
        if cell.operation is ColumnOperation.PUT:
            known = newest.get(cell.name)
            if known is None or (cell.timestamp_millis or 0) > (known.timestamp_millis or 0):
                newest[cell.name] = cell
    return newest


@define
class RawColumns:
    """The values of some records of one shard, by column, before their types are settled.

    Lists are as long as the last record that has the column; what is missing behind is null.
    """

    shard_id: str
    records: Sequence[StreamRecord]
    primary_key: tuple[str, ...] = ()
    values: dict[str, list[Any]] = field(factory=dict)
    types: dict[str, set[type]] = field(factory=dict)
    cells: list[dict[str, RecordColumn]] = field(factory=list)
    """Per record, the put cells that are shown."""

    @classmethod
    def collect(cls, shard_id: str, records: Sequence[StreamRecord]) -> RawColumns:
        """Turn records into columns; one pass."""
        raw = cls(shard_id, records)
        for index, record in enumerate(records):
            shown = newest_cells(record.columns)
            raw.cells.append(shown)
            raw._put(index, record.primary_key)
            raw._put(index, [(name, cell.value) for name, cell in shown.items()])
        raw.types = {name: set(map(type, values)) - {type(None)} for name, values in raw.values.items()}
        raw.primary_key = _one_key(shard_id, records)
        return raw

    def _put(self, index: int, pairs: Sequence[Cell]) -> None:
        # Called for each record, so kept to a few operations per value.
        columns = self.values
        for name, value in pairs:
            column = columns.get(name)
            if column is None:
                column = columns[name] = []
            missing = index - len(column)
            if missing:
                column.extend([None] * missing)
            column.append(value)


def _one_key(shard_id: str, records: Sequence[StreamRecord]) -> tuple[str, ...]:
    keys = {tuple(name for name, _ in record.primary_key) for record in records}
    if len(keys) > 1:
        raise ConfigurationError(f"shard {shard_id} holds records of several tables, with keys {sorted(keys)}")
    return keys.pop() if keys else ()


@frozen
class Fitted:
    """What is left of a shard's records after fitting, and what was said about the others."""

    raw: RawColumns
    rejected: tuple[RejectedRecord, ...] = ()
    reports: tuple[UnfitReport, ...] = ()


@frozen
class _Misfit:
    index: int
    column: str
    given: str
    expected: str


@define
class GrowingSchema:
    """The table's columns as known so far. Used by one thread.

    Columns only appear and widen, never vanish, so that frames of one process have schemas that grow. With a schema
    given by the user, a column outside it is unfit too.
    """

    policy: UnfitValue
    prefix: str = "_"
    is_case_sensitive: bool = True
    is_fixed: bool = False
    columns: dict[str, FrameColumn] = field(factory=dict)

    @classmethod
    def make(
        cls,
        policy: UnfitValue,
        prefix: str,
        *,
        is_case_sensitive: bool,
        schema: Mapping[str, ColumnType] | None,
        table: TableDefinition | None,
    ) -> GrowingSchema:
        """Start from what the user gave, and what the table declares."""
        made = cls(policy, prefix, is_case_sensitive, is_fixed=schema is not None)
        keys = dict(table.primary_key) if table else {}
        declared = dict(table.defined_columns) if table and schema is None else {}
        for name, kind in {**keys, **declared, **(schema or {})}.items():
            made._refuse_clash(name)
            made.columns[name] = FrameColumn(name, kind, is_key=name in keys)
        return made

    def fit(self, raw: RawColumns) -> Fitted:
        """Settle the types of a shard's columns: grow, widen, divert or fail, as configured.

        Raises:
            UnfitValueError: a value does not fit and may be neither widened nor diverted.
        """
        self._know_keys(raw)
        if self._is_easy(raw):
            self._adopt(raw)
            return Fitted(raw)
        if self.policy is UnfitValue.WIDEN:
            return self._widen(raw)
        misfits = self._misfits(raw)
        if not misfits:
            self._adopt(raw)
            return Fitted(raw)
        if self.policy is UnfitValue.FAIL:
            raise UnfitValueError(str(self._report(raw, misfits[0], "the shard stops")))
        return self._divert(raw, misfits)

    def frame_columns(self) -> tuple[FrameColumn, ...]:
        """Keys in key order, then attributes in the order in which they became known."""
        return tuple(self.columns.values())

    def note_wide_integers(self, name: str) -> None:
        """Remember that an INTEGER column holds values that doubles do not."""
        self.columns[name] = evolve(self.columns[name], has_wide_integers=True)

    def clash(self, name: str) -> str | None:
        """The name that this one cannot stand beside in a frame, or ``None``."""
        reserved = [self.prefix + own for own in SYSTEM_NAMES + DIRECTORY_NAMES]
        if self.is_case_sensitive:
            return name if name in reserved else None
        folded = name.casefold()
        others = [known for known in self.columns if known != name]
        return next((other for other in reserved + others if other.casefold() == folded), None)

    def _refuse_clash(self, name: str) -> None:
        other = self.clash(name)
        if other is not None:
            raise UnfitValueError(self._clash_text(name, other))

    def _clash_text(self, name: str, other: str) -> str:
        if name != other:
            return (
                f"columns {name!r} and {other!r} differ only in case, which this Spark session does not tell apart: "
                "set spark.sql.caseSensitive to true in it"
            )
        return f"column {name!r} of the table has the name of an added column: choose another SparkConfig.prefix"

    def _know_keys(self, raw: RawColumns) -> None:
        """Put the key columns in front, in key order, once the first record shows which they are."""
        if tuple(name for name, column in self.columns.items() if column.is_key) == raw.primary_key:
            return
        keys: dict[str, FrameColumn] = {}
        for name in raw.primary_key:
            if name not in self.columns:
                self._refuse_clash(name)
            first = next(value for value in raw.values[name] if value is not None)
            known = self.columns.pop(name, None) or FrameColumn(name, type_of_value(first))
            keys[name] = evolve(known, is_key=True)
        self.columns = {**keys, **self.columns}

    def _is_easy(self, raw: RawColumns) -> bool:
        """Whether each column has one type, which is the known one, or is new without a clash."""
        for name, types in raw.types.items():
            known = self.columns.get(name)
            if len(types) != 1 or (known is None and (self.is_fixed or self.clash(name) is not None)):
                return False
            if known is not None and known.type is not column_type(next(iter(types))):
                return False
        return self._new_names_are_distinct(raw)

    def _new_names_are_distinct(self, raw: RawColumns) -> bool:
        new = [name for name in raw.types if name not in self.columns]
        return self.is_case_sensitive or len({name.casefold() for name in new}) == len(new)

    def _adopt(self, raw: RawColumns) -> None:
        """Add the new columns, by name, so that their order does not depend on the order of records."""
        for name in sorted(raw.types):
            if name not in self.columns:
                first = next(value for value in raw.values[name] if value is not None)
                self.columns[name] = FrameColumn(name, type_of_value(first))

    def _widen(self, raw: RawColumns) -> Fitted:
        reports = []
        for name in sorted(raw.types):
            before = self.columns.get(name)
            if before is None:
                self._refuse_clash(name)
            self.columns[name] = self._widened(raw, name)
            reports += self._widening(raw, name, before)
        return Fitted(raw, reports=tuple(reports))

    def _widened(self, raw: RawColumns, name: str) -> FrameColumn:
        values = [value for value in raw.values[name] if value is not None]
        column = self.columns.get(name) or FrameColumn(name, type_of_value(values[0]))
        wide = column.has_wide_integers or any(
            type_of_value(value) is ColumnType.INTEGER and not fits(value, ColumnType.DOUBLE) for value in values
        )
        kind = column.type
        for python_type in sorted(raw.types[name], key=str):
            kind = wider(kind, column_type(python_type), has_wide_integers=wide)
        return evolve(column, type=kind, has_wide_integers=wide)

    def _widening(self, raw: RawColumns, name: str, before: FrameColumn | None) -> list[UnfitReport]:
        """At most one report: on the first value that the column did not hold before."""
        values = [(index, value) for index, value in enumerate(raw.values[name]) if value is not None]
        undeclared = before is None and self.is_fixed
        expected = before.type if before else type_of_value(values[0][1])
        unfit = next(((index, value) for index, value in values if undeclared or not fits(value, expected)), None)
        if unfit is None:
            return []
        label = "not in the given schema" if undeclared else expected.value
        misfit = _Misfit(unfit[0], name, type_of_value(unfit[1]).value, label)
        return [self._report(raw, misfit, f"the column is now {self.columns[name].type.value}")]

    def _misfits(self, raw: RawColumns) -> list[_Misfit]:
        """Each record with a value that does not fit. The first value of a new column gives it its type."""
        found: list[_Misfit] = []
        expected = {name: column.type for name, column in self.columns.items()}
        folded = {name.casefold(): name for name in expected}
        for index in range(len(raw.records)):
            misfit = self._misfit(raw, index, expected, folded)
            if misfit is not None:
                found.append(misfit)
        return found

    def _misfit(
        self, raw: RawColumns, index: int, expected: dict[str, ColumnType], folded: dict[str, str]
    ) -> _Misfit | None:
        new: dict[str, ColumnType] = {}
        for name, value in _values_of(raw, index):
            given = type_of_value(value)
            if name in expected:
                if not fits(value, expected[name]):
                    return _Misfit(index, name, given.value, expected[name].value)
                continue
            if self.is_fixed:
                return _Misfit(index, name, given.value, "not in the given schema")
            other = self.clash(name) or self._folded_clash(name, folded, new)
            if other is not None:
                return _Misfit(index, name, given.value, f"refused ({self._clash_text(name, other)})")
            new[name] = given
        expected.update(new)
        folded.update({name.casefold(): name for name in new})
        return None

    def _folded_clash(self, name: str, folded: Mapping[str, str], new: Mapping[str, ColumnType]) -> str | None:
        if self.is_case_sensitive:
            return None
        also = {one.casefold(): one for one in new}
        return folded.get(name.casefold()) or also.get(name.casefold())

    def _divert(self, raw: RawColumns, misfits: Sequence[_Misfit]) -> Fitted:
        reports = tuple(self._report(raw, misfit, "the record is diverted") for misfit in misfits)
        rejected = tuple(
            RejectedRecord(raw.shard_id, raw.records[misfit.index], str(report))
            for misfit, report in zip(misfits, reports, strict=True)
        )
        bad = {misfit.index for misfit in misfits}
        kept = RawColumns.collect(raw.shard_id, [one for index, one in enumerate(raw.records) if index not in bad])
        self._adopt(kept)
        return Fitted(kept, rejected, reports)

    def _report(self, raw: RawColumns, misfit: _Misfit, outcome: str) -> UnfitReport:
        sequence = raw.records[misfit.index].sequence_info
        return UnfitReport(raw.shard_id, misfit.column, sequence, misfit.given, misfit.expected, outcome)


def _values_of(raw: RawColumns, index: int) -> list[Cell]:
    shown: list[Cell] = [(name, cell.value) for name, cell in raw.cells[index].items()]
    return [*raw.records[index].primary_key, *shown]
