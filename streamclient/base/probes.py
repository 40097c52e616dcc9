"""Answers to the probes of an orchestrator: whether a worker or daemon makes progress, is ready, and does its work.

The HTTP server for these answers is ``streamclient.base.health_server``, which is imported when it is first used.
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
    """The steps that a worker or daemon has reached in its life."""

    has_begun: bool
    is_stopping: bool
    has_ended: bool
    has_failed: bool


class Probed(ABC):
    """The base class of workers, tunnel workers and daemons, which answers probes of their state."""

    @property
    def health(self) -> WorkerHealth:
        """The health of the worker or daemon: ``work_health``, but unhealthy before its beginning and after its end.

        Any thread may read this property.
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

        An outage of the service changes nothing. A worker has begun when its ``run`` has begun, even if the service has
        not answered yet. Any thread may read this property.
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
        """The health of the work alone. Unlike ``health``, it does not depend on whether the worker or daemon runs.

        The work is healthy before its beginning. After an orderly end, its health stays as it last was.
        """

    @property
    @abstractmethod
    def liveness(self) -> WorkerHealth:
        """Whether every owner thread makes progress.

        An outage of the service, or an orderly end, changes nothing. Any thread may read this property.
        """

    def judges(self) -> Mapping[str, Callable[[], WorkerHealth]]:
        """Return the function that answers each kind of probe: ``live``, ``ready`` and ``health``."""
        return {"live": lambda: self.liveness, "ready": lambda: self.readiness, "health": lambda: self.health}

    @checks.explains_names
    def serve_health(self, port: int, address: str = "127.0.0.1") -> HealthServer:
        """Serve ``liveness`` at ``/live``, ``readiness`` at ``/ready`` and ``health`` at ``/health``, over HTTP.

        Each answer has status 200 or 503, and a JSON object with ``is_healthy`` and ``reason``. The server has threads
        of its own, which do not keep the process alive. It may be started before the worker, and serves until it is
        closed, even after the worker has ended.

        Args:
            port: the port to listen on; 0 picks a free port, which ``HealthServer.port`` returns.
            address: an address of this machine. Only this machine can reach the default address. The server asks for
                no password, and answers name tables and shards: ``0.0.0.0`` shows them to other machines.

        Raises:
            ConfigurationError: the port or the address is invalid.
            OSError: another program uses the port, or the system does not allow this program to use it.
            NoThreadError: the system refused a thread.
        """
        from streamclient.base.health_server import HealthServer  # noqa: PLC0415  # few processes need HTTP

        return HealthServer(port, address, judges=self.judges())

    @abstractmethod
    def _lifecycle(self) -> Lifecycle:
        """Return the steps that the worker or daemon has reached. Any thread may call this method."""


probed = checks.instance(Probed, "a worker, a tunnel worker or a daemon")
