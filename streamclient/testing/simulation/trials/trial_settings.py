"""The settings of one call of ``stream_simulation.run``, checked at creation, and the description of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import field, frozen

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.interfaces import IRecordProcessor
from streamclient.records import ColumnValue
from streamclient.testing.simulation.trials.trial_faults import Fault


@frozen
class Change:
    """One change of one row, as it was written to the stream."""

    key: str
    number: int
    """The number of the change among those of its key, from 1."""

    def __str__(self) -> str:
        return f"{self.key}/{self.number}"


@frozen
class Run:
    """The description of one finished run, for ``check``."""

    seed: int
    written: tuple[Change, ...]
    """Every change, in the order of writing."""
    delivered: Mapping[Change, int]
    """How often each change was handed to a processor whose call returned, or that stored a checkpoint after it before
    it failed or was killed."""
    newest: Mapping[str, int]
    """Number of the last change of each key."""
    faults: Mapping[str, int]
    """Number of faults, by kind."""


def _default_columns(key: str, number: int) -> Mapping[str, ColumnValue]:
    return {"number": number}


def _faults(given: object) -> tuple[Fault, ...]:
    found: Iterable[Any] = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    check = checks.instance(Fault, "made by Faults, for example Faults.crash()")
    return tuple(check.require("faults", fault) for fault in found)


def simulated_config() -> ClientConfig:
    """Return the default settings with rarer looks at other workers and at idle shards, which saves most steps."""
    return ClientConfig(signal_interval_millis=4_000, max_idle_poll_interval_millis=4_000)


@frozen(kw_only=True)
class TrialSettings:
    """One simulation, for any seed."""

    make_processor: Callable[[], IRecordProcessor] = field(validator=checks.function("without arguments"))
    workers: int = field(default=3, validator=checks.positive)
    shards: int = field(default=4, validator=checks.positive)
    records: int = field(default=500, validator=checks.positive)
    keys: int = field(default=40, validator=checks.positive)
    """Different rows that the records change."""
    max_records: int = field(default=20, validator=checks.positive)
    """Most records in one batch."""
    faults: tuple[Fault, ...] = field(default=(), converter=_faults)
    columns: Callable[[str, int], Mapping[str, ColumnValue]] = field(
        default=_default_columns, validator=checks.function("with a key and a number")
    )
    """Columns of the n-th change of a key, counted from 1."""
    config: ClientConfig = field(factory=simulated_config, validator=checks.instance(ClientConfig))
    before: Callable[[], object] | None = field(
        default=None, validator=checks.optional(checks.function("without arguments"))
    )
    """Called before each seed: empty the sink here."""
    check: Callable[[Run], object] | None = field(
        default=None, validator=checks.optional(checks.function("with a Run"))
    )
    """Called after each seed, when all workers have stopped: the user's own invariant."""
