"""Channels as heartbeats carry them, and the merge of two lists of them.

Laws (Java and Go SDK, tunnel packages):

* of two states of one channel, the one with the higher version is newer; if the versions are equal, the service's state
  counts;
* the answer to a heartbeat is the complete list for the client to hold: missing channels are dropped, unreported;
* each change of a channel's state raises its version by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen


class ChannelStatus(Enum):
    """State of a channel (Java: ``ChannelStatus``)."""

    WAIT = "WAIT"
    """Not readable yet. Occurs only in descriptions, never in heartbeats."""
    OPEN = "OPEN"
    """Readable, by the client that receives it."""
    CLOSING = "CLOSING"
    """The service asks the client to release the channel."""
    CLOSE = "CLOSE"
    """Released by the client, or taken from it."""
    TERMINATED = "TERMINATED"
    """The channel was consumed to its end."""


@frozen
class Channel:
    """A channel in a heartbeat."""

    channel_id: str
    version: int
    status: ChannelStatus

    def changed(self, status: ChannelStatus) -> Channel:
        """Return the next state, with ``status``."""
        return Channel(self.channel_id, self.version + 1, status)

    def __str__(self) -> str:
        return f"{self.channel_id} {self.status.value}@{self.version}"


def merged(local: Mapping[str, Channel], answer: Iterable[Channel]) -> dict[str, Channel]:
    """Return the list to hold after a heartbeat, in the answer's order."""
    result: dict[str, Channel] = {}
    for channel in answer:
        own = local.get(channel.channel_id)
        result[channel.channel_id] = own if own is not None and own.version > channel.version else channel
    return result
