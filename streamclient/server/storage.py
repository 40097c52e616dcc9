"""Where the server writes its changes down."""

from __future__ import annotations

from pathlib import Path

from streamclient.server.admin_changes import Storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import SqliteStorage

__all__ = ["Storage", "open_storage"]


def open_storage(data_dir: str | Path | None) -> Storage:
    """Storage in a directory, made if missing; or, without a directory, in memory only.

    Raises:
        DataDirectoryError: another server holds the directory, or it cannot be used.
    """
    return MemoryStorage() if data_dir is None else SqliteStorage(Path(data_dir))
