"""A consumption on simulated time, for runs of coroutines: a simulated worker in place of one in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamclient import ClientConfig
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.handlers.batches import Commit
from tests.handlers.stepping import AsyncStage, StepTask

LOOK_SECONDS = 0.05


class StagedConsumption:
    """What runs use of ``Consumption``."""

    def __init__(self, world: AsyncStage, name: str = "w1", commit: Commit = "turn", **config: Any) -> None:
        self.world, self.name, self.commit = world, name, commit
        self.config = ClientConfig()
        self.settings = config
        self.worker: SimulatedWorker | None = None
        self.failure: BaseException | None = None
        self.is_dropped = self.has_ended = False
        self._wake: Callable[[], object] | None = None
        self._is_alive: Callable[[], bool] = lambda: True

    def begin(self, is_alive: Callable[[], bool], sigterm: object, receivers: Any) -> None:
        self._is_alive = is_alive
        self.worker = self.world.made(receivers, self.name, **self.settings)
        self._look()

    def _look(self) -> None:
        """Do what the worker's own thread does."""
        assert self.worker is not None
        if self.is_dropped or not self._is_alive():
            self.worker.stop()
        if self.worker.is_over:
            self.has_ended = True
            if self._wake is not None:
                self._wake()
            return
        self.world.simulation.agenda.after(LOOK_SECONDS, self._look)

    def wakes_when_ended(self, wake: Callable[[], object]) -> bool:
        self._wake = wake
        return not self.has_ended

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def drop(self) -> None:
        self.is_dropped = True

    def end_sigterm(self, error: BaseException | None) -> None:
        """No signal comes."""

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


class Main:
    """The caller's task."""

    def __init__(self, world: AsyncStage, coroutine: Any) -> None:
        self.is_over = False
        self.error: BaseException | None = None
        self.task: StepTask = world.loop.start(coroutine, self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self.is_over, self.error = True, error
