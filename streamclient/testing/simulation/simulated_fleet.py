"""The workers of one history: the living ones, and new lives."""

from __future__ import annotations

from collections import Counter

from streamclient.testing.simulation.actors.java.java_worker import JavaWorker
from streamclient.testing.simulation.actors.process_actor import PythonProcess
from streamclient.testing.simulation.world import SimulatedWorld


class SimulatedFleet:
    """Starts workers in a world, and keeps them all."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.workers: dict[str, PythonProcess | JavaWorker] = {}
        """The last life of each worker, by name."""
        self.everybody: list[PythonProcess | JavaWorker] = []
        self._lives: Counter[str] = Counter()

    def start(self, name: str, *, java: bool = False) -> None:
        """Start a worker, or its next life."""
        self._lives[name] += 1
        worker: PythonProcess | JavaWorker
        if java:
            worker = JavaWorker(self.world, name, self._lives[name])
        else:
            worker = PythonProcess(self.world, name, self._lives[name])
            self.world.processes.append(worker)
        self.workers[name] = worker
        self.everybody.append(worker)
        self.world.started(worker)
        worker.start()

    def living(self) -> list[PythonProcess]:
        """Return the living processes of this package, by name."""
        found = [one for one in self.everybody if one.is_alive and isinstance(one, PythonProcess)]
        return sorted(found, key=lambda process: (process.name, process.life))

    def living_javas(self) -> list[JavaWorker]:
        """Return the living Java workers, by name."""
        found = [one for one in self.everybody if one.is_alive and isinstance(one, JavaWorker)]
        return sorted(found, key=lambda worker: worker.name)
