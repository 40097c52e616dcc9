"""The random drawing of a history's plan from its seed.

Each history gets its own mixture of faults: some kinds are frequent, some are rare, most are absent. Such mixtures find
more errors than all faults together would, because one fault can hide the effect of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from attrs import evolve

from streamclient.testing.simulation.kernel import Dice
from streamclient.testing.simulation.plan import Action, HistoryPlan, LoopPlan, Mishaps, Plan, Rates, TunnelPlan
from streamclient.testing.simulation.simulated_faults import Do

HISTORY_DURATIONS = 20
"""The duration of a small history's storm, which is the phase with faults, in lease durations. The recovery and the
rest take at least six more lease durations."""


class Size(Enum):
    """The kind of a history: a fleet of a certain size, clients of a tunnel, or workers with loops."""

    SMALL = "small"
    """A fleet of 1 to 5 workers and 1 to 12 shards. Low numbers of shards are more likely."""
    MEDIUM = "medium"
    """A fleet of 4 to 8 workers and 13 to 32 shards."""
    FULL = "full size"
    """A fleet of 20 workers and 200 shards, with a shorter time of faults."""
    TUNNEL = "of tunnels"
    """1 to 4 clients of one tunnel. Only the caller can choose this kind."""
    LOOP = "of loops"
    """1 to 3 workers whose user code is a loop. Only the caller can choose this kind."""


SHARES = ((Size.SMALL, 0.95), (Size.MEDIUM, 0.995), (Size.FULL, 1.0))
"""The sizes that are drawn by chance, each with the upper end of its range between 0 and 1. A random number selects the
size whose range holds the number."""

FULL_STORM_DURATIONS = 3
"""The duration of a full-size history's storm, in lease durations. In this time twenty workers meet as many faults as
two workers meet in thirty lease durations."""

FAMILIES: dict[str, tuple[Do, ...]] = {
    "crashes": (Do.CRASH, Do.CRASH, Do.START),
    "stops": (Do.STOP, Do.START),
    "twins": (Do.TWIN,),
    "freezes": (Do.FREEZE,),
    "cuts": (Do.CUT, Do.DEAFEN),
    "load": (Do.SLOW, Do.THROTTLE),
    "splits": (Do.SPLIT, Do.SPLIT, Do.SPLIT, Do.MERGE, Do.MERGE),
    "expiry": (Do.EXPIRE,),
    "trims": (Do.TRIM,),
    "lists": (Do.STALE,),
    "vandals": (Do.DELETE_ROW, Do.RESET_ROW),
    "java": (Do.CRASH, Do.FREEZE),
    "processors": (Do.FAIL, Do.POISON, Do.POISON, Do.DRAG, Do.HANG),
    "marks": (Do.DONE, Do.REPLACE),
    "operators": (Do.PAUSE, Do.REWIND, Do.RELEASE, Do.MOVE),
    "programs": (Do.HOLD, Do.HOLD, Do.HOLD_ALL),
}
"""The kinds of faults, by the name of their family. For each history some families are drawn, and all kinds in a drawn
family may occur. A kind that is listed twice occurs twice as often."""

TUNNEL_FAMILIES = {
    **{name: FAMILIES[name] for name in ("crashes", "stops", "freezes", "cuts", "load", "splits")},
    "sessions": (Do.END_SESSION,),
}
"""The kinds of faults for clients of tunnels, by the name of their family."""

TUNNEL_ACTION_SECONDS = 5.0

LOOP_FAMILIES: dict[str, tuple[Do, ...]] = {
    "crashes": (Do.CRASH,),
    "stops": (Do.STOP,),
    "freezes": (Do.FREEZE,),
    "cuts": (Do.CUT,),
    "splits": (Do.SPLIT, Do.SPLIT, Do.MERGE),
}
"""The kinds of faults for workers whose user code is a loop, by the name of their family."""

MOST_MISHAPS = {
    "raises": 0.05,
    "fails": 0.2,
    "breaks": 0.3,
    "leaves": 0.05,
    "sleeps": 0.05,
    "closes_loop": 0.05,
    "time_outs": 0.5,
    "drops": 1.0,
}
"""For each mishap of a loop, the upper bound of its share in a plan. A plan that has the mishap draws the share between
0 and this bound. The keys are fields of ``Mishaps``."""

MOST_AWAITS = 60
"""The number of the last wait at which a plan may cancel the program of a loop. The first wait of a program has the
number 1. Plans with successive seeds cancel at successive waits, up to this number, and then begin again at 1."""

FAMILY_SHARES = {
    "twins": 0.15,
    "java": 0.15,
    "expiry": 0.15,
    "trims": 0.2,
    "vandals": 0.2,
    "marks": 0.15,
    "operators": 0.3,
    "programs": 0.2,
}
"""The share of histories in which a family of faults occurs. For a family without an entry, the share is a half."""

DESTRUCTIVE = ("java", "vandals")
"""The families of faults that delete or replace lease rows. Histories whose shards start at the latest record do not
have these faults, because a row that is deleted and created anew may rightly skip records. Histories with two-phase
checkpoints do not have these faults either, because a row that is created anew has lost the prepared checkpoint."""

SIGNAL_INTERVALS_MILLIS = (400,) + 3 * (1_000,) + 8 * (3_000,) + 24 * (6_000,)
"""The intervals at which workers read wake-up signals of other workers, in milliseconds. At the default of 400 ms these
reads are most of a small fleet's work, so few histories use the default."""

