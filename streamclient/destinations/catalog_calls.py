"""A time limit for each call of a pyiceberg catalog.

pyiceberg has no time-outs. A REST catalog, or the database of an SQL catalog, may stop answering without closing its
connections, and the caller would wait forever. So each call runs in a new thread, and the caller waits for it only up
to a limit. The call then goes on in its thread, a daemon thread that does not keep the process alive. A commit may take
effect after its writer has stopped waiting. So the writer looks for that commit before it makes another one.

The call after a timed-out call uses new connections, because the kept connections may be silent, too. New connections
are also used after an error that is not pyiceberg's own, because the connection may be its cause. For example, a
database role may lose the right to write for a while, and a connection that was made during that time can never write.
While many timed-out calls are still running, a new call is possible only after a pause, so that threads and connections
do not accumulate.

An SQLite catalog in memory is called in the caller's thread, without a limit. It needs no network, and a call in
another thread would reach another database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from streamclient.base.extras import load
from streamclient.base.pools import run_call, start_thread

Answer = TypeVar("Answer")

ANSWER_SECONDS = 15.0
"""The default time limit of a call of the catalog, in seconds."""

_AT_ONCE_MAX = 16
"""The number of hanging calls at which new calls fail until a pause is over. A hanging call has timed out, but is still
running."""

_TURN_SECONDS_MAX = 300.0
"""The longest pause before a new call, in seconds, while too many calls hang. When the catalog works again, the client
notices it after at most this pause."""


class TimedCatalog:
    """A pyiceberg catalog with a time limit for its calls, and for the calls that its tables make.

    Only one thread at a time may use it.
    """

    def __init__(self, catalog: Any, answer_seconds: float) -> None:
        self._catalog = catalog
        self._answer_seconds = answer_seconds
        self._is_of_thread = _is_of_thread(catalog)
        self._hanging: list[Future[Any]] = []
        """Timed-out calls that may still be running."""
        self._next_at = -math.inf
        """While too many calls hang, the next call is made only after this time of the monotonic clock."""
        self._has_bad_connections = False
        """Whether kept connections may be unusable, because they are silent or have outdated settings."""

    @property
    def __class__(self) -> Any:
        """The class of the wrapped catalog. So this object passes pyiceberg's ``isinstance`` checks of catalogs."""
        return type(self._catalog)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError(f"the class of a catalog cannot be changed to {kind}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        return partial(self.call, name, found) if callable(found) and not name.startswith("_") else found

    def call(self, name: str, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Call ``function`` with the time limit, and return its result. Error messages name the call ``name``.

        Raises:
            TimeoutError: the catalog has not answered in time. The call may still take effect.
        """
        if self._is_of_thread:
            return function(*arguments, **named)
        self._require_turn()
        call = partial(function, *arguments, **named)
        future: Future[Answer] = Future()
        run = partial(copy_context().run, self._closing_old_connections(self._by_new_connections(call)))
        start_thread(partial(run_call, future, run), f"streamclient-catalog-{name}")
        try:
            wait([future], self._answer_seconds)
        finally:
            if is_silent := not future.done():
                self._give_up(future)
        if is_silent:
            raise TimeoutError(self._silence(name))
        error = future.exception()
        # pyiceberg's own errors say nothing about connections. After any other error the connection may be at fault.
        # For example, a database role may lose the right to write for a while. A connection that was made during that
        # time can never write.
        self._has_bad_connections |= error is not None and not type(error).__module__.startswith("pyiceberg.")
        return self._kept(future.result())

    def _by_new_connections(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """Return ``call`` or, if kept connections may be unusable, a function that closes them before ``call``."""
        if not self._has_bad_connections:
            return call
        self._has_bad_connections = False

        def calling() -> Answer:
            # Connections that are in use, for example by another destination over the same catalog, stay open.
            for name, letting_go in (("engine", "dispose"), ("_session", "close")):
                if callable(let_go := getattr(getattr(self._catalog, name, None), letting_go, None)):
                    let_go()
            return call()

        return calling

    def _closing_old_connections(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """Return a function that runs ``call``, and closes its connections if a later call no longer uses them.

        A later call replaces the pool of an SQL catalog. A connection that is in use at that time returns to the old
        pool, and no other code closes that pool.
        """

        def calling() -> Answer:
            pool = getattr(getattr(self._catalog, "engine", None), "pool", None)
            try:
                return call()
            finally:
                if pool is not None and self._catalog.engine.pool is not pool:
                    pool.dispose()

        return calling

    def _kept(self, answer: Answer) -> Answer:
        """Return ``answer``, the result of a call. If it is a table, let its own calls go through this catalog, too."""
        if isinstance(answer, load("pyiceberg.table", "iceberg").Table):
            answer.catalog = self
        return answer

    def _give_up(self, future: Future[Any]) -> None:
        self._hanging.append(future)
        self._has_bad_connections = True
        pause = self._answer_seconds * len(self._hanging)
        self._next_at = time.monotonic() + min(pause, _TURN_SECONDS_MAX)

    def _require_turn(self) -> None:
        self._hanging = [call for call in self._hanging if not call.done()]
        left = self._next_at - time.monotonic()
        if len(self._hanging) >= _AT_ONCE_MAX and left > 0:
            raise TimeoutError(
                f"the catalog has not answered {len(self._hanging)} calls, which were given up after "
                f"{self._answer_seconds:g} s each and still hang; the next call is possible in {left:.0f} s"
            )

    def _silence(self, name: str) -> str:
        return (
            f"the catalog has not answered {name} for {self._answer_seconds:g} s: something on the way to the catalog "
            "no longer forwards anything, or the catalog hangs"
        )


def load_catalog(name: str) -> Any:
    """Load the catalog ``name`` of pyiceberg's configuration. Loading calls the catalog, so the time limit applies.

    Raises:
        TimeoutError: the catalog has not answered within ``ANSWER_SECONDS``.
    """
    catalogs = load("pyiceberg.catalog", "iceberg")
    return TimedCatalog(None, ANSWER_SECONDS).call("load_catalog", catalogs.load_catalog, name)


def _is_of_thread(catalog: Any) -> bool:
    """Return whether ``catalog`` must be called in the caller's thread, because its database is SQLite in memory.

    A call in another thread would reach a different database, or SQLite would refuse the call.
    """
    engine = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return False
    pools = load("sqlalchemy.pool", "iceberg")
    return isinstance(engine.pool, pools.SingletonThreadPool | pools.StaticPool)
