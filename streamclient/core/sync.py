"""The work that a list of shards causes: rows are created and deleted, lost rows restored, ends of shards confirmed.

A page may say that a shard has ended. The shard's consumer learns from a listing whether that is true. Consumers that
reach an end at the same time share one listing, which must have begun after their pages arrived.
"""

from __future__ import annotations

from streamclient.base.reasons import described
from streamclient.core import leases
from streamclient.core.events import (
    Answered,
    AnswerEnd,
    EndAccepted,
    EndRead,
    ListShards,
    ResolveAndCreate,
    Severity,
    ShardList,
    SyncDue,
)
from streamclient.core.held import HeldLease
from streamclient.core.settle import lose, send, settle_restless
from streamclient.core.shard_tree import index_shards
from streamclient.core.shards import NewLease, SyncPlan, plan_shard_sync
from streamclient.core.values import evolve
from streamclient.core.worker_state import EndQuestion, WorkerState
from streamclient.records import readable_position

ACCEPTED_END_SECONDS = 900.0
"""The time for which an operator's order to accept the end of a shard counts, from the time when the operator wrote
the order. This time is longer than the longest pause between two reads, and longer than any difference of clocks. It is
short enough that a page that is cut much later does not count as the last page."""


def sync_due(state: WorkerState, event: SyncDue) -> None:
    """List the shards, if that is this worker's task.

    In a fleet whose workers all have sessions, the leader lists at each interval. Every other worker lists only once in
    as many intervals as there are workers, in case the leader cannot.
    """
    signals = state.signals
    if state.is_stopping:
        return
    if signals.is_uniform and not signals.is_leader:
        workers = len(signals.peers.others) + 1
        interval = state.config.sync_shard_interval_millis / 1_000
        if state.now - state.listed_at < (workers - 0.5) * interval:
            return
    state.wants_listing = True


def shards_listed(state: WorkerState, call: ListShards, answer: Answered[ShardList]) -> None:
    """Process a complete listing. An empty listing is ignored, because every stream has shards."""
    state.is_listing = False
    if answer.value is None:
        why = "" if answer.error is None else f" ({described(answer.error)})"
        _answer_ends(state, f"the list of shards could not be read{why}")
        return
    state.listed_at = state.now
    if answer.value.shards:
        state.previous_listing, state.listing = state.listing, index_shards(answer.value.shards)
        state.ends.listed(answer.value.shards, state.now)
        _report_circles(state)
        state.view.forget_vanished(state.listing)
        state.is_sync_planned = False
        state.compared = {key: number for key, number in state.compared.items() if key in state.listing}
        state.begun_late.intersection_update(state.listing)
        if state.first_listed is not None:
            state.first_listed.intersection_update(state.listing)
        _forget_gone(state)
        plan_sync(state)
        for held in list(state.held.values()):
            if held.is_gone:
                _save_vanished(state, held)
    settle_restless(state)
    _answer_ends(state, "the list of shards shows no child of it")


def _report_circles(state: WorkerState) -> None:
    for key, circle in state.ends.tree.circles.items():
        text = f"the stream lists it before itself, so it is never read: {', '.join(circle)} are each other's parents"
        state.report_once(Severity.ERROR, key, "circle", text)


# --- ends of shards --------------------------------------------------------------------------------------------------


def end_read(state: WorkerState, event: EndRead) -> None:
    """Process a page that reports a shard's end.

    Believe the page if the end was shown by a listing, or was accepted, before the page was read. If the end became
    known only since then, the page is read again, because the page may have been cut and the shard may have
    got records before it ended. If the end is not known, a new listing is requested.
    """
    key, accepted_at = event.lease_key, _accepted_at(state, event.lease_key)
    is_shown = state.ends.shows_end(key, event.read_at) or (accepted_at is not None and accepted_at <= event.read_at)
    if is_shown or accepted_at is not None or state.ends.shows_end(key):
        state.end_questions.pop(event.consumer_id, None)
        state.emit(AnswerEnd(key, event.consumer_id, is_shown=True, since_read=not is_shown))
        return
    state.ends.knows({row.lease_key: row.parent_shard_ids for row in state.view.rows.values()})
    state.end_questions[event.consumer_id] = EndQuestion(key, state.listings_begun)
    state.wants_listing = True


