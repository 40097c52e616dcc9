"""What happens to a tunnel by itself: channels appear, open and end, sessions run out, the log goes out of reach."""

from __future__ import annotations

import uuid

from streamclient.server.splitting import split_points
from streamclient.server.state import ServerState
from streamclient.server.streams import Shard, Stream
from streamclient.server.tables import Table
from streamclient.server.tunnels.channels import BASE_CHANNEL, Channel, KeyRange, Stage, Status, Tunnel
from streamclient.server.tunnels.positions import next_position

FORMER_CLIENTS = 1_000
"""Ended sessions that are remembered for a late checkpoint; far more than any fleet restarts within a time-out."""


def refresh(state: ServerState, tunnel: Tunnel) -> None:
    """Bring a tunnel up to date. Called before every request that concerns it."""
    _end_sessions(state, tunnel)
    stream = _stream(state, tunnel)
    if tunnel.is_expired:
        return
    if tunnel.stage is Stage.INIT:
        _initialize(state, tunnel)
    if stream is not None:
        _add_channels(tunnel, stream)
        _notice_lost_log(tunnel, stream)
    _advance(tunnel)


def end_session(tunnel: Tunnel, client_id: str) -> None:
    """Free a client's channels and forget its session."""
    if tunnel.clients.pop(client_id, None) is None:
        return
    for channel in tunnel.held_by(client_id):
        channel.release()
    tunnel.former_clients.append(client_id)
    del tunnel.former_clients[:-FORMER_CLIENTS]


def _end_sessions(state: ServerState, tunnel: Tunnel) -> None:
    now_micros = state.clock.now_micros()
    for client in list(tunnel.clients.values()):
        if client.is_over(now_micros):
            end_session(tunnel, client.client_id)


def _stream(state: ServerState, tunnel: Tunnel) -> Stream | None:
    """The stream, if the tunnel reads it. A stream that is gone takes the tunnel with it."""
    if not tunnel.definition.has_stream:
        return None
    stream = state.streams.get(tunnel.definition.stream_id)
    if stream is None:
        tunnel.is_expired = True
        return None
    state.forget_expired(stream)
    return stream


def _initialize(state: ServerState, tunnel: Tunnel) -> None:
    if not tunnel.definition.has_base:
        tunnel.stage = Stage.STREAM
        return
    table = state.table(tunnel.definition.table_name)
    for key_range in base_ranges(state, table):
        channel = Channel(f"{BASE_CHANNEL}_{uuid.uuid4()}", Status.OPEN, key_range)
        tunnel.channels[channel.channel_id] = channel
    tunnel.stage = Stage.BASE


def base_ranges(state: ServerState, table: Table) -> list[KeyRange]:
    """The table cut at its partitions, and within them into pieces of about the size that one channel shall have."""
    expired_before = table.expired_before_millis(state.clock.now_micros())
    sizes = split_points(table, state.limits.tunnel_base_channel_bytes, state.limits.splits_per_request, expired_before)
    cuts = sorted({*table.definition.boundaries, *sizes})
    return [KeyRange(begin, end) for begin, end in zip([b"", *cuts], [*cuts, None], strict=True)]


def _add_channels(tunnel: Tunnel, stream: Stream) -> None:
    """A channel for each shard that has, or may get, records of this tunnel. Parents stand before their children."""
    for shard in stream.shards.values():
        if shard.shard_id in tunnel.channels or _ended_before(shard, tunnel.start_micros):
            continue
        definition = shard.definition
        parents = (definition.parent_id, definition.parent_sibling_id)
        known = tuple(parent for parent in parents if parent is not None and parent in tunnel.channels)
        start = shard.position_at(tunnel.start_micros)
        tunnel.channels[shard.shard_id] = Channel(shard.shard_id, Status.WAIT, parent_ids=known, start_position=start)


def _ended_before(shard: Shard, start_micros: int) -> bool:
    return shard.closed_micros is not None and shard.closed_micros < start_micros


def _notice_lost_log(tunnel: Tunnel, stream: Stream) -> None:
    """The next record of an unfinished channel must still be there."""
    for channel in tunnel.channels.values():
        shard = stream.shards.get(channel.channel_id)
        if channel.is_base or channel.is_over or shard is None:
            continue
        if next_position(channel, shard) < shard.first_position:
            tunnel.is_expired = True


def _advance(tunnel: Tunnel) -> None:
    """Open what may be opened: the stream after all full data, children after all their parents."""
    base = [channel for channel in tunnel.channels.values() if channel.is_base]
    if tunnel.stage is Stage.BASE and all(channel.is_over for channel in base):
        tunnel.stage = Stage.STREAM
    if tunnel.stage is not Stage.STREAM:
        return
    for channel in tunnel.channels.values():
        if channel.status is Status.WAIT and all(tunnel.channels[parent].is_over for parent in channel.parent_ids):
            channel.status = Status.OPEN
