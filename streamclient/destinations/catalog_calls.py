"""A pyiceberg catalog whose calls end in time.

pyiceberg has no time-outs. If a REST catalog, or the database of an SQL catalog, keeps its connections and stops
answering, the caller waits for ever. So a new thread makes each call, and the caller gives the call up after a limit.
The thread goes on with the call; it is a daemon thread, so the process does not wait for it at the end. A commit that
was given up may still happen, so its writer looks for it before it makes another commit.

The next call uses new connections, because the kept connections may be silent, too. New connections are also used after
an error that is not pyiceberg's own: a connection keeps the settings that its role had when the connection was made. If
calls are given up one after the other, later calls become rare, so that threads and connections do not accumulate.

A catalog in the memory of SQLite is called directly: no network is in between, and each thread would have its own
connection, and so its own database.
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
"""The default for the longest wait for an answer, in seconds."""

_AT_ONCE_MAX = 16
"""The number of given-up calls still under way at which the next call has to wait."""

_TURN_SECONDS_MAX = 300.0
"""The longest time, in seconds, between two calls while earlier calls hang. A catalog that answers again is noticed
within this time."""


class TimedCatalog:
    """A catalog whose calls end in time. The tables that it returns use it, too. Used by one thread at a time."""

    def __init__(self, catalog: Any, answer_seconds: float) -> None:
        self._catalog = catalog
        self._answer_seconds = answer_seconds
        self._is_of_thread = _is_of_thread(catalog)
        self._hanging: list[Future[Any]] = []
        """Calls that were given up and may not have ended."""
        self._next_at = -math.inf
        """The time, by the monotonic clock, from which the next call may be made while too many calls hang."""
        self._has_bad_connections = False
        """Whether kept connections may be silent, or may have settings that have changed on the other side since."""

    @property
    def __class__(self) -> Any:
        """The class of the wrapped catalog, because pyiceberg asks a catalog for its class."""
        return type(self._catalog)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError(f"the class of a catalog cannot be changed to {kind}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        return partial(self.call, name, found) if callable(found) and not name.startswith("_") else found

    def call(self, name: str, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Call ``function``; messages use ``name`` for it.

        Raises:
            TimeoutError: the catalog has not answered in time. The call may still take effect.
        """
        if self._is_of_thread:
            return function(*arguments, **named)
        self._require_turn()
        call = partial(function, *arguments, **named)
        future: Future[Answer] = Future()
        run = partial(copy_context().run, self._by_new_connections(call))
        start_thread(partial(run_call, future, run), f"streamclient-catalog-{name}")
        try:
            wait([future], self._answer_seconds)
        finally:
            if is_silent := not future.done():
                self._give_up(future)
        if is_silent:
            raise TimeoutError(self._silence(name))
        error = future.exception()
        # pyiceberg's own errors say nothing about connections. After any other error the connection may be at fault: if
        # its role lost the right to write and has it again, an old connection still cannot write.
        self._has_bad_connections |= error is not None and not type(error).__module__.startswith("pyiceberg.")
        return self._kept(future.result())

    def _by_new_connections(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """Return ``call``; if a kept connection was unusable, return a call that first closes the kept connections."""
        if not self._has_bad_connections:
            return call
        self._has_bad_connections = False

        def calling() -> Answer:
            # This does not close connections that are in use, for example by other handles over the same catalog.
            for name, letting_go in (("engine", "dispose"), ("_session", "close")):
                if callable(let_go := getattr(getattr(self._catalog, name, None), letting_go, None)):
                    let_go()
            return call()

        return calling

    def _kept(self, answer: Answer) -> Answer:
        """Return ``answer``; if it is a table, let the table use this catalog from then on."""
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
            f"the catalog has not answered {name} for {self._answer_seconds:g} s: something on the way to it no longer "
            "forwards anything, or the catalog hangs"
        )


def load_catalog(name: str) -> Any:
    """Load the catalog of this name in pyiceberg's configuration, which already calls it.

    Raises:
        TimeoutError: the catalog has not answered in time.
    """
    catalogs = load("pyiceberg.catalog", "iceberg")
    return TimedCatalog(None, ANSWER_SECONDS).call("load_catalog", catalogs.load_catalog, name)


def _is_of_thread(catalog: Any) -> bool:
    """Return whether only this thread can use ``catalog``.

    With a catalog in the memory of SQLite, another thread would see another catalog, or be refused.
    """
    engine = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return False
    pools = load("sqlalchemy.pool", "iceberg")
    return isinstance(engine.pool, pools.SingletonThreadPool | pools.StaticPool)
