"""The distribution of channels over clients.

The service documents only the aim: spread the channels evenly over the live clients, during heartbeats. The rest is the
choice of this server. Shares differ by at most one, and as few channels move as possible. A channel is not moved by
force: its holder is asked to release it, and a client with too few channels gets it with its own next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamclient.server.tunnels.tunnel_channels import Status, Tunnel, TunnelChannel


def quotas(held: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the number of the ``total`` channels that each client gets.

    Clients that hold the most now get the odd channels. Worked example: client a holds 3 channels, and client b, just
    arrived, holds 0; then a keeps 2 and b gets 1.
    """
    if not held:
        return {}
    share, odd = divmod(total, len(held))
    by_load = sorted(held, key=lambda client: -held[client])
    return {client: share + (1 if place < odd else 0) for place, client in enumerate(by_load)}


def ask_for_surplus(tunnel: Tunnel) -> None:
    """Ask clients above their quota to release channels, but only as many as other clients lack."""
    kept = _kept(tunnel)
    wanted = quotas({client: len(channels) for client, channels in kept.items()}, _total(tunnel.live.values()))
    for client, channels in kept.items():
        for channel in channels[wanted[client] :]:
            channel.change(Status.CLOSING)


def lease_free(tunnel: Tunnel, client_id: str) -> None:
    """Give a client the free channels up to its quota."""
    kept = _kept(tunnel)
    wanted = quotas({client: len(channels) for client, channels in kept.items()}, _total(tunnel.live.values()))
    missing = wanted[client_id] - len(kept[client_id])
    free = [channel for channel in tunnel.live.values() if channel.can_be_leased]
    for channel in free[: max(0, missing)]:
        tunnel.lease(channel, client_id)


def _kept(tunnel: Tunnel) -> dict[str, list[TunnelChannel]]:
    """Return, for each client, the channels that it was not asked to release."""
    kept: dict[str, list[TunnelChannel]] = {client: [] for client in tunnel.clients}
    for channel in tunnel.live.values():
        if channel.client_id in kept and channel.status is Status.OPEN:
            kept[channel.client_id].append(channel)
    return kept


def _total(channels: Iterable[TunnelChannel]) -> int:
    return sum(channel.counts_as_load for channel in channels)
