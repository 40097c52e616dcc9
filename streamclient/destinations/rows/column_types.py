"""The rules for storing a value whose type differs from the type of its column.

A column in Tablestore may have an integer in one row and a text in the next row. In other systems, a column of a table
has one type.

* A column has its declared type, or otherwise the type of its first value. Later values do not change the type.
* A value of the column's type is stored in the column.
* A value of another type is *unfit*. It is stored in the map ``_unfit`` of its row, under the column's name, as its
  type and a text. The type and the text give the exact value: 1, 1.0 and "1" stay distinct.
* If a DOUBLE column can hold an unfit integer exactly, the integer is also stored in the column, as queries expect. For
  all other unfit values the column is null.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable
from typing import Any

from streamclient.errors import CodecError
from streamclient.records import ColumnType, ColumnValue

MAX_EXACT_INTEGER = 2**53
"""The largest integer up to which a double can represent all integers exactly."""

_TYPES: dict[type, ColumnType] = {
    int: ColumnType.INTEGER,
    float: ColumnType.DOUBLE,
    bool: ColumnType.BOOLEAN,
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
}

_BOOLEANS = {"true": True, "false": False}


def type_of(value: ColumnValue) -> ColumnType:
    """Return the Tablestore type of ``value``."""
    found = _TYPES.get(type(value))
    if found is None:
        raise TypeError(f"a column must hold int, float, bool, str or bytes, not {type(value).__name__}")
    return found


def fits(value: ColumnValue, column: ColumnType) -> bool:
    """Return whether ``value`` has the type of its column. If not, it must be stored in the map ``_unfit``."""
    return type_of(value) is column


def shown(value: ColumnValue, column: ColumnType) -> ColumnValue | None:
    """Return the content of a column of type ``column`` for ``value``: the value, an equal double, or ``None``."""
    if fits(value, column):
        return value
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and column is ColumnType.DOUBLE and abs(value) <= MAX_EXACT_INTEGER:  # type: ignore[arg-type]
        return float(value)
    return None


def text_of(value: ColumnValue) -> str:
    """Convert ``value`` to a text. With the value's type, ``value_of`` converts the text back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return str(value)


_QUIET_NAN = struct.pack("<Q", 0x7FF8000000000000)


def encoded(values: Iterable[ColumnValue | None]) -> bytes:
    """Convert values to bytes for a digest. Different values give different bytes.

    Each value becomes a letter for its type, its length in bytes as decimal digits, a colon, and its bytes:

    - ``N``: null, without bytes
    - ``I``: an integer, in decimal digits
    - ``D``: a double, in 8 bytes, the lowest first; every NaN becomes the quiet NaN
    - ``T``: a Boolean, ``0`` or ``1``
    - ``S``: a text, in UTF-8
    - ``B``: bytes, unchanged.

    Unlike the result of ``repr``, these bytes do not depend on the version of Python.
    """
    return b"".join(map(_encoded, values))


def _encoded(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        raw = value.encode("utf-8", "surrogatepass")
        return b"S%d:%b" % (len(raw), raw)
    if kind is int:
        raw = b"%d" % value
        return b"I%d:%b" % (len(raw), raw)
    if kind is float:
        return b"D8:%b" % (_QUIET_NAN if math.isnan(value) else struct.pack("<d", value))
    if kind is bytes:
        return b"B%d:%b" % (len(value), value)
    if kind is bool:
        return b"T1:1" if value else b"T1:0"
    if value is None:
        return b"N0:"
    raise TypeError(f"only int, float, bool, str and bytes have a digest, not {kind.__name__}")


def value_of(type_name: str, text: str) -> ColumnValue:
    """Convert ``text``, which ``text_of`` has made, to its value; ``type_name`` is the ``ColumnType``'s value.

    Raises:
        CodecError: ``text`` is not a value of this type, or the type is unknown.
    """
    try:
        kind = ColumnType(type_name)
        if kind is ColumnType.STRING:
            return text
        if kind is ColumnType.BINARY:
            return base64.b64decode(text, validate=True)
        if kind is ColumnType.BOOLEAN:
            return _BOOLEANS[text]
        return int(text) if kind is ColumnType.INTEGER else float(text)
    except (ValueError, KeyError, binascii.Error) as error:
        raise CodecError(f"{text!r} is not a value of type {type_name!r}") from error
