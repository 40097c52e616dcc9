"""The owner of a tunnel worker's state.

The owner passes events to ``TunnelSession``, and carries out the commands that the session returns. The consumers are
the same as in lease workers: they treat a channel like a shard. ``Turns`` decides which consumers may read and process
at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from attrs import evolve

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import Cause, Reason, WorkerHealth, counted, described, text_of
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome, ConsumerEnd, StartConsumer
from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.channel_turns import Turns
from streamclient.core.tunnel.troubles import ChannelTrouble
from streamclient.core.tunnel.tunnel_events import Command, Event
from streamclient.core.tunnel.tunnel_session import TunnelSession
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.model import ShardInfo, ShardState, ShardStatus, ShutdownReason
from streamclient.tunnel.log_watch import LOOK_SECONDS, LogFacts, LogWatch, Suspicion
from streamclient.tunnel.reading_turns import ChannelTurn, ReaderTurns
from streamclient.tunnel.tunnel_calls import ChannelSlot, Stored, TunnelCalls
from streamclient.tunnel.tunnel_order import delivers_changes
from streamclient.tunnel.tunnel_pages import ChannelPages, position_of, token_of
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.consumer_parts import ConsumerParts
from streamclient.worker.health import CallWatchdog, FailingShards, FaultWatch, logged_change, watch_reads
from streamclient.worker.instruments import SAMPLE_SECONDS, WorkerSample
from streamclient.worker.owner_loop import LONGEST_WAIT_SECONDS, OwnerLoop, Question
from streamclient.worker.runtime import Deadline
from streamclient.worker.shard_consumer import LEVELS, ShardConsumer
from streamclient.worker.statuses import because, over_status

_log = logs.logger(__name__)
_OUTCOMES = {
    Stored.YES: CheckpointOutcome.STORED,
    Stored.LOST: CheckpointOutcome.LEASE_LOST,
    Stored.REFUSED: CheckpointOutcome.REJECTED,
    Stored.NEVER: CheckpointOutcome.REJECTED,
    Stored.PASSED: CheckpointOutcome.UNKNOWN,
    Stored.UNKNOWN: CheckpointOutcome.UNKNOWN,
}

DECLINED_SECONDS = 30.0
"""The seconds between an offer of a channel and its refusal by the worker, if the channel's processor has given the
channel up for good. The service keeps offering such a channel."""

MOST_NAMED = 3
"""The largest number of channels in trouble that the text of ``TunnelCoordinator.health`` names. To see all channels,
call ``channel_statuses``."""

DECLINED_REMEMBERED_SECONDS = 3_600.0
"""The seconds for which the worker remembers a declined channel after the service last offered it. A channel that is
not offered for longer is finished, or another client holds it."""


class TunnelCoordinator:
    """The owner of a tunnel worker's state.

    The work ends after a stop was requested, when every channel was released or the time for the stop is over.
    """

    def __init__(
        self,
        *,
        tunnel_id: str,
        session: TunnelSession,
        turns: Turns,
        loop: OwnerLoop,
        make_calls: Callable[[Callable[[Event], None]], TunnelCalls],
        make_consumer_parts: Callable[[TunnelCoordinator], ConsumerParts],
        make_pages: Callable[[str, str, Callable[[StreamClientError | None], None]], ChannelPages],
        shutdown_timeout_millis: int,
        health_limit_seconds: float,
    ) -> None:
        self._tunnel_id = tunnel_id
        self._session = session
        self._loop = loop
        self._calls = make_calls(self.emit)
        self._around = make_consumer_parts(self)
        self._log_watch = LogWatch(lambda: self._around.facts.service_micros(loop.now()), self._suspected)
        self._looked_at: float | None = None
        """The time at which the service was last asked about the log (monotonic seconds); ``None`` before that."""
        self._is_look_planned = False
        self._make_pages = make_pages
        self._shutdown_seconds = shutdown_timeout_millis / 1_000
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._turns = ReaderTurns(turns, loop)
        self._consumers: dict[str, ShardConsumer] = {}
        self._slots: dict[str, ChannelSlot] = {}
        self._declined: dict[str, float] = {}
        """The channels that their processors have given up for good, each with the time of the service's last offer."""
        self._waiting: dict[CheckpointTicket, str] = {}
        self._deadline: Deadline | None = None
        self._health_limit_seconds = health_limit_seconds
        self._heartbeats = CallWatchdog("no heartbeat of a session was answered", loop.now())
        self._unread: Mapping[str, ChannelTrouble] = {}
        """The channels whose reads fail. Each regular check replaces the mapping."""
        self._stores = CallWatchdog("no checkpoint was stored")
        self._faults = FaultWatch()
        limit_millis = self._around.config.unhealthy_after_failing_millis
        self._failing = FailingShards(limit_millis, self._around.wall_micros)
        self._judged = WorkerHealth(is_healthy=True)
        self._outages = OutageLog(_log, monotonic=loop.now)
        self._over: Reason | None = None
        self.has_connected: bool = False
        """Whether the service ever gave this worker a session. Usable from any thread."""
        self._finish: tunnel_events.Finish | None = None
        self._last_statuses: Mapping[str, ShardStatus] = {}
        self._next_watch = loop.now()
        self._watch_seconds = min(
            self._around.config.limits.slow_processor_warning_millis / 4_000, health_limit_seconds / 10
        )
        if self._around.instruments.is_on:
            self._sample()

    # --- calls from any thread -----------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Begin to stop. A second request changes nothing. Usable from any thread."""
        self._loop.post(self._begin_stop)

    def send_checkpoint(self, shard: ShardInfo, ticket: CheckpointTicket, timeout_seconds: float) -> bool:
        """Send a checkpoint to the owner, and return whether the owner received it. Usable from any thread.

        Raises:
            ConfigurationError: ``ticket`` only prepares a checkpoint, which the Tunnel Service cannot store.
        """
        if ticket.pending is not None:
            raise ConfigurationError(
                "prepare_checkpoint needs a status table; the Tunnel Service keeps one token per channel and nothing "
                "else. Use checkpoint(), or a lease worker"
            )
        request = Question(partial(self._checkpoint_requested, shard, ticket), ticket.refuse)
        return self._loop.post(request, timeout_seconds)

    def channel_statuses(self, reply: Callable[[Mapping[str, ShardStatus]], None]) -> None:
        """Let the owner thread call ``reply`` with the status of every channel, by id. Usable from any thread.

        This method does not wait for the owner thread. After the worker's end, this method itself calls ``reply`` with
        the last statuses. If the owner thread calls this method before the worker's end, ``reply`` gets no statuses.
        """

        def ended() -> None:
            reply(self._last_statuses)

        if self._loop.is_inside or not self._loop.post(Question(lambda: reply(self._statuses()), ended)):
            ended()

    # --- calls in the owner thread -------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether no work is left, or the time for the stop is over."""
        is_over = self._deadline is not None and self._deadline.is_over
        return self._finish is not None or is_over

    @property
    def error(self) -> Exception | None:
        """The error that ended the work; ``None`` if no error did."""
        return None if self._finish is None else self._finish.error

    @property
    def health(self) -> WorkerHealth:
        """The present health, even while the owner is blocked. After the end, it is the last health.

        Usable from any thread.
        """
        if self._loop.is_closed:
            return self._judged
        now, limit = self._loop.now(), self._health_limit_seconds
        watched = (self._heartbeats, self._stores, self._around.facts.reads, self._faults)
        troubles = [watchdog.trouble(now, limit) for watchdog in watched]
        troubles.append(_named("is given up", self._session.troubles, now, limit))
        troubles.append("" if any(troubles[2:4]) else _named("was not read", self._unread, now, limit))
        troubles = [self._loop.thread_trouble, *troubles, self._failing.trouble(now)]
        reasons = [reason for reason in troubles if reason]
        return self._failing.told_in(WorkerHealth(not reasons, "; ".join(reasons)))

    def step(self, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
        """Wait for an event, at most ``longest_wait_seconds``. Handle the event and the work that is due."""
        self._loop.turn(max(0.0, min(longest_wait_seconds, self.next_deadline() - self._loop.now())))
        deadline = self._session.next_deadline()
        if deadline is not None and deadline <= self._loop.now():
            self.emit(tunnel_events.SessionTick())
        self._watch()

    def next_deadline(self) -> float:
        """Return the time, in monotonic seconds, at which a step is due even if no event comes."""
        moments = [self._next_watch, self._loop.next_timer, self._session.next_deadline()]
        return min(moment for moment in moments if moment is not None)

    def emit(self, event: Event) -> None:
        """Handle an event and the events that follow from it, in order.

        A call from within this method only adds its event; the outer call handles that event, too, before it returns.
        """
        self._note_health(event, self._loop.now())
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                for command in self._session.handle(self._events.popleft(), self._loop.now()):
                    self._execute(command)
        finally:
            self._is_handling = False

    def fail(self, error: Exception) -> None:
        """Stop every consumer and end the work after the fault ``error``.

        The session is not asked, because its state is no longer reliable.
        """
        self._over = Reason(Cause.WORKER_FAILED, detail=described(error))
        self._events.clear()
        self._begin_stop()
        self._answer_all()
        for consumer in list(self._consumers.values()):
            consumer.stop(ShutdownReason.ZOMBIE)
        if not self._consumers:
            self._finish = self._finish or tunnel_events.Finish()

    def close(self) -> None:
        """Answer all waiting callers, and log the consumers that still run."""
        self._over = self._over or Reason(Cause.WORKER_ENDED)
        self._last_statuses, self._judged = self._statuses(), self.health
        for consumer in self._consumers.values():
            text, phase = "channel %s: gave up waiting for the end of %s", consumer.machine.phase
            _log.error(text, consumer.shard_id, phase.value, extra=logs.of_shard(consumer.shard_id))
            consumer.abandon()
        self._loop.close()
        self._answer_all()
        self._around.instruments.judged(self.health)
        self._around.instruments.close()

    def _execute(self, command: Command) -> None:
        match command:
            case tunnel_events.Connect():
                self._calls.connect()
            case tunnel_events.Heartbeat():
                self._calls.heartbeat(command)
            case tunnel_events.FindCheckpoint(_, channel_id) if channel_id in self._declined:
                self._declined[channel_id] = self._loop.now()
                self._loop.call_later(DECLINED_SECONDS, partial(self._decline, command))
            case tunnel_events.FindCheckpoint():
                self._calls.find_checkpoint(command, self._session.wants)
            case tunnel_events.StartReader():
                self._start_reader(command)
            case tunnel_events.StopReader(_, reader, is_lost):
                if reader in self._consumers:
                    self._consumers[reader].stop(ShutdownReason.ZOMBIE if is_lost else ShutdownReason.STOLEN)
            case tunnel_events.EndSession():
                self._calls.end_session(command)
            case tunnel_events.Finish():
                self._finish = command
            case tunnel_events.SessionReport(severity, text, ()):
                _log.log(LEVELS[severity], "tunnel %s: %s", self._tunnel_id, text, extra={logs.ENDS: command.ends})
            case tunnel_events.SessionReport(severity, text, outage):
                self._outages.log(LEVELS[severity], outage, "tunnel %s: %s", self._tunnel_id, text)

    def _decline(self, command: tunnel_events.FindCheckpoint) -> None:
        self.emit(tunnel_events.ChannelDeclined(command.channel_id, command.reader))

    # --- readers -------------------------------------------------------------------------------------------------

    def _start_reader(self, command: tunnel_events.StartReader) -> None:
        info = ShardInfo(command.channel_id, self._tunnel_id, frozenset(), command.reader, command.sequence_number)
        pages = self._make_pages(command.client_id, command.channel_id, self._calls.read_answered)
        around = evolve(self._around, stream_api=pages)
        start, turn = StartConsumer(info, position_of(command.token).text), ChannelTurn(command.reader, self._turns)
        consumer = ShardConsumer(start, around, turn)
        self._consumers[command.reader] = consumer
        self._slots[command.reader] = ChannelSlot(command.client_id, command.channel_id, command.sequence_number)
        _log.info("tunnel %s: reading channel %s", self._tunnel_id, command.channel_id)
        consumer.begin()
        if delivers_changes(command.token):
            self._plan_look()
            self._log_watch.opened(command.channel_id)
            self._tell_position(consumer)

    def _plan_look(self) -> None:
        """Ask the service for the log's retention and consume points, at most once in ``LOOK_SECONDS``.

        If the service was asked within that time, ask it again when the time is over.
        """
        if self._is_look_planned:
            return
        pause = 0.0 if self._looked_at is None else self._looked_at + LOOK_SECONDS - self._loop.now()
        if pause > 0:
            self._is_look_planned = True
            self._loop.call_later(pause, self._look_at_log)
        else:
            self._look_at_log()

    def _look_at_log(self) -> None:
        self._is_look_planned, self._looked_at = False, self._loop.now()
        self._log_watch.forget_positions()
        self._calls.look_at_log(self._learned_of_log)

    def _learned_of_log(self, facts: LogFacts) -> None:
        self._log_watch.learned(facts)
        self._around.facts.expiration_micros = self._log_watch.facts.retention_micros
        for consumer in self._consumers.values():
            self._tell_position(consumer)
        if facts.is_partial:
            self._plan_look()

    def _tell_position(self, consumer: ShardConsumer) -> None:
        at_micros = self._log_watch.facts.consumed_micros.get(consumer.shard_id)
        if at_micros is not None:
            consumer.was_read_up_to(at_micros)

    def page_came(self, channel_id: str, position_micros: int | None, first_micros: int) -> None:
        """Check whether the service may have skipped records before a page of a channel."""
        self._log_watch.page_came(channel_id, position_micros, first_micros)

    def _suspected(self, cause: Suspicion, text: str) -> None:
        _log.warning("tunnel %s: %s", self._tunnel_id, text)
        self._around.instruments.suspected_loss(cause.value)

    def consumer_ended(self, shard: ShardInfo, end: ConsumerEnd) -> None:
        """Record that a consumer has ended, and tell the session."""
        reader = shard.lease_identifier
        del self._consumers[reader], self._slots[reader]
        self._log_watch.closed(shard.shard_id)
        if end is ConsumerEnd.DONE:
            self._declined[shard.shard_id] = self._loop.now()
        _log.info("tunnel %s: channel %s ended (%s)", self._tunnel_id, shard.shard_id, end.value)
        self.emit(tunnel_events.ReaderEnded(shard.shard_id, reader, end is ConsumerEnd.SHARD_END))

    def consumer_stalled(self, shard: ShardInfo, reason: str) -> None:
        """Record that a consumer makes no progress, and tell the session; ``reason`` says why."""
        self._around.instruments.stalled()
        self.emit(tunnel_events.ReaderStalled(shard.shard_id, shard.lease_identifier, reason))

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _checkpoint_requested(self, shard: ShardInfo, ticket: CheckpointTicket) -> None:
        reader = shard.lease_identifier
        consumer, slot = self._consumers.get(reader), self._slots.get(reader)
        if consumer is None or slot is None or not ticket.is_open():
            ticket.refuse()
            return
        self._waiting[ticket] = reader
        consumer.checkpoint_requested()
        self._calls.store(slot, token_of(ticket.value), partial(self._stored, ticket))

    def _stored(self, ticket: CheckpointTicket, stored: Stored, error: Exception | None) -> None:
        if ticket not in self._waiting:
            return
        if stored in (Stored.YES, Stored.LOST, Stored.PASSED):
            self._stores.succeeded(self._loop.now())
        else:
            self._stores.failed(error, self._loop.now())
        consumer = self._consumers.get(self._waiting.pop(ticket))
        answer = AnswerCheckpoint(0, _OUTCOMES[stored], error)
        if consumer is not None and not self._loop.is_closed:
            consumer.checkpoint_answered(ticket, answer.outcome)
            if stored is Stored.LOST:
                consumer.stop(ShutdownReason.ZOMBIE)
        ticket.answer(answer)
        if stored is Stored.NEVER and error is not None:
            self.emit(tunnel_events.CallsRefused("checkpoints cannot be stored", error))

    def _answer_all(self) -> None:
        for ticket in list(self._waiting):
            self._stored(ticket, Stored.UNKNOWN, None)

    # --- time and status -----------------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        if self._deadline is None:
            self._deadline = Deadline(self._loop.now, self._shutdown_seconds)
            self.emit(tunnel_events.SessionStopRequested())

    def _watch(self) -> None:
        now = self._loop.now()
        if now < self._next_watch:
            return
        self._next_watch = now + self._watch_seconds
        for consumer in list(self._consumers.values()):
            consumer.watch(now)
        self._declined = {key: at for key, at in self._declined.items() if now - at < DECLINED_REMEMBERED_SECONDS}
        self._unread = dict(self._failing_reads(now))
        watch_reads(self._around.facts.reads, self._consumers.values(), now)
        self._faults.look(self._consumers.values(), (), now)
        self._failing.look(self._consumers.values(), now)
        self._judged = logged_change(self._judged, self.health, f"tunnel worker of {self._tunnel_id}")

    def _failing_reads(self, now: float) -> Iterator[tuple[str, ChannelTrouble]]:
        for consumer in self._consumers.values():
            machine, known = consumer.machine, self._unread.get(consumer.shard_id)
            failures = machine.backoff.read_failures
            if failures:
                why = "" if machine.reason is None else text_of(machine.reason)
                since = now if known is None else known.since
                yield consumer.shard_id, ChannelTrouble(why, since, failures, machine.resume_at or now, now)

    def _sample(self) -> None:
        """Report the state of every channel to the instruments now, and again at regular intervals."""
        of_worker = WorkerSample(
            ahead_bytes=sum(consumer.ahead_bytes for consumer in self._consumers.values()),
            clock_slow_seconds=self._around.facts.clock_slow_seconds(self._loop.now()),
        )
        self._around.instruments.judged(self.health)
        self._around.instruments.sample(self._statuses(), of_worker)
        self._loop.call_later(SAMPLE_SECONDS, self._sample)

    def _note_health(self, event: Event, now: float) -> None:
        if isinstance(event, tunnel_events.Connected):
            self.has_connected = True
        elif isinstance(event, tunnel_events.HeartbeatAnswered):
            self._heartbeats.succeeded(now)
        elif isinstance(event, tunnel_events.ConnectFailed | tunnel_events.HeartbeatFailed):
            self._heartbeats.failed(event.error, now)

    def _statuses(self) -> Mapping[str, ShardStatus]:
        now = self._loop.now()
        statuses = {key: _given_up(key, trouble, now) for key, trouble in self._session.troubles.items()}
        statuses |= {consumer.shard_id: consumer.status(now) for consumer in self._consumers.values()}
        return {channel_id: over_status(status, self._over) for channel_id, status in sorted(statuses.items())}


def _given_up(channel_id: str, trouble: ChannelTrouble, now: float) -> ShardStatus:
    status = ShardStatus(shard_id=channel_id, state=ShardState.INITIALIZING, checkpoint="", failures=trouble.failures)
    reason = Reason(Cause.CHANNEL_GIVEN_UP, channel_id, trouble.why)
    return because(status, (reason, Reason(Cause.NEXT_TRY, "attempt", f"{max(0.0, trouble.due - now):.1f} s")))


def _named(what: str, troubles: Mapping[str, ChannelTrouble], now: float, limit_seconds: float) -> str:
    """Return a text about the channels of ``troubles`` that are in trouble for longer than ``limit_seconds``.

    The text names at most ``MOST_NAMED`` channels, the longest trouble first. ``what`` is the trouble, for example
    "was not read". The text is empty if there is no such channel.
    """
    old = [(known.since, key, known.why) for key, known in troubles.items() if now - known.since > limit_seconds]
    texts = [f"channel {key} {what} for {now - since:.0f} s ({why})" for since, key, why in sorted(old)]
    unnamed = len(texts) - MOST_NAMED
    more = [f"and {counted(unnamed, 'more channel')}"] if unnamed > 0 else []
    return "; ".join([*texts[:MOST_NAMED], *more])
