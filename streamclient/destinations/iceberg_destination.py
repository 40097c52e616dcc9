"""An Iceberg table as a destination, through pyiceberg.

One change of the table's metadata stores rows and commits. The new snapshot's summary has the commits, and a table
property for each shard has the shard's last commit. If another writer has replaced the metadata meanwhile, the catalog
refuses the change. pyiceberg would then apply the refused change on top of the other writer's change. So a property of
the table switches off pyiceberg's retries, and this module reads the table again after every error. pyiceberg also
deletes the files of a refused change, so this module believes a refusal only after it has read the table.

Each call of the catalog has a time limit (``catalog_calls``). A timed-out commit may still take effect, so this module
looks for that commit, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from streamclient.base import checks
from streamclient.base.extras import load, require_extra
from streamclient.base.reasons import counted
from streamclient.destinations.catalog_calls import ANSWER_SECONDS, TimedCatalog
from streamclient.destinations.commit import Commit, LogEntry, are_among, check_commits, gone, is_stored
from streamclient.destinations.destination_packages import pyarrow, raises_own, reading_own
from streamclient.destinations.rows.arrow_schemas import check_fit, check_table_types
from streamclient.destinations.rows.change_rows import SHARD
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
)

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, DataType, Field, Schema
    from pyarrow import Table as ArrowTable
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

ENTRY = "streamclient"
"""The key of this package's log entry in a snapshot's summary."""

LAST = "streamclient.last."
"""The prefix in the names of table properties. Each of these properties has the last commit of one shard. The
properties stay when snapshots expire."""

PROPERTIES = {
    "commit.retry.num-retries": "0",
    # Each commit writes a new metadata file. The next two properties delete old metadata files.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}

_PAUSE_SECONDS = 0.05

_REFUSALS_MAX = 2
"""The number of refusals after which a ``commit`` fails: it fails when pyiceberg refuses its rows for the second time.
After the first refusal, the table is read again, because another writer may have added a column."""

_catalog = checks.Check("a catalog of pyiceberg", lambda value: hasattr(type(value), "load_table"))
_identifier = checks.Check(
    "a namespace and a name with a dot between them, such as 'lake.orders'",
    lambda value: isinstance(value, str) and "." in value and all(value.split(".")),
)


@checks.explains_names
class IcebergDestination:
    """An Iceberg table that any number of processes write exactly once; see ``Destination``.

    Each commit writes all metadata of the table again, with all snapshots. So expire snapshots regularly
    (``table.maintenance.expire_snapshots()``). pyiceberg does not compact the table.

    Args:
        catalog: a pyiceberg catalog. It decides which of two concurrent writers succeeds.
        identifier: namespace and name of the table, for example ``"lake.orders"``. The namespace must exist.
        application: the name of the fleet that writes. Use a different name for each status table.
        answer_seconds: the seconds after which ``commit`` stops trying. It is also the time limit of each call of the
            catalog. Keep it well below the duration of a lease.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self, catalog: Catalog, identifier: str, *, application: str = "default", answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        require_extra("iceberg", "IcebergDestination")
        _catalog.require("catalog", catalog)
        _identifier.require("identifier", identifier)
        checks.identifier.require("application", application)
        checks.seconds.require("answer_seconds", answer_seconds)
        self._catalog = TimedCatalog(catalog, answer_seconds)
        self._identifier = identifier
        self._application = application
        self._answer_seconds = answer_seconds
        self._has_seen = False
        """Whether this handle has seen the table. A table that disappears later is not created again."""

    @property
    def application(self) -> str:
        """The name of the fleet whose commits this handle reads and writes."""
        return self._application

    @property
    def place(self) -> str:
        """The name of the table, for messages."""
        return self._identifier

    @raises_own
    def probe(self) -> None:
        """Check the properties of the table, if it exists; see ``Destination.probe``."""
        self._load()

    @raises_own
    def columns(self) -> Schema | None:
        """Return the columns of the stored rows, or ``None``; see ``Destination.columns``."""
        table = self._load()
        return None if table is None or not table.schema().fields else _schema_of(table)

    @raises_own
    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commit of each of ``shards``; see ``Destination.last_commits``."""
        table = self._load()
        return dict.fromkeys(shards) if table is None else self._lasts(table, shards)

    def commit(self, rows: ArrowTable, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step; see ``Destination.commit``."""
        check_commits(commits, self._application)
        check_table_types(rows.schema)
        rows = _widened(rows)
        _refuse_null_lists(rows)
        deadline = time.monotonic() + self._answer_seconds
        is_repeated, refusals = False, 0
        while True:
            try:
                table = self._load()
                if table is None:
                    is_stored({}, commits)  # wrong commits must not create a table
                    table = self._create(rows)
                if self._is_stored(table, commits, is_repeated=is_repeated):
                    return
                is_repeated = True
                self._append(table, rows, commits)
                return
            except StreamClientError:
                raise
            except Exception as error:  # after any error, the commit may have been stored
                refusals += isinstance(error, _RowsAreRefusedError)
                if refusals == _REFUSALS_MAX:
                    raise StreamClientException(
                        f"{self._identifier} does not take these rows: {error.__cause__!r}"
                    ) from error.__cause__
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    if is_repeated and self._is_found(commits):
                        return
                    raise DependencyException(
                        f"{self._identifier} did not accept a commit of {counted(len(commits), 'shard')} within "
                        f"{self._answer_seconds:g} s; the last error was {error!r}",
                        kind=ErrorKind.AMBIGUOUS,
                    ) from error
                time.sleep(_PAUSE_SECONDS)

    @raises_own
    def log(self) -> Iterator[LogEntry]:
        """Return the entries of the log, oldest first; see ``Destination.log``."""
        table = self._load()
        if table is None:
            return
        snapshots = _unbroken(table)
        # If older snapshots have expired, their last commits are in the table's properties. In a table of Iceberg's
        # format 1, snapshots have no sequence numbers, so it is unknown whether older ones have expired.
        if snapshots and snapshots[0].sequence_number != 1:
            lasts = [text for name, text in table.properties.items() if name.startswith(LAST)]
            yield LogEntry.from_json("properties", f'{{"carried":[{",".join(lasts)}]}}')
        ancestors = load("pyiceberg.table.snapshots", "iceberg").ancestors_of
        present = {snapshot.snapshot_id for snapshot in ancestors(table.current_snapshot(), table.metadata)}
        for snapshot in snapshots:
            for entry in _entries_of(snapshot):
                yield entry if snapshot.snapshot_id in present else _set_back(entry)

    @raises_own
    def fenced_shards(self) -> list[str]:
        """Return the shards whose earlier owners are refused; see ``Fences.fenced_shards``."""
        table, prefix = self._load(), self._property("")
        names = [] if table is None else [name for name in table.properties if name.startswith(prefix)]
        return [name.removeprefix(prefix) for name in names]

    @raises_own
    def rows(self, shards: Sequence[str] | None = None) -> Iterator[ArrowTable]:
        """Return the stored rows of ``shards``; see ``Destination.rows``."""
        table = self._load()
        if table is None:
            return
        expressions = load("pyiceberg.expressions", "iceberg")
        wanted = expressions.AlwaysTrue() if shards is None else expressions.In(SHARD, set(shards))
        schema = _schema_of(table)
        for batch in table.scan(row_filter=wanted).to_arrow_batch_reader():
            if batch.num_rows:
                yield pyarrow().Table.from_batches([batch]).select(schema.names).cast(schema)

    @raises_own
    def files(self) -> Iterator[tuple[str, Callable[[], Iterator[ArrowTable]]]]:
        """Return each file with a function that reads its rows; see ``RowFiles.files``."""
        table = self._load()
        if table is not None:
            for task in table.scan().plan_files():
                path = task.file.file_path
                yield path, reading_own(f"{self.place}, file {path},", partial(_tables_of, table, task))

    def close(self) -> None:
        """Do nothing, because the catalog and its connections belong to the caller."""

    # --- inside ---------------------------------------------------------------------------------------------------

    def _load(self) -> Table | None:
        errors = load("pyiceberg.exceptions", "iceberg")
        try:
            return self._checked(self._catalog.load_table(self._identifier))
        except errors.NoSuchTableError as error:
            if self._has_seen:
                raise gone(f"the table {self._identifier}") from error
            return None

    def _checked(self, table: Table) -> Table:
        is_fit = table.properties.get("commit.retry.num-retries") == "0"
        # A table that another program made with this name does not count as seen. A user may drop it, so that this
        # handle can create its own table.
        self._has_seen = self._has_seen or is_fit or any(name.startswith(LAST) for name in table.properties)
        if not is_fit:
            raise ConfigurationError(
                f"{self._identifier} needs the property commit.retry.num-retries=0: otherwise pyiceberg applies a "
                "refused commit on top of the other writer's commit, and an earlier owner is not refused"
            )
        return table

    def _create(self, rows: ArrowTable) -> Table:
        """Create the table for ``rows``. Return this table, or the table that another writer has created meanwhile."""
        errors = load("pyiceberg.exceptions", "iceberg")
        try:
            schema = check_table_types(rows.schema)
            return self._checked(self._catalog.create_table(self._identifier, schema=schema, properties=PROPERTIES))
        except errors.TableAlreadyExistsError:
            return self._checked(self._catalog.load_table(self._identifier))
        except errors.NoSuchNamespaceError as error:
            raise ConfigurationError(f"the namespace of {self._identifier} does not exist: create it first") from error

    def _property(self, shard: str) -> str:
        return f"{LAST}{self._application}/{shard}"

    def _lasts(self, table: Table, shards: Sequence[str]) -> dict[str, Commit | None]:
        found = {shard: table.properties.get(self._property(shard)) for shard in shards}
        return {shard: None if text is None else Commit.from_json(text) for shard, text in found.items()}

    def _is_stored(self, table: Table, commits: Sequence[Commit], *, is_repeated: bool) -> bool:
        """Return whether ``commits`` are stored, by ``commit.is_stored`` and, if ``is_repeated``, by a search.

        The first try may have stored the commits although its response was lost, and a successor may have added
        commits since. So a repeated try searches all log entries for ``commits``.
        """
        try:
            return is_stored(self._lasts(table, [commit.shard for commit in commits]), commits)
        except StreamClientError:
            if is_repeated and are_among(commits, _entries(table)):
                return True
            raise

    def _is_found(self, commits: Sequence[Commit]) -> bool:
        """Return whether the last try has stored ``commits`` although it failed, for example with a time-out."""
        try:
            table = self._load()
            return table is not None and self._is_stored(table, commits, is_repeated=True)
        except StreamClientError:
            raise
        except Exception:  # an error of any library: the outcome of the commit stays unknown
            return False

    def _append(self, table: Table, rows: ArrowTable, commits: Sequence[Commit]) -> None:
        send, sent = table._do_commit, []

        def sending(updates: Sequence[Any], requirements: Any) -> None:
            sent.append(updates)
            _commit_or_find(table, send, updates, requirements)

        # This patches only one ``Table`` object, which is not used after this commit.
        setattr(table, "_do_commit", sending)  # noqa: B010
        try:
            self._transact(table, rows, commits)
        except _refusals() as error:
            if sent or isinstance(error, OSError | StreamClientError):
                raise
            raise _RowsAreRefusedError from error

    def _transact(self, table: Table, rows: ArrowTable, commits: Sequence[Commit]) -> None:
        schema = _schema_of(table)
        fitted = check_fit(rows, schema, self._identifier)
        _refuse_required(table, fitted.schema)
        new = [field for field in fitted.schema if field.name not in schema.names]
        _refuse_renamed(table, [field.name for field in new])
        with table.transaction() as step:
            if new:
                with step.update_schema() as update:
                    update.union_by_name(pyarrow().schema(new))
            step.append(fitted, snapshot_properties={ENTRY: LogEntry("", tuple(commits)).to_json()})
            step.set_properties({self._property(commit.shard): commit.to_json() for commit in commits})


