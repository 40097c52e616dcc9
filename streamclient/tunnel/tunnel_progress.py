"""The progress of a tunnel, by the service's description of the tunnel, and the documents that commands print.

The *consume point* of a channel of changes is the time of its checkpoint in the stream. Channels of full data have no
consume point. The service counts the records before each checkpoint, but not the records that are left. So a lag is the
age of a consume point, and the backlog is unknown.

Later versions only add members to the documents. Times are microseconds since 1970, durations are seconds; an unknown
value is ``None``. The functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.tunnel.tunnel_model import (
    ChannelInfo,
    ChannelStatus,
    ChannelType,
    StartOffset,
    TunnelDescription,
    TunnelInfo,
    TunnelStage,
    TunnelType,
)

Document = dict[str, Any]

KINDS: Mapping[str, TunnelType] = {
    "full": TunnelType.BASE_DATA,
    "incremental": TunnelType.STREAM,
    "both": TunnelType.BASE_AND_STREAM,
}
"""The words in commands and documents for the kinds of data, each with the type of tunnel that delivers them."""

STARTS: Mapping[str, StartOffset] = {"latest": StartOffset.LATEST, "oldest": StartOffset.EARLIEST}
"""The words in commands and documents for the start of a tunnel, each with the offset from which changes are
delivered."""

_KIND_WORDS = {kind: word for word, kind in KINDS.items()}
_START_WORDS = {start: word for word, start in STARTS.items()}
_CHANNEL_WORDS = {ChannelType.BASE_DATA: "full", ChannelType.STREAM: "incremental"}
_STAGE_WORDS = {
    TunnelStage.INIT: "starting",
    TunnelStage.PROCESS_BASE_DATA: "full",
    TunnelStage.PROCESS_STREAM: "incremental",
}


def stage_word(info: TunnelInfo) -> str:
    """Return the word for a tunnel's stage: ``starting``, ``full``, ``incremental`` or ``finished``.

    Only a tunnel that delivers nothing but full data can be finished.
    """
    is_read = info.tunnel_type is TunnelType.BASE_DATA and info.stage is TunnelStage.PROCESS_STREAM
    return "finished" if is_read else _STAGE_WORDS[info.stage]


def are_changes_finished(described: TunnelDescription) -> bool:
    """Return whether the service lists channels of changes, and all of them were read to their ends.

    Even so, new channels may follow after a split.
    """
    statuses = {each.status for each in described.channels if each.channel_type is ChannelType.STREAM}
    return statuses == {ChannelStatus.TERMINATED}


def tunnel_lag_seconds(described: TunnelDescription, now_micros: int) -> float | None:
    """Return the age of the tunnel's consume point, which is the consume point of the slowest channel of changes.

    The age is ``None`` if the service states no consume point, or if all channels of changes are finished. The service
    states a tunnel's consume point once each of these channels has a checkpoint.
    """
    return None if are_changes_finished(described) else _age_seconds(described.consume_point_micros, now_micros)


def channel_lag_seconds(channel: ChannelInfo, now_micros: int) -> float | None:
    """Return the age of the channel's consume point; ``None`` without one, or if the channel was read to its end."""
    is_open = channel.channel_type is ChannelType.STREAM and channel.status is not ChannelStatus.TERMINATED
    return _age_seconds(channel.consume_point_micros, now_micros) if is_open else None


def time_to_loss_seconds(lag_seconds: float | None, retention_micros: int | None) -> float | None:
    """Return the time for which the table still keeps the records after a consume point with the lag ``lag_seconds``.

    A negative time means that records may be lost already. The time is ``None`` if the lag or the retention is unknown.
    """
    if lag_seconds is None or retention_micros is None:
        return None
    return retention_micros / MICROS_PER_SECOND - lag_seconds


def holders(described: TunnelDescription) -> Mapping[str, int]:
    """Return the number of channels that each client holds. The service does not name clients without channels."""
    return dict(sorted(Counter(each.client_id for each in described.channels if each.client_id).items()))


def tunnel_document(info: TunnelInfo) -> Document:
    """Return the document of a tunnel without its channels."""
    config = info.config
    return {
        "tunnel": info.tunnel_name,
        "id": info.tunnel_id,
        "table": info.table_name,
        "kind": _KIND_WORDS[info.tunnel_type],
        "stage": stage_word(info),
        "expired": info.is_expired,
        "stream": info.stream_id or None,
        "created_micros": info.create_time_micros or None,
        "from": None if config is None or config.start_micros else _START_WORDS[config.start],
        "from_micros": None if config is None else config.start_micros,
        "until_micros": None if config is None else config.end_micros,
    }


def description_document(
    described: TunnelDescription, now_micros: int, retention_micros: int | None = None
) -> Document:
    """Return the document of a tunnel, which contains the documents of its channels."""
    lag_seconds = tunnel_lag_seconds(described, now_micros)
    return {
        **tunnel_document(described.info),
        "now_micros": now_micros,
        "consumed_micros": described.consume_point_micros or None,
        "lag_seconds": lag_seconds,
        "time_to_loss_seconds": time_to_loss_seconds(lag_seconds, retention_micros),
        "records": sum(channel.record_count for channel in described.channels),
        "backlog_records": None,
        "clients": [{"client": client, "channels": count} for client, count in holders(described).items()],
        "channels": [channel_document(channel, now_micros, retention_micros) for channel in described.channels],
    }


def channel_document(channel: ChannelInfo, now_micros: int, retention_micros: int | None = None) -> Document:
    """Return the document of a channel: how far it was read, and how long the table keeps the later records."""
    lag_seconds = channel_lag_seconds(channel, now_micros)
    return {
        "channel": channel.channel_id,
        "kind": _CHANNEL_WORDS[channel.channel_type],
        "status": channel.status.value,
        "client": channel.client_id or None,
        "consumed_micros": channel.consume_point_micros or None,
        "records": channel.record_count,
        "lag_seconds": lag_seconds,
        "time_to_loss_seconds": time_to_loss_seconds(lag_seconds, retention_micros),
    }


def _age_seconds(micros: int, now_micros: int) -> float | None:
    return max(0, now_micros - micros) / MICROS_PER_SECOND if micros else None
