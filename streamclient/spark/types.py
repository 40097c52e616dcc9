"""Column types and what holds what. Pure.

A column has one type in a frame. Tablestore lets a column hold integers in one row and text in the next, so types meet;
``wider`` is the rule for what they become:

* equal types stay as they are;
* INTEGER and DOUBLE become DOUBLE while every integer is within 2**53, which doubles hold exactly, else STRING;
* anything else becomes STRING, as written by ``text_of``.

What the column then shows does not say which value it was: 1 and "1" look alike, so do bytes and the text that stands
for them. So each value whose type is not its column's is kept exactly as well, by ``unfit_cell``: its type, and a text
from which ``value_of`` makes the value again. Both stand in a map beside the columns, under the column's name.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from streamclient.errors import CodecError, ConfigurationError
from streamclient.model import ColumnType
from streamclient.records import ColumnValue

MAX_EXACT_INTEGER = 2**53
"""Doubles hold each integer up to here, and not each one beyond."""

BINARY_TEXT_PREFIX = "base64:"
"""Marks bytes in a column that became text, as their letters alone could not be told from text."""

_TYPES: dict[type, ColumnType] = {
    int: ColumnType.INTEGER,
    float: ColumnType.DOUBLE,
    bool: ColumnType.BOOLEAN,
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
}

_SPARK_NAMES = {
    "bigint": ColumnType.INTEGER,
    "double": ColumnType.DOUBLE,
    "boolean": ColumnType.BOOLEAN,
    "string": ColumnType.STRING,
    "binary": ColumnType.BINARY,
}


def type_of_value(value: ColumnValue | None) -> ColumnType:
    """Type of a stored value."""
    return column_type(type(value))


def column_type(python_type: type) -> ColumnType:
    """Type of columns that hold values of a Python type."""
    found = _TYPES.get(python_type)
    if found is None:
        raise TypeError(f"a column holds int, float, bool, str or bytes, not {python_type.__name__}")
    return found


def wider(left: ColumnType, right: ColumnType, *, has_wide_integers: bool) -> ColumnType:
    """The narrowest type that holds both without loss."""
    if left is right:
        return left
    if {left, right} == {ColumnType.INTEGER, ColumnType.DOUBLE} and not has_wide_integers:
        return ColumnType.DOUBLE
    return ColumnType.STRING


def fits(value: ColumnValue | None, expected: ColumnType) -> bool:
    """Whether a column of this type holds the value as it is. A small integer fits a DOUBLE column exactly."""
    given = type_of_value(value)
    if given is expected:
        return True
    return expected is ColumnType.DOUBLE and isinstance(value, int) and given is ColumnType.INTEGER and _is_exact(value)


def _is_exact(value: int) -> bool:
    return -MAX_EXACT_INTEGER <= value <= MAX_EXACT_INTEGER


def text_of(value: ColumnValue) -> str:
    """A value in a STRING column; equal to what Spark's cast to string gives, so that old and new files agree."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return BINARY_TEXT_PREFIX + base64.b64encode(value).decode("ascii")
    return _double_text(value) if isinstance(value, float) else str(value)


def unfit_cell(value: ColumnValue, column: ColumnType) -> tuple[str, str] | None:
    """Type and exact text of a value whose type is not its column's; ``None`` if the column alone says all."""
    given = type_of_value(value)
    return None if given is column else (given.value, exact_text(value))


def exact_text(value: ColumnValue) -> str:
    """A value as text whose type stands beside it: bytes as base64, others as in a STRING column."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else text_of(value)


def value_of(type_name: str, text: str) -> ColumnValue:
    """The value that ``exact_text`` wrote; equal to it, and of its type.

    Raises:
        CodecError: no value of that type is written so.
    """
    try:
        return _PARSERS[ColumnType(type_name)](text)
    except (ValueError, KeyError) as error:
        raise CodecError(f"{text!r} is no value of type {type_name!r}") from error


_PARSERS: dict[ColumnType, Callable[[str], ColumnValue]] = {
    ColumnType.INTEGER: int,
    ColumnType.DOUBLE: float,
    ColumnType.BOOLEAN: {"true": True, "false": False}.__getitem__,
    ColumnType.STRING: str,
    ColumnType.BINARY: partial(base64.b64decode, validate=True),
}


def _double_text(value: float) -> str:
    """As ``java.lang.Double.toString`` writes it: plain from 0.001 up to 10 million, else with an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    power = int(exponent or "0") + len(whole) - 1 - leading_zeros
    return f"{sign}{digits[0]}.{digits[1:].rstrip('0') or '0'}E{power}"


def schema_types(schema: Any) -> dict[str, ColumnType]:
    """Columns of a schema that a user gave: a mapping of name to ``ColumnType``, or a ``pyspark`` ``StructType``.

    Raises:
        ConfigurationError: a type is none of the five that Tablestore stores.
    """
    if isinstance(schema, Mapping):
        return {str(name): _given_type(str(name), given) for name, given in schema.items()}
    fields = getattr(schema, "fields", None)
    if fields is None:
        raise ConfigurationError(f"schema must be a StructType or a mapping of name to ColumnType, not {schema!r}")
    return {one.name: _spark_type(one.name, one.dataType.simpleString()) for one in fields}


def _given_type(name: str, given: Any) -> ColumnType:
    if not isinstance(given, ColumnType):
        raise ConfigurationError(f"schema column {name!r} must have a ColumnType, not {given!r}")
    return given


def _spark_type(name: str, given: str) -> ColumnType:
    found = _SPARK_NAMES.get(given)
    if found is None:
        known = ", ".join(_SPARK_NAMES)
        raise ConfigurationError(
            f"schema column {name!r} has type {given}; Tablestore stores {known}: "
            "name one of these, and cast in the sink"
        )
    return found


def type_of_spark_name(name: str) -> ColumnType:
    """Type of a column whose Spark SQL type has this name."""
    return _SPARK_NAMES[name]


def spark_type_name(kind: ColumnType) -> str:
    """Name of the Spark SQL type that holds the column."""
    return next(name for name, known in _SPARK_NAMES.items() if known is kind)
