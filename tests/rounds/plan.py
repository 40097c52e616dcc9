"""What happens in one lap, decided by its dice alone: the same seed always makes the same plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

from attrs import frozen

from streamclient.server import Cut, Fail, FailRows, FaultRule, LateAnswer, Latency, LoseAnswer

STEP_SECONDS = 0.08
"""Between two batches of the writer; everything happens at one of them."""

QUIET_STEPS = 10
"""At the beginning: a fleet that has not started yet would only be started late."""

DELAYED_STEPS = 6
"""Before each kill and freeze: what the victim sends then reaches the table long after it."""

STREAM_READS = ("GetStreamRecord", "GetShardIterator", "DescribeStream")
STATUS_WRITES = ("BatchWriteRow", "UpdateRow", "PutRow", "DeleteRow")
STATUS_READS = ("GetRange", "GetRow", "BatchGetRow")


WAYS = ("java", "kcl", "loop", "async")
"""What a worker process may be: a processor and its factory, as in Java; a processor with the habits of KCL programs; a
plain loop; a loop in an event loop."""


class Kind(Enum):
    """What can happen."""

    KILL = "kills"
    FREEZE = "freezes"
    STOP = "stops"
    SPLIT = "splits"
    MERGE = "merges"
    SPELL = "spells"


@frozen
class Happening:
    """One event of a lap."""

    step: int
    kind: Kind
    choice: float
    """Which worker or shard: a share of those that there are then."""
    steps: int = 0
    """How long a freeze or a spell lasts."""
    fault: str = ""
    """Name of a spell's fault."""
    rules: tuple[FaultRule, ...] = ()
    keeps_name: bool = True
    """Whether a killed worker comes back under its name."""
    has_twin: bool = False
    """Whether another process is started under the name of a frozen one."""


@frozen
class Setting:
    """Names and times that a plan refers to."""

    table: str
    status_table: str
    lease_seconds: float


Rules = Callable[[random.Random, Setting], tuple[FaultRule, ...]]


def make_plan(dice: random.Random, steps: int, setting: Setting) -> list[Happening]:
    """Kills, freezes, stops, splits, merges and spells of faults, by step."""
    last = steps - 5
    found: list[Happening] = []

    def place(kind: Kind, count: int, **more: object) -> None:
        for _ in range(count):
            found.append(Happening(dice.randrange(QUIET_STEPS, last), kind, dice.random(), **more))  # type: ignore[arg-type]

    place(Kind.SPLIT, dice.randint(2, 4))
    place(Kind.MERGE, dice.randint(1, 2))
    place(Kind.STOP, dice.randint(1, 2))
    for _ in range(dice.randint(1, 3)):
        place(Kind.KILL, 1, keeps_name=dice.random() < 0.5)
    for _ in range(dice.randint(2, 3)):
        length = round(setting.lease_seconds * dice.uniform(1.0, 2.5) / STEP_SECONDS)
        place(Kind.FREEZE, 1, steps=length, has_twin=dice.random() < 0.3)
    for loss in [one for one in found if one.kind in (Kind.KILL, Kind.FREEZE)]:
        rules = _delayed(dice, setting)
        found.append(Happening(loss.step - DELAYED_STEPS, Kind.SPELL, 0.0, DELAYED_STEPS, "delayed", rules))
    for fault in dice.sample(sorted(SPELLS), dice.randint(3, len(SPELLS))):
        length = dice.randint(round(1 / STEP_SECONDS), round(1.5 * setting.lease_seconds / STEP_SECONDS))
        place(Kind.SPELL, 1, steps=length, fault=fault, rules=SPELLS[fault](dice, setting))
    return sorted(found, key=lambda happening: (happening.step, happening.kind.value, happening.choice))


def _delayed(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    """Writes that reach the table when their sender's lease is over and taken."""
    latency = Latency(setting.lease_seconds * dice.uniform(1.5, 2.2))
    return _rules(dice, STATUS_WRITES, setting.status_table, latency, dice.uniform(0.3, 0.9))


def _throttled(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    code = dice.choice(["OTSOperationThrottled", "OTSCapacityUnitExhausted", "OTSServerBusy", "OTSQuotaExhausted"])
    return _everywhere(dice, setting, Fail(code), 0.2, 0.7)


def _cut(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    return _everywhere(dice, setting, Cut(), 0.1, 0.4)


def _slow(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    return _everywhere(dice, setting, Latency(dice.uniform(0.05, 0.4)), 0.3, 1.0)


def _lost(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    """Done, and never answered, after silence that outlasts the client's patience or without any."""
    seconds = dice.choice([0.0, setting.lease_seconds])
    return _rules(dice, STATUS_WRITES, setting.status_table, LoseAnswer(seconds), dice.uniform(0.1, 0.5))


def _late(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    answer = LateAnswer(setting.lease_seconds * dice.uniform(0.2, 1.5))
    return _rules(dice, STATUS_WRITES, setting.status_table, answer, dice.uniform(0.1, 0.4))


def _failed_rows(dice: random.Random, setting: Setting) -> tuple[FaultRule, ...]:
    rows = FailRows(every=dice.randint(1, 4), code=dice.choice(["OTSServerBusy", "OTSTimeout"]))
    return _rules(dice, ("BatchWriteRow",), setting.status_table, rows, dice.uniform(0.2, 0.8))


SPELLS: dict[str, Rules] = {
    "throttled": _throttled,
    "cut": _cut,
    "slow": _slow,
    "lost_answers": _lost,
    "late_answers": _late,
    "failed_rows": _failed_rows,
}
"""Faults by the name under which they are counted."""

FAULTS = ("delayed", *sorted(SPELLS))
"""All of them; ``delayed`` goes with kills and freezes."""


def _everywhere(
    dice: random.Random, setting: Setting, action: Fail | Cut | Latency, least: float, most: float
) -> tuple[FaultRule, ...]:
    probability = dice.uniform(least, most)
    status = _rules(dice, (*STATUS_WRITES, *STATUS_READS), setting.status_table, action, probability)
    return (*status, *_rules(dice, STREAM_READS, setting.table, action, probability))


def _rules(
    dice: random.Random,
    operations: tuple[str, ...],
    table: str,
    action: Fail | Cut | Latency | LoseAnswer | LateAnswer | FailRows,
    probability: float,
) -> tuple[FaultRule, ...]:
    """One rule for each operation; the writer's own requests meet none, as it writes rows of the data table only."""
    return tuple(
        FaultRule(operation, action, table=table, probability=probability, seed=dice.randrange(2**31))
        for operation in operations
    )
