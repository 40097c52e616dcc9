"""The state of tunnels, channels and sessions, and its changes. This module knows no table, stream or clock.

Laws:

- A channel's ``status`` and its holder (``client_id``) are independent, because callers without a session read open
  channels that no client holds.
- A change that the channel's client must notice raises the channel's version. Clients compare only versions.
- The status TERMINATED is final.
- At each assignment to a stored field, a hook of attrs notes the changed part in the journal. So the storage gets all
  changed parts, and no other part.
- Requests examine only channels that have not ended. Ended channels are kept in the encoded form that answers need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum

import attrs
from attrs import define, field, frozen
from attrs.setters import NO_OP

from streamclient.base.kept_formats import parse_json
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.server.tunnels.tunnel_journal import ChangedParts, Part, PartKind, noted
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.schema import ChannelStatusNumber, StartOffsetFlag, TunnelTypeNumber


class Status(Enum):
    """The status of a channel, in the spelling of DescribeTunnel. The Java SDK knows exactly these values."""

    WAIT = "WAIT"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    CLOSE = "CLOSE"
    """No client holds the channel any more. The server can lease it to a client again."""
    TERMINATED = "TERMINATED"

    @property
    def number(self) -> ChannelStatusNumber:
        """The number of the status in heartbeat messages, which never contain WAIT."""
        return ChannelStatusNumber[self.name]


class Stage(Enum):
    """The stage of a tunnel, in the spelling of DescribeTunnel: initial stage, full data, incremental data."""

    INIT = "InitBaseDataAndStreamShard"
    BASE = "ProcessBaseData"
    STREAM = "ProcessStream"


BASE_CHANNEL = "BaseData"
STREAM_CHANNEL = "Stream"
NANOS_PER_MICRO = 1_000

TYPE_NAMES = {
    TunnelTypeNumber.BASE_DATA: "BaseData",
    TunnelTypeNumber.STREAM: "Stream",
    TunnelTypeNumber.BASE_AND_STREAM: "BaseAndStream",
}


@frozen
class ChannelRange:
    """The range of encoded keys of one channel of full data: begin <= key < end, or begin <= key without ``end``."""

    begin: bytes
    end: bytes | None


def point_of(status: str, record_count: int, nanos: int) -> dict[str, str | int]:
    """Return how far a channel or tunnel was consumed, as a JSON object with the names that the Go SDK reads."""
    return {"Status": status, "TotalCount": record_count, "AccessTime": nanos, "RpoTime": nanos}


@define(on_setattr=noted)
class TunnelChannel:
    """One channel of a tunnel.

    Only a channel of full data has a ``key_range``. A stream channel has the id of its shard.
    """

    channel_id: str
    status: Status
    number: int = 0
    """A number that orders the tunnel's channels and sessions by creation."""
    key_range: ChannelRange | None = None
    parent_ids: tuple[str, ...] = ()
    """The ids of the channels of this tunnel that must end before this channel opens."""
    start_position: int = 0
    """The position in the shard at which the channel begins; only for stream channels."""
    version: int = 0
    client_id: str = ""
    is_suspended: bool = False
    """Whether an operator has suspended the channel. No client gets it until an operator resumes it."""
    checkpoint: str = ""
    """The token of the last checkpoint; empty before the first checkpoint."""
    sequence_number: int = 0
    position: int = 0
    """The position in the shard of the first record after the checkpoint; only for stream channels."""
    record_count: int = 0
    consumed_micros: int = 0
    """The time in the stream that the checkpoint has reached, in microseconds; 0 before the first checkpoint, and for
    full data."""
    final_count: int | None = None
    """The number of all records of the channel; ``None`` until a client has read the last page. The channel keeps this
    number for ``finish``, because the checkpoint ``finished`` does not contain it."""
    final_micros: int = 0
    """The time in the stream that the last page reached, in microseconds."""
    journal: ChangedParts | None = field(default=None, eq=False, repr=False, on_setattr=NO_OP)

    @property
    def part(self) -> Part:
        """The kind and the id by which the storage names this channel."""
        return PartKind.CHANNEL, self.channel_id

    @property
    def is_base(self) -> bool:
        """Whether the channel delivers full data."""
        return self.key_range is not None

    @property
    def kind(self) -> str:
        """The kind of the channel, full data or stream, in the spelling of answers."""
        return BASE_CHANNEL if self.is_base else STREAM_CHANNEL

    @property
    def is_over(self) -> bool:
        """Whether the channel has ended."""
        return self.status is Status.TERMINATED

    @property
    def can_be_leased(self) -> bool:
        """Whether the server may lease the channel to a client now."""
        return self.status in (Status.OPEN, Status.CLOSE) and not self.client_id and not self.is_suspended

    @property
    def counts_as_load(self) -> bool:
        """Whether the channel counts when the server balances the clients."""
        return self.status in (Status.OPEN, Status.CLOSING, Status.CLOSE) and not self.is_suspended

    def change(self, status: Status) -> None:
        """Set the channel's status and raise its version."""
        self.status = status
        self.version += 1

    def lease(self, client_id: str) -> None:
        """Lease the channel to a client. A channel that a client held before opens again, with a higher version."""
        if self.status is Status.CLOSE:
            self.change(Status.OPEN)
        self.client_id = client_id

    def release(self, version: int | None = None) -> None:
        """Take the channel from its client. ``version`` is the new version, if the client reported one."""
        self.client_id = ""
        if self.is_over:
            return
        self.change(Status.CLOSING if self.is_suspended else Status.CLOSE)
        if version is not None:
            self.version = version

    def finish(self, version: int | None = None, *, is_consumed: bool = True) -> None:
        """End the channel. With ``is_consumed``, its last page counts as consumed. See ``release`` for ``version``."""
        if not self.is_over:
            self.change(Status.TERMINATED)
            if is_consumed and self.final_count is not None:
                self.record_count = self.final_count
                self.consumed_micros = max(self.consumed_micros, self.final_micros)
        self.version = self.version if version is None else max(self.version, version)
        self.checkpoint = FINISHED
        self.client_id = ""

    def element(self) -> bytes:
        """Return the channel, serialized as an element of DescribeTunnel's answer."""
        info = schema.ChannelInfo(channel_id=self.channel_id, channel_type=self.kind, channel_status=self.status.value)
        info.client_id, info.channel_count = self.client_id, self.record_count
        info.channel_rpo = self.consumed_micros * NANOS_PER_MICRO
        return bytes(schema.DescribeTunnelResponse(channels=[info]).SerializePartialToString())

    def point(self) -> bytes:
        """Return how far the channel was consumed, as a member of the JSON object in GetRpo's answer."""
        point = point_of(self.status.value, self.record_count, self.consumed_micros * NANOS_PER_MICRO)
        return json.dumps({self.channel_id: {self.client_id: {"ChannelTyp": self.kind, **point}}})[1:-1].encode()

    def to_json(self) -> str:
        """Return the channel as the JSON text that the storage keeps."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> TunnelChannel:
        """Return the channel from the text that ``to_json`` wrote."""
        document = parse_json(text)
        document["status"] = Status(document["status"])
        document["parent_ids"] = tuple(document["parent_ids"])
        bounds = document["key_range"]
        if bounds is not None:
            begin, end = bounds["begin"], bounds["end"]
            document["key_range"] = ChannelRange(bytes.fromhex(begin), None if end is None else bytes.fromhex(end))
        return cls(**document)


@define(on_setattr=noted)
class Client:
    """A client's session with a tunnel."""

    client_id: str
    timeout_seconds: int
    seen_micros: int = field(default=0, on_setattr=NO_OP)
    """The time of the client's last heartbeat, in microseconds. It is not stored, so that a client does not time out
    because of a restart of the server."""
    number: int = 0
    """A number that orders the tunnel's channels and sessions by creation."""
    has_ended: bool = False
    journal: ChangedParts | None = field(default=None, eq=False, repr=False, on_setattr=NO_OP)

    @property
    def part(self) -> Part:
        """The kind and the id by which the storage names this session."""
        return PartKind.SESSION, self.client_id

    def is_over(self, now_micros: int) -> bool:
        """Return whether the client has sent no heartbeat for longer than its time-out."""
        return now_micros - self.seen_micros > self.timeout_seconds * MICROS_PER_SECOND

    def to_json(self) -> str:
        """Return the session as the JSON text that the storage keeps."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str, now_micros: int) -> Client:
        """Return the client from the text that ``to_json`` wrote, as if its last heartbeat were at ``now_micros``."""
        return cls(**{**parse_json(text), "seen_micros": now_micros})


@frozen
class Definition:
    """The fixed properties of a tunnel."""

    tunnel_id: str
    name: str
    type: TunnelTypeNumber
    table_name: str
    table_number: int
    stream_id: str
    """The id of the table's stream; empty if the tunnel has only full data."""
    created_micros: int
    flag: StartOffsetFlag = StartOffsetFlag.LATEST
    start_nanos: int = 0
    """The requested start of the incremental data in nanoseconds; 0 if ``flag`` states the start."""
    end_nanos: int = 0
    """The requested end of the incremental data in nanoseconds; 0 for no end."""
    has_config: bool = False

    @property
    def has_base(self) -> bool:
        """Whether the tunnel delivers full data."""
        return self.type is not TunnelTypeNumber.STREAM

    @property
    def has_stream(self) -> bool:
        """Whether the tunnel delivers incremental data."""
        return self.type is not TunnelTypeNumber.BASE_DATA


