"""One worker process of a round: writes down what it is given, stores it in the shared sink, checkpoints.

It is of one of the ways of ``plan.WAYS``: the same work, as different programs do it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from attrs import evolve, frozen

import streamclient
from samples.fenced_sink import FencedSink
from streamclient import (
    Backoff,
    ClientConfig,
    DependencyException,
    FencedException,
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    ProcessRecordsInput,
    ShutdownException,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    StreamRecord,
    Worker,
    aio,
)
from streamclient.model import ShardInfo
from streamclient.testing.deliveries import DeliveryRecorder
from tests.drill_kit import LOOP_THREADS, BatchRecorder, client_of, new_life, told

LEASE_DURATION_MILLIS = 3_000
"""Short, so that a killed worker's shards move within a round; heartbeats keep a fifth of it, for a busy machine."""

HEARTBEAT_MILLIS = 600

LONGEST_RESTART_PAUSE_MILLIS = 2_000
"""Processors fail often here, on purpose; a pause of a minute would only make the rounds long."""

WORK_SECONDS = 0.06
"""How long a batch takes before it is stored, so that kills and freezes often fall between its delivery and its end."""

CHECKPOINT_SECONDS = 0.5
"""How often the processor with the habits of the KCL checkpoints: some batches at once, and in a lap still often."""

CHECKPOINT_TRIES = 5
CHECKPOINT_PAUSE_SECONDS = 0.2


@frozen
class Desk:
    """What the work of this process goes through, whatever its way."""

    given: dict[str, Any]
    sink: FencedSink
    lines: IO[str]
    refusals: IO[str]

    @property
    def token(self) -> str:
        return str(self.given["token"])

    def store(self, shard: ShardInfo, records: Sequence[StreamRecord]) -> None:
        """Store in the sink; write down when it refuses."""
        self._written_down(shard, lambda: self.sink.store(shard.shard_id, shard.epoch, records))

    def take_over(self, shard: ShardInfo) -> None:
        self._written_down(shard, lambda: self.sink.take_over(shard.shard_id, shard.epoch))

    def _written_down(self, shard: ShardInfo, act: Callable[[], object]) -> None:
        try:
            act()
        except FencedException as error:
            line = {"shard": shard.shard_id, "epoch": shard.epoch, "at": time.monotonic_ns(), "error": str(error)}
            self.refusals.write(json.dumps(line) + "\n")
            self.refusals.flush()
            raise

    def stream(self) -> dict[str, Any]:
        """The client and the names that every way is given."""
        given = self.given
        client = client_of(given, sts_token=given["token"])
        return {"client": client, "max_records": 100, "status_table": given["status_table"], "table": given["table"]}


class Working(IRecordProcessor):
    """Takes its time, stores, checkpoints."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._pause = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._shard = initialization_input.shard_info
        self._desk.take_over(self._shard)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._pause.wait(WORK_SECONDS)
        self._desk.store(self._shard, process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


class TimedCheckpoints(IRecordProcessor):
    """Has the habits of programs for the KCL: checkpoints by time, tries them again, looks at the reason of its end.

    It is called without records, too, as it has no timer: an idle shard's last records are checkpointed by that.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._recorder = BatchRecorder(desk.token, desk.lines)
        self._pause = threading.Event()
        self._is_behind = False
        """Whether something is stored in the sink and not checkpointed."""
        self._is_whole = True
        """Whether the last batch was stored: if it was not, the position after it must not be checkpointed."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._shard = initialization_input.shard_info
        self._life = new_life(self._shard)
        self._due = time.monotonic() + CHECKPOINT_SECONDS
        self._desk.take_over(self._shard)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Raise what goes wrong: programs that log it and return have the next checkpoint skip the batch."""
        records = process_records_input.records
        if records:
            self._is_whole = False
            self._recorder.record(self._shard, self._life, records)
            self._pause.wait(WORK_SECONDS)
            self._desk.store(self._shard, records)
            self._is_whole = self._is_behind = True
        if self._is_behind and time.monotonic() >= self._due:
            self._checkpoint(process_records_input.checkpointer)
            self._due = time.monotonic() + CHECKPOINT_SECONDS

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """The shard's end, and a move or a stop, for which the KCL has another method, are checkpointed.

        A lost lease is not, nor is the end of a processor whose last batch is not stored.
        """
        if self._is_whole and shutdown_input.shutdown_reason in (ShutdownReason.TERMINATE, ShutdownReason.STOLEN):
            self._checkpoint(shutdown_input.checkpointer)

    def _checkpoint(self, checkpointer: IRecordProcessorCheckpointer) -> None:
        """Try some times; then leave it to the next time, except that the end of a shard has none."""
        for left in reversed(range(CHECKPOINT_TRIES)):
            try:
                checkpointer.checkpoint()
            except ShutdownException:
                return
            except DependencyException:
                if left:
                    self._pause.wait(CHECKPOINT_PAUSE_SECONDS)
            else:
                self._is_behind = False
                return


