"""The maintenance of a Delta table while writers use it: compaction, clean-up and verification, at scheduled times.

Some versions of delta-rs accept two concurrent compactions, and duplicate every row. The versions that this package
allows reject the second compaction. So ``compact`` checks the version before it begins, and compares the numbers of
rows afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.base import checks, logs
from streamclient.base.cron import CronSchedule
from streamclient.base.extras import load
from streamclient.destinations.commit import LogEntry
from streamclient.destinations.delta.delta_destination import DeltaDestination
from streamclient.destinations.delta.delta_log import ENTRY, DeltaLog, read_files, transaction_of
from streamclient.destinations.delta.removal import remove_files
from streamclient.destinations.destination_packages import compute, pyarrow, raises_own
from streamclient.destinations.proof.commit_proof import Proof, read_chains
from streamclient.destinations.proof.verification import refuse_mirror, verify
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logs.logger(__name__)

COMPACTING_VERSIONS = ((1, 6, 1), (1, 6, 4))
"""The range of delta-rs versions that may compact: from the former version on, and below the latter. The former version
refuses the second of two concurrent compactions. The latter version was not tested."""

_RUN = "streamclient_run"
"""The key in the metadata of a Delta commit that holds the random id of the compaction that made the commit."""

CARRYING_TRIES = 30
"""The largest number of tries of ``carry``. A try fails if a writer commits meanwhile. The next try reads only the log
entries that are newer than the failed try."""

KEEP_HOURS = 7 * 24
"""The default number of hours for which ``clean`` keeps files that the table no longer uses. A query that takes longer
may fail."""

_KEEP_HOURS_MAX = 1_000_000
"""The largest allowed ``keep_hours``, more than a century. delta-rs aborts at hours that its clock cannot represent."""

_target_bytes = checks.optional(checks.positive)


@frozen
class Compaction:
    """The numbers of the table's files before and after one compaction."""

    files_before: int
    files_after: int
    is_refused: bool = False
    """Whether delta-rs refused the compaction because another writer had changed the table; the next run will retry."""


@frozen
class Cleaning:
    """The numbers of files and log entries that one clean-up removed."""

    files: int
    log_entries: int


@raises_own
def compact(destination: DeltaDestination, *, target_bytes: int | None = None) -> Compaction:
    """Join small files into larger ones, without changing the rows. Writers may append rows meanwhile.

    Args:
        destination: the table.
        target_bytes: the size up to which files are joined, in bytes; by default the table's own setting, 100 MB.

    Raises:
        ConfigurationError: this version of delta-rs may duplicate the rows, or an argument is invalid.
        StreamClientException: the compaction has changed the number of rows; the message says how to undo the
            compaction.
    """
    _target_bytes.require("target_bytes", target_bytes)
    check_compacting_version(load("deltalake", "delta").__version__)
    errors = load("deltalake.exceptions", "delta")
    handle, run = destination.handle(), uuid.uuid4().hex
    before, version = len(handle.file_uris()), handle.version()
    properties = load("deltalake", "delta").CommitProperties(custom_metadata={_RUN: run})
    failure: Exception | None = None
    try:
        handle.optimize.compact(target_size=target_bytes, commit_properties=properties)
    except Exception as error:  # after any error, the compaction may have been stored
        failure = error
    handle = destination.handle()
    own = _versions_of(destination, run, range(version + 1, handle.version() + 1))
    for made in own:
        _check_rows(destination, made)
    if failure is None or own:
        return Compaction(before, len(handle.file_uris()))
    if not isinstance(failure, errors.CommitFailedError):
        raise failure
    _log.info("compaction of %s was refused, because a writer had changed it: %s", destination.location.url, failure)
    return Compaction(before, before, is_refused=True)


def check_compacting_version(version: str) -> None:
    """Check that ``version`` of delta-rs refuses the second of two concurrent compactions.

    Raises:
        ConfigurationError: the version is not known to refuse the second compaction.
    """
    first, end = COMPACTING_VERSIONS
    numbers = tuple(int(part) if part.isdigit() else -1 for part in version.split(".")[:3])
    if not first <= numbers < end:
        wanted = f">={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        raise ConfigurationError(
            f"deltalake {version} is not known to refuse the second of two compactions, which doubles all rows: "
            f'pip install "deltalake{wanted}"'
        )


