"""Rules of BatchGetRow."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.limits import Limits
from streamclient.server.reads import Selection
from streamclient.server.validation.frames import Key, read_key
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.row_reads import read_selection


@frozen
class TableKeys:
    """The keys to read of one table."""

    table_name: str
    keys: tuple[Key, ...]
    selection: Selection


def validate(request: Any, limits: Limits) -> tuple[TableKeys, ...]:
    """The keys to read, in the request's order; each table once."""
    if not request.tables:
        raise invalid("No row specified in the request of BatchGetRow.")
    names = set()
    for table in request.tables:
        name = check_table_name(table.table_name, limits)
        if name in names:
            raise invalid(f"Duplicated table name: '{name}'.")
        if not table.primary_key:
            raise invalid(f"No row is specified for table: '{name}'.")
        names.add(name)
    count = sum(len(table.primary_key) for table in request.tables)
    if count > limits.batch_get_rows:
        raise invalid(f"Rows count exceeds the upper limit: {limits.batch_get_rows}.")
    return tuple(_table(table, limits) for table in request.tables)


def _table(table: Any, limits: Limits) -> TableKeys:
    keys = tuple(read_key(data, limits) for data in table.primary_key)
    return TableKeys(table.table_name, keys, read_selection(table, limits))
