"""Answers to writes, and the resolution of doubtful answers.

If a write was refused, an earlier try of the same write may have been applied. If the outcome is uncertain, the write
may still be applied later. In both cases the worker reads the row back, and the row shows whether the write was
applied. (The Java stream client gives the lease up if a retry is refused because the first try was applied.)
"""

from __future__ import annotations

from enum import Enum

from streamclient.core import leases
from streamclient.core.deadlines import NEVER
from streamclient.core.events import Answered, CheckpointOutcome, ForgetEpoch, ReadRow, Severity, WriteLease
from streamclient.core.held import HeldLease, accepted
from streamclient.core.leases import LeaseWrite
from streamclient.core.requests import answer_sent, checkpoint_stored
from streamclient.core.settle import leave, lose, new_owner, register, send, settle, start_anew
from streamclient.core.shards import begins_late
from streamclient.core.sync import creation_answered
from streamclient.core.values import evolve
from streamclient.core.worker_state import Flight, WorkerState
from streamclient.core.write_rules import NO_DOUBT, WriteKind, WriteOutcome, was_applied
from streamclient.errors import ConfigurationError
from streamclient.model import Lease

TAKE_TRIES_MAX = 3
"""The largest number of attempts to take a lease whose row already names this worker as owner. Each attempt immediately
follows a read of the row, and uses the counter from that read. The counter may have changed because of an earlier write
of the old owner or of this worker. More than a few such changes mean that another process writes."""

DELETE_TRIES_MAX = 3
"""The largest number of attempts to delete a row, each with the counter that was just read. After these attempts, the
deletion waits for the next list of shards that requires it. An attempt fails if a heartbeat of the owner has moved the
counter meanwhile. A few attempts suffice, because one takes a hundredth of the time between two heartbeats."""

UNEXPLAINED_MOVES_MAX = 5
"""If this many consecutive writes are refused although the row shows them as applied, this worker concludes that
another process uses its name. An answer that is lost inside the lease store explains a single such refusal, but not
five in succession."""

CHECKPOINT_KINDS = (WriteKind.CHECKPOINT, WriteKind.PREPARE)
"""The kinds of writes for which user code waits."""


def write_answered(state: WorkerState, call: WriteLease, answer: Answered[WriteOutcome]) -> None:
    """Process the outcome of a write of a lease row."""
    write, key, outcome = call.write, call.write.lease_key, answer.value or WriteOutcome.UNCERTAIN
    flight = state.flights.get(key)
    if flight is None or flight.outcome is not None or flight.write.kind is not write.kind:
        state.report(Severity.WARNING, key, f"answer to a write that is not under way, ignored: {write.kind.value}")
    elif outcome is WriteOutcome.ACCEPTED:
        state.land(key)
        _note(state, write)
        _applied(state, write, answer.sent_at, None, is_plain=True)
    elif isinstance(answer.error, ConfigurationError) and _is_dispensable(state, write):
        state.land(key)
        _put_aside(state, state.held[key], write, answer.error)
    elif _needs_read_back(state, write):
        state.doubt(key, evolve(flight, write=write, outcome=outcome))
        held = state.held.get(key)
        if held is not None:
            state.keep(evolve(held, doubt=held.doubt.sent(answer.sent_at)))
        state.emit(ReadRow(key))
    else:
        state.land(key)
        _given_up(state, write)


def row_answered(state: WorkerState, call: ReadRow, answer: Answered[Lease | None]) -> None:
    """Decide from the row whether a write in doubt was applied. If the read failed, repeat the read later."""
    key = call.lease_key
    flight = state.flights.get(key)
    if flight is None or flight.outcome is None:
        if answer.error is None:
            state.report(Severity.WARNING, key, "answer to a read that is not needed, ignored")
    elif answer.error is not None:
        _unreadable(state, key)
    else:
        state.land(key)
        _read_back(state, flight, answer.value)