READ_CEILINGS = (0, 0, 0, 1, 2, 4)
"""The limits that are drawn for a worker's reads without records, in reads per second. 0 stands for the default limit,
which no simulated fleet reaches."""

MOST_SHARDS = 12
"""The largest initial number of shards of a small fleet."""

SECONDS_PER_ACTION = 12.0
"""The usual time between two actions of a plan, for example two faults, in seconds."""


def draw_plan(seed: int, size: Size | None = None) -> HistoryPlan:
    """Return the plan of ``seed``, which is the same on every machine. ``size`` replaces the drawn size."""
    dice = Dice.of(seed, "plan")
    number = dice.random()
    size = size or next(size for size, end in SHARES if number < end)
    return _DRAW[size](seed, dice)


def size_of(plan: HistoryPlan) -> Size:
    """Return the ``Size`` of the history that ``plan`` describes."""
    if isinstance(plan, TunnelPlan | LoopPlan):
        return Size.TUNNEL if isinstance(plan, TunnelPlan) else Size.LOOP
    if plan.shards >= 100:
        return Size.FULL
    return Size.MEDIUM if plan.shards > MOST_SHARDS else Size.SMALL


def _draw_small(seed: int, dice: Dice) -> Plan:
    shards = 1 + int(MOST_SHARDS * dice.random() * dice.random())
    return _draw(seed, dice, dice.randint(1, 5), shards, HISTORY_DURATIONS)


def _draw_medium(seed: int, dice: Dice) -> Plan:
    return _draw(seed, dice, dice.randint(4, 8), dice.randint(MOST_SHARDS + 1, 32), HISTORY_DURATIONS / 2)


def _draw_full(seed: int, dice: Dice) -> Plan:
    plan = _draw(seed, dice, 20, 200, FULL_STORM_DURATIONS)
    return evolve(plan, round_seconds=10.0, write_seconds=12.0)


def _draw_tunnel(seed: int, dice: Dice) -> TunnelPlan:
    plan = TunnelPlan(
        seed=seed,
        tunnel=dice.choice((1, 2, 3, 3)),
        keys=dice.choice((6, 20, 60)),
        shards=dice.randint(1, 2),
        delay_seconds=dice.choice((0.02, 0.3)),
        drift=dice.choice((0.0, 0.0, 0.0005, 0.002)),
        rates=_draw_rates(dice, TUNNEL_RATES),
        pages_per_checkpoint=dice.choice((1, 2, 5)),
        process_seconds=dice.choice((0.05, 0.5, 3.0)),
        storm_seconds=round(60.0 + 120.0 * dice.random(), 3),
    )
    names = [f"w{number}" for number in range(1, dice.randint(1, 3) + 1)]
    starts = [Action(at=0.0, do=Do.START, who=name) for name in names]
    kinds = [do for dos in TUNNEL_FAMILIES.values() if dice.chance(0.6) for do in dos]
    storm = _ActionDrawing(plan, dice, names).storm(kinds, TUNNEL_ACTION_SECONDS)
    return evolve(plan, actions=tuple(sorted([*starts, *storm], key=lambda action: action.at)))


def _draw_loop(seed: int, dice: Dice) -> LoopPlan:
    is_cancelled, concurrency, commit_every = dice.chance(0.5), dice.choice((0, 0, 1, 2, 8)), dice.choice((0, 0, 1, 3))
    plan = LoopPlan(
        seed=seed,
        concurrency=concurrency,
        commit_every=commit_every,
        is_processor=concurrency > 0 and commit_every > 0 and dice.chance(0.5),
        records=dice.choice((20, 60)),
        keys=dice.choice((4, 12)),
        max_records=dice.choice((1, 3, 10)),
        body_seconds=dice.choice((0.05, 1.0, 4.0)),
        shards=dice.randint(1, 4),
        rates=_draw_rates(dice, LOOP_RATES),
        failing_reads=dice.choice((0.0, 0.0, 0.05)),
        cancel_at=1 + seed % MOST_AWAITS if is_cancelled else 0,
        cancels_rung=dice.chance(0.5),
        mishaps=_draw_mishaps(dice),
        storm_seconds=round(40.0 + 80.0 * dice.random(), 3),
    )
    actions = [Action(at=0.0, do=Do.START, who=f"w{number}") for number in range(1, dice.randint(1, 3) + 1)]
    kinds = [do for dos in LOOP_FAMILIES.values() if dice.chance(0.5) for do in dos]
    now = 0.0
    while kinds and (now := now + SECONDS_PER_ACTION * (0.2 + 1.6 * dice.random())) < plan.storm_seconds:
        actions.append(Action(at=round(now, 3), do=dice.choice(kinds)))
    return evolve(plan, actions=tuple(actions))


