"""Whether a worker can do its work, judged by what was really answered, never by what was only attempted."""

from __future__ import annotations

from attrs import frozen

from streamclient.core.leases import WriteOutcome


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
        self._last_scan = now
        self._scan_error: Exception | None = None
        self._writes_fail_since: float | None = None
        self._write_error: Exception | None = None

    def scanned(self, now: float) -> None:
        """A scan returned."""
        self._last_scan = now
        self._scan_error = None

    def scan_failed(self, error: Exception) -> None:
        """A scan failed after its retries."""
        self._scan_error = error

    def write_answered(self, outcome: WriteOutcome, error: Exception | None, now: float) -> None:
        """A lease write came back. A refusal is an answer: the table works."""
        if outcome is not WriteOutcome.UNCERTAIN:
            self._writes_fail_since = None
            self._write_error = None
        elif self._writes_fail_since is None:
            self._writes_fail_since, self._write_error = now, error
        else:
            self._write_error = error or self._write_error

    def judge(self, now: float) -> WorkerHealth:
        """Healthy, unless scans or writes have been without success for longer than the limit."""
        reasons = []
        since_scan = now - self._last_scan
        if since_scan > self._limit_seconds:
            reasons.append(f"no scan of the status table succeeded for {since_scan:.0f} s{_because(self._scan_error)}")
        if self._writes_fail_since is not None:
            failing = now - self._writes_fail_since
            if failing > self._limit_seconds:
                reasons.append(f"no lease write was answered for {failing:.0f} s{_because(self._write_error)}")
        return WorkerHealth(not reasons, "; ".join(reasons))


def _because(error: Exception | None) -> str:
    return "" if error is None else f" ({type(error).__name__}: {error})"
