"""The faults and settings for ``stream_simulation.run``, and the description of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import field, frozen

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.interfaces import IRecordProcessor
from streamclient.records import ColumnValue
from streamclient.testing.simulation.simulated_faults import Do, Fate

CHOICES: Mapping[str, tuple[Do | Fate, str]] = {
    "crash": (Do.CRASH, "crash"),
    "stop": (Do.STOP, "stop"),
    "pause_longer_than_lease": (Do.FREEZE, "pause longer than lease"),
    "unreachable": (Do.CUT, "status table unreachable"),
    "split": (Do.SPLIT, "split"),
    "merge": (Do.MERGE, "merge"),
    "lost_answers": (Fate.LOST_ANSWER, "lost answers"),
    "lost_requests": (Fate.LOST_REQUEST, "lost requests"),
    "throttled": (Fate.THROTTLED, "throttled"),
    "failing_reads": (Fate.FAILING_READ, "failing reads"),
}
"""The faults that users can choose. A key is the name of a method of ``Faults``. Its value holds the kind of the fault,
and the name of the fault in messages for users."""


@frozen
class Fault:
    """One kind of fault to inject into a simulation. The methods of ``Faults`` make these objects."""

    choice: str
    times: int = 0
    """The number of times that the fault happens, at moments that the seed decides; 0 for faults of single calls."""
    share: float = 0.0
    """The probability that the fault affects a single call; 0 for faults of workers and shards."""

    @property
    def kind(self) -> Do | Fate:
        """The kind of the fault, as all simulations name it."""
        return CHOICES[self.choice][0]

    def __str__(self) -> str:
        return f"Faults.{self.choice}({self.times or self.share})"


def said(kind: Do | Fate) -> str:
    """Return the name that messages for users give to faults of ``kind``."""
    return next(text for each, text in CHOICES.values() if each is kind)


class Faults:
    """The faults for ``stream_simulation.run(faults=[...])``, one method for each kind.

    Example:
        >>> print(Faults.crash(), Faults.lost_answers(0.05), Faults.pause_longer_than_lease(2))
        Faults.crash(1) Faults.lost_answers(0.05) Faults.pause_longer_than_lease(2)
    """

    @staticmethod
    def crash(times: int = 1) -> Fault:
        """Kill a worker's process. The memory of its processors is lost. A new process starts under the same name."""
        return _repeated("crash", times)

    @staticmethod
    def stop(times: int = 1) -> Fault:
        """Stop a worker in an orderly way. Another worker starts afterwards."""
        return _repeated("stop", times)

    @staticmethod
    def pause_longer_than_lease(times: int = 1) -> Fault:
        """Freeze a process and its user code for so long that other workers may take its leases.

        After the freeze, the process continues as a zombie.
        """
        return _repeated("pause_longer_than_lease", times)

    @staticmethod
    def unreachable(times: int = 1) -> Fault:
        """Make the status table unreachable for all workers, for up to two lease durations."""
        return _repeated("unreachable", times)

    @staticmethod
    def split(times: int = 1) -> Fault:
        """Split a shard: its keys continue in two children."""
        return _repeated("split", times)

    @staticmethod
    def merge(times: int = 1) -> Fault:
        """Merge two shards: their keys continue in one child."""
        return _repeated("merge", times)

    @staticmethod
    def lost_answers(share: float = 0.05) -> Fault:
        """Drop ``share`` of the status table's answers. The table applies the writes of these calls."""
        return _shared("lost_answers", share)

    @staticmethod
    def lost_requests(share: float = 0.05) -> Fault:
        """Drop ``share`` of the calls to the status table before they reach the table."""
        return _shared("lost_requests", share)

    @staticmethod
    def throttled(share: float = 0.05) -> Fault:
        """Let the status table refuse ``share`` of the calls because of too much load."""
        return _shared("throttled", share)

    @staticmethod
    def failing_reads(share: float = 0.05) -> Fault:
        """Let ``share`` of the reads of records fail."""
        return _shared("failing_reads", share)

    @staticmethod
    def everything() -> tuple[Fault, ...]:
        """Return all faults, each with its default number or share."""
        return tuple(getattr(Faults, choice)() for choice in CHOICES)


def _repeated(choice: str, times: int) -> Fault:
    return Fault(choice, times=checks.positive.require("times", times))


def _shared(choice: str, share: float) -> Fault:
    return Fault(choice, share=float(_up_to_half.require("share", share)))


_up_to_half = checks.number("a number above 0 and at most 0.5", lambda value: 0.0 < value <= 0.5)


@frozen
class Change:
    """One change of one row, as it was written to the stream."""

    key: str
    number: int
    """The number of the change among the changes of its key, counted from 1."""

    def __str__(self) -> str:
        return f"{self.key}/{self.number}"


@frozen
class Run:
    """The description of one finished run, for the function ``check``."""

    seed: int
    written: tuple[Change, ...]
    """All changes, in the order in which they were written."""
    delivered: Mapping[Change, int]
    """The number of times that processors accepted each change. A processor accepts a change if the call with the
    change returns. If the call fails or is killed, the processor has accepted only the changes before the stored
    checkpoint."""
    newest: Mapping[str, int]
    """The number of the last change of each key."""
    faults: Mapping[str, int]
    """The number of injected faults, by kind."""


def _default_columns(key: str, number: int) -> Mapping[str, ColumnValue]:
    return {"number": number}


def _faults(given: object) -> tuple[Fault, ...]:
    found: Iterable[Any] = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    check = checks.instance(Fault, "made by Faults, for example Faults.crash()")
    return tuple(check.require("faults", fault) for fault in found)


def simulated_config() -> ClientConfig:
    """Return the default settings, but with longer intervals between reads and between reads of wake-up signals.

    These intervals save most steps of a simulation.
    """
    return ClientConfig(worker_idle_time_millis=200, signal_interval_millis=4_000, max_idle_poll_interval_millis=4_000)


@frozen(kw_only=True)
class TrialSettings:
    """The settings of one simulation, equal for all seeds. ``StreamSimulation.run`` describes the fields."""

    make_processor: Callable[[], IRecordProcessor] = field(validator=checks.function("without arguments"))
    workers: int = field(default=3, validator=checks.positive)
    shards: int = field(default=4, validator=checks.positive)
    records: int = field(default=500, validator=checks.positive)
    keys: int = field(default=40, validator=checks.positive)
    """The number of different rows that the records change."""
    max_records: int = field(default=20, validator=checks.positive)
    """The largest number of records in one batch."""
    faults: tuple[Fault, ...] = field(default=(), converter=_faults)
    columns: Callable[[str, int], Mapping[str, ColumnValue]] = field(
        default=_default_columns, validator=checks.function("with a key and a number")
    )
    """A function that returns the columns of the n-th change of a key, counted from 1."""
    config: ClientConfig = field(factory=simulated_config, validator=checks.instance(ClientConfig))
    before: Callable[[], object] | None = field(
        default=None, validator=checks.optional(checks.function("without arguments"))
    )
    """The user's function that a trial calls before it starts workers, for example to empty the user's sink."""
    check: Callable[[Run], object] | None = field(
        default=None, validator=checks.optional(checks.function("with a Run"))
    )
    """The user's own check, which a trial calls after all workers have stopped."""