def _versions_of(destination: DeltaDestination, run: str, versions: range) -> list[int]:
    """Return those of ``versions`` that the compaction ``run`` made. Other writers made the other versions."""
    return [version for version, text in read_files(destination.location, versions).items() if run.encode() in text]


def _check_rows(destination: DeltaDestination, version: int) -> None:
    """Check that the table's ``version`` has as many rows as the version before it. If not, raise an error."""
    location = destination.location
    old, new = (
        load("deltalake", "delta").DeltaTable(location.url, version=number, storage_options=location.options)
        for number in (version - 1, version)
    )
    before, after = _row_count(old), _row_count(new)
    if before != after:
        made = ", ".join(sorted(set(new.file_uris()) - set(old.file_uris())))
        raise StreamClientException(
            f"compaction turned {before} rows into {after} in {location.url}, as version {version}: stop its writers "
            f"and compactions. If that is still the last version, DeltaTable(...).restore({version - 1}) undoes it. If "
            "not, do not restore: the later commits would be lost, but not their checkpoints. Move the files that the "
            f"compaction made to another place and let DeltaTable(...).repair() take them out of the log: {made}. Then "
            "run verify, with the rows, to see whether each record is there once"
        )


def _row_count(handle: DeltaTable) -> int:
    actions = pyarrow().table(handle.get_add_actions())
    return int(compute().sum(actions.column("num_records")).as_py() or 0)


@raises_own
def clean(destination: DeltaDestination, *, keep_hours: int = KEEP_HOURS) -> Cleaning:
    """Remove files that no longer belong to the table, and entries of its log that are older than ``log_days``.

    A file is removed ``keep_hours`` hours after the table has dropped it. Before old entries are removed, ``carry``
    repeats the last commit of each shard in a new entry.

    Raises:
        ConfigurationError: ``keep_hours`` is invalid, or the table's directory has files of another program or table,
            which would be removed.
        StreamClientException: the log has lost a shard's last commit; nothing was removed.
    """
    _check_keep_hours(keep_hours)
    handle = destination.handle()
    unused = _unused_files(handle, keep_hours)
    _check_own(handle, unused)
    handle, log = carry(destination), DeltaLog(destination.location, destination.application)
    # This process may be suspended between the loading of the table and the listing of its directory. Files that are
    # committed meanwhile look unused. The table that ``carry`` has loaded later knows these files.
    removed = remove_files(destination.location, sorted({*unused}.intersection(_unused_files(handle, keep_hours))))
    before = log.first_version(handle.version())
    # The handle of `carry` removes only entries up to its own version, even if this process was suspended meanwhile.
    # The commits of newer entries were not carried, so these entries must stay.
    handle.create_checkpoint()
    handle.cleanup_metadata()
    return Cleaning(removed, log.first_version(handle.version()) - before)


def _check_keep_hours(keep_hours: int) -> None:
    if not checks.whole(1, _KEEP_HOURS_MAX).fits(keep_hours):
        raise ConfigurationError(
            f"keep_hours must be a whole number from 1 to {_KEEP_HOURS_MAX}, not {keep_hours!r}: younger files may "
            "belong to a commit in progress"
        )


def _unused_files(handle: DeltaTable, keep_hours: int) -> list[str]:
    """Return the files in the table's directory that the table has not used within the last ``keep_hours`` hours."""
    return handle.vacuum(keep_hours, dry_run=True, enforce_retention_duration=False, full=True)


def _check_own(handle: DeltaTable, files: Sequence[str]) -> None:
    """Refuse ``files`` that are not at a place where Delta stores files of this table.

    These places are the table's directory, the directories of its partitions, and the same directories under
    ``_change_data``, for Delta's change data feed.
    """
    marks = [f"{name}=" for name in handle.metadata().partition_columns]
    for name in files:
        *directories, file = name.removeprefix("_change_data/").split("/")
        is_divided = len(directories) == len(marks) and all(map(str.startswith, directories, marks))
        if not is_divided or not file.endswith(".parquet"):
            raise ConfigurationError(
                f"{handle.table_uri} contains {name}, which is not a file of the table and would be removed: move such "
                "files, or the table that they belong to, out of its directory"
            )


