"""The consumer process of the drill: a loop in an event loop that cancels itself wherever it happens to wait.

It writes a line to its journal, with fsync, when a body begins, when the body's work is done, and for each cancellation
that reached the code of the loop. Nothing is awaited between a body's last line and its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamclient import Backoff, ClientConfig, DependencyException, ShutdownException, aio
from streamclient.aio import AsyncBatch, AsyncChanges
from tests.drill_kit import LOOP_THREADS, client_of, told

LEASE_SECONDS = 2
"""Short, so that the process after a killed one soon has its shards."""

CONFIG = ClientConfig.for_lease(
    LEASE_SECONDS,
    sync_shard_interval_millis=300,
    max_idle_poll_interval_millis=100,
    # A handler that is cancelled by another task than the run has failed, and its shard begins again.
    backoff=Backoff(restart_backoff_min_millis=50, restart_backoff_max_millis=200),
    shutdown_timeout_millis=10_000,
    **LOOP_THREADS,
)

LONGEST_PAUSE_SECONDS = 0.02
MOST_STEPS = 12
"""Of the event loop, before a cancellation: a body has fewer."""

MOST_TIME_OUTS = 3
"""Around the waits of one loop: most would find an idle stream, where there is least to break."""

EPISODES_OF_AN_OBJECT = 5
"""Loops over one object, most of which begin with the batch that the last one left."""


QUIET_SECONDS = 2.0
"""The longest wait for a body that is to be cancelled; after it the wait for a batch is."""


class Journal:
    """Lines that outlive the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def begin(self, batch: AsyncBatch) -> None:
        changes = [
            [record["id"], record["number"], [info.epoch, info.timestamp_micros, info.row_index]]
            for record in batch
            for info in [record.sequence_info]
        ]
        self._write(what="begin", shard=batch.shard.shard_id, position=batch.position, changes=changes)

    def done(self, batch: AsyncBatch) -> None:
        self._write(what="done", shard=batch.shard.shard_id, position=batch.position)

    def cancelled(self, where: str) -> None:
        self._write(what="cancelled", where=where)

    def _write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())
        os.fsync(self._file)


