"""The changes of a tunnel that no client asks for: new channels, sessions that time out, the loss of the stream.

The server makes these changes when the next request about the tunnel arrives. It changes a tunnel earlier only when
``ServerState`` deletes old records or shards of the stream: the tunnel then gets the channels that it lacks, loses the
channels of deleted shards, and expires if it still needs the deleted records.
"""

from __future__ import annotations

import uuid

from streamclient.server.server_state import ServerState
from streamclient.server.splitting import split_points
from streamclient.server.stored_tables import Table
from streamclient.server.tunnels.tunnel_channels import BASE_CHANNEL, ChannelRange, Stage, Status, Tunnel, TunnelChannel
from streamclient.server.tunnels.tunnel_positions import follow


def refresh(state: ServerState, tunnel: Tunnel) -> None:
    """Bring a tunnel up to date: end silent sessions, add channels, notice the loss of the stream.

    Call this before every request about the tunnel.
    """
    now_micros = state.clock.now_micros()
    for client in list(tunnel.clients.values()):
        if client.is_over(now_micros):
            tunnel.end_session(client.client_id)
    stream = state.streams.get(tunnel.definition.stream_id) if tunnel.definition.has_stream else None
    if stream is not None:
        state.forget_expired(stream)
    elif tunnel.definition.has_stream:
        tunnel.is_expired = True  # a tunnel expires together with its stream
    if tunnel.is_expired:
        return
    if tunnel.stage is Stage.INIT:
        if tunnel.init_calls_left:
            tunnel.init_calls_left -= 1
            return
        _initialize(state, tunnel)
    if stream is not None:
        follow(tunnel, stream)


def _initialize(state: ServerState, tunnel: Tunnel) -> None:
    if not tunnel.definition.has_base:
        tunnel.enter(Stage.STREAM)
        return
    table = state.table(tunnel.definition.table_name)
    for key_range in base_ranges(state, table):
        tunnel.add(TunnelChannel(f"{BASE_CHANNEL}_{uuid.uuid4()}", Status.OPEN, key_range=key_range))
    tunnel.enter(Stage.BASE)


def base_ranges(state: ServerState, table: Table) -> list[ChannelRange]:
    """Return the key ranges for the channels of full data.

    A range begins at the first key of each partition of the table, and at each split point. The rows between two split
    points have about the size ``Limits.tunnel_base_channel_bytes``.
    """
    state.forget_expired_rows(table)
    sizes = split_points(table, state.limits.tunnel_base_channel_bytes, state.limits.splits_per_request)
    cuts = sorted({*table.definition.boundaries, *sizes})
    return [ChannelRange(begin, end) for begin, end in zip([b"", *cuts], [*cuts, None], strict=True)]
