"""The plan of one history: the faults and settings that are drawn from a seed.

A plan can be reduced, stored and replayed. Details outside the plan, such as the delay of each message, are drawn while
the history runs. Each purpose has its own dice, and all dice are made from the seed. So the same plan always gives the
same history, and a reduced plan gives a similar history.
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
"""The longest interval between two reads of an idle shard, as a multiple of ``round_seconds``. The interval grows while
the shard is idle."""

PARKED_SHARE, PARKED_WINDOW = 0.2, 50
"""The failure policy's limit at which a shard stops: the share of parked records among the last ``PARKED_WINDOW``
records of the shard. The limit is low, so that histories reach the limit."""

STRATEGY_RETRIES, STRATEGY_PAUSE_MILLIS = 2, 700


@frozen(kw_only=True)
class Action:
    """One event that a plan causes in the fleet: a fault or, for example, the start of a worker."""

    at: float
    """The time of the event, in seconds since the beginning of the history."""
    do: Do
    who: str = ""
    """The name of the worker; empty if the event concerns no worker, or all workers."""
    where: float = 0.0
    """The position of the event's shard in the list of suitable shards, from 0 to 1: 0.5 selects the middle shard."""
    seconds: float = 0.0
    """The duration of the event, in seconds; 0 for an event without a duration."""
    amount: float = 0.0
    java: bool = False
    """Whether the worker that starts is a Java client."""

    def __str__(self) -> str:
        named = [self.do.value, self.who or None, "java" if self.java else None]
        numbers = [("where", self.where), ("for", self.seconds), ("by", self.amount)]
        return " ".join([part for part in named if part] + [f"{name} {value:g}" for name, value in numbers if value])


@frozen(kw_only=True)
class Rates:
    """The probability of each fault for a single call."""

    lost_request: float = 0.0
    """The request is not carried out, and the caller gets no answer."""
    lost_answer: float = 0.0
    """The request is carried out, and the caller gets no answer."""
    late_request: float = 0.0
    """The caller gets no answer, and the service carries out the request after the caller has given up."""
    late_answer: float = 0.0
    """The request is carried out. The answer comes after up to one and a half lease durations."""
    false_refusal: float = 0.0
    """The first try is carried out. Its retry is refused, and the caller sees only the refusal."""
    throttled: float = 0.0
    """The service refuses the request under load. The error tells the caller that the request was not carried out."""


@frozen(kw_only=True)
class Mishaps:
    """The shares of loop bodies, or of waits for a batch, in which user code does something unusual."""

    raises: float = 0.0
    """The body raises. In a loop, the error ends the loop. In a handler, the failure policy treats the error."""
    fails: float = 0.0
    """The body reports its batch as failed."""
    breaks: float = 0.0
    """The body leaves the loop by ``break``, and a new loop over the same object begins."""
    leaves: float = 0.0
    """The body leaves the loop by ``break``, and the program ends."""
    sleeps: float = 0.0
    """The body waits for longer than a lease duration."""
    closes_loop: float = 0.0
    """The event loop is closed in the middle of the body."""
    time_outs: float = 0.0
    """The wait for a batch has a time-out."""
    drops: float = 0.0
    """The program drops the object that it iterates over, and never closes the object. This is a share of programs."""


@frozen(kw_only=True)
class HistoryPlan(ABC):
    """The base of all kinds of plans, with the fields that they share."""

    seed: int
    actions: tuple[Action, ...] = ()
    """The events that the plan causes, ordered by time."""
    rates: Rates = field(factory=Rates)
    delay_seconds: float = 0.05
    """The usual time of a message in one direction, in seconds."""
    shards: int = 1
    storm_seconds: float = 480.0
    """The time when all faults end, in seconds since the beginning of the history."""
    drift: float = 0.0
    """The largest share by which a process's clock runs too fast or too slow."""
    CALMER: ClassVar[Sequence[tuple[str, Any]]] = (("drift", 0.0), ("delay_seconds", 0.02))
    """The names of fields, each with a simpler value that may replace the drawn value in a reduced plan."""

    @property
    @abstractmethod
    def duration_seconds(self) -> float:
        """The time, in seconds, after which a silent worker has lost its leases.

        The time limits of the laws, for example for the recovery, are multiples of this time.
        """

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of all workers that ever start, in the order of their first starts."""
        return tuple(dict.fromkeys(action.who for action in self.actions if action.do is Do.START))

    def to_json(self) -> str:
        """Return the plan as JSON for ``plan_from_json``, with one action per line and without default values."""
        entry = _differing(self)
        actions = entry.pop("actions", [])
        lines = [json.dumps(action) for action in actions]
        head = json.dumps(entry, indent=1).removesuffix("\n}")
        return head + ',\n "actions": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


@frozen(kw_only=True)
class TunnelPlan(HistoryPlan):
    """The plan of one history of tunnel clients."""

    tunnel: int = 3
    """The type of the tunnel, in the service's numbers: 1 for full data, 2 for changes, 3 for both."""
    keys: int = 20
    pages_per_checkpoint: int = 1
    process_seconds: float = 0.05
    """The usual time to process a page, in seconds."""
    write_seconds: float = 10.0
    """The usual time between two writes to the table, in seconds."""
    heartbeat_seconds: float = 5.0
    timeout_seconds: float = 20.0
    CALMER = (*HistoryPlan.CALMER, ("tunnel", 2), ("pages_per_checkpoint", 1), ("process_seconds", 0.05))

    @property
    def duration_seconds(self) -> float:
        """The time, in seconds, after which the service ends a silent session."""
        return self.timeout_seconds


