"""The time of the service, whose clock stamps every cell and record. Its answers carry the time in a header."""

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
    """The machine's clock, corrected by every answer of the service. Thread-safe.

    An answer says when it was written. So this clock is late by the time that the answer took on its way, and by up to
    a second if the header has no fractions. A stamp that was read is a lower bound of the clock, too.
    """

    def __init__(self, wall_micros: Callable[[], int] = now_micros) -> None:
        self._wall_micros = wall_micros
        self._lock = Lock()
        self._offset_micros = 0
        self._newest_micros = 0

    def now_micros(self) -> int:
        """Return the time in microseconds since 1970. Before the first answer, only this machine's clock gives it."""
        with self._lock:
            return max(self._wall_micros() + self._offset_micros, self._newest_micros)

    @property
    def offset_seconds(self) -> float:
        """The seconds by which the service's clock is ahead of this machine's; negative if this machine's is ahead.

        0 before the first answer.
        """
        with self._lock:
            return self._offset_micros / MICROS_PER_SECOND

    def note_date(self, text: str) -> None:
        """Set the clock by the date of an answer that has just arrived; ignore a text that is not a date."""
        try:
            date = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        except ValueError:
            return
        with self._lock:
            self._offset_micros = micros_of(date) - self._wall_micros()

    def note_stamp(self, micros: int) -> None:
        """If the clock is before ``micros``, a stamp of the service, set it to that time.

        The present is not before a stamp.
        """
        with self._lock:
            self._newest_micros = max(self._newest_micros, micros)

    def watching(self, client: OTSClient) -> OTSClient:
        """Return a client like ``client``, on the same connections, whose answers set this clock."""
        own = copy(client)
        own.connection = _WatchedConnection(client.connection, self)
        return own


class _WatchedConnection:
    """The SDK's connection, which shows the date of each answer to the clock."""

    def __init__(self, connection: Any, clock: ServiceClock) -> None:
        self._connection = connection
        self._clock = clock

    def send_receive(self, *request: Any) -> Any:
        """Send as the SDK does: (url, headers, body) in, (status, reason, headers, body) out."""
        answer = self._connection.send_receive(*request)
        for name, value in answer[2].items():
            if name.lower() == DATE_HEADER:
                self._clock.note_date(value[1] if isinstance(value, tuple) else value)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
