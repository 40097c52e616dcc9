"""The document of a history, for a page that shows what happened to a simulated fleet.

Times are seconds of simulated time. The values are JSON's: a tuple is a list there, and the long lists hold tuples
because their members' names would be most of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypedDict

FORMAT: Final = "streamclient-history-1"

MOST_EVENTS = 3_000
"""The largest number of events in a document: a page lists that number in 0.1 s, and they take 200 kB."""

TIME_DIGITS = 2
"""The number of decimal digits of the seconds in a document, except in the text of a violation. A picture shows
tenths."""

Kind = Literal["fault", "trouble", "owner", "position"]
"""The kinds of events by which a page filters, the most important one first."""

KINDS: tuple[Kind, ...] = ("fault", "trouble", "owner", "position")

Event = tuple[float, str, Kind, str, str]
"""The time, the actor, the kind, the shard (or an empty text), and the text of one event."""

Span = tuple[str, str, float, float, Literal["owns", "reads"]]
"""A shard, an actor, and the beginning and end of the time in which the actor had the shard. An owner is the worker's
name in the row, a reader is the label of one process."""

Stored = tuple[float, str, int | None]
"""The time, the shard, and the number of the first record of the shard that the stored position leaves unread; ``None``
for the end of the shard."""


class HistoryViolation(TypedDict):
    """A broken law."""

    law: str
    shard: str
    at: float
    text: str


class HistoryShard(TypedDict):
    """One shard. Its keys are ``low`` to ``high``, as shares of the key space."""

    shard: str
    parents: list[str]
    low: float
    high: float
    opened: float
    closed: float | None
    """``None`` if the shard is open at the end of the history."""
    left: float | None
    """The time when the stream stopped listing the shard; ``None`` if it never did."""
    first_write: int
    """The place in ``writes`` of the first time to which ``records`` refers."""
    records: str
    """One digit for each time in ``writes`` from ``first_write`` on: the number of records written then."""


class HistoryLife(TypedDict):
    """One process, from its start to its end."""

    worker: str
    label: str
    """The worker's name with the number of its life."""
    client: Literal["python", "java"]
    started: float
    ended: float | None
    """``None`` if the process lives at the end of the history."""
    manner: str
    """The manner of the end: ``killed``, ``stopped`` or ``died``; empty for a process that lives."""
    frozen: list[tuple[float, float]]


class HistoryFault(TypedDict):
    """Something that was done to the fleet."""

    at: float
    kind: str
    worker: str
    """The worker; empty if the fault concerns no worker, or all workers."""
    seconds: float
    """The duration of the fault."""
    text: str


class HistoryDocument(TypedDict):
    """A whole history."""

    format: Literal["streamclient-history-1"]
    seed: int
    digest: str
    """The digest that the command prints for the same plan; empty if the simulation has none."""
    seconds: float
    handled: int
    """The number of events that the cores of all workers handled."""
    calm: float | None
    """The time when all faults ended; ``None`` if the history ended earlier."""
    violation: HistoryViolation | None
    writes: list[float]
    """The times at which records were written, ascending."""
    shards: list[HistoryShard]
    lives: list[HistoryLife]
    spans: list[Span]
    checkpoints: list[Stored]
    faults: list[HistoryFault]
    events: list[Event]
    events_left_out: int


def moment(seconds: float) -> float:
    """Return a time as it stands in a document."""
    return round(seconds, TIME_DIGITS)


def chosen_events(events: Sequence[Event], most: int = MOST_EVENTS) -> list[Event]:
    """Return at most ``most`` events, in their given order.

    Kinds are kept whole, in the order of ``KINDS``, while they fit. The first kind that does not fit keeps its last
    events.
    """
    left, kept = most, set[int]()
    for kind in KINDS:
        places = [place for place, event in enumerate(events) if event[2] == kind]
        kept.update(places[max(0, len(places) - left) :])
        left = most - len(kept)
    return [event for place, event in enumerate(events) if place in kept]


def records_of(times: Iterable[float], writes: Mapping[float, int]) -> tuple[int, str]:
    """Return ``first_write`` and ``records`` of a shard, from the times of its records and the place of each time.

    At most nine records of a shard may have the same time.
    """
    places = [writes[time] for time in times]
    if not places:
        return 0, ""
    counts = [0] * (places[-1] - places[0] + 1)
    for place in places:
        counts[place - places[0]] += 1
    return places[0], "".join("0123456789"[count] for count in counts)
