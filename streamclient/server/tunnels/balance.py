"""The distribution of a tunnel's channels over its clients.

The service documents only the aim: spread the channels evenly over the live clients, during heartbeats. The following
rules are this server's own. The numbers of channels of two clients differ by at most one, and as few channels move as
possible. The server asks the holder of a surplus channel to release it. A client with too few channels gets the
released channel with its own next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamclient.server.tunnels.tunnel_channels import Status, Tunnel, TunnelChannel


def quotas(held: Mapping[str, int], total: int) -> dict[str, int]:
    """Return how many of the ``total`` channels each client should have; ``held`` is how many each client has now.

    The keys of ``held`` and of the result are client ids. If the clients cannot have equal numbers of channels, the
    clients that hold the most channels get one channel more than the others. Example: client a holds 3 channels, and
    the new client b holds none. Then a keeps 2 channels, and b gets 1.
    """
    if not held:
        return {}
    share, odd = divmod(total, len(held))
    by_load = sorted(held, key=lambda client: -held[client])
    return {client: share + (1 if place < odd else 0) for place, client in enumerate(by_load)}


def ask_for_surplus(tunnel: Tunnel) -> None:
    """Ask each client to release its channels beyond its quota: set the status of these channels to CLOSING."""
    kept = _kept(tunnel)
    wanted = quotas({client: len(channels) for client, channels in kept.items()}, _total(tunnel.live.values()))
    for client, channels in kept.items():
        for channel in channels[wanted[client] :]:
            channel.change(Status.CLOSING)


def lease_free(tunnel: Tunnel, client_id: str) -> None:
    """Lease free channels to a client, until the client has its quota."""
    kept = _kept(tunnel)
    wanted = quotas({client: len(channels) for client, channels in kept.items()}, _total(tunnel.live.values()))
    missing = wanted[client_id] - len(kept[client_id])
    free = [channel for channel in tunnel.live.values() if channel.can_be_leased]
    for channel in free[: max(0, missing)]:
        tunnel.lease(channel, client_id)


def _kept(tunnel: Tunnel) -> dict[str, list[TunnelChannel]]:
    """Return the channels that each client holds and was not asked to release. The keys are client ids."""
    kept: dict[str, list[TunnelChannel]] = {client: [] for client in tunnel.clients}
    for channel in tunnel.live.values():
        if channel.client_id in kept and channel.status is Status.OPEN:
            kept[channel.client_id].append(channel)
    return kept


def _total(channels: Iterable[TunnelChannel]) -> int:
    return sum(channel.counts_as_load for channel in channels)
