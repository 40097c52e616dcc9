"""The entries of a Delta table's log that hold commits, read without holding up the other threads of the process.

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

from streamclient.destinations.commit import Commit, LogEntry, last_of
from streamclient.destinations.extra import load
from streamclient.destinations.stores import Location
from streamclient.errors import StreamClientException

if TYPE_CHECKING:
    from deltalake import DeltaTable

ENTRY = "streamclient"
"""Key of our entry in the metadata of a Delta commit."""

_ENTRY_BYTES_MAX = 1 << 28
"""Length that entries are read with. One with commits of 10,000 shards has 5 MB."""

_READERS = 8
"""Entries that are read at once: enough to hide the latency of a store, few enough for its limits."""

_FIRST_LOOK = 32
"""Entries read at first to find the last commits of some shards; then four times as many, and so on. Shards that moved
lately are found at once, and one that has been idle for long costs one reading of the log."""

_CHUNK = 1_000
"""Entries that are in memory at once when all are read."""


class DeltaLog:
    """What one handle knows of the log: the last commit of each shard that it was asked for. Used by one thread."""

    def __init__(self, location: Location, application: str) -> None:
        self._location = location
        self._application = application
        self._seen = -1
        self._oldest = 0
        """Entries from here to ``_seen`` were read."""
        self._lasts: dict[str, Commit] = {}
        self._absent: set[str] = set()
        """Shards without a commit up to ``_seen``."""

    def transaction(self, shard: str) -> str:
        """Name of the Delta transaction that fences a shard."""
        return f"{self._application}/{shard}"

    def last_commits(self, handle: DeltaTable, shards: Sequence[str]) -> dict[str, Commit | None]:
        """The last commits at the version of the handle.

        Raises:
            StreamClientException: the table knows of a commit that its log does not hold any more.
        """
        self._read_up_to(handle.version())
        orders = {
            shard: handle.transaction_version(self.transaction(shard))
            for shard in shards
            if shard not in self._lasts and shard not in self._absent
        }
        self._absent.update(shard for shard, order in orders.items() if order is None)
        self._look_back(shard for shard, order in orders.items() if order is not None)
        for shard, order in orders.items():
            known = self._lasts.get(shard)
            if order is not None and (known is None or known.order != order):
                raise StreamClientException(
                    f"{self._location.url} knows commit {order} of shard {shard}, but its log does not hold it any "
                    "more (something other than streamclient's maintenance has cleared it, or restored an older "
                    "version): go on in another destination"
                )
        return {shard: self._lasts.get(shard) for shard in shards}

    def note(self, version: int, commits: Iterable[Commit]) -> None:
        """Remember own commits, if nobody else committed in between: then their entry need not be read."""
        if version == self._seen + 1:
            self._seen = version
            self._take([LogEntry(str(version), tuple(commits))])

    def entries(self, version: int) -> Iterator[LogEntry]:
        """All entries with commits, oldest first, up to a version."""
        for start in range(self.first_version(version), version + 1, _CHUNK):
            found = read_entries(self._location, range(start, min(start + _CHUNK, version + 1)))
            yield from (entry for _, entry in sorted(found.items()) if entry is not None)

    def first_version(self, version: int) -> int:
        """The oldest version whose entry is there: the log only ever loses its beginning."""
        absent, present = -1, version
        while present - absent > 1:
            middle = (absent + present) // 2
            if read_entries(self._location, range(middle, middle + 1)):
                present = middle
            else:
                absent = middle
        return present

    def _read_up_to(self, version: int) -> None:
        if self._seen >= 0 and version > self._seen:
            found = read_entries(self._location, range(self._seen + 1, version + 1))
            if len(found) < version - self._seen:
                # Away for so long that entries are cleared by now: what was carried on stands in later ones.
                self._seen = -1
            else:
                self._seen = version
                self._take(one for one in found.values() if one is not None)
        if self._seen < 0 or version < self._seen:
            self._lasts, self._absent = {}, set()
            self._seen, self._oldest = version, version + 1

    def _look_back(self, shards: Iterable[str]) -> None:
        missing = {shard for shard in shards if shard not in self._lasts}
        chunk = _FIRST_LOOK
        while missing and self._oldest > 0:
            start = max(0, self._oldest - chunk)
            found = read_entries(self._location, range(start, self._oldest))
            is_whole = len(found) == self._oldest - start
            self._oldest = start if is_whole else 0
            self._take(one for one in found.values() if one is not None)
            missing -= self._lasts.keys()
            chunk *= 4

    def _take(self, entries: Iterable[LogEntry]) -> None:
        for shard, commit in last_of(entries, self._application).items():
            known = self._lasts.get(shard)
            if known is None or commit.order > known.order:
                self._lasts[shard] = commit
            self._absent.discard(shard)


def read_entries(location: Location, versions: range) -> dict[int, LogEntry | None]:
    """The log entries of these versions, by version; ``None`` for one without commits. Absent ones are left out."""
    return {version: entry_of(str(version), text) for version, text in read_files(location, versions).items()}


def read_files(location: Location, versions: range) -> dict[int, bytes]:
    """The files of the log of these versions, by version. Absent ones are left out."""
    if not versions:
        return {}
    names = {version: f"_delta_log/{version:020d}.json" for version in versions}
    handler = load("deltalake.fs", "delta").DeltaStorageHandler(
        location.url, location.options, dict.fromkeys(names.values(), _ENTRY_BYTES_MAX)
    )

    def read(name: str) -> bytes | None:
        try:
            return bytes(handler.open_input_file(name).readall())
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(min(_READERS, len(names)), "streamclient-delta-log") as pool:
        texts = dict(zip(names, pool.map(read, names.values()), strict=True))
    return {version: text for version, text in texts.items() if text is not None}


def entry_of(place: str, text: bytes) -> LogEntry | None:
    """Our entry in a file of Delta's log; ``None`` if it has none."""
    for line in text.splitlines():
        if b'"commitInfo"' not in line:
            continue
        try:
            action: Mapping[str, Mapping[str, str]] = json.loads(line)
        except ValueError as error:
            return LogEntry(place, damage=f"entry {place} is unreadable: {error}")
        if ENTRY in action.get("commitInfo", {}):
            return LogEntry.from_json(place, action["commitInfo"][ENTRY])
    return None