@frozen(kw_only=True)
class LoopPlan(HistoryPlan):
    """The plan of one history of a fleet whose user code is a loop."""

    concurrency: int = 0
    """The largest number of tasks that one process runs at the same time; 0 for a plain loop."""
    commit_every: int = 0
    """The number of batches after which a body commits; 0 if the loop's next turn commits each batch."""
    is_processor: bool = False
    """Whether the tasks belong to a processor class. This class has no ``shutdown``, and commits while processing."""
    records: int = 60
    keys: int = 12
    max_records: int = 5
    body_seconds: float = 1.0
    """The longest time of a loop body without mishaps, in seconds."""
    failing_reads: float = 0.0
    """The probability that a read of records fails."""
    cancel_at: int = 0
    """The number of the wait at which each program is cancelled, counted from 1; 0 cancels no program."""
    cancels_rung: bool = False
    """Whether the program is cancelled just after the end of the wait ``cancel_at``; otherwise at its beginning."""
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
        """The lease duration, in seconds, which is the default of ``ClientConfig``."""
        return 20.0

    @property
    def is_quiet(self) -> bool:
        """Whether the plan has no freezes, no cuts and no faults of calls.

        If so, no living process is allowed to lose a lease.
        """
        has_faults = any(action.do in (Do.FREEZE, Do.CUT) for action in self.actions)
        return not has_faults and self.rates == Rates()


@frozen(kw_only=True)
class Plan(HistoryPlan):
    """The plan of one history of a fleet."""

    write_seconds: float = 3.0
    """The usual time between two writes to the same shard, in seconds."""
    round_seconds: float = 2.0
    """The usual time that a processor takes for one batch, in seconds."""
    is_two_phase: bool = False
    """Whether processors prepare each checkpoint before they commit."""
    then: str = "RESTART"
    """The failure policy's reaction after all retries: ``RESTART``, ``PARK`` or ``STOP_SHARD``."""
    retries: int = 1
    """The number of retries of the same records before the reaction ``then``."""
    has_strategy: bool = False
    """Whether a retry strategy of the user decides about retries."""
    trimmed: str = "STOP_SHARD"
    """The reaction of a consumer if unread records have left the stream: ``STOP_SHARD`` or ``RESTART_AT_OLDEST``."""
    position: str = "oldest"
    """The position at which shards without a lease row start: ``oldest`` or ``latest``."""
    has_sessions: bool = True
    """Whether the status table has worker rows as well as lease rows."""
    balance_by: str = "count"
    lease_duration_millis: int = 20_000
    renewer_interval_millis: int = 6_000
    taker_interval_millis: int = 6_000
    sync_shard_interval_millis: int = 10_000
    signal_interval_millis: int = 2_000
    max_reads_per_second: int = 0
    """The largest number of reads without records that a worker makes per second; 0 for the default."""
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
        """The lease duration, in seconds."""
        return self.lease_duration_millis / 1_000

    @property
    def has_java(self) -> bool:
        """Whether any worker is a Java client."""
        return any(action.java for action in self.actions)

    def config(self, parking: IParkingStore) -> ClientConfig:
        """Return the settings that all workers of the plan share. The workers park records in the store ``parking``."""
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
    """Return the plan in a text that ``to_json`` wrote.

    A plan with the field ``tunnel`` is a ``TunnelPlan``, with ``concurrency`` a ``LoopPlan``, otherwise a ``Plan``.

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
    """An example of a user's retry strategy, with a few quick retries of every action."""

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Return whether fewer than ``STRATEGY_RETRIES`` retries were made."""
        return retries < STRATEGY_RETRIES

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """Return the same short pause, ``STRATEGY_PAUSE_MILLIS``, before every retry."""
        return STRATEGY_PAUSE_MILLIS


ALWAYS_TOLD = ("seed", "at", "do", "tunnel", "concurrency")
"""The fields that the JSON of a plan has even with default values: required fields, and fields that distinguish the
kinds of plans."""


def _action(entry: Mapping[str, Any]) -> Action:
    return Action(**{**entry, "do": Do(entry["do"])})


def _differing(value: Any) -> dict[str, Any]:
    """Return the fields of ``value`` that differ from their defaults, and ``ALWAYS_TOLD``, as values for JSON."""
    given = {each.name: getattr(value, each.name) for each in fields(type(value))}
    bare = type(value)(**{name: given[name] for name in ALWAYS_TOLD if name in given})
    return {name: _plain(v) for name, v in given.items() if name in ALWAYS_TOLD or v != getattr(bare, name)}


def _plain(given: Any) -> Any:
    if isinstance(given, Enum):
        return given.value
    if isinstance(given, tuple):
        return [_differing(action) for action in given]
    return _differing(given) if isinstance(given, Rates | Mishaps) else given
