"""The next step of a held lease: ``settle`` looks at one lease and does what ``held.NEXT`` says for its state.

``settle`` only looks at the present facts. Every event handler changes facts and then calls ``settle``. The order in
which the facts became known does not matter. In addition to the step that ``NEXT`` gives, one write may be due. If no
write is unanswered and the row exists, the first of these writes is sent:

1. a checkpoint for which user code waits;
2. the transfer, if the step is to hand over; while this worker still decides who receives its leases, a renewal that
   is due. If the step is to let the lease run out, nothing is written at all;
3. a take, if the worker that marked the lease died meanwhile or announced that it stops. A hand-over to a dead worker
   would leave the shard unread for a whole lease duration. If the stealer is alive after all, it marks the lease again;
4. the acknowledgement of an operator's pause once the shard is not read, or its withdrawal when the pause is over;
5. the removal of operators' orders that are obeyed or over;
6. a renewal, if one is due or the row may belong to another worker.

**Pauses.** An operator's pause is part of the lease row, so it outlives the owner. Every worker that holds the lease
obeys the pause until its end, by the wall clock of the worker's machine. A pause does not change the counter, so the
owner notices the pause only by its next scan, or when it reads the row back. Once the shard is no longer read, the
owner acknowledges the pause in the row, and an operator may change the checkpoint. Before the shard is read again, the
owner withdraws the acknowledgement by a write that compares the counter. If an operator changed the row meanwhile, that
write is refused. Pauses of the worker's own program are kept only in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.base.reasons import Cause, Reason
from streamclient.base.times import utc_text
from streamclient.core import leases
from streamclient.core.events import (
    AnswerCheckpoint,
    CheckpointOutcome,
    DrawEpoch,
    Severity,
    StartConsumer,
    StopConsumer,
    WriteLease,
)
from streamclient.core.held import (
    Consuming,
    HeldLease,
    Intention,
    LeaseStep,
    RowState,
    valid_until,
)
from streamclient.core.leases import LeaseWrite
from streamclient.core.order_ends import heed_orders, orders_left
from streamclient.core.shards import parents_finished
from streamclient.core.values import evolve
from streamclient.core.worker_state import WorkerState
from streamclient.core.write_rules import WriteKind
from streamclient.model import Lease, Pause, ShardInfo, ShutdownReason

# --- the life of a held lease --------------------------------------------------------------------------------------


def register(state: WorkerState, lease: Lease, sent_at: float) -> None:
    """Hold a lease from now on, because a take that was sent at ``sent_at`` was applied."""
    key, until = lease.lease_key, valid_until(sent_at, state.duration_seconds)
    if until <= state.now or not state.signals.covers(sent_at, state.now):
        state.report(Severity.WARNING, key, f"take answered too late, not held: {lease}")
        if until <= state.now:
            state.lapses.note(state.now)
        state.scan_soon(state.pause_seconds(2))
        return
    held = HeldLease(
        lease,
        state.new_identifier(),
        until,
        lease.counter,
        sent_at,
        state.next_acquisition(),
        consuming=_left_over(state, key),
        # The row may acknowledge a pause from an earlier time in which this worker held the lease.
        may_acknowledge=lease.is_paused_by_owner,
    )
    state.keep(held)
    state.report(Severity.INFO, key, f"took {lease}")
    settle(state, key)


def lose(
    state: WorkerState,
    lease_key: str,
    severity: Severity,
    text: str,
    *,
    in_doubt: CheckpointOutcome = CheckpointOutcome.LEASE_LOST,
) -> None:
    """Stop holding a lease: end its consumer, answer its checkpoint requests, and report ``text``.

    ``in_doubt`` is the answer to checkpoint requests that were sent. Requests that were not sent are certainly not
    stored, so their answer is ``LEASE_LOST``.
    """
    held = state.give_up(lease_key)
    _end_consumer(state, held, in_doubt)
    if held.stall:
        state.shunned[lease_key] = state.now + state.duration_seconds
    state.report(severity, lease_key, text)


def start_anew(state: WorkerState, held: HeldLease, *, in_doubt: CheckpointOutcome) -> None:
    """End the consumer with ``ZOMBIE``, as if the lease were lost, but keep the lease.

    Another consumer then starts from the checkpoint in the lease's row. ``in_doubt`` is the answer to the checkpoint
    requests of the old consumer that were sent.
    """
    _end_consumer(state, held, in_doubt)
    state.keep(
        evolve(
            held,
            identifier=state.new_identifier(),
            has_started=False,
            orders_over={},
            orders_gone={},
            clear_since=None,
            consuming=_left_over(state, held.lease.lease_key),
            requests=(),
            sent_requests=0,
        )
    )


def _left_over(state: WorkerState, lease_key: str) -> Consuming:
    """Return ``LEAVING`` if an old consumer of the shard still runs on this worker, otherwise ``NO_CONSUMER``."""
    return Consuming.LEAVING if lease_key in state.running else Consuming.NO_CONSUMER


def _end_consumer(state: WorkerState, held: HeldLease, in_doubt: CheckpointOutcome) -> None:
    for request in held.requests:
        outcome = in_doubt if request.was_sent else CheckpointOutcome.LEASE_LOST
        state.emit(AnswerCheckpoint(request.request_id, outcome))
    key = held.lease.lease_key
    if state.running.get(key) == held.identifier:
        state.emit(StopConsumer(key, held.identifier, ShutdownReason.ZOMBIE))


def attend(state: WorkerState) -> None:
    """Treat each held lease whose validity has ended as lost; resume the postponed work of the other held leases.

    After the end of the validity, another worker may be reading.
    """
    for key in state.deadlines.take_due(state.now):
        held = state.held[key]
        if held.valid_until <= state.now:
            why = f"its consumer stalled: {held.stall}" if held.stall else "not renewed in time"
            text = f"{why}, reading stops: {held.lease}"
            if not held.stall:
                state.lapses.note(state.now)
            lose(state, key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
            state.scan_soon(state.pause_seconds(2))
        else:
            state.keep(held)
            settle(state, key)


def renew_due(state: WorkerState) -> None:
    """Renew every held lease, except leases whose counter another write has moved a short time ago.

    Other workers must see a changed counter at least every third of the lease duration. So a lease is left out only if
    the next round of renewals still comes in time.
    """
    third = state.duration_seconds / 3
    next_round = state.now + state.config.renewer_interval_millis / 1000
    state.wants_listing = state.wants_listing or any(held.is_gone for held in state.held.values())
    for key in sorted(state.held):
        held = state.held[key]
        if held.moved_at + third < next_round and not held.is_renewal_due:
            state.keep(evolve(held, is_renewal_due=True))
        settle(state, key)


# --- settling ------------------------------------------------------------------------------------------------------


def settle_all(state: WorkerState) -> None:
    """Take the next step of every held lease."""
    for key in sorted(state.held):
        settle(state, key)


def settle_restless(state: WorkerState) -> None:
    """Take the next step of every held lease, except leases that are simply being read.

    Scans and listings change nothing for leases that are being read.
    """
    for key in sorted(key for key, held in state.held.items() if not held.is_being_read):
        settle(state, key)


def settle(state: WorkerState, lease_key: str) -> None:
    """Take the next step of one held lease: start or stop its consumer, draw its epoch, send its next write."""
    before = state.held.get(lease_key)
    if before is None:
        return
    state.waiting.pop(lease_key, None)
    intention, because = _intention(state, before)
    held = before if intention is before.intention else evolve(before, intention=intention)
    if intention in (Intention.READ, Intention.PAUSE):
        _draw_epoch(state, held)
    step = held.step
    if step is LeaseStep.START:
        held = _start(state, held)
    elif step is LeaseStep.STOP:
        state.emit(StopConsumer(lease_key, held.identifier, _STOPPED_AS[intention]))
        held = _waiting(evolve(held, consuming=Consuming.LEAVING), because)
    elif step is not LeaseStep.LET_READ:
        held = _waiting(held, because or Reason(_OBSTACLES.get(held.row, Cause.PREVIOUS_PROCESSOR)))
    if held.lease.orders or held.orders_given or held.orders_over or held.orders_gone:
        held = heed_orders(state, held)
    if held is not before:
        state.keep(held)
    _write_next(state, held)


_STOPPED_AS = {
    Intention.PAUSE: ShutdownReason.PAUSED,
    Intention.GIVE_AWAY: ShutdownReason.STOLEN,
    Intention.LET_RUN_OUT: ShutdownReason.STOLEN,
}
_OBSTACLES = {
    RowState.GONE: Cause.ROW_GONE,
    RowState.OFFERED: Cause.HAND_OVER_IN_DOUBT,
    RowState.OBEYS: Cause.LEAVING_PAUSE,
}
"""The reason why no consumer may start, by the state of the row."""


def _intention(state: WorkerState, held: HeldLease) -> tuple[Intention, Reason | None]:
    """Return this worker's intention with the lease, and the reason to show if the lease is not to be read."""
    lease = held.lease
    if held.stall:
        return Intention.LET_RUN_OUT, Reason(Cause.STALLED, detail=held.stall)
    if lease.is_marked and not is_mark_void(state, lease):
        return Intention.GIVE_AWAY, Reason(Cause.ASKED_FOR, lease.stealer)
    if state.is_stopping or held.promised_to or lease.lease_key in state.released:
        return Intention.GIVE_AWAY, Reason(Cause.GIVEN_AWAY)
    if lease.is_finished:
        return Intention.KEEP, Reason(Cause.FINISHED)
    pause = pause_reason(state, lease)
    return (Intention.READ, None) if pause is None else (Intention.PAUSE, pause)


