"""Checks of the names of tables, columns and tunnels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from streamclient.server import refusals
from streamclient.server.server_limits import Limits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def text_bytes(text: str) -> int:
    """Return the number of bytes of a text in UTF-8, because the service limits names by bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _is_plain(name: str, limits: Limits) -> bool:
    """Return whether a name is short enough, and has only letters, digits and underscores.

    The first character must not be a digit.
    """
    return len(name) <= limits.name_bytes and _NAME.fullmatch(name) is not None


def check_table_name(name: str, limits: Limits) -> str:
    """Return the name if it is valid for a table, or raise ``ServiceError``."""
    if not _is_plain(name, limits):
        raise refusals.TABLE_NAME(name=name)
    return name


def check_tunnel_name(name: str, limits: Limits) -> str:
    """Return the name if it is valid for a tunnel, or raise ``ServiceError``."""
    if not _is_plain(name, limits):
        raise refusals.TUNNEL_NAME(name=name)
    return name


def check_key_name(name: str, limits: Limits) -> str:
    """Return the name if it is valid for a key column, or raise ``ServiceError``."""
    if not _is_plain(name, limits):
        raise refusals.COLUMN_NAME(name=name)
    return name


def check_attribute_name(name: str, limits: Limits) -> str:
    """Return the name if it is valid for an attribute column, or raise ``ServiceError``.

    A valid name is any text that is not empty, does not begin with ``#``, and is short enough.
    """
    if not name or name.startswith("#") or text_bytes(name) > limits.name_bytes:
        raise refusals.COLUMN_NAME(name=name)
    return name


def check_requested_columns(names: Iterable[str], limits: Limits) -> frozenset[str]:
    """Return the names in a request's ``columns_to_get``, or raise ``ServiceError`` if a name is invalid."""
    given = list(names)
    if len(given) > limits.requested_columns:
        raise refusals.REQUESTED_COLUMNS(limit=limits.requested_columns, count=len(given))
    return frozenset(check_attribute_name(name, limits) for name in given)
