"""The storage of a server without a data directory: it stores nothing, so the data end with the process."""

from __future__ import annotations

from collections.abc import Iterable

from streamclient.server.admin_changes import Change, StoredState


class MemoryStorage:
    """A storage that ignores every change. The data exist only in the server's state in memory."""

    keeps = False

    def load(self) -> StoredState:
        """Return empty content."""
        return StoredState()

    def commit(self, changes: Iterable[Change]) -> None:
        """Do nothing, because changes are not stored."""

    def close(self) -> None:
        """Do nothing, because no file is open."""