class Consumer:
    """The program."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._client = client_of(given)
        self._dice = random.Random(given["seed"])
        self._journal = Journal(Path(given["journal"]))
        self._has_begun = asyncio.Event()
        """Set by a body."""
        self._where = ""
        """Where the loop is, for its journal."""
        self._handlers: set[asyncio.Task[Any]] = set()
        self._chosen: set[asyncio.Task[Any]] = set()
        """Tasks of handlers that were cancelled one by one."""

    async def drill(self) -> None:
        """Be cancelled, again and again, until the process is killed."""
        while True:
            await (self._iterate if self._dice.random() < 0.6 else self._run)()

    async def consume(self) -> None:
        """Read on, as a program does that nobody cancels; SIGTERM ends it."""
        async with self._changes() as changes:
            await self._loop(changes)

    def _changes(self) -> AsyncChanges:
        size = self._dice.choice([3, 10, 30])
        given = self._given
        return aio.changes(given["table"], group="drill", client=self._client, max_records=size, config=CONFIG)

    # --- loops -------------------------------------------------------------------------------------------------------

    async def _iterate(self) -> None:
        """Some loops over one object, each ended by a cancellation."""
        ways = [self._cancelled_at_some_step, self._cancelled_after_some_time, self._timed_out, self._timed_waits]
        async with self._changes() as changes:
            for _ in range(EPISODES_OF_AN_OBJECT):
                await self._dice.choice(ways)(changes)

    async def _cancelled_at_some_step(self, changes: AsyncChanges) -> None:
        await self._cancel(asyncio.ensure_future(self._loop(changes)), self._steps)

    async def _cancelled_after_some_time(self, changes: AsyncChanges) -> None:
        await self._cancel(asyncio.ensure_future(self._loop(changes)), self._pause)

    async def _timed_out(self, changes: AsyncChanges) -> None:
        """A time-out around a loop."""
        await self._within(self._dice.uniform(0, 5 * LONGEST_PAUSE_SECONDS), self._loop(changes))

    async def _timed_waits(self, changes: AsyncChanges) -> None:
        """Time-outs around the waits, and none around the bodies."""
        left, batches = (
            MOST_TIME_OUTS,
            aiter(changes),
        )  # a loop: the turn of a bare anext ends a body that was cancelled
        while left:
            batch = await self._within(self._dice.uniform(0, LONGEST_PAUSE_SECONDS), anext(batches))
            if batch is None:
                left -= 1
                self._journal.cancelled("time-out of a wait")
            else:
                await self._body(batch)

    async def _loop(self, changes: AsyncChanges) -> None:
        self._where = "wait"
        try:
            async for batch in changes:
                self._where = "body"
                await self._body(batch)
                self._where = "wait"
        except asyncio.CancelledError:
            self._journal.cancelled(self._where)
            raise

    async def _body(self, batch: AsyncBatch) -> None:
        """Wait here and there, and do something that can be seen; sometimes commit before the end."""
        self._journal.begin(batch)
        self._has_begun.set()
        for _ in range(self._dice.randrange(4)):
            await self._dally()
        self._journal.done(batch)
        if self._dice.random() < 0.2:
            self._where = "commit"
            with suppress(ShutdownException, DependencyException):  # of a lease that is lost, and of an answer
                await batch.commit()
            self._where = "body"
            await self._dally()

    async def _dally(self) -> None:
        pause = self._dice.uniform(0, LONGEST_PAUSE_SECONDS)
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: asyncio.sleep(0),
            lambda: asyncio.sleep(pause),
            lambda: asyncio.to_thread(time.sleep, pause),
            lambda: asyncio.gather(asyncio.sleep(pause), asyncio.sleep(0)),
        ]
        await self._dice.choice(ways)()

    # --- run ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """A run some of whose tasks are cancelled one by one; in the end it is, with all that are under way."""
        changes = self._changes()
        task = asyncio.ensure_future(changes.run(self._handle, concurrency=self._dice.choice([None, 1, 3])))
        for _ in range(self._dice.randrange(3)):
            await self._begun(task)
            await self._steps()
            if self._handlers:
                chosen = self._dice.choice(sorted(self._handlers, key=lambda each: each.get_name()))
                self._chosen.add(chosen)
                chosen.cancel()
        await self._cancel(task, self._dice.choice([self._steps, self._pause]))
        if task.cancelled():
            self._journal.cancelled("run")

    async def _handle(self, batch: AsyncBatch) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            await self._body(batch)
        except asyncio.CancelledError:
            if task in self._chosen:
                self._journal.cancelled("task of a run")
            raise
        finally:
            self._handlers.discard(task)
            self._chosen.discard(task)

    # --- cancelling --------------------------------------------------------------------------------------------------

    async def _cancel(self, task: asyncio.Task[None], wait: Callable[[], Awaitable[None]]) -> None:
        """Cancel a task some while after a body has begun, or at once; return when it is over."""
        if self._dice.random() < 0.8:
            await self._begun(task)
        await wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _begun(self, task: asyncio.Task[None]) -> None:
        """Return once a body begins, the task is over, or none has begun for a while: the drill may write nothing."""
        self._has_begun.clear()
        beginning = asyncio.ensure_future(self._has_begun.wait())
        await asyncio.wait([beginning, task], timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()

    async def _steps(self) -> None:
        for _ in range(self._dice.randrange(MOST_STEPS)):
            await asyncio.sleep(0)

    async def _pause(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, 2 * LONGEST_PAUSE_SECONDS))

    async def _within(self, seconds: float, wanted: Awaitable[Any]) -> Any:
        """The result; `None` after a time-out, which has cancelled `wanted`."""
        with suppress(asyncio.TimeoutError):
            if hasattr(asyncio, "timeout"):  # came with Python 3.11, and cancels the task itself
                async with asyncio.timeout(seconds):
                    return await wanted
            return await asyncio.wait_for(wanted, seconds)
        return None


async def main() -> None:
    given = told()
    consumer = Consumer(given)
    if given["is_calm"]:
        await consumer.consume()
    else:
        await consumer.drill()


if __name__ == "__main__":
    asyncio.run(main())
