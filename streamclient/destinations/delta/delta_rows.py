"""Rows of a Delta table that are found by their key and replaced, in one commit.

A merge first reads the keys of each file that may have one of the given keys, and then the whole rows of the files that
do have one. There are two ways to write the result. If every file has one of the keys, all files must be rewritten
anyway. The table is then overwritten with the remaining and the new rows. That costs half as much as delta-rs' MERGE,
which reads all rows a second time to join them. If some files have none of the keys, MERGE is used, because it leaves
those files alone. MERGE is also used if the table is too large for memory.

delta-rs accepts an overwrite after another writer has added rows that the overwriting writer has not seen. So all
commits of a keyed table share one Delta transaction (``KEYED``). If two commits begin at the same version, the second
is refused, and is made again from the newer rows.
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
"""The name of the Delta transaction that all commits of a keyed table share. The names of shards' transactions contain
a slash, so they differ from it."""

OVERWRITTEN_BYTES_MAX = 64 << 20
"""The largest total size, in bytes, of the files that are overwritten. Files are compressed, so these are a few hundred
MiB of rows in memory."""

_GONE, _PLACE = PASSING[:2]


@frozen
class FoundRows:
    """The rows of one version of a table that match given keys."""

    present: Table
    others: Table | None
    """All other rows of the table, if every file has one of the keys and the rows fit in memory; otherwise ``None``."""


@frozen
class RowFile:
    """A file of one version of a table."""

    path: str
    _fragment: Any
    _schema: Schema
    _size: int | None
    """The file's size in bytes according to the log; ``None`` if it need not be compared with the real size."""

    def table(self, columns: Sequence[str]) -> Table:
        """Return ``columns`` of the file's rows. The order of rows is the same on each call."""
        self._check_size()
        # Do not use pyarrow's threads: with them about half of all processes abort at exit.
        return self._fragment.to_table(schema=self._schema, columns=list(columns), use_threads=False)

    def tables(self, wanted: Any = None) -> Iterator[Table]:
        """Yield the file's rows in parts that fit in memory.

        With ``wanted``, yield only rows that satisfy this expression.
        """
        self._check_size()
        pa = pyarrow()
        for batch in self._fragment.to_batches(schema=self._schema, filter=wanted, use_threads=False):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def _check_size(self) -> None:
        """Compare the file's size with the size in the log.

        Other readers of Delta trust the log, and would not read the end of a longer file.
        """
        found = None if self._size is None else self._fragment.filesystem.get_file_info(self.path).size
        if found not in {None, self._size}:
            raise StreamClientException(
                f"{self.path} has {found} bytes, and {self._size} by the table's log: something else has replaced it"
            )


def row_files(handle: DeltaTable, wanted: Any = None) -> Iterator[RowFile]:
    """Yield the files of a table, except those whose bounds exclude rows that satisfy ``wanted``.

    Files of a local directory are read by pyarrow alone. Elsewhere delta-rs reads them for pyarrow, through Python, in
    threads of pyarrow. If the interpreter exits while such a thread closes a file, the process aborts, with all work
    done.
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
    """Find the rows with the keys ``keys``, and return them without the columns ``passing``.

    ``passing`` names the partition's column, if the table has one. A partitioned table is never overwritten.
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
    """Return an expression that excludes files without the keys ``keys`` by their bounds, so that they are not read.

    Only numbers are compared: the bounds that delta-rs gives for texts cannot be compared with texts.
    """
    pa, pc = pyarrow(), compute()
    parts = [
        pc.field(name).isin(pc.unique(keys.column(name))) for name in key if pa.types.is_integer(keys.column(name).type)
    ]
    return reduce(and_, parts) if parts else None


def _has_key(rows: Table, keys: Table, key: Sequence[str]) -> Array:
    """Return whether each row has one of the keys."""
    pa, pc = pyarrow(), compute()
    columns = [pc.is_in(rows.column(name), value_set=pc.unique(keys.column(name))) for name in key]
    mask = reduce(pc.and_, columns).combine_chunks()
    if len(key) == 1 or not mask.true_count:
        return mask
    # Each part of these keys is part of some key; a join tells whether all parts belong to the same key.
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
    """Store ``rows`` in place of rows with equal keys; remove the rows of ``present`` whose keys are not in ``rows``.

    If there is nothing to store or remove, no commit is made.
    """
    gone = _absent_keys(present.select(key), rows.select(key))
    if not rows.num_rows and not gone.num_rows:
        return
    pa, deltalake = pyarrow(), load("deltalake", "delta")
    marks = [pa.repeat(pa.scalar(is_gone), table.num_rows) for is_gone, table in ((False, rows), (True, gone))]
    source = pa.concat_tables(
        [table.append_column(_GONE, mark) for table, mark in zip((rows, gone), marks, strict=True)],
        promote_options="default",
    )
    values = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
    gone_mark = f"s.{_quoted(_GONE)}"
    merger = handle.merge(
        source,
        " AND ".join([*(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key), *_bounds(source, key)]),
        source_alias="s",
        target_alias="t",
        merge_schema=not _column_names(handle).issuperset(rows.column_names),
        commit_properties=properties,
        post_commithook_properties=deltalake.PostCommitHookProperties(cleanup_expired_logs=False),
    )
    merger.when_matched_delete(gone_mark)
    merger.when_matched_update(values, f"NOT {gone_mark}")
    merger.when_not_matched_insert(values, f"NOT {gone_mark}")
    merger.execute()


def _bounds(source: Table, key: Sequence[str]) -> Iterator[str]:
    """Yield further conditions that all rows with the keys of ``source`` satisfy.

    With them, other files are skipped unread.
    """
    pa, pc = pyarrow(), compute()
    for name in key:
        if pa.types.is_integer(source.column(name).type):
            ends = pc.min_max(source.column(name))
            yield f"t.{_quoted(name)} >= {ends['min']} AND t.{_quoted(name)} <= {ends['max']}"


def _absent_keys(keys: Table, rows: Table) -> Table:
    """Return the keys that are not in any row."""
    if not keys.num_rows:
        return keys
    return keys.join(rows, keys.column_names, join_type="left anti", use_threads=False)


def _column_names(handle: DeltaTable) -> set[str]:
    return {field.name for field in handle.schema().fields}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
