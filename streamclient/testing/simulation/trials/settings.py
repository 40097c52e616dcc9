"""What one call of ``stream_simulation.run`` asks for, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import Attribute, field, frozen

from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError
from streamclient.interfaces import IRecordProcessor
from streamclient.records import ColumnValue
from streamclient.testing.simulation.trials.faults import Fault

if TYPE_CHECKING:
    from streamclient.testing.simulation.trials.witness import Run


def _positive(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{attribute.name} must be a whole number above 0, not {value!r}")


def _default_columns(key: str, number: int) -> Mapping[str, ColumnValue]:
    return {"number": number}


def _faults(values: Sequence[Fault]) -> tuple[Fault, ...]:
    wrong = [value for value in values if not isinstance(value, Fault)]
    if wrong:
        raise ConfigurationError(f"faults must be made by Faults, for example Faults.crash(), not {wrong[0]!r}")
    return tuple(values)


def simulated_config() -> ClientConfig:
    """The default settings, but for looking less often at other workers and at idle shards, which saves most steps."""
    return ClientConfig(signal_interval_millis=4_000, max_idle_poll_interval_millis=4_000)


@frozen(kw_only=True)
class TrialSettings:
    """One simulation, for any seed."""

    make_processor: Callable[[], IRecordProcessor]
    workers: int = field(default=3, validator=_positive)
    shards: int = field(default=4, validator=_positive)
    records: int = field(default=500, validator=_positive)
    keys: int = field(default=40, validator=_positive)
    """Different rows that the records change."""
    max_records: int = field(default=20, validator=_positive)
    """Most records in one batch."""
    faults: tuple[Fault, ...] = field(default=(), converter=_faults)
    columns: Callable[[str, int], Mapping[str, ColumnValue]] = _default_columns
    """Columns of the n-th change of a key, counted from 1."""
    config: ClientConfig = field(factory=simulated_config)
    before: Callable[[], object] | None = None
    """Called before each seed: empty the sink here."""
    check: Callable[[Run], object] | None = None
    """Called after each seed, when all workers have stopped: the user's own invariant."""
