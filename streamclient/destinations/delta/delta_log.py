"""The entries of a Delta table's log that hold commits, read without blocking the other threads of the process.

The table's transactions decide which commits it has: an entry is part of the log only if the table includes it.

``DeltaTable.history`` and ``QueryBuilder`` keep the interpreter's lock while they wait for an object store. Meanwhile a
worker in the same process could not renew its leases, and would lose all of them if the store hangs. Opening a file of
unknown length keeps the lock, too, while the length is asked for. Reading a file of known length does not. So this
module reads entries by their names, with a length that no entry reaches; stores send the bytes that exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from attrs import evolve

from streamclient.base.extras import load
from streamclient.destinations.commit import Commit, LogEntry
from streamclient.destinations.delta.object_stores import Location
from streamclient.errors import StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

ENTRY = "streamclient"
"""Key of our entry in the metadata of a Delta commit."""

ENTRY_BYTES_MAX = 1 << 28
"""The length in bytes with which each entry is read. An entry with commits of 10,000 shards has 5 MB."""

_READERS = 8
"""The number of entries read at the same time: enough to hide the latency of a store, few enough for its limits."""

_FIRST_LOOK = 32
"""The number of entries that the first look for the last commits of some shards reads. The next look reads four times
as many, and so on. So shards with recent commits are found by the first look, and a shard that was idle for long costs
one read of the whole log."""

_CHUNK = 1_000
"""The number of entries whose files are in memory at the same time when all entries are read."""


class DeltaLog:
    """The part of the log that a handle knows: the last commits of the requested shards. Used by one thread."""

    def __init__(self, location: Location, application: str) -> None:
        self._location = location
        self._application = application
        self._seen = -1
        self._oldest = 0
        """The first version whose entry was read. All entries from this version up to ``_seen`` were read."""
        self._lasts: dict[str, Commit] = {}
        """The last commit of each shard according to the entries read. Some of these entries may not be part of the
        table; see ``_look_back``."""
        self._certain: set[str] = set()
        """Shards for which the table's transaction was compared with the last commit, or with its absence."""

    def last_commits(self, handle: DeltaTable, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commits at the version of the handle.

        Raises:
            StreamClientException: the table knows a commit that its log no longer holds.
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
        """Remember this handle's own commits, if no other writer committed in between.

        Their entry then need not be read.
        """
        if version == self._seen + 1:
            self._seen = version
            self._take([LogEntry(str(version), tuple(commits))])

    def entries(self, version: int, since: int = 0) -> Iterator[LogEntry]:
        """Yield the entries with commits from ``since`` to ``version``, oldest first.

        A lost entry is yielded with ``damage``.
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
        """Return the oldest version whose entry exists.

        Entries are removed from the beginning of the log, so bisection finds the oldest one. If entries are lost, older
        ones may exist before the gap.
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
                # The handle was idle for so long that entries have been removed, or an entry is unreadable: the
                # transactions say which commits must exist.
                self._seen = -1
            else:
                self._seen = version
                self._take(entries)
        if self._seen < 0 or version < self._seen:
            self._lasts, self._certain = {}, set()
            self._seen, self._oldest = version, version + 1

    def _look_back(self, orders: Mapping[str, int | None]) -> None:
        """Read back until the commits with these ``orders``, those of the table's transactions, are found.

        A writer that was frozen may have put its entry at a position of the log that was freed meanwhile. Such an entry
        is not part of the table, and the table's transactions do not name its commits. So commits with a higher order
        than the transaction's are skipped. If a commit's shard was not asked for yet, the commit is remembered. When
        the shard is asked for, the commit causes an error, and everything is read again.
        """
        chunk = _FIRST_LOOK
        while self._oldest > 0 and any(self._order(shard) != order for shard, order in orders.items()):
            start = max(0, self._oldest - chunk)
            found = read_entries(self._location, range(start, self._oldest))
            self._oldest = start if found else 0
            self._take((entry for entry in found.values() if entry is not None), orders)
            chunk *= 4

    def _take(self, entries: Iterable[LogEntry], orders: Mapping[str, int | None] | None = None) -> None:
        # A disputed commit is never skipped: the comparison must see that its order differs from the transaction's.
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
    """Return the log entries of ``versions``, by version. A version without a log file is left out.

    The entry is ``None`` for a version whose log file has no commits of this package.
    """
    return {version: entry_of(str(version), text) for version, text in read_files(location, versions).items()}


def read_files(location: Location, versions: range) -> dict[int, bytes]:
    """Return the log files of ``versions``, by version. A version without a log file is left out."""
    if not versions:
        return {}
    names = {version: f"_delta_log/{version:020d}.json" for version in versions}
    handler = load("deltalake.fs", "delta").DeltaStorageHandler(
        location.url, location.options, dict.fromkeys(names.values(), ENTRY_BYTES_MAX)
    )

    def read(name: str) -> bytes | None:
        try:
            # `read_buffer` lets the file itself make the buffer. pyarrow's `readall` would make room for the whole
            # stated length, and keep that room if the file does not exist.
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
    """Return whether a file is empty. If so, a read of its first byte fails."""
    (found,) = load("deltalake.fs", "delta").DeltaStorageHandler(location.url, location.options).get_file_info([name])
    return bool(found.size == 0)


def entry_of(place: str, text: bytes) -> LogEntry | None:
    """Return the entry of this package in a file of Delta's log; ``None`` if the file has none."""
    if not text:
        return LogEntry(place, damage=f"entry {place} is empty, as after a power loss: its commits are lost")
    try:
        actions = [json.loads(line) for line in text.splitlines() if b'"commitInfo"' in line or b'"txn"' in line]
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
    """Return the digests of the commits in ``entries`` that are last commits, or lead to a last commit.

    A commit in an entry may still not be in the table; see ``DeltaLog``.
    """
    before = {commit.digest: commit.previous_digest for entry in entries for commit in entry.commits}
    found: set[str] = set()
    for last in lasts:
        digest = last.digest if last.digest in before else last.previous_digest  # carried on: its own entry is removed
        while digest in before and digest not in found:
            found.add(digest)
            digest = before[digest]
    return found


def transaction_of(application: str, shard: str) -> str:
    """Return the name of the Delta transaction that fences a shard."""
    return f"{application}/{shard}"
