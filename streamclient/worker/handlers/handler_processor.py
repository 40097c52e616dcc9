"""The makers of processors or receivers, for every kind of processor factory that a program may give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from streamclient.config import ProcessorKind, processor_factory, processor_kind
from streamclient.errors import ShutdownException, StreamClientError
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.checkpointer import handed_position
from streamclient.worker.handing_over import ProcessorMaker, ReceiverFactory
from streamclient.worker.handlers.async_user_code import async_code_maker, require_none
from streamclient.worker.handlers.batches import Batch, BatchHandler, Commit, Settlement
from streamclient.worker.handlers.event_loop import EventLoopThread
from streamclient.worker.handlers.task_line import TaskLine
from streamclient.worker.handlers.task_receiver import TaskReceivers
from streamclient.worker.handlers.turn_commits import is_commit_due, is_left_unstored


class HandlerProcessor(IRecordProcessor):
    """A processor that calls a function of the user with each batch of its shard."""

    def __init__(self, handler: BatchHandler, commit: Commit = "turn") -> None:
        self._handler = handler
        self._commits_by_itself = commit == "turn"

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Keep ``initialization_input`` for the batches."""
        self._given = initialization_input
        self._lost_after = initialization_input.lost_after
        self._has_unstored = False

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Call the handler, and commit the batch if the handler has not settled it and commits are not explicit."""
        given = process_records_input
        is_committed = self._handle(given.checkpointer, given.records, given.attempt)
        self._lost_after = None
        if is_committed:
            self._has_unstored = False
        elif self._commits_by_itself:
            self._commit(given.checkpointer)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Commit the last uncommitted position, or the shard's end.

        If commits are explicit, commit nothing. At the shard's end call the handler instead, with a batch without
        records.
        """
        reason, checkpointer = shutdown_input.shutdown_reason, shutdown_input.checkpointer
        if self._commits_by_itself and is_commit_due(reason, has_unstored=self._has_unstored):
            with suppress(ShutdownException):  # the lease is lost, which is not the handler's failure
                checkpointer.checkpoint()
        elif not self._commits_by_itself and reason is ShutdownReason.TERMINATE:
            self._handle(checkpointer, (), is_end=True)

    def _handle(
        self,
        checkpointer: IRecordProcessorCheckpointer,
        records: Sequence[StreamRecord],
        attempt: int = 0,
        *,
        is_end: bool = False,
    ) -> bool:
        """Call the handler; return whether it committed the batch. Raise if the batch has failed."""
        settlement = Settlement(self._commits_by_itself)
        batch = Batch(
            records,
            self._given,
            settlement,
            checkpointer.checkpoint,
            position=handed_position(checkpointer),
            attempt=attempt,
            is_end=is_end,
            lost_after=self._lost_after,
        )
        try:
            require_none(self._handler(batch))
            if settlement.error is not None:
                raise settlement.error
        finally:
            settlement.end()
        return settlement.is_committed

    def _commit(self, checkpointer: IRecordProcessorCheckpointer) -> None:
        error: Exception | None = None
        try:
            checkpointer.checkpoint()
        except StreamClientError as refusal:
            error = refusal
        self._has_unstored = is_left_unstored(self._given.shard_info.shard_id, error)


def processor_maker(
    name: str, given: object, commit: Commit = "turn", event_loop: EventLoopThread | None = None
) -> ProcessorMaker:
    """Return a function that makes processors for shards, or a factory that makes receivers for shards.

    ``given`` is the handler, class or factory that the program has given. If it is async, the result is a factory of
    receivers. These run the coroutines in ``event_loop``, or in a new event loop. The factory closes this loop when the
    factory itself is closed.

    Raises:
        ConfigurationError: a worker cannot use ``given``; the message calls the argument ``name``.
    """
    processor_factory.require(name, given)
    kind = processor_kind(given)
    if isinstance(given, ReceiverFactory):
        return given
    if kind is ProcessorKind.HANDLER:
        return partial(HandlerProcessor, cast(BatchHandler, given), commit)
    if kind is ProcessorKind.ASYNC_HANDLER or kind is ProcessorKind.ASYNC_MAKER:
        return _receivers(kind, given, commit, event_loop)
    return cast(Callable[[], IRecordProcessor], getattr(given, "create_processor", given))


def processor_makers(name: str, given: Sequence[object], worker: str) -> list[ProcessorMaker]:
    """Return a maker for each of ``given``, as ``processor_maker`` does. All coroutines run in one event loop.

    Raises:
        ConfigurationError: a worker cannot use one of ``given``.
    """
    event_loop = EventLoopThread(f"{worker}-asyncio")
    return [processor_maker(name, each, event_loop=event_loop) for each in given]


def _receivers(
    kind: ProcessorKind, given: object, commit: Commit, event_loop: EventLoopThread | None
) -> ReceiverFactory:
    loop = event_loop or EventLoopThread("streamclient-asyncio")
    make_code = async_code_maker(kind, given, commit)
    return TaskReceivers(make_code, TaskLine(loop.bridge), loop)


def blocking_maker(name: str, given: object) -> Callable[[], IRecordProcessor]:
    """Return a maker of processors from ``given``, as ``processor_maker`` does, but never a factory of receivers."""
    made = processor_maker(name, given)
    return made.create_processor if isinstance(made, ReceiverFactory) else made
