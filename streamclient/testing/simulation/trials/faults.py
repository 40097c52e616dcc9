"""The faults that a user can choose."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from streamclient import checks


class FaultKind(Enum):
    """What goes wrong."""

    CRASH = "crash"
    STOP = "stop"
    FREEZE = "pause longer than lease"
    UNREACHABLE = "status table unreachable"
    SPLIT = "split"
    MERGE = "merge"
    LOST_ANSWERS = "lost answers"
    LOST_REQUESTS = "lost requests"
    THROTTLED = "throttled"
    FAILING_READS = "failing reads"


@frozen
class Fault:
    """One kind of fault in a simulation. Made by ``Faults``."""

    kind: FaultKind
    times: int = 0
    """How often it happens, at moments that the seed decides; 0 for what befalls single calls."""
    share: float = 0.0
    """Probability that it befalls a single call; 0 for what happens to workers and shards."""

    def __str__(self) -> str:
        name = self.kind.name.lower() if self.kind is not FaultKind.FREEZE else "pause_longer_than_lease"
        return f"Faults.{name}({self.times or self.share})"


class Faults:
    """Makes the faults for ``stream_simulation.run(faults=[...])``.

    Example:
        >>> print(Faults.crash(), Faults.lost_answers(0.05), Faults.pause_longer_than_lease(2))
        Faults.crash(1) Faults.lost_answers(0.05) Faults.pause_longer_than_lease(2)
    """

    @staticmethod
    def crash(times: int = 1) -> Fault:
        """A worker's process is killed; what its processors kept in memory is gone. Another one starts later."""
        return _repeated(FaultKind.CRASH, times)

    @staticmethod
    def stop(times: int = 1) -> Fault:
        """A worker is stopped in order, and another one starts later."""
        return _repeated(FaultKind.STOP, times)

    @staticmethod
    def pause_longer_than_lease(times: int = 1) -> Fault:
        """A process stands still, user code included, until others have its leases; then it goes on as a zombie."""
        return _repeated(FaultKind.FREEZE, times)

    @staticmethod
    def unreachable(times: int = 1) -> Fault:
        """Nobody reaches the status table, for up to two lease durations."""
        return _repeated(FaultKind.UNREACHABLE, times)

    @staticmethod
    def split(times: int = 1) -> Fault:
        """A shard splits: its keys go on in two children."""
        return _repeated(FaultKind.SPLIT, times)

    @staticmethod
    def merge(times: int = 1) -> Fault:
        """Two shards merge: their keys go on in one child."""
        return _repeated(FaultKind.MERGE, times)

    @staticmethod
    def lost_answers(share: float = 0.05) -> Fault:
        """Writes to the status table are applied, but nobody learns of it."""
        return _shared(FaultKind.LOST_ANSWERS, share)

    @staticmethod
    def lost_requests(share: float = 0.05) -> Fault:
        """Calls to the status table get lost on their way."""
        return _shared(FaultKind.LOST_REQUESTS, share)

    @staticmethod
    def throttled(share: float = 0.05) -> Fault:
        """The status table refuses calls for load."""
        return _shared(FaultKind.THROTTLED, share)

    @staticmethod
    def failing_reads(share: float = 0.05) -> Fault:
        """Reading records fails now and then."""
        return _shared(FaultKind.FAILING_READS, share)

    @staticmethod
    def everything() -> tuple[Fault, ...]:
        """All of them, once or as often as by default."""
        return (
            Faults.crash(),
            Faults.stop(),
            Faults.pause_longer_than_lease(),
            Faults.unreachable(),
            Faults.split(),
            Faults.merge(),
            Faults.lost_answers(),
            Faults.lost_requests(),
            Faults.throttled(),
            Faults.failing_reads(),
        )


def _repeated(kind: FaultKind, times: int) -> Fault:
    return Fault(kind, times=checks.positive.require("times", times))


def _shared(kind: FaultKind, share: float) -> Fault:
    return Fault(kind, share=float(_up_to_half.require("share", share)))


_up_to_half = checks.number("a number above 0 and at most 0.5", lambda value: 0.0 < value <= 0.5)
