"""The operations of the Tunnel Service: one function for each kind of request, called under the engine's lock.

The functions follow the protocol as the Java and Go SDKs use it. Where the service's behaviour is unknown, the decision
page ``tunnels`` states the behaviour of this server.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND, SECONDS_PER_DAY
from streamclient.server import refusals
from streamclient.server.server_state import ServerState
from streamclient.server.stored_streams import Stream
from streamclient.server.stored_tables import Table
from streamclient.server.tunnels import balance, lifecycle, tunnel_reads
from streamclient.server.tunnels.tunnel_channels import (
    NANOS_PER_MICRO,
    TYPE_NAMES,
    Client,
    Definition,
    Status,
    Tunnel,
    TunnelChannel,
    point_of,
)
from streamclient.server.tunnels.tunnel_positions import first_token, require_number
from streamclient.server.validation.table_names import check_tunnel_name
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.schema import ChannelStatusNumber, StartOffsetFlag, TunnelTypeNumber

DEFAULT_TIMEOUT_SECONDS = 300
"""The time-out, in seconds, of a session if the client gives no time-out. Official clients have the same default."""

MAX_TIMEOUT_SECONDS = SECONDS_PER_DAY
"""The longest time-out of a session, in seconds. A session without heartbeats for longer than its time-out ends and
loses its channels."""

START_MARGIN_MICROS = 5 * 60 * MICROS_PER_SECOND
"""The smallest distance, in microseconds, from the beginning of the retained records to the start time of a tunnel.
Without this margin, the first records could pass retention before a client reads them."""


# --- tunnels -------------------------------------------------------------------------------------------------------


def create(state: ServerState, request: Any) -> Any:
    """Create a tunnel. If the tunnel has incremental data and the table has no stream, switch the stream on."""
    wanted = request.tunnel
    table = _table(state, wanted.table_name)
    check_tunnel_name(wanted.tunnel_name, state.limits)
    if len(state.tunnels) >= state.limits.tunnels:
        raise refusals.TUNNELS_FULL(limit=state.limits.tunnels)
    if wanted.tunnel_type not in TYPE_NAMES:
        raise refusals.TUNNEL_TYPE(given=wanted.tunnel_type)
    if _find(state, wanted.table_name, wanted.tunnel_name) is not None:
        raise refusals.TUNNEL_EXISTS(name=wanted.tunnel_name)
    kind = TunnelTypeNumber(wanted.tunnel_type)
    stream = state.stream_of(table)
    hours = state.limits.stream_expiration_hours if stream is None else stream.definition.expiration_hours
    start_micros = _start_micros(state, wanted.stream_tunnel_config, hours)
    if stream is None and kind is not TunnelTypeNumber.BASE_DATA:
        stream = state.switch_on(table, expiration_hours=hours)
    created = state.creation_micros()
    config = wanted.stream_tunnel_config
    definition = Definition(
        tunnel_id=str(uuid.uuid4()),
        name=wanted.tunnel_name,
        type=kind,
        table_name=wanted.table_name,
        table_number=table.definition.number,
        stream_id="" if stream is None or kind is TunnelTypeNumber.BASE_DATA else stream.stream_id,
        created_micros=created,
        flag=StartOffsetFlag(config.flag),
        start_nanos=config.start_offset,
        end_nanos=config.end_offset,
        has_config=kind is not TunnelTypeNumber.BASE_DATA,
    )
    if start_micros is None:
        # All existing records are older than this start, even records whose timestamps are ahead of the clock.
        start_micros = created if stream is None else stream.next_timestamp(created)
    state.add_tunnel(Tunnel(definition, start_micros, init_calls_left=state.tunnel_init_calls))
    return schema.CreateTunnelResponse(tunnel_id=definition.tunnel_id)


def _start_micros(state: ServerState, config: Any, hours: int) -> int | None:
    """Return the requested start of the incremental data in microseconds since 1970.

    Return ``None`` for the present time, and 0 for the oldest record. ``hours`` is the retention of the stream.

    Raises:
        ServiceError: ``config`` is invalid, or names a start in the future or too near to the end of the retention.
    """
    if config.flag not in tuple(StartOffsetFlag):
        raise refusals.START_FLAG(given=config.flag)
    if config.end_offset and config.end_offset <= config.start_offset:
        raise refusals.END_OFFSET(end=config.end_offset, start=config.start_offset)
    if not config.start_offset:
        return 0 if config.flag == StartOffsetFlag.EARLIEST else None
    now = state.clock.now_micros()
    start = int(config.start_offset) // NANOS_PER_MICRO
    oldest = now - hours * MICROS_PER_HOUR + START_MARGIN_MICROS
    if not oldest <= start <= now:
        raise refusals.START_OFFSET(given=config.start_offset, oldest=oldest, newest=now)
    return start


def delete(state: ServerState, request: Any) -> Any:
    """Delete a tunnel. From then on, the server refuses the heartbeats of the tunnel's clients."""
    _table(state, request.table_name)
    tunnel = _find(state, request.table_name, request.tunnel_name)
    if tunnel is None or (request.tunnel_id and request.tunnel_id != tunnel.definition.tunnel_id):
        raise refusals.TUNNEL_MISSING(name=request.tunnel_id or request.tunnel_name)
    state.drop_tunnel(tunnel.definition.tunnel_id)
    return schema.DeleteTunnelResponse()


