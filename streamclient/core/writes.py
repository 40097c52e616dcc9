"""Answers to writes, and clearing up doubtful ones.

A refused write may have been applied by a first try; an uncertain one may land later still. So neither is believed: the
row is read back, and what it says decides (Java stream client: a retried write that meets its own first success counts
as a lost lease there).
"""

from __future__ import annotations

from attrs import evolve

from streamclient.core import leases
from streamclient.core.events import (
    CheckpointOutcome,
    ReadRow,
    RowReadBack,
    RowUnreadable,
    Severity,
    WriteAnswered,
)
from streamclient.core.leases import LeaseWrite, WriteKind, WriteOutcome, was_applied
from streamclient.core.situation import Flight, Situation
from streamclient.core.sync import creation_answered
from streamclient.core.tenancies import checkpoint_stored, is_held_write, lose, register, send, settle
from streamclient.core.tenancy import HeldLease, Standing, accepted, standing, was_stored
from streamclient.model import Lease

TAKE_TRIES_MAX = 3
"""How often a take of a row in this worker's own name is repeated at once with the counter just read. The old owner may
have had one more renewal under way; more than a few changes in a row mean that somebody else is at work."""

UNEXPLAINED_MOVES_MAX = 5
"""After how many refusals in a row that look like own successes another process is taken to use this worker's name. A
lost answer inside the lease store explains one now and then, not five in a row."""


def write_answered(situation: Situation, event: WriteAnswered) -> None:
    """Take in the outcome of a write."""
    key = event.write.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is not None or flight.write.kind is not event.write.kind:
        situation.report(Severity.WARNING, key, f"answer to a write that is not under way, ignored: {event.write}")
    elif event.outcome is WriteOutcome.ACCEPTED:
        del situation.flights[key]
        _note(situation, event.write)
        _applied(situation, event.write, event.sent_at, None, is_plain=True)
    elif _needs_read_back(situation, event.write):
        situation.flights[key] = evolve(flight, write=event.write, sent_at=event.sent_at, outcome=event.outcome)
        situation.emit(ReadRow(key))
    else:
        del situation.flights[key]
        _given_up(situation, event)


def row_read_back(situation: Situation, event: RowReadBack) -> None:
    """Decide a write in doubt by the row."""
    key = event.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is None:
        situation.report(Severity.WARNING, key, "row read without need, ignored")
        return
    del situation.flights[key]
    if event.row is None:
        situation.view.note_absent(key)
    else:
        situation.view.note(event.row, situation.now)
    held = situation.held.get(key)
    if held is not None:
        _resolve_held(situation, held, flight, event.row)
    elif flight.write.kind is WriteKind.TAKE:
        _resolve_take(situation, flight, event.row)


def row_unreadable(situation: Situation, event: RowUnreadable) -> None:
    """Read again after a pause; without a tenancy, the next scan will tell."""
    key = event.lease_key
    flight = situation.flights.get(key)
    if flight is None or flight.outcome is None:
        return
    if key not in situation.held:
        del situation.flights[key]
        return
    reads = flight.reads + 1
    again_at = situation.now + situation.pause_seconds(reads + 1)
    situation.flights[key] = evolve(flight, reads=reads, read_again_at=again_at)


def reads_due(situation: Situation) -> None:
    """Repeat the reads whose pause is over."""
    for key in sorted(situation.flights):
        flight = situation.flights[key]
        if flight.read_again_at is not None and flight.read_again_at <= situation.now:
            situation.flights[key] = evolve(flight, read_again_at=None)
            situation.emit(ReadRow(key))


def _needs_read_back(situation: Situation, write: LeaseWrite) -> bool:
    return is_held_write(write) and (write.lease_key in situation.held or write.kind is WriteKind.TAKE)


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
    settle(situation, event.write.lease_key)


def _applied(situation: Situation, write: LeaseWrite, sent_at: float, row: Lease | None, *, is_plain: bool) -> None:
    """An own write is in the table. ``row`` if it was read back, ``is_plain`` if the answer said so by itself."""
    key = write.lease_key
    held = situation.held.get(key)
    if held is None:
        _applied_without_tenancy(situation, write, sent_at, row)
        return
    if write.kind is WriteKind.TRANSFER:
        receiver = write.result.owner if write.result is not None else ""
        lose(situation, key, Severity.INFO, f"handed over to {receiver}: {held.lease}")
        return
    if write.kind is WriteKind.DELETE:
        lose(situation, key, Severity.WARNING, f"its shard left the stream: {held.lease}")
        return
    held = accepted(held, write, sent_at, situation.duration_seconds, row)
    situation.held[key] = evolve(held, unexplained_moves=0) if is_plain else held
    if write.kind is WriteKind.CHECKPOINT:
        checkpoint_stored(situation, situation.held[key])
    settle(situation, key)


