"""The reading of commits from a Delta table's log, without blocking the other threads of the process.

A log file alone does not prove that its commits are in the table. The table's transactions (``txn`` actions of Delta's
protocol) prove it: the table has one transaction for each shard, and its version is the ``Commit.order`` of the shard's
last commit.

``DeltaTable.history`` and ``QueryBuilder`` keep the interpreter's lock while they wait for an object store. If the
store hangs, a worker in the same process cannot renew its leases, and loses all of them. delta-rs also keeps the lock
when it opens a file of unknown length, because it asks the store for the length. So this module states a length that no
log file reaches. Stores send only the bytes that exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from attrs import evolve

from streamclient.base.extras import load
from streamclient.base.kept_formats import parse_json
from streamclient.destinations.commit import Commit, LogEntry
from streamclient.destinations.delta.object_stores import Location
from streamclient.errors import StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

ENTRY = "streamclient"
"""The key of this package's log entry in the metadata of a Delta commit."""

ENTRY_BYTES_MAX = 1 << 28
"""The length in bytes that this module states for each log file. Real log files are far smaller: the commits of 10,000
shards take 5 MB."""

_READERS = 8
"""The number of log files that are read at the same time: enough to hide a store's latency, but below its limits."""

_FIRST_LOOK = 32
"""The number of log files that the search for a shard's last commit reads first. Each further step reads four times as
many. So a recent commit is found in the first step, and only a shard that was idle for long causes a reading of the
whole log."""

_CHUNK = 1_000
"""The number of log files that are in memory together while all entries are read."""


