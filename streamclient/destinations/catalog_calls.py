"""A catalog of pyiceberg's whose calls end in time.

pyiceberg has no clock of its own: a REST catalog, or the database of an SQL catalog, that keeps its connections and
answers nothing more would hold up a caller for ever. So each call is made by a thread of its own and given up after a
limit. The thread stays with its call; it is a daemon, so no process waits for it at its end. A commit that was given up
may still happen: whoever made it looks before it makes another.

The next call after that is made by new connections, as those that are kept open may be silent, too. So is the one after
an error that is not pyiceberg's own: a connection keeps what its role was set to when it was made. If calls are
given up one after the other, further ones become rare, so that threads and connections do not pile up.

The memory of SQLite is the one catalog that is asked directly. Each thread has a connection, and so a database, of its
own there, and no network is between it and its caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from streamclient.base.pools import run_call, start_thread
from streamclient.destinations.destination_packages import load

Answer = TypeVar("Answer")

ANSWER_SECONDS = 15.0
"""Longest wait for an answer, where a caller does not say it."""

_AT_ONCE_MAX = 16
"""Calls that were given up and have not ended; with as many, the next one has to wait for its turn."""

_TURN_SECONDS_MAX = 300.0
"""Longest time between two calls while earlier ones hang: a catalog that is back is noticed no later."""


class TimedCatalog:
    """Stands for a catalog, also as the ``catalog`` of the tables that it gives. Used by one thread at a time."""

    def __init__(self, catalog: Any, answer_seconds: float) -> None:
        self._catalog = catalog
        self._answer_seconds = answer_seconds
        self._is_of_thread = _is_of_thread(catalog)
        self._hanging: list[Future[Any]] = []
        """Calls that were given up and may not have ended."""
        self._next_at = -math.inf
        """When the next call may be made, if too many hang."""
        self._has_bad_connections = False
        """Whether those that are kept may be silent, or have what the other side no longer stands for."""

    @property
    def __class__(self) -> Any:
        """The class of the catalog, as pyiceberg asks for it."""
        return type(self._catalog)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError(f"a catalog does not become {kind}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        return partial(self.call, name, found) if callable(found) and not name.startswith("_") else found

    def call(self, name: str, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Make a call under ``name``, its name in messages.

        Raises:
            TimeoutError: it has not answered in time, and may still do what it was told to.
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
        # What pyiceberg answers by itself says nothing of connections. One whose role may write again may still not.
        self._has_bad_connections |= error is not None and not type(error).__module__.startswith("pyiceberg.")
        return self._kept(future.result())

    def _by_new_connections(self, call: Callable[[], Answer]) -> Callable[[], Answer]:
        """The call, after the connections that are kept were let go of, if one of them was of no use."""
        if not self._has_bad_connections:
            return call
        self._has_bad_connections = False

        def calling() -> Answer:
            # Connections in use, those of other handles over the same catalog for example, are not closed by these.
            for name, letting_go in (("engine", "dispose"), ("_session", "close")):
                if callable(let_go := getattr(getattr(self._catalog, name, None), letting_go, None)):
                    let_go()
            return call()

        return calling

    def _kept(self, answer: Answer) -> Answer:
        """The answer; a table asks this catalog from then on, too."""
        if isinstance(answer, load("pyiceberg.table", "iceberg").Table):
            answer.catalog = self
        return answer

    def _give_up(self, future: Future[Any]) -> None:
        self._hanging.append(future)
        self._has_bad_connections = True
        pause = self._answer_seconds * len(self._hanging)
        self._next_at = time.monotonic() + min(pause, _TURN_SECONDS_MAX)

    def _require_turn(self) -> None:
        self._hanging = [one for one in self._hanging if not one.done()]
        left = self._next_at - time.monotonic()
        if len(self._hanging) >= _AT_ONCE_MAX and left > 0:
            raise TimeoutError(
                f"the catalog has not answered {len(self._hanging)} calls, which were given up after "
                f"{self._answer_seconds:g} s each and hang; it is asked again in {left:.0f} s"
            )

    def _silence(self, name: str) -> str:
        return (
            f"the catalog has not answered {name} for {self._answer_seconds:g} s: something between here and it "
            "forwards nothing more, or it stands still"
        )


def load_catalog(name: str) -> Any:
    """Load the catalog of this name in pyiceberg's configuration. It is asked already while it is made.

    Raises:
        TimeoutError: it has not answered in time.
    """
    catalogs = load("pyiceberg.catalog", "iceberg")
    return TimedCatalog(None, ANSWER_SECONDS).call("load_catalog", catalogs.load_catalog, name)


def _is_of_thread(catalog: Any) -> bool:
    """Whether another thread would see another catalog, or be refused: that in the memory of SQLite."""
    engine = getattr(catalog, "engine", None)
    if engine is None or engine.dialect.name != "sqlite":
        return False
    pools = load("sqlalchemy.pool", "iceberg")
    return isinstance(engine.pool, pools.SingletonThreadPool | pools.StaticPool)
