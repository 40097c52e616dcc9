"""What others do to a table of Iceberg's and to its catalog is named, and over once its cause is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, NestedField, StringType

from streamclient.destinations.iceberg_destination import IcebergDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, DependencyException
from streamclient.testing.contracts.destination_contract import change, store, stored_numbers

pytestmark = pytest.mark.slow

TABLE = "lake.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("lake")
    yield made
    made.engine.dispose()


def test_a_column_that_was_renamed_is_named_and_no_other_is_made_for_it(catalog: SqlCatalog) -> None:
    """With both, values would stand in either of them, and the name could not be given back."""
    destination = IcebergDestination(catalog, TABLE)
    one = store(destination, None, [change(1, v=1)])
    with catalog.load_table(TABLE).update_schema() as update:
        update.rename_column("v", "kept")
    with pytest.raises(
        ConfigurationError, match=r"the column 'v' of lake\.orders is called 'kept' now: give it its name"
    ):
        store(destination, one, [change(2, v=2)])
    with catalog.load_table(TABLE).update_schema() as update:
        update.rename_column("kept", "v")
    store(destination, one, [change(2, v=2)])

    assert stored_numbers(destination) == [1, 2]
    assert verify(destination, with_rows=True).is_whole


def test_a_column_that_was_dropped_is_made_again(catalog: SqlCatalog) -> None:
    destination = IcebergDestination(catalog, TABLE)
    one = store(destination, None, [change(1, v=1)])
    with catalog.load_table(TABLE).update_schema() as update:
        update.delete_column("v")
    store(destination, one, [change(2, v=2)])

    assert stored_numbers(destination) == [1, 2]


def test_a_column_of_another_program_that_a_change_is_called_like_stops_no_commit(catalog: SqlCatalog) -> None:
    destination = IcebergDestination(catalog, TABLE)
    one = store(destination, None, [change(1)])
    with catalog.load_table(TABLE).update_schema() as update:
        update.add_column("checked_on", DateType())
    store(destination, one, [change(2, checked_on="today")])

    rows = {row["id"]: row for table in destination.rows() for row in table.to_pylist()}
    assert dict(rows[2]["_unfit"]) == {"checked_on": {"type": "STRING", "value": "today"}}
    assert verify(destination, with_rows=True).is_whole


def test_a_table_of_another_that_is_gone_is_no_table_of_ours(catalog: SqlCatalog) -> None:
    catalog.create_table(TABLE, Schema(NestedField(1, "id", StringType())))
    destination = IcebergDestination(catalog, TABLE)
    with pytest.raises(ConfigurationError, match="needs the property"):
        destination.probe()
    catalog.drop_table(TABLE)
    one = store(destination, None, [change(1)])
    with catalog.load_table(TABLE).transaction() as step:
        step.set_properties({"commit.retry.num-retries": "4"})
    fresh = IcebergDestination(catalog, TABLE)
    with pytest.raises(ConfigurationError, match="needs the property"):
        fresh.probe()
    catalog.rename_table(TABLE, "lake.away")
    with pytest.raises(DependencyException, match="is gone"):  # it was ours
        fresh.last_commits([one.shard])


def test_a_database_of_a_catalog_that_may_be_written_to_again_is_written_to(tmp_path: Path) -> None:
    """Its connections are kept in a pool, with the default that their role had when they were made."""
    with PostgresServer() as server, psycopg.connect(server.conninfo, autocommit=True) as admin:
        uri = f"postgresql+psycopg://writer@/postgres?host={server.directory}"
        catalog = SqlCatalog("tests", uri=uri, warehouse=f"file://{tmp_path}/warehouse")
        catalog.create_namespace("lake")
        destination = IcebergDestination(catalog, TABLE)
        one = store(destination, None, [change(1)])
        admin.execute("alter role writer set default_transaction_read_only = on")
        catalog.engine.dispose()
        destination._answer_seconds = 0.0
        with pytest.raises(DependencyException, match="read-only transaction"):
            store(destination, one, [change(2)])
        with psycopg.connect(f"{server.conninfo} options='-c default_transaction_read_only=off'") as own:
            own.execute("alter role writer reset default_transaction_read_only")
        destination._answer_seconds = 60.0
        store(destination, one, [change(2)])

        assert stored_numbers(destination) == [1, 2]
        catalog.engine.dispose()
