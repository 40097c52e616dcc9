"""The search for rows of a Delta table by their keys, and the replacement of these rows in one commit.

To merge rows, the destination first reads the key columns of each file that may have one of the given keys. It then
reads the whole rows of each file that has such a key. There are two ways to write the result. If every file has one of
the keys, the whole table is overwritten with the unchanged and the new rows. This costs half as much as delta-rs'
MERGE, which reads all rows a second time. Otherwise MERGE is used, because it does not rewrite files without the keys.
MERGE is also used if the table is partitioned or too large for memory.

delta-rs does not refuse an overwrite if another writer has added rows meanwhile, and these rows would be lost. So all
commits of a keyed table share one Delta transaction (``KEYED``). If two commits begin at the same version, delta-rs
refuses the second one, and the writer makes the second commit again from the newer rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from attrs import frozen

from streamclient.base.extras import load
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.change_rows import PASSING
from streamclient.errors import StreamClientException

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyarrow import Array, Schema, Table

KEYED = "keyed"
"""The name of the Delta transaction that all commits of a keyed table share. It is never the name of a shard's
transaction, which contains a slash."""

OVERWRITTEN_BYTES_MAX = 64 << 20
"""The largest total size, in bytes, of the files of a table that is overwritten. The files are compressed. In memory,
their rows take a few hundred MiB."""

_GONE, _PLACE = PASSING[:2]


@frozen
class FoundRows:
    """The result of ``find_rows``: the rows with the given keys in one version of a table (``present``)."""

    present: Table
    others: Table | None
    """The table's other rows, if the table is to be overwritten; ``None`` if delta-rs' MERGE is to be used."""


@frozen
class RowFile:
    """A data file of one version of a table."""

    path: str
    _fragment: Any
    _schema: Schema
    _size: int | None
    """The file's size in bytes by the table's log; ``None`` if the size is not checked."""

    def table(self, columns: Sequence[str]) -> Table:
        """Return the file's rows with only ``columns``. Each call returns the rows in the same order."""
        self._check_size()
        # If pyarrow uses threads here, about half of all processes abort at exit.
        return self._fragment.to_table(schema=self._schema, columns=list(columns), use_threads=False)

    def tables(self, wanted: Any = None) -> Iterator[Table]:
        """Yield the file's rows, or only rows that satisfy ``wanted``, in parts that fit in memory."""
        self._check_size()
        pa = pyarrow()
        for batch in self._fragment.to_batches(schema=self._schema, filter=wanted, use_threads=False):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def _check_size(self) -> None:
        """Raise an error if the file's real size differs from the size in the log.

        Other readers of Delta trust the log, and would not read the end of a longer file.
        """
        found = None if self._size is None else self._fragment.filesystem.get_file_info(self.path).size
        if found not in {None, self._size}:
            raise StreamClientException(
                f"{self.path} has {found} bytes, and {self._size} by the table's log: another program has replaced it"
            )


def row_files(handle: DeltaTable, wanted: Any = None) -> Iterator[RowFile]:
    """Yield the files of a table that, by the column bounds in the log, may have rows that satisfy ``wanted``.

    For a local table, pyarrow reads the files without delta-rs, and sizes are checked. For other tables, threads of
    pyarrow call delta-rs through Python. If the interpreter exits while such a thread closes a file, the process
    aborts, although its work is done.
    """
    address, filesystem, sizes = urlsplit(handle.table_uri), None, {}
    if address.scheme == "file":
        fs = load("pyarrow.fs", "delta")
        filesystem = fs.SubTreeFileSystem(unquote(address.path), fs.LocalFileSystem())
        files = pyarrow().table(handle.get_add_actions())
        names = map(unquote, files.column("path").to_pylist())
        sizes = dict(zip(names, files.column("size_bytes").to_pylist(), strict=True))
    dataset = handle.to_pyarrow_dataset(filesystem=filesystem)
    for fragment in dataset.get_fragments(filter=wanted):
        yield RowFile(fragment.path, fragment, dataset.schema, sizes.get(fragment.path))


def find_rows(handle: DeltaTable, keys: Table, key: Sequence[str], passing: Sequence[str] = ()) -> FoundRows:
    """Find the rows with one of ``keys`` in the table; ``key`` names the key columns.

    ``passing`` names the columns to leave out of the result: the partition column, if the table is partitioned. A
    partitioned table is never overwritten, so ``FoundRows.others`` is then ``None``.
    """
    pa = pyarrow()
    schema = pa.schema(handle.schema().to_arrow())
    names = [name for name in schema.names if name not in passing]
    empty = schema.empty_table().select(names)
    if not keys.num_rows:
        return FoundRows(empty, None)
    touched = []
    for file in row_files(handle, _near(keys, key)):
        mask = _has_key(file.table(key), keys, key)
        if mask.true_count:
            touched.append((file, mask))
    sizes = pa.table(handle.get_add_actions()).column("size_bytes").to_pylist()
    is_overwritten = not passing and len(touched) == len(sizes) and sum(sizes) <= OVERWRITTEN_BYTES_MAX
    present, others = [empty], [empty]
    for file, mask in touched:
        rows = file.table(names)
        present.append(rows.filter(mask))
        if is_overwritten:
            others.append(rows.filter(compute().invert(mask)))
    return FoundRows(pa.concat_tables(present), pa.concat_tables(others) if is_overwritten else None)


def _near(keys: Table, key: Sequence[str]) -> Any:
    """Return a filter that skips a file if its column bounds show that it has none of ``keys``.

    The filter uses only integer key columns, because texts cannot be compared with the bounds that delta-rs gives for
    them. The result is ``None`` if no key column is an integer.
    """
    pa, pc = pyarrow(), compute()
    parts = [
        pc.field(name).isin(pc.unique(keys.column(name))) for name in key if pa.types.is_integer(keys.column(name).type)
    ]
    return reduce(and_, parts) if parts else None


