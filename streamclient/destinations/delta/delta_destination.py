"""Delta Lake as a destination, through delta-rs: no JVM, one commit for all shards, exactly once.

Each commit of a shard is a transaction in Delta's sense (``txn`` of the protocol, with ``Commit.order`` as its version)
and an entry in the commit's metadata, both in the same log entry as the rows. delta-rs refuses a commit if another
writer has written one of its transactions since the handle was loaded. So to load, to compare and to commit on one
handle is an exact compare-and-set. After an error the commit may still be stored, because the answer of a store may be
lost. So after every error this module loads and compares again.
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
"""Seconds before a further try. The last pause is repeated until ``answer_seconds`` are over. The second try follows
immediately, because most refusals mean that another writer was quicker."""

_REFUSALS_MAX = 2
"""The number of refusals that end the tries. The first refusal may only mean that the handle is out of date, because
another writer has added a column."""

_VIEWS_MAX = 10
"""The largest number of successive views that may fail because a clean-up came between loading the table and reading
its log."""

_FROZEN_SECONDS = 60.0
"""If a commit took longer than this, by the wall clock, the writer looks for the commit before it reports success.
Meanwhile a clean-up may have removed entries of the log. A position of the log is then free again, and an entry that is
created there is not part of the table. The limit is safe, because no entry younger than a day is removed
(``log_days``). For such a slow commit the look costs little."""


@checks.explains_names
class DeltaDestination:
    """A Delta table that any number of processes write exactly once; see ``Destination``.

    Args:
        url: a directory, or an address beginning with ``s3://``, ``oss://``, ``abfss://``, ``gs://`` or ``hdfs://``.
        application: the fleet that writes; one per status table.
        storage_options: as delta-rs takes them. Give all that the store needs here: delta-rs adds variables of the
            environment that have the same names.
        partition_by: how the table is partitioned into directories; ``Day()`` or ``Key("customer")``. Fixed at
            creation.
        answer_seconds: seconds for which a commit is retried. Each request may take as long, also in the last try.
            Keep it well below the lease's duration.
        checkpoint_interval: commits between two summaries of the log, for a table that is created; on object stores
            fewer make each commit cheaper.
        log_days: how long entries of the log are kept, for a table that is created; ``maintenance.clean`` removes them.

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
        load("deltalake", "delta")  # a broken installation should show now, too
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
        """Whether this handle has seen the table. If so, the handle never creates the table again."""
        self._identity: object = None
        """The identity of the log directory from which the handle was loaded; see ``Location.log_identity``."""

    @property
    def application(self) -> str:
        """The fleet whose commits this handle reads and writes."""
        return self._application

    @property
    def place(self) -> str:
        """The address of the table, for messages."""
        return self.location.url

    @raises_own
    def probe(self) -> None:
        """Check the store and, if it exists, the table; see ``Destination.probe``."""
        if not self._is_probed:
            probe_store(self.location, self._answer_seconds)
            if (handle := self._load()) is not None:
                check_partition(handle, self._partition)
            self._is_probed = True

    @raises_own
    def columns(self) -> Schema | None:
        """Return the columns, except the partition's; ``None`` while the table does not exist."""
        handle = self._load()
        if handle is None:
            return None
        own = {self._partition.column} if self._partition else set()
        pa = pyarrow()
        return pa.schema([field for field in pa.schema(handle.schema().to_arrow()) if field.name not in own])

    @raises_own
    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """See ``Destination.last_commits``."""
        return self._view(shards)[1]

    @raises_own
    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """See ``Destination.commit``."""
        self._store(
            commits, lambda: rows, lambda handle, commits: self._append(handle, self._fitted(rows, handle), commits)
        )

    def key_by(self, columns: Sequence[str]) -> None:
        """See ``MergingDestination.key_by``."""
        self._key = tuple(columns)

    @raises_own
    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """See ``MergingDestination``. The call rewrites every file that holds one of the keys."""
        self._store(commits, lambda: fold(keys.slice(0, 0)), partial(self._replace, keys, fold))

    @raises_own
    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """See ``MergingDestination``. Files without such rows are not read."""
        yield from self._filtered(compute().field(column) < bound)

    def _store(
        self,
        commits: Sequence[Commit],
        first_rows: Callable[[], Table],
        write: Callable[[DeltaTable, Sequence[Commit]], None],
    ) -> None:
        """Look and write until the commits are stored or refused. For a new table, ``first_rows`` makes the rows."""
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
            # Not the monotonic clock: it stops while the machine is suspended.
            began = time.time()
            try:
                handle, lasts = self._view([commit.shard for commit in commits])
                if handle is None:
                    is_stored(lasts, commits)  # refuse wrong commits before a table is made without them
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
            except Exception as raised:  # after any error the commit may still be stored
                self._forget_handle()
                error = raised
                refusals += isinstance(raised, _refusals())
                if refusals == _REFUSALS_MAX:
                    break
        self._conclude(commits, error, first_seen, is_refused=refusals == _REFUSALS_MAX)

    @raises_own
    def log(self) -> Iterator[LogEntry]:
        """See ``Destination.log``."""
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
            # The log was cleaned while it was read: the carried commits are in a later entry. If an entry is missing
            # twice, it is lost.
            if (first, damages) in ((self._log.first_version(version), []), seen):
                break
            seen = (first, damages)
        yield from entries

    @raises_own
    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """See ``Destination.rows``."""
        yield from self._filtered(None if shards is None else compute().field(SHARD).isin(list(shards)))

    @raises_own
    def files(self) -> Iterator[tuple[str, Callable[[], Iterator[Table]]]]:
        """See ``RowFiles.files``."""
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
        """See ``Destination.close``."""
        self._forget_handle()

    def another(self) -> DeltaDestination:
        """Return a further handle over the same table, for another thread."""
        made = copy(self)
        made._forget_handle()
        return made

    @raises_own
    def handle(self) -> DeltaTable:
        """Return the table at its present version, for reading and for maintenance.

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
        """Return the table at its present version.

        The handle is kept for the next call, because updating a handle costs a third of loading one.
        """
        # If the log was moved away, delta-rs finds no newer version, and would go on with the version that it has.
        if self._handle is not None and self.location.log_identity() != self._identity:
            self._forget_handle()
        if self._handle is not None:
            try:
                self._handle.update_incremental()
            except Exception:
                self._forget_handle()  # loaded again below, where a lasting error is raised
        if self._handle is None:
            self._identity = self.location.log_identity()
            self._handle = _open(self.location, is_awaited=is_awaited)
        if self._handle is not None:
            self._has_seen = True
            check_table(self._handle)  # each time: others may set properties while the handle is kept
        elif self._has_seen:
            raise gone(f"the table at {self.location.url}")
        return self._handle

    def _view(self, shards: Sequence[str]) -> tuple[DeltaTable | None, dict[str, Commit | None]]:
        """Return the table at its present version, and the last commits that this version has.

        A view may fail for a passing reason. Either entries were removed after the table was loaded; their carried
        commits are in a later entry. Or an entry was read that is not part of the table. So after a failure everything
        is read again. If that fails at the same version, the error is raised.
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
        """Create the table, unless another writer has done so meanwhile."""
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
        self.handle()  # mark the table as seen

    def _divided(self, rows: Table) -> Table:
        if self._partition is None:
            return rows
        column = self._partition.column
        if column in rows.column_names:
            raise ConfigurationError(f"rows must not have the column {column!r}: the destination adds it")
        return rows.append_column(column, self._partition.values(rows))

    def _fitted(self, rows: Table, handle: DeltaTable) -> Table:
        """Return the rows in the table's types. delta-rs silently casts values of other types, for example 2.5 to 2."""
        pa = pyarrow()
        return check_fit(self._divided(rows), pa.schema(handle.schema().to_arrow()), self.location.url)

    def _append(self, handle: DeltaTable, rows: Table, commits: Sequence[Commit]) -> None:
        append(handle, rows, self._properties(handle, commits))
        self._log.note(handle.version(), commits)

    def _replace(
        self, keys: Table, fold: Callable[[Table], Table], handle: DeltaTable, commits: Sequence[Commit]
    ) -> None:
        """Store the result of ``fold`` for the rows of the handle's version.

        Delta refuses that if a later version exists.
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
            # A merge that changes nothing makes no Delta commit, and would not record these commits.
            self._append(handle, rows.slice(0, 0), commits)
        else:
            self._log.note(handle.version(), commits)

    def _properties(self, handle: DeltaTable, commits: Sequence[Commit]) -> CommitProperties:
        deltalake = load("deltalake", "delta")
        # Never set last_updated: a transaction that has it can expire.
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
        """Decide as ``is_stored``.

        The commits of a try without an answer also count if a successor has followed them already.
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
        """Look a last time, then give up: raise the error that states the known outcome."""
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
    """Return the types of errors that delta-rs raises before it writes anything, and would raise again."""
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
            return None  # since it was looked at
        raise
