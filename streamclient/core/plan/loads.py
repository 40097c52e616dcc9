"""The load of each lease, measured from the progress in its row.

A lease's row holds the number of records and bytes processed up to its checkpoint. Two scans and the time between them
give a rate. Rates are averages in which older scans count less and less. So neither a pause between two checkpoints nor
a burst causes a move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp

from attrs import frozen

from streamclient.model import BalanceBy, Lease

MEMORY_SECONDS = 300.0
"""The age in seconds at which an observation counts only a third as much as a new observation. So a worker that catches
up after a pause looks loaded only for a few minutes."""

MEASURED_SECONDS = 30.0
"""The shortest time of observation that gives a rate. It covers several checkpoints, and several scans of a small
fleet."""


@frozen
class _Meter:
    """The progress of one lease over the scans so far."""

    amount: int
    """The total number of records or bytes in the row that was seen last."""
    seen_at: float
    moved: float = 0.0
    """The growth of ``amount`` between scans, summed. Older growth counts less."""
    seconds: float = 0.0
    """The sum of the times between scans. Older times count less in the same way."""


class Loads:
    """The rates of unfinished leases, in the quantity that ``balance_by`` names. Owned by one thread."""

    def __init__(self, balance_by: BalanceBy) -> None:
        self.balance_by = balance_by
        self._meters: dict[str, _Meter] = {}

    def observe(self, rows: Iterable[Lease], now: float) -> None:
        """Process a scan that returned at ``now``. Leases that the scan lacks are forgotten."""
        if self.balance_by is not BalanceBy.COUNT:
            open_rows = (row for row in rows if not row.is_finished and row.progress is not None)
            self._meters = {row.lease_key: self._seen(row, now) for row in open_rows}

    def rates(self) -> Mapping[str, float]:
        """Return the records or bytes per second of each lease that was watched for long enough, by lease key."""
        return {
            key: meter.moved / meter.seconds for key, meter in self._meters.items() if meter.seconds >= MEASURED_SECONDS
        }

    def _seen(self, row: Lease, now: float) -> _Meter:
        amount = self._amount(row)
        old = self._meters.get(row.lease_key)
        if old is None or amount < old.amount:
            # The row was seen for the first time, or its progress began again because the row was overwritten.
            return _Meter(amount, now)
        elapsed = now - old.seen_at
        kept = exp(-elapsed / MEMORY_SECONDS)
        return _Meter(amount, now, old.moved * kept + amount - old.amount, old.seconds * kept + elapsed)

    def _amount(self, row: Lease) -> int:
        if row.progress is None:
            return 0
        return row.progress.bytes if self.balance_by is BalanceBy.BYTES else row.progress.records
