"""Consuming a table through the Tunnel Service, which itself distributes the table's channels among the clients."""

from streamclient.tunnel.channel_processors import ChannelRecordsInput, IChannelProcessor, IChannelProcessorFactory
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_config import TunnelWorkerConfig
from streamclient.tunnel.tunnel_daemon import TunnelDaemon
from streamclient.tunnel.tunnel_errors import (
    SequenceNumberNotMatchError,
    TunnelAnswerError,
    TunnelError,
    TunnelExistsError,
    TunnelExpiredError,
    TunnelOrderError,
    TunnelParameterInvalidError,
    TunnelPermissionDeniedError,
    TunnelServerUnavailableError,
    TunnelSessionGoneError,
)
from streamclient.tunnel.tunnel_model import (
    Channel,
    ChannelCheckpoint,
    ChannelInfo,
    ChannelStatus,
    ChannelType,
    StartOffset,
    StreamTunnelConfig,
    TunnelDescription,
    TunnelInfo,
    TunnelStage,
    TunnelType,
)
from streamclient.tunnel.tunnel_worker import TunnelWorker

__all__ = [
    "Channel",
    "ChannelCheckpoint",
    "ChannelInfo",
    "ChannelRecordsInput",
    "ChannelStatus",
    "ChannelType",
    "IChannelProcessor",
    "IChannelProcessorFactory",
    "SequenceNumberNotMatchError",
    "StartOffset",
    "StreamTunnelConfig",
    "TunnelAnswerError",
    "TunnelClient",
    "TunnelDaemon",
    "TunnelDescription",
    "TunnelError",
    "TunnelExistsError",
    "TunnelExpiredError",
    "TunnelInfo",
    "TunnelOrderError",
    "TunnelParameterInvalidError",
    "TunnelPermissionDeniedError",
    "TunnelServerUnavailableError",
    "TunnelSessionGoneError",
    "TunnelStage",
    "TunnelType",
    "TunnelWorker",
    "TunnelWorkerConfig",
]