class _RowsAreRefusedError(Exception):
    """pyiceberg has refused the rows before it called the catalog. It would refuse the same rows again."""


def _refusals() -> tuple[type[Exception], ...]:
    errors = load("pyiceberg.exceptions", "iceberg")
    own = (errors.ValidationError, errors.ResolveError, errors.NotInstalledError)
    return (ValueError, TypeError, LookupError, AttributeError, RuntimeError, *own)


def _commit_or_find(table: Table, send: Callable[..., None], updates: Sequence[Any], requirements: Any) -> None:
    """Send a commit to the catalog by ``send``. After a refusal, find out whether the commit is stored nevertheless.

    If the HTTP library repeats a request whose response was lost, the commit conflicts with itself. pyiceberg takes
    every conflict for a failed commit, and would delete the new files, although the present snapshot uses them.

    Raises:
        CommitFailedException: the commit is not stored.
        CommitStateUnknownException: the outcome is unknown, so no file may be deleted.
    """
    errors = load("pyiceberg.exceptions", "iceberg")
    try:
        send(updates=updates, requirements=requirements)
    except errors.CommitFailedException as refusal:
        try:
            table.refresh()
        except Exception as error:
            raise errors.CommitStateUnknownException(f"{refusal}, and the table cannot be read: {error}") from error
        added = [update.snapshot.snapshot_id for update in updates if getattr(update, "snapshot", None) is not None]
        if not added or any(table.snapshot_by_id(snapshot_id) is None for snapshot_id in added):
            raise


