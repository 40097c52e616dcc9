"""The document of a history, for a page that shows what happened to a simulated fleet.

Times are seconds of simulated time. The document becomes JSON, where tuples become lists. The long lists hold tuples
and not objects, because the names of members would be most of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypedDict

FORMAT: Final = "streamclient-history-1"

MOST_EVENTS = 3_000
"""The largest number of events in a document. A browser lists this number of events in 0.1 s; their JSON has 200 kB."""

TIME_DIGITS = 2
"""The number of decimal digits of times in a document, except in the text of a violation. A picture shows only tenths
of seconds."""

Kind = Literal["fault", "trouble", "owner", "position"]
"""The kinds of events by which a page filters, the most important kind first."""

KINDS: tuple[Kind, ...] = ("fault", "trouble", "owner", "position")

Event = tuple[float, str, Kind, str, str]
"""One event: its time, actor, kind, shard and text. The shard is empty if the event concerns no shard."""

Span = tuple[str, str, float, float, Literal["owns", "reads"]]
"""A time range in which an actor had a shard: the shard, the actor, the beginning, the end, and ``owns`` or ``reads``.
An owner is named as in the lease row, and a reader by the label of its process."""

Stored = tuple[float, str, int | None]
"""One stored position: the time, the shard, and the number of the next record to read; ``None`` for the end of the
shard."""


class HistoryViolation(TypedDict):
    """A broken law, with the shard, the time and a text about the violation."""

    law: str
    shard: str
    at: float
    text: str


class HistoryShard(TypedDict):
    """One shard. It holds the keys from ``low`` to ``high``, which are shares of the key space."""

    shard: str
    parents: list[str]
    low: float
    high: float
    opened: float
    closed: float | None
    """The time when the shard was closed; ``None`` if it is open at the end of the history."""
    left: float | None
    """The time when the shard left the stream's list of shards; ``None`` if the list still has the shard."""
    first_write: int
    """The index of a time in the document's ``writes``. The first digit of ``records`` belongs to this time."""
    records: str
    """The numbers of records written to the shard, one digit for each time in ``writes`` from ``first_write`` on."""


class HistoryLife(TypedDict):
    """One process of a worker, from its start to its end."""

    worker: str
    label: str
    """The worker's name, and the number of this process among the processes that had this name."""
    client: Literal["python", "java"]
    started: float
    ended: float | None
    """The time when the process ended; ``None`` if it is alive at the end of the history."""
    manner: str
    """The way in which the process ended: ``killed``, ``stopped`` or ``died``; empty for a process that is alive."""
    frozen: list[tuple[float, float]]


class HistoryFault(TypedDict):
    """A fault of the history, or another planned action of it, for example the start of a worker."""

    at: float
    kind: str
    worker: str
    """The name of the worker; empty if the fault concerns no worker, or all workers."""
    seconds: float
    """The duration of the fault, in seconds; 0 for a fault without a duration."""
    text: str


class HistoryDocument(TypedDict):
    """The whole document of one history, which is one simulated run."""

    format: Literal["streamclient-history-1"]
    seed: int
    digest: str
    """The digest that ``streamclient simulate`` prints for the same plan; empty for simulations without a digest."""
    seconds: float
    handled: int
    """The total number of events that the decision cores of all workers handled."""
    calm: float | None
    """The time when all faults ended; ``None`` if the history ended earlier."""
    violation: HistoryViolation | None
    writes: list[float]
    """The times at which records were written, in ascending order."""
    shards: list[HistoryShard]
    lives: list[HistoryLife]
    spans: list[Span]
    checkpoints: list[Stored]
    faults: list[HistoryFault]
    events: list[Event]
    events_left_out: int


def moment(seconds: float) -> float:
    """Return a time in seconds, rounded to the ``TIME_DIGITS`` of documents."""
    return round(seconds, TIME_DIGITS)


def chosen_events(events: Sequence[Event], most: int = MOST_EVENTS) -> list[Event]:
    """Return at most ``most`` of ``events``, in the given order.

    Events are chosen kind by kind, in the order of ``KINDS``, as long as all events of a kind fit. The first kind whose
    events do not all fit keeps only its last events. Events of later kinds are left out.
    """
    left, kept = most, set[int]()
    for kind in KINDS:
        places = [place for place, event in enumerate(events) if event[2] == kind]
        kept.update(places[max(0, len(places) - left) :])
        left = most - len(kept)
    return [event for place, event in enumerate(events) if place in kept]


def records_of(times: Iterable[float], writes: Mapping[float, int]) -> tuple[int, str]:
    """Return ``first_write`` and ``records`` of a ``HistoryShard``.

    ``times`` are the ascending times at which the shard's records were written. ``writes`` maps each time to its index
    in the document's ``writes``. At most nine records of a shard may have the same time.
    """
    places = [writes[time] for time in times]
    if not places:
        return 0, ""
    counts = [0] * (places[-1] - places[0] + 1)
    for place in places:
        counts[place - places[0]] += 1
    return places[0], "".join("0123456789"[count] for count in counts)