def _applied_without_tenancy(situation: Situation, write: LeaseWrite, sent_at: float, row: Lease | None) -> None:
    if write.kind is WriteKind.TAKE and write.result is not None:
        register(situation, row or write.result, sent_at)
    elif write.kind is WriteKind.CREATE:
        creation_answered(situation)
    elif write.kind is WriteKind.TRANSFER:
        situation.report(Severity.INFO, write.lease_key, f"handed over without reading it: {write.result}")


def _resolve_take(situation: Situation, flight: Flight, row: Lease | None) -> None:
    write = flight.write
    if was_applied(row, write):
        _applied(situation, write, flight.sent_at or 0.0, row, is_plain=False)
        return
    is_ours = row is not None and row.owner == situation.worker_id and row.stealer in ("", situation.worker_id)
    if row is not None and is_ours and flight.tries < TAKE_TRIES_MAX and not situation.is_stopping:
        send(situation, leases.take(row, situation.worker_id), tries=flight.tries + 1)


def _resolve_held(situation: Situation, held: HeldLease, flight: Flight, row: Lease | None) -> None:
    verdict = standing(held, flight.write, row)
    explained = flight.outcome is WriteOutcome.UNCERTAIN or verdict not in (Standing.APPLIED, Standing.ADVANCED)
    moves = held.unexplained_moves + (0 if explained else 1)
    held = evolve(held, unexplained_moves=moves)
    situation.held[held.lease.lease_key] = held
    if verdict is Standing.NAME_CONFLICT or moves >= UNEXPLAINED_MOVES_MAX:
        _yield_name(situation, held, row)
    elif verdict is Standing.APPLIED:
        _applied(situation, flight.write, flight.sent_at or 0.0, row, is_plain=False)
    elif verdict is Standing.ABSENT:
        _row_gone(situation, held)
    elif row is not None and verdict in (Standing.UNCHANGED, Standing.ADVANCED):
        _try_again(situation, held, row)
    elif row is not None and verdict is Standing.RESET:
        _restore(situation, held, row)
    else:
        _lost_to(situation, held, flight.write, row)


def _try_again(situation: Situation, held: HeldLease, row: Lease) -> None:
    tries = 0 if row.counter > held.lease.counter else held.tries + 1
    situation.held[row.lease_key] = evolve(
        held,
        lease=row,
        sent_requests=0,
        tries=tries,
        not_before=situation.now + situation.pause_seconds(tries),
        is_renewal_due=True,
    )
    settle(situation, row.lease_key)


def _row_gone(situation: Situation, held: HeldLease) -> None:
    key = held.lease.lease_key
    situation.held[key] = evolve(held, is_absent=True, sent_requests=0, tries=held.tries + 1)
    situation.wants_listing = situation.wants_listing or held.tries == 0
    situation.report(Severity.WARNING, key, f"its lease row is gone; does the shard still exist? {held.lease}")


def _restore(situation: Situation, held: HeldLease, row: Lease) -> None:
    """Take a row that was put over ours, with our checkpoint, before anybody reads from its beginning."""
    key = held.lease.lease_key
    situation.held[key] = evolve(held, sent_requests=0, is_absent=False)
    situation.report(Severity.WARNING, key, f"its lease row was reset to {row}; restoring {held.lease}")
    send(situation, leases.take(row, situation.worker_id, checkpoint=held.checkpoint))


def _yield_name(situation: Situation, held: HeldLease, row: Lease | None) -> None:
    text = (
        f"another process uses the worker identifier {situation.worker_id!r}; this one gives way. Give every worker "
        f"its own identifier. Known {held.lease}, found {row}"
    )
    lose(situation, held.lease.lease_key, Severity.ERROR, text, in_doubt=CheckpointOutcome.UNKNOWN)


def _lost_to(situation: Situation, held: HeldLease, write: LeaseWrite, row: Lease | None) -> None:
    stored = was_stored(held, write, row) if write.kind is WriteKind.CHECKPOINT else False
    outcomes = {True: CheckpointOutcome.STORED, False: CheckpointOutcome.LEASE_LOST, None: CheckpointOutcome.UNKNOWN}
    severity = Severity.INFO if write.kind is WriteKind.TRANSFER else Severity.WARNING
    text = f"lost: known {held.lease}, found {row}"
    lose(situation, held.lease.lease_key, severity, text, in_doubt=outcomes[stored])
