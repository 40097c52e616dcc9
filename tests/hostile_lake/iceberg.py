"""Iceberg as a place of the table: a catalog in PostgreSQL, files in a directory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from streamclient.destinations.iceberg_destination import IcebergDestination
from tests.hostile_lake.places import LIMIT_SECONDS, Befalling, Database, Place
from tests.hostile_lake.steps import Steps, TellingCatalog, TellingIceberg
from tests.patience import until

TABLE, AWAY = "lake.orders", "lake.away"


def _brought_back(away: Path, place: Path) -> None:
    """Beside what a commit that was under way has written there: each file of Iceberg's has a name of its own."""
    place.mkdir(exist_ok=True)
    for one in away.iterdir():
        one.rename(place / one.name)
    away.rmdir()


CALLS = "streamclient-catalog-"
"""The beginning of the names of threads that call a catalog."""


class IcebergPlace(Place):
    passing = (CommitFailedException, psycopg.errors.LockNotAvailable)

    def __init__(self, directory: Path, steps: Steps, database: Database) -> None:
        super().__init__(directory, steps)
        self._database = database
        database.execute("grant usage, create on schema public to {role}")
        self._catalog = self._made(TellingCatalog, database.as_role)
        self._catalog.steps = steps
        self._catalog.create_namespace("lake")
        self._own = self._made(SqlCatalog, database.as_owner)

    def _made(self, kind: type[Any], conninfo: str) -> Any:
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
        uri = f"postgresql+psycopg://{given['user']}@/{given['dbname']}?host={given['host']}"
        return kind("tests", uri=uri, warehouse=f"file://{self.directory}/warehouse")

    def close(self) -> None:
        """Once the threads of calls that were given up are over: each returns a connection.

        On a connection that fell silent a call would wait for ever, so all connections are cut before.
        """
        self._database.proxy.cut()
        until(lambda: not any(thread.name.startswith(CALLS) for thread in threading.enumerate()), "the last calls")
        for one in (self._catalog, self._own):
            one.engine.dispose()

    def open(self) -> IcebergDestination:
        made = TellingIceberg(self._catalog, TABLE, answer_seconds=LIMIT_SECONDS)
        made.steps = self.steps
        return made

    def see(self) -> IcebergDestination:
        return IcebergDestination(self._own, TABLE)

    def _table(self) -> Table:
        return self._own.load_table(TABLE)

    @property
    def troubles(self) -> Mapping[str, Befalling]:
        changing, catalog = self._database.changing, self._own
        metadata = self.directory / "warehouse" / "lake" / "orders" / "metadata"
        away = metadata.with_name("away")
        return {
            **self._database.troubles,
            "the table away": Befalling(
                lambda: catalog.rename_table(TABLE, AWAY), lambda: catalog.rename_table(AWAY, TABLE)
            ),
            "the log away": Befalling(lambda: metadata.rename(away), lambda: _brought_back(away, metadata)),
            "the schema away": changing(
                "alter table iceberg_tables rename to iceberg_away",
                "alter table iceberg_away rename to iceberg_tables",
            ),
            "another's in its place": Befalling(
                lambda: catalog.create_table(TABLE, Schema(NestedField(1, "id", StringType()))),
                lambda: catalog.drop_table(TABLE),
            ),
            "no right to rows": changing(
                "revoke update on iceberg_tables from {role}", "grant update on iceberg_tables to {role}"
            ),
            "an unsafe property": Befalling(lambda: self._set_retries("4"), lambda: self._set_retries("0")),
            "a locked table": self._database.beside("lock table iceberg_tables in access exclusive mode"),
            "maintenance": Befalling(self._maintain),
            "another's column": Befalling(self._add_column),
            "another's required column": Befalling(lambda: self._require(True), lambda: self._require(False)),
            "a renamed column": Befalling(lambda: self._rename("id", "kept"), lambda: self._rename("kept", "id")),
            "doubled rows": Befalling(self._double),
            "lost rows": Befalling(lambda: self._table().delete("id == 3")),
        }

    def _set_retries(self, number: str) -> None:
        with self._table().transaction() as step:
            step.set_properties({"commit.retry.num-retries": number})

    def _maintain(self) -> None:
        table = self._table()
        snapshot = table.current_snapshot()
        if snapshot is not None and len(table.snapshots()) > 1:
            table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()

    def _add_column(self) -> None:
        with self._table().update_schema() as update:
            update.add_column("note", StringType())

    def _require(self, is_required: bool) -> None:
        with self._table().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("id", LongType(), required=is_required)

    def _rename(self, old: str, new: str) -> None:
        with self._table().update_schema() as update:
            update.rename_column(old, new)

    def _double(self) -> None:
        table = self._table()
        rows = table.scan().to_arrow()
        table.append(rows.filter(pc.is_in(rows.column("id"), pa.array([2, 4]))))
