"""The planning of lease moves after a scan, and their execution.

In a fleet whose workers all have sessions, each worker does its part of one assignment (``own_part``), in one pass. In
any other fleet, Java workers take and steal by numbers, and this worker does the same (``beside_java``).
"""

from __future__ import annotations

from collections.abc import Mapping

from streamclient.core import leases
from streamclient.core.events import Severity
from streamclient.core.plan.beside_java import plan_takes
from streamclient.core.plan.moves import Move, Moves
from streamclient.core.plan.own_part import FleetView, plan_part
from streamclient.core.settle import give, new_owner, send, settle, settle_all
from streamclient.core.values import evolve
from streamclient.core.worker_state import WorkerState
from streamclient.core.write_rules import WriteKind
from streamclient.model import BalanceBy, Lease

STUCK_MARK_DURATIONS = 15
"""The number of lease durations after which an unanswered request for a lease (a mark) is reported. By default that is
five minutes, far longer than a batch takes to finish. A restarted Java owner may keep a marked lease for ever without
reading it."""

MOVES = (WriteKind.TAKE, WriteKind.STEAL, WriteKind.TRANSFER)
"""The writes after which a lease belongs to another worker, or soon will."""

GRACE_SECONDS = 0.1
"""The seconds from the expiry of a lease to the scan that shall find the lease expired. The scan must come a little
later, because the lease must have stood still for longer than its duration."""


HEIRS_SHARE = 0.2
"""The share of the lease duration, or of the time for a stop if that is shorter, for which the hand-overs of a stopping
worker wait for a scan. A scan takes far less time, unless the status table does not answer. Then the rest of the time
must suffice for the hand-overs."""


def plan_and_follow(state: WorkerState) -> None:
    """Carry out the moves that follow from the scan just processed."""
    choose_heirs(state)
    if not state.signals.may_hold(state.now):
        return
    if state.signals.session.needs_read and state.signals.keeps_rows:
        # A heartbeat was refused, perhaps because another process has the name. Only a later scan can show whether that
        # is so.
        state.wants_scan = True
        return
    if state.signals.is_uniform:
        _carry_out(state, plan_part(_fleet(state)))
    else:
        _report_ignored_loads(state)
        _follow_numbers(state, _plan(state))
    if state.has_turn:
        state.has_turn = False
        state.signals.turn_taken(state.now, len(state.signals.peers.others) + 1)


def _pending(state: WorkerState) -> Mapping[str, str]:
    """Return the leases that this worker is moving, and their future workers."""
    results = {key: flight.write.result for key, flight in state.flights.items() if flight.write.kind in MOVES}
    return {key: row.stealer or row.owner for key, row in results.items() if row is not None}


def _shunned(state: WorkerState) -> list[str]:
    """Return the leases whose consumers stalled on this worker.

    For a lease duration, these leases are left to other workers. If the fleet has no other worker, the result is empty.
    """
    state.shunned = {key: until for key, until in state.shunned.items() if until > state.now}
    has_others = state.shunned and len(state.view.live_workers(state.now)) > 1
    return list(state.shunned) if has_others else []


# --- among workers with sessions -------------------------------------------------------------------------------------


def _fleet(state: WorkerState) -> FleetView:
    signals, config = state.signals, state.config
    balance_by = state.balance_by
    is_evening_out = signals.is_leader and balance_by is not BalanceBy.COUNT and config.auto_steal_lease
    return FleetView(
        worker_id=state.worker_id,
        view=state.view,
        now=state.now,
        staying=signals.staying,
        held=state.held,
        pending=_pending(state),
        busy={*state.flights, *state.running} - state.held.keys(),
        declined={*state.released, *_shunned(state)},
        balance_by=balance_by,
        rates=state.measured.rates() if is_evening_out else None,
        may_mark=config.auto_steal_lease and not state.is_stopping,
    )


def prepare_departure(state: WorkerState) -> None:
    """Request a scan before this worker hands its leases over at its stop.

    The last scan may be minutes old, so hand-overs without a new scan would make the loads uneven. If the scan is not
    answered soon, the leases are handed over all the same; see ``heirs_due``.
    """
    if state.signals.is_uniform and state.signals.may_hold(state.now):
        shutdown_seconds = state.config.shutdown_timeout_millis / 1000
        state.heirs_due_at = state.now + HEIRS_SHARE * min(state.duration_seconds, shutdown_seconds)
        state.wants_scan = True


def heirs_due(state: WorkerState) -> None:
    """Decide the receivers of this worker's leases from the rows last seen, if the scan at its stop takes too long.

    Each hand-over is conditional, so rows that are out of date cannot harm a lease. A scan that comes later decides the
    receivers of the remaining leases anew.
    """
    if state.heirs_due_at is not None and state.now >= state.heirs_due_at:
        choose_heirs(state)


def choose_heirs(state: WorkerState) -> None:
    """Decide, from the rows last seen, which worker receives each lease when this worker stops.

    If any worker of the fleet has no session, decide nothing.
    """
    was_awaited, state.heirs_due_at = state.awaits_heirs, None
    if state.is_stopping and state.signals.is_uniform:
        state.heirs = _fleet(state).assignment()
    if was_awaited:
        settle_all(state)


# --- beside workers without sessions ---------------------------------------------------------------------------------


