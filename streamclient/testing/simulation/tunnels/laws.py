"""What must be true of every history of tunnel clients.

* a process has one reader per channel;
* a channel that the service leased to one client is not processed by another one, unless that was just frozen, or its
  session was ended without a word;
* what is first delivered of a key comes in the order of the log; full data before changes; a child after its parents;
* a stored checkpoint never goes back;
* in the end every row of the full data and every change was delivered, and the channels are spread evenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from streamclient.records import StreamRecord
from streamclient.server.tunnels.channels import Tunnel
from streamclient.server.tunnels.positions import next_position
from streamclient.testing.simulation.agenda import Agenda
from streamclient.testing.simulation.tunnels.service import SimulatedService


class TunnelViolation(AssertionError):
    """A law was broken."""


@define(eq=False)
class TunnelLaws:
    """Told of what the processes of one history do; raises ``TunnelViolation`` at the event that breaks a law."""

    seed: int
    agenda: Agenda
    service: SimulatedService
    trace: list[str] = field(factory=list)
    seen: dict[tuple[str, Any], int] = field(factory=dict)
    """(channel, record) to the place of its first delivery."""
    base: set[int] = field(factory=set)
    """Keys of the full data that were delivered."""
    ended: set[str] = field(factory=set)
    """Sessions that the service lost without a word."""
    _names: dict[str, str] = field(factory=dict)
    _newest: dict[int, tuple[int, int, int]] = field(factory=dict)
    _positions: dict[str, int] = field(factory=dict)

    def note(self, text: str) -> None:
        """One line of the history; the service's random names are replaced by numbers in order of appearance."""
        self.trace.append(f"{self.agenda.now:.6f} {text}")

    def name(self, identifier: str) -> str:
        """A name that is the same in every run of the seed."""
        return self._names.setdefault(identifier, f"c{len(self._names)}")

    def check(self, holds: bool, law: str, text: str) -> None:
        """Raise unless a law holds."""
        if not holds:
            tail = "\n".join(self.trace[-12:])
            raise TunnelViolation(f"seed {self.seed}, at {self.agenda.now:.3f}: {law}: {text}\n{tail}")

    @property
    def tunnel(self) -> Tunnel:
        """The service's own view."""
        return self.service.engine._state.tunnels[self.service.tunnel_id]

    def reader_started(self, process: str, channel_id: str) -> None:
        """A process begins to read a channel: its parents must be over, and for changes all full data."""
        channel = self.tunnel.channels[channel_id]
        self.note(f"{process} reads {self.name(channel_id)}")
        for parent in channel.parent_ids:
            self.check(self.tunnel.channels[parent].is_over, "no child before its parents", self.name(channel_id))
        if not channel.is_base:
            base = [each for each in self.tunnel.channels.values() if each.is_base]
            self.check(all(each.is_over for each in base), "full data before changes", self.name(channel_id))

    def processed(
        self, process: str, client_id: str, channel_id: str, records: Sequence[StreamRecord], *, is_excused: bool
    ) -> None:
        """A process has processed a page; it is excused where it cannot know yet that the channel is another's."""
        channel = self.tunnel.channels[channel_id]
        if not is_excused and client_id not in self.ended and not channel.is_over:
            holder = channel.client_id
            self.check(holder in ("", client_id), "one holder", f"{process} {self.name(channel_id)}")
        for record in records:
            self._deliver(channel_id, record)
        self.note(f"{process} processed {len(records)} of {self.name(channel_id)}")

    def _deliver(self, channel_id: str, record: StreamRecord) -> None:
        key, info = int(record.key["id"]), record.sequence_info
        if info.timestamp_micros == 0:
            self.base.add(key)
            return
        place = (channel_id, (key, info))
        if place in self.seen:
            return
        self.seen[place] = len(self.seen)
        order = (info.epoch, info.timestamp_micros, info.row_index)
        newest = self._newest.get(key, (-1, -1, -1))
        self.check(order > newest, "order per key", f"key {key} {order} after {newest}")
        self._newest[key] = order

    def check_checkpoints(self) -> None:
        """Look at every position that is stored now."""
        stream = self.service.engine._state.streams.get(self.tunnel.definition.stream_id)
        for channel in self.tunnel.channels.values():
            if channel.is_base or stream is None:
                continue
            position = next_position(channel, stream.shards[channel.channel_id])
            before = self._positions.get(channel.channel_id, 0)
            self.check(position >= before, "a checkpoint never goes back", self.name(channel.channel_id))
            self._positions[channel.channel_id] = position

    @property
    def digest(self) -> str:
        """Of the whole history; the same on every machine."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]
