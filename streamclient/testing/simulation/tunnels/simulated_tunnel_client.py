"""A simulated process that consumes a tunnel: the production ``TunnelSession`` with simulated readers of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.channel_states import Channel, ChannelStatus
from streamclient.core.tunnel.tunnel_events import Event
from streamclient.core.tunnel.tunnel_session import TunnelSession
from streamclient.records import StreamRecord
from streamclient.testing.simulation.kernel import Dice, SimulatedProcess
from streamclient.testing.simulation.plan import TunnelPlan
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.tunnels.tunnel_laws import Reader, TunnelLaws
from streamclient.tunnel.tunnel_calls import STORE_TRIES, verdict_on
from streamclient.tunnel.tunnel_errors import SequenceNumberNotMatchError
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.tunnel import decode_tunnel_page

READ_AGAIN_SECONDS = 1.0
"""The pause of a reader, in seconds, after a page without records, or after a failed read."""

THAW_SECONDS = 0.01
"""The time after a freeze, in seconds, in which a process may still complete an action from before the freeze."""


class TunnelProcess(SimulatedProcess):
    """One simulated process with a client of the tunnel."""

    def __init__(self, plan: TunnelPlan, laws: TunnelLaws, name: str, session: TunnelSession, dice: Dice) -> None:
        super().__init__(laws.history, name, name, dice)
        self.set_clock(plan.drift)
        self.plan, self.laws, self.service, self.session = plan, laws, laws.service, session
        self.is_finished = False
        self.is_leaving = False
        """Whether the client was asked to stop."""
        self.readers: dict[str, Reader] = {}
        self._tick_at: float | None = None

    def when_awake(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` immediately, or after the freeze of a frozen process. A dead process never calls it.

        For a frozen process, the base class schedules the call at the end of the freeze. This method schedules it after
        the rest of the freeze. The rounded times may differ, and the histories of all seeds depend on the rounding.
        """
        if self.is_alive and self.is_frozen:
            self.later(self.frozen_until - self.agenda.now, call, *arguments)
        else:
            super().when_awake(call, *arguments)

    def deliver(self, event: Event) -> None:
        """Let the session handle ``event``, and carry out the session's commands."""
        if not self.is_alive or self.is_finished:
            return
        commands = self.session.handle(event, self.local())
        history = self.laws.history
        history.events += 1
        if history.observer is not None:
            history.observer.handled(self.agenda.now, self.name, event, commands)
        for command in commands:
            self._execute(command)
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        deadline = self.session.next_deadline()
        if deadline is None or self.is_finished:
            return
        at = max((deadline - self.clock_offset) / self.clock_rate, self.agenda.now) + 1e-6
        if self._tick_at is None or at < self._tick_at:
            self._tick_at = at
            self.agenda.at(at, self.when_awake, self._tick, at)

    def _tick(self, at: float) -> None:
        if self._tick_at == at:
            self._tick_at = None
            self.deliver(tunnel_events.SessionTick())

    # --- commands ------------------------------------------------------------------------------------------------

    def _execute(self, command: tunnel_events.Command) -> None:
        match command:
            case tunnel_events.Connect():
                self._connect()
            case tunnel_events.Heartbeat():
                self._heartbeat(command)
            case tunnel_events.FindCheckpoint():
                self._find_checkpoint(command)
            case tunnel_events.StartReader():
                self._start_reader(command)
            case tunnel_events.StopReader(_, reader, is_lost):
                self._stop_reader(reader, is_lost=is_lost)
            case tunnel_events.EndSession(client_id):
                request = schema.ShutdownRequest(tunnel_id=self.service.tunnel_id, client_id=client_id)
                self._call("shutdown", request, lambda *_: self.deliver(tunnel_events.SessionEnded()))
            case tunnel_events.Finish():
                self.is_finished = True
                self.laws.check(not self.readers, "a session ends after its readers", "", self.name)

    def _call(self, verb: str, request: Any, answered: Callable[[Any, Exception | None], None]) -> None:
        self.service.call(self.name, self.dice, verb, request, partial(self.when_awake, answered))

    def _ask(
        self, verb: str, request: Any, answered: Callable[[Any], Event], failed: Callable[[Exception], Event]
    ) -> None:
        """Call the service, and deliver an event to the session.

        ``answered`` makes the event from a response, and ``failed`` makes the event from an error.
        """
        self._call(verb, request, lambda answer, error: self.deliver(failed(error) if error else answered(answer)))

    def _request(self, kind: type[Any], holder: Reader | tunnel_events.FindCheckpoint, **fields: Any) -> Any:
        """Return a request of type ``kind`` about the channel of ``holder``, with the ids of client and channel."""
        ids = {"tunnel_id": self.service.tunnel_id, "client_id": holder.client_id, "channel_id": holder.channel_id}
        return kind(**ids, **fields)

    def _connect(self) -> None:
        sent_at = self.local()
        request = schema.ConnectRequest(tunnel_id=self.service.tunnel_id)
        request.client_config.timeout = int(self.plan.timeout_seconds)
        request.client_config.client_tag = self.name
        self._ask(
            "connect",
            request,
            lambda answer: tunnel_events.Connected(answer.client_id, sent_at),
            lambda error: tunnel_events.ConnectFailed(verdict_on(error), error),
        )

    def _heartbeat(self, command: tunnel_events.Heartbeat) -> None:
        sent_at, client_id = self.local(), command.client_id
        request = schema.HeartbeatRequest(tunnel_id=self.service.tunnel_id, client_id=client_id)
        for channel in command.channels:
            number = int(schema.ChannelStatusNumber[channel.status.name])
            request.channels.add(channel_id=channel.channel_id, version=channel.version, status=number)
        self._ask(
            "heartbeat",
            request,
            lambda answer: tunnel_events.HeartbeatAnswered(client_id, _channels(answer), sent_at),
            lambda error: tunnel_events.HeartbeatFailed(client_id, verdict_on(error), error),
        )

    def _find_checkpoint(self, command: tunnel_events.FindCheckpoint) -> None:
        which = (command.channel_id, command.reader)
        self._ask(
            "getcheckpoint",
            self._request(schema.GetCheckpointRequest, command),
            lambda answer: tunnel_events.CheckpointFound(*which, answer.checkpoint, answer.sequence_number),
            lambda error: tunnel_events.CheckpointNotFound(*which, error),
        )

    # --- readers -------------------------------------------------------------------------------------------------

    def _start_reader(self, command: tunnel_events.StartReader) -> None:
        began = (command.channel_id, command.reader, command.client_id, command.token, command.sequence_number)
        reader = Reader(self.name, *began, stored=command.token)
        self.readers[reader.identifier] = reader
        self.laws.reader_started(self, reader)
        self._go_on(reader)

    def _stop_reader(self, identifier: str, *, is_lost: bool) -> None:
        reader = self.readers.get(identifier)
        if reader is not None:
            reader.is_stopping = True
            reader.is_lost = reader.is_lost or is_lost

    def _go_on(self, reader: Reader) -> None:
        if reader.is_lost:
            self._end(reader, is_finished=False)
        elif reader.token == FINISHED or (reader.is_stopping and reader.token != reader.stored):
            self._store(reader, 0)
        elif reader.is_stopping:
            self._end(reader, is_finished=False)
        elif reader.pages >= self.plan.pages_per_checkpoint and reader.token != reader.stored:
            self._store(reader, 0)
        else:
            self._read(reader)

    def _read(self, reader: Reader) -> None:
        def answered(response: Any, error: Exception | None) -> None:
            if error is not None or reader.is_stopping:
                self.later(READ_AGAIN_SECONDS, self._go_on, reader)
                return
            page = decode_tunnel_page(response.SerializeToString())
            slow = self.dice.delay(self.laws.process_seconds)
            self.later(slow, self._process, reader, page.records, page.next_token)

        self._call("readrecords", self._request(schema.ReadRecordsRequest, reader, token=reader.token), answered)

    def _process(self, reader: Reader, records: Sequence[StreamRecord], next_token: str) -> None:
        excuse = Excuse.CALL_UNDER_WAY if reader.is_lost else None
        if self.agenda.now < self.frozen_until + THAW_SECONDS:
            excuse = Excuse.JUST_THAWED
        self.laws.processed(reader, records, excuse)
        reader.token = next_token
        reader.pages += 1
        pause = 0.0 if records or next_token == FINISHED else READ_AGAIN_SECONDS
        self.later(pause, self._go_on, reader)

    def _store(self, reader: Reader, tries: int) -> None:
        """Store the reader's token as production code does. After an error, look up the stored token first."""
        number = reader.sequence_number + 1
        request = self._request(schema.CheckpointRequest, reader, checkpoint=reader.token, sequence_number=number)

        def answered(_: Any, error: Exception | None) -> None:
            if error is None:
                self._has_stored(reader, number)
            else:
                is_last = isinstance(error, SequenceNumberNotMatchError) or tries + 1 >= STORE_TRIES
                self._look(reader, number, None if is_last else tries + 1)

        self._call("checkpoint", request, answered)

    def _look(self, reader: Reader, number: int, next_try: int | None) -> None:
        def looked(found: Any, error: Exception | None) -> None:
            if error is None and (found.checkpoint, found.sequence_number) == (reader.token, number):
                self._has_stored(reader, number)
            elif next_try is None:
                self._end(reader, is_finished=False)
            else:
                self._store(reader, next_try)

        self._call("getcheckpoint", self._request(schema.GetCheckpointRequest, reader), looked)

    def _has_stored(self, reader: Reader, number: int) -> None:
        reader.sequence_number, reader.stored, reader.pages = number, reader.token, 0
        if reader.token == FINISHED:
            self._end(reader, is_finished=True)
        else:
            self._go_on(reader)

    def _end(self, reader: Reader, *, is_finished: bool) -> None:
        del self.readers[reader.identifier]
        self.laws.reader_ended(reader)
        self.deliver(tunnel_events.ReaderEnded(reader.channel_id, reader.identifier, is_finished))


def _channels(response: Any) -> list[Channel]:
    return [
        Channel(each.channel_id, each.version, ChannelStatus(schema.ChannelStatusNumber(each.status).name))
        for each in response.channels
    ]