def _tables_of(table: Table, task: Any) -> Iterator[ArrowTable]:
    """Read one file of the table and yield its rows. ``task`` is pyiceberg's plan to scan this file."""
    reading, expressions = load("pyiceberg.io.pyarrow", "iceberg"), load("pyiceberg.expressions", "iceberg")
    schema = _schema_of(table)
    scan = reading.ArrowScan(table.metadata, table.io, table.schema(), expressions.AlwaysTrue())
    yield scan.to_table([task]).select(schema.names).cast(schema)


def _snapshots(table: Table) -> list[Snapshot]:
    """Return all snapshots that the table still has, oldest first."""
    return sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)


def _unbroken(table: Table) -> list[Snapshot]:
    """Return the snapshots that follow the last expired snapshot, oldest first.

    The result lacks older snapshots that a tag or branch keeps, because snapshots after them have expired.
    """
    found: list[Snapshot] = []
    last = 0  # A table's first snapshot has the sequence number 1.
    for snapshot in _snapshots(table):
        number = snapshot.sequence_number or 0
        if number > last + 1:
            found.clear()
        found.append(snapshot)
        last = number
    return found


def _entries(table: Table) -> Iterator[LogEntry]:
    for snapshot in _snapshots(table):
        yield from _entries_of(snapshot)


