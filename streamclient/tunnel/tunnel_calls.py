"""The calls to the Tunnel Service that a ``TunnelSession`` commands. The outcome of each call is one event."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum
from functools import partial

from attrs import define, field, frozen

from streamclient.base.pools import start_call
from streamclient.base.reasons import as_error
from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.tunnel_events import CallVerdict, Event
from streamclient.errors import DependencyException, StreamClientError
from streamclient.tunnel.log_watch import LogFacts, facts_of_log
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import (
    FINAL_ERRORS,
    SequenceNumberNotMatchError,
    TunnelParameterInvalidError,
    TunnelSessionGoneError,
)
from streamclient.wire.service_errors import AUTH_FAILED, NO_PERMISSION
from streamclient.worker.owner_loop import OwnerLoop

STORE_TRIES = 5
"""The largest number of attempts to store a checkpoint. After an unclear answer, the stored checkpoint is looked up
before the next attempt. After the last attempt, the outcome counts as unknown."""


_WRONG_FROM_THE_START = frozenset({AUTH_FAILED, NO_PERMISSION, None})
"""The codes of errors that are final if no call of the same kind has ever succeeded. The cause is the key, the policy
or, without a code, the endpoint. A lease worker also ends by these errors at its start. If a call of the kind has
succeeded before, the error may be temporary, for example while a key is being changed. A key is the same for all calls,
so for ``AUTH_FAILED`` a success of any kind counts."""


_OF_CHANNELS = frozenset({"getcheckpoint", "readrecords", "checkpoint"})
"""The calls that name a channel. If the service refuses such a call for its parameters, or without a code, perhaps only
the channel is the reason. The next heartbeat shows whether the tunnel still exists."""


def verdict_on(error: Exception, *, call: str = "", has_worked: bool = True) -> CallVerdict:
    """Return the consequence of a failed call for the session.

    ``has_worked`` says whether a call has succeeded before that needs the same key, policy and endpoint.
    """
    if isinstance(error, TunnelSessionGoneError):
        return CallVerdict.GONE
    of_channel = call in _OF_CHANNELS
    is_final = isinstance(error, FINAL_ERRORS) and not (of_channel and isinstance(error, TunnelParameterInvalidError))
    if not has_worked and isinstance(error, DependencyException) and not error.retriable:
        is_final = is_final or (error.code in _WRONG_FROM_THE_START and not (of_channel and error.code is None))
    return CallVerdict.FINAL if is_final else CallVerdict.PASSING


class Stored(Enum):
    """The outcome of storing a checkpoint."""

    YES = "yes"
    LOST = "lost"
    """This client does not have the channel any more, because another consumer stored a checkpoint or the session is
    over."""
    REFUSED = "refused"
    """The checkpoint is certainly not stored, although this client still has the channel."""
    NEVER = "never"
    """Like REFUSED, but no other checkpoint can be stored, either. So consuming ends."""
    PASSED = "passed"
    """A later checkpoint of the same reader is stored, so this one is not sent any more."""
    UNKNOWN = "unknown"


@define(eq=False)
class ChannelSlot:
    """The ids and the checkpoint number with which one reader stores checkpoints.

    Calls overlap if the reader no longer waits for a slow checkpoint and sends the next one.
    """

    client_id: str
    channel_id: str
    sequence_number: int
    """The sequence number of the channel's last stored checkpoint, whichever client stored it."""


