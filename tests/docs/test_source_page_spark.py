"""The page of the streaming source: its examples run, in the Spark of this process, on two tables and a tunnel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_examples import run_page

from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelClient, TunnelType
from tests.installed import ROOT
from tests.patience import with_planners

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_the_examples_of_the_page_read_a_stream_a_tunnel_and_rows_and_write_them(
    local: LocalTablestore, spark: Any, tmp_path: Path
) -> None:
    from samples.streaming_source import COLUMNS, make_tables, write_orders

    client = local.client()
    make_tables(client)
    tunnel_id = TunnelClient(client).create_tunnel("orders", "page", TunnelType.STREAM)
    write_orders(client, 0, 4)
    keys = {"accessKeyId": local.access_key_id, "accessKeySecret": local.access_key_secret}

    names = {
        "spark": spark,
        "endpoint": local.endpoint,
        "key_id": local.access_key_id,
        "key_secret": local.access_key_secret,
        "lake": str(tmp_path / "changes"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "connection": {"endpoint": local.endpoint, "instance": local.instance, **keys},
        "tunnel_id": tunnel_id,
        "schema": COLUMNS,
    }

    left = with_planners(lambda: run_page(ROOT / "docs" / "source.md", "py", **names))

    assert spark.read.parquet(str(tmp_path / "changes")).count() == 5
    assert {*left["lag"]} == {"lagMillis", "records", "shards", "shardsBehind"}
    assert "status" in left["changes"].columns
    keys_of = [[("customer", f"customer-{number % 3}"), ("order_id", number)] for number in range(4)]
    assert [client.get_row("orders_copy", key)[1] is not None for key in keys_of] == [True, True, True, False]
    both = left["orders_of"]("customer-0").union(left["orders_of"]("customer-1"))
    assert sorted(row["order_id"] for row in both.collect()) == [0, 1]
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
