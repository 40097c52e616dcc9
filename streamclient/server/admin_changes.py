"""What the server writes down.

The state in memory is the truth while the server runs. Every request hands the list of changes that it made to the
storage before it is answered; the storage applies the whole list or nothing. On start, the same state is rebuilt from
what ``load`` returns. See the page ``server-storage`` of the decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import field, frozen


@frozen
class PutSetting:
    """A named text of the server as a whole."""

    name: str
    value: str


@frozen
class PutTable:
    """A table's definition, as JSON; new or replaced."""

    table_number: int
    document: str


@frozen
class DropTable:
    """A table and all its rows are gone."""

    table_number: int


@frozen
class PutRow:
    """A row, new or replaced: all its cells and versions as one PlainBuffer row without header."""

    table_number: int
    key: bytes
    written_millis: int
    body: bytes


@frozen
class DeleteRow:
    """A row is gone."""

    table_number: int
    key: bytes


@frozen
class PutStream:
    """A stream's definition, as JSON; new or replaced."""

    stream_number: int
    document: str


@frozen
class DropStream:
    """A stream, its shards and their records are gone."""

    stream_number: int


@frozen
class PutShard:
    """A shard's definition and bounds, as JSON; new or replaced."""

    shard_number: int
    stream_number: int
    document: str


@frozen
class DropShard:
    """A shard is gone; its records went before."""

    shard_number: int


@frozen
class AppendRecord:
    """One more record of a shard. Positions of one shard count up by one."""

    shard_number: int
    position: int
    timestamp_micros: int
    size_bytes: int
    element: bytes


@frozen
class TrimRecords:
    """The records of a shard before a position are gone."""

    shard_number: int
    before_position: int


@frozen
class PutTunnelPart:
    """A tunnel without its channels and sessions, or one of these, as JSON; new or replaced."""

    tunnel_id: str
    kind: str
    """``tunnel``, ``channel`` or ``session``."""
    part_id: str
    """Of the channel or session; empty for the tunnel."""
    document: str


@frozen
class DropTunnelPart:
    """A channel or a session is gone."""

    tunnel_id: str
    kind: str
    part_id: str


@frozen
class DropTunnel:
    """A tunnel is gone with all its parts."""

    tunnel_id: str


Change = (
    PutSetting
    | PutTable
    | DropTable
    | PutRow
    | DeleteRow
    | PutStream
    | DropStream
    | PutShard
    | DropShard
    | AppendRecord
    | TrimRecords
    | PutTunnelPart
    | DropTunnelPart
    | DropTunnel
)
"""One step that a storage applies."""


@frozen
class StoredState:
    """Everything that a storage holds: each item in the form in which it was handed over, in order of its numbers."""

    settings: tuple[PutSetting, ...] = ()
    tables: tuple[PutTable, ...] = ()
    rows: tuple[PutRow, ...] = field(default=(), repr=False)
    """Per table in ascending order of keys."""
    streams: tuple[PutStream, ...] = ()
    shards: tuple[PutShard, ...] = ()
    records: tuple[AppendRecord, ...] = field(default=(), repr=False)
    """Per shard in ascending order of positions."""
    tunnel_parts: tuple[PutTunnelPart, ...] = ()
    """In no particular order: their documents say it."""


class Storage(Protocol):
    """Where changes go. Called by one thread at a time."""

    @property
    def keeps(self) -> bool:
        """Whether changes outlive the process; if not, the server spares itself describing them."""

    def load(self) -> StoredState:
        """All that was committed; called once, before the first commit."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Apply all changes in order, or none. After it returns they survive the end of the process."""

    def close(self) -> None:
        """Release files and locks. Closing twice is allowed."""
