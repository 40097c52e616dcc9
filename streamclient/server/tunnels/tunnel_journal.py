"""What is to be written down of a tunnel: the parts of it that changed, noted by attrs as they are assigned to."""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import Attribute


class PartKind(Enum):
    """What a tunnel is written down in, as the storage spells it."""

    TUNNEL = "tunnel"
    CHANNEL = "channel"
    SESSION = "session"


Part = tuple[PartKind, str]
"""A part of a tunnel: its kind, and the id of the channel or session."""


class ChangedParts:
    """Which parts of one tunnel changed since they were last written down."""

    def __init__(self, tunnel_id: str, changed_tunnels: set[str]) -> None:
        self._tunnel_id = tunnel_id
        self._changed_tunnels = changed_tunnels
        self._parts: set[Part] = set()

    def note(self, kind: PartKind, part_id: str = "") -> None:
        """A part is new, changed or gone."""
        self._parts.add((kind, part_id))
        self._changed_tunnels.add(self._tunnel_id)

    def take(self) -> set[Part]:
        """The parts to write down, once."""
        parts, self._parts = self._parts, set()
        return parts


def noted(instance: Any, attribute: Attribute[object], value: object) -> object:
    """What attrs calls when something that is kept is assigned to."""
    journal = instance.journal
    if journal is not None and value != getattr(instance, attribute.name):
        journal.note(*instance.part)
    return value
