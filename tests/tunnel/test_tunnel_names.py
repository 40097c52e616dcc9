"""Column names of any kind through a tunnel, from the full data and from the log."""

from __future__ import annotations

import pytest
from tunnel_scene import TABLE, Log, Scene

from streamclient.tunnel import TunnelType
from tests.column_names import VALUES, write_rows
from tests.patience import until


@pytest.mark.slow
def test_columns_of_any_name_come_through_a_tunnel(scene: Scene) -> None:
    write_rows(scene.ots, TABLE, [("id", 1, VALUES)])
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    log = Log()
    with scene.worker(tunnel_id, log):
        until(lambda: len(log.records) >= 1, "the full data")
        write_rows(scene.ots, TABLE, [("id", 2, VALUES)])
        until(lambda: {record.key["id"] for record in log.records} == {1, 2}, "the log")

    for record in log.records:
        assert {column.name: column.value for column in record.columns} == VALUES
