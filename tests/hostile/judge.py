"""What consumers did and said, and whether it was right."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from attrs import define, field, frozen

LONGEST_TEXT = 4_096
"""Nobody reads more of one reason; what a stranger sent belongs into none of them at length."""

SHOWN = 5
"""Examples of each law that is broken."""


class Act(Enum):
    """What happened."""

    BEGAN = "a processor began"
    DELIVERED = "a record was handed over"
    STORED = "all that a processor was given is stored"
    SAID = "trouble was named"
    ENDED = "the consumer ended with an error that it names"
    CRASHED = "something of ours raised where nobody catches it"


@frozen
class Event:
    """One thing that happened, in the order of time."""

    act: Act
    life: str = ""
    """The processor, or the run of a consumer without processors."""
    key: int = 0
    value: int = 0
    text: str = ""


@define(eq=False)
class Journal:
    """Events of one case. Thread-safe."""

    _lock: threading.Lock = field(factory=threading.Lock)
    _events: list[Event] = field(factory=list)
    _values: set[int] = field(factory=set)

    def note(self, act: Act, life: str = "", text: str = "") -> None:
        """Add what is not a delivery."""
        with self._lock:
            self._events.append(Event(act, life, text=text))

    def deliver(self, life: str, records: Iterable[tuple[int, int]]) -> None:
        """Add records, given as key and value."""
        with self._lock:
            for key, value in records:
                self._events.append(Event(Act.DELIVERED, life, key, value))
                self._values.add(value)

    @property
    def events(self) -> list[Event]:
        """All so far."""
        with self._lock:
            return list(self._events)

    def texts(self, *acts: Act) -> list[str]:
        """What was said by such events."""
        return [event.text for event in self.events if event.act in acts]

    @property
    def has_deliveries(self) -> bool:
        """Whether any record was delivered."""
        with self._lock:
            return bool(self._values)

    def has(self, written: Mapping[int, Sequence[int]]) -> bool:
        """Whether all records were delivered."""
        with self._lock:
            return all(value in self._values for values in written.values() for value in values)


def judge(written: Mapping[int, Sequence[int]], events: Sequence[Event]) -> list[str]:
    """Which laws of delivery are broken. Values are unique, and rise in the order in which they were written."""
    return [
        *_few("lost", _lost(written, events)),
        *_few("never written", _foreign(written, events)),
        *_few("delivered twice", _doubled(events)),
        *_few("out of order", _disorder(events)),
        *_texts(events),
    ]


def _few(law: str, found: Iterable[str]) -> list[str]:
    texts = list(found)
    more = [f"{law}: {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return [*(f"{law}: {text}" for text in texts[:SHOWN]), *more]


def _delivered(events: Iterable[Event]) -> Iterator[Event]:
    return (event for event in events if event.act is Act.DELIVERED)


def _lost(written: Mapping[int, Sequence[int]], events: Sequence[Event]) -> Iterator[str]:
    came = {event.value for event in _delivered(events)}
    return (f"value {value} of key {key}" for key, values in written.items() for value in values if value not in came)


def _foreign(written: Mapping[int, Sequence[int]], events: Sequence[Event]) -> Iterator[str]:
    known = {(key, value) for key, values in written.items() for value in values}
    return (
        f"value {event.value} of key {event.key}"
        for event in _delivered(events)
        if (event.key, event.value) not in known
    )


def _doubled(events: Sequence[Event]) -> Iterator[str]:
    """A record may come again only to another processor, if it was not stored, and trouble was named in between."""
    latest: dict[int, tuple[str, int]] = {}
    given: dict[str, set[int]] = {}
    stored: set[int] = set()
    said_at = -1
    for place, event in enumerate(events):
        if event.act is Act.STORED:
            stored |= given.get(event.life, set())
        elif event.act in (Act.SAID, Act.ENDED):
            said_at = place
        elif event.act is Act.DELIVERED:
            life, before = latest.get(event.value, ("", -1))
            if life == event.life:
                yield f"value {event.value} of key {event.key}, to one processor ({life})"
            elif event.value in stored:
                yield f"value {event.value} of key {event.key}, although it was stored"
            elif life and said_at < before:
                yield f"value {event.value} of key {event.key}, and nothing was said before"
            latest[event.value] = (event.life, place)
            given.setdefault(event.life, set()).add(event.value)


def _disorder(events: Sequence[Event]) -> Iterator[str]:
    """A processor sees values of a key rise, and so does whoever counts each value when it comes first."""
    highest: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    for event in _delivered(events):
        views = [event.life] if event.value in seen else [event.life, "all"]
        for view in views:
            last = highest.get((view, event.key), 0)
            if event.value < last:
                yield f"value {event.value} of key {event.key} after {last} ({view})"
            highest[view, event.key] = max(last, event.value)
        seen.add(event.value)


def _texts(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if event.act is Act.CRASHED:
            yield f"crashed: {event.text}"
        elif event.act in (Act.SAID, Act.ENDED):
            yield from (f"badly said: {why}: {event.text[:200]!r}" for why in _faults_of(event.text))


def _faults_of(text: str) -> Iterator[str]:
    if not text.strip():
        yield "nothing"
    if "Traceback (most recent call last)" in text:
        yield "a traceback"
    if len(text) > LONGEST_TEXT:
        yield f"{len(text)} characters"
    if any(ord(character) < ord(" ") and character != "\n" for character in text):
        yield "control characters"
