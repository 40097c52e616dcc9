"""Channels that a client holds and cannot read: since when, for which reason, and when the next try is due.

If one channel cannot be read, the client keeps all other channels. It tries the bad channel again after pauses that
grow, so these tries cost little. It gives the channel back after each failure, so that another client may try it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from random import Random

from attrs import evolve, frozen

from streamclient.base.backoff import doubling_millis, with_jitter

SHORTEST_CHANNEL_PAUSE_MILLIS = 200
LONGEST_CHANNEL_PAUSE_MILLIS = 30_000
"""The longest pause between lookups of a channel's checkpoint: one regular interval between heartbeats. The shortest
pause, ``SHORTEST_CHANNEL_PAUSE_MILLIS``, equals the shortest pause after a failed attempt to connect."""

REMEMBERED_SECONDS = 120.0
"""The time for which a channel's trouble is remembered after the service last assigned the channel to this client.
After a longer time, another client has read the channel, or the channel has a different trouble."""


@frozen
class ChannelTrouble:
    """The trouble of one channel that cannot be read."""

    why: str
    """The reason why the channel cannot be read, as a text for people."""
    since: float
    """The time when the trouble began, in monotonic seconds."""
    failures: int
    """The number of consecutive failed lookups of the channel's checkpoint."""
    due: float
    """The earliest time of the next lookup, in monotonic seconds."""
    listed_at: float
    """The time when the service last assigned the channel to this client, in monotonic seconds."""


class ChannelTroubles:
    """The troubles of all channels that one tunnel client cannot read.

    Owned by one thread. Any thread may read ``present``: that mapping is never changed, only replaced.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._known: dict[str, ChannelTrouble] = {}
        self._strange: set[str] = set()
        self.present: Mapping[str, ChannelTrouble] = {}
        """The troubles, by channel id, of the channels that the last answer to a heartbeat listed."""

    def failed(self, channel_id: str, why: str, now: float) -> float:
        """Record a failed lookup, and return the pause before the next lookup, in seconds."""
        known = self._known.get(channel_id)
        failures = 1 if known is None else known.failures + 1
        millis = doubling_millis(failures, SHORTEST_CHANNEL_PAUSE_MILLIS, LONGEST_CHANNEL_PAUSE_MILLIS)
        pause = with_jitter(millis, self._dice) / 1_000
        since = now if known is None else known.since
        self._set(channel_id, ChannelTrouble(why, since, failures, now + pause, now))
        return pause

    def listed(self, channel_ids: Collection[str], strange: Mapping[str, str], now: float) -> None:
        """Process the answer to a heartbeat, which listed ``channel_ids``.

        ``strange`` has, by channel id, a text about a status or version that this client does not know.
        """
        for channel_id in self._strange - strange.keys():
            self._known.pop(channel_id, None)
        self._strange = set(strange)
        for channel_id, told in strange.items():
            known = self._known.get(channel_id)
            why = f"the service lists it with {told}, which is unknown here"
            since, failures = (now, 0) if known is None else (known.since, known.failures)
            self._known[channel_id] = ChannelTrouble(why, since, failures, now, now)
        for channel_id, known in list(self._known.items()):
            if channel_id in channel_ids:
                self._known[channel_id] = evolve(known, listed_at=now)
            elif now - known.listed_at > REMEMBERED_SECONDS:
                del self._known[channel_id]
        self._show({*channel_ids, *strange})

    def ended(self, channel_id: str) -> None:
        """Forget the trouble of a channel that can be read."""
        if self._known.pop(channel_id, None) is not None:
            self._show(self.present.keys() - {channel_id})

    def due(self, channel_id: str) -> float:
        """Return the earliest time of a channel's next lookup. Without trouble, it is minus infinity."""
        known = self._known.get(channel_id)
        return float("-inf") if known is None else known.due

    def known(self) -> Iterable[str]:
        """Return the channels that have a trouble, even if they are not listed at present."""
        return tuple(self._known)

    def _set(self, channel_id: str, trouble: ChannelTrouble) -> None:
        self._known[channel_id] = trouble
        self._show({*self.present, channel_id})

    def _show(self, channel_ids: Collection[str]) -> None:
        self.present = {key: trouble for key, trouble in self._known.items() if key in channel_ids}
