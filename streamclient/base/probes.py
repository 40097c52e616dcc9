"""Answers for the probes of an orchestrator: whether a worker or daemon is stuck, is ready, and does its work.

The HTTP server that gives these answers is ``streamclient.base.health_server``, which is loaded when it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from streamclient.base import checks
from streamclient.base.reasons import WorkerHealth

if TYPE_CHECKING:
    from streamclient.base.health_server import HealthServer

NOT_BEGUN = "not begun"
STOPPING = "stopping"
ENDED = "ended"


@frozen(kw_only=True)
class Lifecycle:
    """The phases in the life of a worker or daemon."""

    has_begun: bool
    is_stopping: bool
    has_ended: bool
    has_failed: bool


class Probed(ABC):
    """The common part of workers, tunnel workers and daemons that answers probes."""

    @property
    def health(self) -> WorkerHealth:
        """The health. It is unhealthy before the beginning and after the end; between them, it is ``work_health``.

        Any thread may read this.
        """
        stage = self._lifecycle()
        if stage.has_failed:
            return self.work_health
        if stage.has_ended or not stage.has_begun:
            return WorkerHealth(is_healthy=False, reason=ENDED if stage.has_ended else NOT_BEGUN)
        return self.work_health

    @property
    def readiness(self) -> WorkerHealth:
        """Whether the worker or daemon has begun, is not stopping and has not failed.

        An outage of the service does not matter. Any thread may read this. A worker has begun when its ``run`` has
        begun, even if the service has not accepted it yet.
        """
        stage = self._lifecycle()
        if stage.has_failed:
            return WorkerHealth(is_healthy=False, reason=self.work_health.reason or ENDED)
        if stage.has_ended:
            return WorkerHealth(is_healthy=False, reason=ENDED)
        if stage.is_stopping:
            return WorkerHealth(is_healthy=False, reason=STOPPING)
        return WorkerHealth(stage.has_begun, "" if stage.has_begun else NOT_BEGUN)

    @property
    @abstractmethod
    def work_health(self) -> WorkerHealth:
        """The health of the work alone: healthy before the beginning.

        After an orderly end, it is the last health of the work.
        """

    @property
    @abstractmethod
    def liveness(self) -> WorkerHealth:
        """Whether every thread that decides makes progress.

        An outage of the service, or an orderly end, does not matter. Any thread may read this.
        """

    def judges(self) -> Mapping[str, Callable[[], WorkerHealth]]:
        """Return the function that judges for each kind of probe: ``live``, ``ready`` and ``health``."""
        return {"live": lambda: self.liveness, "ready": lambda: self.readiness, "health": lambda: self.health}

    @checks.explains_names
    def serve_health(self, port: int, address: str = "127.0.0.1") -> HealthServer:
        """Serve ``liveness`` at ``/live``, ``readiness`` at ``/ready`` and ``health`` at ``/health``, over HTTP.

        Each answer has status 200 or 503 and a JSON object with ``is_healthy`` and ``reason``. The server has threads
        of its own, which keep no process alive. It may begin before the worker, and serves until it is closed, even
        after the worker has ended.

        Args:
            port: the port to listen on; 0 picks a free port, which ``HealthServer.port`` names.
            address: an address of this machine; by default only this machine reaches it. Reasons name tables and
                shards without asking for a password: ``0.0.0.0`` opens them to other machines.

        Raises:
            ConfigurationError: the port or the address is invalid.
            OSError: the port is taken, or may not be used.
            NoThreadError: the system refused a thread.
        """
        from streamclient.base.health_server import HealthServer  # noqa: PLC0415  # a worker without it needs no HTTP

        return HealthServer(port, address, judges=self.judges())

    @abstractmethod
    def _lifecycle(self) -> Lifecycle:
        """Return the present phase."""


probed = checks.instance(Probed, "a worker, a tunnel worker or a daemon")
