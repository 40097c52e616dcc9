"""What a scan asks this worker to do with leases, and doing it.

In a fleet whose workers all have sessions, everybody does its part of one assignment (``fleet``), all of it at once. In
any other, where Java workers take and steal by numbers, it is as with them (``balance``).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from streamclient.core import leases
from streamclient.core.balance import TakePlan, plan_takes
from streamclient.core.events import Severity
from streamclient.core.fleet import Fleet, FleetPlan, Move, plan_part
from streamclient.core.handover import new_owner
from streamclient.core.rows import WriteKind
from streamclient.core.situation import Situation
from streamclient.core.tenancies import give, send, settle, settle_all
from streamclient.model import BalanceBy, Lease

STUCK_MARK_DURATIONS = 15
"""After how many lease durations an unanswered mark is reported: five minutes by default, far longer than finishing a
batch takes. A restarted Java owner may keep a marked lease for ever without reading it."""

MOVES = (WriteKind.TAKE, WriteKind.STEAL, WriteKind.TRANSFER)
"""Writes after which a lease is, or is about to be, another worker's."""

GRACE_SECONDS = 0.1
"""Behind the moment at which a lease expires: it must have stood still for longer than its duration."""


def plan_and_follow(situation: Situation) -> None:
    """Do what the scan that was just taken in asks for."""
    choose_heirs(situation)
    if not situation.presence.may_hold(situation.now):
        return
    if situation.presence.session.needs_read and situation.presence.keeps_rows:
        # A beat was not accepted, perhaps because somebody else has the name: only another look tells.
        situation.wants_scan = True
        return
    if situation.presence.is_uniform:
        _follow_fleet(situation, plan_part(_fleet(situation)))
    else:
        _report_ignored_loads(situation)
        _follow(situation, _plan(situation))
    if situation.has_turn:
        situation.has_turn = False
        situation.presence.turn_taken(situation.now, len(situation.presence.roster.others) + 1)


def _pending(situation: Situation) -> Mapping[str, str]:
    """Leases with a move of this worker under way, and who will have them."""
    results = {key: flight.write.result for key, flight in situation.flights.items() if flight.write.kind in MOVES}
    return {key: row.stealer or row.owner for key, row in results.items() if row is not None}


def _shunned(situation: Situation) -> list[str]:
    """Leases whose consumers stalled here: for a lease duration they are left to others, if there are any."""
    situation.shunned = {key: until for key, until in situation.shunned.items() if until > situation.now}
    has_others = situation.shunned and len(situation.view.live_workers(situation.now)) > 1
    return list(situation.shunned) if has_others else []


# --- among workers with sessions -------------------------------------------------------------------------------------


def _fleet(situation: Situation) -> Fleet:
    presence, config = situation.presence, situation.config
    balance_by = situation.balance_by
    is_evening_out = presence.is_leader and balance_by is not BalanceBy.COUNT and config.auto_steal_lease
    return Fleet(
        worker_id=situation.worker_id,
        view=situation.view,
        now=situation.now,
        staying=presence.staying,
        held=situation.held,
        pending=_pending(situation),
        busy={*situation.flights, *situation.running} - situation.held.keys(),
        declined={*situation.released, *_shunned(situation)},
        balance_by=balance_by,
        rates=situation.measured.rates() if is_evening_out else None,
        may_mark=config.auto_steal_lease and not situation.is_stopping,
    )


def prepare_departure(situation: Situation) -> None:
    """Scan before anything is handed over: what was seen last may be minutes old, and shares would become uneven."""
    if situation.presence.is_uniform and situation.presence.may_hold(situation.now):
        situation.wants_scan = situation.awaits_heirs = True


def choose_heirs(situation: Situation) -> None:
    """Decide to whom each lease goes now that this worker stops, as well as is known."""
    was_awaited, situation.awaits_heirs = situation.awaits_heirs, False
    if situation.is_stopping and situation.presence.is_uniform:
        situation.heirs = _fleet(situation).assignment()
    if was_awaited:
        settle_all(situation)


def _follow_fleet(situation: Situation, plan: FleetPlan) -> None:
    for move in plan.passes:
        _pass(situation, move)
    for row in plan.takes:
        send(situation, leases.take(row, situation.worker_id))
    for move in plan.marks:
        send(situation, leases.steal(move.row, move.receiver))
    for move in plan.gifts:
        held = situation.held[move.row.lease_key]
        situation.keep(evolve(held, promised_to=move.receiver))
        settle(situation, move.row.lease_key)
    if plan.look_again_at is not None:
        situation.scan_soon(plan.look_again_at - situation.now + GRACE_SECONDS)
    if situation.has_turn:
        situation.presence.wake(plan.others)