def _read_back(state: WorkerState, flight: Flight, row: Lease | None) -> None:
    key = flight.write.lease_key
    if row is None:
        state.view.note_absent(key)
    else:
        state.view.note(row, state.now)
    held = state.held.get(key)
    if held is not None:
        _resolve_held(state, held, flight, row)
    elif flight.write.kind is WriteKind.TAKE:
        _resolve_take(state, flight, row)
    elif flight.write.kind is WriteKind.DELETE:
        _resolve_delete(state, flight, row)


def _unreadable(state: WorkerState, key: str) -> None:
    """Repeat the failed read of a row: after a pause if the lease is held, otherwise with the next scan."""
    if key in state.held:
        state.read_later(key)
    else:
        state.land(key)
        state.scan_soon(state.pause_seconds(2))


def reads_due(state: WorkerState) -> None:
    """Repeat each failed read of a row when the pause after the failure is over."""
    for key in state.rereads.take_due(state.now):
        state.emit(ReadRow(key))


def _needs_read_back(state: WorkerState, write: LeaseWrite) -> bool:
    if write.lease_key in state.held:
        return _is_held_write(write)
    return write.kind in (WriteKind.TAKE, WriteKind.DELETE)


def _is_held_write(write: LeaseWrite) -> bool:
    """Return whether only a lease's owner sends such a write. If so, the owner must resolve a doubtful outcome."""
    if write.kind is WriteKind.CREATE:
        return write.seen.owner != ""
    return write.kind not in (WriteKind.STEAL, WriteKind.DELETE)


def _is_dispensable(state: WorkerState, write: LeaseWrite) -> bool:
    """Return whether the lease is held, and the worker can go on without ``write``.

    The store does not support this write.
    """
    own_columns = (WriteKind.TAKE_PAUSE, WriteKind.LEAVE_PAUSE, WriteKind.END_ORDERS)
    is_asked = write.kind in (*CHECKPOINT_KINDS, *own_columns, WriteKind.RELEASE)
    return is_asked and write.lease_key in state.held


def _put_aside(state: WorkerState, held: HeldLease, write: LeaseWrite, error: Exception) -> None:
    """Go on without a write that the store does not support."""
    if write.kind is WriteKind.RELEASE:
        leave(state, held)
        return
    if write.kind in CHECKPOINT_KINDS:
        answer_sent(state, held, CheckpointOutcome.REJECTED, error)
    elif write.kind is WriteKind.END_ORDERS:
        text = f"orders are obeyed but cannot be removed: {error}"
        state.report(Severity.WARNING, held.lease.lease_key, text)
        state.keep(evolve(held, keeps_orders=True))
    else:
        pause = write.seen.pause
        text = f"pauses are obeyed but cannot be acknowledged: {error}"
        state.report(Severity.WARNING, held.lease.lease_key, text)
        state.keep(evolve(held, may_acknowledge=False, mute_pause="" if pause is None else pause.request_id))
    settle(state, held.lease.lease_key)


def _call(state: WorkerState, write: LeaseWrite) -> None:
    """Wake the worker that must act after ``write``: the owner of a requested lease, or the receiver of a hand-over."""
    if write.kind is WriteKind.STEAL:
        state.signals.wake([write.seen.owner])
    elif write.kind is WriteKind.TRANSFER and write.result is not None:
        state.signals.wake([write.result.owner])


def _note(state: WorkerState, write: LeaseWrite) -> None:
    row = state.view.row(write.lease_key)
    if write.result is None:
        state.view.note_absent(write.lease_key)
    elif write.kind is WriteKind.STEAL:
        if row is not None and row.owner == write.seen.owner:
            state.view.note(evolve(row, stealer=write.result.stealer), state.now)
    else:
        state.view.note(write.result, state.now)


def _given_up(state: WorkerState, write: LeaseWrite) -> None:
    if write.kind is WriteKind.CREATE:
        creation_answered(state, write.lease_key)
    state.scan_soon(state.pause_seconds(2))
    settle(state, write.lease_key)


