"""The leases of one worker, as events in and commands out.

``Holdings`` decides everything about leases: what to take, renew, mark, hand over, create and delete, when a consumer
may start and must stop, and how a checkpoint is answered. It reads no clock, makes no call and starts no thread: the
shell does, and reports back. The same events at the same times give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from streamclient.config import ClientConfig
from streamclient.core import events, leases
from streamclient.core.balance import TakePlan, plan_takes
from streamclient.core.events import Command, Event, Severity
from streamclient.core.handover import new_owner
from streamclient.core.leases import WriteKind
from streamclient.core.shards import Start
from streamclient.core.situation import Situation
from streamclient.core.sync import create_missing, plan_sync, shards_listed
from streamclient.core.tenancies import (
    checkpoint_requested,
    consumer_stopped,
    expire,
    give,
    notice_marks,
    renew_due,
    retry_due,
    send,
    settle_all,
)
from streamclient.core.tenancy import HeldLease
from streamclient.core.view import NEVER, LeaseView
from streamclient.core.writes import reads_due, row_read_back, row_unreadable, write_answered
from streamclient.model import InitialPosition, Lease

STUCK_MARK_DURATIONS = 15
"""After how many lease durations an unanswered mark is reported: five minutes by default, far longer than finishing a
batch takes. A restarted Java owner may keep a marked lease for ever without reading it."""


MOVES = (WriteKind.TAKE, WriteKind.STEAL, WriteKind.TRANSFER)
"""Writes after which a lease is, or is about to be, another worker's."""


