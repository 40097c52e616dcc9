"""Whether a worker can do its work, judged by what was really answered, never by what was only attempted."""

from __future__ import annotations

import logging
from typing import Any

from attrs import frozen

from streamclient.core.events import Answered, ListShards, ReadRows, ReadSignals, WriteLease, WriteWorker
from streamclient.core.rows import WriteOutcome

_log = logging.getLogger(__name__)


@frozen
class WorkerHealth:
    """What ``Worker.health`` answers."""

    is_healthy: bool
    reason: str = ""
    """Which call has been failing, for how long and with what error; empty for a healthy worker."""


def logged_change(before: WorkerHealth, now: WorkerHealth, who: str) -> WorkerHealth:
    """The present one; logged if it has turned."""
    if now.is_healthy and not before.is_healthy:
        _log.info("%s is healthy again", who)
    elif before.is_healthy and not now.is_healthy:
        _log.error("%s is unhealthy: %s", who, now.reason)
    return now


class CallWatchdog:
    """For how long one kind of call has been without success. One thread writes, any may read.

    A call that is made all the time is due from a first moment on, whether it fails or gets no answer at all. One that
    is made on occasion is judged only from its first failure to its next success.
    """

    def __init__(self, what: str, due_since: float | None = None) -> None:
        """``what`` continues with how long it has been so: "no scan of the status table succeeded"."""
        self._what = what
        self._is_always_due = due_since is not None
        self._without: tuple[float | None, Exception | None] = (due_since, None)

    @property
    def is_failing(self) -> bool:
        """Whether the last answer was an error."""
        return self._without[1] is not None

    def succeeded(self, now: float) -> None:
        """It was answered."""
        self._without = (now if self._is_always_due else None, None)

    def failed(self, error: Exception | None, now: float) -> None:
        """It was answered with an error, or not at all."""
        since, known = self._without
        self._without = (now if since is None else since, error or known)

    def trouble(self, now: float, limit_seconds: float) -> str:
        """What to say of it; empty if it succeeded within the limit."""
        since, error = self._without
        if since is None or now - since <= limit_seconds:
            return ""
        return f"{self._what} for {now - since:.0f} s{_because(error)}"


class HealthWatch:
    """Remembers since when the calls of a running worker have been failing. Owner thread; any may ``judge``.

    ``reads`` is kept by those who read: one success, of any shard, shows that the stream can be read.
    """

    def __init__(self, limit_millis: int, now: float, reads: CallWatchdog) -> None:
        self._limit_seconds = limit_millis / 1_000
        self._scans = CallWatchdog("no scan of the status table succeeded", now)
        self._writes = CallWatchdog("no lease write was answered")
        self._listings = CallWatchdog("no list of the stream's shards was read")
        self._reads = reads
        self._has_scan_failed = False

    def answered(self, answer: Answered[Any], now: float) -> None:
        """A call came back, with or without what it asked for."""
        error = answer.error
        match answer.call:
            case ReadRows():
                self._has_scan_failed = error is not None
                _note(self._scans, error, now)
            case ReadSignals():
                # A few rows of workers come in place of most scans, but not of one that failed.
                if error is not None or not self._has_scan_failed:
                    _note(self._scans, error, now)
            case ListShards():
                _note(self._listings, error, now)
            case WriteLease() | WriteWorker():
                # A refusal is an answer: the table works.
                if answer.value is WriteOutcome.UNCERTAIN:
                    self._writes.failed(error, now)
                else:
                    self._writes.succeeded(now)

    def judge(self, now: float, trouble: str = "") -> WorkerHealth:
        """Healthy, unless a kind of call has been without success for longer than the limit, or there is trouble."""
        watched = (self._scans, self._writes, self._listings, self._reads)
        reasons = [trouble, *(each.trouble(now, self._limit_seconds) for each in watched)]
        found = [reason for reason in reasons if reason]
        return WorkerHealth(not found, "; ".join(found))


def _note(watch: CallWatchdog, error: Exception | None, now: float) -> None:
    if error is None:
        watch.succeeded(now)
    else:
        watch.failed(error, now)


def _because(error: Exception | None) -> str:
    return "" if error is None else f" ({type(error).__name__}: {error})"
