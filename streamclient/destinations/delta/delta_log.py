"""The entries of a Delta table's log that hold commits, read without holding up the other threads of the process.

What the table has, its transactions say: an entry is part of the log only if the table was made of it.

``DeltaTable.history`` and ``QueryBuilder`` keep the interpreter's lock while they wait for an object store, so that a
worker could not renew its leases meanwhile; a store that hangs would cost them all. Opening a file does so too, to ask
for its length. Reading one whose length is "known" does not. So entries are read by their names, with a length that
none has: stores send what there is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from attrs import evolve

from streamclient.destinations.commit import Commit, LogEntry
from streamclient.destinations.delta.object_stores import Location
from streamclient.destinations.destination_packages import load
from streamclient.errors import StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

ENTRY = "streamclient"
"""Key of our entry in the metadata of a Delta commit."""

ENTRY_BYTES_MAX = 1 << 28
"""Length that entries are read with. One with commits of 10,000 shards has 5 MB."""

_READERS = 8
"""Entries that are read at once: enough to hide the latency of a store, few enough for its limits."""

_FIRST_LOOK = 32
"""Entries read at first to find the last commits of some shards; then four times as many, and so on. Shards that moved
lately are found at once, and one that has been idle for long costs one reading of the log."""

_CHUNK = 1_000
"""Entries whose files are in memory at once when all are read."""


class DeltaLog:
    """What one handle knows of the log: the last commit of each shard that it was asked for. Used by one thread."""

    def __init__(self, location: Location, application: str) -> None:
        self._location = location
        self._application = application
        self._seen = -1
        self._oldest = 0
        """Entries from here to ``_seen`` were read."""
        self._lasts: dict[str, Commit] = {}
        """By the entries that were read, some of which may not be part of the table; see ``_look_back``."""
        self._certain: set[str] = set()
        """Shards whose last commit, or that there is none, was compared with the table's transaction."""

    def last_commits(self, handle: DeltaTable, shards: Sequence[str]) -> dict[str, Commit | None]:
        """The last commits at the version of the handle.

        Raises:
            StreamClientException: the table knows of a commit that its log does not hold any more.
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
                    f"{self._location.url} knows commit {order} of shard {shard}, but its log does not hold it any "
                    f"more, its last one there is {self._lasts.get(shard) or 'none'} (something other than "
                    "streamclient's maintenance has cleared or altered the log, or restored an older version): go on "
                    "in another destination"
                )
            self._certain.add(shard)
        return {shard: self._lasts.get(shard) for shard in shards}

    def note(self, version: int, commits: Iterable[Commit]) -> None:
        """Remember own commits, if nobody else committed in between: then their entry need not be read."""
        if version == self._seen + 1:
            self._seen = version
            self._take([LogEntry(str(version), tuple(commits))])

    def entries(self, version: int, since: int = 0) -> Iterator[LogEntry]:
        """All entries with commits, and what is lost between them, oldest first, from one version up to another."""
        for start in range(since or self.first_version(version), version + 1, _CHUNK):
            wanted = range(start, min(start + _CHUNK, version + 1))
            found = read_entries(self._location, wanted)
            for one in wanted:
                if one not in found:
                    yield LogEntry(str(one), damage=f"entry {one} is not in the log any more")
                elif (entry := found[one]) is not None:
                    yield entry

    def first_version(self, version: int) -> int:
        """The oldest version whose entry is there.

        A log is cleared from its beginning, so it is found by halving; below entries that are lost there are more.
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
            entries = [one for one in found.values() if one is not None]
            if len(found) < version - self._seen or any(one.damage for one in entries):
                # Away for so long that entries are cleared by now, or what stood there cannot be read: transactions
                # say which commits must be found.
                self._seen = -1
            else:
                self._seen = version
                self._take(entries)
        if self._seen < 0 or version < self._seen:
            self._lasts, self._certain = {}, set()
            self._seen, self._oldest = version, version + 1

    def _look_back(self, orders: Mapping[str, int | None]) -> None:
        """Read back until the commits with these orders, those of the table's transactions, are found.

        A writer that was frozen may have put its entry into a place of the log that had been cleared. Such an entry is
        not part of the table, whose transactions do not name its commits; so what is above them is passed over. Where
        nobody had asked for its shard yet it is taken, and an error when somebody does; then all is read anew.
        """
        chunk = _FIRST_LOOK
        while self._oldest > 0 and any(self._order(shard) != order for shard, order in orders.items()):
            start = max(0, self._oldest - chunk)
            found = read_entries(self._location, range(start, self._oldest))
            self._oldest = start if found else 0
            self._take((one for one in found.values() if one is not None), orders)
            chunk *= 4

    def _take(self, entries: Iterable[LogEntry], orders: Mapping[str, int | None] | None = None) -> None:
        # A disputed commit is never passed over: that its order is not the transaction's must show.
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
    """The log entries of these versions, by version; ``None`` for one without commits. Absent ones are left out."""
    return {version: entry_of(str(version), text) for version, text in read_files(location, versions).items()}


def read_files(location: Location, versions: range) -> dict[int, bytes]:
    """The files of the log of these versions, by version. Absent ones are left out."""
    if not versions:
        return {}
    names = {version: f"_delta_log/{version:020d}.json" for version in versions}
    handler = load("deltalake.fs", "delta").DeltaStorageHandler(
        location.url, location.options, dict.fromkeys(names.values(), ENTRY_BYTES_MAX)
    )

    def read(name: str) -> bytes | None:
        try:
            # Into a buffer of the file's own making: pyarrow's `readall` makes room for all of the length that the file
            # is said to have, and keeps that if there is no file.
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
    """Whether there is nothing in a file. Its first byte was asked for, and that is an error then."""
    (found,) = load("deltalake.fs", "delta").DeltaStorageHandler(location.url, location.options).get_file_info([name])
    return bool(found.size == 0)


def entry_of(place: str, text: bytes) -> LogEntry | None:
    """Our entry in a file of Delta's log; ``None`` if it has none."""
    if not text:
        return LogEntry(
            place, damage=f"entry {place} is empty, as after a power loss: what was committed there is lost"
        )
    try:
        actions = [json.loads(one) for one in text.splitlines() if b'"commitInfo"' in one or b'"txn"' in one]
        found = next((one["commitInfo"][ENTRY] for one in actions if ENTRY in one.get("commitInfo", {})), None)
        orders = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        return LogEntry(place, damage=f"entry {place} is unreadable: {error!r}")
    if found is None:
        return None
    entry = LogEntry.from_json(place, found)
    disputed = tuple(
        one for one in entry.commits if orders.get(transaction_of(one.application, one.shard)) != one.order
    )
    if not disputed:
        return entry
    damage = f"entry {place} has transactions of other epochs or numbers than its commits"
    return evolve(entry, damage=damage, disputed=disputed)


def digests_up_to(lasts: Iterable[Commit], entries: Iterable[LogEntry]) -> set[str]:
    """Digests of the commits in these entries that are the last ones or lead to them.

    That an entry has a commit does not say that the table has it; see ``DeltaLog``.
    """
    before = {one.digest: one.previous_digest for entry in entries for one in entry.commits}
    found: set[str] = set()
    for last in lasts:
        digest = last.digest if last.digest in before else last.previous_digest  # carried on, its own entry is cleared
        while digest in before and digest not in found:
            found.add(digest)
            digest = before[digest]
    return found


def transaction_of(application: str, shard: str) -> str:
    """Name of the Delta transaction that fences a shard."""
    return f"{application}/{shard}"