class Holdings:
    """The decisions of one worker. Owned by one thread; ``handle`` must not be entered twice at once.

    The shell owes one answer to every command that has one: ``RowsRead`` or ``RowsUnreadable`` to ``ReadRows``,
    ``WriteAnswered`` to ``WriteLease`` and ``ResolveAndCreate``, ``RowReadBack`` or ``RowUnreadable`` to ``ReadRow``,
    ``ShardsListed`` or ``ShardsUnlistable`` to ``ListShards``, ``ConsumerStopped`` to ``StartConsumer`` in the end.
    """

    def __init__(
        self,
        worker_id: str,
        stream_id: str,
        config: ClientConfig,
        initial_position: InitialPosition,
        rng: Random,
        *,
        new_identifier: Callable[[], str],
        wall_start_micros: int,
    ) -> None:
        self._situation = Situation(
            worker_id=worker_id,
            config=config,
            start=Start(stream_id, initial_position, wall_start_micros),
            rng=rng,
            new_identifier=new_identifier,
            view=LeaseView(worker_id, config.lease_duration_millis / 1000),
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one fact that became known at ``now`` (monotonic seconds), and answer with what to do."""
        situation = self._situation
        situation.now = max(situation.now, now)
        situation.is_row_scan_fresh = isinstance(event, events.RowsRead)
        if not isinstance(event, events.WriteAnswered):
            expire(situation)
        _HANDLERS[type(event)](situation, event)
        expire(situation)
        reads_due(situation)
        retry_due(situation)
        situation.ask_pending()
        commands, situation.commands = situation.commands, []
        return commands

    @property
    def held(self) -> Mapping[str, HeldLease]:
        """Held leases by lease key, sorted; a snapshot."""
        return {key: self._situation.held[key] for key in sorted(self._situation.held)}

    @property
    def is_drained(self) -> bool:
        """Whether a stop was requested and nothing is left: no lease, no consumer, no write under way."""
        situation = self._situation
        left = (situation.held, situation.running, situation.flights)
        return situation.is_stopping and not any(left)

    @property
    def live_workers(self) -> list[str]:
        """Names of this worker and of every other with a lease that has not expired, as the last scan showed."""
        return self._situation.view.live_workers(self._situation.now)

    def next_deadline(self, now: float) -> float | None:
        """When to send ``Tick`` if nothing else happens before (monotonic seconds); ``None`` if never."""
        situation = self._situation
        deadlines = [held.valid_until for held in situation.held.values()]
        deadlines += [held.not_before for held in situation.held.values() if held.not_before > NEVER]
        deadlines += [f.read_again_at for f in situation.flights.values() if f.read_again_at is not None]
        return max(min(deadlines), now) if deadlines else None

    def __repr__(self) -> str:
        situation = self._situation
        marked = sum(held.lease.is_marked for held in situation.held.values())
        expired = len(situation.view.expired_keys(situation.now))
        return f"Holdings({situation.worker_id}: {len(situation.held)} held, {marked} marked, {expired} expired)"


# --- one function per event ----------------------------------------------------------------------------------------


def _take_due(situation: Situation, event: events.TakeDue) -> None:
    situation.wants_scan = situation.may_steal = True


def _renew_due(situation: Situation, event: events.RenewDue) -> None:
    renew_due(situation)


def _sync_due(situation: Situation, event: events.SyncDue) -> None:
    situation.wants_listing = situation.wants_listing or not situation.is_stopping


def _rows_read(situation: Situation, event: events.RowsRead) -> None:
    situation.is_scanning = False
    situation.view.observe(event.rows, situation.scan_asked_at, situation.now)
    notice_marks(situation, event.rows)
    settle_all(situation)
    plan_sync(situation)
    create_missing(situation)
    _follow(situation, _plan(situation))
    _report_stuck_marks(situation)


def _rows_unreadable(situation: Situation, event: events.RowsUnreadable) -> None:
    situation.is_scanning = False


def _shards_unlistable(situation: Situation, event: events.ShardsUnlistable) -> None:
    situation.is_listing = situation.wants_listing = False


def _stop_requested(situation: Situation, event: events.StopRequested) -> None:
    if not situation.is_stopping:
        situation.is_stopping = True
        situation.missing.clear()
        settle_all(situation)


def _tick(situation: Situation, event: events.Tick) -> None:
    """Whatever is due is done after every event."""


_HANDLERS: Mapping[type, Callable[[Situation, Any], None]] = {
    events.TakeDue: _take_due,
    events.RenewDue: _renew_due,
    events.SyncDue: _sync_due,
    events.RowsRead: _rows_read,
    events.RowsUnreadable: _rows_unreadable,
    events.ShardsListed: shards_listed,
    events.ShardsUnlistable: _shards_unlistable,
    events.WriteAnswered: write_answered,
    events.RowReadBack: row_read_back,
    events.RowUnreadable: row_unreadable,
    events.CheckpointRequested: checkpoint_requested,
    events.ConsumerStopped: consumer_stopped,
    events.StopRequested: _stop_requested,
    events.Tick: _tick,
}


# --- taking ----------------------------------------------------------------------------------------------------------


def _plan(situation: Situation) -> TakePlan:
    """What the last scan asks for, leaving alone what is under way, given up, or still read by an old consumer."""
    results = {key: flight.write.result for key, flight in situation.flights.items() if flight.write.kind in MOVES}
    pending = {key: row.stealer or row.owner for key, row in results.items() if row is not None}
    return plan_takes(
        situation.view,
        situation.worker_id,
        situation.held,
        situation.now,
        situation.config,
        rng=situation.rng,
        pending=pending,
        excluded={*situation.flights, *situation.running, *situation.released},
    )


def _follow(situation: Situation, plan: TakePlan) -> None:
    for row in plan.contested:
        text = f"another process uses the worker identifier {situation.worker_id!r} and moves {row}; left to it"
        situation.report_once(Severity.ERROR, row.lease_key, "name conflict", text)
    if situation.is_stopping:
        _pass_on(situation, [row for row in (*plan.takes, *plan.transfers) if row.owner == situation.worker_id])
        return
    for row in plan.transfers:
        send(situation, leases.transfer(row, row.stealer))
    for gift in plan.gifts if situation.may_steal else ():
        give(situation, gift.lease.lease_key, gift.receiver)
    for row in plan.takes:
        send(situation, leases.take(row, situation.worker_id))
    for row in plan.steals if situation.may_steal else ():
        send(situation, leases.steal(row, situation.worker_id))
    situation.may_steal = False


def _pass_on(situation: Situation, rows: list[Lease]) -> None:
    """While stopping, hand on what others hand over, without reading it."""
    for row in rows:
        receiver = new_owner(situation, row)
        if receiver is not None:
            send(situation, leases.transfer(row, receiver))


def _report_stuck_marks(situation: Situation) -> None:
    patience = STUCK_MARK_DURATIONS * situation.duration_seconds
    for key, sighting in sorted(situation.view.sightings.items()):
        row = sighting.row
        if row.is_marked and row.stealer == situation.worker_id and situation.now - sighting.marked_at > patience:
            text = (
                f"asked for it {situation.now - sighting.marked_at:.0f} s ago, but worker {row.owner} neither hands it "
                f"over nor dies: {row}. If that worker was restarted under its old name, stop it for longer than the "
                "lease duration"
            )
            situation.report_once(Severity.WARNING, key, f"stuck mark at {row.owner}", text)
