"""Values of the Tunnel Service. All frozen; times are microseconds since 1970."""

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
    """The rows of the table, once."""
    STREAM = "Stream"
    """Changes from the start offset on."""
    BASE_AND_STREAM = "BaseAndStream"
    """The rows, then changes since the tunnel was made. A row written in between may come twice."""


class TunnelStage(Enum):
    """The progress of a tunnel. A tunnel of full data only also ends in PROCESS_STREAM."""

    INIT = "InitBaseDataAndStreamShard"
    PROCESS_BASE_DATA = "ProcessBaseData"
    PROCESS_STREAM = "ProcessStream"


class ChannelType(Enum):
    """The data that a channel delivers."""

    BASE_DATA = "BaseData"
    STREAM = "Stream"


class StartOffset(Enum):
    """The start of incremental data, if no time is given."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


_micros = checks.optional(checks.Check("microseconds since 1970", checks.positive.fits))


def _start(given: object) -> StartOffset:
    return checks.choice("start", StartOffset, given)


@checks.explains_names
@frozen
class StreamTunnelConfig:
    """The part of the log that a tunnel delivers. A start time replaces ``start``."""

    start: StartOffset = field(default=StartOffset.LATEST, converter=_start)
    """The start of the changes. A string is accepted too."""
    start_micros: int | None = field(default=None, validator=_micros)
    end_micros: int | None = field(default=None, validator=_micros)

    def __attrs_post_init__(self) -> None:
        if self.start_micros and self.end_micros and self.end_micros <= self.start_micros:
            raise ConfigurationError(
                f"end_micros={self.end_micros} is not after start_micros={self.start_micros}; nothing would be read"
            )


@frozen
class TunnelInfo:
    """A tunnel as the service lists it."""

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
    """A channel as the service describes it."""

    channel_id: str
    channel_type: ChannelType
    status: ChannelStatus
    client_id: str
    """Id of the client that holds the channel; empty if no client does."""
    consume_point_micros: int
    """Position of the channel's checkpoint in the log, as a time in microseconds since 1970; 0 before the first
    checkpoint, and for full data."""
    record_count: int


@frozen
class TunnelDescription:
    """A tunnel with its channels."""

    info: TunnelInfo
    channels: tuple[ChannelInfo, ...]
    consume_point_micros: int
    """Consume point of the slowest stream channel; 0 before the incremental stage."""


@frozen
class ChannelCheckpoint:
    """The position at which a channel is read next."""

    token: str
    """The token of the next page; ``finished`` once everything was consumed."""
    sequence_number: int
    """Sequence number of the last stored checkpoint. The next one is greater by one."""
