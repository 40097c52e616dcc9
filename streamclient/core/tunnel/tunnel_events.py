"""Events and commands of a tunnel client: the border between ``TunnelSession`` and the code that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import field, frozen

from streamclient.core.events import Severity
from streamclient.core.tunnel.channel_states import Channel


class CallVerdict(Enum):
    """The meaning of a failed call for the session."""

    PASSING = "passing"
    """Try again."""
    GONE = "gone"
    """The session ended at the service; connect again."""
    FINAL = "final"
    """Consuming cannot go on: the tunnel is gone or expired, or the client does not have, and never had, permission."""


# --- events ------------------------------------------------------------------------------------------------------


@frozen
class SessionTick:
    """``TunnelSession.next_deadline`` was reached. Harmless at any other time."""


@frozen
class Connected:
    """A session began."""

    client_id: str
    sent_at: float
    """Time before the request was sent: the service may count its time-out from then."""


@frozen
class ConnectFailed:
    """No session began, or it is unknown whether one began."""

    verdict: CallVerdict
    error: Exception


@frozen
class HeartbeatAnswered:
    """The channels to hold from now on."""

    client_id: str
    channels: Sequence[Channel]
    sent_at: float
    strange: Mapping[str, str] = field(factory=dict)
    """Channels that the answer lists with unknown contents, and those contents. Such channels are not read."""


@frozen
class HeartbeatFailed:
    """The heartbeat was refused or not answered."""

    client_id: str
    verdict: CallVerdict
    error: Exception


@frozen
class CheckpointFound:
    """The answer to ``FindCheckpoint``: the position at which to read a channel."""

    channel_id: str
    reader: str
    token: str
    sequence_number: int


@frozen
class CheckpointNotFound:
    """The lookup failed after its retries. Unless that is final, only this channel is given up, and tried again."""

    channel_id: str
    reader: str
    error: Exception
    verdict: CallVerdict = CallVerdict.PASSING


@frozen
class ChannelDeclined:
    """The channel is not wanted, so it is not looked up. It is reported as released."""

    channel_id: str
    reader: str


@frozen
class CallsRefused:
    """A call for a channel was refused for a reason that holds for all channels and is final."""

    why: str
    """The work that is impossible, as a clause such as 'checkpoints cannot be stored'."""
    error: Exception


@frozen
class ReaderEnded:
    """A reader is gone: none of its user code runs any more. Reported once per ``StartReader``."""

    channel_id: str
    reader: str
    is_finished: bool
    """Whether the channel was consumed to its end and the end is stored."""


@frozen
class ReaderStalled:
    """A reader neither ends nor makes progress; the channel must not be kept for it."""

    channel_id: str
    reader: str
    reason: str


@frozen
class SessionStopRequested:
    """Let go of every channel in order, then end the session."""


@frozen
class SessionEnded:
    """The service was told that the session is over, or could not be told."""


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
    """Begin a session. Never requested while another is being begun."""


@frozen
class Heartbeat:
    """Report these channels. Never requested while another heartbeat is under way."""

    client_id: str
    channels: tuple[Channel, ...]


@frozen
class FindCheckpoint:
    """Look up the position at which to read a channel."""

    client_id: str
    channel_id: str
    reader: str


@frozen
class StartReader:
    """Read a channel from a token on."""

    client_id: str
    channel_id: str
    reader: str
    """An identifier that is new for each reader, to tell its answers from those of its successor."""
    token: str
    sequence_number: int
    """Sequence number of the last stored checkpoint."""


@frozen
class StopReader:
    """End a reader: in order, with a last checkpoint, or at once because the channel is lost."""

    channel_id: str
    reader: str
    is_lost: bool


@frozen
class EndSession:
    """Tell the service that the session is over, so that its channels are free at once."""

    client_id: str


@frozen
class Finish:
    """Nothing is left to do; ``error`` is the error that ended the work, if it did not end by request."""

    error: Exception | None = None


@frozen
class SessionReport:
    """Log one change of state or one anomaly."""

    severity: Severity
    text: str
    outage: tuple[str, ...] = ()
    """If given, the report is repeated while something fails; equal values denote the same outage."""


Command = Connect | Heartbeat | FindCheckpoint | StartReader | StopReader | EndSession | Finish | SessionReport