def _applied(state: WorkerState, write: LeaseWrite, sent_at: float, row: Lease | None, *, is_plain: bool) -> None:
    """Process a write of this worker that was applied.

    ``row`` is the row, if it was read back. ``is_plain`` says that the answer itself confirmed the write.
    """
    key = write.lease_key
    _call(state, write)
    held = state.held.get(key)
    if held is None:
        _applied_unheld(state, write, sent_at)
        return
    if write.kind is WriteKind.TRANSFER:
        receiver = write.result.owner if write.result is not None else ""
        lose(state, key, Severity.INFO, f"handed over to {receiver}: {held.lease}")
        return
    if write.kind is WriteKind.RELEASE:
        leave(state, held)
        return
    if write.kind is WriteKind.DELETE:
        lose(state, key, Severity.WARNING, f"its shard left the stream: {held.lease}")
        state.emit(ForgetEpoch(key))
        return
    held = accepted(held, write, sent_at, state.duration_seconds, row)
    if is_plain and held.unexplained_moves:
        held = evolve(held, unexplained_moves=0)
    if row is not None or write.kind is WriteKind.END_ORDERS:
        held = evolve(held, pause_known_at=state.now)
    if _broke_off(state, write):
        broken = held.acquisition
        number = state.next_acquisition().number
        held = evolve(held, acquisition=evolve(broken, number=number, needs_epoch=True))
    state.keep(held)
    if write.kind in CHECKPOINT_KINDS:
        checkpoint_stored(state, held)
    settle(state, key)


def _broke_off(state: WorkerState, write: LeaseWrite) -> bool:
    """Return whether the applied ``write`` restored the row of a held lease.

    Such a row was missing, or another program had overwritten it with a new row. Before the row was restored, another
    worker may have held the lease.
    """
    is_restored = write.kind is WriteKind.TAKE and write.seen.owner != state.worker_id
    return is_restored or write.kind is WriteKind.CREATE


def _applied_unheld(state: WorkerState, write: LeaseWrite, sent_at: float) -> None:
    if write.kind is WriteKind.TAKE and write.result is not None:
        register(state, write.result, sent_at)
    elif write.kind is WriteKind.CREATE:
        state.has_created = True
        if write.result is not None and begins_late(write.result):
            state.begun_late.add(write.lease_key)
        creation_answered(state, write.lease_key)
    elif write.kind is WriteKind.TRANSFER:
        state.report(Severity.INFO, write.lease_key, f"handed over without reading it: {write.result}")
    elif write.kind is WriteKind.DELETE:
        state.emit(ForgetEpoch(write.lease_key))


def _resolve_take(state: WorkerState, flight: Flight, row: Lease | None) -> None:
    """Take the lease again if its row names this worker as owner, because an older write may have set the owner.

    That write may be from an acquisition long ago, and other workers measure the lease duration from it. Only a take
    that is accepted starts a lease duration whose beginning this worker knows: the time when it sent the take.
    """
    is_ours = row is not None and row.owner == state.worker_id and row.stealer in ("", state.worker_id)
    receiver = new_owner(state, row) if row is not None and is_ours and state.is_stopping else None
    if row is not None and receiver is not None:
        send(state, leases.transfer(row, receiver))
    elif row is not None and is_ours and flight.tries < TAKE_TRIES_MAX and not state.is_stopping:
        send(state, leases.take(row, state.worker_id), tries=flight.tries + 1)
    else:
        state.scan_soon(state.pause_seconds(2))


def _resolve_delete(state: WorkerState, flight: Flight, row: Lease | None) -> None:
    """Try again to delete the row of a shard that left the stream, if the stored row still equals ``row``.

    ``row`` was just read. The first attempt required that the stored row equals the row of the last scan. That row is
    usually out of date, because an owner that is alive changes the stored row with every heartbeat.
    """
    is_gone = state.listing is not None and flight.write.lease_key not in state.listing
    if row is not None and is_gone and flight.tries < DELETE_TRIES_MAX and not state.is_stopping:
        send(state, leases.delete(row), tries=flight.tries + 1)
    elif row is None:
        state.emit(ForgetEpoch(flight.write.lease_key))


