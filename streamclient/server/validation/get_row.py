"""Rules of GetRow."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import unsupported
from streamclient.server.limits import Limits
from streamclient.server.reads import Selection
from streamclient.server.validation.frames import Key, read_key
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.row_reads import read_selection


@frozen
class GetRow:
    """A validated request."""

    table_name: str
    key: Key
    selection: Selection


def validate(request: Any, limits: Limits) -> GetRow:
    """The key to read, and what of its row."""
    if request.HasField("transaction_id"):
        raise unsupported("local transactions (transaction_id)")
    table_name = check_table_name(request.table_name, limits)
    return GetRow(table_name, read_key(request.primary_key, limits), read_selection(request, limits))
