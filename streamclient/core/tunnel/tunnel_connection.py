"""The connection to one channel, as its client sees it (Java: ``ChannelConnect``, ``FailedChannelConnect``).

    WAIT --OPEN--> RUNNING --CLOSING--> CLOSING --reader ended--> CLOSED
    any  --CLOSE, TERMINATED--> CLOSED        RUNNING --reader ended--> CLOSED

A closed connection never opens again. After any further notification, it reports that it is closed.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from streamclient.core.tunnel.channel_states import Channel, ChannelStatus


class ConnectionState(Enum):
    """The state of a channel's connection."""

    WAIT = "WAIT"
    RUNNING = "RUNNING"
    CLOSING = "CLOSING"
    """The channel's reader was asked to end, and may still store a checkpoint."""
    CLOSED = "CLOSED"


class Step(Enum):
    """The step that the owner of a connection must take after a notification."""

    START = "start"
    """Start reading the channel."""
    LET_GO = "let_go"
    """Let the reader finish its work and end with a last checkpoint."""
    DROP = "drop"
    """End the reader immediately, because another client may have the channel already."""


@define
class ChannelConnection:
    """The state of one channel at one client. ``notify`` returns the next step of its owner."""

    channel_id: str
    state: ConnectionState = ConnectionState.WAIT
    latest: Channel | None = None
    """The newest known state of the channel, which the next heartbeat reports."""
    is_finished: bool = False
    rounds_closing: int = 0
    """The number of heartbeats since the service asked to release the channel."""
    reader: str = ""
    """The identifier of the channel's reader; empty without a reader, or while an earlier reader of the channel still
    runs."""

    @property
    def is_active(self) -> bool:
        """Whether the channel is being read, or will be."""
        return self.state in (ConnectionState.RUNNING, ConnectionState.CLOSING)

    def notify(self, channel: Channel) -> Step | None:
        """Process the channel's state in the answer to a heartbeat, and return the next step; ``None`` for no step.

        A state with an older version is ignored.
        """
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
        """Close the connection, because its reader has ended; the next heartbeat reports that.

        The reader may have ended on request, by a failure, or at the channel's end. ``is_finished`` says that the
        channel was consumed to its end.
        """
        self.is_finished = self.is_finished or is_finished
        self.state = ConnectionState.CLOSED
        self.check()

    def check(self) -> None:
        """If the connection is closed, let the next heartbeat report the channel as closed or terminated.

        The version of the reported state is one higher than the last known version.
        """
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
