"""Where records go that cannot be processed, and how they come back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamclient.parking.files import FileParkingStore
    from streamclient.parking.memory import MemoryParkingStore
    from streamclient.parking.replay import KeyLeft, ReplayReport, replay_parked
    from streamclient.parking.table import TableParkingStore

__all__ = ["FileParkingStore", "KeyLeft", "MemoryParkingStore", "ReplayReport", "TableParkingStore", "replay_parked"]

_HOMES = {
    "FileParkingStore": "files",
    "KeyLeft": "replay",
    "MemoryParkingStore": "memory",
    "ReplayReport": "replay",
    "TableParkingStore": "table",
    "replay_parked": "replay",
}
"""Public name to module; loaded when first used, because the store in a table needs the SDK and the others do not."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
