"""The life of held leases: registered, served, drained, handed over or lost.

``settle`` is level-triggered: it looks at one held lease and emits whatever its state asks for. Every event handler
changes state and then settles; nothing depends on the order in which facts became known.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from attrs import evolve

from streamclient.core import leases
from streamclient.core.events import (
    AnswerCheckpoint,
    CheckpointOutcome,
    CheckpointRequested,
    ConsumerEnd,
    ConsumerStopped,
    Severity,
    StartConsumer,
    StopConsumer,
    WriteLease,
)
from streamclient.core.handover import is_mark_void, must_drain, new_owner
from streamclient.core.leases import LeaseWrite, WriteKind
from streamclient.core.shards import parents_finished
from streamclient.core.situation import Flight, Situation
from streamclient.core.tenancy import CheckpointRequest, ConsumerPhase, HeldLease, valid_until
from streamclient.core.view import NEVER
from streamclient.model import Lease, ShardInfo, ShutdownReason

WAITING_PHASES = (ConsumerPhase.RUNNING, ConsumerPhase.STOPPING)
"""Phases in which user code may ask for checkpoints."""


def send(situation: Situation, write: LeaseWrite, *, tries: int = 1) -> None:
    """Send one write; the lease must have none under way."""
    key = write.lease_key
    if key in situation.flights:
        raise AssertionError(f"{write} while {situation.flights[key].write} is under way")
    situation.flights[key] = Flight(write, tries=tries)
    situation.emit(WriteLease(write))


def register(situation: Situation, lease: Lease, sent_at: float) -> None:
    """Begin a tenancy: a take sent at ``sent_at`` was applied."""
    until = valid_until(sent_at, situation.duration_seconds)
    if until <= situation.now:
        situation.report(Severity.WARNING, lease.lease_key, f"take answered too late, not held: {lease}")
        return
    situation.held[lease.lease_key] = HeldLease(lease, situation.new_identifier(), until, lease.counter, sent_at)
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
    held = situation.held.pop(lease_key)
    for request in held.requests:
        outcome = in_doubt if request.was_sent else CheckpointOutcome.LEASE_LOST
        situation.emit(AnswerCheckpoint(request.request_id, outcome))
    if situation.running.get(lease_key) == held.identifier:
        situation.emit(StopConsumer(lease_key, held.identifier, ShutdownReason.ZOMBIE))
    situation.report(severity, lease_key, text)


def expire(situation: Situation) -> None:
    """End every tenancy whose validity is over: another worker may be reading from now on."""
    for key in sorted(situation.held):
        held = situation.held[key]
        if held.valid_until <= situation.now:
            text = f"not renewed in time, reading stops: {held.lease}"
            lose(situation, key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)


def settle_all(situation: Situation) -> None:
    """Settle every held lease."""
    for key in sorted(situation.held):
        settle(situation, key)


def settle(situation: Situation, lease_key: str) -> None:
    """Emit what one held lease asks for: start or stop its consumer, send its next write."""
    held = situation.held.get(lease_key)
    if held is None:
        return
    held = evolve(held, is_draining=must_drain(situation, held))
    situation.held[lease_key] = held
    if held.is_draining:
        _stop_reading(situation, held)
    elif held.consumer is ConsumerPhase.NONE:
        _start_reading(situation, held)
    _write_next(situation, situation.held[lease_key])


def _stop_reading(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    if held.consumer is ConsumerPhase.RUNNING:
        situation.emit(StopConsumer(key, held.identifier, ShutdownReason.STOLEN))
        held = evolve(held, consumer=ConsumerPhase.STOPPING)
    wanted_by = f"worker {held.lease.stealer} asked for it" if held.lease.is_marked else "its worker gives it away"
    situation.held[key] = evolve(held, reason=f"being handed over: {wanted_by}")


def _start_reading(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    reason = _obstacle(situation, held)
    if reason is not None:
        situation.held[key] = evolve(held, reason=reason)
        return
    identifier = situation.new_identifier() if held.has_started else held.identifier
    situation.running[key] = identifier
    situation.held[key] = evolve(
        held, identifier=identifier, consumer=ConsumerPhase.RUNNING, has_started=True, reason=""
    )
    info = ShardInfo(key, held.lease.stream_id, held.lease.parent_shard_ids, identifier, held.first_counter)
    situation.emit(StartConsumer(info, held.checkpoint))


def _obstacle(situation: Situation, held: HeldLease) -> str | None:
    """Why the shard may not be read now; ``None`` if it may."""
    if held.lease.is_finished:
        return "finished"
    if held.is_absent:
        return "its lease row is gone; waiting for the list of shards"
    if held.is_unsettled:
        return "a hand-over is in doubt; waiting for the next heartbeat"
    if held.lease.lease_key in situation.running:
        return "the previous processor of this shard has not stopped yet"
    gate = parents_finished(held.lease, situation.view.rows, situation.listing)
    situation.wants_listing = situation.wants_listing or (gate.wants_listing and situation.is_row_scan_fresh)
    return None if gate.is_open else gate.reason


# --- writes --------------------------------------------------------------------------------------------------------


def _write_next(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    if key in situation.flights or held.is_absent or situation.now < held.not_before:
        return
    if held.requests:
        _send_checkpoint(situation, held)
    elif held.is_draining and held.consumer is ConsumerPhase.NONE:
        _give_away(situation, held)
    elif is_mark_void(situation, held.lease):
        send(situation, leases.take(held.lease, situation.worker_id))
    elif held.is_renewal_due or held.is_unsettled:
        send(situation, leases.renew(held.lease))


def _send_checkpoint(situation: Situation, held: HeldLease) -> None:
    """Send the oldest request, together with those right behind it that ask for the same position."""
    value = held.requests[0].value
    same = len(list(takewhile(lambda request: request.value == value, held.requests)))
    sent = tuple(evolve(request, was_sent=True) for request in held.requests[:same])
    situation.held[held.lease.lease_key] = evolve(held, requests=sent + held.requests[same:], sent_requests=same)
    send(situation, leases.checkpoint(held.lease, value))


def _give_away(situation: Situation, held: HeldLease) -> None:
    receiver = new_owner(situation, held.lease)
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
    situation.held[held.lease.lease_key] = evolve(held, is_unsettled=True)
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
        if held.moved_at + third < next_round:
            situation.held[key] = evolve(held, is_renewal_due=True)
        settle(situation, key)


def retry_due(situation: Situation) -> None:
    """Resume the writes whose pause after failures is over."""
    for key in sorted(situation.held):
        held = situation.held[key]
        if NEVER < held.not_before <= situation.now:
            situation.held[key] = evolve(held, not_before=NEVER)
            settle(situation, key)


def notice_marks(situation: Situation, rows: Iterable[Lease]) -> None:
    """Take over marks that a scan showed: on rows of this tenancy that are not newer than what is known.

    A scan is older than the last heartbeat as a rule; a mark it shows stands nevertheless, until the tenancy ends.
    """
    for row in rows:
        held = situation.held.get(row.lease_key)
        if held is None or row.owner != situation.worker_id or not row.is_marked or held.lease.is_marked:
            continue
        if held.first_counter <= row.counter <= held.lease.counter:
            situation.held[row.lease_key] = evolve(held, lease=evolve(held.lease, stealer=row.stealer))


# --- consumers and checkpoints -------------------------------------------------------------------------------------


def checkpoint_requested(situation: Situation, event: CheckpointRequested) -> None:
    """Queue a position, or refuse it at once if its tenancy is over."""
    held = situation.held.get(event.lease_key)
    if held is None or held.identifier != event.lease_identifier or held.consumer not in WAITING_PHASES:
        situation.emit(AnswerCheckpoint(event.request_id, CheckpointOutcome.LEASE_LOST))
        return
    request = CheckpointRequest(event.request_id, event.value)
    situation.held[event.lease_key] = evolve(held, requests=(*held.requests, request))
    settle(situation, event.lease_key)


def checkpoint_stored(situation: Situation, held: HeldLease) -> None:
    """Answer the requests that the accepted write covered."""
    for request in held.requests[: held.sent_requests]:
        situation.emit(AnswerCheckpoint(request.request_id, CheckpointOutcome.STORED))
    situation.held[held.lease.lease_key] = evolve(held, requests=held.requests[held.sent_requests :], sent_requests=0)
    if held.lease.is_finished:
        situation.report(Severity.INFO, held.lease.lease_key, f"finished: {held.lease}")
        situation.wants_listing = situation.wants_listing or not situation.is_stopping
        settle_all(situation)


def consumer_stopped(situation: Situation, event: ConsumerStopped) -> None:
    """Free the shard's slot; then the lease goes on, is handed over, or is read anew."""
    key = event.lease_key
    if situation.running.get(key) == event.lease_identifier:
        del situation.running[key]
    held = situation.held.get(key)
    if held is not None and held.identifier == event.lease_identifier:
        is_done = event.end is ConsumerEnd.DONE and not held.lease.is_finished
        if is_done:
            situation.released.add(key)
            situation.report(Severity.INFO, key, f"its processor is done, the lease is given away: {held.lease}")
        situation.held[key] = evolve(held, consumer=ConsumerPhase.NONE, is_released=held.is_released or is_done)
    row = situation.view.row(key)
    if held is None and row is not None and row.owner == situation.worker_id:
        situation.wants_scan = True
    settle(situation, key)


def is_held_write(write: LeaseWrite) -> bool:
    """Whether the write belongs to a tenancy, so that its doubtful outcome must be cleared up."""
    if write.kind is WriteKind.CREATE:
        return write.seen.owner != ""
    return write.kind not in (WriteKind.STEAL, WriteKind.DELETE)
