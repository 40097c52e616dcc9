"""Where records go that cannot be processed, and how they come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader

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


__getattr__ = loader(__name__, _HOMES)
