"""The leases of one worker, as events in and commands out.

``Holdings`` decides everything about leases: what to take, renew, mark, hand over, create and delete, when a consumer
may start and must stop, and how a checkpoint is answered. It reads no clock, makes no call and starts no thread: the
shell does, and reports back. The same events at the same times give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from streamclient.config import ClientConfig
from streamclient.core import events
from streamclient.core.consumers import checkpoint_requested, consumer_stalled, consumer_stopped
from streamclient.core.epochs import epoch_drawn, epoch_undrawn
from streamclient.core.events import Command, Event
from streamclient.core.loads import Loads
from streamclient.core.moves import (
    choose_heirs,
    hand_on_stuck,
    plan_and_follow,
    prepare_departure,
    report_stuck_marks,
)
from streamclient.core.notices import notice_rows, pause_requested, resume_requested
from streamclient.core.presence import FOR_EVER, Presence
from streamclient.core.shards import Start
from streamclient.core.situation import Situation
from streamclient.core.sync import create_missing, plan_sync, shards_listed, sync_due
from streamclient.core.tenancies import attend, renew_due, settle_all, settle_restless
from streamclient.core.tenancy import HeldLease
from streamclient.core.view import LeaseView
from streamclient.core.watching import (
    OUSTED,
    check_session,
    do_what_is_due,
    info_changed,
    signals_read,
    signals_unreadable,
    wakes_sent,
    worker_write_answered,
    workers_scanned,
)
from streamclient.core.writes import reads_due, row_read_back, row_unreadable, write_answered
from streamclient.model import InitialPosition


class Holdings:
    """The decisions of one worker. Owned by one thread; ``handle`` must not be entered twice at once.

    The shell owes one answer to every command that has one: ``RowsRead`` or ``RowsUnreadable`` to ``ReadRows``,
    ``WriteAnswered`` to ``WriteLease`` and ``ResolveAndCreate``, ``RowReadBack`` or ``RowUnreadable`` to ``ReadRow``,
    ``ShardsListed`` or ``ShardsUnlistable`` to ``ListShards``, ``EpochDrawn`` or ``EpochUndrawn`` to ``DrawEpoch``,
    ``SignalsRead`` or ``SignalsUnreadable`` to ``ReadSignals``, ``WorkerWriteAnswered`` to ``WriteWorker``,
    ``WakesSent`` to ``WakeWorkers``, ``ConsumerStopped`` to ``StartConsumer`` in the end.

    ``has_worker_rows`` tells whether the store keeps rows of workers; without them, workers know of each other by their
    leases alone, and nothing of what concerns sessions happens. ``info`` is what operators read in the worker's row.
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
        has_worker_rows: bool = False,
        info: str = "",
    ) -> None:
        presence = Presence.of(
            worker_id,
            stream_id,
            config,
            rng,
            new_nonce=new_identifier,
            keeps_rows=has_worker_rows,
            info=info,
        )
        self._situation = Situation(
            worker_id=worker_id,
            config=config,
            start=Start(stream_id, initial_position, wall_start_micros),
            rng=rng,
            new_identifier=new_identifier,
            view=LeaseView(worker_id, config.lease_duration_millis / 1000, presence.roster),
            presence=presence,
            measured=Loads(config.balance_by),
            balance_by=config.balance_by,
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one fact that became known at ``now`` (monotonic seconds), and answer with what to do."""
        situation = self._situation
        situation.advance(now)
        situation.is_row_scan_fresh = isinstance(event, events.RowsRead)
        if not isinstance(event, events.WorkerWriteAnswered):
            check_session(situation)
        if not isinstance(event, events.WriteAnswered):
            attend(situation)
        _HANDLERS[type(event)](situation, event)
        check_session(situation)
        attend(situation)
        reads_due(situation)
        situation.ask_pending()
        do_what_is_due(situation, is_drained=self._is_empty)
        commands, situation.commands = situation.commands, []
        return commands

    @property
    def held(self) -> Mapping[str, HeldLease]:
        """Held leases by lease key, in no order: a view that shows the next change; copy it to keep it."""
        return MappingProxyType(self._situation.held)

    @property
    def session_valid_until(self) -> float:
        """Until when leases may be held at all (monotonic seconds): a tenancy is valid until then or its own end.

        Minus infinity without a session, infinity over a store without worker rows.
        """
        return self._situation.presence.valid_until

    @property
    def is_ousted(self) -> bool:
        """Whether a newer process was started under this worker's name: this one never holds a lease again."""
        return self._situation.presence.session.is_ousted

    @property
    def trouble(self) -> str:
        """Why this worker cannot do its work although the table answers; empty if it can."""
        return OUSTED if self.is_ousted else ""

    @property
    def left(self) -> Iterable[str]:
        """Shards that this worker's processors are done with, the latest last: it never takes them again."""
        return self._situation.released

    @property
    def is_drained(self) -> bool:
        """Whether a stop was requested and nothing is left: no lease, no consumer, no write under way, no session."""
        presence = self._situation.presence
        return self._is_empty and (not presence.keeps_rows or presence.session.is_ended)

    @property
    def _is_empty(self) -> bool:
        situation = self._situation
        return situation.is_stopping and not any((situation.held, situation.running, situation.flights))

    @property
    def live_workers(self) -> list[str]:
        """Names of this worker, of others with a session, and of owners of leases that have not expired; sorted."""
        return self._situation.view.live_workers(self._situation.now)

    def next_deadline(self, now: float) -> float | None:
        """When to send ``Tick`` if nothing else happens before (monotonic seconds); ``None`` if never."""
        situation = self._situation
        candidates = (situation.deadlines.next, situation.rereads.next, situation.scan_at)
        moments = [moment for moment in candidates if moment is not None]
        first = min([situation.presence.next_moment, *moments])
        return max(first, now) if first < FOR_EVER else None

    def __repr__(self) -> str:
        situation = self._situation
        marked = sum(held.lease.is_marked for held in situation.held.values())
        expired = len(situation.view.expired_keys(situation.now))
        return f"Holdings({situation.worker_id}: {len(situation.held)} held, {marked} marked, {expired} expired)"


# --- one function per event ----------------------------------------------------------------------------------------


def _take_due(situation: Situation, event: events.TakeDue) -> None:
    situation.may_steal = True
    if situation.presence.is_turn(situation.now):
        situation.wants_scan = situation.has_turn = True


def _renew_due(situation: Situation, event: events.RenewDue) -> None:
    situation.presence.beat_due()
    renew_due(situation)


def _rows_read(situation: Situation, event: events.RowsRead) -> None:
    situation.is_scanning, situation.scan_failures = False, 0
    if event.wall_micros is not None:
        situation.tell_wall_clock(event.wall_micros)
    situation.view.observe(event.rows, situation.scan_asked_at, situation.now)
    situation.measured.observe(event.rows, situation.now)
    workers_scanned(situation, event)
    notice_rows(situation)
    settle_restless(situation)
    plan_sync(situation)
    create_missing(situation)
    plan_and_follow(situation)
    hand_on_stuck(situation)
    report_stuck_marks(situation)


def _rows_unreadable(situation: Situation, event: events.RowsUnreadable) -> None:
    situation.is_scanning = False
    situation.scan_failures += 1
    situation.presence.scan_failed()
    choose_heirs(situation)
    situation.scan_soon(situation.pause_seconds(situation.scan_failures + 1))


def _shards_unlistable(situation: Situation, event: events.ShardsUnlistable) -> None:
    situation.is_listing = situation.wants_listing = False


def _stop_requested(situation: Situation, event: events.StopRequested) -> None:
    if not situation.is_stopping:
        situation.is_stopping = True
        situation.presence.leave()
        situation.missing.clear()
        prepare_departure(situation)
        settle_all(situation)


def _tick(situation: Situation, event: events.Tick) -> None:
    """Whatever is due is done after every event."""


_HANDLERS: Mapping[type, Callable[[Situation, Any], None]] = {
    events.TakeDue: _take_due,
    events.RenewDue: _renew_due,
    events.SyncDue: sync_due,
    events.RowsRead: _rows_read,
    events.RowsUnreadable: _rows_unreadable,
    events.SignalsRead: signals_read,
    events.SignalsUnreadable: signals_unreadable,
    events.WorkerWriteAnswered: worker_write_answered,
    events.WakesSent: wakes_sent,
    events.InfoChanged: info_changed,
    events.ShardsListed: shards_listed,
    events.ShardsUnlistable: _shards_unlistable,
    events.WriteAnswered: write_answered,
    events.RowReadBack: row_read_back,
    events.RowUnreadable: row_unreadable,
    events.CheckpointRequested: checkpoint_requested,
    events.EpochDrawn: epoch_drawn,
    events.EpochUndrawn: epoch_undrawn,
    events.ConsumerStalled: consumer_stalled,
    events.ConsumerStopped: consumer_stopped,
    events.PauseRequested: pause_requested,
    events.ResumeRequested: resume_requested,
    events.StopRequested: _stop_requested,
    events.Tick: _tick,
}
