"""The values of the Tunnel Service. All objects are frozen; all times are microseconds since 1970."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen

from streamclient.base import checks
from streamclient.core.tunnel.channel_states import Channel, ChannelStatus
from streamclient.errors import ConfigurationError

__all__ = [
    "Channel",
    "ChannelCheckpoint",
    "ChannelInfo",
    "ChannelStatus",
    "ChannelType",
    "StartOffset",
    "StreamTunnelConfig",
    "TunnelDescription",
    "TunnelInfo",
    "TunnelStage",
    "TunnelType",
]


class TunnelType(Enum):
    """The data that a tunnel delivers (Java: ``TunnelType``)."""

    BASE_DATA = "BaseData"
    """All rows of the table, once: full data."""
    STREAM = "Stream"
    """The changes from the start offset on."""
    BASE_AND_STREAM = "BaseAndStream"
    """All rows, then the changes since the tunnel was made. A row that is written meanwhile may be delivered twice."""


class TunnelStage(Enum):
    """The progress of a tunnel. Even a tunnel that delivers only full data ends in PROCESS_STREAM."""

    INIT = "InitBaseDataAndStreamShard"
    PROCESS_BASE_DATA = "ProcessBaseData"
    PROCESS_STREAM = "ProcessStream"


class ChannelType(Enum):
    """The data that a channel delivers: full data or changes."""

    BASE_DATA = "BaseData"
    STREAM = "Stream"


class StartOffset(Enum):
    """The position from which changes are delivered, if no start time is given."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


_micros = checks.optional(checks.Check("microseconds since 1970", checks.positive.fits))


def _start(given: object) -> StartOffset:
    return checks.choice("start", StartOffset, given)


@checks.explains_names
@frozen
class StreamTunnelConfig:
    """The part of the log that a tunnel delivers. If ``start_micros`` is given, it replaces ``start``."""

    start: StartOffset = field(default=StartOffset.LATEST, converter=_start)
    """The position from which changes are delivered. A string with the name is also accepted."""
    start_micros: int | None = field(default=None, validator=_micros)
    end_micros: int | None = field(default=None, validator=_micros)

    def __attrs_post_init__(self) -> None:
        if self.start_micros and self.end_micros and self.end_micros <= self.start_micros:
            raise ConfigurationError(
                f"end_micros={self.end_micros} is not after start_micros={self.start_micros}; nothing would be read"
            )


@frozen
class TunnelInfo:
    """A tunnel's settings and progress, as the service lists them."""

    tunnel_id: str
    tunnel_name: str
    tunnel_type: TunnelType
    table_name: str
    instance_name: str
    stream_id: str
    stage: TunnelStage
    is_expired: bool
    create_time_micros: int
    config: StreamTunnelConfig | None


@frozen
class ChannelInfo:
    """A channel's type, status and progress, as the service describes them."""

    channel_id: str
    channel_type: ChannelType
    status: ChannelStatus
    client_id: str
    """The id of the client that holds the channel; empty if no client does."""
    consume_point_micros: int
    """The time of the channel's checkpoint in the log, in microseconds since 1970; 0 before the first checkpoint, and
    for full data."""
    record_count: int


@frozen
class TunnelDescription:
    """A tunnel with its channels, and the time up to which it was consumed."""

    info: TunnelInfo
    channels: tuple[ChannelInfo, ...]
    consume_point_micros: int
    """The time of the checkpoint of the slowest channel of changes, in microseconds since 1970; 0 before the stage
    PROCESS_STREAM."""


@frozen
class ChannelCheckpoint:
    """The position at which a channel is read next."""

    token: str
    """The token of the next page; ``finished`` once the channel was consumed to its end."""
    sequence_number: int
    """The number of the last stored checkpoint. The next checkpoint has the next number."""
