"""Where a table can be cut into pieces of about one size."""

from __future__ import annotations

from streamclient.server.keys import encode_key
from streamclient.server.rows import alive
from streamclient.server.tables import Table
from streamclient.wire.plainbuffer import KeyBound

_LOWEST, _HIGHEST = encode_key((KeyBound.INF_MIN,)), encode_key((KeyBound.INF_MAX,))


def split_points(table: Table, split_bytes: int, limit: int, expired_before_millis: int | None) -> list[bytes]:
    """Encoded keys, or leading columns, at which pieces of at least ``split_bytes`` begin; at most ``limit``."""
    points: list[bytes] = []
    size = 0
    last_partition_key: bytes | None = None
    for key, row in table.rows.ascending(_LOWEST, _HIGHEST):
        live = alive(row, table.key_names, expired_before_millis)
        if live is None:
            continue
        partition_key = encode_key(live.key[:1])
        if size >= split_bytes:
            points.append(key if partition_key == last_partition_key else partition_key)
            size = 0
            if len(points) == limit:
                break
        size += table.size_of(live)
        last_partition_key = partition_key
    return points
