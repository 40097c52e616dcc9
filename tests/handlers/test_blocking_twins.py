"""Coroutines where no worker runs: parked records are replayed, and simulated fleets run, with the same user code."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from streamclient import MemoryParkingStore, replay_parked
from streamclient.interfaces import InitializationInput
from streamclient.model import ParkedRecord, ShutdownReason
from streamclient.testing.simulation.trials.trial_fixture import StreamSimulation
from streamclient.testing.simulation.trials.trial_settings import Faults, Run
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor
from tests.placed_records import make_record


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No coroutine and no event loop is left behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()


def parked(*names: str) -> MemoryParkingStore:
    store = MemoryParkingStore()
    store.park(
        [
            ParkedRecord(
                record_id=f"{number:03}",
                stream_id="stream",
                shard_id="a",
                record=make_record(name, number),
                position="p",
                index=0,
                generation=1,
                error="",
                traceback="",
                attempts=1,
                parked_micros=1,
            )
            for number, name in enumerate(names)
        ]
    )
    return store


def test_a_replay_runs_an_async_handler_in_one_event_loop() -> None:
    seen: list[tuple[object, bool]] = []
    loops: set[int] = set()

    async def handle(batch: AsyncBatch) -> None:
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        seen.append((batch[0].key["id"], batch.is_replay))

    store = parked("x", "y", "x")
    report = replay_parked(store, handle)
    assert (report.replayed, report.left, list(store.parked())) == (3, (), [])
    assert seen == [("x", True), ("x", True), ("y", True)]
    assert len(loops) == 1


async def raises(batch: AsyncBatch) -> None:
    raise ValueError("not yet")


async def fails(batch: AsyncBatch) -> None:
    batch.fail(ValueError("not yet"))


async def ends_as_if_cancelled(batch: AsyncBatch) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (raises, "not yet"),
        (fails, "not yet"),
        (ends_as_if_cancelled, "neither the worker nor the caller had cancelled it"),
    ],
)
def test_what_fails_in_a_replay_stays_parked_and_other_keys_go_on(handler: Any, why: str) -> None:
    store = parked("x", "y")
    report = replay_parked(store, handler)
    assert report.replayed == 0
    assert [why in left.error for left in report.left] == [True, True]
    assert len(list(store.parked())) == 2


class Summing(AsyncRecordProcessor):
    ended: list[ShutdownReason] = []  # noqa: RUF012

    async def initialize(self, initialization_input: InitializationInput) -> None:
        self.lock = asyncio.Lock()
        self.kept: list[AsyncBatch] = []

    async def process_records(self, batch: AsyncBatch) -> None:
        async with self.lock:
            self.kept.append(batch)

    async def shutdown(self, reason: ShutdownReason, commit: Any) -> None:
        self.ended.append(reason)
        await commit()


def test_a_replay_runs_an_async_processor_and_its_shutdown() -> None:
    Summing.ended.clear()
    store = parked("x", "x", "y")
    assert replay_parked(store, Summing).replayed == 3
    assert Summing.ended == [ShutdownReason.PROCESS_DONE] * 2


def test_a_replay_inside_an_event_loop_says_where_to_call_it() -> None:
    store = parked("x")

    async def main() -> Any:
        return replay_parked(store, raises)

    (left,) = asyncio.run(main()).left
    assert "call this in another thread, for example with asyncio.to_thread" in left.error


def test_a_replay_that_is_interrupted_leaves_no_task() -> None:
    async def interrupted(batch: AsyncBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay_parked(parked("x"), interrupted)


class Sink:
    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}

    async def handle(self, batch: AsyncBatch) -> None:
        for record in batch:
            self.rows.setdefault(str(record.key["id"]), []).append(record.sequence_info)
        await asyncio.sleep(0)


def test_a_simulated_fleet_runs_an_async_handler_through_faults() -> None:
    sink = Sink()

    def is_complete(run: Run) -> bool:
        return sum(map(len, sink.rows.values())) >= len(run.written)

    result = StreamSimulation().run(
        sink.handle,
        records=120,
        shards=2,
        seeds=2,
        faults=[Faults.crash(), Faults.split()],
        before=sink.rows.clear,
        check=is_complete,
    )
    assert result.delivered >= result.written > 0


def test_a_simulated_fleet_runs_async_processors() -> None:
    class Committing(AsyncRecordProcessor):
        async def process_records(self, batch: AsyncBatch) -> None:
            await asyncio.sleep(0)
            await batch.commit()

    result = StreamSimulation().run(Committing, records=60, shards=2, seeds=1)
    assert result.delivered >= result.written > 0
