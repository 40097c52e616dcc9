"""The choice of the server's storage."""

from __future__ import annotations

from pathlib import Path

from streamclient.server.admin_changes import Storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import SqliteStorage

__all__ = ["Storage", "open_storage"]


def open_storage(data_dir: str | Path | None) -> Storage:
    """Open storage in a directory, made if missing; without a directory, in memory only.

    Raises:
        DataDirectoryError: another server holds the directory, or it cannot be used.
    """
    return MemoryStorage() if data_dir is None else SqliteStorage(Path(data_dir))
