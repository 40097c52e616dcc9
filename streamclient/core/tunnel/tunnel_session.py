"""The session of one tunnel client: events go in, commands come out.

``TunnelSession`` decides when to connect and to send heartbeats, which channels to read and to release, and when to
give up. It reads no clock, makes no call and starts no thread. The same events at the same times give the same
commands.

Laws:

* channels are read only while the session is certainly alive. It is alive for its time-out less a margin, counted from
  the time when the last answered heartbeat was *sent*;
* a channel has at most one reader at a time in this process, whatever the service answers;
* changes caused by the end of a reader are reported immediately, not with the next regular heartbeat. So the next
  reader gets the channel sooner, and the service learns sooner that a parent is finished (Java and Go: one to two
  intervals later);
* a lost session is replaced immediately (Java: after its local time-out). Failed attempts are repeated for ever, with
  growing pauses. If the service says that an attempt can never succeed, the session ends, and its channels are free;
* if the checkpoint of a channel cannot be read, or the service lists a channel with unknown contents, only that channel
  is given up. A report names the channel, and the client tries the channel again after growing pauses;
* a channel that is missing in an answer is dropped immediately. A heartbeat then requests it again, because the answer
  may have been cut;
* at a stop, readers store their last checkpoints before the session ends (Java stores none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import define, field, frozen

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.reasons import described
from streamclient.core.events import Severity
from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.channel_states import Channel, ChannelStatus, merged
from streamclient.core.tunnel.troubles import ChannelTrouble, ChannelTroubles
from streamclient.core.tunnel.tunnel_connection import ChannelConnection, ConnectionState, Step
from streamclient.core.tunnel.tunnel_events import CallVerdict, Command, Event

MARGIN_SHARE = 0.05
"""The share of the session's time-out that the client does not use: clocks drift, and readers need time to stop."""

CLOSING_ROUNDS_MAX = 3
"""The number of heartbeats after which a reader that was asked to end is dropped (Java: closing-channel detection)."""

SHORTEST_RECONNECT_MILLIS = 200
LONGEST_RECONNECT_MILLIS = 10_000
"""The longest pause between attempts to connect; ``SHORTEST_RECONNECT_MILLIS`` is the shortest one. Java and Go wait a
random time of up to ten seconds, even after the first attempt."""

SHORTEST_BEAT_GAP_SECONDS = 0.2
"""The shortest time between two heartbeats. Channels that end within this time are reported together."""


@frozen(kw_only=True)
class SessionSettings:
    """The settings of a tunnel session. All times are in seconds."""

    heartbeat_interval: float
    heartbeat_timeout: float
    detects_closing: bool = True


@define(eq=False)
class _State:
    client_id: str = ""
    valid_until: float = 0.0
    is_connecting: bool = False
    connect_failures: int = 0
    connect_at: float | None = 0.0
    is_beating: bool = False
    beat_at: float | None = None
    last_beat: float = float("-inf")
    is_stopping: bool = False
    is_ending: bool = False
    is_finished: bool = False
    error: Exception | None = None
    current: dict[str, Channel] = field(factory=dict)
    connections: dict[str, ChannelConnection] = field(factory=dict)
    readers: dict[str, str] = field(factory=dict)
    """The identifiers of the readers, by channel. A reader was started, or its checkpoint is being looked up."""
    started: set[str] = field(factory=set)
    """The identifiers of readers that were started and for which no ``ReaderEnded`` has come."""
    commands: list[Command] = field(factory=list)


