"""The computation of keys that divide a table into parts of about equal size."""

from __future__ import annotations

from streamclient.server.keys import decode_key, encode_key
from streamclient.server.stored_tables import Table


def split_points(table: Table, split_bytes: int, limit: int) -> list[bytes]:
    """Return at most ``limit`` split points of a table. Each part but the last has at least ``split_bytes``.

    A split point is an encoded key or its encoded first column. If a run of keys contains no split point, use the known
    size of the run instead of reading its rows. Expired rows count until they are deleted.
    """
    points: list[bytes] = []
    size, stamp_bytes = 0, table.stamp_bytes
    last: bytes | None = None
    """The key before the present key; ``None`` at the first key."""
    for run in table.rows.runs():
        weight = run.size_bytes + stamp_bytes * run.version_count
        if size + weight < split_bytes:
            size, last = size + weight, run.keys[-1]
            continue
        for key in run.keys:
            if size >= split_bytes:
                points.append(_cut(key, last))
                size = 0
                if len(points) == limit:
                    return points
            row = table.rows.get(key)
            assert row is not None
            size += row.size_bytes + stamp_bytes * row.version_count
            last = key
    return points


def _cut(key: bytes, last: bytes | None) -> bytes:
    """Return a split point between the keys ``last`` and ``key``.

    If their partition keys differ, return the partition key of ``key``, otherwise ``key``.
    """
    partition_key = _partition_key(key)
    return key if last is not None and _partition_key(last) == partition_key else partition_key


def _partition_key(key: bytes) -> bytes:
    return encode_key(decode_key(key)[:1])
