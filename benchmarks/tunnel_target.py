"""A tunnel that exists for one round of a measurement."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen
from tablestore import OTSClient

from streamclient.tunnel import ChannelStatus, StreamTunnelConfig, TunnelClient, TunnelType

_numbers = itertools.count()


@frozen
class Target:
    """A tunnel, and the client by which it is used."""

    client: TunnelClient
    table: str
    name: str
    tunnel_id: str

    def open_channels(self, tag: str = "") -> set[str]:
        """Return the ids of the open channels of clients whose ids begin with ``tag``; by default, of all clients."""
        described = self.client.describe_tunnel(self.table, self.name).channels
        is_open = [channel for channel in described if channel.status is ChannelStatus.OPEN]
        return {channel.channel_id for channel in is_open if channel.client_id.startswith(tag)}


@contextmanager
def new_tunnel(
    client: OTSClient, table: str, kind: TunnelType, config: StreamTunnelConfig | None = None
) -> Iterator[Target]:
    """Create a tunnel, yield it, and delete it when the block ends."""
    tunnels, name = TunnelClient(client), f"bench_{next(_numbers)}"
    tunnel_id = tunnels.create_tunnel(table, name, kind, config)
    try:
        yield Target(tunnels, table, name, tunnel_id)
    finally:
        tunnels.delete_tunnel(table, name)
