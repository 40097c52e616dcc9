"""Channels and tunnels: what there is, as values with a few moves. No table, no stream and no clock in here.

Laws:

- Whether a channel can be read (``status``) and who holds it (``client_id``) are two things: consumers without a
  session read open channels that nobody holds.
- Every change of a channel's state raises its version; clients compare versions and nothing else.
- TERMINATED is final.
"""

from __future__ import annotations

import json
from enum import Enum

import attrs
from attrs import define, field, frozen

from streamclient.wire.schema import ChannelStatus, StartOffsetFlag, TunnelType
from streamclient.wire.tunnel import FINISHED


class Status(Enum):
    """State of a channel, in the spelling that DescribeTunnel uses; Java knows exactly these."""

    WAIT = "WAIT"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    CLOSE = "CLOSE"
    """Nobody holds it at present; ready to be leased again."""
    TERMINATED = "TERMINATED"

    @property
    def number(self) -> ChannelStatus:
        """The number that travels in heartbeats; WAIT never does."""
        return ChannelStatus[self.name]


class Stage(Enum):
    """Progress of a tunnel, in the spelling of DescribeTunnel."""

    INIT = "InitBaseDataAndStreamShard"
    BASE = "ProcessBaseData"
    STREAM = "ProcessStream"


BASE_CHANNEL = "BaseData"
STREAM_CHANNEL = "Stream"

TYPE_NAMES = {
    TunnelType.BASE_DATA: "BaseData",
    TunnelType.STREAM: "Stream",
    TunnelType.BASE_AND_STREAM: "BaseAndStream",
}


@frozen
class KeyRange:
    """The half-open range of encoded keys of one channel of full data; ``None`` is unbounded."""

    begin: bytes
    end: bytes | None


@define
class Channel:
    """One channel. ``key_range`` is set for full data; a stream channel's id is its shard's."""

    channel_id: str
    status: Status
    key_range: KeyRange | None = None
    parent_ids: tuple[str, ...] = ()
    """Channels of this tunnel that must end first."""
    start_position: int = 0
    """Of a stream channel: position of its first record when the channel appeared."""
    version: int = 0
    client_id: str = ""
    is_suspended: bool = False
    """Taken from its holder by an operator; leased to nobody until it is resumed."""
    checkpoint: str = ""
    """The last token stored; empty before the first, when reading starts at the beginning."""
    sequence_number: int = 0
    record_count: int = 0
    consumed_micros: int = 0
    """How far the checkpoint is, in the time of the log; 0 before the first, and for full data."""

    @property
    def is_base(self) -> bool:
        """Whether it delivers full data."""
        return self.key_range is not None

    @property
    def is_over(self) -> bool:
        """Whether everything in it was consumed."""
        return self.status is Status.TERMINATED

    @property
    def can_be_leased(self) -> bool:
        """Whether a client may get it now."""
        return self.status in (Status.OPEN, Status.CLOSE) and not self.client_id and not self.is_suspended

    @property
    def counts_as_load(self) -> bool:
        """Whether balancing spreads it over the clients."""
        return self.status in (Status.OPEN, Status.CLOSING, Status.CLOSE) and not self.is_suspended

    def change(self, status: Status) -> None:
        """Enter a state."""
        self.status = status
        self.version += 1

    def lease(self, client_id: str) -> None:
        """Give it to a client. A fresh channel keeps its version: the client has seen none yet."""
        if self.status is Status.CLOSE:
            self.change(Status.OPEN)
        self.client_id = client_id

    def release(self, version: int | None = None) -> None:
        """Take it from its client, which may have given it a version of its own."""
        self.client_id = ""
        if self.is_over:
            return
        self.change(Status.CLOSING if self.is_suspended else Status.CLOSE)
        if version is not None:
            self.version = version

    def finish(self, version: int | None = None) -> None:
        """Everything in it was consumed."""
        if not self.is_over:
            self.change(Status.TERMINATED)
        self.version = self.version if version is None else max(self.version, version)
        self.checkpoint = FINISHED
        self.client_id = ""


@define
class Client:
    """A session."""

    client_id: str
    timeout_seconds: int
    seen_micros: int

    def is_over(self, now_micros: int) -> bool:
        """Whether its heartbeats stopped for longer than it allowed itself."""
        return now_micros - self.seen_micros > self.timeout_seconds * 1_000_000


@frozen
class Definition:
    """What does not change in the life of a tunnel."""

    tunnel_id: str
    name: str
    type: TunnelType
    table_name: str
    table_number: int
    stream_id: str
    """Empty for full data only."""
    created_micros: int
    flag: StartOffsetFlag = StartOffsetFlag.LATEST
    start_nanos: int = 0
    """0: as the flag says."""
    end_nanos: int = 0
    """0: never."""
    has_config: bool = False

    @property
    def has_base(self) -> bool:
        """Whether it delivers full data."""
        return self.type is not TunnelType.STREAM

    @property
    def has_stream(self) -> bool:
        """Whether it delivers incremental data."""
        return self.type is not TunnelType.BASE_DATA


@define
class Tunnel:
    """A tunnel with its channels, in order of creation, and its sessions, in order of arrival."""

    definition: Definition
    start_micros: int
    """Records written before are not part of it."""
    stage: Stage = Stage.INIT
    is_expired: bool = False
    channels: dict[str, Channel] = field(factory=dict)
    clients: dict[str, Client] = field(factory=dict)
    former_clients: list[str] = field(factory=list)
    """Sessions that ended lately: their late checkpoints are told apart from those of consumers without a session."""

    def held_by(self, client_id: str) -> list[Channel]:
        """Channels leased to a client."""
        return [channel for channel in self.channels.values() if channel.client_id == client_id]

    def to_json(self) -> str:
        """The form in which it is stored."""
        return json.dumps(attrs.asdict(self, value_serializer=_plain))

    @classmethod
    def from_json(cls, text: str, now_micros: int) -> Tunnel:
        """The tunnel that ``to_json`` wrote; its sessions count as seen now, as the server was away, not they."""
        document = json.loads(text)
        definition = document.pop("definition")
        definition["type"] = TunnelType(definition["type"])
        definition["flag"] = StartOffsetFlag(definition["flag"])
        channels = {name: _channel(entry) for name, entry in document.pop("channels").items()}
        clients = {
            name: Client(name, entry["timeout_seconds"], now_micros) for name, entry in document.pop("clients").items()
        }
        document["stage"] = Stage(document["stage"])
        return cls(definition=Definition(**definition), channels=channels, clients=clients, **document)


def _plain(instance: object, attribute: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value.hex() if isinstance(value, bytes) else value


def _channel(entry: dict[str, object]) -> Channel:
    document: dict[str, object] = dict(entry)
    document["status"] = Status(document["status"])
    document["parent_ids"] = tuple(document["parent_ids"])  # type: ignore[arg-type]  # a JSON list of texts
    bounds = document["key_range"]
    if isinstance(bounds, dict):
        end = bounds["end"]
        document["key_range"] = KeyRange(bytes.fromhex(bounds["begin"]), None if end is None else bytes.fromhex(end))
    return Channel(**document)  # type: ignore[arg-type]  # written by ``to_json``
