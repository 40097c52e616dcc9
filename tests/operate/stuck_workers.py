"""Workers and processors that get stuck on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from operate_scene import STATUS, TABLE, Scene

from streamclient import (
    Backoff,
    CallLimits,
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    Worker,
)
from streamclient.worker.runtime import Runtime
from tests.patience import PATIENCE_SECONDS

LEASE_SECONDS = 4.0
QUICK: dict[str, Any] = {
    "lease_duration_millis": round(LEASE_SECONDS * 1_000),
    "renewer_interval_millis": 250,
    "taker_interval_millis": 200,
    "sync_shard_interval_millis": 300,
    "signal_interval_millis": 100,
    "max_idle_poll_interval_millis": 100,
    "backoff": Backoff(restart_backoff_min_millis=60_000),
    "limits": CallLimits(slow_processor_warning_millis=300),
    "shutdown_timeout_millis": 3_000,
}
"""Leases of a few seconds with heartbeats far more often than needed, for a busy machine."""


class Steady(IRecordProcessor):
    """Checkpoints every batch, as the samples do."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


class NoDatabase(Steady):
    def initialize(self, initialization_input: InitializationInput) -> None:
        raise ValueError("no such database")


class Misleading(Steady):
    """Raises what other situations are made of."""

    text = "waiting for the epoch of this acquisition; paused by its own program; records are parked; accept_loss"

    def initialize(self, initialization_input: InitializationInput) -> None:
        raise ValueError(self.text)


class BadRecord(Steady):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        raise ValueError("bad record")


class BadKey(Steady):
    """Fails for the records of one key."""

    def __init__(self, key: str) -> None:
        self._key = key

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if any(record["id"] == self._key for record in process_records_input.records):
            raise ValueError("bad record")
        super().process_records(process_records_input)


class NoCheckpoint(Steady):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        pass


class NoEnd(NoCheckpoint):
    """Forgets to checkpoint the end of a shard."""

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


class Blocked(Steady):
    """Stays in ``process_records`` until it is let go."""

    def __init__(self, go: threading.Event) -> None:
        self._go = go

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._go.wait(PATIENCE_SECONDS)


class Slow(Steady):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        threading.Event().wait(self._seconds)
        super().process_records(process_records_input)


class Done(Steady):
    """Is done after the first batch; its ``shutdown`` waits if it is given an event."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self._go = go

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.shutdown_marker.mark_for_process_done()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if self._go is not None:
            self._go.wait(PATIENCE_SECONDS)


@contextmanager
def working(
    scene: Scene,
    make: Callable[[], IRecordProcessor],
    *,
    name: str = "w1",
    max_records: int = 100,
    executor: Any = None,
    client: Any = None,
    stream_api: Any = None,
    runtime: Runtime | None = None,
    **config: Any,
) -> Iterator[Worker]:
    """A real worker over HTTP."""
    stream = StreamConfig(
        client=client or scene.local.client(),
        data_table_name=TABLE,
        status_table_name=STATUS,
        max_records=max_records,
    )
    settings = ClientConfig(**{**QUICK, **config})
    with Worker(name, settings, stream, make, executor, stream_api=stream_api, runtime=runtime) as worker:
        yield worker


@contextmanager
def blocked(scene: Scene, **config: Any) -> Iterator[Worker]:
    """A real worker inside a call of ``process_records``; it is let go before the worker stops."""
    go = threading.Event()
    scene.write(3)
    with working(scene, lambda: Blocked(go), **config) as worker:
        try:
            yield worker
        finally:
            go.set()