def end_accepted(state: WorkerState, event: EndAccepted) -> None:
    """Accept the end of a shard from now on, and immediately answer the consumers that wait for a listing."""
    state.accepted_ends.setdefault(event.lease_key, state.now)
    answer_accepted(state)


def answer_accepted(state: WorkerState) -> None:
    """Answer the waiting consumers whose shard's end the worker's program or an operator has accepted.

    These consumers then read the last page of their shard again.
    """
    for consumer_id, question in list(state.end_questions.items()):
        if _accepted_at(state, question.lease_key) is not None:
            del state.end_questions[consumer_id]
            state.emit(AnswerEnd(question.lease_key, consumer_id, is_shown=True, since_read=True))


def _answer_ends(state: WorkerState, why_not: str) -> None:
    """Answer the consumers whose shard's end is shown, and the consumers that asked before the last listing began.

    All other consumers wait for the next listing. If a consumer asked before the last listing began, and the end is not
    shown, its answer gives the reason ``why_not``; for example, the listing failed. That consumer reads again after a
    pause, or immediately once a later listing shows the end.
    """
    for consumer_id, question in list(state.end_questions.items()):
        key, is_new = question.lease_key, question.begun == state.listings_begun
        if state.ends.shows_end(key):
            del state.end_questions[consumer_id]
            state.emit(AnswerEnd(key, consumer_id, is_shown=True, since_read=True))
        elif not is_new and not question.is_refused:
            state.end_questions[consumer_id] = evolve(question, is_refused=True)
            is_listed = state.listing is not None and key in state.listing
            detail = why_not if is_listed else f"{why_not}, and a list that lacks the shard may be cut or old"
            state.emit(AnswerEnd(key, consumer_id, is_shown=False, detail=detail))
    state.wants_listing = not all(question.is_refused for question in state.end_questions.values())


def _accepted_at(state: WorkerState, lease_key: str) -> float | None:
    """Return the time when this worker learned that the end of the shard was accepted; ``None`` if it is not accepted.

    The worker's own program may accept the end, or an operator, whose order counts for ``ACCEPTED_END_SECONDS``. The
    shard had ended by the returned time, so a page that is read later and reports the end is the last page.
    """
    if lease_key in state.accepted_ends:
        return state.accepted_ends[lease_key]
    held = state.held.get(lease_key)
    order = None if held is None else held.lease.pause
    if order is None or not order.accepts_end or order.until_micros is None:
        return None
    if state.now >= state.moment_of(order.until_micros) + ACCEPTED_END_SECONDS:
        return None
    known = state.ordered_ends.get(lease_key)
    if known is None or known[0] != order:
        known = state.ordered_ends[lease_key] = order, state.now
    return known[1]


# --- rows ------------------------------------------------------------------------------------------------------------


def _forget_gone(state: WorkerState) -> None:
    """Forget shards that are not in the stream and have no row.

    If they were kept, a worker that lives for years would remember too many shards.
    """
    listing, rows = state.listing or {}, state.view.rows
    state.released = {key: None for key in state.released if key in listing or key in rows}
    state.ordered_ends = {key: known for key, known in state.ordered_ends.items() if key in state.held}
    reported = state.reported
    state.reported = {entry: None for entry in reported if not entry[0] or entry[0] in listing or entry[0] in rows}


