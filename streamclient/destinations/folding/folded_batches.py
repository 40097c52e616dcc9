"""The changes of one commit, as columns: first for each shard alone, then joined for all shards of the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.column_layout import Cells, ChangeColumns, in_order, integers
from streamclient.records import StreamRecord

if TYPE_CHECKING:
    from pyarrow import Array, Table


@frozen
class ShardChanges:
    """The changes of one shard in a commit, both as records and as columns."""

    shard: str
    records: Sequence[StreamRecord]
    """The changes as records, in the order of the stream."""
    changes: ChangeColumns
    """The same changes as columns."""

    @classmethod
    def of(cls, shard: str, records: Sequence[StreamRecord]) -> ShardChanges:
        """Sort ``records``, the changes of ``shard`` in any order, and turn them into columns."""
        ordered = in_order(records)
        return cls(shard, ordered, ChangeColumns.of_records(ordered))


@define(slots=False)
class ChangeBatch:
    """The changes of one commit, of one or several shards, in the order in which the fold applies them."""

    changes: ChangeColumns
    records: Sequence[StreamRecord]
    """The changes as records, in the order of ``changes``. Only rows that are folded cell by cell need the records."""
    shards: Array
    """The shard id of each change, in the order of ``changes``."""

    @classmethod
    def of(cls, parts: Sequence[ShardChanges]) -> ChangeBatch:
        """Join the changes of several shards. Parent shards must come before their children."""
        pa = pyarrow()
        there = [part for part in parts if part.records]
        shards = [pa.repeat(pa.scalar(part.shard, pa.string()), len(part.records)) for part in there]
        return cls(
            _joined([part.changes for part in there]) if there else ChangeColumns.of_records(()),
            [record for part in there for record in part.records],
            pa.concat_arrays(shards) if there else pa.array([], pa.string()),
        )

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no changes."""
        return self.changes.count == 0

    @cached_property
    def key_columns(self) -> dict[str, Array]:
        """The values of each key column, one for each change, by column name."""
        return {name: cells.values for (kind, name, _), cells in self.changes.values.items() if kind == "key"}

    def keys(self, names: Mapping[str, str]) -> Table:
        """Return each key of the batch once, in columns; ``names`` has the stored name of each key column."""
        pa = pyarrow()
        whole = pa.table({names[name]: values for name, values in self.key_columns.items()})
        return whole.group_by(whole.column_names, use_threads=False).aggregate([])


def _joined(parts: Sequence[ChangeColumns]) -> ChangeColumns:
    """Concatenate the changes of several shards. The place of each change becomes its index in the result."""
    if len(parts) == 1:
        return parts[0]
    pa, pc = pyarrow(), compute()
    firsts = [sum(part.count for part in parts[:number]) for number in range(len(parts))]

    def joined_cells(name: str) -> dict[Any, Cells]:
        found: dict[Any, list[Cells]] = {}
        for first, part in zip(firsts, parts, strict=True):
            for column, cells in getattr(part, name).items():
                found.setdefault(column, []).append(Cells(pc.add(cells.places, first), cells.values))
        return {
            column: Cells(
                pa.concat_arrays([piece.places for piece in cells]), pa.concat_arrays([piece.values for piece in cells])
            )
            for column, cells in found.items()
        }

    deleted: dict[str, list[Array]] = {}
    lists: dict[tuple[str, str], list[Any]] = {}
    for first, part in zip(firsts, parts, strict=True):
        for name, places in part.deleted.items():
            deleted.setdefault(name, []).append(pc.add(places, first))
        for column, cells in part.lists.items():
            lists.setdefault(column, []).extend((first + place, version, text) for place, version, text in cells)
    return ChangeColumns(
        count=sum(part.count for part in parts),
        key=parts[0].key,
        operations=pa.concat_arrays([part.operations for part in parts]),
        sequences=tuple(pa.concat_arrays(list(each)) for each in zip(*(part.sequences for part in parts), strict=True)),
        values=joined_cells("values"),
        versions=joined_cells("versions"),
        deleted={name: pa.concat_arrays(places) for name, places in deleted.items()},
        lists=lists,
        originals=integers(()),
    )