def list_tunnels(state: ServerState, request: Any) -> Any:
    """Return the tunnels of one table, or of all tables if the request names no table."""
    if request.table_name:
        _table(state, request.table_name)
    response = schema.ListTunnelResponse()
    for tunnel in list(state.tunnels.values()):
        if request.table_name in ("", tunnel.definition.table_name):
            lifecycle.refresh(state, tunnel)
            response.tunnels.append(_info(state, tunnel))
    return response


def describe(state: ServerState, request: Any) -> bytes:
    """Return a tunnel with its channels and its consume point, the time up to which clients have consumed the stream.

    Finished channels come first.
    """
    _table(state, request.table_name)
    tunnel = _find(state, request.table_name, request.tunnel_name)
    if tunnel is None or (request.tunnel_id and request.tunnel_id != tunnel.definition.tunnel_id):
        raise refusals.TUNNEL_MISSING(name=request.tunnel_id or request.tunnel_name)
    lifecycle.refresh(state, tunnel)
    whole = schema.DescribeTunnelResponse(tunnel=_info(state, tunnel), tunnel_rpo=_consume_point(tunnel))
    live = [channel.element() for channel in tunnel.live.values()]
    return b"".join((whole.SerializeToString(), *tunnel.past_elements.values(), *live))


def get_rpo(state: ServerState, request: Any) -> Any:
    """Return as JSON how far clients have consumed each channel and the whole tunnel."""
    tunnel = _by_id(state, request.tunnel_id)
    live = [channel.point() for channel in tunnel.live.values()]
    channels = b", ".join((*tunnel.past_points.values(), *live))
    whole = point_of(tunnel.stage.value, tunnel.record_count, _consume_point(tunnel))
    return schema.GetRpoResponse(
        rpo_infos=b"{%b}" % channels,
        tunnel_rpo_infos=json.dumps({tunnel.definition.tunnel_id: whole}).encode(),
        tunnel_id=tunnel.definition.tunnel_id,
    )


def schedule(state: ServerState, request: Any) -> Any:
    """Suspend, resume or end the channels that an operator names. If one change is refused, change no channel."""
    tunnel = _by_id(state, request.tunnel_id)
    ended = set()
    for wanted in request.channels:
        channel = _channel(tunnel, wanted.channel_id)
        if channel.is_over or channel.channel_id in ended:
            raise refusals.CHANNEL_OVER(channel=channel.channel_id)
        if wanted.status not in (ChannelStatusNumber.OPEN, ChannelStatusNumber.CLOSING, ChannelStatusNumber.TERMINATED):
            raise refusals.CHANNEL_STATUS(given=wanted.status)
        if wanted.status == ChannelStatusNumber.TERMINATED:
            ended.add(channel.channel_id)
    for wanted in request.channels:
        channel = tunnel.channels[wanted.channel_id]
        if wanted.status == ChannelStatusNumber.TERMINATED:
            tunnel.finish(channel, is_consumed=False)
        elif wanted.status == ChannelStatusNumber.CLOSING:
            channel.is_suspended = True
            channel.change(Status.CLOSING)
        else:
            _open(tunnel, channel)
    return schema.ScheduleResponse()


