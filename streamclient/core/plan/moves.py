"""What a look at the status table asks one worker to do with leases."""

from __future__ import annotations

from attrs import frozen

from streamclient.model import Lease


@frozen
class Move:
    """A lease, as last seen, and the worker that shall have it."""

    row: Lease
    receiver: str


@frozen
class Moves:
    """What to do now. No lease occurs twice."""

    takes: tuple[Lease, ...] = ()
    """To take now: free, handed over to this worker, or left from its earlier life."""
    marks: tuple[Move, ...] = ()
    """That others read, to ask for: for this worker or, if loads are evened out, for another one."""
    transfers: tuple[Move, ...] = ()
    """To hand to another worker. Of those that this worker reads, the consumer is stopped first."""
    wakes: tuple[str, ...] = ()
    """Other workers that have something to do, sorted."""
    contested: tuple[Lease, ...] = ()
    """In this worker's name, but not held, and they move: another process uses the name, or a write came late."""
    look_again_at: float | None = None
    """When the first of the leases that were taken away from their owners can be taken by anybody."""