@raises_own
def carry(destination: DeltaDestination) -> DeltaTable:
    """Repeat the last commit of each shard, of all applications, in a new log entry. Return the table with this entry.

    The entry has no rows, only the shards' transactions. If a writer commits meanwhile, delta-rs refuses the entry, and
    ``carry`` tries again.

    Raises:
        StreamClientException: the log has lost the last commit of a shard. Nothing was changed.
        DependencyException: in each of ``CARRYING_TRIES`` tries, a writer committed meanwhile.
    """
    errors = load("deltalake.exceptions", "delta")
    log = DeltaLog(destination.location, destination.application)
    entries: list[LogEntry] = []
    orders: _Orders = {}
    since, missing_at = 0, -1
    for _ in range(CARRYING_TRIES):
        handle = destination.handle()
        version = handle.version()
        newer = list(log.entries(version, since))
        _forget_orders(orders, newer)
        entries.extend(newer)
        since = version + 1
        try:
            carried = _carried(handle, entries, orders)
        except (StreamClientException, errors.DeltaError):
            if version == missing_at:
                raise
            # Another clean-up may have removed the entry of the last commit after the table was loaded. In this case a
            # later entry repeats the commit.
            entries, orders, since, missing_at = [], {}, 0, version
            continue
        try:
            _write_carried(handle, carried)
            return handle
        except errors.CommitFailedError as error:
            _log.info("a writer of %s was faster than its clean-up: %s", destination.location.url, error)
    raise DependencyException(
        f"writers of {destination.location.url} were faster than its clean-up {CARRYING_TRIES} times: try again later"
    )


_Orders = dict[tuple[str, str], "int | None"]
"""The ``Commit.order`` that a shard's Delta transaction names; ``None`` without a transaction. The keys are application
and shard. ``carry`` keeps these orders for its next try, because each look-up reads the end of the log."""


def _forget_orders(orders: _Orders, newer: Sequence[LogEntry]) -> None:
    """Remove from ``orders`` the shards that have commits in ``newer``, or all shards if an entry is damaged."""
    if any(entry.damage for entry in newer):
        orders.clear()
    for entry in newer:
        for commit in (*entry.carried, *entry.commits):
            orders.pop((commit.application, commit.shard), None)


def _carried(handle: DeltaTable, entries: Sequence[LogEntry], orders: _Orders) -> LogEntry:
    """Make an entry that repeats each shard's last commit: the commit that the shard's Delta transaction names.

    Raises:
        StreamClientException: ``entries`` do not have a shard's last commit.
    """
    disputed = {commit for entry in entries for commit in entry.disputed}
    totals: dict[str, int] = {}
    carried = []
    for (application, shard), chain in read_chains(entries, Proof()).items():
        commits = [*(commit for _, commit in chain.commits), *chain.carried]
        if (application, shard) not in orders:
            orders[application, shard] = handle.transaction_version(transaction_of(application, shard))
        order = orders[application, shard]
        is_disputed = any(commit in disputed and commit.order > (order or -1) for commit in commits)
        if order is None and not is_disputed:
            continue  # without a transaction, the commits are not in the table; see ``DeltaLog``
        last = {commit.order: commit for commit in commits}.get(order or -1)
        if last is None or is_disputed:
            raise StreamClientException(_not_held(handle, application, shard, order))
        carried.append(last)
        if (total := chain.records_up_to(last.number)) is not None:
            totals[last.digest] = total
    return LogEntry("", carried=tuple(carried), totals=totals)


def _not_held(handle: DeltaTable, application: str, shard: str, order: int | None) -> str:
    known = "no commit" if order is None else f"commit {order & 0xFFFFFFFF} of epoch {order >> 32} as the last one"
    return (
        f"the transactions of {handle.table_uri} name {known} of shard {shard} in application {application!r}, but its "
        "log disagrees, so it has lost or altered entries. Nothing is cleaned, because late writers of the shard would "
        "no longer be refused. verify names the entries; restore them from a copy, or continue in another destination"
    )


