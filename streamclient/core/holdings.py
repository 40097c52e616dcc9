"""The decisions about the leases of one worker: events go in, commands come out.

``Holdings`` decides everything about leases: which leases to take, renew, mark, hand over, create and delete, when a
consumer may start and must stop, and how a checkpoint is answered. It reads no clock, makes no call and starts no
thread. The code that runs ``Holdings`` makes the calls, and reports their outcomes as events. The same events at the
same times give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from streamclient.config import ClientConfig
from streamclient.core import events
from streamclient.core.deadlines import FOR_EVER
from streamclient.core.doubt import reads_due, row_answered, write_answered
from streamclient.core.epochs import epoch_answered
from streamclient.core.events import Answered, Call, Command, Event, Scan
from streamclient.core.held import HeldLease
from streamclient.core.plan.carry_out import (
    choose_heirs,
    hand_on_stuck,
    heirs_due,
    plan_and_follow,
    prepare_departure,
    report_stuck_marks,
)
from streamclient.core.plan.loads import Loads
from streamclient.core.requests import (
    checkpoint_requested,
    consumer_stalled,
    consumer_stopped,
    notice_rows,
    order_noted,
    order_over,
    pause_requested,
    resume_requested,
)
from streamclient.core.settle import attend, renew_due, settle_all, settle_restless
from streamclient.core.shard_tree import ShardTree
from streamclient.core.shards import Start
from streamclient.core.sightings import LeaseView
from streamclient.core.sync import (
    answer_accepted,
    create_missing,
    end_accepted,
    end_read,
    plan_sync,
    shards_listed,
    sync_due,
)
from streamclient.core.worker_rows import (
    OUSTED,
    check_session,
    do_what_is_due,
    info_changed,
    signals_read,
    wakes_sent,
    worker_write_answered,
    workers_scanned,
)
from streamclient.core.worker_signals import Signals
from streamclient.core.worker_state import Lapses, WorkerState
from streamclient.model import InitialPosition


class Holdings:
    """The decisions of one worker. Owned by one thread. A call of ``handle`` must end before the next one begins.

    The caller sends exactly one ``Answered`` for every ``Call``, and in the end one ``ConsumerStopped`` for every
    ``StartConsumer``.

    Args:
        has_worker_rows: whether the store keeps rows of workers. Without such rows there are no sessions, and workers
            know of each other only through their leases.
        sets_counters: whether the store stores the counter of a write's result. The methods of a user's own
            ``ILeaseManager`` only add 1 to the counter.
        info: the text that operators read in the worker's row.
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
        sets_counters: bool = True,
        info: str = "",
    ) -> None:
        signals = Signals.of(
            worker_id,
            stream_id,
            config,
            rng,
            new_nonce=new_identifier,
            keeps_rows=has_worker_rows,
            info=info,
        )
        self._state = WorkerState(
            worker_id=worker_id,
            config=config,
            start=Start(stream_id, initial_position, wall_start_micros),
            rng=rng,
            new_identifier=new_identifier,
            view=LeaseView(worker_id, config.lease_duration_millis / 1000, signals.peers),
            signals=signals,
            measured=Loads(config.balance_by),
            lapses=Lapses(config),
            sets_counters=sets_counters,
            balance_by=config.balance_by,
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one fact that became known at ``now`` (monotonic seconds), and return the commands to carry out."""
        state = self._state
        state.advance(now)
        call, state.is_row_scan_fresh = None, False
        if isinstance(event, Answered):
            call, state.is_row_scan_fresh = event.call, isinstance(event.value, Scan)
        # The answer may prove that a session or a lease goes on. So the answer is processed before the code below
        # checks whether the session and the leases are over.
        if type(call) is not events.WriteWorker:
            check_session(state)
        if type(call) is not events.WriteLease:
            attend(state)
        _HANDLERS[type(event)](state, event)
        check_session(state)
        attend(state)
        heirs_due(state)
        reads_due(state)
        state.ask_pending()
        do_what_is_due(state, is_drained=self._is_empty)
        commands, state.commands = state.commands, []
        return commands

    @property
    def held(self) -> Mapping[str, HeldLease]:
        """The held leases by lease key, unordered. The mapping is live: copy it to keep its present contents."""
        return MappingProxyType(self._state.held)

    @property
    def session_valid_until(self) -> float:
        """The time until which this worker may hold leases at all, in monotonic seconds.

        A single lease may end earlier. The time is minus infinity without a session, and infinity if the store has no
        worker rows.
        """
        return self._state.signals.valid_until

    @property
    def is_ousted(self) -> bool:
        """Whether a newer process was started under this worker's name.

        If so, this process never holds a lease again.
        """
        return self._state.signals.session.is_ousted

    @property
    def trouble(self) -> str:
        """The reason why this worker cannot do its work although the status table answers; empty if it can."""
        return OUSTED if self.is_ousted else self._state.lapses.trouble(self._state.now)

    @property
    def tree(self) -> ShardTree:
        """The shards of the last listing and of all lease rows, with their parents."""
        return ShardTree.of(self._state.view.rows.values(), (self._state.listing or {}).values())

    @property
    def circles(self) -> Iterable[tuple[str, ...]]:
        """The cycles in the last listing: groups of shards that are their own ancestors. Such shards are never read."""
        return sorted(set(self._state.ends.tree.circles.values()))

    @property
    def left(self) -> Iterable[str]:
        """The shards that this worker's processors left before the end (``PROCESS_DONE``), the latest last.

        The worker never takes the leases of these shards again.
        """
        return self._state.released

    @property
    def is_drained(self) -> bool:
        """Whether a stop was requested and is complete: no lease, consumer, unanswered write or session is left."""
        signals = self._state.signals
        return self._is_empty and (not signals.keeps_rows or signals.session.is_ended)

    @property
    def _is_empty(self) -> bool:
        state = self._state
        return state.is_stopping and not (state.held or state.running or (state.flights and not self._has_lost_all))

    @property
    def _has_lost_all(self) -> bool:
        """Whether this worker's session is over, and all its leases with it.

        Then the outcome of unanswered writes does not matter.
        """
        signals = self._state.signals
        return signals.keeps_rows and signals.session.row is None

    @property
    def live_workers(self) -> list[str]:
        """The sorted names of this worker, of other workers with a session, and of owners of unexpired leases."""
        return self._state.view.live_workers(self._state.now)

    @property
    def unowned(self) -> int:
        """The number of unfinished shards without a living owner: the lease is free, or its owner is dead."""
        state = self._state
        sightings = state.view.sightings
        free = (key for key in state.view.expired_keys(state.now) if key not in state.held)
        return sum(not sightings[key].row.is_finished for key in free)

    def next_deadline(self, now: float) -> float | None:
        """Return the time at which to send ``Tick`` if no event comes first (monotonic seconds); ``None`` for never."""
        state = self._state
        first = state.signals.next_moment
        for moment in (state.deadlines.next, state.rereads.next, state.scan_at, state.heirs_due_at):
            if moment is not None and moment < first:
                first = moment
        return max(first, now) if first < FOR_EVER else None

    def __repr__(self) -> str:
        state = self._state
        marked = sum(held.lease.is_marked for held in state.held.values())
        expired = len(state.view.expired_keys(state.now))
        return f"Holdings({state.worker_id}: {len(state.held)} held, {marked} marked, {expired} expired)"


# --- one function per event ----------------------------------------------------------------------------------------


def _take_due(state: WorkerState, event: events.TakeDue) -> None:
    state.may_steal = True
    if state.signals.is_turn(state.now):
        state.wants_scan = state.has_turn = True


def _renew_due(state: WorkerState, event: events.RenewDue) -> None:
    state.signals.beat_due()
    renew_due(state)


def _scanned(state: WorkerState, call: events.ReadRows, answer: Answered[Scan]) -> None:
    state.is_scanning, scan = False, answer.value
    if scan is None:
        _scan_failed(state)
        return
    state.scan_failures = 0
    if scan.wall_micros is not None:
        state.tell_wall_clock(scan.wall_micros)
    state.view.observe(scan.rows, state.scan_asked_at, state.now)
    state.measured.observe(scan.rows, state.now)
    workers_scanned(state, scan.workers)
    notice_rows(state)
    answer_accepted(state)
    settle_restless(state)
    plan_sync(state)
    create_missing(state)
    plan_and_follow(state)
    hand_on_stuck(state)
    report_stuck_marks(state)


def _scan_failed(state: WorkerState) -> None:
    state.scan_failures += 1
    state.signals.scan_failed()
    choose_heirs(state)
    state.scan_soon(state.pause_seconds(state.scan_failures + 1))


def _stop_requested(state: WorkerState, event: events.StopRequested) -> None:
    if not state.is_stopping:
        state.is_stopping = True
        state.signals.leave()
        state.missing.clear()
        prepare_departure(state)
        settle_all(state)


def _tick(state: WorkerState, event: events.Tick) -> None:
    """Do nothing: ``handle`` does the work that is due after every event."""


def _answered(state: WorkerState, event: Answered[Any]) -> None:
    _ANSWERS[type(event.call)](state, event.call, event)


_HANDLERS: Mapping[type, Callable[[WorkerState, Any], None]] = {
    Answered: _answered,
    events.TakeDue: _take_due,
    events.RenewDue: _renew_due,
    events.SyncDue: sync_due,
    events.InfoChanged: info_changed,
    events.CheckpointRequested: checkpoint_requested,
    events.EndRead: end_read,
    events.EndAccepted: end_accepted,
    events.OrderOver: order_over,
    events.ConsumerStalled: consumer_stalled,
    events.ConsumerStopped: consumer_stopped,
    events.PauseRequested: pause_requested,
    events.ResumeRequested: resume_requested,
    events.StopRequested: _stop_requested,
    events.Tick: _tick,
}

_ANSWERS: Mapping[type[Call[Any]], Callable[[WorkerState, Any, Any], None]] = {
    events.ReadRows: _scanned,
    events.ReadSignals: signals_read,
    events.ReadRow: row_answered,
    events.ListShards: shards_listed,
    events.WriteLease: write_answered,
    events.WriteWorker: worker_write_answered,
    events.WakeWorkers: wakes_sent,
    events.DrawEpoch: epoch_answered,
    events.NoteOrder: order_noted,
}
"""The function that processes the answer to each class of call."""