def _start(state: WorkerState, held: HeldLease) -> HeldLease:
    lease, key = held.lease, held.lease.lease_key
    obstacle = _obstacle(state, held)
    if obstacle is not None:
        return _waiting(held, obstacle)
    clear_since = state.now if held.clear_since is None else held.clear_since
    if not _was_seen_since(state, key, max(clear_since, held.moved_unseen_at)):
        return _waiting(held, Reason(Cause.LOOK), clear_since)
    identifier = state.new_identifier() if held.has_started else held.identifier
    state.running[key] = identifier
    acquisition = evolve(held.acquisition, identifier=held.acquisition.identifier or identifier)
    info = ShardInfo(key, lease.stream_id, lease.parent_shard_ids, acquisition.identifier, acquisition.epoch)
    begun = state.view.has_progress
    state.emit(StartConsumer(info, lease.checkpoint, lease.pending, lease.progress, begun, identifier, lease.orders))
    return evolve(
        held,
        identifier=identifier,
        acquisition=acquisition,
        consuming=Consuming.CONSUMER,
        orders_given=lease.orders,
        orders_over={},
        orders_gone={},
        has_started=True,
        clear_since=None,
        reason=None,
    )


def _waiting(held: HeldLease, reason: Reason | None, clear_since: float | None = None) -> HeldLease:
    if (held.reason, held.clear_since) == (reason, clear_since):
        return held
    return evolve(held, reason=reason, clear_since=clear_since)


