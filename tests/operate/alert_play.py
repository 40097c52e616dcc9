"""A fault that is played: real workers over real HTTP, the expositions that they show, and what probes are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alert_samples import MEASURED_SECONDS, SAMPLE_SECONDS, Phase, Shot, let_time_pass, scraped, shot
from operate_scene import Scene
from prometheus_client import CollectorRegistry, generate_latest
from stuck_workers import Blocked, working

from streamclient import Backoff, IRecordProcessor, Worker
from streamclient.base.probes import Probed
from streamclient.metrics import PrometheusMetrics
from streamclient.model import Metric
from streamclient.worker import coordinator
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import probed
from tools.alert_faults import NO_ANSWER, WELL, Statuses

BEFORE_MINUTES = 60
"""How long all is well, where a fault comes later."""

FAULT_MINUTES = 6 * 60
"""How long a fault lasts: longer than any rule waits."""

STEADY_SECONDS = 3.0
"""How long calls that fail are measured: they are repeated after growing pauses."""

SCRAPE_SECONDS = 5.0
"""How long a scrape waits for a process that is stopped: one that runs answers within it, on any machine."""

AGAIN = Backoff(restart_backoff_min_millis=50, restart_backoff_max_millis=100)
"""Starts that follow each other so soon that a moment shows how they go on."""

UNWELL: dict[str, Any] = {
    "max_duration_before_last_successful_renew_or_take_lease": 3_000,
}
"""Calls that fail for three seconds make these workers unhealthy, and a machine that pauses does not."""

SOON_LOST: dict[str, Any] = {
    "max_duration_before_last_successful_renew_or_take_lease": 500,
    "lease_duration_millis": 1_500,
}
"""Workers that are unhealthy after half a second, and whose leases are lost soon."""


class Play:
    """A fault that is played: its tables, its workers, and what they show."""

    def __init__(self, scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = scene
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.phases: list[Phase] = []
        self.probed: list[Statuses] = []
        """The statuses of each worker's probes at the end of the last phase, the oldest worker first."""
        self._registries: dict[str, Callable[[], str]] = {}
        self._probed_ports: dict[int, float] = {}
        """Ports of the probes of the workers that are there, with the seconds that an answer may take."""
        monkeypatch.setattr(coordinator, "SAMPLE_SECONDS", SAMPLE_SECONDS)

    def metrics(self, instance: str = "a") -> PrometheusMetrics:
        """Those of one more process."""
        registry = CollectorRegistry()
        self._registries[instance] = lambda: generate_latest(registry).decode()
        return PrometheusMetrics(registry)

    def scrape(self, instance: str, port: int) -> None:
        """Scrape and probe a process at its endpoint from now on."""
        self._registries[instance] = lambda: scraped(f"http://127.0.0.1:{port}/metrics", SCRAPE_SECONDS)
        self._probed_ports[port] = SCRAPE_SECONDS

    @contextmanager
    def probing(self, worker: Probed) -> Iterator[None]:
        """Probe a worker of this process at the end of each phase."""
        with worker.serve_health(0) as server:
            self._probed_ports[server.port] = PATIENCE_SECONDS
            try:
                yield
            finally:
                del self._probed_ports[server.port]

    def shot(self) -> Shot:
        values: dict[str, float] = {}
        for instance, text in self._registries.items():
            values |= shot(text(), instance=instance).values
        return Shot(time.monotonic(), values)

    def take(self, minutes: int = FAULT_MINUTES, seconds: float = MEASURED_SECONDS) -> None:
        """Measure the present state for some seconds; it then lasts for all these minutes."""
        first = self.shot()
        let_time_pass(seconds)
        self.end_phase(minutes, first)

    def end_phase(self, minutes: int, first: Shot) -> None:
        """Take the second exposition of a phase, and probe the workers; before the last phase all are well."""
        assert set(self.probed) <= {WELL}
        self.phases.append(Phase(minutes, first, self.shot()))
        self.probed = [_statuses(port, seconds) for port, seconds in self._probed_ports.items()]

    @contextmanager
    def working(
        self, make: Callable[[], IRecordProcessor], metrics: PrometheusMetrics | None = None, **config: Any
    ) -> Iterator[Worker]:
        with working(self.scene, make, metrics=metrics or self.metrics(), **config) as worker, self.probing(worker):
            yield worker

    @contextmanager
    def blocked(self, **config: Any) -> Iterator[Worker]:
        """A worker inside a call, which is let go at the end."""
        go = threading.Event()
        self.scene.write(3)
        with self.working(lambda: Blocked(go), **config) as worker:
            try:
                yield worker
            finally:
                go.set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Records that keep coming."""
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.wait(0.02):
                self.scene.write(start=(number := number + 1))

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _statuses(port: int, seconds: float) -> Statuses:
    try:
        return probed(port, seconds)
    except OSError:
        return NO_ANSWER


def grows(metrics: PrometheusMetrics, metric: Metric, by: int = 3, **labels: str) -> None:
    """Wait until a figure has grown by so many."""
    before = metrics.value(metric, **labels) or 0
    until(lambda: (metrics.value(metric, **labels) or 0) >= before + by, metric.name)


def shows(metrics: PrometheusMetrics, metric: Metric, value: float, **labels: str) -> None:
    """Wait until a figure is this."""
    until(lambda: metrics.value(metric, **labels) == value, f"{metric.name} {labels} {value}")


@contextmanager
def playing(scene: Scene, folder: Path) -> Iterator[Play]:
    with pytest.MonkeyPatch.context() as monkeypatch, ExitStack():
        yield Play(scene, folder, monkeypatch)
