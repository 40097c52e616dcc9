"""What keeps a Delta table quick and small beside its writers: compaction, clean-up, verification, by cron expressions.

Writers go on meanwhile. Of two compactions at once one is refused, by the versions of delta-rs that this package
allows; others accept both, and every row is there twice from then on. So the version is asked before each compaction,
and the number of rows is compared after it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from attrs import frozen

from streamclient.cron import CronSchedule
from streamclient.destinations.commit import Commit, LogEntry
from streamclient.destinations.delta import DeltaDestination
from streamclient.destinations.delta_log import ENTRY, read_files
from streamclient.destinations.extra import compute, load, pyarrow
from streamclient.destinations.verify import Proof, verify
from streamclient.errors import ConfigurationError, StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)

COMPACTING_VERSIONS = ((1, 6, 1), (1, 6, 4))
"""From the first on, and below the second: seen to refuse the second of two compactions."""

_RUN = "streamclient_run"
"""Key of a compaction's own mark in the metadata of its Delta commit."""

KEEP_HOURS = 7 * 24
"""How long files are kept that the table no longer has; a query must not take longer."""


@frozen
class Compaction:
    """What one compaction did."""

    files_before: int
    files_after: int
    is_refused: bool = False
    """Whether another writer was quicker, so that nothing was done; the next run does it."""


@frozen
class Cleaning:
    """What one clean-up removed."""

    files: int
    log_entries: int


def compact(destination: DeltaDestination, *, target_bytes: int | None = None) -> Compaction:
    """Join small files into larger ones; the rows stay as they are. Appends go on beside it.

    Args:
        destination: the table.
        target_bytes: size up to which files are joined; the table's own by default, 100 MB.

    Raises:
        ConfigurationError: this version of delta-rs may double the rows.
        StreamClientException: the rows are not as many as before; the message says how to undo it.
    """
    check_compacting_version(load("deltalake", "delta").__version__)
    errors = load("deltalake.exceptions", "delta")
    handle = destination.handle()
    before, version = len(handle.file_uris()), handle.version()
    properties = load("deltalake", "delta").CommitProperties(custom_metadata={_RUN: uuid.uuid4().hex})
    try:
        handle.optimize.compact(target_size=target_bytes, commit_properties=properties)
    except errors.CommitFailedError as error:
        _log.info("compaction of %s was refused, another writer was quicker: %s", destination.location.url, error)
        return Compaction(before, before, is_refused=True)
    for own in _versions_of(destination, properties.custom_metadata[_RUN], range(version + 1, handle.version() + 1)):
        _check_rows(destination, own)
    return Compaction(before, len(handle.file_uris()))


def check_compacting_version(version: str) -> None:
    """Raise ``ConfigurationError`` unless this version of delta-rs refuses the second of two compactions."""
    first, end = COMPACTING_VERSIONS
    numbers = tuple(int(part) if part.isdigit() else -1 for part in version.split(".")[:3])
    if not first <= numbers < end:
        wanted = f">={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        raise ConfigurationError(
            f"deltalake {version} is not known to refuse the second of two compactions, which doubles all rows: "
            f'pip install "deltalake{wanted}"'
        )


def _versions_of(destination: DeltaDestination, run: str, versions: range) -> list[int]:
    """The versions that a run made; others may have committed before and after it."""
    return [version for version, text in read_files(destination.location, versions).items() if run.encode() in text]


def _check_rows(destination: DeltaDestination, version: int) -> None:
    """A compaction adds as many rows as it removes."""
    location = destination.location
    before, after = (
        _row_count(load("deltalake", "delta").DeltaTable(location.url, version=one, storage_options=location.options))
        for one in (version - 1, version)
    )
    if before != after:
        raise StreamClientException(
            f"compaction made {after} rows of {before} in {location.url}: stop its writers and undo it with "
            f"DeltaTable(...).restore({version - 1})"
        )


