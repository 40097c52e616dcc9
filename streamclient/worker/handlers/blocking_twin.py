"""Coroutines for one shard as a processor that blocks, for callers that have no event loop: replays and simulations."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from streamclient.errors import ConfigurationError
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.handlers.async_user_code import AsyncUserCode, Store, run_batch
from streamclient.worker.handlers.batches import AsyncBatch, Settlement
from streamclient.worker.handlers.task_line import unasked_cancellation


class TwinLoops:
    """Event loops for processors that block, one for each processor in use. The next processor takes over an idle loop.

    So processors that come one after the other, as in a replay, share one loop, and with it what user code keeps in it.
    """

    def __init__(self) -> None:
        self._idle: list[asyncio.AbstractEventLoop] = []
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> asyncio.AbstractEventLoop:
        """Return a loop that no other processor uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return asyncio.new_event_loop()

    def give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let another processor use the loop."""
        self._idle.append(loop)


def _close_all(loops: list[asyncio.AbstractEventLoop]) -> None:
    for loop in loops:
        loop.close()


class BlockingTwin(IRecordProcessor):
    """Runs each coroutine of a shard's user code to its end in the calling thread, in an event loop of its own."""

    def __init__(self, code: AsyncUserCode, loops: TwinLoops) -> None:
        """Take an event loop, and keep it until ``shutdown``.

        Raises:
            ConfigurationError: an event loop runs in this thread, which must not be blocked.
        """
        if asyncio._get_running_loop() is not None:
            raise ConfigurationError(
                "an event loop runs in this thread, and an async handler or processor would block it: call this in "
                "another thread, for example with asyncio.to_thread"
            )
        self._code = code
        self._loop = loops.take()
        self._release = weakref.finalize(self, loops.give_back, self._loop)

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Run the initialisation, if there is one."""
        self._given = initialization_input
        self._lost_after = initialization_input.lost_behind
        if self._code.is_made_first:
            self._run("initialize", self._code.initialize(initialization_input))

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Run the handling of one batch, and commit the batch where the handler does not."""
        given, checkpointer = process_records_input, process_records_input.checkpointer
        settlement = Settlement(self._code.commits_by_itself)
        position = checkpointer.largest_permitted_checkpoint_value
        batch = AsyncBatch(
            given.records,
            self._given,
            settlement,
            _store_by(checkpointer),
            position=position,
            attempt=given.attempt,
            lost_after=self._lost_after,
        )
        self._run("process_records", run_batch(self._code, batch, settlement))
        self._lost_after = None
        if settlement.commits_by_itself and not settlement.is_committed:
            checkpointer.checkpoint(position)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Run the last work of user code, or without any store the due position. Then give the event loop back."""
        try:
            self._end(shutdown_input)
        finally:
            self._release()

    def _end(self, given: ShutdownInput) -> None:
        reason, checkpointer = given.shutdown_reason, given.checkpointer
        settlement, store = Settlement(commits_by_itself=False), _store_by(checkpointer)
        position = checkpointer.largest_permitted_checkpoint_value
        end = AsyncBatch((), self._given, settlement, store, position=position, is_end=True)
        work = self._code.last_work(reason, (end, settlement), partial(store, None))
        has_stored_all = isinstance(checkpointer, RecordProcessorCheckpointer) and checkpointer.has_stored_all
        if work is not None:
            self._run("shutdown", work())
        elif self._code.stores_at(reason, has_stored_all=has_stored_all, has_unstored=False):
            checkpointer.checkpoint()

    def _run(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise unasked_cancellation(name) from None
        except BaseException:
            if not task.done():  # Ctrl-C, which ended the loop and not the task
                task.cancel()
                with suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            elif not task.cancelled():
                task.exception()  # it is raised here, so asyncio need not log it
            raise


def _store_by(checkpointer: IRecordProcessorCheckpointer) -> Store:
    """Return a function that stores a position while the event loop stands still."""

    async def store(position: str | None) -> None:
        checkpointer.checkpoint(position)

    return store
