"""No storage: the server's state ends with its process."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.server.admin_changes import Change, StoredState


class MemoryStorage:
    """Forgets every change; only the state in memory exists."""

    keeps = False

    def load(self) -> StoredState:
        """Return an empty state."""
        return StoredState()

    def commit(self, changes: Sequence[Change]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
