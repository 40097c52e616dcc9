"""Breaks of single rules in the production core, each of which some law must catch: of leases, and of consumers.

A mutation replaces a function of the core, or a part of one, while histories run. It is caught if one of the laws that
it names is broken within ``MOST_SEEDS`` seeds. So the laws are known to see what they are there for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from attrs import evolve, field, frozen

from streamclient.core import (
    doubt,
    events,
    held,
    holdings,
    leases,
    peers,
    requests,
    session,
    settle,
    shards,
    sync,
)
from streamclient.core.consumer import events as consuming
from streamclient.core.consumer import machine, reading, table
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.page import PagePlan, PendingCut, Remedy, remedy
from streamclient.core.consumer.parked import ParkedKeys
from streamclient.core.consumer.table import Outcome, Phase
from streamclient.core.held import NEXT, Consuming, HeldLease, Intention, LeaseStep, RowState
from streamclient.core.position import Position
from streamclient.core.rows import RULES, EpochWriteKind, Rule, WorkerWriteKind, WriteKind, WriteOutcome, was_applied
from streamclient.core.shards import Gate
from streamclient.core.state import WorkerState
from streamclient.model import Lease
from streamclient.reasons import Cause, Reason
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import Action, Do, Plan
from streamclient.testing.simulation.runner import run_plan

MOST_SEEDS = 500

AnyKind = WriteKind | WorkerWriteKind | EpochWriteKind

State = tuple[Intention, Consuming, RowState]

Patch = tuple[Any, str, Any]
"""What to change: a module or class, the name in it, what to put there."""


@frozen
class Mutation:
    """One rule, broken."""

    name: str
    laws: frozenset[str]
    """Any of these may catch it."""
    patches: Sequence[Patch]
    handlers: Sequence[tuple[type, Callable[..., None]]] = ()
    """Handlers of events, and of the answers to calls, that are replaced in ``Holdings`` and in consumers."""
    fits: Callable[[Plan], bool] = lambda plan: True
    """Plans in which the rule matters; others are passed over."""
    made_to_fit: Callable[[Plan], Plan] = lambda plan: plan
    """Changes a plan so that the rule matters more often."""
    rules: Mapping[AnyKind, Rule] = field(factory=dict)
    """Lines that are replaced in the table of rules."""
    steps: Mapping[State, LeaseStep] = field(factory=dict)
    """Lines that are replaced in the table of held leases."""
    phases: Mapping[tuple[Phase, Outcome], Phase] = field(factory=dict)
    """Lines that are replaced in the table of consumers."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core with this rule broken."""
        undo = [patch.object(*each) for each in self.patches]
        answers = {call: handler for call, handler in self.handlers if issubclass(call, events.Call)}
        of_consumers = {event: handler for event, handler in self.handlers if event in machine._HANDLERS}
        others = {event: handler for event, handler in self.handlers if event not in answers.keys() | of_consumers}
        handlers = patch.dict(holdings._HANDLERS, others)
        rules, steps = patch.dict(RULES, self.rules), patch.dict(NEXT, self.steps)
        consumers = patch.dict(machine._HANDLERS, of_consumers)
        phases = patch.dict(table.TRANSITIONS, self.phases)  # type: ignore[arg-type]  # it is a dictionary
        for each in undo:
            each.start()
        try:
            with handlers, patch.dict(holdings._ANSWERS, answers), rules, steps, phases, consumers:
                yield
        finally:
            for each in reversed(undo):
                each.stop()

    def caught(self) -> tuple[int, str] | None:
        """The first seed whose history breaks one of its laws, and that law."""
        with self.applied():
            for seed in range(MOST_SEEDS):
                plan = self.made_to_fit(draw_plan(seed, Size.SMALL))
                if not self.fits(plan):
                    continue
                violation = run_plan(plan).violation
                if violation is not None and violation.law in self.laws:
                    return seed, violation.law
        return None


def _has(*kinds: Do) -> Callable[[Plan], bool]:
    return lambda plan: bool({action.do for action in plan.actions} & set(kinds))


