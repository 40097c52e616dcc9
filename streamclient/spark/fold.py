"""Changes folded into the rows that they leave, in Spark.

The rules are the table's own: a PUT replaces the row, a DELETE removes it, an UPDATE makes it if it puts a cell. A cell
shows its newest version, not its last write; the table keeps at most ``max_versions`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from streamclient import checks
from streamclient.spark.columns import SYSTEM_NAMES
from streamclient.spark.extra import spark_functions, spark_sql
from streamclient.spark.formats import quoted
from streamclient.spark.types import BINARY_TEXT_PREFIX, type_of_spark_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVENTS = "_events"

UNFIT = "unfit"
"""The column, behind the prefix, that holds exactly what another column only shows; see ``types``."""

UNFIT_TYPE = "map<string,struct<type:string,value:string>>"

_EXISTS = (
    f"aggregate({_EVENTS}, false, (found, event) -> case event.operation when 'PUT' then true "
    "when 'DELETE' then false else found or event.puts end)"
)
"""Whether the row is there after its changes."""


def fold_changes(
    changes: DataFrame, primary_key: Sequence[str], *, prefix: str = "_", max_versions: int = 1
) -> DataFrame:
    """The rows that changes leave: keys, attributes, what those do not hold exactly, and the last change's sequence.

    Changes of one key are ordered by their sequence (epoch, time stamp, row index), which grows from parent shards to
    their children. A change that occurs twice counts once. Rows whose beginning is not among the changes show what was
    written since.

    Args:
        changes: a frame in the layout of the Spark processors.
        primary_key: names of the key columns.
        prefix: ``SparkConfig.prefix`` of that frame.
        max_versions: the table's limit of versions per column.
    """
    checks.positive.require("max_versions", max_versions)
    functions = spark_functions()
    added = {prefix + name for name in SYSTEM_NAMES}
    attributes = [one for one in changes.schema.fields if one.name not in added and one.name not in primary_key]
    unfit = quoted(prefix + UNFIT) if prefix + UNFIT in changes.columns else f"cast(map() as {UNFIT_TYPE})"
    columns = [
        _ColumnFold(one.name, one.dataType.simpleString(), f"{prefix}c{index}", unfit)
        for index, one in enumerate(attributes)
    ]
    keys = [quoted(name) for name in primary_key]
    event = functions.struct(
        functions.col(prefix + "sequence").alias("sequence"),
        functions.col(prefix + "operation").alias("operation"),
        functions.expr(f"size({prefix}versions) > 0").alias("puts"),
        *[functions.expr(column.event(prefix, max_versions)).alias(column.alias) for column in columns],
    )
    recent = _since_last_reset(changes, primary_key, prefix)
    events = recent.groupBy(*keys).agg(functions.sort_array(functions.collect_list(event)).alias(_EVENTS))
    newest = [functions.expr(column.newest(max_versions)).alias(column.alias) for column in columns]
    last = functions.expr(f"element_at({_EVENTS}, -1).sequence").alias(prefix + "sequence")
    own = [functions.col(name) for name in keys]
    folded = events.where(_EXISTS).select(*own, *newest, last)
    values = [functions.col(f"{column.alias}.value").alias(column.name) for column in columns]
    return folded.select(*own, *values, _unfit(columns).alias(prefix + UNFIT), functions.col(prefix + "sequence"))


def _unfit(columns: Sequence[_ColumnFold]) -> Column:
    """What the rows' columns show and do not hold exactly."""
    entries = [
        f"if({one.alias}.unfit is null, null, named_struct('key', {literal(one.name)}, 'value', {one.alias}.unfit))"
        for one in columns
        if one.may_be_unfit
    ]
    made = f"map_from_entries(filter(array({', '.join(entries)}), one -> one is not null))" if entries else "map()"
    return spark_functions().expr(f"cast({made} as {UNFIT_TYPE})")