def _pass(situation: Situation, move: Move) -> None:
    """Hand a lease on without reading it; the same one not again for a lease duration.

    If every worker's processor is done with a shard, it would go round for ever otherwise.
    """
    key, now, duration = move.row.lease_key, situation.now, situation.duration_seconds
    situation.passed_on = {other: at for other, at in situation.passed_on.items() if now - at <= duration}
    if key not in situation.passed_on or situation.is_stopping:
        situation.passed_on[key] = now
        send(situation, leases.transfer(move.row, move.receiver))


# --- beside workers without ------------------------------------------------------------------------------------------


def _report_ignored_loads(situation: Situation) -> None:
    balance_by = situation.config.balance_by
    if situation.presence.keeps_rows and balance_by is not BalanceBy.COUNT:
        text = (
            f"balance_by={balance_by.value!r} has no effect while workers without sessions, such as Java workers, have "
            "leases: they balance numbers, and so does this worker"
        )
        situation.report_once(Severity.WARNING, "", "balance_by", text)


def _plan(situation: Situation) -> TakePlan:
    """What the last scan asks for, leaving alone what is under way, given up, or still read by an old consumer."""
    return plan_takes(
        situation.view,
        situation.worker_id,
        situation.held,
        situation.now,
        situation.config,
        rng=situation.rng,
        pending=_pending(situation),
        excluded={*situation.flights, *situation.running, *situation.released, *_shunned(situation)},
    )


def _follow(situation: Situation, plan: TakePlan) -> None:
    for row in plan.contested if not situation.presence.keeps_rows else ():
        text = f"another process uses the worker identifier {situation.worker_id!r} and moves {row}; left to it"
        situation.report_once(Severity.ERROR, row.lease_key, "name conflict", text)
    # Who has the name is known from the session, where there is one; then such rows only had a late write.
    takes = (*plan.takes, *plan.contested) if situation.presence.keeps_rows else plan.takes
    if situation.is_stopping:
        _pass_on(situation, [row for row in (*takes, *plan.transfers) if row.owner == situation.worker_id])
        return
    for row in plan.transfers:
        send(situation, leases.transfer(row, row.stealer))
    for gift in plan.gifts if situation.may_steal else ():
        give(situation, gift.lease.lease_key, gift.receiver)
    for row in takes:
        send(situation, leases.take(row, situation.worker_id))
    for row in plan.steals if situation.may_steal else ():
        send(situation, leases.steal(row, situation.worker_id))
    situation.may_steal = False


def _pass_on(situation: Situation, rows: list[Lease]) -> None:
    """While stopping, hand on what others hand over, without reading it."""
    for row in rows:
        receiver = new_owner(situation, row)
        if receiver is not None:
            send(situation, leases.transfer(row, receiver))


# --- in any fleet ----------------------------------------------------------------------------------------------------


def hand_on_stuck(situation: Situation) -> None:
    """Hand on leases that ran out while their consumers still run here: this worker may not take them back.

    Everybody else may, but nobody who has enough leases does. The row stood still for a whole lease duration, so a
    hand-over is as safe as any take.
    """
    view = situation.view
    for key in sorted(situation.running.keys() - situation.held.keys() - situation.flights.keys()):
        sighting = view.sightings.get(key)
        if sighting is None or sighting.row.owner != situation.worker_id:
            continue
        if key not in view.census.expired:
            situation.scan_soon(sighting.moved_at + view.duration_seconds - situation.now + GRACE_SECONDS)
        elif situation.presence.may_hold(situation.now):
            receiver = new_owner(situation, sighting.row)
            if receiver is not None:
                send(situation, leases.transfer(sighting.row, receiver))


def report_stuck_marks(situation: Situation) -> None:
    """Name the leases that this worker asked for long ago and did not get."""
    patience = STUCK_MARK_DURATIONS * situation.duration_seconds
    for sighting in situation.view.census.wanted_by(situation.worker_id):
        row, key = sighting.row, sighting.row.lease_key
        if row.is_marked and situation.now - sighting.marked_at > patience:
            text = (
                f"asked for it {situation.now - sighting.marked_at:.0f} s ago, but worker {row.owner} neither hands it "
                f"over nor dies: {row}. If that worker was restarted under its old name, stop it for longer than the "
                "lease duration"
            )
            situation.report_once(Severity.WARNING, key, f"stuck mark at {row.owner}", text)
