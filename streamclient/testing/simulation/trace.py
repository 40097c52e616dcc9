"""The events of one history, as lines that can be printed, searched and digested."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Protocol

from attrs import define, field

Entry = tuple[float, str, str, str, object]
"""Time, actor, event, lease (or nothing), and further detail."""


class Observer(Protocol):
    """An observer of a running history."""

    def noted(self, entry: Entry) -> None:
        """Take an entry from outside the cores."""

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """Take an event that the core of the process ``label`` handled, with the commands of its answer."""


@define(eq=False)
class Trace:
    """Every change of a row, start and end of a consumer, answer, report and fault, in order."""

    entries: list[Entry] = field(factory=list)
    listener: Callable[[Entry], None] | None = None
    """Called with every entry as it is made."""

    def note(self, now: float, actor: str, what: str, lease_key: str = "", detail: object = "") -> None:
        """Add an entry. ``detail`` is made into text only on demand."""
        entry = (now, actor, what, lease_key, detail)
        self.entries.append(entry)
        if self.listener is not None:
            self.listener(entry)

    def about(self, lease_key: str, last: int) -> list[str]:
        """Return the last ``last`` lines about a lease, and about no lease at all."""
        found = [entry for entry in self.entries if entry[3] in ("", lease_key)]
        return [line_of(entry) for entry in found[-last:]]

    def digest(self) -> str:
        """Return a short text that is equal only if the same things happened at the same times."""
        return digest_of(line_of(entry) for entry in self.entries)


def line_of(entry: Entry) -> str:
    """Return an entry as a line."""
    now, actor, what, lease_key, detail = entry
    return " ".join(part for part in (f"{now:10.3f}", f"{actor:8}", what, lease_key, _text(detail)) if part)


def digest_of(lines: Iterable[str]) -> str:
    """Return the first digits of the SHA-256 of some lines."""
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text(detail: object) -> str:
    if isinstance(detail, tuple):
        return " -> ".join(str(part or "absent") for part in detail)
    return str(detail)