def _draw_mishaps(dice: Dice) -> Mishaps:
    if dice.chance(0.2):
        return Mishaps()
    drawn = {name: round(most * dice.random(), 4) for name, most in MOST_MISHAPS.items() if dice.chance(0.4)}
    return Mishaps(**drawn)


_DRAW: dict[Size, Callable[[int, Dice], HistoryPlan]] = {
    Size.SMALL: _draw_small,
    Size.MEDIUM: _draw_medium,
    Size.FULL: _draw_full,
    Size.TUNNEL: _draw_tunnel,
    Size.LOOP: _draw_loop,
}


def _draw(seed: int, dice: Dice, workers: int, shards: int, durations: float) -> Plan:
    plan = Plan(
        seed=seed,
        shards=shards,
        delay_seconds=dice.choice((0.02, 0.05, 0.2, 0.5)),
        drift=dice.choice((0.0, 0.0, 0.0005, 0.002)),
        write_seconds=dice.choice((2.0, 5.0, 10.0)),
        round_seconds=dice.choice((1.0, 3.0, 6.0)),
        is_two_phase=dice.chance(0.3),
        has_sessions=dice.chance(0.75),
        signal_interval_millis=dice.choice(SIGNAL_INTERVALS_MILLIS),
        balance_by=dice.choice(("count",) * 8 + ("records", "bytes")),
        position=dice.choice(("oldest", "oldest", "oldest", "latest")),
        rates=_draw_rates(dice, MOST_RATES),
        then=dice.choice(("RESTART", "PARK", "PARK", "STOP_SHARD")),
        retries=dice.choice((0, 1, 3)),
        has_strategy=dice.chance(0.2),
        trimmed=dice.choice(("STOP_SHARD", "RESTART_AT_OLDEST")),
        max_reads_per_second=Dice.of(seed, "ceiling").choice(READ_CEILINGS),
    )
    if plan.is_two_phase:
        plan = evolve(plan, then="RESTART")  # a prepared batch is a whole page, and RESTART divides no page
    plan = evolve(plan, storm_seconds=durations * plan.duration_seconds)
    return evolve(plan, actions=_draw_actions(plan, dice, workers))


MOST_RATES = {
    "lost_request": 0.1,
    "lost_answer": 0.1,
    "late_request": 0.08,
    "late_answer": 0.05,
    "false_refusal": 0.08,
    "throttled": 0.1,
}
"""For each fault of a single call, the upper bound of the drawn probability. The keys are fields of ``Rates``."""

TUNNEL_RATES = {name: MOST_RATES[name] for name in ("lost_request", "lost_answer", "late_request", "throttled")}
"""The upper bounds of ``MOST_RATES`` for clients of tunnels. Late answers are left out, because these clients ignore an
answer that comes after they have given up the call."""

LOOP_RATES = {name: MOST_RATES[name] for name in ("lost_request", "lost_answer", "throttled")}
"""The upper bounds of ``MOST_RATES`` for workers with loops. Late answers are left out, because the status table of
these workers answers immediately or never."""


def _draw_rates(dice: Dice, most_rates: Mapping[str, float]) -> Rates:
    if dice.chance(0.3):
        return Rates()
    drawn = {}
    for name, most in most_rates.items():
        if dice.chance(0.5):
            drawn[name] = round(most * dice.random(), 4)
    return Rates(**drawn)


def _draw_actions(plan: Plan, dice: Dice, workers: int) -> tuple[Action, ...]:
    names = [f"w{number}" for number in range(1, workers + 1)]
    spread = dice.choice((0.0, 0.0, 1.0, plan.duration_seconds))
    actions = [Action(at=round(spread * dice.random(), 3), do=Do.START, who=name) for name in names]
    families = [name for name in FAMILIES if dice.chance(FAMILY_SHARES.get(name, 0.5))]
    if plan.position != "oldest" or plan.is_two_phase:
        families = [name for name in families if name not in DESTRUCTIVE]
    if "java" in families:
        names += [f"j{number}" for number in range(1, dice.randint(1, 2) + 1)]
        javas = names[workers:]
        actions += [Action(at=round(30.0 * dice.random(), 3), do=Do.START, who=name, java=True) for name in javas]
    kinds = [do for name in families for do in FAMILIES[name]]
    actions += _ActionDrawing(plan, dice, names).storm(kinds, SECONDS_PER_ACTION, crowd=max(1.0, workers / 5))
    return tuple(sorted(actions, key=lambda action: action.at))


