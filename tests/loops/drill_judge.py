"""The verdict on a drill of loops: what bodies were given and finished, and what the status table stored meanwhile.

The events stand in the order in which they happened, over all processes of the drill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from streamclient.model import CheckpointPosition

BEGINNING, END = CheckpointPosition.TRIM_HORIZON, CheckpointPosition.SHARD_END

Place = tuple[int, ...]
"""Of a change in its shard; later ones are greater."""


@frozen
class Change:
    """The change of a key with this number; a key's numbers begin with 1 and have no gap."""

    key: str
    number: int
    place: Place


@frozen
class Given:
    """A body begins with a batch."""

    shard: str
    position: str
    changes: tuple[Change, ...]


@frozen
class Done:
    """The body of a batch has ended, or commits it: nothing of it need come again."""

    shard: str
    position: str


@frozen
class Stored:
    """The status table holds this position of a shard."""

    shard: str
    position: str


Event = Given | Done | Stored


@define
class _Shard:
    given: dict[str, tuple[Change, ...]] = field(factory=dict)
    """By position: the batch that was given last."""
    places: dict[str, Place] = field(factory=dict)
    """By position: the last change before it."""
    seen: dict[Place, Change] = field(factory=dict)
    done: set[Place] = field(factory=set)


def judge(events: Sequence[Event], written: Mapping[str, int]) -> list[str]:
    """Everything that must not be, in words.

    Args:
        events: what happened, in order.
        written: the number of changes of each key.
    """
    problems: list[str] = []
    shards: defaultdict[str, _Shard] = defaultdict(_Shard)
    last: defaultdict[str, int] = defaultdict(int)
    for event in events:
        shard = shards[event.shard]
        match event:
            case Given():
                places = [change.place for change in event.changes]
                if places != sorted(places):
                    problems.append(f"shard {event.shard}: the batch up to {event.position} is out of order")
                shard.given[event.position] = event.changes
                shard.places[event.position] = max(places)
                shard.seen.update(zip(places, event.changes, strict=True))
            case Done():
                changes = shard.given[event.position]
                shard.done.update(change.place for change in changes)
                problems += _gaps(changes, last)
            case Stored():
                problems += _excess(event, shard)
    for key, number in written.items():
        if last[key] < number:
            problems.append(f"key {key}: {number} changes were written, and {last[key]} finished")
    return problems


def _gaps(changes: Sequence[Change], last: dict[str, int]) -> list[str]:
    """Changes that are finished before the one before them ever was; repeats are none. Counts them in ``last``."""
    found = []
    for change in changes:
        if change.number > last[change.key] + 1:
            found.append(f"key {change.key}: change {change.number} is finished after change {last[change.key]}")
        last[change.key] = max(last[change.key], change.number)
    return found


def _excess(stored: Stored, shard: _Shard) -> list[str]:
    """Why a stored position is beyond what bodies finished, if it is."""
    if stored.position == BEGINNING:
        return []
    where = f"shard {stored.shard} is stored up to {stored.position}"
    if stored.position != END and stored.position not in shard.places:
        return [f"{where}, where no batch ended"]
    limit = max(shard.seen, default=()) if stored.position == END else shard.places[stored.position]
    left = sorted(place for place in shard.seen if place <= limit and place not in shard.done)
    if not left:
        return []
    first = shard.seen[left[0]]
    return [f"{where}, and {len(left)} changes up to there are not finished, such as {first.number} of key {first.key}"]
