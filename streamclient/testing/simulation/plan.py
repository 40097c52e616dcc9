"""The plan of one history: everything that the seed decided, as a value that can be cut down, stored and replayed.

Details outside the plan (the delay of each message, which record is written next) are drawn while the history runs, by
dice that are made from the seed and their purpose. So the same plan always gives the same history, and a plan from
which something was removed gives a similar one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from attrs import field, fields, frozen

from streamclient.config import Backoff, ClientConfig, FailurePolicy
from streamclient.interfaces import IParkingStore, IRetryStrategy, RetryableAction
from streamclient.model import BalanceBy, OnFailure, TrimmedDataPolicy
from streamclient.testing.simulation.simulated_faults import Do

LONGEST_IDLE_ROUNDS = 4
"""The largest number of rounds between two reads of an idle shard, which is read less and less often."""

PARKED_SHARE, PARKED_WINDOW = 0.2, 50
"""The bound at which a shard stops and parks no more: a fifth of its last fifty records. These are ten, so few that it
does happen."""

STRATEGY_RETRIES, STRATEGY_PAUSE_MILLIS = 2, 700


@frozen(kw_only=True)
class Action:
    """One event of a plan, at its time."""

    at: float
    """Seconds since the beginning of the history."""
    do: Do
    who: str = ""
    """Name of the worker; empty if the event concerns no worker, or all workers."""
    where: float = 0.0
    """The shard, as a share of the list of the shards that fit at that moment: the middle one is 0.5."""
    seconds: float = 0.0
    """Duration of the event."""
    amount: float = 0.0
    java: bool = False
    """Whether the starting worker is a Java client."""

    def __str__(self) -> str:
        named = [self.do.value, self.who or None, "java" if self.java else None]
        numbers = [("where", self.where), ("for", self.seconds), ("by", self.amount)]
        return " ".join([part for part in named if part] + [f"{name} {value:g}" for name, value in numbers if value])


@frozen(kw_only=True)
class Rates:
    """The probabilities of faults of a single call."""

    lost_request: float = 0.0
    """The request is not carried out, and the caller gets no answer."""
    lost_answer: float = 0.0
    """The request is carried out, and the caller gets no answer."""
    late_request: float = 0.0
    """The caller gets no answer, and the request is carried out afterwards."""
    late_answer: float = 0.0
    """The request is carried out. The answer comes after up to one and a half lease durations."""
    false_refusal: float = 0.0
    """The first try is carried out. Its retry is refused, and the caller sees only the refusal."""
    throttled: float = 0.0
    """The request is refused for load. It is certainly not carried out, and the error says so."""


@frozen(kw_only=True)
class Mishaps:
    """The shares of bodies of a loop, or of its waits for a batch, in which something goes wrong."""

    raises: float = 0.0
    """The body raises: the loop is over, or the failure policy decides for a handler."""
    fails: float = 0.0
    """The body settles its batch as failed."""
    breaks: float = 0.0
    """The body breaks, and a new loop over the same object begins."""
    leaves: float = 0.0
    """The body breaks, and the program is over."""
    sleeps: float = 0.0
    """The body waits for longer than a lease."""
    closes_loop: float = 0.0
    """The event loop is closed in the middle of the body."""
    time_outs: float = 0.0
    """The wait for a batch has a time-out."""
    drops: float = 0.0
    """The program drops its object and closes nothing: a share of programs, not of bodies."""


@frozen(kw_only=True)
class HistoryPlan(ABC):
    """The common part of all plans."""

    seed: int
    actions: tuple[Action, ...] = ()
    """Actions, by time."""
    rates: Rates = field(factory=Rates)
    delay_seconds: float = 0.05
    """The usual time of a message, one way."""
    shards: int = 1
    storm_seconds: float = 480.0
    """The time when all faults end."""
    drift: float = 0.0
    """The largest error of a process's clock, as a share of the time."""
    CALMER: ClassVar[Sequence[tuple[str, Any]]] = (("drift", 0.0), ("delay_seconds", 0.02))
    """The names of fields, each with the value that may replace the drawn one when a plan is cut down."""

    @property
    @abstractmethod
    def duration_seconds(self) -> float:
        """The time after which a silent worker has lost its leases. It is the measure of all other times."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of all workers that ever start, in order."""
        return tuple(dict.fromkeys(action.who for action in self.actions if action.do is Do.START))

    def to_json(self) -> str:
        """Return the text that ``plan_from_json`` reads. It has one action a line, and no default values."""
        entry = _differing(self)
        actions = entry.pop("actions", [])
        lines = [json.dumps(action) for action in actions]
        head = json.dumps(entry, indent=1).removesuffix("\n}")
        return head + ',\n "actions": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


