"""Carries out the commands of a ``TunnelSession``, outside the owner thread, and reports each as one event."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum
from functools import partial

from attrs import define, frozen

from streamclient.core.tunnel import events
from streamclient.core.tunnel.events import CallVerdict, Event
from streamclient.errors import DependencyException
from streamclient.tunnel.client import TunnelClient
from streamclient.tunnel.errors import FINAL_ERRORS, SequenceNumberNotMatchError, TunnelSessionGoneError
from streamclient.worker.loop import OwnerLoop

STORE_TRIES = 5
"""How often an uncertain checkpoint is looked up and sent again before the caller is told that nobody knows."""


def verdict_on(error: Exception) -> CallVerdict:
    """What a failed call means for the session."""
    if isinstance(error, FINAL_ERRORS):
        return CallVerdict.FINAL
    return CallVerdict.GONE if isinstance(error, TunnelSessionGoneError) else CallVerdict.PASSING


class Stored(Enum):
    """What became of a checkpoint."""

    YES = "yes"
    LOST = "lost"
    """Another consumer stored one: the channel is not this client's any more."""
    UNKNOWN = "unknown"


@define(eq=False)
class ChannelSlot:
    """The checkpoint of one reader. One store at a time, in any thread."""

    client_id: str
    channel_id: str
    sequence_number: int
    """Of the last checkpoint that is stored, by whomever."""


@frozen(kw_only=True)
class TunnelCalls:
    """The owner's hands. Methods are called in the owner thread and return at once; ``emit`` is called there, too."""

    client: TunnelClient
    tunnel_id: str
    timeout_seconds: int
    client_tag: str
    loop: OwnerLoop
    pool: Executor
    emit: Callable[[Event], None]

    def connect(self) -> None:
        """Begin a session."""
        self._do(self._connect)

    def heartbeat(self, command: events.Heartbeat) -> None:
        """Report channels, and hear which to hold."""
        self._do(partial(self._heartbeat, command))

    def find_checkpoint(self, command: events.FindCheckpoint) -> None:
        """Look up where to read a channel."""
        self._do(partial(self._find_checkpoint, command))

    def end_session(self, command: events.EndSession) -> None:
        """Tell the service that the session is over; if it cannot be told, the session runs out by itself."""
        self._do(partial(self._end_session, command))

    def store(self, slot: ChannelSlot, token: str, done: Callable[[Stored, Exception | None], None]) -> None:
        """Store a checkpoint; ``done`` follows in the owner thread."""

        def work() -> None:
            stored, error = self._store(slot, token)
            self.loop.post(partial(done, stored, error))

        self.pool.submit(work)

    def _do(self, call: Callable[[], Event]) -> None:
        self.pool.submit(lambda: self.loop.post(partial(self.emit, call())))

    def _connect(self) -> Event:
        sent_at = self.loop.now()
        try:
            client_id = self.client.connect(
                self.tunnel_id, timeout_seconds=self.timeout_seconds, client_tag=self.client_tag
            )
        except Exception as error:
            return events.ConnectFailed(verdict_on(error), error)
        return events.Connected(client_id, sent_at)

    def _heartbeat(self, command: events.Heartbeat) -> Event:
        sent_at = self.loop.now()
        try:
            channels = self.client.heartbeat(self.tunnel_id, command.client_id, command.channels)
        except Exception as error:
            return events.HeartbeatFailed(command.client_id, verdict_on(error), error)
        return events.HeartbeatAnswered(command.client_id, channels, sent_at)

    def _find_checkpoint(self, command: events.FindCheckpoint) -> Event:
        try:
            found = self.client.get_checkpoint(self.tunnel_id, command.client_id, command.channel_id)
        except Exception as error:
            return events.CheckpointNotFound(command.channel_id, command.reader, error)
        return events.CheckpointFound(command.channel_id, command.reader, found.token, found.sequence_number)

    def _end_session(self, command: events.EndSession) -> Event:
        try:
            self.client.shutdown(self.tunnel_id, command.client_id)
        except Exception:
            return events.SessionEnded()
        return events.SessionEnded()

    def _store(self, slot: ChannelSlot, token: str) -> tuple[Stored, Exception | None]:
        """Send, and after anything but a clear answer look what is stored before sending again."""
        number = slot.sequence_number + 1
        problem: Exception | None = None
        for _ in range(STORE_TRIES):
            try:
                self.client.checkpoint(self.tunnel_id, slot.client_id, slot.channel_id, token, number)
            except SequenceNumberNotMatchError as error:
                return (Stored.YES, None) if self._is_stored(slot, token, number) else (Stored.LOST, error)
            except Exception as error:
                problem = error
                if isinstance(error, DependencyException) and not error.retriable:
                    return Stored.LOST, error
                if self._is_stored(slot, token, number):
                    return Stored.YES, None
            else:
                slot.sequence_number = number
                return Stored.YES, None
        return Stored.UNKNOWN, problem

    def _is_stored(self, slot: ChannelSlot, token: str, number: int) -> bool:
        try:
            found = self.client.get_checkpoint(self.tunnel_id, slot.client_id, slot.channel_id)
        except Exception:
            return False
        if (found.token, found.sequence_number) == (token, number):
            slot.sequence_number = number
            return True
        return False
