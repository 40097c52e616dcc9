"""Breaks of single rules in the production core, each of which some law must catch.

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
    events,
    handover,
    holdings,
    leases,
    notices,
    roster,
    session,
    shards,
    sync,
    tenancies,
    tenancy,
    writes,
)
from streamclient.core.rows import RULES, EpochWriteKind, Rule, WorkerWriteKind, WriteKind, WriteOutcome, was_applied
from streamclient.core.shards import Gate
from streamclient.core.situation import Situation
from streamclient.core.tenancy import ConsumerPhase, HeldLease
from streamclient.model import Lease
from streamclient.reasons import Cause, Reason
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import Action, Do, Plan
from streamclient.testing.simulation.runner import run_plan

MOST_SEEDS = 500

AnyKind = WriteKind | WorkerWriteKind | EpochWriteKind

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
    """Handlers of events that are replaced in ``Holdings``."""
    fits: Callable[[Plan], bool] = lambda plan: True
    """Plans in which the rule matters; others are passed over."""
    made_to_fit: Callable[[Plan], Plan] = lambda plan: plan
    """Changes a plan so that the rule matters more often."""
    rules: Mapping[AnyKind, Rule] = field(factory=dict)
    """Lines that are replaced in the table of rules."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core with this rule broken."""
        undo = [patch.object(*each) for each in self.patches]
        handlers = patch.dict(holdings._HANDLERS, dict(self.handlers))
        rules = patch.dict(RULES, self.rules)
        for each in undo:
            each.start()
        try:
            with handlers, rules:
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


def _puts_rows_anew(plan: Plan) -> bool:
    return plan.has_java or _has(Do.RESET_ROW, Do.DELETE_ROW)(plan)


def _has_sessions(plan: Plan) -> bool:
    return plan.has_sessions and not plan.has_java


def _has_no_sessions(plan: Plan) -> bool:
    return not plan.has_sessions


# --- the writes ----------------------------------------------------------------------------------------------------


def _comparing(kind: WriteKind, *names: str) -> dict[AnyKind, Rule]:
    """The rule of a write that compares these fields alone."""
    return {kind: evolve(RULES[kind], if_same=names)}


# --- answers -------------------------------------------------------------------------------------------------------

_write_answered = holdings._HANDLERS[events.WriteAnswered]


def _sent_when_answered(situation: Situation, event: events.WriteAnswered) -> None:
    _write_answered(situation, evolve(event, sent_at=situation.now))


def _refused_is_accepted(situation: Situation, event: events.WriteAnswered) -> None:
    is_refused = event.outcome is WriteOutcome.REFUSED
    _write_answered(situation, evolve(event, outcome=WriteOutcome.ACCEPTED) if is_refused else event)


def _uncertain_is_accepted(situation: Situation, event: events.WriteAnswered) -> None:
    is_uncertain = event.outcome is WriteOutcome.UNCERTAIN
    _write_answered(situation, evolve(event, outcome=WriteOutcome.ACCEPTED) if is_uncertain else event)


def _refused_is_lost(situation: Situation, event: events.WriteAnswered) -> None:
    """What the Java client does: whoever is refused gives the lease up, without a look at the row."""
    key = event.write.lease_key
    if event.outcome is WriteOutcome.REFUSED and key in situation.held:
        situation.land(key)
        tenancies.lose(situation, key, events.Severity.WARNING, "refused, so lost")
    else:
        _write_answered(situation, event)


_resolve_take = writes._resolve_take


def _believes_own_name(situation: Situation, flight: Any, row: Lease | None) -> None:
    """The take counts as applied if the row looks so, although it may be an earlier write of this worker."""
    if was_applied(row, flight.write):
        writes.register(situation, flight.write.result, situation.now)
    else:
        _resolve_take(situation, flight, row)


_checkpoint_requested = holdings._HANDLERS[events.CheckpointRequested]


def _answers_at_once(situation: Situation, event: events.CheckpointRequested) -> None:
    held = situation.held.get(event.lease_key)
    _checkpoint_requested(situation, event)
    if held is not None and held.identifier == event.consumer_id and situation.held[event.lease_key].requests:
        kept = situation.held[event.lease_key]
        situation.keep(evolve(kept, requests=kept.requests[:-1], sent_requests=0))
        situation.emit(events.AnswerCheckpoint(event.request_id, events.CheckpointOutcome.STORED))


# --- tenancies -----------------------------------------------------------------------------------------------------

_stop_reading = tenancies._stop_reading


def _stops_in_name_only(situation: Situation, held: HeldLease, *others: Any) -> HeldLease:
    """As soon as the consumer was asked to stop, it counts as stopped."""
    held = _stop_reading(situation, held, *others)
    situation.running.pop(held.lease.lease_key, None)
    return evolve(held, consumer=ConsumerPhase.NONE)


_own_obstacle = tenancies._own_obstacle


def _beside_the_old_consumer(situation: Situation, held: HeldLease) -> Cause | None:
    former = situation.running.pop(held.lease.lease_key, None)
    try:
        return _own_obstacle(situation, held)
    finally:
        if former is not None:
            situation.running.setdefault(held.lease.lease_key, former)


def _long_validity(sent_at: float, duration_seconds: float) -> float:
    return sent_at + 1.3 * duration_seconds


