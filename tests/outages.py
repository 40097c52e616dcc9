"""A service that can be out: it refuses every request, or its server is stopped; and that comes back with its data."""

from __future__ import annotations

from pathlib import Path

from streamclient.server import Fail, FaultRule, LocalTablestore

OUTAGES = {"busy": "OTSServerBusy", "refuses the key": "OTSAuthFailed", "stopped": ""}
"""The code of the refusals by kind of outage; empty if nothing answers."""


class UnreliableService:
    """A local Tablestore, and its outages; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.local = LocalTablestore(data_dir=folder)
        """The running server; another one after a stop."""

    def __enter__(self) -> UnreliableService:
        self.local.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.local.stop()

    def goes_out(self, code: str) -> None:
        """Refuse every request with this code; without one, stop the server."""
        if code:
            self.local.add_fault(FaultRule("*", Fail(code)))
        else:
            self._next = LocalTablestore(port=int(self.local.endpoint.rpartition(":")[2]), data_dir=self._folder)
            self.local.stop()

    def comes_back(self, code: str) -> None:
        """End an outage."""
        if code:
            self.local.clear_faults()
        else:
            self.local = self._next.start()
