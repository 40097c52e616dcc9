"""The changes that the server writes to its storage, and the interface of storages.

While the server runs, it reads only its state in memory. Before the server answers a request, it passes the list of the
request's changes to the storage. The storage applies the whole list or nothing. At the start, the server restores the
state from the result of ``Storage.load``. See the decision page ``server-storage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from attrs import define, field, frozen

from streamclient.server.stored_rows import KeyNames, StoredRow


@frozen
class PutSetting:
    """A change: store or replace a setting of the whole server."""

    name: str
    value: str


@frozen
class PutTable:
    """A change: store or replace the definition of a table, as JSON."""

    table_number: int
    document: str


@frozen
class DropTable:
    """A change: delete a table with all its rows."""

    table_number: int


@frozen
class PutRow:
    """A change: store or replace a row.

    ``body`` is a PlainBuffer row without a header, with all versions of all columns.
    """

    table_number: int
    key: bytes
    written_millis: int
    body: bytes


@frozen
class DeleteRow:
    """A change: delete one row."""

    table_number: int
    key: bytes


@frozen
class PutStream:
    """A change: store or replace the definition of a stream, as JSON."""

    stream_number: int
    document: str


@frozen
class DropStream:
    """A change: delete a stream with its shards and their records."""

    stream_number: int


@frozen
class PutShard:
    """A change: store or replace a shard, as JSON without its records."""

    shard_number: int
    stream_number: int
    document: str


@frozen
class DropShard:
    """A change: delete a shard with its records."""

    shard_number: int


@frozen
class AppendRecord:
    """A change: append a record to a shard. The positions in a shard begin at 0 and count up by one."""

    shard_number: int
    position: int
    timestamp_micros: int
    size_bytes: int
    element: bytes


@frozen
class TrimRecords:
    """A change: delete the records of a shard before a position."""

    shard_number: int
    before_position: int


@frozen
class PutTunnelPart:
    """A change: store or replace a part of a tunnel, as JSON.

    A part is the tunnel's own fields, a channel or a session.
    """

    tunnel_id: str
    kind: str
    """The kind of the part: ``tunnel``, ``channel`` or ``session``."""
    part_id: str
    """The id of the channel or session; empty for the tunnel's own fields."""
    document: str


@frozen
class DropTunnelPart:
    """A change: delete a channel or a session of a tunnel."""

    tunnel_id: str
    kind: str
    part_id: str


@frozen
class DropTunnel:
    """A change: delete a tunnel with its channels and sessions."""

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
"""Any of the changes that a storage can apply."""


@define
class UncommittedChanges:
    """The changes of one commit, for ``Storage.commit``.

    Only the last state of a changed row is a change, whose body is made when an iteration comes to it. So a row that
    changes many times takes no more memory and time than a row that changes once.
    """

    others: list[Change] = field(factory=list)
    """The changes that do not concern rows, in order."""
    rows: dict[tuple[int, bytes], tuple[KeyNames, StoredRow | None]] = field(factory=dict)
    """The changed rows by table number and key, each with the names of its key columns; ``None`` for a deleted row."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.others and not self.rows

    def __iter__(self) -> Iterator[Change]:
        """Yield all changes.

        The rows come first. No row changes after its table was dropped, so the change ``DropTable`` deletes them again.
        """
        for (table_number, key), (names, row) in self.rows.items():
            if row is None:
                yield DeleteRow(table_number, key)
            else:
                yield PutRow(table_number, key, row.written_millis, row.body(names))
        yield from self.others


@frozen
class StoredState:
    """The whole committed content of a storage.

    Each table, stream and shard has a number. ``tables``, ``streams`` and ``shards`` are in the order of these numbers.
    """

    settings: tuple[PutSetting, ...] = ()
    tables: tuple[PutTable, ...] = ()
    rows: tuple[PutRow, ...] = field(default=(), repr=False)
    """The rows of all tables. The rows of each table are in the order of their keys."""
    streams: tuple[PutStream, ...] = ()
    shards: tuple[PutShard, ...] = ()
    records: tuple[AppendRecord, ...] = field(default=(), repr=False)
    """The records of all shards. The records of each shard are in the order of their positions."""
    tunnel_parts: tuple[PutTunnelPart, ...] = ()
    """The parts of all tunnels, in any order. The document of each channel and session contains a number, which gives
    the order of creation in its tunnel."""


class Storage(Protocol):
    """The interface of a storage. Only one thread at a time calls its methods."""

    @property
    def keeps(self) -> bool:
        """Whether the storage keeps the changes of ``commit``. If not, the server does not even make change objects."""

    def load(self) -> StoredState:
        """Return the whole committed content. The server calls this once, before the first commit."""

    def commit(self, changes: Iterable[Change]) -> None:
        """Apply all changes in order, or none of them. After the return, the changes survive the end of the process."""

    def close(self) -> None:
        """Release the files and locks of the storage. Closing twice is allowed."""