def _one_epoch_for_all(situation: Situation, held: HeldLease) -> None:
    if held.needs_epoch:
        situation.keep(evolve(held, needs_epoch=False, epoch=1))


_StartConsumer = tenancies.StartConsumer


def _forgets_what_was_prepared(info: Any, checkpoint: str, pending: Any, *rest: Any) -> events.StartConsumer:
    return _StartConsumer(info, checkpoint, None, *rest)


def _restores_from_the_beginning(situation: Situation, held: HeldLease, row: Lease) -> None:
    """Takes a row that was put anew, as it is."""
    situation.keep(evolve(held, sent_requests=0))
    tenancies.send(situation, leases.take(row, situation.worker_id))


def _ignores_rewinds(situation: Situation, held: HeldLease, row: Lease) -> None:
    """Goes on from its own checkpoint over that of the operator."""
    writes._try_again(situation, held, evolve(row, checkpoint=held.checkpoint))


def _no_row_no_obstacle(ancestor: str, rows: Mapping[str, Lease], *others: object) -> Gate:
    is_open = ancestor not in rows or rows[ancestor].is_finished
    return Gate(None if is_open else Reason(Cause.PARENT, ancestor))


def _is_unacknowledged(situation: Situation, held: HeldLease) -> bool:
    """Whether a pause stands in the row; not whether anything still reads."""
    return held.lease.pause is not None and not held.lease.is_paused_by_owner


def _is_marked(situation: Situation, lease: Lease) -> bool:
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


def _deletes_silently(situation: Situation, plan: Any) -> None:
    _delete_rows(situation, evolve(plan, losses=()))


MUTATIONS = (
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
        [(events.WriteAnswered, _sent_when_answered)],
        _has_no_sessions,
    ),
    Mutation(
        "validity is longer than the lease duration",
        frozenset({"one reader"}),
        [(tenancies, "valid_until", _long_validity), (tenancy, "valid_until", _long_validity)],
        fits=_has_no_sessions,
    ),
    Mutation(
        "an expired lease is kept",
        frozenset({"one reader", "fenced writes fail"}),
        [(tenancies, "valid_until", lambda *_: float("inf")), (tenancy, "valid_until", lambda *_: float("inf"))],
        fits=_has_no_sessions,
    ),
    Mutation(
        "a refused write counts as accepted",
        frozenset({"answers are true", "one reader", "fenced writes fail"}),
        [],
        [(events.WriteAnswered, _refused_is_accepted)],
    ),
    Mutation(
        "a write without an answer counts as accepted",
        frozenset({"answers are true", "one reader", "fenced writes fail"}),
        [],
        [(events.WriteAnswered, _uncertain_is_accepted)],
    ),
    Mutation(
        "a refused write means that the lease is lost",
        frozenset({"answers are true", "recovery", "one processor"}),
        [],
        [(events.WriteAnswered, _refused_is_lost)],
    ),
    Mutation(
        "a row in the own name passes for the own take",
        frozenset({"one reader", "fenced writes fail"}),
        [(writes, "_resolve_take", _believes_own_name)],
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
        [(tenancies, "_stop_reading", _stops_in_name_only)],
    ),
    Mutation(
        "a consumer starts beside the old one",
        frozenset({"one processor"}),
        [(tenancies, "_own_obstacle", _beside_the_old_consumer)],
        fits=_puts_rows_anew,
    ),
    Mutation(
        "a child starts without its parents",
        frozenset({"parents first"}),
        [(tenancies, "parents_finished", lambda *_: Gate())],
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
        [(tenancies, "_draw_epoch", _one_epoch_for_all)],
    ),
    Mutation(
        "what was prepared is forgotten",
        frozenset({"prepared is remembered"}),
        [(tenancies, "StartConsumer", _forgets_what_was_prepared)],
        fits=lambda plan: plan.is_two_phase,
    ),
    Mutation(
        "a row that was put anew is not given back what it lost",
        frozenset({"checkpoints only advance"}),
        [(writes, "_restore", _restores_from_the_beginning)],
        fits=_has(Do.RESET_ROW),
    ),
    Mutation(
        "an operator's rewind is ignored",
        frozenset({"starts where stored", "checkpoints only advance", "checkpoints follow processing"}),
        [(writes, "_rewound", _ignores_rewinds)],
        fits=_has(Do.REWIND),
    ),
    Mutation(
        "an operator's pause is acknowledged before it is obeyed",
        frozenset({"paused shards rest"}),
        [(tenancies, "must_acknowledge", _is_unacknowledged)],
        fits=_has(Do.PAUSE, Do.REWIND, Do.RELEASE),
    ),
    Mutation(
        "a pause of the own program is ignored",
        frozenset({"programs pause"}),
        [(notices, "_settle_for", lambda *_: None), (tenancies, "pause_reason", lambda *_: None)],
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
        [(handover, "is_mark_void", _is_marked), (tenancies, "is_mark_void", _is_marked)],
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
        [(roster.Roster, "_is_still", lambda self, watch: watch.still_seconds > self.duration_seconds / 2)],
        fits=_has_sessions,
    ),
    Mutation(
        "leases outlive the session",
        frozenset({"one reader", "sessions first"}),
        [(holdings, "check_session", lambda situation: None)],
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