def _with_late_requests(plan: Plan) -> Plan:
    """Without sessions, which would tell, too."""
    return evolve(plan, has_sessions=False, rates=evolve(plan.rates, late_request=0.08, lost_answer=0.05))


def _with_rows_that_vanish(plan: Plan) -> Plan:
    """Rows of shards that have children are deleted, a few after each split and merge."""
    changes = [action.at for action in plan.actions if action.do in (Do.SPLIT, Do.MERGE)]
    vandals = [
        Action(at=at + later, do=Do.DELETE_ROW, where=where)
        for at in changes
        for later in (0.5, 2.0, 5.0, 9.0)
        for where in (0.0, 0.3, 0.6, 0.9)
    ]
    return evolve(plan, actions=tuple(sorted([*plan.actions, *vandals], key=lambda action: action.at)))


def _has_sessions(plan: Plan) -> bool:
    return plan.has_sessions and not plan.has_java


def _has_no_sessions(plan: Plan) -> bool:
    return not plan.has_sessions


# --- the writes ----------------------------------------------------------------------------------------------------


def _comparing(kind: WriteKind, *names: str) -> dict[AnyKind, Rule]:
    """The rule of a write that compares these fields alone."""
    return {kind: evolve(RULES[kind], if_same=names)}


# --- answers -------------------------------------------------------------------------------------------------------

Answer = events.Answered[WriteOutcome]

_write_answered = holdings._ANSWERS[events.WriteLease]


def _sent_when_answered(state: WorkerState, call: events.WriteLease, answer: Answer) -> None:
    _write_answered(state, call, evolve(answer, sent_at=state.now))


def _refused_is_accepted(state: WorkerState, call: events.WriteLease, answer: Answer) -> None:
    is_refused = answer.value is WriteOutcome.REFUSED
    _write_answered(state, call, evolve(answer, value=WriteOutcome.ACCEPTED) if is_refused else answer)


def _uncertain_is_accepted(state: WorkerState, call: events.WriteLease, answer: Answer) -> None:
    is_uncertain = answer.value is WriteOutcome.UNCERTAIN
    _write_answered(state, call, evolve(answer, value=WriteOutcome.ACCEPTED) if is_uncertain else answer)


def _refused_is_lost(state: WorkerState, call: events.WriteLease, answer: Answer) -> None:
    """What the Java client does: whoever is refused gives the lease up, without a look at the row."""
    key = call.write.lease_key
    if answer.value is WriteOutcome.REFUSED and key in state.held:
        state.land(key)
        settle.lose(state, key, events.Severity.WARNING, "refused, so lost")
    else:
        _write_answered(state, call, answer)


_resolve_take = doubt._resolve_take


def _believes_own_name(state: WorkerState, flight: Any, row: Lease | None) -> None:
    """The take counts as applied if the row looks so, although it may be an earlier write of this worker."""
    if was_applied(row, flight.write):
        doubt.register(state, flight.write.result, state.now)
    else:
        _resolve_take(state, flight, row)


_checkpoint_requested = holdings._HANDLERS[events.CheckpointRequested]


def _answers_at_once(state: WorkerState, event: events.CheckpointRequested) -> None:
    before = state.held.get(event.lease_key)
    _checkpoint_requested(state, event)
    if before is not None and before.identifier == event.consumer_id and state.held[event.lease_key].requests:
        kept = state.held[event.lease_key]
        state.keep(evolve(kept, requests=kept.requests[:-1], sent_requests=0))
        state.emit(events.AnswerCheckpoint(event.request_id, events.CheckpointOutcome.STORED))


# --- held leases ---------------------------------------------------------------------------------------------------


def _whatever_the_row(intention: Intention, consuming: Consuming, step: LeaseStep) -> dict[State, LeaseStep]:
    return {(intention, consuming, row): step for row in RowState}


def _long_validity(sent_at: float, duration_seconds: float) -> float:
    return sent_at + 1.3 * duration_seconds


