"""A Delta Lake table as a destination, through delta-rs and without a JVM.

One Delta commit stores the rows and commits of all shards. For each shard it has a ``txn`` action of Delta's protocol,
with ``Commit.order`` as the version. The metadata of the Delta commit has each shard's ``Commit``. delta-rs refuses a
Delta commit if another writer has written a ``txn`` action of the same shard since the handle was loaded. So this
module loads a handle, compares the last commits, and commits with this handle: together these steps are a
compare-and-set. After any error the steps begin again, because a commit may be stored although the store's response was
lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.base.extras import load, require_extra
from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, LogEntry, check_commits, gone, is_stored
from streamclient.destinations.delta.delta_log import ENTRY, DeltaLog, digests_up_to, read_entries, transaction_of
from streamclient.destinations.delta.delta_rows import KEYED, append, find_rows, merge, overwrite, row_files
from streamclient.destinations.delta.object_stores import (
    PROPERTIES,
    Location,
    check_location,
    check_partition,
    check_table,
    open_table,
)
from streamclient.destinations.delta.partitions import Day, Key, Partition
from streamclient.destinations.destination_packages import compute, pyarrow, raises_own, reading_own
from streamclient.destinations.probe import probe_store
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
    from deltalake import CommitProperties, DeltaTable
    from pyarrow import Schema, Table

_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""The pauses before the repeated tries of a commit, in seconds. The last pause repeats until ``answer_seconds`` are
over. The second try follows immediately, because usually another writer has just changed the table."""

_REFUSALS_MAX = 2
"""The number of refusals after which a ``commit`` fails: it fails when delta-rs refuses its rows for the second time.
After the first refusal, the table is loaded again, because another writer may have added a column."""

_VIEWS_MAX = 10
"""The largest number of tries to load the table and read its log. A try fails if a clean-up removes log entries after
the table was loaded."""

_FROZEN_SECONDS = 60.0
"""The seconds, by the wall clock, after which a commit counts as slow. The writer reports the success of a slow commit
only after it has found the commit in the log. During a slow commit, a clean-up may remove log entries. The writer may
then create an entry with the number of a removed entry, and such an entry is not part of the table. This cannot happen
during a shorter commit, because no entry younger than a day is removed (``log_days``)."""


