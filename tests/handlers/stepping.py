"""An event loop on simulated time: its coroutines are stepped with ``send`` and ``throw``, and cancelled anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.config import ProcessorKind, processor_kind
from streamclient.testing.simulation.kernel import Agenda
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.handlers.async_user_code import async_code_maker
from streamclient.worker.handlers.event_loop import TimedLoopBridge
from streamclient.worker.handlers.task_line import TaskLine
from streamclient.worker.handlers.task_receiver import TaskReceivers
from tests.worker.stage import Stage


class StepWaiter:
    """Yields itself; the tasks that await it go on when it is rung."""

    def __init__(self) -> None:
        self.tasks: list[StepTask] = []
        self.is_rung = False

    def __await__(self) -> Generator[StepWaiter, None, None]:
        if not self.is_rung:
            yield self

    def ring(self) -> None:
        self.is_rung = True
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.step_soon()


class StepTask:
    """A coroutine, stepped by the agenda."""

    def __init__(
        self, bridge: StepBridge, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]
    ) -> None:
        self._bridge, self._coroutine, self._ended = bridge, coroutine, ended
        self._waiter: StepWaiter | None = None
        self._throw: BaseException | None = None
        self.is_done = False
        self.error: BaseException | None = None
        bridge.tasks.append(self)
        self.step_soon()

    def cancel(self) -> None:
        if self.is_done or self._throw is not None:
            return
        self._throw = asyncio.CancelledError()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and self in waiter.tasks:
            waiter.tasks.remove(self)
            self.step_soon()

    def step_soon(self) -> None:
        self._bridge.post(self._step)

    def _step(self) -> None:
        throw, self._throw, self._waiter = self._throw, None, None
        try:
            waiter = self._coroutine.send(None) if throw is None else self._coroutine.throw(throw)
        except StopIteration:
            self._end(None)
        except BaseException as error:
            self._end(error)
        else:
            self._waiter = waiter
            if self._throw is not None or waiter.is_rung:  # cancelled by itself, or rung between
                self.step_soon()
            else:
                waiter.tasks.append(self)
            self._bridge.suspended(self)

    def _end(self, error: BaseException | None) -> None:
        self.is_done, self.error = True, error
        self._bridge.tasks.remove(self)
        self._ended(error)


class StepBridge(TimedLoopBridge):
    """One event loop; it stands still while ``is_blocked``."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._held: list[Callable[[], object]] = []
        self._is_blocked = self._is_closed = False
        self.tasks: list[StepTask] = []
        self.suspensions = 0
        self.at_suspension: Callable[[int], object] = lambda number: None

    def post(self, function: Callable[[], object]) -> bool:
        if not self._is_closed:
            self._agenda.after(0, self._run, function)
        return not self._is_closed

    def _run(self, function: Callable[[], object]) -> None:
        if self._is_blocked:
            self._held.append(function)
        elif not self._is_closed:
            function()

    def waiter(self) -> StepWaiter:
        return StepWaiter()

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> StepTask:
        return StepTask(self, coroutine, ended)

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        self._agenda.after(seconds, self._run, function)

    def suspended(self, task: StepTask) -> None:
        self.suspensions += 1
        self.at_suspension(self.suspensions)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def block(self) -> None:
        self._is_blocked = True

    def unblock(self) -> None:
        self._is_blocked = False
        held, self._held = self._held, []
        for function in held:
            self.post(function)

    async def sleep(self, seconds: float) -> None:
        waiter = self.waiter()
        self.call_later(seconds, waiter.ring)
        await waiter


class AsyncStage(Stage):
    """A world whose workers have an event loop on the same time."""

    def __init__(self, *shard_ids: str, seed: int = 1, **config: Any) -> None:
        super().__init__(*shard_ids, seed=seed, **config)
        self.loop = StepBridge(self.simulation.agenda)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return self.loop.sleep(seconds)

    def line(self, concurrency: int | None = None) -> TaskLine:
        return TaskLine(lambda: self.loop, concurrency)

    def handling(
        self,
        given: Any,
        name: str = "w1",
        *,
        commit: Any = "turn",
        line: TaskLine | None = None,
        max_records: int = 2,
        **config: Any,
    ) -> SimulatedWorker:
        """Start a worker whose user code is an ``async def``, or a class of async processors."""
        kind = processor_kind(given)
        assert isinstance(kind, ProcessorKind), kind
        make_code = async_code_maker(kind, given, commit)
        return self.made(TaskReceivers(make_code, line or self.line()), name, max_records=max_records, **config)

    def made(
        self, factory: Any, name: str = "w1", *, max_records: int = 2, leases: Any = None, **config: Any
    ) -> SimulatedWorker:
        worker = Worker(
            name,
            ClientConfig(**{**self.config, **config}),
            StreamConfig(client=None, data_table_name="orders", status_table_name="s", max_records=max_records),
            factory,
            lease_manager=leases or self.leases,
            stream_api=self.stream,
            runtime=self.simulation.runtime(),
        )
        return SimulatedWorker(self.simulation, worker)

    def stored(self, shard_id: str = "a") -> str:
        lease = self.leases.get_lease(shard_id)
        return "" if lease is None else lease.checkpoint

    def close_shards(self) -> None:
        for shard_id in self.shard_ids:
            self.stream.close(shard_id)

    def until_stored(self, *shard_ids: str) -> None:
        wanted = shard_ids or tuple(self.shard_ids)
        self.until(lambda: all(self.stored(shard_id) == "SHARD_END" for shard_id in wanted), 600)
