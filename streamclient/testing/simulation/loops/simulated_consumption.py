"""The consumption of a loop and its worker on simulated time, without the threads that they have in production."""

from __future__ import annotations

from collections.abc import Callable

from streamclient.config import ClientConfig
from streamclient.loops import consumption
from streamclient.loops.consumption import LOOK_SECONDS, Consumption
from streamclient.testing.simulation.loops.loop_witness import NO_LEAK, LoopLife, LoopWitness, WitnessedReceivers
from streamclient.testing.simulation.loops.simulated_bridge import SimulatedBridge
from streamclient.testing.simulation.workers import SimulatedWorker, Simulation
from streamclient.worker import Worker
from streamclient.worker.handing_over import ReceiverFactory
from streamclient.worker.handlers.batches import Commit
from streamclient.worker.running import EndedBySigterm

GIVE_BACK_SECONDS = 2.0
"""The time limit, in seconds, for a worker to release its leases. The time begins when the program drops the object
that it iterates over, when the event loop is closed, or when the worker is asked to stop."""


class LoopWorker(SimulatedWorker):
    """A simulated worker that reports its end to a function."""

    def __init__(
        self, simulation: Simulation, worker: Worker, has_ended: Callable[[BaseException | None], None]
    ) -> None:
        super().__init__(simulation, worker)
        self._has_ended = has_ended

    def turn(self) -> None:
        """Run one turn of the worker, and report the worker's end if this was the last turn."""
        was_over = self.is_over
        super().turn()
        if self.is_over and not was_over:
            self._has_ended(self.error)


class SimulatedConsumption(Consumption):
    """The consumption of a loop without threads, whose worker the simulation runs."""

    def __init__(
        self,
        simulation: Simulation,
        witness: LoopWitness,
        life: LoopLife,
        bridge: SimulatedBridge,
        *,
        make_worker: Callable[[ReceiverFactory], Worker],
        config: ClientConfig,
        commit: Commit,
    ) -> None:
        def made(receivers: ReceiverFactory, threads: object) -> Worker:
            return make_worker(WitnessedReceivers(witness, life, receivers))

        super().__init__(life.name, made, config, commit)
        self._simulation, self._witness, self._life, self._bridge = simulation, witness, life, bridge

    def begin(
        self, is_alive: Callable[[], bool], sigterm: EndedBySigterm, receivers: ReceiverFactory | None = None
    ) -> None:
        """Make the worker, whose turns the simulation runs from now on."""
        self._begin_once()
        consumption._open.discard(self)  # the exit of the real process must not stop simulated workers
        self._is_alive = is_alive
        worker = self.worker
        assert isinstance(worker, Worker)
        if receivers is not None:
            worker.use_processors(WitnessedReceivers(self._witness, self._life, receivers))
        self._life.worker = LoopWorker(self._simulation, worker, self._has_ended)
        self._life.worker.take_along(self._bridge.queue)

    def drop(self) -> None:
        """Drop the object that the program iterates over, so that the worker stops soon."""
        super().drop()
        self.look_soon()

    def close_loop(self) -> None:
        """Close the event loop of the program, so that the worker stops soon."""
        self._bridge.close()
        self.look_soon()

    def look_soon(self) -> None:
        """Check after ``LOOK_SECONDS`` whether the program that takes batches still exists."""
        self._simulation.agenda.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        worker = self._life.worker
        if worker is None or worker.is_over:
            return
        if worker.is_frozen:
            self._simulation.agenda.at(worker.frozen_until, self._look)
        elif self._is_dropped or not self._is_alive():
            self.give_up()
            self._simulation.agenda.after(GIVE_BACK_SECONDS - LOOK_SECONDS, self._require_end)

    def _require_end(self) -> None:
        worker = self._life.worker
        if self._witness.is_quiet and worker is not None and not worker.is_over:
            text = f"{self._life.name} keeps leases although its program is gone: {', '.join(worker.holdings.held)}"
            self._witness.break_law(NO_LEAK, "", text)
