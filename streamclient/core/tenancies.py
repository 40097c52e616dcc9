"""The life of held leases: registered, served, drained, handed over or lost.

``settle`` is level-triggered: it looks at one held lease and emits whatever its state asks for. Every event handler
changes state and then settles; nothing depends on the order in which facts became known.
"""

from __future__ import annotations

from itertools import takewhile

from attrs import evolve

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
from streamclient.core.handover import is_mark_void, must_drain, new_owner
from streamclient.core.leases import LeaseWrite
from streamclient.core.pauses import must_acknowledge, must_take_back, pause_reason
from streamclient.core.rows import WriteKind
from streamclient.core.shards import parents_finished
from streamclient.core.situation import Situation
from streamclient.core.tenancy import ConsumerPhase, HeldLease, valid_until
from streamclient.model import Lease, ShardInfo, ShutdownReason
from streamclient.reasons import Cause, Reason


def send(situation: Situation, write: LeaseWrite, *, tries: int = 1) -> None:
    """Send one write; the lease must have none under way."""
    if write.kind is WriteKind.TAKE:
        write = leases.take_above(write, situation.compared.get(write.lease_key, 0))
    situation.launch(write, tries=tries)
    situation.emit(WriteLease(write))


def register(situation: Situation, lease: Lease, sent_at: float) -> None:
    """Begin a tenancy: a take sent at ``sent_at`` was applied."""
    until = valid_until(sent_at, situation.duration_seconds)
    if until <= situation.now or not situation.presence.counts(sent_at, situation.now):
        situation.report(Severity.WARNING, lease.lease_key, f"take answered too late, not held: {lease}")
        situation.scan_soon(situation.pause_seconds(2))
        return
    situation.acquisitions += 1
    identifier, number = situation.new_identifier(), situation.acquisitions
    # It may have obeyed a pause in an earlier life.
    says_paused = lease.is_paused_by_owner
    held = HeldLease(lease, identifier, until, lease.counter, sent_at, acquisition=number, has_acknowledged=says_paused)
    situation.keep(held)
    situation.report(Severity.INFO, lease.lease_key, f"took {lease}")
    settle(situation, lease.lease_key)


def lose(
    situation: Situation,
    lease_key: str,
    severity: Severity,
    text: str,
    *,
    in_doubt: CheckpointOutcome = CheckpointOutcome.LEASE_LOST,
) -> None:
    """End a tenancy. ``in_doubt`` answers the checkpoints that were sent; those never sent are surely not stored."""
    held = situation.give_up(lease_key)
    _end_consumer(situation, held, in_doubt)
    if held.stall:
        situation.shunned[lease_key] = situation.now + situation.duration_seconds
    situation.report(severity, lease_key, text)


def start_anew(situation: Situation, held: HeldLease, *, in_doubt: CheckpointOutcome) -> None:
    """End the consumer as if the lease were lost, and keep the lease: another one starts from what its row says."""
    _end_consumer(situation, held, in_doubt)
    situation.keep(
        evolve(
            held,
            identifier=situation.new_identifier(),
            has_started=False,
            clear_since=None,
            consumer=ConsumerPhase.NONE,
            requests=(),
            sent_requests=0,
        )
    )


def _end_consumer(situation: Situation, held: HeldLease, in_doubt: CheckpointOutcome) -> None:
    for request in held.requests:
        outcome = in_doubt if request.was_sent else CheckpointOutcome.LEASE_LOST
        situation.emit(AnswerCheckpoint(request.request_id, outcome))
    key = held.lease.lease_key
    if situation.running.get(key) == held.identifier:
        situation.emit(StopConsumer(key, held.identifier, ShutdownReason.ZOMBIE))