def _resolve_held(state: WorkerState, held: HeldLease, flight: Flight, row: Lease | None) -> None:
    verdict = standing(held, flight.write, row)
    explained = flight.outcome is WriteOutcome.UNCERTAIN or verdict not in (Standing.APPLIED, Standing.ADVANCED)
    moves = held.unexplained_moves + (0 if explained else 1)
    held = evolve(held, unexplained_moves=moves)
    if row is not None and row.counter != held.lease.counter:
        held = evolve(held, moved_unseen_at=state.now)
    state.keep(held)
    if verdict is Standing.NAME_CONFLICT or moves >= UNEXPLAINED_MOVES_MAX:
        _yield_name(state, held, row)
    elif verdict is Standing.APPLIED:
        sent_at = NEVER if held.doubt.since is None else held.doubt.since
        _applied(state, flight.write, sent_at, row, is_plain=False)
    elif verdict is Standing.ABSENT:
        _row_gone(state, held)
    elif row is not None and verdict in (Standing.UNCHANGED, Standing.ADVANCED):
        _try_again(state, held, row)
    elif row is not None and verdict is Standing.RESET:
        _restore(state, held, row)
    elif row is not None and verdict is Standing.REWOUND:
        _rewound(state, held, row)
    elif verdict is Standing.RELEASED:
        lose(state, held.lease.lease_key, Severity.WARNING, f"taken away by an operator: {held.lease}")
    else:
        _lost_to(state, held, flight.write, row)


def _try_again(state: WorkerState, held: HeldLease, row: Lease) -> None:
    has_moved = row.counter > held.lease.counter
    doubt = NO_DOUBT if has_moved else held.doubt.again(state.now, state.pause_seconds)
    state.keep(
        evolve(
            held,
            lease=row,
            pause_known_at=state.now,
            sent_requests=0,
            doubt=doubt,
            is_renewal_due=True,
        )
    )
    settle(state, row.lease_key)


def _rewound(state: WorkerState, held: HeldLease, row: Lease) -> None:
    """Start a new consumer at a checkpoint that an operator moved.

    The next checkpoint of the running consumer would undo the operator's move. The row shows no other change, so this
    worker has stored no checkpoint since that move.
    """
    text = f"its checkpoint was moved from outside, reading starts anew there: known {held.lease}, found {row}"
    state.report(Severity.WARNING, row.lease_key, text)
    held = evolve(held, lease=row, pause_known_at=state.now, is_renewal_due=True)
    start_anew(state, held, in_doubt=CheckpointOutcome.LEASE_LOST)
    settle(state, row.lease_key)


def _row_gone(state: WorkerState, held: HeldLease) -> None:
    key = held.lease.lease_key
    tries = held.doubt.tries
    state.keep(evolve(held, is_gone=True, sent_requests=0, doubt=evolve(held.doubt, tries=tries + 1)))
    state.wants_listing = state.wants_listing or tries == 0
    state.report(Severity.WARNING, key, f"its lease row is gone; does the shard still exist? {held.lease}")


def _restore(state: WorkerState, held: HeldLease, row: Lease) -> None:
    """Take a lease whose row was overwritten with a new row, and restore the known checkpoint.

    Otherwise a worker would soon read the shard from its beginning.
    """
    key = held.lease.lease_key
    state.keep(evolve(held, sent_requests=0, is_gone=False))
    state.report(Severity.WARNING, key, f"its lease row was reset to {row}; restoring {held.lease}")
    send(state, leases.restore(row, held.lease))


