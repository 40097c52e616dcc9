"""The choice of the server's storage: memory, or a data directory."""

from __future__ import annotations

from pathlib import Path

from streamclient.server.admin_changes import Storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import SqliteStorage

__all__ = ["Storage", "open_storage"]


def open_storage(data_dir: str | Path | None) -> Storage:
    """Open the storage in the directory ``data_dir``; create the directory if it is missing.

    If ``data_dir`` is ``None``, the server keeps its data only in memory.

    Raises:
        DataDirectoryError: another server holds the directory, or the directory cannot be used.
    """
    return MemoryStorage() if data_dir is None else SqliteStorage(Path(data_dir))
