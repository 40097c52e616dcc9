"""Answers to writes, and clearing up doubtful ones.

A refused write may have been applied by a first try; an uncertain one may land later still. So neither is believed: the
row is read back, and what it says decides (Java stream client: a retried write that meets its own first success counts
as a lost lease there).
"""

from __future__ import annotations

from attrs import evolve

from streamclient.core import leases
from streamclient.core.census import NEVER
from streamclient.core.consumers import answer_sent, checkpoint_stored
from streamclient.core.events import (
    CheckpointOutcome,
    ForgetEpoch,
    ReadRow,
    RowReadBack,
    RowUnreadable,
    Severity,
    WriteAnswered,
)
from streamclient.core.handover import new_owner
from streamclient.core.leases import LeaseWrite
from streamclient.core.rows import WriteKind, WriteOutcome
from streamclient.core.situation import Flight, Situation
from streamclient.core.sync import creation_answered
from streamclient.core.tenancies import lose, register, send, settle, start_anew
from streamclient.core.tenancy import HeldLease, Standing, accepted, standing, was_stored
from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition, Lease

TAKE_TRIES_MAX = 3
"""How often a take of a row in this worker's own name is repeated at once with the counter just read. The old owner, or
this worker, may have had one more write under way; more than a few changes in a row mean that somebody else is at work.
"""

DELETE_TRIES_MAX = 3
"""How often the deletion of a row is tried with the counter just read, until the next list of shards asks for it again.
Reading and writing takes a hundredth of the time between two heartbeats."""

UNEXPLAINED_MOVES_MAX = 5
"""After how many refusals in a row that look like own successes another process is taken to use this worker's name. A
lost answer inside the lease store explains one now and then, not five in a row."""

CHECKPOINT_KINDS = (WriteKind.CHECKPOINT, WriteKind.PREPARE)
"""Writes that somebody waits for."""


def write_answered(situation: Situation, event: WriteAnswered) -> None:
    """Take in the outcome of a write."""
    key = event.write.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is not None or flight.write.kind is not event.write.kind:
        situation.report(Severity.WARNING, key, f"answer to a write that is not under way, ignored: {event.write}")
    elif event.outcome is WriteOutcome.ACCEPTED:
        situation.land(key)
        _note(situation, event.write)
        _applied(situation, event.write, event.sent_at, None, is_plain=True)
    elif _is_impossible(situation, event):
        situation.land(key)
        _put_aside(situation, situation.held[key], event)
    elif _needs_read_back(situation, event.write):
        situation.doubt(key, evolve(flight, write=event.write, outcome=event.outcome))
        _remember_doubt(situation, key, event.sent_at)
        situation.emit(ReadRow(key))
    else:
        situation.land(key)
        _given_up(situation, event)


def row_read_back(situation: Situation, event: RowReadBack) -> None:
    """Decide a write in doubt by the row."""
    key = event.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is None:
        situation.report(Severity.WARNING, key, "row read without need, ignored")
        return
    situation.land(key)
    if event.row is None:
        situation.view.note_absent(key)
    else:
        situation.view.note(event.row, situation.now)
    held = situation.held.get(key)
    if held is not None:
        _resolve_held(situation, held, flight, event.row)
    elif flight.write.kind is WriteKind.TAKE:
        _resolve_take(situation, flight, event.row)
    elif flight.write.kind is WriteKind.DELETE:
        _resolve_delete(situation, flight, event.row)


def row_unreadable(situation: Situation, event: RowUnreadable) -> None:
    """Read again after a pause; without a tenancy, the next scan will tell."""
    key = event.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is None:
        return
    if key in situation.held:
        situation.read_later(key)
    else:
        situation.land(key)
        situation.scan_soon(situation.pause_seconds(2))


def reads_due(situation: Situation) -> None:
    """Repeat the reads whose pause is over."""
    for key in situation.rereads.take_due(situation.now):
        situation.emit(ReadRow(key))


def _needs_read_back(situation: Situation, write: LeaseWrite) -> bool:
    if write.lease_key in situation.held:
        return _is_held_write(write)
    return write.kind in (WriteKind.TAKE, WriteKind.DELETE)


def _remember_doubt(situation: Situation, key: str, sent_at: float) -> None:
    held = situation.held.get(key)
    if held is not None and (held.doubted_at is None or sent_at < held.doubted_at):
        situation.keep(evolve(held, doubted_at=sent_at))


def _is_held_write(write: LeaseWrite) -> bool:
    """Whether the write belongs to a tenancy, so that its doubtful outcome must be cleared up."""
    if write.kind is WriteKind.CREATE:
        return write.seen.owner != ""
    return write.kind not in (WriteKind.STEAL, WriteKind.DELETE)


def _is_impossible(situation: Situation, event: WriteAnswered) -> bool:
    """Whether the store said by itself that it cannot do what a held lease asked for: it was never sent."""
    is_asked = event.write.kind in (*CHECKPOINT_KINDS, WriteKind.TAKE_PAUSE, WriteKind.LEAVE_PAUSE)
    return is_asked and isinstance(event.error, ConfigurationError) and event.write.lease_key in situation.held


