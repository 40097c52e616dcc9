"""Requests about held leases.

Consumers and the worker's own program send requests as events. Other workers and operators write requests into lease
rows. Each request changes the known facts about a lease. After that, ``settle`` takes the next step of the lease.
"""

from __future__ import annotations

from streamclient.base.reasons import described
from streamclient.core.events import (
    AnswerCheckpoint,
    Answered,
    CheckpointOutcome,
    CheckpointRequested,
    ConsumerEnd,
    ConsumerStalled,
    ConsumerStopped,
    NoteOrder,
    OrderOver,
    PauseRequested,
    ResumeRequested,
    Severity,
)
from streamclient.core.held import CheckpointRequest, Consuming, HeldLease
from streamclient.core.order_ends import outcome_of, withdrawn_outcome
from streamclient.core.settle import settle, settle_all
from streamclient.core.values import evolve
from streamclient.core.worker_state import WorkerState
from streamclient.errors import printable
from streamclient.model import Lease

# --- consumers -----------------------------------------------------------------------------------------------------


def checkpoint_requested(state: WorkerState, event: CheckpointRequested) -> None:
    """Queue a request for a checkpoint, or refuse it immediately if its consumer has lost the lease."""
    held = state.held.get(event.lease_key)
    if held is None or not _is_running(held, event.consumer_id):
        state.emit(AnswerCheckpoint(event.request_id, CheckpointOutcome.LEASE_LOST))
        return
    request = CheckpointRequest(event.request_id, event.value, event.progress, event.pending)
    state.keep(evolve(held, requests=(*held.requests, request)))
    settle(state, event.lease_key)


def checkpoint_stored(state: WorkerState, held: HeldLease) -> None:
    """Answer the checkpoint requests that the accepted write has stored."""
    answer_sent(state, held, CheckpointOutcome.STORED)
    key = held.lease.lease_key
    if held.lease.is_finished:
        state.report(Severity.INFO, key, f"finished: {held.lease}")
        # If no listing has shown a child yet, a new listing is needed, so that the child gets a row.
        state.wants_listing = state.wants_listing or not (state.is_stopping or state.ends.has_child(key))
        for child in sorted(child for child, ancestor in state.waiting.items() if ancestor == key):
            settle(state, child)
        state.signals.wake(row.owner for row in state.view.rows.values() if row.owner and key in row.parent_shard_ids)


def answer_sent(
    state: WorkerState, held: HeldLease, outcome: CheckpointOutcome, error: Exception | None = None
) -> None:
    """Answer with ``outcome`` the checkpoint requests that the last write contained; later requests stay queued."""
    for request in held.requests[: held.sent_requests]:
        state.emit(AnswerCheckpoint(request.request_id, outcome, error))
    state.keep(evolve(held, requests=held.requests[held.sent_requests :], sent_requests=0))


def consumer_stopped(state: WorkerState, event: ConsumerStopped) -> None:
    """Record that the shard's consumer is gone. Then keep the lease, hand it over, or start another consumer."""
    key = event.lease_key
    held = state.held.get(key)
    state.end_questions.pop(event.consumer_id, None)
    if state.running.get(key) == event.consumer_id:
        del state.running[key]
        if held is not None:
            _consumer_gone(state, held, event)
    row = state.view.row(key)
    if held is None and row is not None and row.owner == state.worker_id:
        state.wants_scan = True
    settle(state, key)


def _consumer_gone(state: WorkerState, held: HeldLease, event: ConsumerStopped) -> None:
    is_done = event.end is ConsumerEnd.DONE and not held.lease.is_finished
    if is_done and held.identifier == event.consumer_id:
        state.released[event.lease_key] = None
        text = f"its processor is done, the lease is given away: {held.lease}"
        state.report(Severity.INFO, event.lease_key, text)
    state.keep(evolve(held, consuming=Consuming.NO_CONSUMER))


def consumer_stalled(state: WorkerState, event: ConsumerStalled) -> None:
    """Let the lease run out, so that another worker goes on from the checkpoint.

    The lease is never handed over while the consumer runs, because a hanging consumer may go on until the lease has
    expired. If the consumer stops in time, the lease goes to another worker immediately.
    """
    held = state.held.get(event.lease_key)
    if held is None or not _is_running(held, event.consumer_id) or held.stall:
        return
    state.keep(evolve(held, stall=event.reason))
    seconds = held.valid_until - state.now
    text = f"its consumer stalled, the lease is let run out within {seconds:.0f} s: {event.reason}: {held.lease}"
    state.report(Severity.ERROR, event.lease_key, text)
    settle(state, event.lease_key)


def order_over(state: WorkerState, event: OrderOver) -> None:
    """Record that an order ended, so that its outcome goes to the audit.

    A withdrawn order has left the row already. Any other order is removed from the row when the audit has its outcome.
    """
    held, request_id = state.held.get(event.lease_key), event.order.request_id
    if held is None or not _is_running(held, event.consumer_id):
        return
    if not event.is_withdrawn:
        over = (event.order, outcome_of(event.order, event.taken))
        state.keep(evolve(held, orders_over={**held.orders_over, request_id: over}))
        settle(state, event.lease_key)
    elif request_id not in held.noted:  # an order that this worker removed is not withdrawn
        gone = (event.order, withdrawn_outcome(event.order, event.taken))
        state.keep(evolve(held, orders_gone={**held.orders_gone, request_id: gone}))
        settle(state, event.lease_key)