def _one_epoch_for_all(state: WorkerState, held: HeldLease) -> None:
    if held.acquisition.needs_epoch:
        state.keep(evolve(held, acquisition=evolve(held.acquisition, epoch=1, needs_epoch=False)))


_StartConsumer = settle.StartConsumer


def _forgets_what_was_prepared(info: Any, checkpoint: str, pending: Any, *rest: Any) -> events.StartConsumer:
    return _StartConsumer(info, checkpoint, None, *rest)


def _restores_from_the_beginning(state: WorkerState, held: HeldLease, row: Lease) -> None:
    """Takes a row that was put anew, as it is."""
    state.keep(evolve(held, sent_requests=0))
    settle.send(state, leases.take(row, state.worker_id))


def _ignores_rewinds(state: WorkerState, held: HeldLease, row: Lease) -> None:
    """Goes on from its own checkpoint over that of the operator."""
    doubt._try_again(state, held, evolve(row, checkpoint=held.checkpoint))


def _no_row_no_obstacle(ancestor: str, rows: Mapping[str, Lease], *others: object) -> Gate:
    is_open = ancestor not in rows or rows[ancestor].is_finished
    return Gate(None if is_open else Reason(Cause.PARENT, ancestor))


def _is_unacknowledged(state: WorkerState, held: HeldLease) -> bool:
    """Whether a pause stands in the row; not whether anything still reads."""
    return held.lease.pause is not None and not held.lease.is_paused_by_owner


def _is_marked(state: WorkerState, lease: Lease) -> bool:
    return lease.is_marked


_LeaseView = holdings.LeaseView

# --- sessions ------------------------------------------------------------------------------------------------------


def _without_state() -> dict[AnyKind, Rule]:
    """Writes of worker rows that are blind to what the row says about its worker."""
    blind = ("nonce", "beat")
    return {kind: evolve(RULES[kind], if_same=blind, shown_by=blind) for kind in WorkerWriteKind}


_session_read = session.Session.read


def _never_ousted(self: session.Session, row: Any, asked_at: float, now: float) -> Any:
    """Whatever session stands in its row, it goes on with its own."""
    return _session_read(self, self.row if self.row is not None else row, asked_at, now)


_delete_rows = sync._delete


def _deletes_silently(state: WorkerState, plan: Any) -> None:
    _delete_rows(state, evolve(plan, losses=()))


# --- consumers -----------------------------------------------------------------------------------------------------


def _poisoned(then: str) -> Callable[[Plan], Plan]:
    """Records that no processor can digest, a few for each shard, and what the failure policy does with them."""

    def made(plan: Plan) -> Plan:
        poison = [Action(at=4.0 + 7.0 * number, do=Do.POISON, where=number * 0.37 % 1.0) for number in range(20)]
        actions = tuple(sorted([*plan.actions, *poison], key=lambda action: action.at))
        return evolve(plan, actions=actions, then=then, retries=0, has_strategy=False, is_two_phase=False)

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


CONSUMER_MUTATIONS = (
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
        fits=_has(Do.FAIL),
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
        fits=_has(Do.FAIL),
    ),
    Mutation(
        "the end of a shard is taken for silence",
        frozenset({"recovery"}),
        [],
        phases={(Phase.READING, Outcome.END_REACHED): Phase.WAITING},
        fits=_has(Do.SPLIT, Do.MERGE),
    ),
    Mutation(
        "a batch that failed counts as accepted",
        frozenset({"nothing is lost", "checkpoints follow processing"}),
        [(ConsumerMachine, "_refused", _accepts_what_failed)],
        fits=_has(Do.FAIL, Do.POISON),
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
        fits=_has(Do.FAIL, Do.POISON),
    ),
    Mutation(
        "a new processor goes on where the last one stood",
        frozenset({"nothing is lost", "checkpoints follow processing"}),
        [(ConsumerMachine, "_beginnings", {**machine._BEGINNINGS, Phase.STARTING: _goes_on_where_it_stood})],
        fits=_has(Do.FAIL, Do.REPLACE),
    ),
    Mutation(
        "a failing batch is parked whole",
        frozenset({"only failures are parked"}),
        [(reading, "remedy", _parks_the_whole_batch)],
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
        [(ParkedKeys, "behind_parked", lambda *_: ())],
        made_to_fit=_poisoned("PARK"),
    ),
    Mutation(
        "a loss is passed over in silence",
        frozenset({"nothing is lost", "checkpoints follow processing", "recovery"}),
        [],
        [(consuming.FirstLeftFound, _passes_over_a_loss)],
        made_to_fit=_trimmed("STOP_SHARD"),
    ),
    Mutation(
        "a prepared batch is repeated as the stream gives it",
        frozenset({"nothing is repeated"}),
        [(PendingCut, "apply", lambda self, page: (page, None))],
        made_to_fit=_in_two_phases,
    ),
)


