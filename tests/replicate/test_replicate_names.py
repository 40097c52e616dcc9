"""Column names of any kind from one table to another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_replicate_tables import OLD, change, make, writer

from streamclient.copying.differences import compare_tables, scan
from streamclient.records import ColumnOperation, RecordColumn, RecordType
from streamclient.server import LocalTablestore
from tests.column_names import ODD_NAMES, VALUES, write_rows
from tests.patience import PATIENCE_SECONDS
from tests.replicate.drill import command, configuration, make_source


def values(client: Any, table: str, key: int) -> dict[str, Any]:
    """Read as the replication reads: the SDK's reader ends a name at a NUL."""
    (cells,) = (cells for found, cells in scan(client, table, 1) if found == (key,))
    return {name: value for name, versions in cells.items() for value in versions.values()}


def changed(place: int, name: str) -> RecordColumn:
    if place % 3 == 0:
        return RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION)
    if place % 3 == 1:
        return RecordColumn(name, ColumnOperation.DELETE_ONE_VERSION, None, OLD)
    return RecordColumn(name, ColumnOperation.PUT, "new", OLD + 1)


def test_any_name_is_written_updated_and_deleted(local: LocalTablestore) -> None:
    make(local.client(), "to", max_version=2)
    puts = tuple(RecordColumn(name, ColumnOperation.PUT, name, OLD) for name in ODD_NAMES)
    changes = tuple(changed(place, name) for place, name in enumerate(ODD_NAMES))

    writer(local).write([change(RecordType.PUT, (("id", 1),), puts)])
    assert values(local.client(), "to", 1) == {name: name for name in ODD_NAMES}
    writer(local).write([change(RecordType.UPDATE, (("id", 1),), changes)])

    assert values(local.client(), "to", 1) == dict.fromkeys(ODD_NAMES[2::3], "new")


def test_cells_of_one_column_are_written_in_the_order_of_the_log(local: LocalTablestore) -> None:
    make(local.client(), "to", max_version=2)
    old, new = (RecordColumn("x", ColumnOperation.PUT, value, OLD + place) for place, value in enumerate("on"))
    cleared = RecordColumn("x", ColumnOperation.DELETE_ALL_VERSION)

    writer(local).write([change(RecordType.UPDATE, (("id", 1),), (old, cleared, new))])

    assert values(local.client(), "to", 1) == {"x": "n"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", [{}, {"source": "stream", "statusTableName": "progress"}], ids=["tunnel", "stream"])
def test_a_table_with_any_names_is_replicated_and_equal(reader: dict[str, str], tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        client = source.client()
        make_source(client, 1)
        write_rows(client, "orders", [("id", 1, VALUES)])
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, endTime="2020-01-01 00:00:00", **reader)))
        ended = subprocess.run(
            command(str(config), "--poll-seconds", "0.2"),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

        assert ended.returncode == 0, ended.stderr
        assert values(destination.client(), "orders_copy", 1) == VALUES
        assert list(compare_tables(client, "orders", destination.client(), "orders_copy")) == []


def test_a_difference_is_one_line(local: LocalTablestore) -> None:
    client = local.client()
    for table in ("from", "to"):
        make(client, table)
    write_rows(client, "from", [("id", 1, {"a\nb": "x"})])
    write_rows(client, "to", [("id", 1, {})])

    (difference,) = compare_tables(client, "from", client, "to")

    assert str(difference).startswith(r"row (1) column 'a\nb': source 'x'@")