class DeltaLog:
    """A cache of the last commit of each shard, from the part of a table's log that one handle has read.

    Only one thread may use it.
    """

    def __init__(self, location: Location, application: str) -> None:
        self._location = location
        self._application = application
        self._seen = -1
        self._oldest = 0
        """The oldest version whose entry was read. All entries from this version up to version ``_seen`` were read."""
        self._lasts: dict[str, Commit] = {}
        """The last commit of each shard in the entries that were read. Some of these entries may not be part of the
        table; see ``_look_back``."""
        self._certain: set[str] = set()
        """The shards whose commit in ``_lasts`` is confirmed: the table's transaction names its ``Commit.order``."""

    def last_commits(self, handle: DeltaTable, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commit of each of ``shards`` at the version of ``handle``.

        Raises:
            StreamClientException: the table has a transaction for a commit that the log no longer has.
        """
        self._read_up_to(handle.version())
        orders = {
            shard: handle.transaction_version(transaction_of(self._application, shard))
            for shard in shards
            if shard not in self._certain
        }
        self._look_back(orders)
        for shard, order in orders.items():
            if self._order(shard) != order:
                raise StreamClientException(
                    f"{self._location.url} has the transaction of commit {order} of shard {shard}, but its log no "
                    f"longer holds this commit; the last one there is {self._lasts.get(shard) or 'none'}. Something "
                    "other than streamclient's maintenance has cleared or altered the log, or restored an older "
                    "version: continue in another destination"
                )
            self._certain.add(shard)
        return {shard: self._lasts.get(shard) for shard in shards}

    def note(self, version: int, commits: Iterable[Commit]) -> None:
        """Remember commits that this handle has stored as ``version``, so that their entry need not be read.

        If another writer has made a version since the last reading, nothing is remembered.
        """
        if version == self._seen + 1:
            self._seen = version
            self._take([LogEntry(str(version), tuple(commits))])

    def entries(self, version: int, since: int = 0) -> Iterator[LogEntry]:
        """Yield this package's entries of the versions ``since`` to ``version``, oldest first.

        For a missing log file, yield an entry with ``damage``. If ``since`` is 0, begin at ``first_version``.
        """
        for start in range(since or self.first_version(version), version + 1, _CHUNK):
            wanted = range(start, min(start + _CHUNK, version + 1))
            found = read_entries(self._location, wanted)
            for number in wanted:
                if number not in found:
                    yield LogEntry(str(number), damage=f"entry {number} is no longer in the log")
                elif (entry := found[number]) is not None:
                    yield entry

    def first_version(self, version: int) -> int:
        """Return the oldest version up to ``version`` whose log file exists.

        A clean-up removes the oldest log files, so a bisection finds the oldest remaining file. If log files between
        others were lost, there may be older files before this gap, and the method also searches for these.
        """
        first = 0 if self._has(0) else self._bisected(version)
        while below := read_files(self._location, range(max(0, first - _FIRST_LOOK), first)):
            first = self._bisected(min(below))
        return first

    def _bisected(self, version: int) -> int:
        absent, present = -1, version
        while present - absent > 1:
            middle = (absent + present) // 2
            absent, present = (absent, middle) if self._has(middle) else (middle, present)
        return present

    def _has(self, version: int) -> bool:
        return bool(read_files(self._location, range(version, version + 1)))

    def _order(self, shard: str) -> int | None:
        known = self._lasts.get(shard)
        return None if known is None else known.order

    def _read_up_to(self, version: int) -> None:
        if self._seen >= 0 and version > self._seen:
            found = read_entries(self._location, range(self._seen + 1, version + 1))
            entries = [entry for entry in found.values() if entry is not None]
            if len(found) < version - self._seen or any(entry.damage for entry in entries):
                # Entries were removed while the handle was idle, or an entry is unreadable. Read everything again: the
                # transactions say which commits must exist.
                self._seen = -1
            else:
                self._seen = version
                self._take(entries)
        if self._seen < 0 or version < self._seen:
            self._lasts, self._certain = {}, set()
            self._seen, self._oldest = version, version + 1

    def _look_back(self, orders: Mapping[str, int | None]) -> None:
        """Read older entries until the last commit of each shard in ``orders`` is found.

        ``orders`` has for each shard the ``Commit.order`` that the table's transaction names.

        A writer that was suspended may have created its entry with the number of an entry that was removed meanwhile.
        Such an entry is not part of the table, and no transaction names its commits. So commits with a higher order
        than their shard's transaction are skipped. A commit of a shard that is not in ``orders`` cannot be compared
        yet, and is remembered. If it is not part of the table, a later call for its shard raises an error, and the
        caller reads everything again.
        """
        chunk = _FIRST_LOOK
        while self._oldest > 0 and any(self._order(shard) != order for shard, order in orders.items()):
            start = max(0, self._oldest - chunk)
            found = read_entries(self._location, range(start, self._oldest))
            self._oldest = start if found else 0
            self._take((entry for entry in found.values() if entry is not None), orders)
            chunk *= 4

    def _take(self, entries: Iterable[LogEntry], orders: Mapping[str, int | None] | None = None) -> None:
        # A disputed commit is never skipped: ``last_commits`` must notice that its order and the transaction differ.
        for entry in entries:
            for commit in (*entry.carried, *entry.commits):
                known = self._order(commit.shard) or -1
                if commit.application != self._application or commit.order <= known:
                    continue
                if orders is None or commit in entry.disputed or self._may_be_last(commit, orders):
                    self._lasts[commit.shard] = commit

    def _may_be_last(self, commit: Commit, orders: Mapping[str, int | None]) -> bool:
        if commit.shard not in orders:
            return commit.shard not in self._certain
        return commit.order <= (orders[commit.shard] or -1)


def read_entries(location: Location, versions: range) -> dict[int, LogEntry | None]:
    """Return this package's log entry of each of ``versions``. A version without a log file is left out.

    The entry is ``None`` if the log file of the version has no commits of this package.
    """
    return {version: entry_of(str(version), text) for version, text in read_files(location, versions).items()}


def read_files(location: Location, versions: range) -> dict[int, bytes]:
    """Return the content of the log file of each of ``versions``. A version without a log file is left out."""
    if not versions:
        return {}
    names = {version: f"_delta_log/{version:020d}.json" for version in versions}
    handler = load("deltalake.fs", "delta").DeltaStorageHandler(
        location.url, location.options, dict.fromkeys(names.values(), ENTRY_BYTES_MAX)
    )

    def read(name: str) -> bytes | None:
        try:
            # `read_buffer` allocates only the bytes that the file has. pyarrow's `readall` would allocate the stated
            # length, and would not free this memory if the file did not exist.
            return bytes(handler.open_input_file(name).read_buffer())
        except FileNotFoundError:
            return None
        except OSError:
            if _is_empty(location, name):
                return b""
            raise

    with ThreadPoolExecutor(min(_READERS, len(names)), "streamclient-delta-log") as pool:
        texts = dict(zip(names, pool.map(read, names.values()), strict=True))
    return {version: text for version, text in texts.items() if text is not None}


def _is_empty(location: Location, name: str) -> bool:
    """Return whether the file ``name`` is empty. ``read_buffer`` raises ``OSError`` for an empty file."""
    (found,) = load("deltalake.fs", "delta").DeltaStorageHandler(location.url, location.options).get_file_info([name])
    return bool(found.size == 0)


def entry_of(place: str, text: bytes) -> LogEntry | None:
    """Return this package's entry in ``text``, the content of a log file of Delta; ``None`` if there is no entry."""
    if not text:
        return LogEntry(place, damage=f"entry {place} is empty, as after a power loss: its commits are lost")
    try:
        actions = [parse_json(line) for line in text.splitlines() if b'"commitInfo"' in line or b'"txn"' in line]
        found = next((action["commitInfo"][ENTRY] for action in actions if ENTRY in action.get("commitInfo", {})), None)
        orders = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        return LogEntry(place, damage=f"entry {place} is unreadable: {error!r}")
    if found is None:
        return None
    entry = LogEntry.from_json(place, found)
    disputed = tuple(
        commit
        for commit in entry.commits
        if orders.get(transaction_of(commit.application, commit.shard)) != commit.order
    )
    if not disputed:
        return entry
    damage = f"the transactions of entry {place} have other epochs or numbers than its commits"
    return evolve(entry, damage=damage, disputed=disputed)


def digests_up_to(lasts: Iterable[Commit], entries: Iterable[LogEntry]) -> set[str]:
    """Return the digests of ``lasts`` and of the earlier commits of their chains, as far as ``entries`` has them.

    Each commit names the digest of the previous one. A commit in ``entries`` that no chain reaches may not be part of
    the table; see ``DeltaLog``.
    """
    before = {commit.digest: commit.previous_digest for entry in entries for commit in entry.commits}
    found: set[str] = set()
    for last in lasts:
        digest = last.digest if last.digest in before else last.previous_digest  # a carried commit, whose entry is gone
        while digest in before and digest not in found:
            found.add(digest)
            digest = before[digest]
    return found


def transaction_of(application: str, shard: str) -> str:
    """Return the name of the Delta transaction that fences a shard."""
    return f"{application}/{shard}"
