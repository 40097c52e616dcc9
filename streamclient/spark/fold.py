"""Changes folded into the rows that they leave, in Spark.

The rules are the table's own: a PUT replaces the row, a DELETE removes it, an UPDATE makes it if it puts a cell. A cell
shows its newest version, not its last write; the table keeps at most ``max_versions`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamclient.errors import ConfigurationError
from streamclient.spark.columns import SYSTEM_NAMES
from streamclient.spark.extra import spark_functions, spark_sql
from streamclient.spark.formats import quoted
from streamclient.spark.types import BINARY_TEXT_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVENTS = "_events"


def fold_changes(
    changes: DataFrame, primary_key: Sequence[str], *, prefix: str = "_", max_versions: int = 1
) -> DataFrame:
    """The rows that changes leave: key columns, attributes, and the sequence of the last change.

    Changes of one key are ordered by their sequence (epoch, time stamp, row index), which grows from parent shards to
    their children. A change that occurs twice counts once. Rows whose beginning is not among the changes show what was
    written since.

    Args:
        changes: a frame in the layout of the Spark processors.
        primary_key: names of the key columns.
        prefix: ``SparkConfig.prefix`` of that frame.
        max_versions: the table's limit of versions per column.
    """
    if max_versions < 1:
        raise ConfigurationError(f"max_versions must be at least 1, not {max_versions}")
    functions = spark_functions()
    added = {prefix + name for name in SYSTEM_NAMES}
    attributes = [one for one in changes.schema.fields if one.name not in added and one.name not in primary_key]
    keys = [quoted(name) for name in primary_key]
    recent = _since_last_reset(changes, keys, prefix)
    event = _event([one.name for one in attributes], prefix)
    events = recent.groupBy(*keys).agg(functions.sort_array(functions.collect_list(event)).alias(_EVENTS))
    rows = [_value(one, index, max_versions).alias(one.name) for index, one in enumerate(attributes)]
    last = functions.element_at(functions.col(_EVENTS), -1)["sequence"].alias(prefix + "sequence")
    return events.where(_exists()).select(*[functions.col(name) for name in keys], *rows, last)


def _since_last_reset(changes: DataFrame, keys: Sequence[str], prefix: str) -> DataFrame:
    """Without the changes before a key's last PUT or DELETE, which no longer matter; each of the others once."""
    functions = spark_functions()
    sequence = functions.col(prefix + "sequence")
    resets = functions.when(functions.col(prefix + "operation") != "UPDATE", sequence)
    window = spark_sql().Window.partitionBy(*keys)
    last_reset = functions.max(resets).over(window)
    marked = changes.dropDuplicates([*(key[1:-1].replace("``", "`") for key in keys), prefix + "sequence"])
    marked = marked.withColumn(_EVENTS, last_reset)
    return marked.where(functions.col(_EVENTS).isNull() | (sequence >= functions.col(_EVENTS))).drop(_EVENTS)


def _event(attributes: Sequence[str], prefix: str) -> Column:
    """One change as a structure; its first field is the sequence, by which structures sort."""
    functions = spark_functions()
    names = ("sequence", "operation", "deleted_columns", "older_versions")
    plain = [functions.col(prefix + name).alias(name) for name in names]
    # Maps cannot be compared, so sorting takes their entries.
    maps = [functions.map_entries(prefix + name).alias(name) for name in ("versions", "deleted_versions")]
    values = [functions.col(quoted(name)).alias(f"c{index}") for index, name in enumerate(attributes)]
    return functions.struct(*plain, *maps, *values)


def _exists() -> Column:
    functions = spark_functions()

    def step(exists: Column, event: Column) -> Column:
        puts = functions.size(event["versions"]) > 0
        return (
            functions.when(event["operation"] == "PUT", functions.lit(True))
            .when(event["operation"] == "DELETE", functions.lit(False))
            .otherwise(exists | puts)
        )

    return functions.aggregate(_EVENTS, functions.lit(False), step)


def _value(attribute: Any, index: int, max_versions: int) -> Column:
    """The newest version of one column: a fold over the changes, whose state is the versions kept, newest first."""
    functions = spark_functions()
    name, kind = attribute.name, attribute.dataType.simpleString()
    state = f"array<struct<version:bigint,value:{kind}>>"

    def step(kept: Column, event: Column) -> Column:
        resets = (event["operation"] != "UPDATE") | functions.array_contains(event["deleted_columns"], name)
        kept = functions.when(resets, functions.array().cast(state)).otherwise(kept)
        gone = _entry(event["deleted_versions"], name)
        kept = functions.filter(
            kept, lambda one: ~functions.coalesce(functions.array_contains(gone, one["version"]), functions.lit(False))
        )
        put = _put(event, name, index, kind, max_versions).cast(state)
        kept = functions.filter(
            kept, lambda one: ~functions.exists(put, lambda other: other["version"] == one["version"])
        )
        return functions.slice(functions.sort_array(functions.concat(put, kept), False), 1, max_versions)

    versions = functions.aggregate(_EVENTS, functions.array().cast(state), step)
    return functions.get(versions, 0)["value"]


def _entry(entries: Column, name: str) -> Column:
    """The value of a map, given as its entries; null if the map has no such key."""
    functions = spark_functions()
    return functions.get(functions.filter(entries, lambda one: one["key"] == name), 0)["value"]


def _put(event: Column, name: str, index: int, kind: str, max_versions: int) -> Column:
    """The versions of one column that a change put: none, one, or several if the table keeps several."""
    functions = spark_functions()
    version = _entry(event["versions"], name)
    shown = functions.struct(version.alias("version"), event[f"c{index}"].alias("value"))
    put = functions.when(version.isNull(), functions.array()).otherwise(functions.array(shown))
    if max_versions == 1:
        return put
    older = functions.filter(event["older_versions"], lambda one: one["column"] == name)
    parsed = functions.transform(
        older, lambda one: functions.struct(one["version"].alias("version"), _parsed(one, kind).alias("value"))
    )
    return functions.concat(put, parsed)


def _parsed(cell: Column, kind: str) -> Column:
    """Value of an older version, which the frame holds as text."""
    functions = spark_functions()
    if kind == "binary":
        return functions.unbase64(cell["value"])
    if kind == "string":
        marked = functions.concat(functions.lit(BINARY_TEXT_PREFIX), cell["value"])
        return functions.when(cell["type"] == "BINARY", marked).otherwise(cell["value"])
    return cell["value"].cast(kind)