class TunnelSession:
    """The decisions of one tunnel client.

    Owned by one thread. A call of ``handle`` must end before the next one begins. The caller sends exactly one answer
    to every command that has one: ``Connected`` or ``ConnectFailed`` to ``Connect``, ``HeartbeatAnswered`` or
    ``HeartbeatFailed`` to ``Heartbeat``, ``CheckpointFound`` or ``CheckpointNotFound`` to ``FindCheckpoint``,
    ``ReaderEnded`` to ``StartReader`` when the reader has ended, and ``SessionEnded`` to ``EndSession``.
    """

    def __init__(self, settings: SessionSettings, rng: Random, *, new_identifier: Callable[[], str]) -> None:
        self._settings = settings
        self._rng = rng
        self._new_identifier = new_identifier
        self._now = 0.0
        self._state = _State()
        self._troubles = ChannelTroubles(rng)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one fact that became known at ``now`` (monotonic seconds), and return the commands to carry out."""
        self._now = max(self._now, now)
        if not self._state.is_finished:
            _HANDLERS[type(event)](self, event)
            self._expire()
            self._go_on()
        commands, self._state.commands = self._state.commands, []
        return commands

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The states of the channels that the next heartbeat reports, by channel id."""
        return dict(self._state.current)

    @property
    def troubles(self) -> Mapping[str, ChannelTrouble]:
        """The troubles of channels that should be read and cannot be, by channel id. Any thread may read this."""
        return self._troubles.present

    @property
    def client_id(self) -> str:
        """The id of the present session; empty between sessions."""
        return self._state.client_id

    def wants(self, lookup: tunnel_events.FindCheckpoint) -> bool:
        """Return whether a reader would be started with the result of ``lookup``. Usable from any thread.

        After an answer ``False``, the answer is ``False`` for ever: the channel was given up, or is looked up anew.
        """
        return self._wants(lookup.channel_id, lookup.reader)

    def next_deadline(self) -> float | None:
        """Return the time (monotonic seconds) at which to send ``SessionTick`` if no event comes first.

        ``None`` means that no time is set.
        """
        state = self._state
        if state.is_finished or state.is_ending:
            return None
        if not state.client_id:
            return None if state.is_connecting or state.is_stopping else state.connect_at
        moments = [state.valid_until, *(self._troubles.due(connection.channel_id) for connection in self._waiting())]
        if state.beat_at is not None and not state.is_beating:
            moments.append(state.beat_at)
        return min(moments)

    # --- the session ---------------------------------------------------------------------------------------------

    def _connected(self, event: tunnel_events.Connected) -> None:
        state = self._state
        state.is_connecting = False
        state.connect_failures = 0
        state.client_id, state.current = event.client_id, {}
        state.valid_until = self._valid_until(event.sent_at)
        state.beat_at = None if state.is_stopping else self._now
        self._report(Severity.INFO, f"connected as {event.client_id}")

    def _connect_failed(self, event: tunnel_events.ConnectFailed) -> None:
        state = self._state
        state.is_connecting = False
        if event.verdict is CallVerdict.FINAL:
            self._give_up("no session can begin", event.error)
            return
        state.connect_failures += 1
        pause = doubling_millis(state.connect_failures, SHORTEST_RECONNECT_MILLIS, LONGEST_RECONNECT_MILLIS)
        state.connect_at = self._now + with_jitter(pause, self._rng) / 1_000
        self._tell_failure(f"connecting failed, next attempt in {pause / 1_000:.1f} s", "connect", event.error)

    def _expire(self) -> None:
        state = self._state
        if state.client_id and not state.is_ending and self._now >= state.valid_until:
            self._lose_session(f"no heartbeat of {state.client_id} was answered in time")

    def _lose_session(self, why: str) -> None:
        """Drop all channels, because other clients may have them by now, and begin a new session immediately."""
        state = self._state
        state.client_id, state.beat_at = "", None
        for connection in list(state.connections.values()):
            self._drop(connection)
        state.connections, state.current = {}, {}
        self._troubles.listed((), {}, self._now)
        state.connect_at = None if state.is_stopping else self._now
        self._report(Severity.WARNING, f"{why}; connecting again")

    def _give_up(self, why: str, error: Exception) -> None:
        state = self._state
        if state.error is not None:
            return
        state.error = error
        text = f"consuming ends, {why}: {error}"
        state.commands.append(tunnel_events.SessionReport(Severity.ERROR, text, ends=True))
        for connection in list(state.connections.values()):
            self._drop(connection)
        state.connections, state.current = {}, {}
        state.beat_at = state.connect_at = None
        state.is_stopping = True

    def _stop_requested(self, event: tunnel_events.SessionStopRequested) -> None:
        state = self._state
        if state.is_stopping:
            return
        state.is_stopping, state.connect_at = True, None
        for connection in list(state.connections.values()):
            self._let_go(connection)

    def _session_ended(self, event: tunnel_events.SessionEnded) -> None:
        self._state.client_id = ""
        self._state.is_ending = False

    def _go_on(self) -> None:
        """Do the work that is due. This is called after every event."""
        state = self._state
        if state.is_stopping:
            self._finish_when_idle()
        elif not (state.client_id or state.is_connecting) and state.connect_at is not None:
            self._connect_if_due(state.connect_at)
        if state.client_id and not state.is_ending:
            for connection in self._waiting():
                self._find_checkpoint(connection)
            self._beat_if_due()

    def _connect_if_due(self, connect_at: float) -> None:
        if self._now >= connect_at:
            self._state.is_connecting, self._state.connect_at = True, None
            self._state.commands.append(tunnel_events.Connect())

    def _finish_when_idle(self) -> None:
        state = self._state
        if state.readers or state.is_connecting or state.is_ending:
            return
        if state.client_id:
            state.is_ending = True
            state.commands.append(tunnel_events.EndSession(state.client_id))
        else:
            state.is_finished = True
            state.commands.append(tunnel_events.Finish(state.error))

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def _beat_if_due(self) -> None:
        state = self._state
        if state.is_beating or state.beat_at is None or self._now < state.beat_at:
            return
        state.is_beating, state.last_beat = True, self._now
        state.beat_at = self._now + self._settings.heartbeat_interval
        state.commands.append(tunnel_events.Heartbeat(state.client_id, tuple(state.current.values())))

    def _beat_soon(self) -> None:
        """Send a heartbeat soon, because a change must be reported to the service."""
        state = self._state
        soon = max(self._now, state.last_beat + SHORTEST_BEAT_GAP_SECONDS)
        state.beat_at = soon if state.beat_at is None else min(state.beat_at, soon)

    def _heartbeat_answered(self, event: tunnel_events.HeartbeatAnswered) -> None:
        state = self._state
        state.is_beating = False
        if event.client_id != state.client_id:
            return
        state.valid_until = max(state.valid_until, self._valid_until(event.sent_at))
        if state.is_stopping:
            return
        state.current = merged(state.current, event.channels)
        self._troubles.listed(state.current.keys(), event.strange, self._now)
        for channel_id, told in event.strange.items():
            self._tell_failure(f"channel {channel_id} is not read", f"listing of {channel_id}", told)
        for channel_id in [known for known in state.connections if known not in state.current]:
            connection = state.connections.pop(channel_id)
            if connection.is_active and channel_id not in event.strange:
                self._beat_soon()
            self._drop(connection)
        for channel in list(state.current.values()):
            self._take_notice(channel)
        if self._settings.detects_closing:
            self._count_closing_rounds()

    def _heartbeat_failed(self, event: tunnel_events.HeartbeatFailed) -> None:
        state = self._state
        state.is_beating = False
        if event.client_id != state.client_id:
            return
        if event.verdict is CallVerdict.FINAL:
            self._give_up("heartbeats are refused", event.error)
        elif event.verdict is CallVerdict.GONE:
            self._lose_session(f"the service ended session {state.client_id}: {event.error}")
        else:
            self._tell_failure("heartbeat failed", "heartbeat", event.error)

    def _take_notice(self, channel: Channel) -> None:
        state = self._state
        connection = state.connections.get(channel.channel_id)
        if connection is None:
            if channel.status in (ChannelStatus.CLOSE, ChannelStatus.TERMINATED):
                return
            connection = state.connections[channel.channel_id] = ChannelConnection(channel.channel_id)
        step = connection.notify(channel)
        if step is Step.START:
            self._find_checkpoint(connection)
        elif step is Step.LET_GO:
            self._let_go(connection)
        elif step is Step.DROP:
            self._drop(connection)
        self._settle(connection)

    def _count_closing_rounds(self) -> None:
        for connection in list(self._state.connections.values()):
            if connection.state is not ConnectionState.CLOSING:
                continue
            connection.rounds_closing += 1
            if connection.rounds_closing >= CLOSING_ROUNDS_MAX:
                self._force_closed(connection, f"its reader did not end within {CLOSING_ROUNDS_MAX} heartbeats")

    def _force_closed(self, connection: ChannelConnection, why: str) -> None:
        self._report(Severity.ERROR, f"channel {connection.channel_id} is given up: {why}")
        self._drop(connection)
        connection.reader_ended(is_finished=False)
        self._settle(connection)
        self._beat_soon()

    def _settle(self, connection: ChannelConnection) -> None:
        """Copy the channel's state from the connection, so that the next heartbeat reports it.

        If the connection is closed, remove it, so that a new connection may take its place.
        """
        state = self._state
        if connection.latest is not None and connection.channel_id in state.current:
            state.current[connection.channel_id] = connection.latest
        if connection.state is ConnectionState.CLOSED:
            state.connections.pop(connection.channel_id, None)

    # --- readers -------------------------------------------------------------------------------------------------

    def _find_checkpoint(self, connection: ChannelConnection) -> None:
        """Look the checkpoint up if an old reader of the channel has ended and the pause after a failed lookup is over.

        Otherwise do nothing: the session calls this method again at the end of the old reader or of the pause.
        """
        state = self._state
        if connection.channel_id in state.readers or self._now < self._troubles.due(connection.channel_id):
            return
        reader = connection.reader = self._new_identifier()
        state.readers[connection.channel_id] = reader
        state.commands.append(tunnel_events.FindCheckpoint(state.client_id, connection.channel_id, reader))

    def _checkpoint_found(self, event: tunnel_events.CheckpointFound) -> None:
        state = self._state
        if state.readers.get(event.channel_id) != event.reader:
            return
        if not self._wants(event.channel_id, event.reader):
            self._reader_is_gone(event.channel_id, is_finished=False)
            return
        state.started.add(event.reader)
        self._troubles.ended(event.channel_id)
        state.commands.append(
            tunnel_events.StartReader(
                state.client_id, event.channel_id, event.reader, event.token, event.sequence_number
            )
        )

    def _wants(self, channel_id: str, reader: str) -> bool:
        """Return whether ``reader`` would be started with the channel's checkpoint.

        A reader of an earlier connection would not be: another client may have read the channel since its lookup, and
        the present connection could not stop it.
        """
        connection = self._state.connections.get(channel_id)
        if self._state.is_stopping or connection is None:
            return False
        return connection.reader == reader and connection.state is ConnectionState.RUNNING

    def _checkpoint_not_found(self, event: tunnel_events.CheckpointNotFound) -> None:
        if self._state.readers.get(event.channel_id) == event.reader:
            why = f"no checkpoint of it was read: {described(event.error)}"
            pause = self._troubles.failed(event.channel_id, why, self._now)
            text = f"no checkpoint of channel {event.channel_id}, which is tried again in {pause:.1f} s"
            self._tell_failure(text, "checkpoint", event.error)
            self._reader_is_gone(event.channel_id, is_finished=False)
        if event.verdict is CallVerdict.FINAL:
            self._give_up("checkpoints cannot be read", event.error)

    def _channel_declined(self, event: tunnel_events.ChannelDeclined) -> None:
        if self._state.readers.get(event.channel_id) == event.reader:
            self._reader_is_gone(event.channel_id, is_finished=False)

    def _calls_refused(self, event: tunnel_events.CallsRefused) -> None:
        self._give_up(event.why, event.error)

    def _waiting(self) -> list[ChannelConnection]:
        """Return the connections of channels that should be read, but wait for another lookup of their checkpoint.

        The last lookup failed.
        """
        state = self._state
        connections = (state.connections.get(channel_id) for channel_id in self._troubles.known())
        return [
            connection
            for connection in connections
            if connection is not None
            and connection.state is ConnectionState.RUNNING
            and not connection.reader
            and connection.channel_id not in state.readers
        ]

    def _reader_ended(self, event: tunnel_events.ReaderEnded) -> None:
        if self._state.readers.get(event.channel_id) == event.reader:
            self._state.started.discard(event.reader)
            self._reader_is_gone(event.channel_id, is_finished=event.is_finished)

    def _reader_stalled(self, event: tunnel_events.ReaderStalled) -> None:
        connection = self._state.connections.get(event.channel_id)
        if connection is not None and self._state.readers.get(event.channel_id) == event.reader:
            self._force_closed(connection, event.reason)

    def _reader_is_gone(self, channel_id: str, *, is_finished: bool) -> None:
        state = self._state
        reader = state.readers.pop(channel_id)
        connection = state.connections.get(channel_id)
        if connection is None:
            return
        is_predecessor = connection.reader != reader
        if is_predecessor and connection.state is ConnectionState.RUNNING:
            self._find_checkpoint(connection)
            return
        connection.reader_ended(is_finished=is_finished and not is_predecessor)
        self._settle(connection)
        self._beat_soon()

    def _let_go(self, connection: ChannelConnection) -> None:
        if connection.reader:
            self._stop_reader(connection, is_lost=False)
        else:
            connection.reader_ended(is_finished=False)
            self._beat_soon()

    def _drop(self, connection: ChannelConnection) -> None:
        self._stop_reader(connection, is_lost=True)

    def _stop_reader(self, connection: ChannelConnection, *, is_lost: bool) -> None:
        if connection.reader in self._state.started:
            self._state.commands.append(tunnel_events.StopReader(connection.channel_id, connection.reader, is_lost))

    def _valid_until(self, sent_at: float) -> float:
        return sent_at + self._settings.heartbeat_timeout * (1.0 - MARGIN_SHARE)

    def _report(self, severity: Severity, text: str) -> None:
        self._state.commands.append(tunnel_events.SessionReport(severity, text))

    def _tell_failure(self, text: str, call: str, error: Exception | str) -> None:
        """Report a failed call as an outage, because such calls are repeated and fail each time."""
        outage = (call, type(error).__name__, str(getattr(error, "code", None)))
        self._state.commands.append(tunnel_events.SessionReport(Severity.WARNING, f"{text}: {error}", outage))

    def _tick(self, event: tunnel_events.SessionTick) -> None:
        """Do nothing: ``handle`` does the work that is due after every event."""


_HANDLERS: Mapping[type, Callable[[TunnelSession, Any], None]] = {
    tunnel_events.SessionTick: TunnelSession._tick,
    tunnel_events.Connected: TunnelSession._connected,
    tunnel_events.ConnectFailed: TunnelSession._connect_failed,
    tunnel_events.HeartbeatAnswered: TunnelSession._heartbeat_answered,
    tunnel_events.HeartbeatFailed: TunnelSession._heartbeat_failed,
    tunnel_events.CheckpointFound: TunnelSession._checkpoint_found,
    tunnel_events.CheckpointNotFound: TunnelSession._checkpoint_not_found,
    tunnel_events.ChannelDeclined: TunnelSession._channel_declined,
    tunnel_events.CallsRefused: TunnelSession._calls_refused,
    tunnel_events.ReaderEnded: TunnelSession._reader_ended,
    tunnel_events.ReaderStalled: TunnelSession._reader_stalled,
    tunnel_events.SessionStopRequested: TunnelSession._stop_requested,
    tunnel_events.SessionEnded: TunnelSession._session_ended,
}
