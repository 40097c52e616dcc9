"""The operator's functions for shards: list, split, merge and trim. They take and return plain Python values."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.keys import decode_key, encode_key
from streamclient.server.server_state import ServerState
from streamclient.server.stored_streams import ShardLog, StoredRecord, Stream
from streamclient.server.stored_tables import TYPE_NAMES, Table, value_type_name


@frozen
class ShardView:
    """A shard of a table's stream, for an operator."""

    shard_id: str
    parent_ids: tuple[str, ...]
    """The ids of the parents: one after a split, two after a merge, none for a shard that opened with the stream."""
    is_open: bool
    key_range: str
    """The half-open range of keys, as text such as ``[INF_MIN, ('m',))``."""
    record_count: int
    """The number of retained records in the shard."""
    oldest_sequence: str | None
    """The epoch and timestamp of the oldest retained record, as ``epoch/micros``; ``None`` without records."""
    newest_sequence: str | None


def stream_of(state: ServerState, table_name: str) -> Stream:
    """Return the table's stream; delete its records past retention first.

    Raises:
        ServiceError: the table does not exist, or has no stream.
    """
    stream = state.stream_of(state.table(table_name))
    if stream is None:
        raise refusals.CONTROL_NO_STREAM(table=table_name)
    state.forget_expired(stream)
    return stream


def view_shards(state: ServerState, table_name: str) -> list[ShardView]:
    """Return the shards of a table's stream that DescribeStream lists.

    Closed shards come first, parents before their children. Open shards come after them, in key order. The open shards
    cover the whole key space. So two neighbours among the open shards can always be merged.
    """
    stream = stream_of(state, table_name)
    shards = sorted(
        stream.listed(),
        key=lambda shard: (shard.is_open, shard.definition.begin if shard.is_open else b""),
    )
    return [_view(shard) for shard in shards]


def _view(shard: ShardLog) -> ShardView:
    definition = shard.definition
    parents = (definition.parent_id, definition.parent_sibling_id)
    return ShardView(
        shard_id=shard.shard_id,
        parent_ids=tuple(parent for parent in parents if parent is not None),
        is_open=shard.is_open,
        key_range=f"[{_place(definition.begin, 'INF_MIN')}, {_place(definition.end, 'INF_MAX')})",
        record_count=shard.record_count,
        oldest_sequence=_sequence(shard, shard.oldest),
        newest_sequence=_sequence(shard, shard.newest),
    )


def _sequence(shard: ShardLog, record: StoredRecord | None) -> str | None:
    return None if record is None else f"{shard.definition.epoch}/{record.timestamp_micros}"


def _place(boundary: bytes | None, unbounded: str) -> str:
    return repr(decode_key(boundary)) if boundary else unbounded


def _open_shard(stream: Stream, shard_id: str) -> ShardLog:
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise refusals.SHARD_MISSING()
    if not shard.is_open:
        raise refusals.CONTROL_CLOSED(shard=shard_id)
    return shard


def _row_count(table: Table, shard: ShardLog) -> int:
    return table.rows.count(shard.definition.begin, shard.definition.end)


def split_shard(
    state: ServerState, table_name: str, shard_id: str | None, at: Sequence[KeyValue] | None
) -> tuple[str, str]:
    """Split an open shard; return the ids of the lower and the upper child.

    ``at`` is the first key of the upper child; by default, the median of the shard's rows. Without ``shard_id``, split
    the shard that contains ``at``. Without both, split the shard with the most rows.
    """
    stream = stream_of(state, table_name)
    table = state.table(table_name)
    boundary = None if at is None else _boundary(table, at)
    if shard_id is not None:
        parent = _open_shard(stream, shard_id)
    elif boundary is not None:
        parent = stream.open_shards[table.partition_of(boundary)]
    else:
        parent = max(stream.open_shards, key=lambda shard: _row_count(table, shard))
    if boundary is None:
        boundary = _median(table, parent)
    begin, end = parent.definition.begin, parent.definition.end
    if boundary <= begin or (end is not None and boundary >= end):
        raise refusals.CONTROL_SPLIT_KEY(key=repr(decode_key(boundary)), range=_view(parent).key_range)
    lower, upper = state.split(table, stream, parent, boundary)
    return lower.shard_id, upper.shard_id


def _boundary(table: Table, at: Sequence[KeyValue]) -> bytes:
    columns = table.definition.key
    if not 1 <= len(at) <= len(columns):
        raise refusals.CONTROL_SPLIT_COLUMNS(given=len(at), expected=len(columns))
    for column, value in zip(columns, at, strict=False):
        if isinstance(value, bool) or value_type_name(value) != TYPE_NAMES[column.type]:
            raise refusals.CONTROL_SPLIT_TYPE(name=column.name, type=TYPE_NAMES[column.type], given=repr(value))
        try:
            encode_key((value,))
        except (OverflowError, UnicodeEncodeError) as error:
            expected = "text that UTF-8 can encode" if isinstance(value, str) else "integers of 64 bits"
            raise refusals.CONTROL_SPLIT_VALUE(name=column.name, expected=expected, given=repr(value)) from error
    return encode_key(at)


def _median(table: Table, shard: ShardLog) -> bytes:
    """Return an encoded key that divides the rows of a shard into halves.

    If possible, the key is only the partition key of the median row, so that all rows of one partition key stay in one
    shard. Otherwise, the key is the whole key of the median row.
    """
    count = _row_count(table, shard)
    if count < 2:
        raise refusals.CONTROL_SPLIT_ROWS(shard=shard.shard_id, count=count)
    begin = shard.definition.begin
    median, first = table.rows.key_at(begin, count // 2), table.rows.key_at(begin, 0)
    partition_key = encode_key(decode_key(median)[:1])
    return partition_key if partition_key > first and partition_key > begin else median


def merge_shards(state: ServerState, table_name: str, shard_a: str, shard_b: str) -> str:
    """Merge two open shards with adjoining ranges; return the id of the child. Either shard may be the lower one."""
    stream = stream_of(state, table_name)
    lower, upper = sorted(
        (_open_shard(stream, shard_a), _open_shard(stream, shard_b)), key=lambda shard: shard.definition.begin
    )
    if lower.definition.end is None or lower.definition.end != upper.definition.begin:
        raise refusals.CONTROL_MERGE(
            first=shard_a, second=shard_b, ranges=f"{_view(lower).key_range} and {_view(upper).key_range}"
        )
    return state.merge(state.table(table_name), stream, lower, upper).shard_id


def trim(
    state: ServerState, table_name: str, shard_id: str | None, before_micros: int | None, keep_last: int | None
) -> int:
    """Delete records of one shard or of all shards; return the number of deleted records.

    See ``Control.trim`` for the parameters.
    """
    stream = stream_of(state, table_name)
    if keep_last is not None and keep_last < 0:
        raise refusals.CONTROL_KEEP(given=keep_last)
    if shard_id is not None and shard_id not in stream.shards:
        raise refusals.SHARD_MISSING()
    count = 0
    for shard in stream.shards.values() if shard_id is None else (stream.shards[shard_id],):
        position = shard.next_position
        if before_micros is not None:
            position = shard.position_at(before_micros)
        if keep_last is not None:
            position = min(position, shard.next_position - keep_last)
        count += state.trim(stream, shard, position)
    return count
