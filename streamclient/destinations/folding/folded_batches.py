"""The changes of one commit, for all of its shards, by column."""

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
    """The changes of one shard in a commit."""

    shard: str
    records: Sequence[StreamRecord]
    """The records, in the order of their positions in the stream."""
    changes: ChangeColumns
    """The changes by column."""

    @classmethod
    def of(cls, shard: str, records: Sequence[StreamRecord]) -> ShardChanges:
        """Make the changes of one shard from its records."""
        ordered = in_order(records)
        return cls(shard, ordered, ChangeColumns.of_records(ordered))


@define(slots=False)
class ChangeBatch:
    """The changes of one commit, of one shard or several, in the order in which they are applied."""

    changes: ChangeColumns
    records: Sequence[StreamRecord]
    """The changes as records, in the same order. They are used only for rows that are folded cell by cell."""
    shards: Array
    """The shard of each change."""

    @classmethod
    def of(cls, parts: Sequence[ShardChanges]) -> ChangeBatch:
        """Join the changes of several shards. Parents must come before their children."""
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
        """Whether there are no changes."""
        return self.changes.count == 0

    @cached_property
    def key_columns(self) -> dict[str, Array]:
        """The keys, by name."""
        return {name: cells.values for (kind, name, _), cells in self.changes.values.items() if kind == "key"}

    def keys(self, names: Mapping[str, str]) -> Table:
        """Return each key once, under its stored names."""
        pa = pyarrow()
        whole = pa.table({names[name]: values for name, values in self.key_columns.items()})
        return whole.group_by(whole.column_names, use_threads=False).aggregate([])


def _joined(parts: Sequence[ChangeColumns]) -> ChangeColumns:
    """Concatenate the changes of several shards."""
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
