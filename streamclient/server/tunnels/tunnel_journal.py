"""The changed parts of a tunnel, for the storage. attrs notes them at each assignment."""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import Attribute


class PartKind(Enum):
    """The kinds of a tunnel's stored parts, as the storage spells them."""

    TUNNEL = "tunnel"
    CHANNEL = "channel"
    SESSION = "session"


Part = tuple[PartKind, str]
"""A part of a tunnel: its kind, and the id of the channel or session."""


class ChangedParts:
    """The parts of one tunnel that changed since they were last stored."""

    def __init__(self, tunnel_id: str, changed_tunnels: set[str]) -> None:
        self._tunnel_id = tunnel_id
        self._changed_tunnels = changed_tunnels
        self._parts: set[Part] = set()

    def note(self, kind: PartKind, part_id: str = "") -> None:
        """Record that a part is new, changed or deleted."""
        self._parts.add((kind, part_id))
        self._changed_tunnels.add(self._tunnel_id)

    def take(self) -> set[Part]:
        """Return the changed parts to store, and forget them."""
        parts, self._parts = self._parts, set()
        return parts


def noted(instance: Any, attribute: Attribute[object], value: object) -> object:
    """Record an assignment to a stored attribute. attrs calls this function."""
    journal = instance.journal
    if journal is not None and value != getattr(instance, attribute.name):
        journal.note(*instance.part)
    return value
