"""The story of a stream for a picture: shards over time as bands, and their owners as spans. Pure.

The caller passes each reading of the stream with its time. The service lists shards with their parents, but without key
ranges and times. So a shard is assumed to have opened at the time of the first reading that showed it, and its key
range is guessed from its parents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import TypedDict

from attrs import define, field

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.model import Lease, Shard

KEEP_MICROS = 24 * 3_600 * MICROS_PER_SECOND
"""The time, in microseconds, for which a story book remembers a shard that left the stream. The picture in the browser
reaches back at most by the retention, which is a day by default."""

Ranges = Mapping[str, tuple[float, float]]
"""The key range of each shard, by its id: from and to, as shares of the key space from 0 to 1."""


class Band(TypedDict):
    """One shard in the picture, from its opening to its closing.

    The shard's keys reach from ``low`` to ``high``, as shares of the key space from 0 to 1.
    """

    shard: str
    parents: list[str]
    low: float
    high: float
    is_range_known: bool
    """False if the key range was guessed from the parents."""
    opened_micros: int | None
    """The time at which the shard was opened; ``None`` if the first reading already showed the shard."""
    closed_micros: int | None
    """The time at which the shard was closed; ``None`` if it is open. A shard that was closed before the first reading
    has no band."""
    owner: str
    read_to_micros: int | None
    """The time of the next unread record, or the end of the band if every record is read; ``None`` if unknown."""
    situation: str
    """The situation of the shard, in the words of ``explain``; empty if no lease is known."""
    moves: bool
    """False if the shard stands still until an operator acts."""


class OwnerSpan(TypedDict):
    """The time during which a worker was the owner of a shard."""

    shard: str
    owner: str
    from_micros: int
    to_micros: int


class Story(TypedDict):
    """The content of a picture of a stream between two times. Times are microseconds since 1970."""

    from_micros: int
    now_micros: int
    loss_micros: int | None
    """The time before which retention has removed all records; ``None`` if the time is not known."""
    bands: list[Band]
    spans: list[OwnerSpan]


@define(eq=False)
class _SeenShard:
    parents: tuple[str, ...]
    opened: int | None
    closed: int | None = None
    is_closed: bool = False
    left: int | None = None
    lease: Lease | None = None
    read_to: int | None = None
    is_reading_known: bool = False
    owners: list[tuple[str, int, int | None]] = field(factory=list)
    """Each owner, with the times of two readings: the first one that showed this owner, and the first one that did not
    show it any more. The second time is ``None`` for the present owner."""


class StoryBook:
    """Collects readings of one stream, and makes a story of them. Not thread-safe."""

    def __init__(self) -> None:
        self._shards: dict[str, _SeenShard] = {}
        self._known: dict[str, tuple[float, float]] = {}
        self._has_rows = self._has_looked = False

    def saw(
        self,
        listing: Iterable[Shard],
        rows: Mapping[str, Lease],
        now_micros: int,
        *,
        ranges: Ranges | None = None,
        opened: Mapping[str, int] | None = None,
        closed: Mapping[str, int] | None = None,
        next_records: Mapping[str, int] | None = None,
        unknown: Collection[str] = (),
    ) -> None:
        """Add a reading of the list of shards and of their lease rows. It must not be older than the last reading.

        Args:
            listing: the shards that the stream lists.
            rows: the leases, by shard.
            now_micros: the time of the reading. All times are microseconds since 1970.
            ranges: known key ranges, by shard; the ranges of other shards are guessed.
            opened: known times of opening, by shard.
            closed: known times of closing, by shard.
            next_records: the time of the oldest unread record of each shard that has one. Without this argument, it is
                unknown how far any shard is read.
            unknown: the shards of which it is unknown how far they are read, although ``next_records`` is given.
        """
        self._known.update(ranges or {})
        shards = {shard.shard_id: shard for shard in listing}
        for name, shard in shards.items():
            if name not in self._shards:
                since = now_micros if self._has_looked else None
                parents = tuple(each for each in (shard.parent_id, shard.parent_sibling_id) if each)
                self._shards[name] = _SeenShard(parents, (opened or {}).get(name, since))
        self._close(shards.keys(), now_micros, closed or {})
        for name, seen in self._shards.items():
            row = rows.get(name)
            _change_hands(seen, row.owner if row is not None else "", now_micros)
            seen.lease = row
            seen.is_reading_known = next_records is not None and name not in unknown
            seen.read_to = (next_records or {}).get(name)
        self._has_rows, self._has_looked = self._has_rows or bool(rows), True
        self._forget(now_micros - KEEP_MICROS)

    def _close(self, listed: Iterable[str], now_micros: int, closed: Mapping[str, int]) -> None:
        """Mark shards as closed if they have children or a time in ``closed``.

        Shards that are not in ``listed`` have left the stream. Mark them as left, and as closed, too.
        """
        parents = {parent: seen.opened for seen in self._shards.values() for parent in seen.parents}
        for name, seen in self._shards.items():
            if not seen.is_closed and (name in parents or name in closed):
                seen.is_closed, seen.closed = True, closed.get(name, parents.get(name))
            if seen.left is None and name not in listed:
                seen.left = now_micros
                if not seen.is_closed:  # its children may have come and left between two readings
                    seen.is_closed, seen.closed = True, now_micros

    def _forget(self, before_micros: int) -> None:
        for name in [name for name, seen in self._shards.items() if (seen.left or before_micros) < before_micros]:
            del self._shards[name]

    def story(self, from_micros: int, now_micros: int, loss_micros: int | None = None) -> Story:
        """Return the story from ``from_micros`` to ``now_micros``, without shards that were closed earlier."""
        ranges = key_ranges({name: seen.parents for name, seen in self._shards.items()}, self._known)
        shown = {name: seen for name, seen in self._shards.items() if _is_between(seen, from_micros, now_micros)}
        return Story(
            from_micros=from_micros,
            now_micros=now_micros,
            loss_micros=loss_micros,
            bands=[self._band(name, seen, ranges[name], now_micros) for name, seen in shown.items()],
            spans=[
                OwnerSpan(shard=name, owner=owner, from_micros=max(since, from_micros), to_micros=end)
                for name, seen in shown.items()
                for owner, since, until in seen.owners
                if (end := min(now_micros if until is None else until, now_micros)) > max(since, from_micros)
            ],
        )

    def _band(self, name: str, seen: _SeenShard, keys: tuple[float, float], now_micros: int) -> Band:
        situation = self._situation(seen)
        return Band(
            shard=name,
            parents=list(seen.parents),
            low=keys[0],
            high=keys[1],
            is_range_known=name in self._known,
            opened_micros=seen.opened,
            closed_micros=seen.closed,
            owner=seen.lease.owner if seen.lease is not None else "",
            read_to_micros=_read_to(seen, now_micros),
            situation=situation,
            moves=situation != "paused",
        )

    def _situation(self, seen: _SeenShard) -> str:
        """Return the word for the situation that the lease row alone shows.

        The row does not show why an owner makes no progress.
        """
        lease = seen.lease
        if lease is None:
            return "no-row-yet" if self._has_rows and seen.left is None else ""
        if lease.is_finished:
            return "finished"
        if lease.pause is not None:
            return "paused" if lease.is_paused_by_owner else "pause-pending"
        if lease.is_marked or lease.is_handed_over:
            return "changing-hands"
        if any(self._is_unread(parent) for parent in seen.parents):
            return "waits-for-parent"
        return "held" if lease.owner else "free"

    def _is_unread(self, name: str) -> bool:
        seen = self._shards.get(name)
        return seen is not None and seen.left is None and (seen.lease is None or not seen.lease.is_finished)


def _change_hands(seen: _SeenShard, owner: str, now_micros: int) -> None:
    last = seen.owners[-1] if seen.owners and seen.owners[-1][2] is None else None
    if last is not None and last[0] != owner:
        seen.owners[-1] = (last[0], last[1], now_micros)
    if owner and (last is None or last[0] != owner):
        seen.owners.append((owner, now_micros, None))


def _is_between(seen: _SeenShard, from_micros: int, now_micros: int) -> bool:
    """Return whether a shard was open at some time from ``from_micros`` to ``now_micros``.

    Return ``False`` for a shard that was closed before the first reading.
    """
    ended = (seen.closed if seen.closed is not None else from_micros) if seen.is_closed else now_micros
    return ended > from_micros and (seen.opened is None or seen.opened <= now_micros)


def _read_to(seen: _SeenShard, now_micros: int) -> int | None:
    end = seen.closed if seen.is_closed and seen.closed is not None else now_micros
    if seen.lease is not None and seen.lease.is_finished:
        return end
    if not seen.is_reading_known:
        return None
    return end if seen.read_to is None else min(seen.read_to, end)


def key_ranges(parents: Mapping[str, tuple[str, ...]], known: Ranges | None = None) -> dict[str, tuple[float, float]]:
    """Return the key range of every shard: the range in ``known``, or a guess.

    ``parents`` has the parents of each shard. Shards without listed parents share the key space evenly, in the order of
    their ids. The children of one parent share its keys in the same way. A merged shard has the keys of its parents, or
    of the first parent if the parents are not neighbours. If all ranges are guesses, open shards never overlap. Shards
    that are each other's parents have the empty range.
    """
    known = known or {}
    children: dict[str, list[str]] = {name: [] for name in parents}
    missing = {name: {parent for parent in above if parent in parents} for name, above in parents.items()}
    for name, above in missing.items():
        for parent in above:
            children[parent].append(name)
    roots = sorted(name for name, above in missing.items() if not above)
    found = {name: (place / len(roots), (place + 1) / len(roots)) for place, name in enumerate(roots)}
    found.update((name, known[name]) for name in roots if name in known)
    waiting = deque(roots)
    while waiting:
        parent = waiting.popleft()
        for place, name in enumerate(sorted(children[parent])):
            if name in found:
                continue
            if len(missing[name]) == 1:
                guess = _part(found[parent], place, len(children[parent]))
            elif missing[name] <= found.keys():
                guess = _sum([found[each] for each in sorted(missing[name])])
            else:
                continue
            found[name] = known.get(name, guess)
            waiting.append(name)
    return {name: found.get(name, known.get(name, (0.0, 0.0))) for name in parents}


def _part(keys: tuple[float, float], place: int, parts: int) -> tuple[float, float]:
    low, high = keys
    return low + (high - low) * place / parts, low + (high - low) * (place + 1) / parts


def _sum(ranges: list[tuple[float, float]]) -> tuple[float, float]:
    ranges = sorted(ranges)
    is_whole = all(abs(left[1] - right[0]) < 1e-9 for left, right in pairwise(ranges))
    return (ranges[0][0], ranges[-1][1]) if is_whole else ranges[0]
