"""What consumers of held leases report and ask for: checkpoints, their end, and that they stalled."""

from __future__ import annotations

from attrs import evolve

from streamclient.core.events import (
    AnswerCheckpoint,
    CheckpointOutcome,
    CheckpointRequested,
    ConsumerEnd,
    ConsumerStalled,
    ConsumerStopped,
    Severity,
)
from streamclient.core.situation import Situation
from streamclient.core.tenancies import settle
from streamclient.core.tenancy import CheckpointRequest, ConsumerPhase, HeldLease

WAITING_PHASES = (ConsumerPhase.RUNNING, ConsumerPhase.STOPPING)
"""Phases in which user code may ask for checkpoints."""


def checkpoint_requested(situation: Situation, event: CheckpointRequested) -> None:
    """Queue a position, or refuse it at once if its tenancy is over."""
    held = situation.held.get(event.lease_key)
    if held is None or held.identifier != event.consumer_id or held.consumer not in WAITING_PHASES:
        situation.emit(AnswerCheckpoint(event.request_id, CheckpointOutcome.LEASE_LOST))
        return
    request = CheckpointRequest(event.request_id, event.value, event.progress, event.pending)
    situation.keep(evolve(held, requests=(*held.requests, request)))
    settle(situation, event.lease_key)


def checkpoint_stored(situation: Situation, held: HeldLease) -> None:
    """Answer the requests that the accepted write covered."""
    answer_sent(situation, held, CheckpointOutcome.STORED)
    key = held.lease.lease_key
    if held.lease.is_finished:
        situation.report(Severity.INFO, key, f"finished: {held.lease}")
        situation.wants_listing = situation.wants_listing or not situation.is_stopping
        for child in sorted(child for child, ancestor in situation.waiting.items() if ancestor == key):
            settle(situation, child)
        situation.presence.wake(
            row.owner for row in situation.view.rows.values() if row.owner and key in row.parent_shard_ids
        )


def answer_sent(
    situation: Situation, held: HeldLease, outcome: CheckpointOutcome, error: Exception | None = None
) -> None:
    """Answer the requests that the write under way was for, and go on with those behind them."""
    for request in held.requests[: held.sent_requests]:
        situation.emit(AnswerCheckpoint(request.request_id, outcome, error))
    situation.keep(evolve(held, requests=held.requests[held.sent_requests :], sent_requests=0))


def consumer_stopped(situation: Situation, event: ConsumerStopped) -> None:
    """Free the shard's slot; then the lease goes on, is handed over, or is read anew."""
    key = event.lease_key
    if situation.running.get(key) == event.consumer_id:
        del situation.running[key]
    held = situation.held.get(key)
    if held is not None and held.identifier == event.consumer_id:
        is_done = event.end is ConsumerEnd.DONE and not held.lease.is_finished
        if is_done:
            situation.released[key] = None
            situation.report(Severity.INFO, key, f"its processor is done, the lease is given away: {held.lease}")
        situation.keep(evolve(held, consumer=ConsumerPhase.NONE, is_released=held.is_released or is_done))
    row = situation.view.row(key)
    if held is None and row is not None and row.owner == situation.worker_id:
        situation.wants_scan = True
    settle(situation, key)


def consumer_stalled(situation: Situation, event: ConsumerStalled) -> None:
    """Let the lease run out, so that another worker goes on from the checkpoint.

    It is never handed over while the consumer runs: what hangs may come back and go on, until its lease is over. If it
    stops in time, the lease goes to another worker at once.
    """
    held = situation.held.get(event.lease_key)
    if held is None or held.identifier != event.consumer_id or held.consumer not in WAITING_PHASES or held.stall:
        return
    situation.keep(evolve(held, stall=event.reason))
    seconds = held.valid_until - situation.now
    text = f"its consumer stalled, the lease is let run out within {seconds:.0f} s: {event.reason}: {held.lease}"
    situation.report(Severity.ERROR, event.lease_key, text)
    settle(situation, event.lease_key)
