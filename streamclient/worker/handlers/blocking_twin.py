"""A processor that blocks while coroutines of user code run, for callers without an event loop, such as replays."""

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
from streamclient.worker.checkpointer import RecordProcessorCheckpointer, handed_position
from streamclient.worker.handlers.async_user_code import AsyncUserCode, Store, run_batch
from streamclient.worker.handlers.batches import AsyncBatch, Settlement
from streamclient.worker.handlers.task_line import unasked_cancellation


class TwinLoops:
    """The event loops of processors that block. Each processor in use has its own loop.

    A new processor takes an idle loop if one exists. So processors that follow each other, as in a replay, share one
    loop, and the objects that user code keeps for that loop.
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
        """Make ``loop`` idle, so that another processor can use it."""
        self._idle.append(loop)


def _close_all(loops: list[asyncio.AbstractEventLoop]) -> None:
    for loop in loops:
        loop.close()


class BlockingTwin(IRecordProcessor):
    """A processor that runs each coroutine of user code to its end, in the calling thread and its own event loop."""

    def __init__(self, code: AsyncUserCode, loops: TwinLoops) -> None:
        """Take an event loop, and keep it until ``shutdown``.

        Raises:
            ConfigurationError: an event loop runs in this thread, and this processor would block the loop.
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
        """Run the initialisation of the user code, if it has one."""
        self._given = initialization_input
        self._lost_after = initialization_input.lost_after
        if self._code.needs_initialize:
            self._run("initialize", self._code.initialize(initialization_input))

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Run the user code for one batch, and commit the batch if its handler leaves that to the worker."""
        given, checkpointer = process_records_input, process_records_input.checkpointer
        settlement = Settlement(self._code.commits_by_itself)
        position = handed_position(checkpointer)
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
        """Run the last work of user code; if there is no such work, store the position that is due.

        Afterwards, give the event loop back.
        """
        try:
            self._end(shutdown_input)
        finally:
            self._release()

    def _end(self, given: ShutdownInput) -> None:
        reason, checkpointer = given.shutdown_reason, given.checkpointer
        settlement, store = Settlement(commits_by_itself=False), _store_by(checkpointer)
        position = handed_position(checkpointer)
        end = AsyncBatch((), self._given, settlement, store, position=position, is_end=True)
        work = self._code.last_work(reason, (end, settlement), partial(store, None))
        has_stored_all = isinstance(checkpointer, RecordProcessorCheckpointer) and checkpointer.has_stored_all
        if work is not None:
            self._run("shutdown", work())
        elif self._code.is_store_due(reason, has_stored_all=has_stored_all, has_unstored=False):
            checkpointer.checkpoint()

    def _run(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise unasked_cancellation(name) from None
        except BaseException:
            if not task.done():  # Ctrl-C, which has ended the loop but not the task
                task.cancel()
                with suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            elif not task.cancelled():
                task.exception()  # the error is raised here, so asyncio must not log it as lost
            raise


def _store_by(checkpointer: IRecordProcessorCheckpointer) -> Store:
    """Return an async function that stores a position, and blocks the event loop meanwhile."""

    async def store(position: str | None) -> None:
        checkpointer.checkpoint(position)

    return store