def _since_last_reset(changes: DataFrame, primary_key: Sequence[str], prefix: str) -> DataFrame:
    """Without the changes before a key's last PUT or DELETE, which no longer matter; each of the others once."""
    functions = spark_functions()
    sequence = functions.col(prefix + "sequence")
    window = spark_sql().Window.partitionBy(*map(quoted, primary_key))
    resets = functions.when(functions.col(prefix + "operation") != "UPDATE", sequence)
    once = changes.dropDuplicates([*primary_key, prefix + "sequence"])
    marked = once.withColumn(_EVENTS, functions.max(resets).over(window))
    return marked.where(functions.col(_EVENTS).isNull() | (sequence >= functions.col(_EVENTS))).drop(_EVENTS)


@frozen
class _ColumnFold:
    """The expressions that fold one column.

    Text, because Spark parses it in a fraction of the time that building the same expressions call by call takes.
    """

    name: str
    kind: str
    alias: str
    unfit: str
    """The map of what columns do not hold exactly, in a change."""

    @property
    def may_be_unfit(self) -> bool:
        """Whether columns of other types may have been widened to this one."""
        return self.kind in ("string", "double")

    @property
    def _state(self) -> str:
        return f"array<struct<version:bigint,value:{self.kind},unfit:struct<type:string,value:string>>>"

    @property
    def _nothing(self) -> str:
        return f"cast(array() as {self._state})"

    def event(self, prefix: str, max_versions: int) -> str:
        """What one change does to the column: whether it wipes it, which versions go, which come."""
        name = literal(self.name)
        wiped = f"{prefix}operation <> 'UPDATE' or array_contains({prefix}deleted_columns, {name})"
        none = "cast(array() as array<bigint>)"
        gone = f"coalesce(try_element_at({prefix}deleted_versions, {name}), {none})"
        version = f"try_element_at({prefix}versions, {name})"
        exact = f"try_element_at({self.unfit}, {name})" if self.may_be_unfit else "null"
        cell = f"named_struct('version', {version}, 'value', {quoted(self.name)}, 'unfit', {exact})"
        shown = f"cast(array({cell}) as {self._state})"
        put = f"if(map_contains_key({prefix}versions, {name}), {shown}, {self._nothing})"
        if max_versions > 1:
            put = f"concat({put}, {self._older(prefix)})"
        return f"named_struct('wiped', {wiped}, 'gone', {gone}, 'put', {put})"

    def _older(self, prefix: str) -> str:
        """Versions that a change put behind the one that shows; the frame holds them as text."""
        value = f"cast(one.value as {self.kind})"
        if self.kind == "binary":
            value = "unbase64(one.value)"
        elif self.kind == "string":
            value = f"if(one.type = 'BINARY', concat('{BINARY_TEXT_PREFIX}', one.value), one.value)"
        cells = f"filter({prefix}older_versions, one -> one.column = {literal(self.name)})"
        own = type_of_spark_name(self.kind).value
        exact = f"if(one.type = '{own}', null, named_struct('type', one.type, 'value', one.value))"
        version = f"named_struct('version', one.version, 'value', {value}, 'unfit', {exact})"
        return f"cast(transform({cells}, one -> {version}) as {self._state})"

    def newest(self, max_versions: int) -> str:
        """The version that shows after all changes: a fold whose state is the versions kept, newest first."""
        own = f"event.{self.alias}"
        before = f"if({own}.wiped, {self._nothing}, kept)"
        replaced = f"exists({own}.put, other -> other.version = one.version)"
        stays = f"not array_contains({own}.gone, one.version) and not {replaced}"
        after = f"slice(sort_array(concat({own}.put, filter({before}, one -> {stays})), false), 1, {max_versions})"
        return f"get(aggregate({_EVENTS}, {self._nothing}, (kept, event) -> {after}), 0)"


def literal(text: str) -> str:
    """A text as Spark's expressions take it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
