"""A lease manager as a user would write it, over SQLite: verbs only, nothing shared with the package's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from threading import Lock

import pytest

from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease
from streamclient.testing.contracts.lease_manager_contract import LEASE_MANAGER_SCENARIOS, check_lease_manager_scenario
from streamclient.worker.lease import as_lease_store

COLUMNS = "lease_key, stream_id, owner, counter, stealer, checkpoint, parents"


class SqliteLeaseManager(ILeaseManager):
    """Every verb is one statement whose WHERE clause is the condition."""

    def __init__(self, stream_id: str) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._stream_id = stream_id
        self._lock = Lock()

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        with self._lock:
            return self._connection.execute(statement, values)

    def _changes(self, statement: str, *values: object) -> bool:
        return self._run(statement, *values).rowcount == 1

    def close(self) -> None:
        self._connection.close()

    def create_lease_table_if_not_exists(self) -> bool:
        exists = self._run("SELECT 1 FROM sqlite_master WHERE name = 'leases'").fetchone()
        self._run(f"CREATE TABLE IF NOT EXISTS leases ({COLUMNS}, PRIMARY KEY (stream_id, lease_key))")
        return exists is None

    def wait_until_lease_table_ready(self) -> bool:
        return True

    def list_leases(self) -> Sequence[Lease]:
        rows = self._run(f"SELECT {COLUMNS} FROM leases WHERE stream_id = ? ORDER BY lease_key", self._stream_id)
        return [_lease(row) for row in rows.fetchall()]

    def get_lease(self, lease_key: str) -> Lease | None:
        row = self._run(
            f"SELECT {COLUMNS} FROM leases WHERE stream_id = ? AND lease_key = ?", self._stream_id, lease_key
        ).fetchone()
        return None if row is None else _lease(row)

    def create_lease(self, lease: Lease) -> bool:
        parents = "\n".join(sorted(lease.parent_shard_ids))
        fields = (lease.lease_key, lease.stream_id, lease.owner, lease.counter, lease.stealer, lease.checkpoint)
        return self._changes(f"INSERT OR IGNORE INTO leases ({COLUMNS}) VALUES (?,?,?,?,?,?,?)", *fields, parents)

    def renew_lease(self, lease: Lease) -> bool:
        return self._update("counter = counter + 1", lease, "AND stealer = ?", after=(lease.stealer,))

    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        changes = "owner = ?, stealer = '', counter = counter + 1, checkpoint = coalesce(?, checkpoint)"
        return self._update(changes, lease, before=(owner, checkpoint))

    def steal_lease(self, lease: Lease, stealer: str) -> bool:
        condition = "stream_id = ? AND lease_key = ? AND owner = ? AND stealer = ''"
        key = (self._stream_id, lease.lease_key, lease.owner)
        return self._changes(f"UPDATE leases SET stealer = ? WHERE {condition}", stealer, *key)

    def transfer_lease(self, lease: Lease, new_owner: str) -> bool:
        changes = "owner = ?, stealer = ?, counter = counter + 1"
        return self._update(changes, lease, before=(new_owner, new_owner))

    def update_lease(self, lease: Lease, checkpoint: str) -> bool:
        return self._update("checkpoint = ?, counter = counter + 1", lease, before=(checkpoint,))

    def delete_lease(self, lease: Lease) -> bool:
        key = (self._stream_id, lease.lease_key)
        condition = "stream_id = ? AND lease_key = ? AND counter = ? AND owner = ?"
        deleted = self._changes(f"DELETE FROM leases WHERE {condition}", *key, lease.counter, lease.owner)
        return deleted or self.get_lease(lease.lease_key) is None

    def _update(
        self,
        changes: str,
        lease: Lease,
        more: str = "",
        before: tuple[object, ...] = (),
        after: tuple[object, ...] = (),
    ) -> bool:
        condition = f"stream_id = ? AND lease_key = ? AND counter = ? AND owner = ? {more}"
        seen = (self._stream_id, lease.lease_key, lease.counter, lease.owner)
        return self._changes(f"UPDATE leases SET {changes} WHERE {condition}", *before, *seen, *after)


def _lease(row: tuple[str, str, str, int, str, str, str]) -> Lease:
    *fields, parents = row
    return Lease(*fields, parent_shard_ids=parents.split("\n") if parents else ())


@pytest.mark.parametrize("scenario", LEASE_MANAGER_SCENARIOS)
def test_a_users_own_manager_can_keep_the_contract(scenario: str) -> None:
    made: list[SqliteLeaseManager] = []

    def make(stream_id: str) -> SqliteLeaseManager:
        made.append(SqliteLeaseManager(stream_id))
        return made[-1]

    try:
        check_lease_manager_scenario(scenario, make)
    finally:
        for manager in made:
            manager.close()


def test_it_serves_a_worker_through_the_port() -> None:
    manager = SqliteLeaseManager("stream")
    try:
        manager.create_lease_table_if_not_exists()
        manager.create_lease(Lease("s1", "stream"))

        assert [lease.lease_key for lease in as_lease_store(manager).list_leases()] == ["s1"]
    finally:
        manager.close()