def _open(tunnel: Tunnel, channel: TunnelChannel) -> None:
    """Resume a suspended channel, or open another one, even if it waits.

    A suspended channel that must wait gets the status WAIT, so that its records keep their order. A client may still
    hold it, if an operator had opened it too early. Then it opens, because a client cannot hold a waiting channel.
    """
    waits = channel.is_suspended and not channel.client_id and tunnel.must_wait(channel)
    channel.is_suspended = False
    channel.change(Status.WAIT if waits else Status.OPEN)


# --- sessions ------------------------------------------------------------------------------------------------------


def connect(state: ServerState, request: Any) -> Any:
    """Begin a session of a client; return the new client id."""
    tunnel = _usable(state, request.tunnel_id)
    config = request.client_config
    timeout_seconds = config.timeout or DEFAULT_TIMEOUT_SECONDS
    if not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS:
        raise refusals.SESSION_TIMEOUT(given=timeout_seconds, limit=MAX_TIMEOUT_SECONDS)
    if len(config.client_tag.encode()) > state.limits.name_bytes:
        raise refusals.SESSION_TAG(limit=state.limits.name_bytes)
    if len(tunnel.clients) >= state.limits.tunnel_sessions:
        raise refusals.SESSIONS_FULL(limit=state.limits.tunnel_sessions)
    client_id = f"{config.client_tag or 'client'}_{uuid.uuid4()}"
    tunnel.begin_session(Client(client_id, timeout_seconds, state.clock.now_micros()))
    return schema.ConnectResponse(client_id=client_id)


def heartbeat(state: ServerState, request: Any) -> Any:
    """Apply a client's reports about its channels; return the channels that the client now holds.

    The client must drop all channels that are not in the answer.
    """
    tunnel = _usable(state, request.tunnel_id)
    client = tunnel.clients.get(request.client_id)
    if client is None:
        raise refusals.SESSION_GONE(client=request.client_id)
    for report in request.channels:
        known = tunnel.channels.get(report.channel_id)
        require_number("channel version", report.version, 0 if known is None else known.version)
    client.seen_micros = state.clock.now_micros()
    for report in request.channels:
        _take_report(tunnel, client.client_id, report)
    balance.ask_for_surplus(tunnel)
    balance.lease_free(tunnel, client.client_id)
    response = schema.HeartbeatResponse()
    for channel in tunnel.held_by(client.client_id):
        response.channels.append(
            schema.Channel(channel_id=channel.channel_id, version=channel.version, status=int(channel.status.number))
        )
    return response


def _take_report(tunnel: Tunnel, client_id: str, report: Any) -> None:
    """Apply the report about one channel, if the client holds the channel and the report has a newer version."""
    channel = tunnel.live.get(report.channel_id)
    if channel is None or channel.client_id != client_id or report.version <= channel.version:
        return
    if report.status == ChannelStatusNumber.TERMINATED:
        tunnel.finish(channel, report.version)
    elif report.status == ChannelStatusNumber.CLOSE:
        tunnel.release(channel, report.version)


def shutdown(state: ServerState, request: Any) -> Any:
    """End a client's session. An unknown session counts as ended already."""
    tunnel = _by_id(state, request.tunnel_id)
    tunnel.end_session(request.client_id)
    return schema.ShutdownResponse()


# --- data ----------------------------------------------------------------------------------------------------------


def get_checkpoint(state: ServerState, request: Any) -> Any:
    """Return the token and the sequence number of a channel's last checkpoint.

    If the channel has no checkpoint yet, return the token at which the channel begins. The caller needs no session.
    """
    tunnel = _usable(state, request.tunnel_id)
    channel = _channel(tunnel, request.channel_id)
    text = channel.checkpoint or first_token(channel, _stream_of(state, tunnel))
    return schema.GetCheckpointResponse(checkpoint=text, sequence_number=channel.sequence_number)


def read_records(state: ServerState, request: Any) -> bytes:
    """Return a page of records of a channel. The caller needs no session.

    An expired tunnel still delivers the records that its stream still has.
    """
    tunnel = _by_id(state, request.tunnel_id)
    return tunnel_reads.read(state, tunnel, _channel(tunnel, request.channel_id), request.token).answer()