def _entries_of(snapshot: Snapshot) -> Iterator[LogEntry]:
    """Yield the log entry in a snapshot's summary. A snapshot of another program has no entry."""
    text = snapshot.summary.additional_properties.get(ENTRY) if snapshot.summary else None
    if text is not None:
        yield LogEntry.from_json(str(snapshot.snapshot_id), text)


def _set_back(entry: LogEntry) -> LogEntry:
    """Return ``entry`` with ``damage``, because the table was rolled back to a state before the entry's snapshot."""
    commits = "; ".join(map(str, entry.commits))
    text = f"the table was set back to a state before snapshot {entry.place}, and lacks its commits: {commits}"
    return evolve(entry, damage=entry.damage or text)


def _refuse_renamed(table: Table, names: Iterable[str]) -> None:
    """Refuse to add a column that another program has renamed, because then two columns would have its values.

    A column that another program has dropped may be added again.
    """
    present = {field.field_id: field.name for field in table.schema().fields}
    earlier = {(field.name, field.field_id) for schema in table.schemas().values() for field in schema.fields}
    for name, number in sorted(earlier):
        if name in names and number in present:
            raise ConfigurationError(
                f"the column {name!r} of {'.'.join(table.name())} is called {present[number]!r} now: give it its name "
                f"again, by `with table.update_schema() as update: update.rename_column({present[number]!r}, {name!r})`"
            )


