"""The owner of a worker's state for one stream. It passes events to ``Holdings``, and carries out the commands.

``Holdings`` returns the commands that follow from an event. All methods run in the owner thread of the stream, except
where a method says otherwise. That thread never waits for the service or for a processor, so a slow call never delays a
heartbeat. The thread calls no user code except code that must return immediately: metrics, and the executor's
``submit``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from streamclient.base import logs
from streamclient.base.reasons import Cause, Reason, WorkerHealth, counted, described, text_of
from streamclient.core import events
from streamclient.core.consumer.consumer_events import OrderEnded
from streamclient.core.events import Command, Event
from streamclient.core.holdings import Holdings
from streamclient.errors import StreamClientException
from streamclient.model import ShardInfo, ShardStatus, ShutdownReason, TrimmedRange
from streamclient.records import readable_position
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.consumer_parts import ConsumerParts
from streamclient.worker.health import FailingShards, HealthWatch, logged_change, watch_reads
from streamclient.worker.instruments import SAMPLE_SECONDS, Instruments, WorkerSample
from streamclient.worker.owner_loop import LONGEST_WAIT_SECONDS, OwnerLoop, Question
from streamclient.worker.runtime import Deadline
from streamclient.worker.service_calls import ServiceCalls
from streamclient.worker.shard_consumer import LEVELS, ShardConsumer
from streamclient.worker.statuses import PublishedInfo, joined_status, lease_status, over_status

_log = logs.logger(__name__)

SHORTEST_TICK_SECONDS = 0.01
"""The shortest wait for messages in one step. Without this wait, a deadline in the past would keep the thread busy."""


class Coordinator:
    """The coordinator of one stream, which owns the worker's state for that stream.

    After a request to stop, the coordinator runs until it has handed over all leases, at most for
    ``shutdown_timeout_millis``.
    """

    def __init__(
        self,
        *,
        holdings: Holdings,
        loop: OwnerLoop,
        make_service: Callable[..., ServiceCalls],
        make_consumer_parts: Callable[..., ConsumerParts],
        shutdown_timeout_millis: int,
        instruments: Instruments,
        published: PublishedInfo,
    ) -> None:
        self._instruments = instruments
        self._published = published
        self._holdings = holdings
        self._loop = loop
        self._shutdown_seconds = shutdown_timeout_millis / 1_000
        self._service = make_service(emit=self.emit)
        self._around = make_consumer_parts(
            send_checkpoint=self.send_checkpoint,
            confirm_end=self.confirm_end,
            ended=self.consumer_ended,
            stalled=self.consumer_stalled,
            ended_order=self.order_ended,
            tree=lambda: holdings.tree,
        )
        config = self._around.config
        limit_millis = config.max_duration_before_last_successful_renew_or_take_lease
        self._health = HealthWatch(limit_millis, loop.now(), self._around.facts.reads)
        self._failing = FailingShards(config.unhealthy_after_failing_millis, self._around.wall_micros)
        self._judged = WorkerHealth(is_healthy=True)
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._consumers: dict[str, ShardConsumer] = {}
        self._tickets: dict[int, tuple[CheckpointTicket, str]] = {}
        self._ticket_numbers = itertools.count(1)
        self._deadline: Deadline | None = None
        self._has_failed = False
        self._over: Reason | None = None
        self._last_statuses: Mapping[str, ShardStatus] = {}
        loop.call_every(config.renewer_interval_millis / 1_000, self._renew_due)
        loop.call_every(config.taker_interval_millis / 1_000, partial(self.emit, events.TakeDue()))
        loop.call_every(config.sync_shard_interval_millis / 1_000, partial(self.emit, events.SyncDue()))
        self._next_slow_check = self._look_at = loop.now()
        self._has_handled = True
        """Whether an event was handled since the last regular checks. Such an event may have changed the next
        deadline."""
        self._slow_check_seconds = min(config.limits.slow_processor_warning_millis / 4_000, limit_millis / 10_000)
        if instruments.is_on:
            self._sample()

    # --- any thread ----------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask the owner to stop. A second request changes nothing. Usable from any thread."""
        self._loop.post(self._begin_stop)

    def send(self, event: Event) -> None:
        """Let the owner thread handle ``event``, which a call of the program has caused. Usable from any thread."""
        self._loop.post(partial(self.emit, event))

    def send_checkpoint(self, shard: ShardInfo, ticket: CheckpointTicket, timeout_seconds: float) -> bool:
        """Post the checkpoint request ``ticket`` to the owner; return whether it was posted. Usable from any thread."""
        request = Question(partial(self._checkpoint_requested, shard, ticket), ticket.refuse)
        return self._loop.post(request, timeout_seconds)

    def shard_statuses(self, reply: Callable[[Mapping[str, ShardStatus]], None]) -> None:
        """Call ``reply`` with the statuses of all held shards. After the worker's end, these are the last statuses.

        Usable from any thread.
        """

        def ended() -> None:
            reply(self._last_statuses)

        if self._loop.is_inside or not self._loop.post(Question(lambda: reply(self._statuses()), ended)):
            ended()

    def accept_loss(self, shard_id: str, reply: Callable[[TrimmedRange | None], None]) -> None:
        """Let a shard that stopped because of lost records go on; call ``reply`` with the range of lost records.

        If the shard did not stop because of a loss, the argument of ``reply`` is ``None``.

        Usable from any thread.
        """
        if not self._loop.post(Question(lambda: reply(self._accept_loss(shard_id)), lambda: reply(None))):
            reply(None)

    def accept_end(self, shard_id: str, reply: Callable[[bool], None]) -> None:
        """Accept that a shard has ended, although the list of shards does not show its end.

        ``reply`` is called with ``True`` if the shard waited for its end to be accepted, otherwise with ``False``.

        Usable from any thread.
        """
        if not self._loop.post(Question(lambda: reply(self._accept_end(shard_id)), lambda: reply(False))):
            reply(False)

    # --- the owner -----------------------------------------------------------------------------------------------

    @property
    def loop(self) -> OwnerLoop:
        """The inbox and the timers of the owner thread."""
        return self._loop

    @property
    def holdings(self) -> Holdings:
        """The object that decides about leases. Only the owner thread may use it."""
        return self._holdings

    @property
    def is_finished(self) -> bool:
        """Whether the owner was asked to stop, and either has no work left or no time left."""
        if self._deadline is None:
            return False
        is_done = not self._consumers and (self._has_failed or self._holdings.is_drained)
        return is_done or self._deadline.is_over

    @property
    def health(self) -> WorkerHealth:
        """The present health of the worker on this stream, even while the owner thread is blocked.

        After the worker's end, this is the last health. Usable from any thread.
        """
        if self._loop.is_closed:
            return self._judged
        trouble = text_of(self._over) if self._has_failed and self._over is not None else self._holdings.trouble
        now, failing = self._loop.now(), self._failing
        return failing.told_in(self._health.judge(now, trouble, self._loop.thread_trouble, failing.trouble(now)))

    def step(self, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
        """Wait at most ``longest_wait_seconds`` for an event, and handle the event and all events that it causes."""
        self._loop.turn(min(longest_wait_seconds, self._seconds_to_deadline()), self._look_around)

    def next_deadline(self) -> float:
        """Return the time, in monotonic seconds, at which the next step is due if no message comes earlier."""
        timer, due = self._loop.next_timer, self._next_look(self._expiry(self._loop.now()))
        return due if timer is None else min(timer, due)

    def emit(self, event: Event) -> None:
        """Handle ``event`` first, and then all events that result from ``event``, in order of arrival."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._is_handling = False

    def fail(self, error: Exception) -> None:
        """Stop every consumer, and end the owner. Do not use ``Holdings``, which may be corrupt after ``error``."""
        self._has_failed = self._has_handled = True
        self._over = Reason(Cause.WORKER_FAILED, detail=described(error))
        self._events.clear()
        self._service.drop()
        self._begin_stop()
        self._answer_all()
        for consumer in list(self._consumers.values()):
            consumer.stop(ShutdownReason.ZOMBIE)

    def close(self) -> None:
        """End the owner: answer all waiting callers, and log and abandon the consumers that still run."""
        self._over = self._over or Reason(Cause.WORKER_ENDED)
        self._judged = self.health
        self._last_statuses = self._statuses()
        for consumer in self._consumers.values():
            text = "shard %s: gave up waiting for the end of %s; its lease is left to expire"
            phase = consumer.machine.phase.value
            _log.error(text, consumer.shard_id, phase, extra=logs.of_shard(consumer.shard_id))
            consumer.abandon()
        self._around.pace.close()
        self._loop.close()
        self._answer_all()
        self._instruments.judged(self._judged)
        self._instruments.close()

    def _handle(self, event: Event) -> None:
        now = self._loop.now()
        self._has_handled = True
        self._note_health(event, now)
        if self._has_failed:
            return
        commands = self._holdings.handle(event, now)
        self._instruments.handled(event, commands, now)
        for command in commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case events.StartConsumer():
                self._start_consumer(command)
            case events.StopConsumer(_, consumer_id, reason):
                if consumer_id in self._consumers:
                    self._consumers[consumer_id].stop(reason)
            case events.GiveOrders(_, consumer_id, orders):
                if consumer_id in self._consumers:
                    self._consumers[consumer_id].obey(orders)
            case events.AnswerCheckpoint():
                self._answer(command)
            case events.AnswerEnd(_, consumer_id):
                if consumer_id in self._consumers:
                    self._consumers[consumer_id].end_judged(command)
            case events.Report(severity, shard_id, text):
                _log.log(LEVELS[severity], "%s", text, extra=logs.of_shard(shard_id))
            case _:
                self._health.asked(command, self._loop.now())
                self._service.put(command)

    def _start_consumer(self, command: events.StartConsumer) -> None:
        shard = command.shard_info
        for other in self._consumers.values():
            if other.shard_id == shard.shard_id:
                raise StreamClientException(f"{other!r} still runs; a second consumer of its shard must not start")
        consumer = ShardConsumer(command, self._around)
        self._consumers[command.identifier] = consumer
        where = readable_position(command.checkpoint)
        text, about = "shard %s: starting at %s, acquisition %s", logs.of_shard(shard.shard_id)
        _log.info(text, shard.shard_id, where, shard.lease_identifier, extra=about)
        consumer.begin()

    def consumer_ended(self, shard: ShardInfo, end: events.ConsumerEnd) -> None:
        """Remove the consumer of ``shard``, and report to ``Holdings`` how the consumer has ended."""
        del self._consumers[shard.lease_identifier]
        text, about = "shard %s: ended (%s), acquisition %s", logs.of_shard(shard.shard_id)
        _log.info(text, shard.shard_id, end.value, shard.lease_identifier, extra=about)
        self.emit(events.ConsumerStopped(shard.shard_id, shard.lease_identifier, end))

    def _accept_loss(self, shard_id: str) -> TrimmedRange | None:
        consumers = [consumer for consumer in self._consumers.values() if consumer.shard_id == shard_id]
        return consumers[0].accept_loss() if consumers else None

    def confirm_end(self, shard: ShardInfo, read_at: float) -> bool:
        """Request a read of the list of shards, and return ``False``. The consumer receives the result later."""
        self.emit(events.EndRead(shard.shard_id, shard.lease_identifier, read_at))
        return False

    def _accept_end(self, shard_id: str) -> bool:
        consumers = [consumer for consumer in self._consumers.values() if consumer.shard_id == shard_id]
        if not consumers or not consumers[0].machine.waits_for_end:
            return False
        self.emit(events.EndAccepted(shard_id))
        return True

    def order_ended(self, shard: ShardInfo, ended: OrderEnded) -> None:
        """Report to ``Holdings`` that a consumer has obeyed an operator's order, or that the order was withdrawn."""
        over = events.OrderOver(
            shard.shard_id, shard.lease_identifier, ended.order, ended.taken, is_withdrawn=ended.is_withdrawn
        )
        self.emit(over)

    def consumer_stalled(self, shard: ShardInfo, reason: str) -> None:
        """Report to ``Holdings`` that a consumer makes no progress; ``reason`` says why."""
        self.emit(events.ConsumerStalled(shard.shard_id, shard.lease_identifier, reason))

    def _checkpoint_requested(self, shard: ShardInfo, ticket: CheckpointTicket) -> None:
        identifier = shard.lease_identifier
        consumer = self._consumers.get(identifier)
        number = next(self._ticket_numbers)
        if consumer is None or not ticket.is_open() or self._has_failed:
            ticket.refuse()
            return
        self._tickets[number] = (ticket, identifier)
        consumer.checkpoint_requested()
        self.emit(
            events.CheckpointRequested(
                number, shard.shard_id, identifier, ticket.value, progress=ticket.progress, pending=ticket.pending
            )
        )

    def _answer(self, command: events.AnswerCheckpoint) -> None:
        ticket, identifier = self._tickets.pop(command.request_id)
        consumer = self._consumers.get(identifier)
        if consumer is not None and not self._loop.is_closed:
            consumer.checkpoint_answered(ticket, command.outcome)
        self._loop.at_end(partial(ticket.answer, command))

    def _answer_all(self) -> None:
        for number in list(self._tickets):
            self._answer(events.AnswerCheckpoint(number, events.CheckpointOutcome.UNKNOWN))

    # --- time ----------------------------------------------------------------------------------------------------

    def _renew_due(self) -> None:
        """Let the core send the heartbeats that are due. Changed information for operators goes with a heartbeat."""
        pace = self._around.pace.worker.report()
        statuses, consumers = self._statuses(), self._consumers.values()
        told = self._published.changed(
            statuses,
            self.health,
            self._holdings.left,
            pace=pace,
            parked=self._instruments.parked_records,
            set_aside=[each.shard_id for each in consumers if each.has_set_aside],
            now=self._loop.now(),
        )
        if told is not None:
            self.emit(events.InfoChanged(told))
        self.emit(events.RenewDue())

    def _begin_stop(self) -> None:
        if self._deadline is None:
            self._deadline = Deadline(self._loop.now, self._shutdown_seconds)
            held = len(self._holdings.held)
            _log.info("stopping within %.1f s, with %s held", self._shutdown_seconds, counted(held, "lease"))
            self.emit(events.StopRequested())

    def _expiry(self, now: float) -> float | None:
        return None if self._has_failed else self._holdings.next_deadline(now)

    def _next_look(self, expiry: float | None) -> float:
        """Return the time of the next check: of slow calls, or of ``expiry``, the next deadline of ``Holdings``."""
        return self._next_slow_check if expiry is None else min(self._next_slow_check, expiry)

    def _seconds_to_deadline(self) -> float:
        until = self._look_at - self._loop.now()
        if self._deadline is not None:
            until = min(until, self._deadline.seconds_left)
        return max(SHORTEST_TICK_SECONDS, until)

    def _look_around(self) -> None:
        """Check deadlines, slow calls and health, if that is due. Called after all messages and timers of a turn."""
        now = self._loop.now()
        if not self._has_handled and now < self._look_at:
            return
        expiry = self._expiry(now)  # never before ``now``, so the next line must compare with the same ``now``
        if expiry is not None and expiry <= now:
            self.emit(events.Tick())
            expiry = self._expiry(now)
        self._has_handled = False
        self._watch(now)
        self._look_at = self._next_look(expiry)

    def _watch(self, now: float) -> None:
        if now < self._next_slow_check:
            return
        self._next_slow_check = now + self._slow_check_seconds
        for consumer in list(self._consumers.values()):
            consumer.watch(now)
        watch_reads(self._around.facts.reads, self._consumers.values(), now)
        self._health.watch(self._holdings.held.values(), now)
        self._health.faults.look(self._consumers.values(), self._holdings.circles, now)
        self._failing.look(self._consumers.values(), now)
        self._judged = logged_change(self._judged, self.health, f"worker {self._instruments.worker_identifier}")

    def _note_health(self, event: Event, now: float) -> None:
        if isinstance(event, events.Answered):
            if isinstance(event.value, events.ShardList):
                self._around.facts.described(event.value.expiration_hours)
            self._health.answered(event, now)

    # --- status --------------------------------------------------------------------------------------------------

    def _statuses(self) -> Mapping[str, ShardStatus]:
        now = self._loop.now()
        held = self._holdings.held
        consumers = {consumer.shard_id: consumer for consumer in self._consumers.values()}
        facts = self._around.facts
        statuses = {key: lease_status(lease, facts, now) for key, lease in held.items() if key not in consumers}
        for key, consumer in consumers.items():
            statuses[key] = joined_status(held.get(key), consumer.status(now))
        return {key: over_status(status, self._over) for key, status in sorted(statuses.items())}

    def _sample(self) -> None:
        """Report the status of every shard to the metrics, now and every ``SAMPLE_SECONDS``."""
        of_worker = WorkerSample(
            ahead_bytes=sum(consumer.ahead_bytes for consumer in self._consumers.values()),
            clock_slow_seconds=self._around.facts.clock_slow_seconds(self._loop.now()),
            unowned=self._holdings.unowned,
        )
        self._instruments.judged(self.health)
        self._instruments.sample(self._statuses(), of_worker)
        self._loop.call_later(SAMPLE_SECONDS, self._sample)

    def __repr__(self) -> str:
        return f"<coordinator of {self._holdings!r}, {counted(len(self._consumers), 'consumer')}>"
