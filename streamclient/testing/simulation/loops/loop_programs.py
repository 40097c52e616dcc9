"""Simulated programs. Their user code is a loop over batches, or a handler of batches, with the mishaps of a plan."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NoReturn

from attrs import define, fields

from streamclient.errors import DependencyException, ShutdownException
from streamclient.loops.aio.async_iterating import AsyncLoop
from streamclient.loops.aio.task_runs import run_tasks
from streamclient.testing.simulation.kernel import Dice
from streamclient.testing.simulation.loops.loop_witness import REASONS, Body, LoopLife, LoopWitness, WitnessedCall
from streamclient.testing.simulation.loops.simulated_bridge import SimulatedBridge
from streamclient.testing.simulation.loops.simulated_consumption import SimulatedConsumption
from streamclient.testing.simulation.plan import LoopPlan, Mishaps
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor

COMMITS_SHARE = 0.1
"""The share of loop bodies that commit their batch themselves, although the loop's next turn would commit it."""

ENOUGH_SECONDS = 5.0
"""The longest time-out, in seconds, of a program that waits for a batch with a time-out."""


class BodyFailed(Exception):
    """The error that the simulated user code raises."""


class LoopProcessor(AsyncRecordProcessor):
    """A processor for one shard that runs the program's body for each batch, and has no ``shutdown`` of its own."""

    def __init__(self, handle: Callable[[AsyncBatch], Awaitable[None]]) -> None:
        self._handle = handle

    async def process_records(self, batch: AsyncBatch) -> None:
        """Run the program's body for ``batch``."""
        await self._handle(batch)


class Then(Enum):
    """The program's next step after a loop body."""

    NEXT = "next"
    """The loop goes on with its next turn."""
    AGAIN = "break"
    """The program leaves the loop by ``break``, and begins a new loop over the same object."""
    OVER = "over"
    """The program leaves the loop by ``break``, and ends."""