@frozen(kw_only=True)
class TunnelPlan(HistoryPlan):
    """One history of clients of a tunnel."""

    tunnel: int = 3
    """The type of the tunnel: 1 full data, 2 changes, 3 both, as the service numbers them."""
    keys: int = 20
    pages_per_checkpoint: int = 1
    process_seconds: float = 0.05
    """Usual time to process a page."""
    write_seconds: float = 10.0
    """Usual time between two writes to the table."""
    heartbeat_seconds: float = 5.0
    timeout_seconds: float = 20.0
    CALMER = (*HistoryPlan.CALMER, ("tunnel", 2), ("pages_per_checkpoint", 1), ("process_seconds", 0.05))

    @property
    def duration_seconds(self) -> float:
        """The time after which the service ends a silent session."""
        return self.timeout_seconds


@frozen(kw_only=True)
class LoopPlan(HistoryPlan):
    """One history of a fleet whose user code is a loop."""

    concurrency: int = 0
    """The largest number of tasks that one process runs at the same time; 0 for a plain loop."""
    commit_every: int = 0
    """The number of batches after which a body commits; 0 if the turn commits."""
    is_processor: bool = False
    """Whether the tasks belong to a processor without ``shutdown``, which commits by itself."""
    records: int = 60
    keys: int = 12
    max_records: int = 5
    body_seconds: float = 1.0
    """The longest usual time of a body."""
    failing_reads: float = 0.0
    """The probability that a read of records fails."""
    cancel_at: int = 0
    """The number of the wait at which each program is cancelled; 0 for never."""
    cancels_rung: bool = False
    """Whether the cancellation comes when that wait has just ended."""
    mishaps: Mishaps = field(factory=Mishaps)
    storm_seconds: float = 120.0
    CALMER = (
        ("delay_seconds", 0.05),
        ("is_processor", False),
        ("concurrency", 0),
        ("commit_every", 0),
        ("failing_reads", 0.0),
        ("cancel_at", 0),
        ("mishaps", Mishaps()),
    )

    @property
    def duration_seconds(self) -> float:
        """The lease duration, which is the default."""
        return 20.0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens to processes and their network that may cost a live one a lease."""
        has_faults = any(action.do in (Do.FREEZE, Do.CUT) for action in self.actions)
        return not has_faults and self.rates == Rates()


@frozen(kw_only=True)
class Plan(HistoryPlan):
    """One history of a fleet."""

    write_seconds: float = 3.0
    """Usual time between two writes to the same shard."""
    round_seconds: float = 2.0
    """Usual time in which a processor takes one batch."""
    is_two_phase: bool = False
    """Whether processors prepare each checkpoint before they commit."""
    then: str = "RESTART"
    """The last resort of the failure policy: ``RESTART``, ``PARK`` or ``STOP_SHARD``."""
    retries: int = 1
    """The number of retries of the same records before that last resort."""
    has_strategy: bool = False
    """Whether the user's own retry strategy decides."""
    trimmed: str = "STOP_SHARD"
    """The reaction of a consumer to lost records: ``STOP_SHARD`` or ``RESTART_AT_OLDEST``."""
    position: str = "oldest"
    """The position at which shards without a row start: ``oldest`` or ``latest``."""
    has_sessions: bool = True
    """Whether the status table has worker rows as well as lease rows."""
    balance_by: str = "count"
    lease_duration_millis: int = 20_000
    renewer_interval_millis: int = 6_000
    taker_interval_millis: int = 6_000
    sync_shard_interval_millis: int = 10_000
    signal_interval_millis: int = 2_000
    max_reads_per_second: int = 0
    """The ceiling of reads without records; 0 for the default."""
    CALMER = (
        *HistoryPlan.CALMER,
        ("is_two_phase", False),
        ("position", "oldest"),
        ("then", "RESTART"),
        ("retries", 1),
        ("has_strategy", False),
        ("trimmed", "STOP_SHARD"),
    )

    @property
    def duration_seconds(self) -> float:
        """The lease duration."""
        return self.lease_duration_millis / 1_000

    @property
    def has_java(self) -> bool:
        """Whether any worker is a Java client."""
        return any(action.java for action in self.actions)

    def config(self, parking: IParkingStore) -> ClientConfig:
        """Return the settings that all workers of the plan share, with a store for parked records."""
        then, round_millis = OnFailure(self.then), int(1_000 * self.round_seconds)
        return ClientConfig(
            worker_idle_time_millis=round_millis,
            max_idle_poll_interval_millis=LONGEST_IDLE_ROUNDS * round_millis,
            max_reads_per_second=self.max_reads_per_second or None,
            backoff=Backoff(restart_backoff_max_millis=int(self.lease_duration_millis / 2)),
            task_retry_strategy=FewRetries() if self.has_strategy else None,
            trimmed_data_policy=TrimmedDataPolicy(self.trimmed),
            failure_policy=FailurePolicy(
                retries=self.retries,
                then=then,
                parking=parking if then is OnFailure.PARK else None,
                most_parked_share=PARKED_SHARE,
                share_window_records=PARKED_WINDOW,
            ),
            lease_duration_millis=self.lease_duration_millis,
            renewer_interval_millis=self.renewer_interval_millis,
            taker_interval_millis=self.taker_interval_millis,
            sync_shard_interval_millis=self.sync_shard_interval_millis,
            signal_interval_millis=self.signal_interval_millis,
            balance_by=BalanceBy(self.balance_by),
        )


