"""The moves of leases that one worker plans after a scan of the status table."""

from __future__ import annotations

from attrs import frozen

from streamclient.model import Lease


@frozen
class Move:
    """A lease, as it was last seen, and the worker that will get it."""

    row: Lease
    receiver: str


@frozen
class Moves:
    """The moves that one worker makes after a scan. No lease occurs twice."""

    takes: tuple[Lease, ...] = ()
    """Leases to take now: free leases, leases handed over to this worker, or leases left in its name from an earlier
    run."""
    marks: tuple[Move, ...] = ()
    """Leases to request from their owners (marks): for this worker or, if loads are evened out, for another worker."""
    transfers: tuple[Move, ...] = ()
    """Leases to hand to another worker. If this worker reads such a lease, its consumer is stopped first."""
    wakes: tuple[str, ...] = ()
    """The sorted names of other workers that must make moves, too."""
    contested: tuple[Lease, ...] = ()
    """Leases in this worker's name that it does not hold, although their counters move. Another process uses the name,
    or a write was applied late."""
    look_again_at: float | None = None
    """The earliest time at which a released lease may be taken; ``None`` if no released lease waits for that time."""
