"""The stores of records that cannot be processed (dead letters), and their replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.worker.parking.parking_files import FileParkingStore
    from streamclient.worker.parking.parking_memory import MemoryParkingStore
    from streamclient.worker.parking.parking_replay import KeyLeft, ReplayReport, replay_parked
    from streamclient.worker.parking.parking_table import TableParkingStore

__all__ = ["FileParkingStore", "KeyLeft", "MemoryParkingStore", "ReplayReport", "TableParkingStore", "replay_parked"]

_HOMES = {
    "FileParkingStore": "parking_files",
    "KeyLeft": "parking_replay",
    "MemoryParkingStore": "parking_memory",
    "ReplayReport": "parking_replay",
    "TableParkingStore": "parking_table",
    "replay_parked": "parking_replay",
}
"""Each public name and its module, which is imported when the name is first used. Only the store in a table imports the
SDK."""


__getattr__ = loader(__name__, _HOMES)