def order_noted(state: WorkerState, call: NoteOrder, answer: Answered[None]) -> None:
    """Remove an order whose outcome is in the audit. If the note failed, repeat it at the next heartbeat."""
    key, request_id = call.lease_key, call.order.request_id
    state.notes_under_way.discard((key, request_id))
    held = state.held.get(key)
    if answer.error is not None:
        text = f"the end of the order by {call.order.by} is not in the audit yet: {described(answer.error)}"
        state.report_once(Severity.WARNING, key, f"note {request_id}", text)
        return
    state.noted_at.pop((key, request_id), None)
    if held is not None:
        state.keep(evolve(held, noted=held.noted | {request_id}))
        settle(state, key)


def _is_running(held: HeldLease, consumer_id: str) -> bool:
    return held.identifier == consumer_id and held.consuming is not Consuming.NO_CONSUMER


# --- other workers and operators -----------------------------------------------------------------------------------


def notice_rows(state: WorkerState) -> None:
    """Copy marks, pauses and orders from the rows of the last scan to the held leases.

    A row is ignored if it is older than this worker's take, or if its counter is higher than the counters of all writes
    that this worker has sent. A row that shows an unanswered write of this worker is used.
    """
    scanned = state.view.scanned
    for key, held in state.held.items():
        row = scanned.get(key)
        if row is None or row.owner != state.worker_id:
            continue
        flight = state.flights.get(key)
        sent = flight.write.result if flight is not None else None
        newest = held.lease.counter if sent is None else max(held.lease.counter, sent.counter)
        if held.first_counter <= row.counter <= newest:
            noticed = _with_orders(state, _with_pause(state, _with_mark(held, row), row), row)
            if noticed is not held:
                state.keep(noticed)


def _with_mark(held: HeldLease, row: Lease) -> HeldLease:
    """Return the lease with the mark that the row shows: another worker's request for the lease.

    A mark counts even if the scan is out of date.
    """
    if not row.is_marked or held.lease.is_marked:
        return held
    return evolve(held, lease=evolve(held.lease, stealer=row.stealer))


def _with_pause(state: WorkerState, held: HeldLease, row: Lease) -> HeldLease:
    """Return the lease with the pause of ``row``, which the last scan showed.

    If the lease's row was read again after that scan began, ``row`` is out of date, and the lease is unchanged. The
    counter cannot show which row is newer, because a pause comes and goes without moving the counter.
    """
    if row.pause == held.lease.pause or state.scan_asked_at < held.pause_known_at:
        return held
    key, pause = held.lease.lease_key, row.pause
    text = f"the pause is over: {row}" if pause is None else f"paused by {pause.by}: {pause.reason}: {row}"
    state.report(Severity.INFO, key, text)
    return evolve(held, lease=evolve(held.lease, pause=pause, pause_taken=row.pause_taken))


def _with_orders(state: WorkerState, held: HeldLease, row: Lease) -> HeldLease:
    """Return the lease with the orders about records in ``row``, which the last scan showed.

    If the lease's row was read again after that scan began, ``row`` is out of date, and the lease is unchanged. Like
    pauses, orders come and go without moving the counter.
    """
    if row.orders == held.lease.orders or state.scan_asked_at < held.pause_known_at:
        return held
    known, key = {order.request_id for order in held.lease.orders}, held.lease.lease_key
    for order in row.orders:
        if order.request_id not in known:
            verb = "skip" if order.is_skip else "park"
            text = f"ordered by {order.by} to {verb} {', '.join(order.record_ids)}: {order.reason}: {row}"
            state.report(Severity.INFO, key, text)
    left = {order.request_id for order in row.orders}
    for order in held.lease.orders:
        if order.request_id not in left:
            state.report(Severity.INFO, key, f"order {order.request_id} by {order.by} was withdrawn: {row}")
    return evolve(held, lease=evolve(held.lease, orders=row.orders))


# --- the worker's own program --------------------------------------------------------------------------------------


def pause_requested(state: WorkerState, event: PauseRequested) -> None:
    """Pause one shard, even if it is not held, or pause all shards that the worker holds now or later."""
    state.own_pauses[event.lease_key] = printable(event.reason)
    _settle_for(state, event.lease_key)


def resume_requested(state: WorkerState, event: ResumeRequested) -> None:
    """End the program's own pause of one shard, or of the whole worker. All other pauses stay."""
    state.own_pauses.pop(event.lease_key, None)
    _settle_for(state, event.lease_key)


def _settle_for(state: WorkerState, lease_key: str | None) -> None:
    if lease_key is None:
        settle_all(state)
    else:
        settle(state, lease_key)
