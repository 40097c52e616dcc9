"""Log lines about outages. Each outage has at most one line a minute, even if many calls fail in many threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

from streamclient.errors import printable

REPEAT_SECONDS = 60.0
"""The seconds between two lines about one outage. A reader of the log sees that the outage goes on, and also sees other
lines."""

MOST_REMEMBERED = 100
"""The largest number of outages that a log remembers. One more outage makes the log forget all outages, so that
its memory stays small."""


class OutageLog:
    """A log of lines about outages, which callers may repeat many times a second. Thread-safe.

    For each outage one line a minute is logged, with the number of lines left out since the previous line. All other
    lines are logged as DEBUG.
    """

    def __init__(self, logger: logging.Logger, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._said: dict[Hashable, tuple[float, int]] = {}

    def log(self, level: int, outage: Hashable, text: str, *arguments: object) -> None:
        """Log a line about an outage. Equal values of ``outage`` stand for the same outage."""
        left_out = self._news(outage)
        if left_out is None:
            self._logger.debug(text, *arguments)
            return
        told = printable(text % arguments)
        self._logger.log(level, "%s%s", told, f" ({left_out} more like this were left out)" if left_out else "")

    def _news(self, outage: Hashable) -> int | None:
        """Return the number of lines left out since the last logged line; ``None`` to leave out this line, too."""
        now = self._monotonic()
        with self._lock:
            said_at, left_out = self._said.get(outage, (None, 0))
            if said_at is not None and now - said_at < REPEAT_SECONDS:
                self._said[outage] = (said_at, left_out + 1)
                return None
            if len(self._said) >= MOST_REMEMBERED:
                self._said.clear()
            self._said[outage] = (now, 0)
            return left_out