@frozen(kw_only=True)
class TunnelCalls:
    """The calls to the service. The owner thread calls the methods, which return immediately.

    It later passes the outcome of each call to ``emit`` as an event, or to the function ``done`` of the method.
    """

    client: TunnelClient
    tunnel_id: str
    timeout_seconds: int
    client_tag: str
    loop: OwnerLoop
    session_pool: Executor
    """The pool of the calls that begin, keep and end a session. No other call may delay them: without heartbeats, the
    session ends."""
    pool: Executor
    emit: Callable[[Event], None]
    _worked: set[str] = field(factory=set, init=False)
    """The kinds of calls that have succeeded at least once."""

    def connect(self) -> None:
        """Begin a session with the service."""
        self._do(self.session_pool, self._connect)

    def heartbeat(self, command: tunnel_events.Heartbeat) -> None:
        """Report the held channels to the service, which answers with the channels to hold from now on."""
        self._do(self.session_pool, partial(self._heartbeat, command))

    def find_checkpoint(
        self, command: tunnel_events.FindCheckpoint, wants: Callable[[tunnel_events.FindCheckpoint], bool]
    ) -> None:
        """Look up the position at which to read a channel.

        If ``wants`` says in the pool's thread that the position is not needed any more, the service is not asked.
        """
        self._do(self.pool, partial(self._find_checkpoint, command, wants))

    def end_session(self, command: tunnel_events.EndSession) -> None:
        """Tell the service that the session is over. If this call fails, the session ends by its time-out."""
        self._do(self.session_pool, partial(self._end_session, command))

    def look_at_log(self, done: Callable[[LogFacts], None]) -> None:
        """Ask for the retention of the tunnel's log and for the times up to which its channels were read.

        The owner thread later calls ``done`` with these facts.
        """

        def work() -> None:
            facts = facts_of_log(self.client, self.tunnel_id)
            self.loop.post(partial(done, facts))

        self.loop.start(self.pool, partial(start_call, self.pool, work))

    def store(self, slot: ChannelSlot, token: str, done: Callable[[Stored, Exception | None], None]) -> None:
        """Store a checkpoint. The owner thread later calls ``done`` with the outcome."""

        def work() -> None:
            stored, error = self._store(slot, token)
            self.loop.post(partial(done, stored, error))

        self.loop.start(self.pool, partial(start_call, self.pool, work))

    def read_answered(self, error: StreamClientError | None) -> None:
        """Record that a read of a channel succeeded or failed.

        Usable from any thread. A final error ends consuming; the reader handles all other errors.
        """
        if error is None:
            self._worked.add("readrecords")
        elif self._verdict("readrecords", error) is CallVerdict.FINAL:
            self.loop.post(partial(self.emit, tunnel_events.CallsRefused("records cannot be read", error)))

    def _do(self, pool: Executor, call: Callable[[], Event]) -> None:
        work = partial(start_call, pool, lambda: self.loop.post(partial(self.emit, call())))
        self.loop.start(pool, work)

    def _connect(self) -> Event:
        sent_at = self.loop.now()
        try:
            client_id = self.client.connect(
                self.tunnel_id, timeout_seconds=self.timeout_seconds, client_tag=self.client_tag
            )
        except BaseException as raised:
            error = as_error(raised)
            return tunnel_events.ConnectFailed(self._verdict("connect", error), error)
        self._worked.add("connect")
        return tunnel_events.Connected(client_id, sent_at)

    def _heartbeat(self, command: tunnel_events.Heartbeat) -> Event:
        sent_at, strange = self.loop.now(), dict[str, str]()
        try:
            channels = self.client.heartbeat(self.tunnel_id, command.client_id, command.channels, strange=strange)
        except BaseException as raised:
            error = as_error(raised)
            return tunnel_events.HeartbeatFailed(command.client_id, self._verdict("heartbeat", error), error)
        self._worked.add("heartbeat")
        return tunnel_events.HeartbeatAnswered(command.client_id, channels, sent_at, strange)

    def _find_checkpoint(
        self, command: tunnel_events.FindCheckpoint, wants: Callable[[tunnel_events.FindCheckpoint], bool]
    ) -> Event:
        if not wants(command):
            return tunnel_events.ChannelDeclined(command.channel_id, command.reader)
        try:
            names = (self.tunnel_id, command.client_id, command.channel_id)
            checkpoint = self.client.get_checkpoint(*names, raises_at_once=True)
        except BaseException as raised:
            error = as_error(raised)
            verdict = self._verdict("getcheckpoint", error)
            return tunnel_events.CheckpointNotFound(command.channel_id, command.reader, error, verdict)
        self._worked.add("getcheckpoint")
        return tunnel_events.CheckpointFound(
            command.channel_id, command.reader, checkpoint.token, checkpoint.sequence_number
        )

    def _end_session(self, command: tunnel_events.EndSession) -> Event:
        try:
            self.client.shutdown(self.tunnel_id, command.client_id)
        except BaseException:  # even SystemExit, for example of a credentials provider, must have an answer
            return tunnel_events.SessionEnded()
        return tunnel_events.SessionEnded()

    def _store(self, slot: ChannelSlot, token: str) -> tuple[Stored, Exception | None]:
        """Send a checkpoint. After an unclear answer, look up the stored checkpoint before the next attempt."""
        number = slot.sequence_number + 1
        problem: Exception | None = None
        for _ in range(STORE_TRIES):
            try:
                self.client.checkpoint(self.tunnel_id, slot.client_id, slot.channel_id, token, number)
            except SequenceNumberNotMatchError as error:
                found = self._found(slot, token, number)
                return (Stored.LOST, error) if found is None else (found, None)
            except BaseException as raised:
                problem = as_error(raised)
                refused = self._refused(problem)
                if refused is not None:
                    return refused, problem
                found = self._found(slot, token, number)
                if found is not None:
                    return found, None
            else:
                slot.sequence_number = max(slot.sequence_number, number)
                self._worked.add("checkpoint")
                return Stored.YES, None
        return Stored.UNKNOWN, problem

    def _refused(self, error: Exception) -> Stored | None:
        """Return the outcome if the service refused the checkpoint; ``None`` if the checkpoint is perhaps stored."""
        verdict = self._verdict("checkpoint", error)
        if verdict is CallVerdict.PASSING:
            is_refused = isinstance(error, DependencyException) and not error.retriable
            return Stored.REFUSED if is_refused else None
        return Stored.LOST if verdict is CallVerdict.GONE else Stored.NEVER

    def _verdict(self, kind: str, error: Exception) -> CallVerdict:
        is_key_refused = isinstance(error, DependencyException) and error.code == AUTH_FAILED
        has_worked = bool(self._worked) if is_key_refused else kind in self._worked
        return verdict_on(error, call=kind, has_worked=has_worked)

    def _found(self, slot: ChannelSlot, token: str, number: int) -> Stored | None:
        """Return YES if this checkpoint is stored, and PASSED if a later one of the same reader is; otherwise ``None``.

        ``None`` also means that the stored checkpoint cannot be looked up.
        """
        if slot.sequence_number >= number:
            return Stored.PASSED
        try:
            checkpoint = self.client.get_checkpoint(self.tunnel_id, slot.client_id, slot.channel_id)
        except BaseException:
            return None
        if (checkpoint.token, checkpoint.sequence_number) == (token, number):
            slot.sequence_number = max(slot.sequence_number, number)
            return Stored.YES
        return Stored.PASSED if slot.sequence_number >= number else None
