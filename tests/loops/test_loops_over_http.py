"""Loops over a real server: tables, splits, several tables, tunnels."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from attrs import evolve
from tablestore import OTSClient, Row

import streamclient
from streamclient import ClientConfig, ConfigurationError, WorkerFailedError, aio
from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelClient, TunnelType
from tests.loops.loop_scene import ids
from tests.patience import PATIENCE_SECONDS, until
from tests.stage import make_table, put_rows

pytestmark = pytest.mark.slow

QUICK = ClientConfig.for_lease(6, read_threads=8, renew_thread_pool_size=2, sync_shard_interval_millis=200)


def rows(count: int, start: int = 0) -> list[Row]:
    return [Row([("id", f"k{number:04}")], [("v", number)]) for number in range(start, start + count)]


def all_keys(count: int) -> list[str]:
    return [f"k{number:04}" for number in range(count)]


@pytest.fixture
def client(local: LocalTablestore) -> OTSClient:
    """Of a server of its own, with a table of fifty rows."""
    made = local.client()
    make_table(made, "orders")
    put_rows(made, "orders", rows(50))
    return made


def test_the_client_is_that_of_the_environment(local: LocalTablestore, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(local.client(), "orders")
    put_rows(local.client(), "orders", rows(3))
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint)
    monkeypatch.setenv("TABLESTORE_INSTANCE", local.instance)
    monkeypatch.setenv("TABLESTORE_ACCESS_KEY_ID", local.access_key_id)
    monkeypatch.setenv("TABLESTORE_ACCESS_KEY_SECRET", local.access_key_secret)
    for batch in streamclient.changes("orders", group="printer", config=QUICK):
        assert ids(batch) == all_keys(3)
        break


def test_a_second_loop_goes_on_where_the_first_one_stored(client: OTSClient) -> None:
    given: dict[str, Any] = {"group": "billing", "client": client, "config": QUICK, "max_records": 20}
    with streamclient.changes("orders", **given) as changes:
        seen = [*ids(next(changes)), *ids(next(changes))]
        seen_of_first = all_keys(40)
        next(changes)
    with streamclient.changes("orders", **given) as changes:
        again = ids(next(changes))

    assert (seen, again) == (seen_of_first, all_keys(50)[40:])


def test_an_async_loop_over_a_table_that_splits(local: LocalTablestore, client: OTSClient) -> None:
    async def main() -> dict[str, Any]:
        seen: dict[str, Any] = {}
        async with aio.changes("orders", group="cache", client=client, config=QUICK, max_records=20) as changes:
            async for batch in changes:
                seen.update((record.key["id"], record) for record in batch)
                if len(seen) == 50:
                    (shard,) = {batch.shard.shard_id}
                    await asyncio.to_thread(local.split, "orders", shard)
                    await asyncio.to_thread(put_rows, client, "orders", rows(50, 50))
                if len(seen) == 100:
                    return seen
        raise AssertionError

    assert sorted(asyncio.run(main())) == all_keys(100)


def test_a_loop_over_two_tables(client: OTSClient) -> None:
    make_table(client, "customers")
    put_rows(client, "customers", rows(5))
    seen: dict[str, int] = {}
    given: dict[str, Any] = {"group": "b", "status_table": "both", "client": client, "config": QUICK}
    with streamclient.changes(["orders", "customers"], **given) as changes:
        for batch in changes:
            seen[batch.table] = seen.get(batch.table, 0) + len(batch)
            if seen == {"orders": 50, "customers": 5}:
                break


def test_each_over_a_table(client: OTSClient) -> None:
    seen: list[Any] = []
    changes = streamclient.changes("orders", group="ship", client=client, config=QUICK)
    lock, is_complete = threading.Lock(), threading.Event()

    def ship(record: Any) -> None:
        with lock:
            seen.append(record.key["id"])
            if len(seen) == 50:
                is_complete.set()

    running = threading.Thread(target=changes.each, args=(ship,))
    running.start()
    until(is_complete.is_set)
    changes.close()
    running.join()

    assert sorted(seen) == all_keys(50)


@pytest.mark.parametrize("by", ["name", "id"])
def test_a_tunnel_gives_the_rows_of_today_first_and_then_what_changes(client: OTSClient, by: str) -> None:
    tunnel_id = TunnelClient(client).create_tunnel("orders", "copy", TunnelType.BASE_AND_STREAM)
    seen: list[Any] = []
    tables = set()
    with streamclient.changes(tunnel="copy" if by == "name" else tunnel_id, client=client, config=QUICK) as changes:
        for batch in changes:
            seen += ids(batch)
            tables.add(batch.table)
            if len(seen) == 50:
                put_rows(client, "orders", rows(5, 50))
            if len(seen) == 55:
                break

    assert (sorted(seen), tables) == (all_keys(55), {"orders"})
    assert sorted(seen[:50]) == all_keys(50)


def test_an_async_tunnel_goes_on_where_the_last_loop_stored(client: OTSClient) -> None:
    TunnelClient(client).create_tunnel("orders", "copy", TunnelType.BASE_AND_STREAM)

    async def read(wanted: int, more: int) -> list[Any]:
        seen: list[Any] = []
        async with aio.changes("orders", tunnel="copy", client=client, config=QUICK) as changes:
            async for batch in changes:
                seen += ids(batch)
                await batch.commit()
                if len(seen) == wanted:
                    break
        await asyncio.to_thread(put_rows, client, "orders", rows(more, 50))
        return seen

    assert sorted(asyncio.run(read(50, 5))) == all_keys(50)
    assert sorted(asyncio.run(read(5, 0))) == all_keys(55)[50:]


def test_a_tunnel_that_does_not_exist_is_named_at_the_first_turn(client: OTSClient) -> None:
    with pytest.raises(ConfigurationError, match="the instance has no tunnel with the name or id 'copy'; it has no"):
        next(streamclient.changes(tunnel="copy", client=client))


def test_the_look_up_of_a_tunnel_is_not_repeated_by_close(local: LocalTablestore, client: OTSClient) -> None:
    changes = streamclient.changes(tunnel="copy", client=client)
    with pytest.raises(ConfigurationError, match="no tunnel with the name or id"):
        changes.run(print)
    changes.close()
    changes.close()

    assert sum(count.requests for count in local.requests() if count.operation == "tunnel/list") == 1


@pytest.mark.parametrize("way", ["run", "each"])
def test_a_function_may_close_its_own_run_of_a_tunnel(
    way: str, client: OTSClient, caplog: pytest.LogCaptureFixture
) -> None:
    TunnelClient(client).create_tunnel("orders", "copy", TunnelType.BASE_AND_STREAM)
    config = evolve(QUICK, shutdown_timeout_millis=round(1_000 * PATIENCE_SECONDS))
    changes = streamclient.changes(tunnel="copy", client=client, config=config)
    getattr(changes, way)(lambda given: changes.close())

    assert [text for text in caplog.messages if "gave up waiting" in text] == []


def test_a_tunnel_that_is_deleted_ends_the_loop_with_its_reason(client: OTSClient) -> None:
    tunnels = TunnelClient(client)
    tunnels.create_tunnel("orders", "copy", TunnelType.STREAM)
    changes = streamclient.changes(tunnel="copy", client=client, config=QUICK)
    assert changes.tunnel_worker is not None
    tunnels.delete_tunnel("orders", "copy")

    with pytest.raises(WorkerFailedError, match="tunnel worker of"):
        next(changes)