def _report_ignored_loads(state: WorkerState) -> None:
    balance_by = state.config.balance_by
    if state.signals.keeps_rows and balance_by is not BalanceBy.COUNT:
        text = (
            f"balance_by={balance_by.value!r} has no effect while workers without sessions, such as Java workers, have "
            "leases: they balance numbers, and so does this worker"
        )
        state.report_once(Severity.WARNING, "", "balance_by", text)


def _plan(state: WorkerState) -> Moves:
    """Plan moves that even out numbers. Leave out leases that are being moved, were given up, or have a consumer."""
    return plan_takes(
        state.view,
        state.worker_id,
        state.held,
        state.now,
        state.config,
        rng=state.rng,
        pending=_pending(state),
        excluded={*state.flights, *state.running, *state.released, *_shunned(state)},
    )


def _follow_numbers(state: WorkerState, plan: Moves) -> None:
    contested = plan.contested
    if not state.signals.keeps_rows:
        for row in contested:
            text = (
                f"another process uses the worker identifier {state.worker_id!r} and moves {row}; the lease is left to "
                "that process"
            )
            state.report_once(Severity.ERROR, row.lease_key, "name conflict", text)
        contested = ()
    # If the store has sessions, this worker's session would show another process with its name. So a late write of this
    # worker has moved these rows.
    plan = evolve(plan, takes=(*plan.takes, *contested))
    unheld = tuple(move for move in plan.transfers if move.row.lease_key not in state.held)
    if state.is_stopping:
        _pass_on(state, [*plan.takes, *(move.row for move in unheld)])
        return
    if not state.may_steal:
        plan = evolve(plan, marks=(), transfers=unheld)
    state.may_steal = False
    _carry_out(state, plan)


def _pass_on(state: WorkerState, rows: list[Lease]) -> None:
    """Hand the leases that this worker receives during its stop on to other workers, without reading them."""
    for row in rows:
        receiver = new_owner(state, row) if row.owner == state.worker_id else None
        if receiver is not None:
            send(state, leases.transfer(row, receiver))


# --- in any fleet ----------------------------------------------------------------------------------------------------


def _carry_out(state: WorkerState, plan: Moves) -> None:
    """Carry out the plan. Begin with hand-overs of leases that are not being read.

    They make room for the leases that this worker takes. A lease that is being read is handed over after its consumer
    has ended.
    """
    held = {key: state.held[key] for move in plan.transfers if (key := move.row.lease_key) in state.held}
    to_be_read = [key for key, lease in held.items() if not lease.lease.is_finished]
    for move in plan.transfers:
        if move.row.lease_key not in held:
            _pass(state, move)
        elif move.row.lease_key not in to_be_read:
            give(state, move.row.lease_key, move.receiver)
    for row in plan.takes:
        send(state, leases.take(row, state.worker_id))
    for move in plan.marks:
        send(state, leases.steal(move.row, move.receiver))
    for move in plan.transfers:
        if move.row.lease_key in to_be_read:
            # The lease is handed over as soon as its consumer has ended.
            state.keep(evolve(held[move.row.lease_key], promised_to=move.receiver))
            settle(state, move.row.lease_key)
    if plan.look_again_at is not None:
        state.scan_soon(plan.look_again_at - state.now + GRACE_SECONDS)
    if state.has_turn:
        state.signals.wake(plan.wakes)


def _pass(state: WorkerState, move: Move) -> None:
    """Hand a lease on without reading it. Among workers with sessions, do so at most once per lease duration.

    Without this limit, workers would pass a lease round for ever once the processors of all of them are done with it. A
    stopping worker has no limit.
    """
    key, now, duration = move.row.lease_key, state.now, state.duration_seconds
    if state.signals.is_uniform:
        state.passed_on = {other: at for other, at in state.passed_on.items() if now - at <= duration}
        if key in state.passed_on and not state.is_stopping:
            return
        state.passed_on[key] = now
    send(state, leases.transfer(move.row, move.receiver))


def hand_on_stuck(state: WorkerState) -> None:
    """Hand on leases that ran out while their consumers still run: this worker may not take such leases back.

    Every other worker may take these leases, but a worker with enough leases does not. Each row stood still for a whole
    lease duration, so a hand-over is as safe as any take.
    """
    view = state.view
    for key in sorted(state.running.keys() - state.held.keys() - state.flights.keys()):
        sighting = view.sightings.get(key)
        if sighting is None or sighting.row.owner != state.worker_id:
            continue
        if key not in view.counts.expired:
            state.scan_soon(sighting.moved_at + view.duration_seconds - state.now + GRACE_SECONDS)
        elif state.signals.may_hold(state.now):
            receiver = new_owner(state, sighting.row)
            if receiver is not None:
                send(state, leases.transfer(sighting.row, receiver))


def report_stuck_marks(state: WorkerState) -> None:
    """Report the leases that this worker requested long ago and did not get."""
    patience = STUCK_MARK_DURATIONS * state.duration_seconds
    for sighting in state.view.counts.wanted_by(state.worker_id):
        row, key = sighting.row, sighting.row.lease_key
        if row.is_marked and state.now - sighting.marked_at > patience:
            text = (
                f"asked for it {state.now - sighting.marked_at:.0f} s ago, but worker {row.owner} neither hands it "
                f"over nor dies: {row}. If that worker was restarted under its old name, stop it for longer than the "
                "lease duration"
            )
            state.report_once(Severity.WARNING, key, f"stuck mark at {row.owner}", text)
