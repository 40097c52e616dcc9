"""The choice of the server's storage."""

from __future__ import annotations

from pathlib import Path

from streamclient.server.admin_changes import Storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import SqliteStorage

__all__ = ["Storage", "open_storage"]


def open_storage(data_dir: str | Path | None) -> Storage:
    """Open the storage in a directory, which is made if it is missing. Without a directory, keep everything in memory.

    Raises:
        DataDirectoryError: another server holds the directory, or it cannot be used.
    """
    return MemoryStorage() if data_dir is None else SqliteStorage(Path(data_dir))