def _obstacle(state: WorkerState, held: HeldLease) -> Reason | None:
    """Return the reason why no consumer may start, although the row permits a start; ``None`` if one may start."""
    key = held.lease.lease_key
    if key in state.flights and "checkpoint" in state.flights[key].write.changes:
        return Reason(Cause.PREVIOUS_CHECKPOINT)
    gate = parents_finished(held.lease, state.view.rows, state.listing)
    state.wants_listing = state.wants_listing or (gate.wants_listing and state.is_row_scan_fresh)
    if gate.reason is not None:
        state.waiting[key] = gate.reason.subject
        circle = state.ends.tree.circles.get(key)
        return gate.reason if circle is None else Reason(Cause.PARENT_CIRCLE, ", ".join(circle))
    return Reason(Cause.EPOCH, detail=held.acquisition.problem) if held.acquisition.needs_epoch else None


def _was_seen_since(state: WorkerState, lease_key: str, moment: float) -> bool:
    """Return whether a read shows that no other process has used this worker's name since ``moment``.

    Without such a read, request one, so that a later call can return ``True``.
    """
    was_seen = state.signals.was_seen_since(moment)
    if not was_seen:
        state.unseen.add(lease_key)
        state.signals.look()
    return was_seen


def _draw_epoch(state: WorkerState, held: HeldLease) -> None:
    """Request an epoch if the acquisition lacks one, the shard is to be read, and no draw is unanswered."""
    key, acquisition = held.lease.lease_key, held.acquisition
    is_wanted = acquisition.needs_epoch and not held.lease.is_finished and not held.is_gone
    if is_wanted and key not in state.draws and state.now >= acquisition.draw_again_at:
        state.draws[key] = acquisition.number
        state.emit(DrawEpoch(key))


