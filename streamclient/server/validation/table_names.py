"""Rules for the names of tables, columns and tunnels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from streamclient.server import refusals
from streamclient.server.server_limits import Limits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def text_bytes(text: str) -> int:
    """Return the length of a text in UTF-8, because the service limits this length."""
    return len(text) if text.isascii() else len(text.encode())


def _is_plain(name: str, limits: Limits) -> bool:
    """Return whether a name has only letters, digits and underscores, begins with no digit, and is short enough."""
    return len(name) <= limits.name_bytes and _NAME.fullmatch(name) is not None


def check_table_name(name: str, limits: Limits) -> str:
    """Return the name if a table may have it; refuse it otherwise."""
    if not _is_plain(name, limits):
        raise refusals.TABLE_NAME(name=name)
    return name


def check_tunnel_name(name: str, limits: Limits) -> str:
    """Return the name if a tunnel may have it; refuse it otherwise."""
    if not _is_plain(name, limits):
        raise refusals.TUNNEL_NAME(name=name)
    return name


def check_key_name(name: str, limits: Limits) -> str:
    """Return the name if a key column may have it; refuse it otherwise."""
    if not _is_plain(name, limits):
        raise refusals.COLUMN_NAME(name=name)
    return name


def check_attribute_name(name: str, limits: Limits) -> str:
    """Return the name if an attribute column may have it: any text that does not begin with ``#``."""
    if not name or name.startswith("#") or text_bytes(name) > limits.name_bytes:
        raise refusals.COLUMN_NAME(name=name)
    return name


def check_requested_columns(names: Iterable[str], limits: Limits) -> frozenset[str]:
    """Return the names of ``columns_to_get``."""
    given = list(names)
    if len(given) > limits.requested_columns:
        raise refusals.REQUESTED_COLUMNS(limit=limits.requested_columns, count=len(given))
    return frozenset(check_attribute_name(name, limits) for name in given)