def _put_aside(situation: Situation, held: HeldLease, event: WriteAnswered) -> None:
    """Go on without a write that will never be possible."""
    if event.write.kind in CHECKPOINT_KINDS:
        answer_sent(situation, held, CheckpointOutcome.REJECTED, event.error)
    else:
        pause = event.write.seen.pause
        text = f"pauses are obeyed and cannot be acknowledged: {event.error}"
        situation.report(Severity.WARNING, held.lease.lease_key, text)
        situation.keep(evolve(held, has_acknowledged=False, mute_pause="" if pause is None else pause.request_id))
    settle(situation, held.lease.lease_key)


def _call(situation: Situation, write: LeaseWrite) -> None:
    """Wake whoever has something to do now: the owner of a marked lease, the receiver of one that was handed over."""
    if write.kind is WriteKind.STEAL:
        situation.presence.wake([write.seen.owner])
    elif write.kind is WriteKind.TRANSFER and write.result is not None:
        situation.presence.wake([write.result.owner])


def _note(situation: Situation, write: LeaseWrite) -> None:
    row = situation.view.row(write.lease_key)
    if write.result is None:
        situation.view.note_absent(write.lease_key)
    elif write.kind is WriteKind.STEAL:
        if row is not None and row.owner == write.seen.owner:
            situation.view.note(evolve(row, stealer=write.result.stealer), situation.now)
    else:
        situation.view.note(write.result, situation.now)


def _given_up(situation: Situation, event: WriteAnswered) -> None:
    if event.write.kind is WriteKind.CREATE:
        creation_answered(situation)
    situation.scan_soon(situation.pause_seconds(2))
    settle(situation, event.write.lease_key)


def _applied(situation: Situation, write: LeaseWrite, sent_at: float, row: Lease | None, *, is_plain: bool) -> None:
    """An own write is in the table. ``row`` if it was read back, ``is_plain`` if the answer said so by itself."""
    key = write.lease_key
    _call(situation, write)
    held = situation.held.get(key)
    if held is None:
        _applied_without_tenancy(situation, write, sent_at)
        return
    if write.kind is WriteKind.TRANSFER:
        receiver = write.result.owner if write.result is not None else ""
        lose(situation, key, Severity.INFO, f"handed over to {receiver}: {held.lease}")
        return
    if write.kind is WriteKind.DELETE:
        lose(situation, key, Severity.WARNING, f"its shard left the stream: {held.lease}")
        situation.emit(ForgetEpoch(key))
        return
    held = accepted(held, write, sent_at, situation.duration_seconds, row)
    if is_plain and held.unexplained_moves:
        held = evolve(held, unexplained_moves=0)
    if row is not None:
        held = evolve(held, pause_known_at=situation.now)
    if _broke_off(situation, write):
        situation.acquisitions += 1
        held = evolve(held, needs_epoch=True, acquisition=situation.acquisitions)
    situation.keep(held)
    if write.kind in CHECKPOINT_KINDS:
        checkpoint_stored(situation, held)
    settle(situation, key)


def _broke_off(situation: Situation, write: LeaseWrite) -> bool:
    """Whether the row was gone or put anew before this write brought it back: others may have had it in between."""
    is_restored = write.kind is WriteKind.TAKE and write.seen.owner != situation.worker_id
    return is_restored or write.kind is WriteKind.CREATE


def _applied_without_tenancy(situation: Situation, write: LeaseWrite, sent_at: float) -> None:
    if write.kind is WriteKind.TAKE and write.result is not None:
        register(situation, write.result, sent_at)
    elif write.kind is WriteKind.CREATE:
        situation.has_created = True
        if write.result is not None and write.result.checkpoint != CheckpointPosition.TRIM_HORIZON:
            situation.begun_late.add(write.lease_key)
        creation_answered(situation)
    elif write.kind is WriteKind.TRANSFER:
        situation.report(Severity.INFO, write.lease_key, f"handed over without reading it: {write.result}")
    elif write.kind is WriteKind.DELETE:
        situation.emit(ForgetEpoch(write.lease_key))


def _resolve_take(situation: Situation, flight: Flight, row: Lease | None) -> None:
    """Take a row in this worker's own name again, even if it looks as the take would have left it.

    That proves only that some write of this worker moved it, maybe of an earlier tenancy, maybe long ago; others count
    from then. When an accepted take was sent is known.
    """
    is_ours = row is not None and row.owner == situation.worker_id and row.stealer in ("", situation.worker_id)
    receiver = new_owner(situation, row) if row is not None and is_ours and situation.is_stopping else None
    if row is not None and receiver is not None:
        send(situation, leases.transfer(row, receiver))
    elif row is not None and is_ours and flight.tries < TAKE_TRIES_MAX and not situation.is_stopping:
        send(situation, leases.take(row, situation.worker_id), tries=flight.tries + 1)
    else:
        situation.scan_soon(situation.pause_seconds(2))