# --- pauses --------------------------------------------------------------------------------------------------------


def pause_reason(state: WorkerState, lease: Lease) -> Reason | None:
    """Return the reason why the shard of ``lease`` is paused; ``None`` if it is not paused."""
    pause = _present_pause(state, lease)
    if pause is not None:
        until = "" if pause.until_micros is None else f" until {utc_text(pause.until_micros)}"
        return Reason(Cause.PAUSED, pause.by, f"{pause.reason}{until}")
    if state.own_pauses:
        for key in (lease.lease_key, None):
            if key in state.own_pauses:
                return Reason(Cause.PAUSED_BY_PROGRAM, detail=state.own_pauses[key])
    return None


def _present_pause(state: WorkerState, lease: Lease) -> Pause | None:
    """Return the operator's pause in the row; ``None`` if there is no pause, or if its time is over."""
    pause = lease.pause
    if pause is None or pause.until_micros is None or state.now < state.moment_of(pause.until_micros):
        return pause
    return None


def _must_acknowledge(state: WorkerState, held: HeldLease) -> bool:
    """Return whether the row must acknowledge a pause: the shard is not read, and the row does not say that yet."""
    pause = _present_pause(state, held.lease)
    is_unsaid = pause is not None and not held.lease.is_paused_by_owner and held.mute_pause != pause.request_id
    return is_unsaid and held.consuming is Consuming.NO_CONSUMER


# --- writes --------------------------------------------------------------------------------------------------------


def send(state: WorkerState, write: LeaseWrite, *, tries: int = 1) -> None:
    """Send one write of a lease row. No other write of that row may be unanswered."""
    if write.kind is WriteKind.TAKE and state.sets_counters:
        write = leases.take_above(write, state.compared.get(write.lease_key, 0))
    state.launch(write, tries=tries)
    state.emit(WriteLease(write))


def _write_next(state: WorkerState, held: HeldLease) -> None:
    """Send the write that is due, if any. The docstring of this module states which of several writes comes first."""
    key, lease = held.lease.lease_key, held.lease
    if key in state.flights or held.is_gone or state.now < held.doubt.not_before:
        return
    if not _was_seen_since(state, key, held.moved_unseen_at):
        return
    if held.requests:
        _send_checkpoint(state, held)
    elif held.step is LeaseStep.HAND_OVER:
        _give_away(state, held)
    elif held.step is LeaseStep.RUN_OUT:
        return
    elif is_mark_void(state, lease):
        send(state, leases.take(lease, state.worker_id))
    elif _must_acknowledge(state, held):
        state.keep(evolve(held, may_acknowledge=True))
        send(state, leases.take_pause(lease))
    elif held.may_acknowledge and _present_pause(state, lease) is None:
        send(state, leases.leave_pause(lease))
    elif (left := orders_left(state, held)) != lease.orders:
        send(state, leases.end_orders(lease, left))
    elif held.is_renewal_due or held.is_offered:
        send(state, leases.renew(lease))


