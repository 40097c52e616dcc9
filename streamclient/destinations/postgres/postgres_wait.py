"""A connection to PostgreSQL that limits the time for which it waits for the server.

The limits of the server and of TCP do not help if a proxy stays connected but forwards nothing. In this case the server
waits for the next statement, and the client waits for a response that never comes.

Import this module only when it is used, because it imports psycopg.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable
from typing import Any

from psycopg import Connection, OperationalError

MARGIN_SECONDS = 1.0
"""The seconds by which the client's time limit is longer than the server's. So a server that can be reached ends the
statement first, and sends the reason."""

_TURN_SECONDS = 0.5
"""The longest time, in seconds, for which a wait keeps the interpreter from handling signals such as Ctrl-C."""


class TimedConnection(Connection[Any]):
    """A connection to PostgreSQL that is closed if a response does not come in time."""

    answer_seconds: float = math.inf
    """The longest wait for one response, in seconds. ``MARGIN_SECONDS`` are added to it."""
    is_working: Callable[[], bool] | None = None
    """A function that finds out whether the server still works on the statement. If it does, the wait is extended.
    ``None`` ends every wait after ``answer_seconds``."""

    def wait(self, gen: Any, *_arguments: Any, **_options: Any) -> Any:
        """Run psycopg's generator ``gen`` to its end, as ``Connection.wait`` does, but with a time limit."""
        try:
            return self._drive(gen)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            self.pgconn.finish()  # After an incomplete read, the connection cannot be used any more.
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
                    # Even if the server does not work any more, wait once more: its response may have come meanwhile.
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
