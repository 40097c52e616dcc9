"""The whole state of one server: tables, streams, tunnels, transactions, and changes that are not yet committed.

Only the methods of ``ServerState`` change a table, row, stream or shard. They also note each change for the storage.
The engine calls ``commit`` before it answers a request. One thread at a time uses the state.
"""

from __future__ import annotations

from attrs import evolve

from streamclient.server import refusals
from streamclient.server.admin_changes import (
    AppendRecord,
    Change,
    DropShard,
    DropStream,
    DropTable,
    DropTunnel,
    DropTunnelPart,
    PutSetting,
    PutShard,
    PutStream,
    PutTable,
    PutTunnelPart,
    Storage,
    TrimRecords,
    UncommittedChanges,
)
from streamclient.server.expiry import HIGHEST_KEY, RowExpiry
from streamclient.server.local_transactions import Transaction, Transactions
from streamclient.server.server_clock import Clock
from streamclient.server.server_limits import DEFAULT_LIMITS, Limits
from streamclient.server.stored_rows import Rows, StoredRow
from streamclient.server.stored_streams import ShardDefinition, ShardLog, Stream, StreamDefinition, shard_id_for
from streamclient.server.stored_tables import Key, ServedTable, Table
from streamclient.server.tunnels.tunnel_channels import Tunnel
from streamclient.server.tunnels.tunnel_journal import ChangedParts
from streamclient.server.tunnels.tunnel_positions import follow, records_forgotten, shard_forgotten

CLOCK_OFFSET = "clock_offset_micros"
"""The name of the stored setting with the clock's offset. A restarted server goes on with this offset."""

CLOCK_LATEST = "clock_latest_micros"
"""The name of the stored setting with the time of the last commit. After a restart, the clock goes on from this
time."""

CLOCK_AHEAD = "clock_ahead_micros"
"""The name of the stored setting with the highest time that the server gave to a version or an AUTO_INCREMENT value.
The setting is written only while that time is ahead of the clock, for example after a wrong clock was set back. New
versions get times after that time, so that they are the newest."""

RECORD_COUNT = "record_count"
"""The name of the stored setting with the number of retained stream records. If the storage has fewer records at the
next start, the last records of a shard are missing. The positions of the records show whether a record in the middle of
a shard is missing."""