@define(eq=False, kw_only=True)
class LoopProgram:
    """The user code of one simulated process: a loop over batches, or a handler of batches."""

    _life: LoopLife
    _plan: LoopPlan
    _dice: Dice
    _witness: LoopWitness
    _bridge: SimulatedBridge
    _consumption: SimulatedConsumption
    _is_calm: Callable[[], bool]
    _befell: Callable[[str], object]
    """A function that the program calls with the name of each mishap that happens."""
    _bodies: int = 0
    changes: Callable[[], AsyncLoop | None] = lambda: None
    """A function that returns the object that the program iterates over, or ``None`` once the object is gone. The
    function does not keep the object alive."""

    async def run(self) -> None:
        """Run the program until it ends or raises."""
        if self._plan.concurrency:
            handler = (lambda: LoopProcessor(self._handle)) if self._plan.is_processor else self._handle
            await run_tasks(self._consumption, handler, self._plan.concurrency, self._bridge)
        elif self._dice.chance(self._plan.mishaps.drops):
            self._befell("drops")
            await self._loops(self._made())  # the program never closes the object
        else:
            async with self._made() as changes:
                await self._loops(changes)

    def _made(self) -> AsyncLoop:
        changes = AsyncLoop(self._consumption, lambda: self._bridge)
        self.changes = weakref.ref(changes)
        return changes

    # --- a loop --------------------------------------------------------------------------------------------------

    async def _loops(self, changes: AsyncLoop) -> None:
        while await self._loop(changes):
            self._befell("breaks")

    async def _loop(self, changes: AsyncLoop) -> bool:
        """Run one loop over ``changes``; return whether another loop over the same object follows."""
        changes.__aiter__()
        while (batch := await self._next(changes)) is not None:
            call = self._witness.received(self._life, batch)
            try:
                then = await self._body(batch, call)
            except asyncio.CancelledError:
                self._witness.became(call, Body.CANCELLED)
                raise
            except BodyFailed:
                self._witness.became(call, Body.LEFT)
                raise
            if then is Then.NEXT:
                self._witness.became(call, Body.ENDED)
                continue
            self._witness.became(call, Body.LEFT)
            self._life.left = call
            if then is Then.AGAIN and self._dice.chance(COMMITS_SHARE):
                await self._commit(batch, call)
            return then is Then.AGAIN
        return False

    async def _next(self, changes: AsyncLoop) -> AsyncBatch | None:
        """Return the next batch, or ``None`` at the end of the loop. An end while the worker runs breaks a law."""
        while True:
            is_short = self._draws("time_outs")
            seconds = ENOUGH_SECONDS * self._dice.random() if is_short else None
            try:
                return await self._anext(changes, seconds)
            except TimeoutError:
                self._befell("time_outs")
                self._witness.nothing_taken(self._life)
            except asyncio.CancelledError:
                task = self._bridge.current
                if task is None or not task.cancellations:
                    self._ends_for_nothing("CancelledError without a cancellation")
                self._witness.nothing_taken(self._life)
                raise
            except StopAsyncIteration:
                if not self._consumption.is_stopping:
                    self._ends_for_nothing("its end without a stop")
                return None

    async def _anext(self, changes: AsyncLoop, seconds: float | None) -> AsyncBatch:
        try:
            following = changes.__anext__()
            return await (following if seconds is None else self._bridge.within(seconds, following))
        except (TimeoutError, StopAsyncIteration):
            raise
        except Exception as error:
            self._ends_for_nothing(f"{type(error).__name__}: {error}")

    def _ends_for_nothing(self, what: str) -> NoReturn:
        self._witness.break_law(REASONS, "", f"the loop of {self._life.name} got {what}")

    # --- a handler -----------------------------------------------------------------------------------------------

    async def _handle(self, batch: AsyncBatch) -> None:
        call = self._witness.received(self._life, batch)
        try:
            await self._body(batch, call)
        except asyncio.CancelledError:
            self._witness.became(call, Body.CANCELLED)
            raise
        except BodyFailed:
            self._witness.became(call, Body.FAILED)
            raise
        self._witness.became(call, Body.ENDED)

    # --- loops and handlers --------------------------------------------------------------------------------------

    async def _body(self, batch: AsyncBatch, call: WitnessedCall) -> Then:
        plan, mishap = self._plan, self._mishap()
        self._bodies += 1
        if mishap:
            self._befell(mishap)
        await self._bridge.sleep(plan.body_seconds * self._dice.random())
        if mishap == "sleeps":
            await self._bridge.sleep(plan.duration_seconds * (1.1 + self._dice.random()))
        if mishap == "raises":
            raise BodyFailed("raised by the body")
        if mishap == "fails":
            batch.fail(BodyFailed("failed by the body"))
            self._witness.became(call, Body.FAILED)
            return Then.NEXT
        if self._commits(batch):
            await self._commit(batch, call)
        if mishap == "closes_loop":
            self._consumption.close_loop()
            await self._bridge.waiter()  # in a closed event loop no code goes on
        return {"breaks": Then.AGAIN, "leaves": Then.OVER}.get(mishap, Then.NEXT)

    def _commits(self, batch: AsyncBatch) -> bool:
        if not self._plan.commit_every:
            return self._dice.chance(COMMITS_SHARE)
        return batch.is_end or self._is_calm() or self._bodies % self._plan.commit_every == 0

    async def _commit(self, batch: AsyncBatch, call: WitnessedCall) -> None:
        """Commit the batch. Count and ignore a refused commit and a commit without an answer."""
        self._witness.asks_to_commit(call)
        try:
            await batch.commit()
        except (ShutdownException, DependencyException) as error:
            self._witness.counts[f"commit: {type(error).__name__}"] += 1
        else:
            self._witness.committed(call)

    def _draws(self, name: str) -> bool:
        return not self._is_calm() and self._dice.chance(getattr(self._plan.mishaps, name))

    def _mishap(self) -> str:
        """Return the name of the mishap in the present body; empty if nothing goes wrong."""
        if self._is_calm():
            return ""
        number, end = self._dice.random(), 0.0
        for each in fields(Mishaps):
            if each.name in ("drops", "time_outs"):
                continue
            end += getattr(self._plan.mishaps, each.name)
            if number < end:
                return each.name
        return ""
