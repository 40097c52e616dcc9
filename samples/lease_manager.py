"""Leases in a store of your own: an ``ILeaseManager`` over one SQLite file, for workers on one machine.

Every conditional operation is one UPDATE whose WHERE clause is the condition. So SQLite decides which of two workers
wins. The number of changed rows tells whether the operation succeeded.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from streamclient import ILeaseManager, Lease

COLUMNS = "lease_key, stream_id, owner, counter, stealer, checkpoint, parents"
IF_COUNTER_AND_OWNER = "WHERE lease_key = ? AND counter = ? AND owner = ?"


class SqliteLeaseManager(ILeaseManager):
    """Stores leases in a SQLite file. Threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)

    def close(self) -> None:
        """Close the file. Afterwards the manager cannot be used."""
        self._connection.close()

    def create_lease_table_if_not_exists(self) -> bool:
        with self._lock:
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'leases'"
            exists = bool(self._connection.execute(query).fetchone()[0])
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS leases (lease_key TEXT PRIMARY KEY, stream_id TEXT, owner TEXT, "
                "counter INTEGER, stealer TEXT, checkpoint TEXT, parents TEXT)"
            )
            return not exists

    def wait_until_lease_table_ready(self) -> bool:
        return True

    def list_leases(self) -> Sequence[Lease]:
        with self._lock:
            rows = self._connection.execute(f"SELECT {COLUMNS} FROM leases ORDER BY lease_key").fetchall()
        return [_lease(row) for row in rows]

    def get_lease(self, lease_key: str) -> Lease | None:
        with self._lock:
            query = f"SELECT {COLUMNS} FROM leases WHERE lease_key = ?"
            row = self._connection.execute(query, (lease_key,)).fetchone()
        return None if row is None else _lease(row)

    def create_lease(self, lease: Lease) -> bool:
        parents = "\n".join(sorted(lease.parent_shard_ids))
        values = (
            lease.lease_key,
            lease.stream_id,
            lease.owner,
            lease.counter,
            lease.stealer,
            lease.checkpoint,
            parents,
        )
        return self._changes(f"INSERT OR IGNORE INTO leases ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def renew_lease(self, lease: Lease) -> bool:
        statement = f"UPDATE leases SET counter = counter + 1 {IF_COUNTER_AND_OWNER} AND stealer = ?"
        return self._changes(statement, lease.lease_key, lease.counter, lease.owner, lease.stealer)

    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        statement = (
            "UPDATE leases SET owner = ?, stealer = '', counter = counter + 1, checkpoint = coalesce(?, checkpoint) "
            + IF_COUNTER_AND_OWNER
        )
        return self._changes(statement, owner, checkpoint, lease.lease_key, lease.counter, lease.owner)

    def steal_lease(self, lease: Lease, stealer: str) -> bool:
        statement = "UPDATE leases SET stealer = ? WHERE lease_key = ? AND owner = ? AND stealer = ''"
        return self._changes(statement, stealer, lease.lease_key, lease.owner)

    def transfer_lease(self, lease: Lease, new_owner: str) -> bool:
        statement = f"UPDATE leases SET owner = ?, stealer = ?, counter = counter + 1 {IF_COUNTER_AND_OWNER}"
        return self._changes(statement, new_owner, new_owner, lease.lease_key, lease.counter, lease.owner)

    def update_lease(self, lease: Lease, checkpoint: str) -> bool:
        statement = f"UPDATE leases SET checkpoint = ?, counter = counter + 1 {IF_COUNTER_AND_OWNER}"
        return self._changes(statement, checkpoint, lease.lease_key, lease.counter, lease.owner)

    def delete_lease(self, lease: Lease) -> bool:
        deleted = self._changes(
            f"DELETE FROM leases {IF_COUNTER_AND_OWNER}", lease.lease_key, lease.counter, lease.owner
        )
        return deleted or self.get_lease(lease.lease_key) is None

    def _changes(self, statement: str, *values: object) -> bool:
        with self._lock:
            return self._connection.execute(statement, values).rowcount == 1


def _lease(row: tuple[str, str, str, int, str, str, str]) -> Lease:
    lease_key, stream_id, owner, counter, stealer, checkpoint, parents = row
    parent_shard_ids = frozenset(filter(None, parents.split("\n")))
    return Lease(lease_key, stream_id, owner, counter, stealer, checkpoint, parent_shard_ids)