def client_config() -> ClientConfig:
    return ClientConfig(
        lease_duration_millis=LEASE_DURATION_MILLIS,
        renewer_interval_millis=HEARTBEAT_MILLIS,
        taker_interval_millis=HEARTBEAT_MILLIS,
        sync_shard_interval_millis=1_000,
        max_idle_poll_interval_millis=200,
        backoff=Backoff(restart_backoff_max_millis=LONGEST_RESTART_PAUSE_MILLIS),
        shutdown_timeout_millis=10_000,
    )


def run_java(desk: Desk, stop: threading.Event) -> None:
    """A processor for each shard, made by a factory, and a worker that is told to stop."""
    with new_worker(desk, client_config(), lambda: DeliveryRecorder(desk.token, desk.lines, Working(desk))) as worker:
        worker.wait(until=stop.is_set)


def run_kcl(desk: Desk, stop: threading.Event) -> None:
    config = evolve(client_config(), deliver_empty_batches=True)
    with new_worker(desk, config, lambda: TimedCheckpoints(desk)) as worker:
        worker.wait(until=stop.is_set)


def new_worker(desk: Desk, config: ClientConfig, make: Callable[[], IRecordProcessor]) -> Worker:
    given = desk.stream()
    stream_config = StreamConfig(
        client=given["client"],
        data_table_name=given["table"],
        status_table_name=given["status_table"],
        max_records=given["max_records"],
    )
    return Worker(desk.given["name"], config, stream_config, make)


def loop_options(desk: Desk) -> dict[str, Any]:
    """What `changes` is given, in threads and in an event loop."""
    config = evolve(client_config(), **LOOP_THREADS)
    return {**desk.stream(), "group": "rounds", "worker": desk.given["name"], "config": config}


def run_loop(desk: Desk) -> None:
    """A plain loop; SIGTERM ends it in its body or in its wait."""
    recorder, pause = BatchRecorder(desk.token, desk.lines), threading.Event()
    with streamclient.changes(**loop_options(desk)) as changes:
        for batch in changes:
            recorder.write(batch)
            pause.wait(WORK_SECONDS)
            try:
                desk.store(batch.shard, batch)
            except FencedException as error:
                recorder.fail(batch, error)


async def run_async(desk: Desk) -> None:
    """A loop in an event loop; SIGTERM ends it after its body."""
    recorder = BatchRecorder(desk.token, desk.lines)
    async with aio.changes(**loop_options(desk)) as changes:
        async for batch in changes:
            recorder.write(batch)
            await asyncio.sleep(WORK_SECONDS)
            try:
                await asyncio.to_thread(desk.store, batch.shard, batch)
            except FencedException as error:
                recorder.fail(batch, error)


def main() -> None:
    given = told()
    with (
        Path(given["lines"]).open("a", encoding="utf-8") as lines,
        Path(given["refusals"]).open("a", encoding="utf-8") as refusals,
        closing(FencedSink(Path(given["sink"]))) as sink,
    ):
        desk, way = Desk(given, sink, lines, refusals), given["way"]
        if way == "loop":
            run_loop(desk)
        elif way == "async":
            asyncio.run(run_async(desk))
        else:
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            {"java": run_java, "kcl": run_kcl}[way](desk, stop)


if __name__ == "__main__":
    main()