class ServerState:
    """The tables by name, the streams and tunnels by id, and the journal of uncommitted changes."""

    def __init__(
        self,
        *,
        clock: Clock,
        storage: Storage,
        limits: Limits = DEFAULT_LIMITS,
        stream_enabling_millis: int = 0,
        tunnel_init_calls: int = 0,
        tunnels_skip_lost_log: bool = False,
        instance_name: str = "",
    ) -> None:
        self.instance_name = instance_name
        self.clock = clock
        self.limits = limits
        self.stream_enabling_millis = stream_enabling_millis
        self.tunnel_init_calls = tunnel_init_calls
        self.tunnels_skip_lost_log = tunnels_skip_lost_log
        self.tables: dict[str, Table] = {}
        self.streams: dict[str, Stream] = {}
        self.tunnels: dict[str, Tunnel] = {}
        self.transactions: Transactions = Transactions(
            limits.transaction_seconds, limits.open_transactions, limits.open_transaction_bytes
        )
        self.last_number: int = 0
        """The highest number that a table, stream or shard ever had. Each number is used only once."""
        self.last_creation_micros: int = 0
        self.last_generated = 0
        """The highest AUTO_INCREMENT value of all tables. Such a value is a time in microseconds, but may be ahead of
        the clock."""
        self.ahead_micros = self._stored_ahead_micros = 0
        """The latest time, in microseconds, that stored versions may have. If the clock was set back, this time is
        ahead of the clock."""
        self.stored_offset_micros: int = 0
        self.record_count: int = 0
        """The number of retained records of all streams."""
        self.stored_record_count: int = 0
        self._streams_by_table: dict[int, Stream] = {}
        self._tunnels_by_stream: dict[str, list[Tunnel]] = {}
        self._changed_tunnels: set[str] = set()
        self._expiry = RowExpiry()
        self._storage = storage
        self._keeps = storage.keeps
        self._changes = UncommittedChanges()

    def table(self, name: str) -> Table:
        """Return the table ``name``.

        Raises:
            ServiceError: the table does not exist.
        """
        table = self.tables.get(name)
        if table is None:
            raise refusals.TABLE_MISSING()
        return table

    def stream(self, stream_id: str) -> Stream:
        """Return the stream ``stream_id``; delete its records past retention first.

        Raises:
            ServiceError: the stream does not exist, or was switched off or deleted with its table.
        """
        stream = self.streams.get(stream_id)
        if stream is None:
            raise refusals.STREAM_MISSING()
        self.forget_expired(stream)
        return stream

    def stream_of(self, table: Table) -> Stream | None:
        """Return the table's stream; ``None`` if the table has no stream."""
        return self._streams_by_table.get(table.definition.number)

    def transaction(self, transaction_id: str | None) -> Transaction | None:
        """Return the open transaction that a request names; ``None`` if the request names no transaction.

        Raises:
            ServiceError: the named transaction ended, or never existed.
        """
        return None if transaction_id is None else self.transactions.find(transaction_id, self.clock.now_micros())

    def rows_seen(self, table: Table, transaction_id: str | None, key: Key) -> Rows:
        """Return the rows that a read of one row sees.

        They are the committed rows, and in a transaction also the transaction's own writes.

        Raises:
            ServiceError: the transaction ended, or it does not hold the row with this key.
        """
        transaction = self.transaction(transaction_id)
        if transaction is None:
            return table.rows
        transaction.check_scope(table, key)
        return transaction.draft.rows

    def range_seen(self, table: Table, transaction_id: str | None, start: Key, end: Key) -> Rows:
        """Return the rows that a read of a range sees; see ``rows_seen``.

        Raises:
            ServiceError: the transaction ended, or it does not hold the range with these bounds.
        """
        transaction = self.transaction(transaction_id)
        if transaction is None:
            return table.rows
        transaction.check_range(table, start, end)
        return transaction.draft.rows

    def commit(self) -> None:
        """Delete expired rows and versions, and write all uncommitted changes to the storage."""
        self._forget_expired_rows()
        self._note_tunnels()
        if self.clock.offset_micros != self.stored_offset_micros:
            self.stored_offset_micros = self.clock.offset_micros
            self._note(PutSetting(CLOCK_OFFSET, str(self.stored_offset_micros)))
        if self.record_count != self.stored_record_count:
            self.stored_record_count = self.record_count
            self._note(PutSetting(RECORD_COUNT, str(self.record_count)))
        if not self._changes.is_empty:
            now_micros = self.clock.now_micros()
            self._note(PutSetting(CLOCK_LATEST, str(now_micros)))
            ahead = max(self.ahead_micros, self.last_generated)
            if ahead > now_micros and ahead != self._stored_ahead_micros:
                self._stored_ahead_micros = ahead
                self._note(PutSetting(CLOCK_AHEAD, str(ahead)))
            changes, self._changes = self._changes, UncommittedChanges()
            self._storage.commit(changes)

    def _note(self, change: Change) -> None:
        if self._keeps:
            self._changes.others.append(change)

    def _note_row(self, table: Table, key: bytes, row: StoredRow | None) -> None:
        if self._keeps:
            self._changes.rows[table.definition.number, key] = table.key_names, row

    def next_number(self) -> int:
        """Return an unused number for a new table, stream or shard."""
        self.last_number += 1
        return self.last_number

    def creation_micros(self) -> int:
        """Return the present time in microseconds, or the last result plus 1, whichever is later.

        Ids contain the result, so the method never returns the same time twice.
        """
        self.last_creation_micros = max(self.clock.now_micros(), self.last_creation_micros + 1)
        return self.last_creation_micros

    # Tables and rows

    def add_table(self, definition: ServedTable) -> Table:
        """Create an empty table with this definition."""
        table = Table(definition)
        self.adopt_table(table)
        self._note(PutTable(definition.number, definition.to_json()))
        return table

    def adopt_table(self, table: Table) -> None:
        """Register a table that was created or restored with its rows."""
        self.tables[table.definition.name] = table
        for key, row in table.rows.ascending(b"", HIGHEST_KEY):
            self._expiry.expect(table, key, row)

    def define(self, table: Table, definition: ServedTable) -> None:
        """Replace a table's definition, and note the change for the storage."""
        table.definition = definition
        self._note(PutTable(definition.number, definition.to_json()))

    def drop_table(self, table: Table) -> None:
        """Delete a table with its rows, its stream, its tunnels and its open transactions."""
        self.switch_off(table)
        self.transactions.drop_table(table)
        for tunnel in list(self.tunnels.values()):
            if tunnel.definition.table_number == table.definition.number:
                self.drop_tunnel(tunnel.definition.tunnel_id)
        del self.tables[table.definition.name]
        self._expiry.forget(table)
        self._note(DropTable(table.definition.number))

    def put_row(self, table: Table, key: bytes, row: StoredRow) -> None:
        """Store or replace a row, and note the change for the storage."""
        table.rows.put(key, row)
        self._expiry.expect(table, key, row)
        self._note_row(table, key, row)

    def delete_row(self, table: Table, key: bytes) -> None:
        """Delete a row if it is stored, and note the change for the storage."""
        if table.rows.get(key) is not None:
            table.rows.delete(key)
            self._expiry.forget_row(table, key)
            self._note_row(table, key, None)

    def forget_all_expired(self) -> None:
        """Delete all data past retention or time to live, even if no request concerns the data."""
        for stream in self.streams.values():
            self.forget_expired(stream)
        while any(self._expiry.is_due(table, self.clock.now_micros()) for table in self.tables.values()):
            self._forget_expired_rows()

    def _forget_expired_rows(self) -> None:
        """Delete rows and versions past their tables' time to live. One call checks some rows of each table."""
        for table in self.tables.values():
            self.forget_expired_rows(table)

    def forget_expired_rows(self, table: Table) -> None:
        """Delete rows and versions past the time to live of one table. One call checks a limited number of rows."""
        for key, row in self._expiry.due(table, self.clock.now_micros()):
            if row is None:
                self.delete_row(table, key)
            else:
                self.put_row(table, key, row)

    # Streams

    def switch_on(self, table: Table, *, expiration_hours: int, origin_columns: tuple[str, ...] = ()) -> Stream:
        """Create a stream for a table that has no stream, with one open shard for each partition of the table."""
        created = self.creation_micros()
        definition = table.definition
        stream = Stream(
            StreamDefinition(
                stream_id=f"{definition.name}_{created}",
                number=self.next_number(),
                table_number=definition.number,
                table_name=definition.name,
                created_micros=created,
                expiration_hours=expiration_hours,
                origin_columns=origin_columns,
            )
        )
        self.adopt(stream)
        self._note(PutStream(stream.definition.number, stream.definition.to_json()))
        for partition in range(len(definition.boundaries) + 1):
            begin, end = table.partition_range(partition)
            self._open_shard(stream, 0, begin, end)
        return stream

    def adopt(self, stream: Stream) -> None:
        """Register a stream that was created or restored."""
        self.streams[stream.stream_id] = stream
        self._streams_by_table[stream.definition.table_number] = stream

    def switch_off(self, table: Table) -> None:
        """Delete the table's stream with all its records. Do nothing if the table has no stream."""
        stream = self._streams_by_table.pop(table.definition.number, None)
        if stream is not None:
            del self.streams[stream.stream_id]
            self.record_count -= sum(shard.record_count for shard in stream.shards.values())
            self._note(DropStream(stream.definition.number))

    def append(self, stream: Stream, shard: ShardLog, timestamp_micros: int, size_bytes: int, element: bytes) -> None:
        """Append a record to an open shard. The caller must have deleted the stream's expired records already.

        ``element`` is the record, serialized as in answers; ``size_bytes`` is the row's size for capacity units.
        """
        position = stream.append(shard, timestamp_micros, size_bytes, element)
        self.record_count += 1
        if self._keeps:
            self._note(AppendRecord(shard.definition.number, position, timestamp_micros, size_bytes, element))

    def forget_expired(self, stream: Stream) -> None:
        """Delete the records past retention, and the shards that were closed more than two retentions ago."""
        cutoff = stream.cutoff_micros(self.clock.now_micros())
        while (shard := stream.next_due(cutoff)) is not None:
            self._forget(stream, shard, shard.position_at(cutoff))
            wake_micros = shard.wake_micros(stream.retention_micros)
            if shard.is_open or wake_micros is None or wake_micros >= cutoff:
                stream.await_expiry(shard)
            else:
                self._drop_shard(stream, shard)

    def _drop_shard(self, stream: Stream, shard: ShardLog) -> None:
        for tunnel in self._tunnels_of(stream):
            shard_forgotten(tunnel, shard)
        stream.forget(shard)
        self._note(DropShard(shard.definition.number))

    def _forget(self, stream: Stream, shard: ShardLog, before_position: int) -> int:
        if before_position > shard.first_position:
            for tunnel in self._tunnels_of(stream):
                follow(tunnel, stream)
                if not self.tunnels_skip_lost_log:
                    records_forgotten(tunnel, shard, before_position)
        count = shard.forget_before(before_position)
        if count:
            self.record_count -= count
            self._write_down(stream, shard)
            self._note(TrimRecords(shard.definition.number, shard.first_position))
        stream.unlist(shard, stream.cutoff_micros(self.clock.now_micros()))
        return count

    def _tunnels_of(self, stream: Stream) -> list[Tunnel]:
        return self._tunnels_by_stream.get(stream.stream_id, [])

    def trim(self, stream: Stream, shard: ShardLog, before_position: int) -> int:
        """Delete the records of a shard before a position; return the number of deleted records."""
        return self._forget(stream, shard, before_position)

    def expire_iterators(self, stream: Stream) -> None:
        """Invalidate all existing iterators of a stream."""
        stream.definition = evolve(stream.definition, generation=stream.definition.generation + 1)
        self._note(PutStream(stream.definition.number, stream.definition.to_json()))

    def _open_shard(self, stream: Stream, epoch: int, begin: bytes, end: bytes | None, *parents: ShardLog) -> ShardLog:
        number = self.next_number()
        shard_id = shard_id_for(stream.definition, number)
        shard = ShardLog(ShardDefinition(shard_id, number, epoch, begin, end, *(parent.shard_id for parent in parents)))
        stream.add(shard)
        self._write_down(stream, shard)
        return shard

    def _write_down(self, stream: Stream, shard: ShardLog) -> None:
        if self._keeps:
            self._note(PutShard(shard.definition.number, stream.definition.number, shard.to_json()))

    def _close(self, stream: Stream, shard: ShardLog) -> None:
        stream.close(shard, self.clock.now_micros())
        self._write_down(stream, shard)

    def split(self, table: Table, stream: Stream, parent: ShardLog, boundary: bytes) -> tuple[ShardLog, ShardLog]:
        """Close an open shard, and open two shards for its range; return the lower and the upper shard.

        ``boundary`` is the encoded first key of the upper shard, strictly inside the range.
        """
        old = parent.definition
        self._close(stream, parent)
        boundaries = tuple(sorted((*table.definition.boundaries, boundary)))
        self.define(table, evolve(table.definition, boundaries=boundaries))
        lower, upper = (
            self._open_shard(stream, old.epoch + 1, begin, end, parent)
            for begin, end in ((old.begin, boundary), (boundary, old.end))
        )
        return lower, upper

    def merge(self, table: Table, stream: Stream, lower: ShardLog, upper: ShardLog) -> ShardLog:
        """Close two open shards with adjoining ranges, and open one shard for both ranges; return the new shard."""
        boundary = upper.definition.begin
        self._close(stream, lower)
        self._close(stream, upper)
        boundaries = tuple(other for other in table.definition.boundaries if other != boundary)
        self.define(table, evolve(table.definition, boundaries=boundaries))
        epoch = max(lower.definition.epoch, upper.definition.epoch) + 1
        return self._open_shard(stream, epoch, lower.definition.begin, upper.definition.end, lower, upper)

    # Tunnels

    def add_tunnel(self, tunnel: Tunnel) -> None:
        """Register a new tunnel, and note it for the storage."""
        self.adopt_tunnel(tunnel)
        if tunnel.journal is not None:
            tunnel.journal.note(*tunnel.part)

    def adopt_tunnel(self, tunnel: Tunnel) -> None:
        """Register a tunnel that was created or restored. From now on, the state notes all changes of the tunnel."""
        definition = tunnel.definition
        tunnel.keep_journal(ChangedParts(definition.tunnel_id, self._changed_tunnels))
        self.tunnels[definition.tunnel_id] = tunnel
        self._tunnels_by_stream.setdefault(definition.stream_id, []).append(tunnel)

    def drop_tunnel(self, tunnel_id: str) -> None:
        """Delete a tunnel with its channels and sessions."""
        tunnel = self.tunnels.pop(tunnel_id)
        others = self._tunnels_by_stream[tunnel.definition.stream_id]
        others.remove(tunnel)
        if not others:
            del self._tunnels_by_stream[tunnel.definition.stream_id]
        self._note(DropTunnel(tunnel_id))

    def _note_tunnels(self) -> None:
        for tunnel_id in sorted(self._changed_tunnels):
            tunnel = self.tunnels.get(tunnel_id)
            if tunnel is None or tunnel.journal is None:
                continue
            parts = tunnel.journal.take()
            for kind, part_id in parts if self._keeps else ():
                document = tunnel.part_json((kind, part_id))
                if document is None:
                    self._note(DropTunnelPart(tunnel_id, kind.value, part_id))
                else:
                    self._note(PutTunnelPart(tunnel_id, kind.value, part_id, document))
        self._changed_tunnels.clear()
