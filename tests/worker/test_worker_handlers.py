"""What is a handler, what makes processors, and what becomes of the batches that a function handles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamclient import ConfigurationError, FailurePolicy, StreamConfig
from streamclient.config import ProcessorKind, processor_kind
from streamclient.errors import StreamClientException
from streamclient.interfaces import IRecordProcessor, IRecordProcessorFactory, ProcessRecordsInput
from streamclient.model import CheckpointPosition, OnFailure
from streamclient.testing.fakes import FakeStream
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor, Batch
from tests.worker.stage import Stage, keys, worker_on


class Processor(IRecordProcessor):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()


class Needy(Processor):
    def __init__(self, sink: object) -> None:
        self.sink = sink


class Factory(IRecordProcessorFactory):
    def create_processor(self) -> IRecordProcessor:
        return Processor()


class Totals(AsyncRecordProcessor):
    def __init__(self, start: int = 0) -> None:
        self.total = start

    async def process_records(self, batch: AsyncBatch) -> None:
        self.total += len(batch)


class Handling:
    def handle(self, batch: Batch) -> None:
        """Do nothing."""

    async def handle_async(self, batch: AsyncBatch) -> None:
        """Do nothing."""

    def __call__(self, batch: Batch) -> None:
        """Do nothing."""


def handle(batch: Batch) -> None:
    """Do nothing."""


def handle_into(sink: object, batch: Batch) -> None:
    """Do nothing."""


async def handle_async(batch: AsyncBatch) -> None:
    """Do nothing."""


async def no_batch() -> None:
    """Do nothing."""


def yields(batch: Batch) -> Any:
    yield batch


TAKEN: dict[str, tuple[object, ProcessorKind]] = {
    "a factory": (Factory(), ProcessorKind.MAKER),
    "a class of processors": (Processor, ProcessorKind.MAKER),
    "a function without arguments": (lambda: Factory().create_processor(), ProcessorKind.MAKER),
    "a class with its arguments": (partial(Needy, "sink"), ProcessorKind.MAKER),
    "a function with a default": (lambda sink="x": Needy(sink), ProcessorKind.MAKER),
    "a class of async processors": (Totals, ProcessorKind.ASYNC_MAKER),
    "a class of async processors with its arguments": (partial(Totals, 3), ProcessorKind.ASYNC_MAKER),
    "a function of a batch": (handle, ProcessorKind.HANDLER),
    "a lambda of a batch": (lambda batch: None, ProcessorKind.HANDLER),
    "a method": (Handling().handle, ProcessorKind.HANDLER),
    "an object that is called": (Handling(), ProcessorKind.HANDLER),
    "a function with its first argument": (partial(handle_into, "sink"), ProcessorKind.HANDLER),
    "an async function": (handle_async, ProcessorKind.ASYNC_HANDLER),
    "an async method": (Handling().handle_async, ProcessorKind.ASYNC_HANDLER),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_program_gives_is_known_by_what_a_call_needs(name: str) -> None:
    given, kind = TAKEN[name]
    assert processor_kind(given) is kind


REFUSED: dict[str, tuple[object, str]] = {
    "a class that needs arguments": (Needy, "its instances cannot be made without sink"),
    "a class of factories": (Factory, "it is a class of factories: give an instance of it"),
    "a function of two": (handle_into, "it needs sink, batch: a handler takes one batch"),
    "an async function of nothing": (no_batch, "it is an async function without a batch to handle"),
    "a generator": (yields, "it is a generator, whose calls are never run"),
    "a processor": (Processor(), "not <"),
    "nothing": (17, "not 17"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["worker", "stream"])
def test_what_is_neither_is_refused_by_name_before_anything_happens(name: str, place: str) -> None:
    given, why = REFUSED[name]
    settings: dict[str, Any] = {"client": None, "data_table_name": "t", "status_table_name": "s"}

    make: dict[str, Callable[[], object]] = {
        "worker": lambda: worker_on(FakeStream(), factory=given),
        "stream": lambda: StreamConfig(record_processor_factory=given, **settings),  # type: ignore[arg-type]
    }

    with pytest.raises(ConfigurationError) as refused:
        make[place]()
    assert "record_processor_factory must be an IRecordProcessorFactory" in str(refused.value)
    assert why in str(refused.value)


# --- in a worker ------------------------------------------------------------------------------------------------------


def handled(handler: Callable[[Batch], None], **config: Any) -> Stage:
    """Return a world whose worker handles a closed shard of four records, two at a time."""
    world = Stage("a", **config)
    world.write("a", 4)
    world.stream.close("a")
    world.reading = world.worker(factory=handler, max_records=2)  # type: ignore[attr-defined]
    return world


def test_each_batch_is_stored_when_its_handler_has_returned_and_the_end_behind_all() -> None:
    seen: list[tuple[list[object], str]] = []

    def note(batch: Batch) -> None:
        seen.append(([record.key["id"] for record in batch], world.checkpoint("a")))

    world = handled(note)
    world.until(world.is_finished, 200)

    (first, before), (second, between) = seen
    assert (first, second) == (keys(2), keys(2, 2))
    assert before == CheckpointPosition.TRIM_HORIZON
    assert between not in (before, CheckpointPosition.SHARD_END)


def test_a_handler_may_commit_by_itself_and_then_fail_no_more() -> None:
    refused: list[str] = []

    def commit(batch: Batch) -> None:
        batch.commit()
        batch.commit()
        try:
            batch.fail(ValueError("too late"))
        except StreamClientException as error:
            refused.append(str(error))

    world = handled(commit)
    world.until(lambda: len(refused) == 2, 200)
    assert refused == ["the batch is committed, so it cannot fail any more"] * 2


def raises(batch: Batch) -> None:
    if batch[0].key["id"] == "k2":
        raise ValueError("no")


def fails(batch: Batch) -> None:
    if batch[0].key["id"] == "k2":
        batch.fail(ValueError("no"))
        with pytest.raises(StreamClientException, match=r"cannot commit: the batch was settled as failed"):
            batch.commit()


def returns(batch: Batch) -> object:
    return batch[0].key["id"] if batch[0].key["id"] == "k2" else None


@pytest.mark.parametrize("handler", [raises, fails, returns])
def test_a_failed_batch_meets_the_failure_policy_and_is_not_stored(handler: Callable[[Batch], None]) -> None:
    world = handled(handler, failure_policy=FailurePolicy(retries=1, then=OnFailure.STOP_SHARD, bisect=False))
    status = world.reading.worker.shard_statuses  # type: ignore[attr-defined]
    world.until(lambda: "stopped by failure_policy" in (status()["a"].reason if "a" in status() else ""), 200)

    assert world.checkpoint("a") not in (CheckpointPosition.TRIM_HORIZON, CheckpointPosition.SHARD_END)


def test_a_batch_that_its_handler_gave_to_somebody_else_is_over() -> None:
    kept: list[Batch] = []
    world = handled(kept.append)
    world.until(world.is_finished, 200)

    for use in (len, list, lambda batch: batch[0], lambda batch: batch.commit(), lambda batch: batch.arrow()):
        with pytest.raises(StreamClientException, match="the batch is over"):
            use(kept[0])


def test_a_batch_says_where_it_is_from_and_how_often_it_came() -> None:
    seen: list[tuple[str, str, int, bool, bool, str | None]] = []

    def note(batch: Batch) -> None:
        told = (batch.shard.shard_id, batch.table, batch.attempt, batch.is_replay, batch.is_lost, batch.lost_after)
        seen.append(told)
        if len(seen) == 1:
            raise ValueError("once")

    world = handled(note, failure_policy=FailurePolicy(retries=1, then=OnFailure.STOP_SHARD))
    world.until(world.is_finished, 200)
    assert seen == [("a", "orders", attempt, False, False, None) for attempt in (0, 1, 0)]
