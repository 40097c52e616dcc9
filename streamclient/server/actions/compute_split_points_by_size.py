"""ComputeSplitPointsBySize."""

from __future__ import annotations

import hashlib
from typing import Any

from streamclient.server.capacity import consumed
from streamclient.server.keys import encode_key
from streamclient.server.rows import alive
from streamclient.server.state import ServerState
from streamclient.server.table_messages import key_prefix_frame, key_schema
from streamclient.server.tables import Table
from streamclient.server.validation.compute_split_points_by_size import ComputeSplitPoints
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound

_LOWEST, _HIGHEST = encode_key((KeyBound.INF_MIN,)), encode_key((KeyBound.INF_MAX,))


def act(state: ServerState, request: ComputeSplitPoints) -> Any:
    """Cut the table into pieces of about the wanted size.

    A cut falls between partition keys where it can, and names only that column then.
    """
    table = state.table(request.table_name)
    expired_before = table.expired_before_millis(state.clock.now_micros())
    points = split_points(table, request.split_bytes, request.point_limit, expired_before)
    # One location for all pieces; Java requires the repeats to add up to the number of pieces.
    location = hashlib.md5(request.table_name.encode(), usedforsecurity=False).hexdigest()
    return schema.ComputeSplitPointsBySizeResponse(
        consumed=consumed(read=len(points) + 1),
        schema=key_schema(table.definition.key),
        split_points=[key_prefix_frame(table.definition, point) for point in points],
        locations=[schema.SplitLocation(location=location, repeat=len(points) + 1)],
    )


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
        size += live.size_bytes
        last_partition_key = partition_key
    return points
