"""A table with a writer that knows what it wrote, tunnels on it, and workers with short intervals."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient import Backoff, ClientConfig
from streamclient.records import StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tunnel import TunnelClient, TunnelDaemon, TunnelStage, TunnelType, TunnelWorker, TunnelWorkerConfig
from tests.patience import PATIENCE_SECONDS

TABLE = "orders"
IGNORE = Condition(RowExistenceExpectation.IGNORE)
ROWS_PER_REQUEST = 200
"""What ``BatchWriteRow`` takes at most."""


class Log:
    """What callbacks were given, thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: list[StreamRecord] = []

    def __call__(self, records: Sequence[StreamRecord]) -> None:
        with self.lock:
            self.records += records

    def values(self) -> dict[int, list[int]]:
        """Values by key, each once, in the order of first delivery."""
        found: dict[int, list[int]] = {}
        with self.lock:
            for record in self.records:
                value = next((column.value for column in record.columns if column.name == "value"), None)
                known = found.setdefault(int(record.key["id"]), [])
                if value not in known:
                    known.append(value)  # type: ignore[arg-type]  # the tests write integers
        return found


class Scene:
    """A table, tunnels on it, and a writer that knows what it wrote."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local = local
        self.ots = local.client()
        self.tunnels = TunnelClient(self.ots)
        self.written: dict[int, list[int]] = {}
        self.next_value = 1
        self.create_table(TABLE, stream=StreamSpecification(enable_stream=True, expiration_time_hours=24))

    def create_table(self, table: str, **options: Any) -> None:
        TablestoreStreamApi(self.ots).create_table(
            TableMeta(table, [("id", "INTEGER")]), TableOptions(), ReservedThroughput(CapacityUnit(0, 0)), **options
        )

    def put(self, *keys: int) -> None:
        rows = []
        for key in keys:
            self.written.setdefault(key, []).append(self.next_value)
            rows.append(Row([("id", key)], [("value", self.next_value)]))
            self.next_value += 1
        self.put_rows(TABLE, rows)

    def put_rows(self, table: str, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), ROWS_PER_REQUEST):
            request = BatchWriteRowRequest()
            items = [PutRowItem(row, IGNORE) for row in rows[start : start + ROWS_PER_REQUEST]]
            request.add(TableInBatchWriteRowItem(table, items))
            assert self.ots.batch_write_row(request).is_all_succeed()

    def tunnel(self, kind: TunnelType, name: str = "t") -> str:
        return self.tunnels.create_tunnel(TABLE, name, kind)

    def worker(self, tunnel_id: str, processor: Any, **config: Any) -> TunnelWorker:
        settings = {"heartbeat_interval_seconds": 1, "heartbeat_timeout_seconds": 10, "checkpoint_interval_millis": 100}
        client_config = config.pop("client_config", quick())
        return TunnelWorker(
            tunnel_id,
            self.tunnels,
            processor,
            TunnelWorkerConfig(client_config=client_config, **{**settings, **config}),
        )

    def let_go(self) -> int:
        """Return how many changes the checkpoint of the one channel covers; no client may have the channel."""
        (channel,) = self.tunnels.describe_tunnel(TABLE, "t").channels
        assert channel.client_id == ""
        return channel.record_count

    def stage(self) -> TunnelStage:
        return self.tunnels.describe_tunnel(TABLE, "t").info.stage


@contextmanager
def running(daemon: TunnelDaemon) -> Iterator[None]:
    """Run a daemon in a thread of its own; close it at the end of the block."""
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield
    finally:
        daemon.close()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def quick(**changes: Any) -> ClientConfig:
    settings: dict[str, Any] = {"backoff": Backoff(restart_backoff_min_millis=20, restart_backoff_max_millis=100)}
    return ClientConfig(**{**settings, **changes})


PROGRAM = """
import sys, threading
from tablestore import OTSClient
from streamclient.tunnel import IChannelProcessor, TunnelDaemon, TunnelWorker, TunnelWorkerConfig

class Processor(IChannelProcessor):
    def process(self, records_input):
        print("reading", flush=True)
        came.set()

    def shutdown(self):
        print("the processor was shut down", flush=True)

came = threading.Event()
tunnel_id, *address = sys.argv[1:]
client = OTSClient(*address, logger_name="tests.silent")
config = TunnelWorkerConfig(checkpoint_interval_millis=3_600_000)
{run}
"""


def program(scene: Scene, run: str) -> list[str]:
    """A command that consumes a tunnel with one change."""
    tunnel_id, local = scene.tunnel(TunnelType.STREAM), scene.local
    scene.put(1)
    command = [sys.executable, "-c", PROGRAM.format(run=run), tunnel_id]
    return [*command, local.endpoint, local.access_key_id, local.access_key_secret, local.instance]