def _write_carried(handle: DeltaTable, entry: LogEntry) -> None:
    if not entry.carried:
        return
    deltalake = load("deltalake", "delta")
    deltalake.write_deltalake(
        handle,
        pyarrow().schema(handle.schema().to_arrow()).empty_table(),
        mode="append",
        commit_properties=deltalake.CommitProperties(
            custom_metadata={ENTRY: entry.to_json()},
            app_transactions=[
                deltalake.Transaction(transaction_of(commit.application, commit.shard), commit.order)
                for commit in entry.carried
            ],
        ),
        post_commithook_properties=deltalake.PostCommitHookProperties(cleanup_expired_logs=False),
    )


Heard = Callable[[str, "Compaction | Cleaning | Proof | Exception"], None]
"""A function to call after each run. Its arguments are the task (``compact``, ``clean`` or ``verify``), and the task's
result or error."""


class Maintenance:
    """A schedule for the compaction, clean-up and verification of a Delta table, by cron expressions in UTC.

    One instance per table is enough, but several do no harm. If the process was suspended and missed several runs of a
    task, the task runs only once.

    Args:
        destination: the table.
        compact: the times when small files are joined, for example ``"0 * * * *"``; by default never.
        clean: the times when old files and log entries are removed, for example ``"30 3 * * *"``; by default never.
        verify: the times when the log is verified, for example ``"0 4 * * *"``; by default never.
        keep_hours: the hours for which a clean-up keeps files that the table no longer uses.
        verify_rows: whether a verification also reads all rows.
        heard: a function to call after each run, in the schedule's thread. Errors and findings are also logged.

    Raises:
        ConfigurationError: an expression is not a cron expression or never fires, or ``keep_hours`` is invalid.
    """

    def __init__(
        self,
        destination: DeltaDestination,
        *,
        compact: str | None = None,
        clean: str | None = None,
        verify: str | None = None,
        keep_hours: int = KEEP_HOURS,
        verify_rows: bool = False,
        heard: Heard | None = None,
    ) -> None:
        _check_keep_hours(keep_hours)
        self._destination = destination.another()
        self._keep_hours = keep_hours
        self._verify_rows = verify_rows
        self._heard = heard
        # The schedule has a single thread, because only one thread at a time may use the destination's handle.
        self._schedule = CronSchedule("maintenance")
        for name, expression in {"compact": compact, "clean": clean, "verify": verify}.items():
            if expression is not None:
                self._schedule.add(name, expression, partial(self._run_safely, name))
        self.scheduler: Any = self._schedule.scheduler

    def start(self) -> None:
        """Start the schedule, and return without waiting for a run.

        Raises:
            ConfigurationError: ``verify_rows`` is set for a mirror, whose rows cannot be verified: they do not belong
                to commits.
        """
        if self._verify_rows and self.scheduler.get_job("verify") is not None:
            refuse_mirror(self._destination)
        self._schedule.start()

    def stop(self) -> None:
        """Stop the schedule: wait for the current run to finish, and start no further runs."""
        self._schedule.stop()
        self._destination.close()

    def next_runs(self) -> Mapping[str, datetime]:
        """Return the time of each task's next run in UTC. The keys are task names. Call this method after ``start``."""
        return {job.id: job.next_run_time for job in self.scheduler.get_jobs()}

    def run(self, name: str) -> Compaction | Cleaning | Proof:
        """Run the task ``name`` (``compact``, ``clean`` or ``verify``) now, in the calling thread.

        Do not call this method between ``start`` and ``stop``.
        """
        runs: Mapping[str, Callable[[], Compaction | Cleaning | Proof]] = {
            "compact": lambda: compact(self._destination),
            "clean": lambda: clean(self._destination, keep_hours=self._keep_hours),
            "verify": lambda: verify(self._destination, with_rows=self._verify_rows),
        }
        return runs[name]()

    def __enter__(self) -> Maintenance:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run_safely(self, name: str) -> None:
        result: Compaction | Cleaning | Proof | Exception
        try:
            result = self.run(name)
        except Exception as error:
            _log.exception("%s of %s failed", name, self._destination.location.url)
            result = error
        if isinstance(result, Proof) and not result.is_whole:
            _log.error("the proof of %s has findings: %s", self._destination.location.url, result)
        if self._heard is not None:
            self._heard(name, result)
