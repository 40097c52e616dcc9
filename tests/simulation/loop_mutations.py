"""Breaks of single rules in loops and in the calls that are handed over to them; some law must catch each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from streamclient.loops.aio import async_iterating
from streamclient.loops.aio.async_iterating import AsyncLoop
from streamclient.loops.consumption import Consumption
from streamclient.loops.line import Line
from streamclient.loops.line_receiver import HandedBatch
from streamclient.model import CheckpointPosition
from streamclient.testing.simulation.drawing import Size
from streamclient.testing.simulation.loops.loop_witness import (
    CANCELLED,
    LEASES,
    LEFT,
    NO_LEAK,
    NOTHING_FALLS,
    REASONS,
    SETTLED,
    STORED,
)
from streamclient.testing.simulation.plan import Action, LoopPlan, Mishaps, Rates
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.worker.handlers.async_user_code import ProcessorCode
from streamclient.worker.handlers.batches import AsyncBatch
from streamclient.worker.handlers.task_line import TaskCall
from streamclient.worker.usercode import HandedCall
from tests.simulation.mutation import Mutation

_answered, _async_batch, _claim, _next, _take = (
    HandedBatch._answered,
    HandedBatch.async_batch,
    HandedBatch.claim,
    AsyncLoop._next,
    Line.take,
)


def _ignored(error: Exception | None) -> None:
    """What a begun checkpoint tells in the end, if nobody listens."""


# --- plans -----------------------------------------------------------------------------------------------------------


def _is_loop(plan: LoopPlan) -> bool:
    return not plan.concurrency


def _with_cuts(plan: LoopPlan) -> LoopPlan:
    """The status table is often unreachable, for longer than a lease lasts."""
    cuts = [Action(at=at + 0.5, do=Do.CUT) for at in range(10, int(plan.storm_seconds), 15)]
    return evolve(plan, actions=tuple(sorted([*plan.actions, *cuts], key=lambda action: action.at)), commit_every=0)


def _with_ends(**changes: Any) -> Callable[[LoopPlan], LoopPlan]:
    """Shards split all the time."""

    def made(plan: LoopPlan) -> LoopPlan:
        splits = [Action(at=at + 0.5, do=Do.SPLIT) for at in range(5, int(plan.storm_seconds), 10)]
        actions = tuple(sorted([*plan.actions, *splits], key=lambda action: action.at))
        return evolve(plan, actions=actions, records=60, keys=12, **changes)

    return made


def _quiet(plan: LoopPlan, **changes: Any) -> LoopPlan:
    """Nothing but programs does anything wrong."""
    actions = tuple(action for action in plan.actions if action.do not in (Do.FREEZE, Do.CUT))
    return evolve(plan, actions=actions, rates=Rates(), **changes)


def _slow_and_stopped(plan: LoopPlan) -> LoopPlan:
    """Bodies sleep, and workers are stopped meanwhile."""
    stops = [Action(at=at + 0.5, do=Do.STOP) for at in range(10, int(plan.storm_seconds), 10)]
    actions = tuple(sorted([*plan.actions, *stops], key=lambda action: action.at))
    return _quiet(evolve(plan, actions=actions), shards=4, concurrency=0, mishaps=Mishaps(sleeps=0.3))


# --- rules -----------------------------------------------------------------------------------------------------------


def _commits_when_given(self: HandedBatch, bridge: Any) -> AsyncBatch:
    self._shard.checkpointer.begin_checkpoint(self._position, _ignored)
    return _async_batch(self, bridge)


def _ends_when_given(self: HandedBatch) -> bool:
    is_claimed = _claim(self)
    if is_claimed:
        self.call.finish()
    return is_claimed


def _stores_the_end_when_given(self: HandedBatch, bridge: Any) -> AsyncBatch:
    self._shard.checkpointer.begin_checkpoint(CheckpointPosition.SHARD_END, _ignored)
    return _async_batch(self, bridge)


def _ends_without_a_claim(self: HandedCall, raised: Any, done: Any) -> None:
    self._around.left(self.thread_id)
    self._around.tell(self, done, raised)


def _claims_without_a_lock(self: HandedCall) -> bool:
    self.thread_id, self.started_at = 0, self._around.now()
    self._around.entered(0)
    return True


async def _takes_before_it_waits(self: AsyncLoop, bridge: Any) -> AsyncBatch:
    batch = await _next(self, bridge)
    await async_iterating._others()
    return batch


def _remembers_the_error(self: HandedBatch, error: Exception | None) -> None:
    if error is not None:
        self._shard._around.line.__dict__["error"] = error
    _answered(self, error)


def _raises_the_error(self: Line[Any]) -> Any:
    error = self.__dict__.pop("error", None)
    if error is not None:
        raise error
    return _take(self)


def _stores_at_every_end(self: ProcessorCode, reason: Any, **state: bool) -> bool:
    return reason.value == "TERMINATE"


LOOP_MUTATIONS = (
    Mutation(
        "a batch is committed before its body ends",
        frozenset({STORED}),
        [(HandedBatch, "async_batch", _commits_when_given)],
        fits=_is_loop,
        size=Size.LOOP,
    ),
    Mutation(
        "a batch is committed when its body is left or cancelled",
        frozenset({LEFT, CANCELLED}),
        [(HandedBatch, "leave", HandedBatch.end_turn)],
        fits=_is_loop,
        size=Size.LOOP,
        seed=12,
    ),
    Mutation(
        "a batch is committed when a loop is begun again",
        frozenset({LEFT}),
        [(Consumption, "begin_again", lambda self: None)],
        fits=lambda plan: not plan.concurrency and plan.mishaps.breaks > 0,
        size=Size.LOOP,
        seed=33,
    ),
    Mutation(
        "a call ends without a claim",
        frozenset({SETTLED}),
        [(HandedCall, "_end", _ends_without_a_claim)],
        size=Size.LOOP,
    ),
    Mutation(
        "a call is claimed without a lock",
        frozenset({SETTLED}),
        [(HandedCall, "claim", _claims_without_a_lock)],
        size=Size.LOOP,
    ),
    Mutation(
        "a batch leaves the line before the wait for it is over",
        frozenset({NOTHING_FALLS}),
        [(AsyncLoop, "_next", _takes_before_it_waits)],
        fits=_is_loop,
        size=Size.LOOP,
    ),
    Mutation(
        "the next batch of a shard comes while one is out",
        frozenset({STORED}),
        [(HandedBatch, "claim", _ends_when_given)],
        fits=_is_loop,
        size=Size.LOOP,
    ),
    Mutation(
        "the error of a turn's commit is raised into the loop",
        frozenset({REASONS}),
        [(HandedBatch, "_answered", _remembers_the_error), (Line, "take", _raises_the_error)],
        fits=_is_loop,
        made_to_fit=_with_cuts,
        size=Size.LOOP,
    ),
    Mutation(
        "the end of a shard is stored while a batch is out",
        frozenset({STORED}),
        [(HandedBatch, "async_batch", _stores_the_end_when_given)],
        fits=_is_loop,
        size=Size.LOOP,
    ),
    Mutation(
        "a handler that is cancelled has accepted its batch",
        frozenset({CANCELLED}),
        [(TaskCall, "leave", lambda self: self.call.finish())],
        fits=lambda plan: plan.concurrency > 0 and plan.cancel_at > 0,
        size=Size.LOOP,
    ),
    Mutation(
        "a batch in line is not taken back",
        frozenset({LEASES}),
        [(HandedCall, "cancel", lambda self: False)],
        made_to_fit=_slow_and_stopped,
        size=Size.LOOP,
    ),
    Mutation(
        "a closed event loop keeps the batch that is out",
        frozenset({NO_LEAK}),
        [(Consumption, "give_up", Consumption.stop)],
        made_to_fit=lambda plan: _quiet(plan, mishaps=Mishaps(closes_loop=0.1)),
        size=Size.LOOP,
    ),
    Mutation(
        "the end of a shard is stored although its processor has not stored everything",
        frozenset({STORED}),
        [(ProcessorCode, "is_store_due", _stores_at_every_end)],
        made_to_fit=_with_ends(concurrency=2, commit_every=3, is_processor=True),
        size=Size.LOOP,
    ),
)