MUTATIONS = (
    *CONSUMER_MUTATIONS,
    Mutation(
        "a heartbeat compares nothing",
        frozenset({"fenced writes fail", "one reader", "checkpoints only advance"}),
        [],
        rules=_comparing(WriteKind.RENEW),
    ),
    Mutation(
        "a take does not compare the counter",
        frozenset({"patience", "one reader"}),
        [],
        rules=_comparing(WriteKind.TAKE, "owner"),
    ),
    Mutation(
        "a checkpoint compares nothing",
        frozenset({"fenced writes fail", "checkpoints only advance"}),
        [],
        rules=_comparing(WriteKind.CHECKPOINT),
    ),
    Mutation(
        "a hand-over compares nothing",
        frozenset({"fenced writes fail", "patience", "one reader"}),
        [],
        rules=_comparing(WriteKind.TRANSFER),
    ),
    Mutation(
        "validity counts from the answer",
        frozenset({"one reader"}),
        [],
        [(events.WriteLease, _sent_when_answered)],
        _has_no_sessions,
    ),
    Mutation(
        "validity is longer than the lease duration",
        frozenset({"one reader"}),
        [(settle, "valid_until", _long_validity), (held, "valid_until", _long_validity)],
        fits=_has_no_sessions,
    ),
    Mutation(
        "an expired lease is kept",
        frozenset({"one reader", "fenced writes fail"}),
        [(settle, "valid_until", lambda *_: float("inf")), (held, "valid_until", lambda *_: float("inf"))],
        fits=_has_no_sessions,
    ),
    Mutation(
        "a refused write counts as accepted",
        frozenset({"answers are true", "one reader", "fenced writes fail"}),
        [],
        [(events.WriteLease, _refused_is_accepted)],
    ),
    Mutation(
        "a write without an answer counts as accepted",
        frozenset({"answers are true", "one reader", "fenced writes fail"}),
        [],
        [(events.WriteLease, _uncertain_is_accepted)],
    ),
    Mutation(
        "a refused write means that the lease is lost",
        frozenset({"answers are true", "recovery", "one processor"}),
        [],
        [(events.WriteLease, _refused_is_lost)],
    ),
    Mutation(
        "a row in the own name passes for the own take",
        frozenset({"one reader", "fenced writes fail"}),
        [(doubt, "_resolve_take", _believes_own_name)],
        fits=lambda plan: not _has(Do.TWIN)(plan),
        made_to_fit=_with_late_requests,
    ),
    Mutation(
        "a checkpoint is answered before it is stored",
        frozenset({"answers are true"}),
        [],
        [(events.CheckpointRequested, _answers_at_once)],
    ),
    Mutation(
        "a lease is handed over while its consumer runs",
        frozenset({"one reader", "one processor", "epochs grow"}),
        [],
        steps=_whatever_the_row(Intention.GIVE_AWAY, Consuming.LEAVING, LeaseStep.HAND_OVER),
    ),
    Mutation(
        "a consumer starts beside the old one",
        frozenset({"one processor"}),
        [],
        steps=_whatever_the_row(Intention.READ, Consuming.LEAVING, LeaseStep.START),
    ),
    Mutation(
        "a child starts without its parents",
        frozenset({"parents first"}),
        [(settle, "parents_finished", lambda *_: Gate())],
        fits=_has(Do.SPLIT, Do.MERGE),
    ),
    Mutation(
        "a parent without a row counts as finished",
        frozenset({"parents first"}),
        [(shards, "_ancestor_gate", _no_row_no_obstacle)],
        fits=_has(Do.SPLIT, Do.MERGE),
        made_to_fit=_with_rows_that_vanish,
    ),
    Mutation(
        "all acquisitions have the same epoch",
        frozenset({"epochs grow"}),
        [(settle, "_draw_epoch", _one_epoch_for_all)],
    ),
    Mutation(
        "what was prepared is forgotten",
        frozenset({"prepared is remembered"}),
        [(settle, "StartConsumer", _forgets_what_was_prepared)],
        fits=lambda plan: plan.is_two_phase,
    ),
    Mutation(
        "a row that was put anew is not given back what it lost",
        frozenset({"checkpoints only advance"}),
        [(doubt, "_restore", _restores_from_the_beginning)],
        fits=_has(Do.RESET_ROW),
    ),
    Mutation(
        "an operator's rewind is ignored",
        frozenset({"starts where stored", "checkpoints only advance", "checkpoints follow processing"}),
        [(doubt, "_rewound", _ignores_rewinds)],
        fits=_has(Do.REWIND),
    ),
    Mutation(
        "an operator's pause is acknowledged before it is obeyed",
        frozenset({"paused shards rest"}),
        [(settle, "_must_acknowledge", _is_unacknowledged)],
        fits=_has(Do.PAUSE, Do.REWIND, Do.RELEASE),
    ),
    Mutation(
        "a pause of the own program is ignored",
        frozenset({"programs pause"}),
        [(requests, "_settle_for", lambda *_: None), (settle, "pause_reason", lambda *_: None)],
        fits=_has(Do.HOLD, Do.HOLD_ALL),
    ),
    Mutation(
        "rows of departed shards are deleted at once",
        frozenset({"losses are reported", "recovery"}),
        [(shards, "ABSENCE_SECONDS", 0.0)],
        fits=_has(Do.STALE),
    ),
    Mutation(
        "unread records go without a word",
        frozenset({"losses are reported"}),
        [(sync, "_delete", _deletes_silently)],
        fits=_has(Do.EXPIRE),
    ),
    Mutation(
        "a lease expires after half its duration",
        frozenset({"patience"}),
        [(holdings, "LeaseView", lambda name, seconds, *others: _LeaseView(name, seconds / 2, *others))],
    ),
    Mutation(
        "every mark is void",
        frozenset({"recovery"}),
        [(settle, "is_mark_void", _is_marked)],
        fits=_has_no_sessions,
    ),
    Mutation(
        "a killed session beats on",
        frozenset({"killed stays killed", "one reader"}),
        [],
        rules=_without_state(),
        fits=_has_sessions,
    ),
    Mutation(
        "verdicts come after half the lease duration",
        frozenset({"verdicts are late"}),
        [(peers.Peers, "_is_still", lambda self, watch: watch.still_seconds > self.duration_seconds / 2)],
        fits=_has_sessions,
    ),
    Mutation(
        "leases outlive the session",
        frozenset({"one reader", "sessions first"}),
        [(holdings, "check_session", lambda state: None)],
        fits=_has_sessions,
    ),
    Mutation(
        "an older process does not notice that its name was taken over",
        frozenset({"one reader", "sessions first", "recovery", "killed stays killed", "fenced writes fail"}),
        [(session.Session, "read", _never_ousted)],
        fits=_has(Do.TWIN),
    ),
)


def main() -> int:
    """Try all of them, or those whose names contain the first argument; print at which seed each is caught."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutation for mutation in MUTATIONS if wanted in mutation.name]
    missed = 0
    for mutation in chosen:
        began = time.process_time()
        found = mutation.caught()
        where = f"seed {found[0]:3}: {found[1]}" if found is not None else f"NOT within {MOST_SEEDS} seeds"
        missed += found is None
        print(f"{mutation.name:60} {where}  ({time.process_time() - began:.1f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