def _resolve_delete(situation: Situation, flight: Flight, row: Lease | None) -> None:
    """Delete the row of a shard that left the stream as it is by now.

    A row whose owner lives moves with every heartbeat, and the last scan is mostly older than that.
    """
    is_gone = situation.listing is not None and flight.write.lease_key not in situation.listing
    if row is not None and is_gone and flight.tries < DELETE_TRIES_MAX and not situation.is_stopping:
        send(situation, leases.delete(row), tries=flight.tries + 1)
    elif row is None:
        situation.emit(ForgetEpoch(flight.write.lease_key))


def _resolve_held(situation: Situation, held: HeldLease, flight: Flight, row: Lease | None) -> None:
    verdict = standing(held, flight.write, row)
    explained = flight.outcome is WriteOutcome.UNCERTAIN or verdict not in (Standing.APPLIED, Standing.ADVANCED)
    moves = held.unexplained_moves + (0 if explained else 1)
    held = evolve(held, unexplained_moves=moves)
    if row is not None and row.counter != held.lease.counter:
        held = evolve(held, moved_unseen_at=situation.now)
    situation.keep(held)
    if verdict is Standing.NAME_CONFLICT or moves >= UNEXPLAINED_MOVES_MAX:
        _yield_name(situation, held, row)
    elif verdict is Standing.APPLIED:
        sent_at = NEVER if held.doubted_at is None else held.doubted_at
        _applied(situation, flight.write, sent_at, row, is_plain=False)
    elif verdict is Standing.ABSENT:
        _row_gone(situation, held)
    elif row is not None and verdict in (Standing.UNCHANGED, Standing.ADVANCED):
        _try_again(situation, held, row)
    elif row is not None and verdict is Standing.RESET:
        _restore(situation, held, row)
    elif row is not None and verdict is Standing.REWOUND:
        _rewound(situation, held, row)
    elif verdict is Standing.RELEASED:
        lose(situation, held.lease.lease_key, Severity.WARNING, f"taken away by an operator: {held.lease}")
    else:
        _lost_to(situation, held, flight.write, row)


def _try_again(situation: Situation, held: HeldLease, row: Lease) -> None:
    has_moved = row.counter > held.lease.counter
    tries = 0 if has_moved else held.tries + 1
    situation.keep(
        evolve(
            held,
            lease=row,
            pause_known_at=situation.now,
            sent_requests=0,
            tries=tries,
            not_before=situation.now + situation.pause_seconds(tries),
            is_renewal_due=True,
            doubted_at=None if has_moved else held.doubted_at,
        )
    )
    settle(situation, row.lease_key)


def _rewound(situation: Situation, held: HeldLease, row: Lease) -> None:
    """Go on from where somebody else put the checkpoint; a consumer that is past it would hide that.

    The row moved once, by that hand: no checkpoint of ours can have been stored.
    """
    text = f"its checkpoint was moved from outside, reading starts anew there: known {held.lease}, found {row}"
    situation.report(Severity.WARNING, row.lease_key, text)
    held = evolve(held, lease=row, pause_known_at=situation.now, is_renewal_due=True)
    start_anew(situation, held, in_doubt=CheckpointOutcome.LEASE_LOST)
    settle(situation, row.lease_key)


def _row_gone(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    situation.keep(evolve(held, is_absent=True, sent_requests=0, tries=held.tries + 1))
    situation.wants_listing = situation.wants_listing or held.tries == 0
    situation.report(Severity.WARNING, key, f"its lease row is gone; does the shard still exist? {held.lease}")


def _restore(situation: Situation, held: HeldLease, row: Lease) -> None:
    """Take a row that was put over ours, with our checkpoint, before anybody reads from its beginning."""
    key = held.lease.lease_key
    situation.keep(evolve(held, sent_requests=0, is_absent=False))
    situation.report(Severity.WARNING, key, f"its lease row was reset to {row}; restoring {held.lease}")
    send(situation, leases.restore(row, held.lease))


def _yield_name(situation: Situation, held: HeldLease, row: Lease | None) -> None:
    if situation.presence.keeps_rows:
        # Who has the name is known from the session, which is looked at often.
        text = f"changed several times from outside: known {held.lease}, found {row}"
        lose(situation, held.lease.lease_key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
        situation.scan_soon(situation.pause_seconds(2))
        return
    text = (
        f"another process uses the worker identifier {situation.worker_id!r}, or the row was changed several times "
        f"from outside; this one gives way. Give every worker its own identifier. Known {held.lease}, found {row}"
    )
    lose(situation, held.lease.lease_key, Severity.ERROR, text, in_doubt=CheckpointOutcome.UNKNOWN)


def _lost_to(situation: Situation, held: HeldLease, write: LeaseWrite, row: Lease | None) -> None:
    stored = was_stored(held, write, row) if write.kind in CHECKPOINT_KINDS else False
    outcomes = {True: CheckpointOutcome.STORED, False: CheckpointOutcome.LEASE_LOST, None: CheckpointOutcome.UNKNOWN}
    severity = Severity.INFO if write.kind is WriteKind.TRANSFER else Severity.WARNING
    text = f"lost: known {held.lease}, found {row}"
    lose(situation, held.lease.lease_key, severity, text, in_doubt=outcomes[stored])