def _send_checkpoint(state: WorkerState, held: HeldLease) -> None:
    """Send the oldest checkpoint request, together with directly following requests for the same write."""
    first, sent = held.requests[0], []
    for request in held.requests:
        if (request.value, request.pending) != (first.value, first.pending):
            break
        sent.append(evolve(request, was_sent=True))
    state.keep(evolve(held, requests=(*sent, *held.requests[len(sent) :]), sent_requests=len(sent)))
    if first.pending is not None:
        send(state, leases.prepare(held.lease, first.pending))
    else:
        send(state, leases.checkpoint(held.lease, first.value, sent[-1].progress))


# --- handing over --------------------------------------------------------------------------------------------------


def _give_away(state: WorkerState, held: HeldLease) -> None:
    """Hand the lease over. While this worker still decides who receives its leases, renew the lease instead."""
    if state.awaits_heirs:
        if held.is_renewal_due and not held.stall:
            send(state, leases.renew(held.lease))
        return
    receiver = new_owner(state, held.lease, held.promised_to)
    if receiver is not None:
        _hand_over(state, held, receiver)
    elif state.is_stopping:
        state.keep(evolve(held, is_offered=True))
        send(state, leases.release(held.lease))
    else:
        leave(state, held)


def leave(state: WorkerState, held: HeldLease) -> None:
    """Stop holding a lease that no other worker can take."""
    text = f"let go, because no other worker can take it: {held.lease}"
    lose(state, held.lease.lease_key, Severity.INFO, text)


def give(state: WorkerState, lease_key: str, receiver: str) -> None:
    """Hand a finished lease to a worker that did not request it.

    Do nothing while other work on the lease goes on.
    """
    held = state.held.get(lease_key)
    if held is None or not held.lease.is_finished or held.consuming is not Consuming.NO_CONSUMER:
        return
    is_busy = lease_key in state.flights or held.requests or state.now < held.doubt.not_before
    if not (is_busy or held.step is LeaseStep.HAND_OVER or held.is_gone or held.is_offered):
        _hand_over(state, held, receiver)


def _hand_over(state: WorkerState, held: HeldLease, receiver: str) -> None:
    state.keep(evolve(held, is_offered=True))
    send(state, leases.transfer(held.lease, receiver))


def is_mark_void(state: WorkerState, lease: Lease) -> bool:
    """Return whether the worker that requested the lease died meanwhile, or announced that it stops."""
    if not lease.is_marked:
        return False
    return state.view.is_presumed_dead(lease.stealer) or state.signals.peers.is_leaving(lease.stealer)


def new_owner(state: WorkerState, lease: Lease, promised_to: str = "") -> str | None:
    """Return the worker to hand a lease over to; ``None`` if no other worker can receive it.

    The receiver is the worker that asked for the lease. Without a request it is the worker to which the lease was
    promised, and without a promise the other worker with the least load. Leases that move to a worker count as its
    load, so a stopping worker spreads its leases. A request or a promise is void if its worker is stopping or dead.

    If all workers of the fleet have sessions, the sessions show which workers live and stay, and only these receive
    leases. Without all sessions, this worker can only guess. Then every other worker that does not seem dead may
    receive a lease, in this order: first workers that gave a sign of life in the last lease duration, then workers that
    gave none, and last workers that seem to be stopping.
    """
    if lease.is_marked and not is_mark_void(state, lease):
        return lease.stealer
    staying = state.signals.peers.staying_others
    heir = promised_to or state.heirs.get(lease.lease_key, "")
    if heir in staying:
        return heir
    if state.signals.is_uniform:
        return _least_loaded(state, staying)
    view, now = state.view, state.now
    recent = now - state.duration_seconds
    loads = state.loads
    names = {name for name in (*loads, *view.live_workers(now)) if name != state.worker_id}
    alive = [name for name in sorted(names) if not view.is_presumed_dead(name)]
    ranked = [
        (
            view.is_leaving(name),
            view.last_sign_of_life(name) < recent,
            loads.get(name, 0),
            state.rng.random(),
            name,
        )
        for name in alive
    ]
    return min(ranked)[-1] if ranked else None


def _least_loaded(state: WorkerState, staying: Sequence[str]) -> str | None:
    loads = state.loads
    return min(staying, key=lambda name: (loads.get(name, 0), name)) if staying else None
