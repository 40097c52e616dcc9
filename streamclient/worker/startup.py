"""What has to succeed once before a worker can begin: find the stream, have a status table."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from streamclient.core.retry import doubling_millis
from streamclient.errors import ConfigurationError, DependencyException
from streamclient.interfaces import ILeaseManager
from streamclient.outages import OutageLog
from streamclient.stream.api import StreamApi
from streamclient.worker.health import CallWatchdog, WorkerHealth

_log = logging.getLogger(__name__)
_outages = OutageLog(_log)

Result = TypeVar("Result")

SHORTEST_PAUSE_MILLIS = 200
LONGEST_PAUSE_MILLIS = 20_000
"""A worker that starts during an outage of the service tries again this often, without end: it is started to run."""


class StoppedEarly(Exception):  # no error: a request that was granted
    """The worker was stopped before it had begun."""


class Persistence:
    """Repeats an action until it succeeds, fails for good, or the worker is stopped; says what it is at meanwhile."""

    def __init__(
        self,
        stop: threading.Event,
        wait: Callable[[threading.Event, float], bool],
        monotonic: Callable[[], float],
        limit_millis: int,
    ) -> None:
        """``limit_millis``: how long one action may be without success before the worker counts as unhealthy."""
        self._stop = stop
        self._wait = wait
        self._monotonic = monotonic
        self._limit_seconds = limit_millis / 1_000
        self._problem: Callable[[], Exception | None] = lambda: None
        self._watchdog = CallWatchdog("nothing was asked of the service", monotonic())

    @property
    def health(self) -> WorkerHealth:
        """Whether the present action has been tried for longer than the limit, be it without any answer. Any thread."""
        now, problem = self._monotonic(), self._problem()
        if problem is not None:
            self._watchdog.failed(problem, now)
        trouble = self._watchdog.trouble(now, self._limit_seconds)
        return WorkerHealth(is_healthy=not trouble, reason=trouble)

    def do(
        self, what: str, action: Callable[[], Result], problem: Callable[[], Exception | None] = lambda: None
    ) -> Result:
        """The action's result. ``problem`` tells what holds up an action that is under way; it is asked in any thread.

        Raises:
            StoppedEarly: ``stop`` was set.
            DependencyException: the service refused in a way that repeating cannot change, such as wrong credentials.
        """
        failures = 0
        self._problem = problem
        self._watchdog = CallWatchdog(f"{what} has not succeeded", self._monotonic())
        while not self._stop.is_set():
            try:
                return action()
            except DependencyException as error:
                if not error.retriable:
                    raise
                failures += 1
                self._watchdog.failed(error, self._monotonic())
                pause = doubling_millis(failures, SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS) / 1_000
                kind = (what, error.kind, error.code)
                _outages.log(logging.WARNING, kind, "%s failed, next attempt in %.1f s: %s", what, pause, error)
                self._wait(self._stop, pause)
        raise StoppedEarly(what)


def find_stream_id(stream_api: StreamApi, data_table_name: str) -> str:
    """Id of the table's stream.

    Raises:
        ConfigurationError: the table has no stream, or more than one.
    """
    streams = stream_api.list_stream(data_table_name)
    if not streams:
        raise ConfigurationError(
            f"data table {data_table_name!r} has no stream: check the name and the instance, or enable the stream by "
            "CreateTable or UpdateTable with a StreamSpecification"
        )
    if len(streams) > 1:
        names = ", ".join(sorted(stream.stream_id for stream in streams))
        raise ConfigurationError(f"data table {data_table_name!r} has {len(streams)} streams ({names}); expected one")
    return streams[0].stream_id


def prepare_lease_table(manager: ILeaseManager, persistence: Persistence) -> None:
    """Create the status table if need be, and wait until it answers."""
    created = persistence.do("creating the status table", manager.create_lease_table_if_not_exists)
    if created:
        _log.info("created the status table of %r", manager)
    persistence.do("waiting for the status table", lambda: _be_ready(manager), lambda: _problem_of(manager))


def _be_ready(manager: ILeaseManager) -> None:
    if not manager.wait_until_lease_table_ready():
        problem = _problem_of(manager)
        because = "" if problem is None else f": {problem}"
        raise DependencyException(f"the status table of {manager!r} does not answer reads yet{because}")


def _problem_of(manager: ILeaseManager) -> Exception | None:
    """What ours can say of its waiting; a user's own lease manager need not."""
    problem: Exception | None = getattr(manager, "table_problem", None)
    return problem
