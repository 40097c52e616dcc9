"""The client's side of one channel (Java: ``ChannelConnect``, ``FailedChannelConnect``).

    WAIT --OPEN--> RUNNING --CLOSING--> CLOSING --reader ended--> CLOSED
    any  --CLOSE, TERMINATED--> CLOSED        RUNNING --reader ended--> CLOSED

A closed connection never opens again: it only answers, to whatever it is told, that it is closed.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from streamclient.core.tunnel.channel_states import Channel, ChannelStatus


class ConnectionState(Enum):
    """What a connection is doing."""

    WAIT = "WAIT"
    RUNNING = "RUNNING"
    CLOSING = "CLOSING"
    """Its reader was asked to end, and may still store a checkpoint."""
    CLOSED = "CLOSED"


class Step(Enum):
    """What its owner has to do after a notification."""

    START = "start"
    """Start reading."""
    LET_GO = "let_go"
    """Have the reader end in order, with a last checkpoint."""
    DROP = "drop"
    """Have the reader end at once: the channel may be another client's already."""


@define
class ChannelConnection:
    """States of one channel at one client. Methods answer what to do next, if anything."""

    channel_id: str
    state: ConnectionState = ConnectionState.WAIT
    latest: Channel | None = None
    """The newest state that is known; what the next heartbeat reports."""
    is_finished: bool = False
    rounds_closing: int = 0
    """Heartbeats since it was asked to let go."""
    reader: str = ""
    """Identifier of its reader; empty while it has none, or waits for that of a predecessor to end."""

    @property
    def is_active(self) -> bool:
        """Whether the channel is read, or shall be."""
        return self.state in (ConnectionState.RUNNING, ConnectionState.CLOSING)

    def notify(self, channel: Channel) -> Step | None:
        """Take in what a heartbeat's answer says. An older version is ignored."""
        if self.latest is not None and channel.version < self.latest.version:
            return None
        self.latest = channel
        if channel.status is ChannelStatus.OPEN:
            return self._open()
        if channel.status is ChannelStatus.CLOSING:
            return self._let_go()
        self.is_finished = self.is_finished or channel.status is ChannelStatus.TERMINATED
        return self._close()

    def reader_ended(self, *, is_finished: bool) -> None:
        """Its reader has ended: by request, by failure, or at the end of the channel. Reported at once."""
        self.is_finished = self.is_finished or is_finished
        self.state = ConnectionState.CLOSED
        self.check()

    def check(self) -> None:
        """A closed connection says so, in a newer version than it was last told."""
        if self.state is ConnectionState.CLOSED and self.latest is not None:
            status = ChannelStatus.TERMINATED if self.is_finished else ChannelStatus.CLOSE
            self.latest = self.latest.changed(status)

    def _open(self) -> Step | None:
        if self.state is ConnectionState.WAIT:
            self.state = ConnectionState.RUNNING
            return Step.START
        self.check()
        return None

    def _let_go(self) -> Step | None:
        if self.state is ConnectionState.RUNNING:
            self.state = ConnectionState.CLOSING
            return Step.LET_GO
        if self.state is ConnectionState.WAIT:
            self.state = ConnectionState.CLOSED
        self.check()
        return None

    def _close(self) -> Step | None:
        was_active = self.is_active
        self.state = ConnectionState.CLOSED
        return Step.DROP if was_active else None
