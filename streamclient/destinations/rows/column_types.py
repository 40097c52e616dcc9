"""The policy for a value whose type is not that of its column. Pure; all code that stores rows uses it.

A Tablestore column may hold an integer in one row and text in the next; a column of a table elsewhere has one type.

* A column keeps its declared type, or else the type of its first value. No value changes it.
* A value of that type is stored in its column.
* Any other value is *unfit*. It is stored in a map next to the columns, under the column's name, as its type and a
  text. From these an equal value can be read: bytes, text, 1, 1.0 and "1" stay distinct.
* If a DOUBLE column can hold an unfit integer exactly, the column shows it as well, as queries expect. No other value
  is converted: the column is null.
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
"""The largest integer up to which a double can represent every integer exactly."""

_TYPES: dict[type, ColumnType] = {
    int: ColumnType.INTEGER,
    float: ColumnType.DOUBLE,
    bool: ColumnType.BOOLEAN,
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
}

_BOOLEANS = {"true": True, "false": False}


def type_of(value: ColumnValue) -> ColumnType:
    """Return the type of a stored value."""
    found = _TYPES.get(type(value))
    if found is None:
        raise TypeError(f"a column holds int, float, bool, str or bytes, not {type(value).__name__}")
    return found


def fits(value: ColumnValue, column: ColumnType) -> bool:
    """Return whether the column alone keeps the value and its type."""
    return type_of(value) is column


def shown(value: ColumnValue, column: ColumnType) -> ColumnValue | None:
    """Return the content of the column itself for a value: the value, an equal double, or ``None``."""
    if fits(value, column):
        return value
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and column is ColumnType.DOUBLE and abs(value) <= MAX_EXACT_INTEGER:  # type: ignore[arg-type]
        return float(value)
    return None


def text_of(value: ColumnValue) -> str:
    """Return a text that, together with the value's type, identifies the value exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return str(value)


_QUIET_NAN = struct.pack("<Q", 0x7FF8000000000000)


def encoded(values: Iterable[ColumnValue | None]) -> bytes:
    """Return bytes for a digest.

    The values could be read back from the bytes, so different values give different bytes. For each value a letter, its
    length in decimal digits, a colon, and its bytes: ``N`` null, without bytes; ``I`` an integer, in decimal digits;
    ``D`` a double, 8 bytes, the lowest first, every NaN the quiet one; ``T`` a truth value, ``0`` or ``1``; ``S`` a
    text in UTF-8; ``B`` bytes. The bytes do not depend on the interpreter. The ``repr`` of a text does: a newer Python
    knows more printable letters.
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
    """Read the text that ``text_of`` wrote for a value of the named ``ColumnType``.

    Raises:
        CodecError: the text is not of that type.
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