@checks.explains_names
class DeltaDestination:
    """A Delta table that any number of processes write exactly once; see ``Destination``.

    Args:
        url: a directory, or an address beginning with ``s3://``, ``oss://``, ``abfss://``, ``gs://`` or ``hdfs://``.
        application: the name of the fleet that writes. Use a different name for each status table.
        storage_options: options for delta-rs. Give all options that the store needs, because for a missing option
            delta-rs reads the environment variable with the option's name.
        partition_by: the partition of the table into directories, for example ``Day()`` or ``Key("customer")``. It
            cannot change after the table is created.
        answer_seconds: the seconds after which ``commit`` stops trying. It is also the time limit of each request. Keep
            it well below the duration of a lease.
        checkpoint_interval: the number of commits between two Delta checkpoints, which summarise the log. It applies
            when the table is created. On object stores, a smaller number makes each commit cheaper.
        log_days: the number of days for which log entries are kept. It applies when the table is created.
            ``maintenance.clean`` removes older entries.

    Raises:
        ConfigurationError: the address or an option would lose commits.
    """

    def __init__(
        self,
        url: str,
        *,
        application: str = "default",
        storage_options: Mapping[str, str] | None = None,
        partition_by: Partition | None = None,
        answer_seconds: float = 15.0,
        checkpoint_interval: int = 20,
        log_days: int = 30,
    ) -> None:
        require_extra("delta", "DeltaDestination")
        load("deltalake", "delta")  # a broken installation fails here
        checks.path.require("url", url)
        checks.identifier.require("application", application)
        checks.optional(_options).require("storage_options", storage_options)
        checks.optional(_partition).require("partition_by", partition_by)
        checks.seconds.require("answer_seconds", answer_seconds)
        checks.positive.require("checkpoint_interval", checkpoint_interval)
        checks.positive.require("log_days", log_days)
        self.location: Location = check_location(str(url), storage_options, answer_seconds)
        self._application = application
        self._partition = partition_by
        self._answer_seconds = answer_seconds
        self._created_with = {
            **PROPERTIES,
            "delta.checkpointInterval": str(checkpoint_interval),
            "delta.logRetentionDuration": f"interval {log_days} days",
        }
        self._log = DeltaLog(self.location, application)
        self._handle: DeltaTable | None = None
        self._key: tuple[str, ...] = ()
        self._is_probed = False
        self._has_seen = False
        """Whether this handle has seen the table. A table that disappears later is not created again."""
        self._identity: object = None
        """The identity of the log directory when the handle was loaded; see ``Location.log_identity``."""

    @property
    def application(self) -> str:
        """The name of the fleet whose commits this handle reads and writes."""
        return self._application

    @property
    def place(self) -> str:
        """The address of the table, for messages."""
        return self.location.url

    @raises_own
    def probe(self) -> None:
        """Check the store, and the table if the table exists; see ``Destination.probe``."""
        if not self._is_probed:
            probe_store(self.location, self._answer_seconds)
            if (handle := self._load()) is not None:
                check_partition(handle, self._partition)
            self._is_probed = True

    @raises_own
    def columns(self) -> Schema | None:
        """Return the table's columns except the partition column; ``None`` if the table does not exist yet."""
        handle = self._load()
        if handle is None:
            return None
        own = {self._partition.column} if self._partition else set()
        pa = pyarrow()
        return pa.schema([field for field in pa.schema(handle.schema().to_arrow()) if field.name not in own])

    @raises_own
    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commit of each of ``shards``; see ``Destination.last_commits``."""
        return self._view(shards)[1]

    @raises_own
    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step; see ``Destination.commit``."""
        self._store(
            commits, lambda: rows, lambda handle, commits: self._append(handle, self._fitted(rows, handle), commits)
        )

    def key_by(self, columns: Sequence[str]) -> None:
        """Set the key columns of the rows; see ``MergingDestination.key_by``."""
        self._key = tuple(columns)

    @raises_own
    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace rows by their keys, and store commits; see ``MergingDestination.merge``.

        The call rewrites every file that has a row with one of the keys.
        """
        self._store(commits, lambda: fold(keys.slice(0, 0)), partial(self._replace, keys, fold))

    @raises_own
    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """Return the rows whose ``column`` is below ``bound``; see ``MergingDestination.rows_below``.

        Most files without such rows are not read.
        """
        yield from self._filtered(compute().field(column) < bound)

    def _store(
        self,
        commits: Sequence[Commit],
        first_rows: Callable[[], Table],
        write: Callable[[DeltaTable, Sequence[Commit]], None],
    ) -> None:
        """Try ``write`` until ``commits`` are stored or refused. A new table gets the columns of ``first_rows()``."""
        check_commits(commits, self._application)
        self.probe()
        deadline = time.monotonic() + self._answer_seconds
        error: Exception | None = None
        refusals, first_seen = 0, -1
        for pause in _pauses():
            if error is not None and time.monotonic() + pause >= deadline:
                break
            if error is not None:
                time.sleep(pause)
            # The wall clock is used, because the monotonic clock stops while the machine is suspended.
            began = time.time()
            try:
                handle, lasts = self._view([commit.shard for commit in commits])
                if handle is None:
                    is_stored(lasts, commits)  # wrong commits must not create a table
                    self._create(first_rows())
                    continue
                check_partition(handle, self._partition)
                first_seen = handle.version() if first_seen < 0 else first_seen
                if self._is_stored(handle, lasts, commits, first_seen):
                    return
                write(handle, commits)
                if abs(time.time() - began) < _FROZEN_SECONDS:
                    return
                self._forget_handle()
                error = None
            except StreamClientError:
                raise
            except Exception as raised:  # after any error, the commit may have been stored
                self._forget_handle()
                error = raised
                refusals += isinstance(raised, _refusals())
                if refusals == _REFUSALS_MAX:
                    break
        self._conclude(commits, error, first_seen, is_refused=refusals == _REFUSALS_MAX)

    @raises_own
    def log(self) -> Iterator[LogEntry]:
        """Return the entries of the log, oldest first; see ``Destination.log``."""
        entries: list[LogEntry] = []
        seen: tuple[int, list[str]] | None = None
        for _ in range(_VIEWS_MAX):
            handle = self._load()
            if handle is None:
                return
            version = handle.version()
            first = self._log.first_version(version)
            entries = list(self._log.entries(version, first))
            damages = [entry.damage for entry in entries if entry.damage]
            # If entries are missing, a clean-up may have removed them during the reading, and a later entry carries
            # their last commits. If the same entries are missing in a second reading, they are lost.
            if (first, damages) in ((self._log.first_version(version), []), seen):
                break
            seen = (first, damages)
        yield from entries

    @raises_own
    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """Return the stored rows of ``shards``; see ``Destination.rows``."""
        yield from self._filtered(None if shards is None else compute().field(SHARD).isin(list(shards)))

    @raises_own
    def files(self) -> Iterator[tuple[str, Callable[[], Iterator[Table]]]]:
        """Return each file with a function that reads its rows; see ``RowFiles.files``."""
        handle = self._load()
        if handle is not None:
            for file in row_files(handle):
                yield file.path, reading_own(f"{self.place}, file {file.path},", file.tables)

    def _filtered(self, wanted: Any) -> Iterator[Table]:
        handle = self._load()
        if handle is not None:
            for file in row_files(handle, wanted):
                yield from file.tables(wanted)

    def close(self) -> None:
        """Release connections; see ``Destination.close``."""
        self._forget_handle()

    def another(self) -> DeltaDestination:
        """Return another handle over the same table; see ``MergingDestination.another``."""
        made = copy(self)
        made._forget_handle()
        return made

    @raises_own
    def handle(self) -> DeltaTable:
        """Return delta-rs' ``DeltaTable`` of the table's present version, for reading and maintenance.

        Raises:
            StreamClientException: the table has not been created yet.
        """
        handle = self._load(is_awaited=True)
        if handle is None:
            raise StreamClientException(
                f"there is no table at {self.location.url}: it has no commit yet, or it is out of sight"
            )
        return handle

    # --- inside -----------------------------------------------------------------------------------------------------

    def _load(self, *, is_awaited: bool = False) -> DeltaTable | None:
        """Return delta-rs' handle of the table's present version; ``None`` if the table does not exist yet.

        The handle is kept, and the next call updates it. An update takes a third of the time of loading a new handle.
        With ``is_awaited``, wait about a second for a table of which only the log's directory exists.
        """
        # If the directory of the log was moved away, delta-rs finds no newer version, and would continue with the
        # version in the handle.
        if self._handle is not None and self.location.log_identity() != self._identity:
            self._forget_handle()
        if self._handle is not None:
            try:
                self._handle.update_incremental()
            except Exception:
                self._forget_handle()  # the table is loaded below; a lasting error is raised there
        if self._handle is None:
            self._identity = self.location.log_identity()
            self._handle = _open(self.location, is_awaited=is_awaited)
        if self._handle is not None:
            self._has_seen = True
            check_table(self._handle)  # another program may have changed the table's properties
        elif self._has_seen:
            raise gone(f"the table at {self.location.url}")
        return self._handle

    def _view(self, shards: Sequence[str]) -> tuple[DeltaTable | None, dict[str, Commit | None]]:
        """Return the table at its present version, and the last commits of ``shards`` in that version.

        The log may disagree with the table for a while. For example, a clean-up may have removed entries after the
        table was loaded. Their last commits are then repeated in an entry of a later version. So after an error, table
        and log are read again. An error that occurs twice at the same version is raised.
        """
        missing_at = -1
        for tries_left in reversed(range(_VIEWS_MAX)):
            handle = self._load()
            if handle is None:
                break
            try:
                return handle, self._log.last_commits(handle, shards)
            except (StreamClientException, load("deltalake.exceptions", "delta").DeltaError):
                self._forget_handle()
                if not tries_left or handle.version() == missing_at:
                    raise
                missing_at = handle.version()
        return None, dict.fromkeys(shards)

    def _forget_handle(self) -> None:
        self._handle = None
        self._log = DeltaLog(self.location, self._application)

    def _create(self, rows: Table) -> None:
        """Create the table for ``rows``. If another writer has created the table meanwhile, use that table."""
        schema = check_table_types(self._divided(rows).schema)
        try:
            load("deltalake", "delta").DeltaTable.create(
                self.location.url,
                schema=schema,
                mode="error",
                partition_by=[self._partition.column] if self._partition else None,
                configuration=self._created_with,
                storage_options=self.location.options,
            )
        except Exception:
            if self._load() is None:
                raise
        self.handle()  # this marks the table as seen

    def _divided(self, rows: Table) -> Table:
        if self._partition is None:
            return rows
        column = self._partition.column
        if column in rows.column_names:
            raise ConfigurationError(f"rows must not have the column {column!r}: the destination adds it")
        return rows.append_column(column, self._partition.values(rows))

    def _fitted(self, rows: Table, handle: DeltaTable) -> Table:
        """Return the rows with the table's types, or raise an error. delta-rs alone would silently store 2.5 as 2."""
        pa = pyarrow()
        return check_fit(self._divided(rows), pa.schema(handle.schema().to_arrow()), self.location.url)

    def _append(self, handle: DeltaTable, rows: Table, commits: Sequence[Commit]) -> None:
        append(handle, rows, self._properties(handle, commits))
        self._log.note(handle.version(), commits)

    def _replace(
        self, keys: Table, fold: Callable[[Table], Table], handle: DeltaTable, commits: Sequence[Commit]
    ) -> None:
        """Replace the rows with ``keys`` by the result of ``fold``, and store the commits.

        ``fold`` gets the rows of the version that ``handle`` has. If the table has a later version, delta-rs refuses
        the commit.
        """
        found = find_rows(handle, keys, self._key, [self._partition.column] if self._partition else [])
        rows = self._fitted(fold(found.present), handle)
        properties, version = self._properties(handle, commits), handle.version()
        if found.others is not None:
            rows = pyarrow().concat_tables([found.others, rows], promote_options="default")
            overwrite(handle, rows, properties)
        else:
            merge(handle, rows, found.present, self._key, properties)
        if handle.version() == version:
            # A merge that changes no row makes no Delta commit, so ``commits`` must be stored separately.
            self._append(handle, rows.slice(0, 0), commits)
        else:
            self._log.note(handle.version(), commits)

    def _properties(self, handle: DeltaTable, commits: Sequence[Commit]) -> CommitProperties:
        deltalake = load("deltalake", "delta")
        # Never set ``last_updated``, because Delta forgets transactions with an old time.
        transactions = [
            deltalake.Transaction(transaction_of(commit.application, commit.shard), commit.order) for commit in commits
        ]
        if self._key:
            transactions.append(deltalake.Transaction(KEYED, handle.version() + 1))
        entry = LogEntry("", tuple(commits)).to_json()
        properties: CommitProperties = deltalake.CommitProperties(
            custom_metadata={ENTRY: entry}, app_transactions=transactions
        )
        return properties

    def _is_stored(
        self, handle: DeltaTable, lasts: Mapping[str, Commit | None], commits: Sequence[Commit], first_seen: int
    ) -> bool:
        """Return whether ``commits`` are stored, by ``commit.is_stored`` or by a search of the newer log entries.

        An earlier try may have stored the commits although its response was lost, and a successor may have added
        commits since. The search covers the entries after ``first_seen``, the table's version before the first try.
        """
        try:
            return is_stored(lasts, commits)
        except StreamClientError:
            since = read_entries(self.location, range(first_seen + 1, handle.version() + 1)).values()
            known = digests_up_to([last for last in lasts.values() if last], [entry for entry in since if entry])
            if all(commit.digest in known for commit in commits):
                return True
            raise

    def _conclude(
        self, commits: Sequence[Commit], error: Exception | None, first_seen: int, *, is_refused: bool
    ) -> None:
        """After the last try, raise an error that says why ``commits`` are not stored. If they are, do nothing.

        ``is_refused`` says that the table has refused the rows. Without it, the error has the kind AMBIGUOUS, because
        the outcome is unknown.
        """
        try:
            handle, lasts = self._view([commit.shard for commit in commits])
            if handle is not None and self._is_stored(handle, lasts, commits, max(first_seen, 0)):
                return
        except StreamClientError:
            raise
        except Exception as raised:
            error, is_refused = raised, False
        if is_refused:
            raise StreamClientException(f"{self.location.url} does not take these rows: {error!r}") from error
        raise DependencyException(
            f"{self.location.url} did not accept a commit of {counted(len(commits), 'shard')} within "
            f"{self._answer_seconds:g} s; the last error was {error!r}",
            kind=ErrorKind.AMBIGUOUS,
        ) from error


def _refusals() -> tuple[type[Exception], ...]:
    """Return the types of errors by which delta-rs refuses rows before it writes.

    Another try raises the same error, unless another writer has changed the table meanwhile.
    """
    errors = load("deltalake.exceptions", "delta")
    return (errors.SchemaMismatchError, errors.DeltaProtocolError, TypeError, ValueError)


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]


_partition = checks.Check("a Day or a Key", lambda value: isinstance(value, Day | Key))
_options = checks.Check(
    "options as a dictionary of texts",
    lambda value: isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair),
    hides=True,
)


def _open(location: Location, *, is_awaited: bool) -> DeltaTable | None:
    errors = load("deltalake.exceptions", "delta")
    try:
        return open_table(location, is_awaited=is_awaited)
    except errors.TableNotFoundError:
        return None
    except errors.DeltaError:
        if location.scheme == "file" and not os.path.exists(location.path):
            return None  # the directory was removed after it was checked
        raise
