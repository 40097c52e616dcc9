"""Rules for names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from streamclient.server.errors import invalid
from streamclient.server.limits import Limits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_name(name: str, limits: Limits) -> bool:
    """Letters, digits and underscores, not starting with a digit, up to the limit in bytes."""
    return len(name) <= limits.name_bytes and _NAME.fullmatch(name) is not None


def check_table_name(name: str, limits: Limits) -> str:
    """The name, if a table may have it."""
    if not is_name(name, limits):
        raise invalid(f"Invalid table name: '{name}'.")
    return name


def check_column_name(name: str, limits: Limits) -> str:
    """The name, if a column may have it."""
    if not is_name(name, limits):
        raise invalid(f"Invalid column name: '{name}'.")
    return name


def check_requested_columns(names: Iterable[str], limits: Limits) -> frozenset[str]:
    """The names of ``columns_to_get``."""
    given = list(names)
    if len(given) > limits.requested_columns:
        raise invalid(
            "The number of columns from the request exceeds the limit, limit count: "
            f"{limits.requested_columns}, column count: {len(given)}."
        )
    return frozenset(check_column_name(name, limits) for name in given)
