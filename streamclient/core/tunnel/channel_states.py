"""The states of channels, as heartbeats contain them, and the merge of two lists of such states.

Laws (Java and Go SDK, tunnel packages):

* if two states of one channel differ in version, the state with the higher version is newer; if the versions are equal,
  the service's state counts;
* the answer to a heartbeat is the complete list of channels that the client holds. The client drops all other channels,
  and does not report them;
* each change of a channel's state raises its version by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen


class ChannelStatus(Enum):
    """The state of a channel (Java: ``ChannelStatus``)."""

    WAIT = "WAIT"
    """The channel cannot be read yet. This state occurs only in descriptions, never in heartbeats."""
    OPEN = "OPEN"
    """The client that receives this state may read the channel."""
    CLOSING = "CLOSING"
    """The service asks the client to release the channel."""
    CLOSE = "CLOSE"
    """The client released the channel, or the service took it from the client."""
    TERMINATED = "TERMINATED"
    """The channel was consumed to its end."""


@frozen
class Channel:
    """The state of one channel, as heartbeats and their answers contain it."""

    channel_id: str
    version: int
    status: ChannelStatus

    def changed(self, status: ChannelStatus) -> Channel:
        """Return the state after a change to ``status``: the version is one higher."""
        return Channel(self.channel_id, self.version + 1, status)

    def __str__(self) -> str:
        return f"{self.channel_id} {self.status.value}@{self.version}"


def merged(local: Mapping[str, Channel], answer: Iterable[Channel]) -> dict[str, Channel]:
    """Return the channels to hold after a heartbeat, by channel id, in the order of the heartbeat's answer."""
    result: dict[str, Channel] = {}
    for channel in answer:
        own = local.get(channel.channel_id)
        result[channel.channel_id] = own if own is not None and own.version > channel.version else channel
    return result