def attend(situation: Situation) -> None:
    """Attend to every held lease that is due: end it if its validity is over, or go on with what was put off.

    Once its validity is over, another worker may be reading.
    """
    for key in situation.deadlines.take_due(situation.now):
        held = situation.held[key]
        if held.valid_until <= situation.now:
            why = f"its consumer stalled: {held.stall}" if held.stall else "not renewed in time"
            text = f"{why}, reading stops: {held.lease}"
            lose(situation, key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
            situation.scan_soon(situation.pause_seconds(2))
        else:
            situation.keep(held)
            settle(situation, key)


def settle_all(situation: Situation) -> None:
    """Settle every held lease."""
    for key in sorted(situation.held):
        settle(situation, key)


def settle_restless(situation: Situation) -> None:
    """Settle every held lease that is not simply being read: scans and listings can change nothing for the others."""
    for key in sorted(key for key, held in situation.held.items() if not held.is_being_read):
        settle(situation, key)


def settle(situation: Situation, lease_key: str) -> None:
    """Emit what one held lease asks for: start or stop its consumer, draw its epoch, send its next write."""
    before = situation.held.get(lease_key)
    if before is None:
        return
    held = before
    is_draining, paused_because = must_drain(situation, held), pause_reason(situation, held)
    is_paused = paused_because is not None
    if (is_draining, is_paused) != (held.is_draining, held.is_paused):
        held = evolve(held, is_draining=is_draining, is_paused=is_paused)
    if is_draining:
        held = _stop_reading(situation, held, ShutdownReason.STOLEN, _draining_because(held))
    else:
        _draw_epoch(situation, held)
        if paused_because is not None and not held.lease.is_finished:
            held = _stop_reading(situation, held, ShutdownReason.PAUSED, paused_because)
        elif held.consumer is ConsumerPhase.NONE:
            held = _start_reading(situation, held)
    if held is not before:
        situation.keep(held)
    _write_next(situation, held)


def _stop_reading(situation: Situation, held: HeldLease, why: ShutdownReason, reason: Reason) -> HeldLease:
    if held.consumer is ConsumerPhase.RUNNING:
        situation.emit(StopConsumer(held.lease.lease_key, held.identifier, why))
        held = evolve(held, consumer=ConsumerPhase.STOPPING)
    return _waiting(held, reason, None)


def _draining_because(held: HeldLease) -> Reason:
    if held.stall:
        return Reason(Cause.STALLED, detail=held.stall)
    return Reason(Cause.ASKED_FOR, held.lease.stealer) if held.lease.is_marked else Reason(Cause.GIVEN_AWAY)


def _start_reading(situation: Situation, held: HeldLease) -> HeldLease:
    key = held.lease.lease_key
    obstacle = _obstacle(situation, held)
    if obstacle is not None:
        return _waiting(held, obstacle, None)
    clear_since = situation.now if held.clear_since is None else held.clear_since
    if not _was_seen_since(situation, key, max(clear_since, held.moved_unseen_at)):
        return _waiting(held, Reason(Cause.LOOK), clear_since)
    identifier = situation.new_identifier() if held.has_started else held.identifier
    situation.running[key] = identifier
    lease = held.lease
    of_lease = held.lease_identifier or identifier
    info = ShardInfo(key, lease.stream_id, lease.parent_shard_ids, of_lease, held.epoch)
    situation.emit(StartConsumer(info, lease.checkpoint, lease.pending, lease.progress, identifier))
    return evolve(
        held,
        identifier=identifier,
        lease_identifier=of_lease,
        consumer=ConsumerPhase.RUNNING,
        has_started=True,
        clear_since=None,
        reason=None,
    )


def _waiting(held: HeldLease, reason: Reason, clear_since: float | None) -> HeldLease:
    if (held.reason, held.clear_since) == (reason, clear_since):
        return held
    return evolve(held, reason=reason, clear_since=clear_since)


def _obstacle(situation: Situation, held: HeldLease) -> Reason | None:
    """Why the shard may not be read now; ``None`` if it may."""
    key = held.lease.lease_key
    situation.waiting.pop(key, None)
    own = _own_obstacle(situation, held)
    if own is not None:
        return Reason(own)
    gate = parents_finished(held.lease, situation.view.rows, situation.listing)
    situation.wants_listing = situation.wants_listing or (gate.wants_listing and situation.is_row_scan_fresh)
    if gate.reason is not None:
        situation.waiting[key] = gate.reason.subject
        return gate.reason
    return Reason(Cause.EPOCH, detail=held.epoch_problem) if held.needs_epoch else None


def _was_seen_since(situation: Situation, lease_key: str, moment: float) -> bool:
    """Whether no other process had this worker's name after a moment; if that is not known, look, and settle then."""
    was_seen = situation.presence.was_seen_since(moment)
    if not was_seen:
        situation.unseen.add(lease_key)
        situation.presence.look()
    return was_seen


def _own_obstacle(situation: Situation, held: HeldLease) -> Cause | None:
    """What the lease itself, or what is going on with it, has against reading; ``None`` if nothing."""
    key = held.lease.lease_key
    if held.lease.is_finished:
        return Cause.FINISHED
    if held.is_absent:
        return Cause.ROW_GONE
    if held.is_unsettled:
        return Cause.HAND_OVER_IN_DOUBT
    if held.has_acknowledged:
        return Cause.LEAVING_PAUSE
    if key in situation.running:
        return Cause.PREVIOUS_PROCESSOR
    if key in situation.flights and "checkpoint" in situation.flights[key].write.changes:
        return Cause.PREVIOUS_CHECKPOINT
    return None


def _draw_epoch(situation: Situation, held: HeldLease) -> None:
    """Ask for the epoch of an acquisition that has none, unless one is on its way or nobody will read the shard."""
    key = held.lease.lease_key
    is_wanted = held.needs_epoch and not held.lease.is_finished and not held.is_absent
    if is_wanted and key not in situation.draws and situation.now >= held.draw_again_at:
        situation.draws[key] = held.acquisition
        situation.emit(DrawEpoch(key))


# --- writes --------------------------------------------------------------------------------------------------------


def _write_next(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    if key in situation.flights or held.is_absent or situation.now < held.not_before:
        return
    if not _was_seen_since(situation, key, held.moved_unseen_at):
        return
    if held.requests:
        _send_checkpoint(situation, held)
    elif held.is_draining and held.consumer is ConsumerPhase.NONE and key not in situation.running:
        if not situation.awaits_heirs:
            _give_away(situation, held)
    elif held.stall:
        return
    elif is_mark_void(situation, held.lease):
        send(situation, leases.take(held.lease, situation.worker_id))
    elif must_acknowledge(situation, held):
        situation.keep(evolve(held, has_acknowledged=True))
        send(situation, leases.take_pause(held.lease))
    elif must_take_back(situation, held):
        send(situation, leases.leave_pause(held.lease))
    elif held.is_renewal_due or held.is_unsettled:
        send(situation, leases.renew(held.lease))


def _send_checkpoint(situation: Situation, held: HeldLease) -> None:
    """Send the oldest request, together with those right behind it that ask for the same."""
    first = held.requests[0]
    same = len(list(takewhile(lambda each: (each.value, each.pending) == (first.value, first.pending), held.requests)))
    sent = tuple(evolve(request, was_sent=True) for request in held.requests[:same])
    situation.keep(evolve(held, requests=sent + held.requests[same:], sent_requests=same))
    if first.pending is not None:
        send(situation, leases.prepare(held.lease, first.pending))
    else:
        send(situation, leases.checkpoint(held.lease, first.value, sent[-1].progress))


def _give_away(situation: Situation, held: HeldLease) -> None:
    receiver = new_owner(situation, held.lease, held.promised_to)
    if receiver is None:
        text = f"no other worker lives, left for the next one: {held.lease}"
        lose(situation, held.lease.lease_key, Severity.INFO, text)
        return
    _hand_over(situation, held, receiver)


def give(situation: Situation, lease_key: str, receiver: str) -> None:
    """Hand a finished lease to a worker that did not ask for it; put off if anything else is going on with it."""
    held = situation.held.get(lease_key)
    if held is None or not held.lease.is_finished or held.consumer is not ConsumerPhase.NONE:
        return
    is_busy = lease_key in situation.flights or held.requests or situation.now < held.not_before
    if not (is_busy or held.is_draining or held.is_absent or held.is_unsettled):
        _hand_over(situation, held, receiver)


def _hand_over(situation: Situation, held: HeldLease, receiver: str) -> None:
    situation.keep(evolve(held, is_unsettled=True))
    send(situation, leases.transfer(held.lease, receiver))


def renew_due(situation: Situation) -> None:
    """Move the counter of every held lease, unless a checkpoint just did.

    Other workers need a changed counter at least every third of the lease duration: a lease is passed over only if the
    next round still comes in time.
    """
    third = situation.duration_seconds / 3
    next_round = situation.now + situation.config.renewer_interval_millis / 1000
    situation.wants_listing = situation.wants_listing or any(held.is_absent for held in situation.held.values())
    for key in sorted(situation.held):
        held = situation.held[key]
        if held.moved_at + third < next_round and not held.is_renewal_due:
            situation.keep(evolve(held, is_renewal_due=True))
        settle(situation, key)
