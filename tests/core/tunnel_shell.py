"""A tunnel's session, given events at chosen times; its commands sorted."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.channel_states import Channel, ChannelStatus
from streamclient.core.tunnel.tunnel_session import SessionSettings, TunnelSession

T = TypeVar("T")
SETTINGS = SessionSettings(heartbeat_interval=30.0, heartbeat_timeout=300.0)
ERROR = RuntimeError("no")


class Shell:
    """Hands events to a session at chosen times and sorts the commands."""

    def __init__(self, settings: SessionSettings = SETTINGS) -> None:
        numbers = iter(range(1, 1_000))
        self.session = TunnelSession(settings, Random(1), new_identifier=lambda: f"r{next(numbers)}")
        self.now = 0.0
        self.commands: list[tunnel_events.Command] = []

    def handle(self, event: tunnel_events.Event) -> list[tunnel_events.Command]:
        self.commands = self.session.handle(event, self.now)
        return self.commands

    def later(self, seconds: float) -> list[tunnel_events.Command]:
        self.now += seconds
        return self.handle(tunnel_events.SessionTick())

    def of(self, kind: type[T]) -> list[T]:
        return [command for command in self.commands if isinstance(command, kind)]

    def connect(self, client_id: str = "me") -> None:
        self.handle(tunnel_events.SessionTick())
        assert self.of(tunnel_events.Connect)
        self.handle(tunnel_events.Connected(client_id, self.now))
        assert self.of(tunnel_events.Heartbeat) == [tunnel_events.Heartbeat(client_id, ())]

    def answer(self, *texts: str, client_id: str = "me") -> list[tunnel_events.Command]:
        return self.handle(tunnel_events.HeartbeatAnswered(client_id, [channel(text) for text in texts], self.now))

    def read(self, text: str) -> tunnel_events.StartReader:
        """Have a channel offered, and its reader started."""
        self.answer(text)
        lookup = self.lookup()
        self.handle(tunnel_events.CheckpointFound(lookup.channel_id, lookup.reader, "token", 4))
        (started,) = self.of(tunnel_events.StartReader)
        return started

    def beat(self, *texts: str) -> list[tunnel_events.Command]:
        """Let an interval pass, and answer its heartbeat with channels."""
        self.later(30)
        return self.answer(*texts)

    def lookup(self) -> tunnel_events.FindCheckpoint:
        """Return the one lookup that is asked for."""
        (found,) = self.of(tunnel_events.FindCheckpoint)
        return found

    def end(
        self, reader: tunnel_events.StartReader, *, is_finished: bool = False, after: float = 0.0
    ) -> list[tunnel_events.Command]:
        self.now += after
        return self.handle(tunnel_events.ReaderEnded(reader.channel_id, reader.reader, is_finished))

    def stops(self) -> list[tuple[str, str, bool]]:
        """List the readers told to stop: channel, reader, and whether the channel is lost."""
        return [(each.channel_id, each.reader, each.is_lost) for each in self.of(tunnel_events.StopReader)]

    def reported(self) -> list[str]:
        (beat,) = self.of(tunnel_events.Heartbeat)
        return [str(each) for each in beat.channels]


def channel(text: str) -> Channel:
    name, status = text.split(" ")
    kind, _, version = status.partition("@")
    return Channel(name, int(version), ChannelStatus(kind))


def connected(settings: SessionSettings = SETTINGS) -> Shell:
    shell = Shell(settings)
    shell.connect()
    return shell