def plan_from_json(text: str) -> HistoryPlan:
    """Return the plan in a text. It is a plan for a tunnel or for loops if the text has a field that only they have.

    Raises:
        ValueError: the text is not a plan; the message names the part that does not fit.
    """
    entry = json.loads(text)
    if not isinstance(entry, dict) or "seed" not in entry:
        raise ValueError("a plan is a JSON object with at least a seed")
    entry.pop("story", None)
    kind = TunnelPlan if "tunnel" in entry else LoopPlan if "concurrency" in entry else Plan
    try:
        actions = tuple(_action(action) for action in entry.pop("actions", []))
        given = {"actions": actions, "rates": Rates(**entry.pop("rates", {}))}
        if "mishaps" in entry:
            given["mishaps"] = Mishaps(**entry.pop("mishaps"))
        return kind(**{**entry, **given})
    except (TypeError, KeyError) as error:
        raise ValueError(f"this is not a plan of this version: {error}") from error


class FewRetries(IRetryStrategy):
    """A retry strategy like a user's: a few quick retries of everything."""

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """See the interface."""
        return retries < STRATEGY_RETRIES

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """See the interface."""
        return STRATEGY_PAUSE_MILLIS


ALWAYS_TOLD = ("seed", "at", "do", "tunnel", "concurrency")
"""Fields that are written even with their defaults: required fields, and those that distinguish the kinds of plans."""


def _action(entry: Mapping[str, Any]) -> Action:
    return Action(**{**entry, "do": Do(entry["do"])})


def _differing(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, ready for JSON."""
    given = {each.name: getattr(value, each.name) for each in fields(type(value))}
    bare = type(value)(**{name: given[name] for name in ALWAYS_TOLD if name in given})
    return {name: _plain(v) for name, v in given.items() if name in ALWAYS_TOLD or v != getattr(bare, name)}


def _plain(given: Any) -> Any:
    if isinstance(given, Enum):
        return given.value
    if isinstance(given, tuple):
        return [_differing(action) for action in given]
    return _differing(given) if isinstance(given, Rates | Mishaps) else given