def _row_count(handle: DeltaTable) -> int:
    actions = pyarrow().table(handle.get_add_actions())
    return int(compute().sum(actions.column("num_records")).as_py() or 0)


def clean(destination: DeltaDestination, *, keep_hours: int = KEEP_HOURS) -> Cleaning:
    """Remove files that the table no longer has, and entries of its log that are older than ``log_days``.

    The last commit of each shard is carried on in a new entry first, so that none is forgotten with the old ones.

    Raises:
        ConfigurationError: files would be removed that a writer may still be about to commit.
    """
    if keep_hours < 1:
        raise ConfigurationError(
            f"keep_hours must be at least 1, not {keep_hours!r}: younger files may be of a commit on its way"
        )
    carry(destination)
    handle = destination.handle()
    # Full: it also finds what commits left that were refused, which no entry of the log names.
    files = handle.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
    handle = destination.handle()
    handle.create_checkpoint()
    before = destination.log_length()
    handle.cleanup_metadata()
    return Cleaning(len(files), before - destination.log_length())


def carry(destination: DeltaDestination) -> tuple[Commit, ...]:
    """Repeat the last commit of each shard, of all applications, in one new entry without rows."""
    deltalake = load("deltalake", "delta")
    lasts: dict[tuple[str, str], Commit] = {}
    for entry in destination.log():
        for commit in (*entry.carried, *entry.commits):
            known = lasts.get((commit.application, commit.shard))
            if known is None or commit.order >= known.order:
                lasts[commit.application, commit.shard] = commit
    carried = tuple(lasts.values())
    if carried:
        handle = destination.handle()
        pa = pyarrow()
        deltalake.write_deltalake(
            handle,
            pa.schema(handle.schema().to_arrow()).empty_table(),
            mode="append",
            commit_properties=deltalake.CommitProperties(
                custom_metadata={ENTRY: LogEntry("", carried=carried).to_json()}
            ),
            post_commithook_properties=deltalake.PostCommitHookProperties(cleanup_expired_logs=False),
        )
    return carried


Heard = Callable[[str, "Compaction | Cleaning | Proof | Exception"], None]
"""Hears what each run did: its name (``compact``, ``clean`` or ``verify``), and its result or its error."""


class Maintenance:
    """Runs compaction, clean-up and verification of a table at the times of cron expressions, in UTC.

    One is enough for a table; a second one does no harm. It has a handle of its own. What is missed while the process
    sleeps is made up for once.

    Args:
        destination: which table.
        compact: when small files are joined, for example ``"0 * * * *"``; never by default.
        clean: when old files and log entries are removed, for example ``"30 3 * * *"``.
        verify: when the log is proved, for example ``"0 4 * * *"``; with ``verify_rows`` the rows too.
        keep_hours: see ``clean``.
        verify_rows: whether a verification reads all rows.
        heard: hears of each run; errors and findings are logged in any case. Called by the thread of the runs.

    Raises:
        ConfigurationError: an expression is no cron expression, or names a time that never comes.
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
        self._destination = destination.another()
        self._keep_hours = keep_hours
        self._verify_rows = verify_rows
        self._heard = heard
        # One thread, as one handle is used by one thread at a time.
        self._schedule = CronSchedule("maintenance")
        for name, expression in {"compact": compact, "clean": clean, "verify": verify}.items():
            if expression is not None:
                self._schedule.add(name, expression, partial(self._run_safely, name))
        self.scheduler = self._schedule.scheduler

    def start(self) -> None:
        """Begin to run by the clock; returns at once."""
        self._schedule.start()

    def stop(self) -> None:
        """Let a run that is under way finish, and run no more."""
        self._schedule.stop()
        self._destination.close()

    def run(self, name: str) -> Compaction | Cleaning | Proof:
        """Run ``compact``, ``clean`` or ``verify`` now, in this thread; not while the scheduler runs."""
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
            _log.error("%s is not whole: %s", self._destination.location.url, result)
        if self._heard is not None:
            self._heard(name, result)
