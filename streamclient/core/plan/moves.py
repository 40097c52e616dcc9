"""The moves of leases that a scan of the status table leads to, for one worker."""

from __future__ import annotations

from attrs import frozen

from streamclient.model import Lease


@frozen
class Move:
    """A lease, as last seen, and its future worker."""

    row: Lease
    receiver: str


@frozen
class Moves:
    """The moves to make now. No lease occurs twice."""

    takes: tuple[Lease, ...] = ()
    """Leases to take now: free, handed over to this worker, or left in its name from an earlier run."""
    marks: tuple[Move, ...] = ()
    """Leases of other workers to ask for: for this worker or, if loads are evened out, for another one."""
    transfers: tuple[Move, ...] = ()
    """Leases to hand to another worker. If this worker reads such a lease, its consumer is stopped first."""
    wakes: tuple[str, ...] = ()
    """Other workers that have to act, sorted."""
    contested: tuple[Lease, ...] = ()
    """Leases in this worker's name, not held, that move: another process uses the name, or a write came late."""
    look_again_at: float | None = None
    """The time at which the first of the leases released from their owners can be taken by any worker."""
