"""The journal of a tunnel's changed parts, so that the storage gets them. A hook of attrs notes each assignment."""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import Attribute


class PartKind(Enum):
    """The kinds of a tunnel's stored parts. The values are the names in the storage."""

    TUNNEL = "tunnel"
    CHANNEL = "channel"
    SESSION = "session"


Part = tuple[PartKind, str]
"""The name of a stored part of a tunnel: its kind, and the id of the channel or session. For the tunnel's own fields,
the id is empty."""


class ChangedParts:
    """The parts of one tunnel that changed after they were last stored."""

    def __init__(self, tunnel_id: str, changed_tunnels: set[str]) -> None:
        self._tunnel_id = tunnel_id
        self._changed_tunnels = changed_tunnels
        self._parts: set[Part] = set()

    def note(self, kind: PartKind, part_id: str = "") -> None:
        """Note that a part of the tunnel is new, changed or deleted."""
        self._parts.add((kind, part_id))
        self._changed_tunnels.add(self._tunnel_id)

    def take(self) -> set[Part]:
        """Return the changed parts, and forget them, because the caller stores them."""
        parts, self._parts = self._parts, set()
        return parts


def noted(instance: Any, attribute: Attribute[object], value: object) -> object:
    """Note a change of a stored attribute in the journal of ``instance``; return ``value``, which attrs then assigns.

    attrs calls this function before each assignment.
    """
    journal = instance.journal
    if journal is not None and value != getattr(instance, attribute.name):
        journal.note(*instance.part)
    return value
