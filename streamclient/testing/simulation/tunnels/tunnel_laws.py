"""The laws for histories of tunnel clients, in addition to the common laws in ``streamclient.testing.history``.

* While the service gives a channel to one client, no other client processes the channel. Another client is excused if
  it has just continued after a freeze, processes its last page, or has lost its session without notice.
* All full data is delivered before changes, and parents are delivered before their children.
* A stored checkpoint never goes back.
* In the end every row of the full data and every change was delivered, and the channels are spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from streamclient.records import StreamRecord
from streamclient.server.tunnels.tunnel_channels import Tunnel, TunnelChannel
from streamclient.server.tunnels.tunnel_positions import next_position
from streamclient.testing.history import (
    Delivered,
    Judge,
    KeysInOrder,
    LawBroken,
    OneReliesOnIt,
    ParentsBeforeChildren,
    ReaderBegan,
    ReaderOver,
    require,
)
from streamclient.testing.simulation.kernel import PlayedHistory
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.tunnels.simulated_tunnel_service import SimulatedService

CHECKPOINTS = "checkpoints only advance"
HOLDER = "one holder"


@define(eq=False)
class Reader:
    """The reader of one channel. It reads and processes pages. Now and then it stores its position, the token."""

    process: str
    channel_id: str
    identifier: str
    client_id: str
    token: str
    sequence_number: int
    stored: str = ""
    is_lost: bool = False
    is_stopping: bool = False
    is_over: bool = False
    pages: int = 0

    def __str__(self) -> str:
        return f"{self.identifier} of {self.process}"


@define(eq=False)
class TunnelLaws:
    """The laws of one history of tunnel clients. The methods raise ``LawBroken`` at the event that breaks a law."""

    history: PlayedHistory
    service: SimulatedService
    process_seconds: float
    """The present usual time to process a page, in seconds."""
    order: KeysInOrder = field(factory=KeysInOrder)
    base: set[int] = field(factory=set)
    """The keys of the rows that were delivered as full data."""
    ended: set[str] = field(factory=set)
    """The client ids of the sessions that the service lost without notice."""
    _names: dict[str, str] = field(factory=dict)
    _channels: dict[str, str] = field(factory=dict)
    """The service's channel ids. The keys are the short names that the method ``name`` gives."""
    _positions: dict[str, int] = field(factory=dict)
    _judges: tuple[Judge, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        parents = ParentsBeforeChildren(self._before, lambda name: self._channel(name).is_over)
        self._judges = (OneReliesOnIt(lambda reader: False), parents, self.order)

    def name(self, identifier: str) -> str:
        """Return a short name for a channel's random id.

        The names count the ids in the order of their first appearance, so they are the same in every run of a seed.
        """
        name = self._names.setdefault(identifier, f"c{len(self._names)}")
        self._channels[name] = identifier
        return name

    def check(self, holds: bool, law: str, channel: str, text: str) -> None:
        """Raise ``LawBroken`` with ``law``, ``channel`` and ``text`` if ``holds`` is false."""
        if not holds:
            raise LawBroken(law, channel, text)

    @property
    def tunnel(self) -> Tunnel:
        """The state of the tunnel in the service."""
        return self.service.engine._state.tunnels[self.service.tunnel_id]

    def reader_started(self, process: object, reader: Reader) -> None:
        """Judge the start of ``reader`` in ``process`` by the laws about readers and parents."""
        name = self.name(reader.channel_id)
        self._note(reader, "starts to read", name)
        require(ReaderBegan(reader, process, name), *self._judges)

    def reader_ended(self, reader: Reader) -> None:
        """Judge the end of a reader, which processes no further page."""
        name = self.name(reader.channel_id)
        self._note(reader, "ends reading", name)
        require(ReaderOver(reader, name), *self._judges)

    def processed(self, reader: Reader, records: Sequence[StreamRecord], excuse: Excuse | None) -> None:
        """Judge a page that a reader has processed.

        ``excuse`` is a reason why the reader's process may not know yet that another client has the channel.
        """
        channel, name = self.tunnel.channels[reader.channel_id], self.name(reader.channel_id)
        if not channel.is_over and channel.client_id not in ("", reader.client_id):
            excuse = excuse or (Excuse.SESSION_LOST if reader.client_id in self.ended else None)
            is_excused = excuse is not None and self.history.excused.note(HOLDER, excuse)
            self.check(is_excused, HOLDER, name, f"{reader} processed a page, but another client has the channel")
        self._note(reader, "processed", name, len(records))
        changes = [record for record in records if record.sequence_info.timestamp_micros]
        self.base |= {_key(record) for record in records if not record.sequence_info.timestamp_micros}
        numbers = [int(record.columns[0].value or 0) for record in changes]
        require(Delivered(reader, name, [_key(record) for record in changes], numbers), *self._judges)
        self.history.counts["delivered"] += len(records)

    def check_checkpoints(self) -> None:
        """Check that the stored position of each channel with changes has not gone back."""
        stream = self.service.engine._state.streams.get(self.tunnel.definition.stream_id)
        for channel in self.tunnel.channels.values():
            if channel.is_base or stream is None:
                continue
            position = next_position(channel, stream.shards[channel.channel_id])
            before = self._positions.get(channel.channel_id, 0)
            name = self.name(channel.channel_id)
            self.check(position >= before, CHECKPOINTS, name, f"{name} went back from {before} to {position}")
            self._positions[channel.channel_id] = position

    def _note(self, reader: Reader, what: str, name: str, detail: object = "") -> None:
        self.history.counts[what] += 1
        self.history.note(reader.process, what, name, detail)

    def _channel(self, name: str) -> TunnelChannel:
        return self.tunnel.channels[self._channels[name]]

    def _before(self, name: str) -> Iterable[str]:
        """Return the names of the channels that must end before the channel ``name`` begins.

        These are the channel's parents and, for a channel of changes, all channels of full data.
        """
        channel = self._channel(name)
        base = [] if channel.is_base else [each.channel_id for each in self.tunnel.channels.values() if each.is_base]
        return [self.name(identifier) for identifier in (*channel.parent_ids, *base)]


def _key(record: StreamRecord) -> int:
    return int(record.key["id"])
