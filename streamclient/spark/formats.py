"""How the formats that Spark writes store a frame without loss.

Parquet and ORC hold every column as it is. JSON needs time stamps with microseconds. CSV holds flat text only: lists,
maps and structures become JSON, bytes base64, and text that could be taken for the mark of a null is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.errors import ConfigurationError
from streamclient.spark.extra import spark_functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_TIMESTAMP = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}

_CSV_NULL = "\\N"

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": _TIMESTAMP,
    "csv": {
        **_TIMESTAMP,
        "header": "true",
        "nullValue": _CSV_NULL,
        "emptyValue": "",
        "quoteAll": "true",
        "escape": '"',
        "multiLine": "true",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}

FORMATS = tuple(_OPTIONS)
"""Formats that ``FileSink`` writes."""


@frozen
class Storage:
    """A format and the options with which its files are written and read."""

    name: str
    options: dict[str, str]

    @classmethod
    def make(cls, name: str, options: Mapping[str, str] | None = None) -> Storage:
        """The format with its options, and the user's on top.

        Raises:
            ConfigurationError: Spark does not write that format itself.
        """
        found = _OPTIONS.get(name) if isinstance(name, str) else None
        if found is None:
            raise ConfigurationError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
        return cls(name, {**found, **(options or {})})


def quoted(name: str) -> str:
    """A column name as Spark's expressions take it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def encode(frame: DataFrame, format_name: str) -> DataFrame:
    """The frame as the format can hold it.

    Raises:
        ConfigurationError: the format cannot hold it; without this, Spark would write nulls.
    """
    bad = [name for name in frame.columns if "`" in name] if format_name == "orc" else []
    if bad:
        raise ConfigurationError(f"Spark's ORC writer loses columns with a backtick in their name: {bad}; use parquet")
    if format_name != "csv":
        return frame
    return frame.select([_encoded(field) for field in frame.schema.fields])


def stored_schema(schema: StructType, format_name: str) -> StructType:
    """Schema of the stored files of a frame."""
    if format_name != "csv":
        return schema
    flat = type(schema)()
    for field in schema.fields:
        flat.add(field.name, "string" if _is_text_in_csv(field) else field.dataType, True)
    return flat


def decode(frame: DataFrame, schema: StructType, format_name: str) -> DataFrame:
    """The frame as it was before ``encode``."""
    if format_name != "csv":
        return frame
    return frame.select([_decoded(field) for field in schema.fields])


def _kind(field: Any) -> str:
    return str(field.dataType.typeName())


def _is_text_in_csv(field: Any) -> bool:
    return _kind(field) in ("binary", "array", "map", "struct", "string")


def _encoded(field: Any) -> Column:
    functions = spark_functions()
    column = functions.col(quoted(field.name))
    if _kind(field) == "binary":
        return functions.base64(column).alias(field.name)
    if _kind(field) in ("array", "map", "struct"):
        return functions.to_json(column).alias(field.name)
    if _kind(field) == "string":
        marked = functions.concat(functions.lit("\\"), column)
        return functions.when(column.startswith("\\"), marked).otherwise(column).alias(field.name)
    return column


def _decoded(field: Any) -> Column:
    functions = spark_functions()
    column = functions.col(quoted(field.name))
    if _kind(field) == "binary":
        return functions.unbase64(column).alias(field.name)
    if _kind(field) in ("array", "map", "struct"):
        return functions.from_json(column, field.dataType).alias(field.name)
    if _kind(field) == "string":
        unmarked = functions.expr(f"substr({quoted(field.name)}, 2)")
        return functions.when(column.startswith("\\"), unmarked).otherwise(column).alias(field.name)
    return column