FORMER_SESSIONS = 1_000
"""The largest number of ended sessions that a tunnel remembers, to recognize their late checkpoints. The clients of one
tunnel never start more sessions within one time-out."""


@define(on_setattr=noted)
class Tunnel:
    """A tunnel with its channels and its sessions, each in order of creation."""

    definition: Definition
    start_micros: int
    """The start of the tunnel's incremental data, in microseconds. The tunnel delivers no earlier records."""
    stage: Stage = Stage.INIT
    is_expired: bool = False
    newest_shard: int = 0
    """The number of the newest shard for which the tunnel has decided whether the shard needs a channel."""
    finished_micros: int = 0
    """The highest ``consumed_micros`` of all stream channels that have ended; 0 if no stream channel has ended."""
    forgotten_count: int = 0
    """The number of records that clients consumed through channels that the tunnel has forgotten."""
    channels: dict[str, TunnelChannel] = field(factory=dict, on_setattr=NO_OP)
    live: dict[str, TunnelChannel] = field(factory=dict, on_setattr=NO_OP)
    """The channels that have not ended, by channel id."""
    past_elements: dict[str, bytes] = field(factory=dict, on_setattr=NO_OP)
    """The ended channels, serialized as elements of DescribeTunnel's answer, by channel id."""
    past_points: dict[str, bytes] = field(factory=dict, on_setattr=NO_OP)
    """The consume points of ended channels, serialized as members of GetRpo's answer, by channel id."""
    clients: dict[str, Client] = field(factory=dict, on_setattr=NO_OP)
    former_clients: dict[str, Client] = field(factory=dict, on_setattr=NO_OP)
    """Sessions that ended recently, by client id. With these sessions, the server distinguishes a late checkpoint of an
    ended session from a checkpoint of a caller that never had a session."""
    init_calls_left: int = field(default=0, on_setattr=NO_OP)
    """The number of calls that will still find the tunnel in its first stage, without channels."""
    journal: ChangedParts | None = field(default=None, eq=False, repr=False, on_setattr=NO_OP)
    _past_count: int = field(default=0, on_setattr=NO_OP)
    """The number of records that clients consumed through ended channels, without the forgotten channels."""
    _live_base: int = field(default=0, on_setattr=NO_OP)
    _children: dict[str, list[TunnelChannel]] = field(factory=dict, on_setattr=NO_OP)
    """The channels that have a parent, by the channel id of the parent."""
    _last_number: int = field(default=0, on_setattr=NO_OP)
    _held: dict[str, dict[str, TunnelChannel]] = field(factory=dict, on_setattr=NO_OP)
    """The channels that clients hold, by client id and channel id."""

    @property
    def part(self) -> Part:
        """The kind and the empty id by which the storage names the tunnel's own fields.

        Channels and sessions are stored separately.
        """
        return PartKind.TUNNEL, ""

    def keep_journal(self, journal: ChangedParts) -> None:
        """From now on, note in ``journal`` every change of the tunnel, its channels and its sessions."""
        self.journal = journal
        parts: list[TunnelChannel | Client] = [*self.channels.values(), *self.clients.values()]
        for part in (*parts, *self.former_clients.values()):
            part.journal = journal

    def held_by(self, client_id: str) -> list[TunnelChannel]:
        """Return the channels that a client holds, in the order in which it got them."""
        return list(self._held.get(client_id, {}).values())

    @property
    def record_count(self) -> int:
        """The number of records that clients consumed through all present and forgotten channels."""
        return self.forgotten_count + self._past_count + sum(channel.record_count for channel in self.live.values())

    # Channels

    def add(self, channel: TunnelChannel) -> None:
        """Add a new channel. If the channel need not wait for full data or for a parent channel, open it."""
        channel.number = self._next_number()
        self.adopt(channel)
        self._noted(channel)
        self._open_if_ready(channel)

    def adopt(self, channel: TunnelChannel) -> None:
        """Add a channel that was restored from the storage, without changing it."""
        channel.journal = self.journal
        self._last_number = max(self._last_number, channel.number)
        self.channels[channel.channel_id] = channel
        if channel.is_over:
            self._passed(channel)
            return
        self.live[channel.channel_id] = channel
        self._live_base += channel.is_base
        if channel.client_id:
            self._hold(channel)
        for parent in channel.parent_ids:  # of every channel: one that is suspended now may wait again later
            self._children.setdefault(parent, []).append(channel)

    def lease(self, channel: TunnelChannel, client_id: str) -> None:
        """Lease a free channel to a client."""
        channel.lease(client_id)
        self._hold(channel)

    def release(self, channel: TunnelChannel, version: int | None = None) -> None:
        """Take a channel from its client. ``version`` is the new version, if the client reported one."""
        self._let_go(channel)
        channel.release(version)

    def _hold(self, channel: TunnelChannel) -> None:
        self._held.setdefault(channel.client_id, {})[channel.channel_id] = channel

    def _let_go(self, channel: TunnelChannel) -> None:
        held = self._held.get(channel.client_id, {})
        held.pop(channel.channel_id, None)
        if not held:
            self._held.pop(channel.client_id, None)

    def finish(self, channel: TunnelChannel, version: int | None = None, *, is_consumed: bool = True) -> None:
        """End a channel as ``TunnelChannel.finish`` does, and open the channels that waited for its end."""
        self._let_go(channel)
        channel.finish(version, is_consumed=is_consumed)
        if self.live.pop(channel.channel_id, None) is None:
            return
        self._passed(channel)
        if not channel.is_base:
            self.finished_micros = max(self.finished_micros, channel.consumed_micros)
        self._live_base -= channel.is_base
        if self.stage is Stage.BASE and not self._live_base:
            self.enter(Stage.STREAM)
        for child in self._children.pop(channel.channel_id, ()):
            self._open_if_ready(child)

    def _passed(self, channel: TunnelChannel) -> None:
        self.past_elements[channel.channel_id] = channel.element()
        self.past_points[channel.channel_id] = channel.point()
        self._past_count += channel.record_count

    def forget(self, channel: TunnelChannel) -> None:
        """Forget a channel that has ended, but still count its records in ``record_count``."""
        for past in (self.channels, self.past_elements, self.past_points):
            del past[channel.channel_id]
        self._past_count -= channel.record_count
        self.forgotten_count += channel.record_count
        self._noted(channel)

    def enter(self, stage: Stage) -> None:
        """Set the stage of the tunnel. In the stage ``STREAM``, open the stream channels without a live parent."""
        self.stage = stage
        for channel in self.live.values():
            self._open_if_ready(channel)

    def must_wait(self, channel: TunnelChannel) -> bool:
        """Return whether a channel must wait for the end of full data or of a parent channel."""
        is_early = self.stage is not Stage.STREAM and not channel.is_base
        return is_early or any(parent in self.live for parent in channel.parent_ids)

    def _open_if_ready(self, channel: TunnelChannel) -> None:
        if channel.status is Status.WAIT and not self.must_wait(channel):
            channel.status = Status.OPEN

    # Sessions

    def begin_session(self, client: Client) -> None:
        """Add a new session to the tunnel."""
        client.number = self._next_number()
        self.adopt_session(client)
        self._noted(client)

    def adopt_session(self, client: Client) -> None:
        """Add a session that was restored from the storage, without changing it."""
        client.journal = self.journal
        self._last_number = max(self._last_number, client.number)
        (self.former_clients if client.has_ended else self.clients)[client.client_id] = client

    def end_session(self, client_id: str) -> None:
        """End a client's session and release its channels; remember the session in ``former_clients``."""
        client = self.clients.pop(client_id, None)
        if client is None:
            return
        for channel in self.held_by(client_id):
            self.release(channel)
        client.has_ended = True
        self.former_clients[client_id] = client
        while len(self.former_clients) > FORMER_SESSIONS:
            self._noted(self.former_clients.pop(next(iter(self.former_clients))))

    # Parts for the storage

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _noted(self, part: TunnelChannel | Client) -> None:
        if self.journal is not None:
            self.journal.note(*part.part)

    def part_json(self, part: Part) -> str | None:
        """Return a part of the tunnel as the JSON text to store; ``None`` if the part no longer exists."""
        kind, part_id = part
        if kind is PartKind.TUNNEL:
            return _to_json(self)
        found = self.channels.get(part_id) if kind is PartKind.CHANNEL else self._session(part_id)
        return None if found is None else found.to_json()

    def _session(self, client_id: str) -> Client | None:
        return self.clients.get(client_id) or self.former_clients.get(client_id)

    @classmethod
    def from_json(cls, text: str, channels: Iterable[TunnelChannel], sessions: Iterable[Client]) -> Tunnel:
        """Return a tunnel from its stored parts; ``text`` has the tunnel's own fields."""
        document = parse_json(text)
        fixed = document.pop("definition")
        fixed |= {"type": TunnelTypeNumber(fixed["type"]), "flag": StartOffsetFlag(fixed["flag"])}
        document["stage"] = Stage(document["stage"])
        tunnel = cls(definition=Definition(**fixed), **document)
        for channel in sorted(channels, key=lambda channel: channel.number):
            tunnel.adopt(channel)
        for session in sorted(sessions, key=lambda session: session.number):
            tunnel.adopt_session(session)
        return tunnel


_STORED = (TunnelChannel, Client, Tunnel)
_NOT_KEPT = {each.name for kept in _STORED for each in attrs.fields(kept) if each.on_setattr is NO_OP}


def _is_kept(attribute: attrs.Attribute[object], value: object) -> bool:
    """Return whether the storage keeps an attribute. It does not keep attributes declared with ``on_setattr=NO_OP``."""
    return attribute.name not in _NOT_KEPT


def _to_json(instance: TunnelChannel | Client | Tunnel) -> str:
    return json.dumps(attrs.asdict(instance, filter=_is_kept, value_serializer=_plain))


def _plain(instance: object, attribute: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value.hex() if isinstance(value, bytes) else value
