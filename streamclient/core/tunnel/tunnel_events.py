"""Events and commands of a tunnel client: the border between ``TunnelSession`` and the code that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import field, frozen

from streamclient.core.events import Severity
from streamclient.core.tunnel.channel_states import Channel


class CallVerdict(Enum):
    """The consequence of a failed call for the session."""

    PASSING = "passing"
    """The call may be tried again."""
    GONE = "gone"
    """The session ended at the service. The client must connect again."""
    FINAL = "final"
    """The client cannot go on: the tunnel is gone or expired, or the client has no permission and never had it."""


# --- events ------------------------------------------------------------------------------------------------------


@frozen
class SessionTick:
    """The time that ``TunnelSession.next_deadline`` returned has come. The event does no harm at any other time."""


@frozen
class Connected:
    """The service began a session for this client: the answer to ``Connect``."""

    client_id: str
    sent_at: float
    """The time just before the request was sent. The service may count the session's time-out from that time on."""


@frozen
class ConnectFailed:
    """The answer to ``Connect`` if no session began, or if it is unknown whether a session began."""

    verdict: CallVerdict
    error: Exception


@frozen
class HeartbeatAnswered:
    """The answer to ``Heartbeat``: the channels that the client holds from now on."""

    client_id: str
    channels: Sequence[Channel]
    sent_at: float
    strange: Mapping[str, str] = field(factory=dict)
    """Texts, by channel id, about a status or version in the answer that this client does not understand. The client
    does not read such channels."""


@frozen
class HeartbeatFailed:
    """The answer to ``Heartbeat`` if the service refused the heartbeat, or did not answer."""

    client_id: str
    verdict: CallVerdict
    error: Exception


@frozen
class CheckpointFound:
    """The answer to ``FindCheckpoint``: the position (token and sequence number) from which to read a channel."""

    channel_id: str
    reader: str
    token: str
    sequence_number: int


@frozen
class CheckpointNotFound:
    """The lookup of a channel's checkpoint failed, after all retries.

    The client gives up only this channel, and tries it again later. If ``verdict`` is FINAL, the client's work ends.
    """

    channel_id: str
    reader: str
    error: Exception
    verdict: CallVerdict = CallVerdict.PASSING


@frozen
class ChannelDeclined:
    """The client no longer wants the channel, so it looks up no checkpoint, and reports the channel as released."""

    channel_id: str
    reader: str


@frozen
class CallsRefused:
    """A call for a channel was refused for a final reason that holds for all channels."""

    why: str
    """The work that has become impossible, as a clause such as 'checkpoints cannot be stored'."""
    error: Exception


@frozen
class ReaderEnded:
    """A reader is gone, and none of its user code runs any more. Reported once for each ``StartReader``."""

    channel_id: str
    reader: str
    is_finished: bool
    """Whether the channel was consumed to its end, and its end is stored as checkpoint."""


@frozen
class ReaderStalled:
    """A reader neither ends nor makes progress. The client must not keep the channel for it."""

    channel_id: str
    reader: str
    reason: str


@frozen
class SessionStopRequested:
    """The client must release every channel in order, then end the session."""


@frozen
class SessionEnded:
    """The call that ends the session has returned, or failed."""


Event = (
    SessionTick
    | Connected
    | ConnectFailed
    | HeartbeatAnswered
    | HeartbeatFailed
    | CheckpointFound
    | CheckpointNotFound
    | ChannelDeclined
    | CallsRefused
    | ReaderEnded
    | ReaderStalled
    | SessionStopRequested
    | SessionEnded
)

# --- commands ----------------------------------------------------------------------------------------------------


@frozen
class Connect:
    """Begin a session. Never requested while another session is being begun."""


@frozen
class Heartbeat:
    """Send a heartbeat that reports ``channels``. Never requested while another heartbeat is unanswered."""

    client_id: str
    channels: tuple[Channel, ...]


@frozen
class FindCheckpoint:
    """Look up the position from which to read a channel."""

    client_id: str
    channel_id: str
    reader: str


@frozen
class StartReader:
    """Start a reader, which reads a channel from ``token`` on."""

    client_id: str
    channel_id: str
    reader: str
    """An identifier that is new for each reader. It distinguishes the reader's answers from those of its successor."""
    token: str
    sequence_number: int
    """The sequence number of the channel's last stored checkpoint."""


@frozen
class StopReader:
    """End a reader. Before that, let the reader store a last checkpoint if the channel is not lost."""

    channel_id: str
    reader: str
    is_lost: bool


@frozen
class EndSession:
    """Tell the service that the session is over, so that its channels become free immediately."""

    client_id: str


@frozen
class Finish:
    """End the client: no work is left. ``error`` is the error that ended the work; ``None`` for an end on request."""

    error: Exception | None = None


@frozen
class SessionReport:
    """Log one change of state or one anomaly."""

    severity: Severity
    text: str
    outage: tuple[str, ...] = ()
    """The key of the outage that causes the report; empty without an outage. Equal keys mean the same outage."""
    ends: bool = False
    """Whether the report names the error that ends the client's work. When the work has ended, the worker raises that
    error."""


Command = Connect | Heartbeat | FindCheckpoint | StartReader | StopReader | EndSession | Finish | SessionReport
