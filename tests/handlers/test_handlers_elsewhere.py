"""Coroutines where workers are not made by hand: tunnels over HTTP, ``streamclient run``, replays of a command."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import OTSClient, Row

from streamclient import Backoff, ClientConfig, LeaseManager
from streamclient.errors import ConfigurationError
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig
from streamclient.tunnel.channel_processors import stores_by_itself
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor
from tests.own_process import ROOT
from tests.patience import PATIENCE_SECONDS, until
from tests.worker.stage import make_table, put

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

QUICK = ClientConfig(backoff=Backoff(restart_backoff_min_millis=20, restart_backoff_max_millis=100))


class Tunnel:
    """A tunnel of changes of one table."""

    def __init__(self, local: LocalTablestore) -> None:
        self.client = local.client()
        make_table(self.client)
        self.tunnels = TunnelClient(self.client)
        self.tunnel_id = self.tunnels.create_tunnel("orders", "t", TunnelType.STREAM)

    def worker(self, processor: Any) -> TunnelWorker:
        settings = TunnelWorkerConfig(client_config=QUICK, heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10)
        return TunnelWorker(self.tunnel_id, self.tunnels, processor, settings, table_name="orders")


@pytest.fixture
def tunnel(local: LocalTablestore) -> Tunnel:
    return Tunnel(local)


def test_a_tunnel_gives_its_channels_to_a_coroutine_and_stores_what_it_handled(tunnel: Tunnel) -> None:
    seen: list[object] = []
    threads: set[str] = set()

    async def handle(batch: AsyncBatch) -> None:
        await asyncio.sleep(0)
        threads.add(threading.current_thread().name)
        assert batch.table == "orders"
        seen.extend(record.key["id"] for record in batch)

    for round_number in range(2):
        put(tunnel.client, f"k{round_number}")
        with tunnel.worker(handle) as worker:
            assert worker.wait(PATIENCE_SECONDS, until=lambda number=round_number: len(seen) > number)  # type: ignore[misc]
    assert (seen, len(threads)) == (["k0", "k1"], 1)
    assert not [thread for thread in threading.enumerate() if "asyncio" in thread.name]


class Committing(AsyncRecordProcessor):
    seen: list[object] = []  # noqa: RUF012

    async def process_records(self, batch: AsyncBatch) -> None:
        self.seen.extend(record.key["id"] for record in batch)
        await batch.commit()


def test_a_tunnel_takes_a_class_of_async_processors(tunnel: Tunnel) -> None:
    Committing.seen.clear()
    for round_number in range(2):
        put(tunnel.client, f"k{round_number}")
        with tunnel.worker(Committing) as worker:
            assert worker.wait(
                PATIENCE_SECONDS,
                until=lambda number=round_number: len(Committing.seen) > number,  # type: ignore[misc]
            )
    assert Committing.seen == ["k0", "k1"]


async def of_two(batch: AsyncBatch, channel_id: str) -> None:
    """Never called."""


def test_a_tunnel_refuses_a_coroutine_of_two_arguments() -> None:
    client = TunnelClient(OTSClient("http://127.0.0.1:1", "id", "secret", "instance"))
    with pytest.raises(ConfigurationError, match="it is an async function, whose calls are never run"):
        TunnelWorker("t", client, of_two)  # type: ignore[arg-type]
    assert stores_by_itself(Committing)


PROGRAM = """
import asyncio
from pathlib import Path
from streamclient.worker.handlers.batches import AsyncRecordProcessor

SEEN = Path(__file__).with_name("seen")

async def handle(batch):
    await asyncio.sleep(0)
    with SEEN.open("a") as file:
        file.writelines(f"{record.key['id']}\\n" for record in batch)

class Handling(AsyncRecordProcessor):
    async def process_records(self, batch):
        await handle(batch)
        await batch.commit()
"""


@pytest.mark.parametrize("name", ["handle", "Handling"])
def test_run_takes_a_coroutine_and_a_class_by_name_and_ends_in_order(
    name: str, local: LocalTablestore, tmp_path: Path
) -> None:
    client = local.client()
    (summary,) = make_table(client).list_stream("orders")
    client.put_row("orders", Row([("id", "k0")], [("n", 1)]))
    (tmp_path / "handlers.py").write_text(PROGRAM)
    seen = tmp_path / "seen"
    command = ["run", f"handlers:{name}", "--data-table", "orders", "--status-table", "st", "--lease-duration", "3"]
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "streamclient.cli.main", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TABLESTORE_ENDPOINT": local.endpoint},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: seen.exists() and seen.read_text() == "k0\n")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 143, said
    for word in ("was destroyed", "never awaited", "ResourceWarning: unclosed event loop"):
        assert word not in said, said
    (lease,) = LeaseManager(client, "st", summary.stream_id).list_leases()
    assert lease.checkpoint != "TRIM_HORIZON"
