"""The service's clock, which stamps every cell and record. Each answer of the service has the time in a header."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime, timezone
from threading import Lock
from typing import Any

from tablestore import OTSClient

from streamclient.base.times import MICROS_PER_SECOND, micros_of, now_micros

DATE_HEADER = "x-ots-date"


class ServiceClock:
    """The clock of this machine, corrected by every answer of the service. Thread-safe.

    An answer has the time at which the service wrote it. So this clock is late by the time that the last answer took to
    arrive. The clock is never earlier than the newest stamp that was read from a row.
    """

    def __init__(self, wall_micros: Callable[[], int] = now_micros) -> None:
        self._wall_micros = wall_micros
        self._lock = Lock()
        self._offset_micros = 0
        self._newest_micros = 0

    def now_micros(self) -> int:
        """Return the time in microseconds since 1970; before the first answer, by this machine's clock alone."""
        with self._lock:
            return max(self._wall_micros() + self._offset_micros, self._newest_micros)

    @property
    def offset_seconds(self) -> float:
        """The seconds by which the service's clock is ahead of this machine's clock; 0 before the first answer.

        Negative if this machine's clock is ahead.
        """
        with self._lock:
            return self._offset_micros / MICROS_PER_SECOND

    def note_date(self, text: str) -> None:
        """Set the clock by ``text``, the date of an answer that has just arrived. Ignore a text that is not a date."""
        try:
            date = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return
        with self._lock:
            self._offset_micros = micros_of(date) - self._wall_micros()

    def note_stamp(self, micros: int) -> None:
        """Set the clock to ``micros``, a stamp of the service, if the clock shows an earlier time.

        The service's time cannot be before one of its stamps.
        """
        with self._lock:
            self._newest_micros = max(self._newest_micros, micros)

    def watching(self, client: OTSClient) -> OTSClient:
        """Return a copy of ``client`` that uses the connections of ``client``, and sets this clock by each answer."""
        own = copy(client)
        own.connection = _WatchedConnection(client.connection, self)
        return own


class _WatchedConnection:
    """A wrapper of the SDK's connection. The wrapper gives the date of each answer to the clock."""

    def __init__(self, connection: Any, clock: ServiceClock) -> None:
        self._connection = connection
        self._clock = clock

    def send_receive(self, *request: Any) -> Any:
        """Send ``request``, which is (url, headers, body), as the SDK does; return (status, reason, headers, body)."""
        answer = self._connection.send_receive(*request)
        for name, value in answer[2].items():
            if name.lower() == DATE_HEADER:
                self._clock.note_date(value[1] if isinstance(value, tuple) else value)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
