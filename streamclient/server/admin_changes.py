"""The changes that the server writes to its storage.

While the server runs, only the state in memory counts. Before the server answers a request, it passes the list of the
request's changes to the storage; the storage applies the whole list or nothing. At the start, the server rebuilds the
same state from the result of ``load``. See the page ``server-storage`` of the decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import field, frozen


@frozen
class PutSetting:
    """A named setting of the whole server."""

    name: str
    value: str


@frozen
class PutTable:
    """A table's definition as JSON, new or replaced."""

    table_number: int
    document: str


@frozen
class DropTable:
    """The deletion of a table with all its rows."""

    table_number: int


@frozen
class PutRow:
    """A row, new or replaced: all of its cells and versions as one PlainBuffer row without a header."""

    table_number: int
    key: bytes
    written_millis: int
    body: bytes


@frozen
class DeleteRow:
    """The deletion of a row."""

    table_number: int
    key: bytes


@frozen
class PutStream:
    """A stream's definition as JSON, new or replaced."""

    stream_number: int
    document: str


@frozen
class DropStream:
    """The deletion of a stream with its shards and their records."""

    stream_number: int


@frozen
class PutShard:
    """A shard's definition and bounds as JSON, new or replaced."""

    shard_number: int
    stream_number: int
    document: str


@frozen
class DropShard:
    """The deletion of a shard whose records are deleted already."""

    shard_number: int


@frozen
class AppendRecord:
    """A new record of a shard. Positions of one shard count up by one."""

    shard_number: int
    position: int
    timestamp_micros: int
    size_bytes: int
    element: bytes


@frozen
class TrimRecords:
    """The deletion of a shard's records before a position."""

    shard_number: int
    before_position: int


@frozen
class PutTunnelPart:
    """A part of a tunnel as JSON, new or replaced: the tunnel's own fields, a channel, or a session."""

    tunnel_id: str
    kind: str
    """``tunnel``, ``channel`` or ``session``."""
    part_id: str
    """The id of the channel or session; empty for the tunnel."""
    document: str


@frozen
class DropTunnelPart:
    """The deletion of a channel or a session."""

    tunnel_id: str
    kind: str
    part_id: str


@frozen
class DropTunnel:
    """The deletion of a tunnel with all its parts."""

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
"""One change that a storage applies."""


@frozen
class StoredState:
    """The whole content of a storage: each item as it was last committed, in the order of the items' numbers."""

    settings: tuple[PutSetting, ...] = ()
    tables: tuple[PutTable, ...] = ()
    rows: tuple[PutRow, ...] = field(default=(), repr=False)
    """The rows, per table in ascending order of keys."""
    streams: tuple[PutStream, ...] = ()
    shards: tuple[PutShard, ...] = ()
    records: tuple[AppendRecord, ...] = field(default=(), repr=False)
    """The records, per shard in ascending order of positions."""
    tunnel_parts: tuple[PutTunnelPart, ...] = ()
    """The parts of tunnels, in no particular order; their documents state the order."""


class Storage(Protocol):
    """The receiver of changes. Only one thread at a time calls it."""

    @property
    def keeps(self) -> bool:
        """Whether changes outlive the process. If they do not, the server does not describe its changes."""

    def load(self) -> StoredState:
        """Return all that was committed; called once, before the first commit."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Apply all changes in order, or none. When this returns, the changes survive the end of the process."""

    def close(self) -> None:
        """Release files and locks. Closing twice is allowed."""
