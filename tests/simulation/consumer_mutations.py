"""Breaks of single rules of consumers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attrs import evolve

from streamclient.base.position import Judged, Position, ReadTrail
from streamclient.core import leases, settle, shard_tree
from streamclient.core.consumer import consumer_events as consuming
from streamclient.core.consumer import machine, page_answers
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.page import PagePlan, PendingCut, Remedy, remedy
from streamclient.core.consumer.parked import ParkedKeys
from streamclient.core.consumer.reading_pace import ShardPace, WorkerPace
from streamclient.core.consumer.record_orders import RecordOrders
from streamclient.core.consumer.transitions import Outcome, Phase
from streamclient.core.held import HeldLease
from streamclient.core.leases import LeaseWrite
from streamclient.core.worker_state import WorkerState
from streamclient.core.write_rules import RULES, WriteKind
from streamclient.model import CheckpointPosition, Lease, RecordOrder
from streamclient.testing.simulation.plan import Action, Plan
from streamclient.testing.simulation.simulated_faults import Do
from tests.simulation.mutation import Mutation, has


def _poisoned(then: str) -> Callable[[Plan], Plan]:
    """Records that no processor can digest, a few for each shard, and what the failure policy does with them."""

    def made(plan: Plan) -> Plan:
        poison = [Action(at=4.0 + 7.0 * number, do=Do.POISON, where=number * 0.37 % 1.0) for number in range(20)]
        actions = tuple(sorted([*plan.actions, *poison], key=lambda action: action.at))
        return evolve(plan, actions=actions, then=then, retries=0, has_strategy=False, is_two_phase=False)

    return made


def ordered(then: str, retries: int = 0) -> Callable[[Plan], Plan]:
    """Poisoned records, which an operator then orders parked or skipped."""

    def made(plan: Plan) -> Plan:
        poisoned = _poisoned(then)(plan)
        orders = [
            Action(at=6.0 + 5.0 * number, do=Do.TAKE_OUT, where=number * 0.37 % 1.0, amount=float(number % 2))
            for number in range(40)
        ]
        actions = tuple(sorted([*poisoned.actions, *orders], key=lambda action: action.at))
        return evolve(poisoned, actions=actions, retries=retries)

    return made


def _trimmed(policy: str) -> Callable[[Plan], Plan]:
    """The retention takes records that nobody has read."""

    def made(plan: Plan) -> Plan:
        moments = [(15.0 + 9.0 * number, number * 0.37 % 1.0) for number in range(20)]
        trims = [Action(at=at, do=Do.TRIM, where=where, amount=1.0) for at, where in moments]
        actions = tuple(sorted([*plan.actions, *trims], key=lambda action: action.at))
        return evolve(plan, actions=actions, trimmed=policy)

    return made


def _in_two_phases(plan: Plan) -> Plan:
    return evolve(plan, is_two_phase=True, then="RESTART")


def _is_not_two_phase(plan: Plan) -> bool:
    return not plan.is_two_phase


def _accepts_what_failed(self: ConsumerMachine, error: BaseException) -> None:
    self._page_done()


def _passes_over_a_loss(self: ConsumerMachine, event: Any) -> None:
    self.position, self._pause = Position.TRIM_HORIZON, 0.0
    self._follow(Outcome.READ_FAILED)


_begin_starting = ConsumerMachine._begin_starting


def _goes_on_where_it_stood(self: ConsumerMachine) -> None:
    position = self.position
    _begin_starting(self)
    self.position = position


def _parks_the_whole_batch(*arguments: Any) -> Remedy:
    found = remedy(*arguments)
    return Remedy.PARK if found is Remedy.CUT else found


_end_judged = ConsumerMachine._end_judged


def _believes_what_is_shown_since(self: ConsumerMachine, event: consuming.EndJudged) -> None:
    _end_judged(self, evolve(event, since_read=False))


_judge = ReadTrail.judge


def _follows_a_page_in_doubt(self: ReadTrail, asked: str, following: str, count: int, place: Any) -> Judged:
    found = _judge(self, asked, following, count, place)
    is_old = bool(found.why) and following not in (asked, CheckpointPosition.SHARD_END)
    return Judged(taken=count, is_way=True) if is_old and not self.goes_back else found


def _believes_any_way(self: ReadTrail, asked: str, following: str, count: int, place: Any) -> Judged:
    found, last = _judge(self, asked, following, count, place), self.last
    if not (self.goes_back and found.why and count and last is not None):
        return found
    return Judged(taken=sum(place(index) <= last for index in range(count)))


_interval = ShardPace.interval


def _never_shortens(self: ShardPace, now: float) -> float:
    given: dict[ShardPace, float] = self._table.__dict__.setdefault("given", {})
    given[self] = max(given.get(self, 0.0), _interval(self, now))
    return given[self]


def _starves_the_first(self: ShardPace, now: float) -> float:
    first = self._table.__dict__.setdefault("first", self)
    return _interval(self, now) * (10.0 if self is first else 1.0)


def _with_long_silences(plan: Plan) -> Plan:
    return evolve(plan, write_seconds=20.0, round_seconds=1.0, max_reads_per_second=0)


def _with_a_low_ceiling(plan: Plan) -> Plan:
    return evolve(plan, round_seconds=1.0, max_reads_per_second=1)


# --- orders --------------------------------------------------------------------------------------------------------


_ended, _named_in, _set_orders = RecordOrders.ended, RecordOrders.named_in, leases.set_orders


def _ends_before_the_checkpoint(self: RecordOrders, stored: int, *, is_finished: bool) -> Any:
    return _ended(self, 1 << 60, is_finished=is_finished)


def _left_without_a_note(state: WorkerState, held: HeldLease) -> tuple[RecordOrder, ...]:
    return tuple(order for order in held.lease.orders if order.request_id not in held.orders_over)


def _names_one_more(self: RecordOrders, records: Any, indices: Any) -> Any:
    named = _named_in(self, records, indices)
    return {**named, **{index + 1: order for index, order in named.items() if index + 1 in indices}}


def _moves_the_checkpoint(seen: Lease, orders: tuple[RecordOrder, ...]) -> LeaseWrite:
    """Go on after the record that the last order names."""
    write, after = _set_orders(seen, orders), int(orders[-1].record_ids[-1]) + 1
    return evolve(write, result=evolve(write.result, checkpoint=f"{after}:order"))


CONSUMER_MUTATIONS = (
    Mutation(
        "the pause of a quiet shard stays long when records come again",
        frozenset({"read in time"}),
        [(ShardPace, "interval", _never_shortens)],
        made_to_fit=_with_long_silences,
    ),
    Mutation(
        "one shard of a worker is read ten times as seldom as it may be",
        frozenset({"read in time"}),
        [(ShardPace, "interval", _starves_the_first)],
    ),
    Mutation(
        "reads without records know no ceiling",
        frozenset({"reads keep their ceiling"}),
        [(WorkerPace, "stretched", lambda self, interval: interval)],
        made_to_fit=_with_a_low_ceiling,
    ),
    Mutation(
        "a page in doubt is followed",
        frozenset({"checkpoints follow processing", "nothing is lost"}),
        [(ReadTrail, "judge", _follows_a_page_in_doubt)],
        seed=16,
    ),
    Mutation(
        "the way to the last record is believed although it lacks that record",
        frozenset({"checkpoints follow processing", "nothing is lost"}),
        [(ReadTrail, "judge", _believes_any_way)],
        seed=84,
    ),
    Mutation(
        "an end is believed although the list of shards does not show it",
        frozenset({"checkpoints follow processing", "nothing is lost"}),
        [(shard_tree.ListedEnds, "shows_end", lambda self, shard_id, read_at=math.inf: True)],
    ),
    Mutation(
        "a page is the last one although the end of its shard was shown since it was read",
        frozenset({"checkpoints follow processing", "nothing is lost"}),
        [],
        handlers=[(consuming.EndJudged, _believes_what_is_shown_since)],
        seed=297,
    ),
    Mutation(
        "a consumer that is stopped while it reads leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.READING, Outcome.STOPPED): Phase.ENDED},
    ),
    Mutation(
        "a consumer that is stopped while it waits leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.WAITING, Outcome.STOPPED): Phase.ENDED},
    ),
    Mutation(
        "a consumer that is stopped during a batch leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.DELIVERING, Outcome.STOPPED): Phase.ENDED},
    ),
    Mutation(
        "a consumer that is stopped as it starts leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.STARTING, Outcome.STOPPED): Phase.ENDED},
        seed=10,
    ),
    Mutation(
        "a processor that failed is replaced without being closed",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.DELIVERING, Outcome.FAILED): Phase.BACKING_OFF},
    ),
    Mutation(
        "a processor that failed to initialise is replaced without being closed",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.STARTING, Outcome.FAILED): Phase.BACKING_OFF},
        fits=has(Do.FAIL),
    ),
    Mutation(
        "a shard that stopped at a record goes on by itself",
        frozenset({"stopped shards wait"}),
        [],
        phases={(Phase.CLOSING, Outcome.CLOSED_TO_HALT): Phase.BACKING_OFF},
        made_to_fit=_poisoned("STOP_SHARD"),
    ),
    Mutation(
        "a shard that stopped at a record leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.DELIVERING, Outcome.GIVEN_UP): Phase.HALTED},
        made_to_fit=_poisoned("STOP_SHARD"),
    ),
    Mutation(
        "a shard that lost records leaves its processor open",
        frozenset({"calls in order"}),
        [],
        phases={(Phase.READING, Outcome.DATA_LOST): Phase.HALTED},
        made_to_fit=_trimmed("STOP_SHARD"),
    ),
    Mutation(
        "a shard that stopped cannot be handed over",
        frozenset({"recovery", "rest"}),
        [],
        phases={(Phase.HALTED, Outcome.STOPPED): Phase.HALTED},
        made_to_fit=_poisoned("STOP_SHARD"),
    ),
    Mutation(
        "a consumer that was closed for good starts anew",
        frozenset({"recovery", "one processor", "rest"}),
        [],
        phases={(Phase.CLOSING, Outcome.CLOSED): Phase.BACKING_OFF},
    ),
    Mutation(
        "a processor that has to be replaced never is",
        frozenset({"recovery"}),
        [],
        phases={(Phase.CLOSING, Outcome.CLOSED_TO_RESTART): Phase.HALTED},
        fits=has(Do.FAIL),
    ),
    Mutation(
        "the end of a shard is taken for silence",
        frozenset({"recovery"}),
        [],
        phases={(Phase.READING, Outcome.END_REACHED): Phase.WAITING},
        fits=has(Do.SPLIT, Do.MERGE),
        seed=22,
    ),
    Mutation(
        "a batch that failed counts as accepted",
        frozenset({"order per key", "nothing is lost", "checkpoints follow processing"}),
        [(ConsumerMachine, "_refused", _accepts_what_failed)],
        fits=has(Do.FAIL, Do.POISON),
    ),
    Mutation(
        "the end of a page may be stored with its first part",
        frozenset({"checkpoints follow processing"}),
        [(PagePlan, "is_last", property(lambda self: True))],
        fits=_is_not_two_phase,
        made_to_fit=_poisoned("PARK"),
    ),
    Mutation(
        "the position behind a failed batch stays permitted",
        frozenset({"checkpoints follow processing"}),
        [(ConsumerMachine, "_retract", lambda self: None)],
        fits=has(Do.FAIL, Do.POISON),
    ),
    Mutation(
        "a new processor goes on where the last one stood",
        frozenset({"order per key", "nothing is lost", "checkpoints follow processing"}),
        [(ConsumerMachine, "_beginnings", {**machine._BEGINNINGS, Phase.STARTING: _goes_on_where_it_stood})],
        fits=has(Do.FAIL, Do.REPLACE),
        seed=69,
    ),
    Mutation(
        "a failing batch is parked whole",
        frozenset({"only failures are parked"}),
        [(page_answers, "remedy", _parks_the_whole_batch)],
        made_to_fit=_poisoned("PARK"),
    ),
    Mutation(
        "nobody asks which keys are parked",
        frozenset({"parked keys wait"}),
        [(ParkedKeys, "must_ask", lambda *_: False)],
        made_to_fit=_poisoned("PARK"),
    ),
    Mutation(
        "records overtake parked ones of their keys",
        frozenset({"parked keys wait"}),
        [(ParkedKeys, "after_parked", lambda *_: ())],
        made_to_fit=_poisoned("PARK"),
    ),
    Mutation(
        "a loss is passed over in silence",
        frozenset({"order per key", "nothing is lost", "checkpoints follow processing", "recovery"}),
        [],
        [(consuming.FirstLeftFound, _passes_over_a_loss)],
        made_to_fit=_trimmed("STOP_SHARD"),
    ),
    Mutation(
        "a prepared batch is repeated as the stream gives it",
        frozenset({"nothing is repeated"}),
        [(PendingCut, "apply", lambda self, page: (page, None))],
        made_to_fit=_in_two_phases,
        seed=66,
    ),
    Mutation(
        "an order ends as soon as its records are passed",
        frozenset({"ordered records stay out"}),
        [(RecordOrders, "ended", _ends_before_the_checkpoint)],
        made_to_fit=ordered("STOP_SHARD"),
    ),
    Mutation(
        "the end of an order is not noted",
        frozenset({"ordered records stay out"}),
        [(settle, "orders_left", _left_without_a_note)],
        made_to_fit=ordered("STOP_SHARD"),
    ),
    Mutation(
        "an order takes out the next record, too",
        frozenset({"nothing is lost", "order per key", "checkpoints follow processing"}),
        [(RecordOrders, "named_in", _names_one_more)],
        made_to_fit=ordered("STOP_SHARD"),
    ),
    Mutation(
        "an order moves the checkpoint after its records",
        frozenset({"nothing is lost", "order per key", "checkpoints follow processing"}),
        [(leases, "set_orders", _moves_the_checkpoint)],
        rules={WriteKind.SET_ORDERS: evolve(RULES[WriteKind.SET_ORDERS], writes=("orders", "checkpoint"))},
        made_to_fit=ordered("STOP_SHARD"),
    ),
)