def checkpoint(state: ServerState, request: Any) -> Any:
    """Store the checkpoint of a channel. The checkpoint ``finished`` ends the channel.

    The server refuses the checkpoint in three cases: a later checkpoint is stored; the channel has ended, and the
    checkpoint is not ``finished``; the caller has or had a session, but another session holds the channel now.
    """
    tunnel = _usable(state, request.tunnel_id)
    channel = _channel(tunnel, request.channel_id)
    is_outdated = request.sequence_number < channel.sequence_number
    is_after_the_end = channel.is_over and request.checkpoint != FINISHED
    is_known = request.client_id in tunnel.clients or request.client_id in tunnel.former_clients
    went_on = channel.client_id not in ("", request.client_id) and is_known
    if is_outdated or is_after_the_end or went_on:
        raise refusals.SEQUENCE_NUMBER(given=request.sequence_number, expected=channel.sequence_number)
    require_number("sequence number", request.sequence_number, channel.sequence_number)
    if request.checkpoint == FINISHED:
        tunnel.finish(channel)
    else:
        tunnel_reads.checkpoint(state, tunnel, channel, request.checkpoint)
    channel.sequence_number = request.sequence_number
    return schema.CheckpointResponse()


# --- tools ---------------------------------------------------------------------------------------------------------


def _table(state: ServerState, name: str) -> Table:
    table = state.tables.get(name)
    if table is None:
        raise refusals.TUNNEL_TABLE_MISSING(name=name)
    return table


def _find(state: ServerState, table_name: str, tunnel_name: str) -> Tunnel | None:
    for tunnel in state.tunnels.values():
        if (tunnel.definition.table_name, tunnel.definition.name) == (table_name, tunnel_name):
            return tunnel
    return None


def _by_id(state: ServerState, tunnel_id: str) -> Tunnel:
    tunnel = state.tunnels.get(tunnel_id)
    if tunnel is None:
        raise refusals.TUNNEL_MISSING(name=tunnel_id)
    lifecycle.refresh(state, tunnel)
    return tunnel


def _usable(state: ServerState, tunnel_id: str) -> Tunnel:
    tunnel = _by_id(state, tunnel_id)
    if tunnel.is_expired:
        raise refusals.TUNNEL_EXPIRED(tunnel=tunnel.definition.tunnel_id)
    return tunnel


def _channel(tunnel: Tunnel, channel_id: str) -> TunnelChannel:
    channel = tunnel.channels.get(channel_id)
    if channel is None:
        raise refusals.CHANNEL_MISSING(channel=channel_id)
    return channel


def _stream_of(state: ServerState, tunnel: Tunnel) -> Stream | None:
    return state.streams.get(tunnel.definition.stream_id)


def _consume_point(tunnel: Tunnel) -> int:
    """Return the tunnel's consume point: the time in nanoseconds up to which clients have consumed the stream.

    The tunnel's consume point is the lowest consume point of the unfinished stream channels. A channel without a
    checkpoint counts as 0. If all stream channels have ended, take the highest of their consume points.
    """
    unfinished = [channel.consumed_micros for channel in tunnel.live.values() if not channel.is_base]
    return min(unfinished, default=tunnel.finished_micros) * NANOS_PER_MICRO


def _info(state: ServerState, tunnel: Tunnel) -> Any:
    definition = tunnel.definition
    info = schema.TunnelInfo(
        tunnel_id=definition.tunnel_id,
        tunnel_type=TYPE_NAMES[definition.type],
        table_name=definition.table_name,
        instance_name=state.instance_name,
        stream_id=definition.stream_id,
        stage=tunnel.stage.value,
        expired=tunnel.is_expired,
        tunnel_name=definition.name,
        public=False,
        create_time=definition.created_micros * NANOS_PER_MICRO,
    )
    if definition.has_config:
        info.stream_tunnel_config.CopyFrom(
            schema.StreamTunnelConfig(
                flag=int(definition.flag), start_offset=definition.start_nanos, end_offset=definition.end_nanos
            )
        )
    return info