def _has_key(rows: Table, keys: Table, key: Sequence[str]) -> Array:
    """Return an array that says for each of ``rows`` whether the row has one of ``keys``."""
    pa, pc = pyarrow(), compute()
    columns = [pc.is_in(rows.column(name), value_set=pc.unique(keys.column(name))) for name in key]
    mask = reduce(pc.and_, columns).combine_chunks()
    if len(key) == 1 or not mask.true_count:
        return mask
    # In each row that the mask selects, every key column has a value of some key, but perhaps of different keys. The
    # join keeps the rows whose values belong to one key.
    places = pa.array(range(rows.num_rows), pa.int64())
    candidates = rows.append_column(_PLACE, places).filter(mask)
    matching = candidates.join(keys.select(key), list(key), join_type="left semi", use_threads=False)
    return pc.is_in(places, value_set=matching.column(_PLACE).combine_chunks())


def overwrite(handle: DeltaTable, rows: Table, properties: CommitProperties) -> None:
    """Replace all rows of the table by ``rows``."""
    _write(handle, rows, "overwrite", properties)


def append(handle: DeltaTable, rows: Table, properties: CommitProperties) -> None:
    """Append ``rows`` to the table."""
    _write(handle, rows, "append", properties)


def _write(handle: DeltaTable, rows: Table, mode: Any, properties: CommitProperties) -> None:
    deltalake = load("deltalake", "delta")
    deltalake.write_deltalake(
        handle,
        rows,
        mode=mode,
        schema_mode=None if _column_names(handle) == set(rows.column_names) else "merge",
        commit_properties=properties,
        post_commithook_properties=deltalake.PostCommitHookProperties(cleanup_expired_logs=False),
    )


def merge(handle: DeltaTable, rows: Table, present: Table, key: Sequence[str], properties: CommitProperties) -> None:
    """Store ``rows`` in place of all rows with the same keys; remove rows of ``present`` whose keys ``rows`` lacks.

    If no row is to be stored or removed, delta-rs makes no commit.
    """
    source = _merge_source(rows, present, key)
    if not source.num_rows:
        return
    deltalake = load("deltalake", "delta")
    values = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
    gone_mark = f"s.{_quoted(_GONE)}"
    conditions = [*(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key), *_bounds(source, key)]
    if source.column(_GONE).null_count:
        conditions.append(f"{gone_mark} IS NOT NULL")
    merger = handle.merge(
        source,
        " AND ".join(conditions),
        source_alias="s",
        target_alias="t",
        merge_schema=not _column_names(handle).issuperset(rows.column_names),
        commit_properties=properties,
        post_commithook_properties=deltalake.PostCommitHookProperties(cleanup_expired_logs=False),
    )
    merger.when_matched_delete(gone_mark)
    merger.when_matched_update(values, f"NOT {gone_mark}")
    merger.when_not_matched_insert(values, f"{gone_mark} IS NOT TRUE")
    merger.execute()


def _merge_source(rows: Table, present: Table, key: Sequence[str]) -> Table:
    """Return the lines of a MERGE that stores ``rows`` in place of ``present``. The column ``_GONE`` marks each line.

    A line with false replaces the row with its key, or is inserted. A line with true removes all rows with its key. A
    line with null is always inserted. For a key that ``present`` has several times, MERGE would update each of these
    rows. So such a key gets two lines: one removes the rows, and the other one inserts the new row.
    """
    pa, pc = pyarrow(), compute()
    keys, doubled = _keys_of(present, key)
    is_doubled = _has_key(rows, doubled, key) if doubled.num_rows else pa.repeat(pa.scalar(False), rows.num_rows)
    removed = _absent_keys(keys, rows.filter(pc.invert(is_doubled)).select(key))
    marks = pc.if_else(is_doubled, pa.scalar(None, pa.bool_()), False), pa.repeat(pa.scalar(True), removed.num_rows)
    return pa.concat_tables(
        [table.append_column(_GONE, mark) for table, mark in zip((rows, removed), marks, strict=True)],
        promote_options="default",
    )


def _keys_of(rows: Table, key: Sequence[str]) -> tuple[Table, Table]:
    """Return each key of ``rows`` once, and the keys that several rows have."""
    # The columns get passing names, because a key column may have the name of the count.
    names = [f"{_PLACE}{number}" for number in range(len(key))]
    counts = rows.select(key).rename_columns(names).group_by(names, use_threads=False).aggregate([(names[0], "count")])
    is_doubled = compute().greater(counts.column(f"{names[0]}_count"), 1)
    keys = counts.select(names).rename_columns(list(key))
    return keys, keys.filter(is_doubled)


def _bounds(source: Table, key: Sequence[str]) -> Iterator[str]:
    """Yield an SQL condition for each integer key column: the range of its values in ``source``.

    By these conditions, delta-rs can skip files without reading them.
    """
    pa, pc = pyarrow(), compute()
    for name in key:
        if pa.types.is_integer(source.column(name).type):
            ends = pc.min_max(source.column(name))
            yield f"t.{_quoted(name)} >= {ends['min']} AND t.{_quoted(name)} <= {ends['max']}"


def _absent_keys(keys: Table, rows: Table) -> Table:
    """Return those of ``keys`` that no row of ``rows`` has."""
    if not keys.num_rows:
        return keys
    return keys.join(rows, keys.column_names, join_type="left anti", use_threads=False)


def _column_names(handle: DeltaTable) -> set[str]:
    return {field.name for field in handle.schema().fields}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
