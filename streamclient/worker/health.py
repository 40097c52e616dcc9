"""Whether a worker can do its work, judged by what was really answered, never by what was only attempted."""

from __future__ import annotations

from attrs import frozen

from streamclient.core.rows import WriteOutcome


@frozen
class WorkerHealth:
    """What ``Worker.health`` answers."""

    is_healthy: bool
    reason: str = ""
    """Which call has been failing, for how long and with what error; empty for a healthy worker."""


class HealthWatch:
    """Remembers since when scans and lease writes have been failing. Owner thread only."""

    def __init__(self, limit_millis: int, now: float) -> None:
        self._limit_seconds = limit_millis / 1_000
        self._last_read = now
        self._read_error: Exception | None = None
        self._has_scan_failed = False
        self._writes_fail_since: float | None = None
        self._write_error: Exception | None = None

    def scanned(self, now: float) -> None:
        """A scan returned."""
        self._last_read, self._read_error, self._has_scan_failed = now, None, False

    def signals_read(self, now: float) -> None:
        """A few rows of workers were read. That comes in place of most scans, but not of one that failed."""
        if not self._has_scan_failed:
            self._last_read, self._read_error = now, None

    def scan_failed(self, error: Exception) -> None:
        """A scan failed after its retries."""
        self._read_error, self._has_scan_failed = error, True

    def signals_failed(self, error: Exception) -> None:
        """Reading a few rows of workers failed."""
        self._read_error = error

    def write_answered(self, outcome: WriteOutcome, error: Exception | None, now: float) -> None:
        """A lease write came back. A refusal is an answer: the table works."""
        if outcome is not WriteOutcome.UNCERTAIN:
            self._writes_fail_since = None
            self._write_error = None
        elif self._writes_fail_since is None:
            self._writes_fail_since, self._write_error = now, error
        else:
            self._write_error = error or self._write_error

    def judge(self, now: float, trouble: str = "") -> WorkerHealth:
        """Healthy, unless scans or writes have been without success for longer than the limit, or there is trouble."""
        reasons = [trouble] if trouble else []
        since_read = now - self._last_read
        if since_read > self._limit_seconds:
            reasons.append(f"no scan of the status table succeeded for {since_read:.0f} s{_because(self._read_error)}")
        if self._writes_fail_since is not None:
            failing = now - self._writes_fail_since
            if failing > self._limit_seconds:
                reasons.append(f"no lease write was answered for {failing:.0f} s{_because(self._write_error)}")
        return WorkerHealth(not reasons, "; ".join(reasons))


def _because(error: Exception | None) -> str:
    return "" if error is None else f" ({type(error).__name__}: {error})"