def _refuse_required(table: Table, rows: Schema) -> None:
    """Refuse rows that lack a required column. pyiceberg alone would print its refusal to standard output."""
    for path, is_there in _required(table.schema().as_arrow(), rows, ()):
        name = ".".join(path)
        raise ConfigurationError(
            f"{'.'.join(table.name())} requires a value in each row for {name!r}, and rows "
            f"{'may be without one' if is_there else 'do not have this column'}: make it optional, by "
            f"`with table.update_schema() as update: update.make_column_optional({name!r})`"
        )


def _required(table: Iterable[Field], rows: Iterable[Field], path: tuple[str, ...]) -> Iterator[tuple[Any, bool]]:
    """Yield each field that is required in ``table``, but is missing in ``rows`` or may be null there.

    A result is the path of the field, and whether ``rows`` have the field. If so, its values may be null.
    """
    pa = pyarrow()
    given = {field.name: field for field in rows}
    for wanted in table:
        found = given.get(wanted.name)
        if (found is None or found.nullable) and not wanted.nullable:
            yield (*path, wanted.name), found is not None
        if found is not None and pa.types.is_nested(wanted.type):
            yield from _required(_fields(wanted.type), _fields(found.type), (*path, wanted.name))


def _fields(kind: DataType) -> list[Field]:
    """Return the fields within a nested type, with Iceberg's names. Map keys, which are never null, are left out."""
    pa = pyarrow()
    if pa.types.is_map(kind):
        return [kind.item_field.with_name("value")]
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field.with_name("element")]


def _widened(rows: ArrowTable) -> ArrowTable:
    """Widen integer columns of 8 and 16 bits to 32 bits, the smallest integer type of Iceberg."""
    schema = pyarrow().schema([field.with_type(_wider(field.type)) for field in rows.schema])
    return rows if schema == rows.schema else rows.cast(schema)


def _wider(kind: DataType) -> DataType:
    pa = pyarrow()
    if pa.types.is_map(kind):
        return pa.map_(_wider_field(kind.key_field), _wider_field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_wider_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_wider_field(field) for field in kind])
    return pa.int32() if kind in {pa.int8(), pa.int16()} else kind


def _wider_field(field: Field) -> Field:
    return field.with_type(_wider(field.type))


def _refuse_null_lists(rows: ArrowTable) -> None:
    """Refuse rows with null lists or null maps, also within a struct, because pyiceberg may store them as empty."""
    for field in rows.schema:
        if _has_null_lists(rows.column(field.name)):
            raise ConfigurationError(
                f"column {field.name!r} of type {field.type} has nulls, which would be stored as empty values: make "
                "them empty yourself, or mark them in another column"
            )


def _has_null_lists(column: ChunkedArray) -> bool:
    pa = pyarrow()
    if pa.types.is_struct(column.type):
        return any(_has_null_lists(field) for field in column.flatten())
    return bool(pa.types.is_nested(column.type) and column.null_count)


def _schema_of(table: Table) -> Schema:
    pa = pyarrow()
    found: Any = table.schema().as_arrow()
    return pa.schema([(field.name, _usual(field.type)) for field in found])


def _usual(kind: DataType) -> DataType:
    """Replace Arrow's large types in ``kind`` (text, bytes, lists), which pyiceberg uses, by the ordinary types."""
    pa = pyarrow()
    if pa.types.is_map(kind):
        return pa.map_(_usual(kind.key_type), _usual(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_usual(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _usual(field.type)) for field in kind])
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
