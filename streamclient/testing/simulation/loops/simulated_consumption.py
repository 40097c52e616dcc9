"""The worker of a loop on virtual time: the simulation steps its owner, and looks where its own thread would look."""

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
"""The time in which the leases of a dropped object, or of a closed event loop, are given back."""


class LoopWorker(SimulatedWorker):
    """A worker that says when it has ended."""

    def __init__(
        self, simulation: Simulation, worker: Worker, has_ended: Callable[[BaseException | None], None]
    ) -> None:
        super().__init__(simulation, worker)
        self._has_ended = has_ended

    def turn(self) -> None:
        """Take one turn; say so if it was the last one."""
        was_over = self.is_over
        super().turn()
        if self.is_over and not was_over:
            self._has_ended(self.error)


class SimulatedConsumption(Consumption):
    """A consumption without threads."""

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
        """Make the worker, which the simulation steps from now on."""
        self._begin_once()
        consumption._open.discard(self)  # the end of this process ends no history
        self._is_alive = is_alive
        worker = self.worker
        assert isinstance(worker, Worker)
        if receivers is not None:
            worker.use_processors(WitnessedReceivers(self._witness, self._life, receivers))
        self._life.worker = LoopWorker(self._simulation, worker, self._has_ended)
        self._life.worker.take_along(self._bridge.queue)

    def drop(self) -> None:
        """Make the worker stop soon."""
        super().drop()
        self.look_soon()

    def close_loop(self) -> None:
        """Close the event loop."""
        self._bridge.close()
        self.look_soon()

    def look_soon(self) -> None:
        """Check after a while whether the program that takes batches still exists."""
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
            text = f"{self._life.name} keeps leases after its program dropped them: {', '.join(worker.holdings.held)}"
            self._witness.break_law(NO_LEAK, "", text)
