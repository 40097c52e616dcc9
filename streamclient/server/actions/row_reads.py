"""What GetRow and BatchGetRow have in common."""

from __future__ import annotations

from typing import cast

from streamclient.records import KeyValue
from streamclient.server.capacity import units
from streamclient.server.keys import encode_key
from streamclient.server.reads import Selection, read_row
from streamclient.server.rows import alive
from streamclient.server.tables import Table, check_key
from streamclient.server.validation.frames import Key
from streamclient.wire.plainbuffer import HEADER


def read_one(table: Table, key: Key, selection: Selection, now_micros: int) -> tuple[bytes, int]:
    """The selected part of a row as a PlainBuffer frame, empty for none, and the read capacity it cost."""
    check_key(table.definition, key)
    encoded = encode_key(cast(KeyValue, value) for _, value in key)
    row = alive(table.rows.get(encoded), table.key_names, table.expired_before_millis(now_micros))
    selected = read_row(table, row, selection)
    return (b"", 1) if selected is None else (HEADER + selected.body, units(selected.size_bytes))
