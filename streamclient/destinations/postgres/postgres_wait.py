"""A connection to PostgreSQL with its own time limit. This module imports psycopg, so import it on demand.

The limits of the server and of TCP do not help against a proxy that stays connected but forwards nothing. The server
then waits for the next statement, and the client waits for an answer that never comes.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable
from typing import Any

from psycopg import Connection, OperationalError

MARGIN_SECONDS = 1.0
"""The seconds for which the client waits longer than the server. So a reachable server ends the statement first, and
says why."""

_TURN_SECONDS = 0.5
"""The longest time, in seconds, between two checks for signals to the interpreter."""


class TimedConnection(Connection[Any]):
    """A connection that is closed if an answer does not come in time. The server ends its side by its own limits."""

    answer_seconds: float = math.inf
    """The longest wait for one answer, in seconds, without ``MARGIN_SECONDS``."""
    is_working: Callable[[], bool] | None = None
    """Returns whether the server still works on the statement. If so, the wait goes on. Used for statements without a
    limit of the server."""

    def wait(self, gen: Any, *_arguments: Any, **_options: Any) -> Any:
        """Run one of psycopg's generators to its end, as psycopg's own ``wait`` does, or to the limit."""
        try:
            return self._drive(gen)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            self.pgconn.finish()  # The wait ended within an answer, so nothing can follow on this connection.
            raise

    def _drive(self, gen: Any) -> Any:
        deadline, is_last_turn = time.monotonic() + self.answer_seconds + MARGIN_SECONDS, False
        selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        try:
            wanted = next(gen)
            key = selector.register(self.pgconn.socket, int(wanted))
            while True:
                left = deadline - time.monotonic()
                if ready := selector.select(max(0.0, min(left, _TURN_SECONDS))):
                    wanted = gen.send(ready[0][1])
                    if int(wanted) != key.events:
                        key = selector.modify(key.fd, int(wanted))
                elif left <= 0:
                    if is_last_turn or self.is_working is None:
                        raise self._silence()
                    # An answer may arrive during the question to the server.
                    is_last_turn = not self.is_working()
                    more = MARGIN_SECONDS if is_last_turn else self.answer_seconds
                    deadline = time.monotonic() + more
        except StopIteration as end:
            return end.value
        finally:
            selector.close()

    def _silence(self) -> OperationalError:
        self.pgconn.finish()
        return OperationalError(
            f"nothing came for {self.answer_seconds + MARGIN_SECONDS:g} s on an open connection: something on the way "
            "to the server no longer forwards anything, or the server hangs"
        )