class _ActionDrawing:
    """The drawing of one plan's actions in order. It counts the workers, so that a fleet does not outgrow its size."""

    def __init__(self, plan: HistoryPlan, dice: Dice, names: list[str]) -> None:
        self._dice, self._duration, self._end = dice, plan.duration_seconds, plan.storm_seconds
        self._names = names
        self._most = len(names) + 1
        self._present = len(names)
        """The number of living workers after the drawn actions, if each action succeeds."""

    def storm(self, kinds: list[Do], seconds: float, *, crowd: float = 1.0) -> list[Action]:
        """Return actions of ``kinds`` for the whole storm. Usually ``seconds / crowd`` pass between two actions."""
        actions: list[Action] = []
        now = 0.0
        while kinds:
            now += seconds * (0.2 + 1.6 * self._dice.random()) / crowd
            if now >= self._end:
                break
            actions += self.draw(self._dice.choice(kinds), round(now, 3))
        return actions

    def draw(self, do: Do, now: float) -> list[Action]:
        """Return the action ``do`` and its later parts, such as a restart; return ``[]`` if ``do`` does not fit now."""
        dice = self._dice
        who, where = dice.choice(self._names), round(dice.random(), 3)
        seconds = round(self._duration * 2.0 * dice.random() * dice.random(), 3)
        if do is Do.START:
            return self._join(now)
        if do in (Do.CRASH, Do.STOP):
            return self._leave(do, now, who)
        if do in (Do.FREEZE, Do.HANG):
            # The time suffices for the lease to expire, and for the same worker to retake it during the hanging call.
            seconds = round(self._duration * (2.5 if do is Do.FREEZE else 4.0) * dice.random(), 3)
        action = Action(at=now, do=do, seconds=seconds, amount=round(self._amount(do, seconds), 3))
        if do in (Do.SPLIT, Do.MERGE, Do.EXPIRE, Do.DELETE_ROW, Do.RESET_ROW, Do.DONE, Do.REPLACE, Do.POISON):
            return [Action(at=now, do=do, where=where)]
        if do is Do.TRIM:
            return [Action(at=now, do=do, where=where, amount=round(1.0 - 0.5 * dice.random(), 3))]
        if do in (Do.FAIL, Do.DRAG):
            return [evolve(action, where=where, seconds=round(1.5 * seconds, 3))]
        if do is Do.HANG:
            return [evolve(action, where=where)]
        if do in (Do.PAUSE, Do.REWIND, Do.RELEASE, Do.MOVE, Do.HOLD, Do.HOLD_ALL, Do.END_SESSION):
            return [evolve(action, who=who, where=where)]
        is_everybody = do in (Do.THROTTLE, Do.STALE) or (do is not Do.FREEZE and dice.chance(0.3))
        return [action if is_everybody and do is not Do.TWIN else evolve(action, who=who)]

    def _amount(self, do: Do, seconds: float) -> float:
        number = self._dice.random()
        if do in (Do.PAUSE, Do.REWIND):
            return max(0.0, number - 0.3)
        amounts = {
            Do.SLOW: 2.0 + 20.0 * number,
            Do.THROTTLE: 0.2 + 0.8 * number,
            Do.STALE: 60.0 * number,
            Do.DRAG: 2.0 + 10.0 * number,
            Do.HANG: seconds * number,
        }
        return amounts.get(do, 0.0)

    def _join(self, now: float) -> list[Action]:
        if self._present >= self._most:
            return []
        self._present += 1
        self._names.append(f"w{len(self._names) + 1}")
        return [Action(at=now, do=Do.START, who=self._names[-1])]

    def _leave(self, do: Do, now: float, who: str) -> list[Action]:
        if not self._dice.chance(0.7):
            self._present -= 1
            return [Action(at=now, do=do, who=who)]
        back = round(now + self._duration * 3.0 * self._dice.random() * self._dice.random(), 3)
        name = _next_name(who)
        if back >= self._end:
            return [Action(at=now, do=do, who=who)]
        return [Action(at=now, do=do, who=who), Action(at=back, do=Do.START, who=name, java=name.startswith("j"))]


def _next_name(who: str) -> str:
    """Return the name under which the worker ``who`` starts its next life.

    A Java worker gets a new name. Under its old name, it could keep for ever a lease that another worker has requested.
    """
    return f"{who}x" if who.startswith("j") else who