def _yield_name(state: WorkerState, held: HeldLease, row: Lease | None) -> None:
    if row is not None and row.counter < held.lease.counter:
        # Every write of a worker increases the counter, so the row was changed by another program.
        text = f"its row was put back from outside, perhaps from a backup: known {held.lease}, found {row}"
        lose(state, held.lease.lease_key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
        state.scan_soon(state.pause_seconds(2))
        return
    if state.signals.keeps_rows:
        # The worker often reads its own row, which shows whether another process has its name.
        text = f"changed several times from outside: known {held.lease}, found {row}"
        lose(state, held.lease.lease_key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
        state.scan_soon(state.pause_seconds(2))
        return
    text = (
        f"another process uses the worker identifier {state.worker_id!r}, or the row was changed several times "
        f"from outside; this process gives way. Give every worker its own identifier. Known {held.lease}, found {row}"
    )
    lose(state, held.lease.lease_key, Severity.ERROR, text, in_doubt=CheckpointOutcome.UNKNOWN)


def _lost_to(state: WorkerState, held: HeldLease, write: LeaseWrite, row: Lease | None) -> None:
    stored = was_stored(held, write, row) if write.kind in CHECKPOINT_KINDS else False
    outcomes = {True: CheckpointOutcome.STORED, False: CheckpointOutcome.LEASE_LOST, None: CheckpointOutcome.UNKNOWN}
    severity = Severity.INFO if write.kind is WriteKind.TRANSFER else Severity.WARNING
    text = f"lost: known {held.lease}, found {row}"
    lose(state, held.lease.lease_key, severity, text, in_doubt=outcomes[stored])


# --- the meaning of a row that was read back -----------------------------------------------------------------------


class Standing(Enum):
    """The meaning of a row that was read back, for a held lease and its write in doubt."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The row is unchanged, except perhaps for a mark, which is another worker's request for the lease. The write may
    be sent again."""
    ADVANCED = "advanced"
    """An earlier write of this worker was applied late."""
    ABSENT = "absent"
    RESET = "reset"
    """The row has no owner: a Java worker's shard sync, or another program, has overwritten it with a new row."""
    REWOUND = "rewound"
    """The owner is the same, but the checkpoint was moved from outside: an operator's rewind."""
    RELEASED = "released"
    """The row has no owner but still has this worker's checkpoint: an operator took the lease away."""
    NAME_CONFLICT = "name conflict"
    """Another process writes under this worker's name."""
    LOST = "lost"


def standing(held: HeldLease, write: LeaseWrite, row: Lease | None) -> Standing:
    """Classify ``row``, which was read after ``write`` was refused or its outcome was uncertain."""
    if row is None:
        return Standing.ABSENT
    if was_applied(row, write):
        return Standing.APPLIED
    known = held.lease
    is_own_checkpoint = row.checkpoint in _own_checkpoints(held)
    distance = row.counter - known.counter
    if row.owner == known.owner:
        if distance == 1 and not is_own_checkpoint:
            return Standing.REWOUND
        return {0: Standing.UNCHANGED, 1: Standing.ADVANCED}.get(distance, Standing.NAME_CONFLICT)
    if row.owner:
        return Standing.LOST
    return Standing.RELEASED if distance > 0 and is_own_checkpoint else Standing.RESET


def _own_checkpoints(held: HeldLease) -> set[str]:
    """Return the last stored checkpoint, and the checkpoints that may be stored although no answer confirmed them."""
    return {held.checkpoint, *(request.value for request in held.requests if request.was_sent and not request.pending)}


def was_stored(held: HeldLease, write: LeaseWrite, row: Lease | None) -> bool | None:
    """Return whether a doubtful checkpoint is stored, after the lease was lost; ``None`` if that is unknown."""
    if row is None or write.result is None:
        return None
    is_prepared = write.kind is WriteKind.PREPARE
    wanted, before, present = (
        (lease.pending if is_prepared else lease.checkpoint) for lease in (write.result, write.seen, row)
    )
    if present == wanted != before:
        return True
    # A prepared checkpoint disappears with the next checkpoint, so its absence proves nothing once the checkpoint has
    # moved.
    is_unchanged = present == before and row.checkpoint == write.seen.checkpoint
    return False if row.counter <= held.lease.counter + 1 or is_unchanged else None