def plan_sync(state: WorkerState) -> None:
    """Create and delete rows after a listing. Before the first scan, and while the worker stops, do nothing."""
    if state.is_sync_planned or state.is_stopping or not state.view.scans or state.listing is None:
        return
    state.is_sync_planned = True
    signals = state.signals
    is_first = state.view.live_workers(state.now)[0] == state.worker_id
    plan = plan_shard_sync(
        state.listing,
        state.view.rows,
        state.start,
        now=state.now,
        previous=state.previous_listing,
        absent_since=state.absent_since,
        vanished=state.view.vanished,
        begun_late=state.begun_late,
        first_listed=state.first_listed,
        deletes_rows=signals.is_leader if signals.is_uniform else is_first,
    )
    if state.first_listed is None:
        state.first_listed = set(state.listing)
    state.absent_since = dict(plan.absent_since)
    state.missing = {new.lease.lease_key: new for new in plan.creates if not _is_held(state, new)}
    create_missing(state)
    if plan.deletes and signals.is_uniform and not state.is_row_scan_fresh:
        # Owners move their counters all the time, and the last scan of this worker may be minutes old.
        state.is_sync_planned, state.wants_scan = False, True
    else:
        _delete(state, plan)


def create_missing(state: WorkerState, after: str | None = None) -> None:
    """Create the rows whose listed parents have rows by now.

    The rows of children follow when these writes are accepted. With ``after``, examine only the row with that lease key
    and the rows of its children. After a long history very many rows are missing, so it would cost too much to examine
    all of them after each write. A child's row must never exist before its parent's row: a Java worker would read the
    child immediately.
    """
    if state.is_stopping or state.listing is None:
        return
    rows, tree = state.view.rows, state.ends.tree
    keys = list(state.missing) if after is None else [after, *tree.children.get(after, ())]
    for key in keys:
        new = state.missing.get(key)
        if new is None:
            continue
        if key in rows:
            del state.missing[key]
        elif key not in state.flights and tree.may_begin(key, rows):
            del state.missing[key]
            _create(state, new)


def creation_answered(state: WorkerState, lease_key: str) -> None:
    """Create the rows that waited for the row ``lease_key``.

    After the last row, scan immediately to take the leases.
    """
    create_missing(state, lease_key)
    if state.creating:
        return
    state.wants_scan = True
    if state.has_created:
        state.has_created = False
        state.signals.wake_all()


def _create(state: WorkerState, new: NewLease) -> None:
    """Send the write that creates a row.

    The row starts at the latest record only if this worker also created its parents' rows at the latest record. Since
    the plan was made, other workers may have created the parents' rows at an earlier position. The records in between
    would then be skipped. So the shard is left to the next listing: until then, such a worker usually creates the row
    itself, at the position that belongs to the parents' position.
    """
    write = leases.create(new.lease)
    is_latest = state.start.initial_position.kind == "latest"
    parents = {parent for parent in new.lease.parent_shard_ids if parent in state.view.rows}
    if new.timestamp_micros is None:
        send(state, write)
    elif not is_latest or parents <= state.begun_late:
        state.launch(write)
        state.emit(ResolveAndCreate(new.lease, new.timestamp_micros))


def _is_held(state: WorkerState, new: NewLease) -> bool:
    return new.lease.lease_key in state.held


def _delete(state: WorkerState, plan: SyncPlan) -> None:
    for row in plan.losses:
        where = readable_position(row.checkpoint)
        text = f"left the stream before it was read to its end; unread records are lost after checkpoint {where}"
        state.report_once(Severity.ERROR, row.lease_key, "data loss", text)
    for row in plan.deletes:
        if row.lease_key not in state.flights:
            held = state.held.get(row.lease_key)
            send(state, leases.delete(row if held is None else held.lease))


def _save_vanished(state: WorkerState, held: HeldLease) -> None:
    """Create the row of a held lease again at its last position, if the shard still exists."""
    key = held.lease.lease_key
    if state.listing is not None and key in state.listing:
        state.keep(evolve(held, is_gone=False, is_renewal_due=True))
        send(state, leases.create(evolve(held.lease, stealer="", counter=held.lease.counter + 1)))
        return
    severity = Severity.INFO if held.lease.is_finished else Severity.ERROR
    lose(state, key, severity, f"its lease row is gone and the stream does not list the shard: {held.lease}")
