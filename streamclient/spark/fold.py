"""Changes folded into the rows that they leave, or into all states that rows have had, in Spark.

The rules are the table's own: a PUT replaces the row, a DELETE removes it, an UPDATE makes it if it puts a cell. A cell
shows its newest version, not its last write; the table keeps at most ``max_versions`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from streamclient import checks
from streamclient.destinations.changes import (
    DELETED_COLUMNS,
    DELETED_VERSIONS,
    EPOCH,
    OLDER_VERSIONS,
    OPERATION,
    PASSING,
    RESERVED,
    ROW_INDEX,
    TIMESTAMP,
    UNFIT,
    VALID_FROM,
    VALID_TO,
    VALIDITY,
    VERSIONS,
)
from streamclient.destinations.names import original_name
from streamclient.destinations.types import MAX_EXACT_INTEGER
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnType
from streamclient.spark.arrow import type_of_spark_name
from streamclient.spark.extra import spark_functions, spark_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEQUENCE, _EVENTS, _NUMBER = PASSING[2:]
_PLACE = (EPOCH, TIMESTAMP, ROW_INDEX)

UNFIT_TYPE = "map<string,struct<type:string,value:string>>"

_EXISTS = (
    f"aggregate({_EVENTS}, false, (found, event) -> case event.operation when 'PUT' then true "
    "when 'DELETE' then false else found or event.puts end)"
)
"""Whether the row is there after its changes."""


def fold_changes(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """The rows that changes leave: keys, attributes, what those do not hold exactly, and the place of the last change.

    Changes of one key are ordered by epoch, time stamp and row index, which grow from parent shards to their children.
    A change that occurs twice counts once. Rows whose beginning is not among the changes show what was written since.

    Args:
        changes: a frame in the layout of ``destinations.change_rows``: of a sink, or of a table that changes went into.
        primary_key: names of the key columns.
        max_versions: the table's limit of versions per column.

    Raises:
        ConfigurationError: there is no key, or the changes have no such column.
    """
    _check(changes, primary_key, max_versions)
    once = _since_last_reset(_once(changes, primary_key), primary_key)
    return _folded(_events(once, primary_key, max_versions), once, primary_key, max_versions)


def row_history(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """Every state that rows have had, and from when to when: a slowly changing table, of type 2.

    The columns are those of ``fold_changes``, with the change that led to the state, then ``_valid_from``, the time of
    that change, and ``_valid_to``, the time of the row's next one; null for the row as it is now. A row that was
    removed has no state until it is made again.

    Args:
        changes: as ``fold_changes`` takes them, from the beginning. What a row's changes cost grows with the square of
            their number, as each state is folded by itself.
        primary_key: names of the key columns.
        max_versions: the table's limit of versions per column.

    Raises:
        ConfigurationError: as ``fold_changes``.
    """
    _check(changes, primary_key, max_versions)
    once = _once(changes, primary_key)
    numbered = _events(once, primary_key, max_versions).selectExpr("*", f"posexplode({_EVENTS}) as ({_NUMBER}, _event)")
    keys = [quoted(name) for name in primary_key]
    events = numbered.selectExpr(
        *keys,
        f"slice({_EVENTS}, 1, {_NUMBER} + 1) as {_EVENTS}",
        f"_event.sequence.{TIMESTAMP} as {VALID_FROM}",
        f"get({_EVENTS}, {_NUMBER} + 1).sequence.{TIMESTAMP} as {VALID_TO}",
    )
    return _folded(events, once, primary_key, max_versions, VALIDITY)


_key = checks.Check(
    "a sequence of one or more names of key columns", lambda value: checks.names.fits(value) and len(value) > 0
)
_versions = checks.whole(1, 2**31 - 1)
"""What Spark takes as the length of an array."""


def _check(changes: DataFrame, primary_key: Sequence[str], max_versions: int) -> None:
    """Without a key all rows would be one, and a key column by another name would pass for an attribute."""
    _versions.require("max_versions", max_versions)
    _key.require("primary_key", primary_key)
    missing = [name for name in primary_key if name not in changes.columns]
    if missing:
        raise ConfigurationError(
            f"primary_key names {', '.join(map(repr, missing))}, and the changes have the columns "
            f"{checks.shown(changes.columns)}: give the names as the frame has them"
        )


def _folds(changes: DataFrame, primary_key: Sequence[str]) -> list[_ColumnFold]:
    attributes = [one for one in changes.schema.fields if one.name not in RESERVED and one.name not in primary_key]
    return [
        _ColumnFold(one.name, one.dataType.simpleString(), f"{_EVENTS}_{index}") for index, one in enumerate(attributes)
    ]


def _once(changes: DataFrame, primary_key: Sequence[str]) -> DataFrame:
    """Each change once, with its place as one value."""
    ordered = changes.withColumn(_SEQUENCE, spark_functions().struct(*_PLACE))
    return ordered.dropDuplicates([*primary_key, _SEQUENCE])


def _events(once: DataFrame, primary_key: Sequence[str], max_versions: int) -> DataFrame:
    """Of each key, what its changes do, in their order."""
    functions = spark_functions()
    event = functions.struct(
        functions.col(_SEQUENCE).alias("sequence"),
        functions.col(OPERATION).alias("operation"),
        functions.expr(f"size({VERSIONS}) > 0").alias("puts"),
        *[
            functions.expr(one.event(max_versions)).alias(one.alias)
            for one in _folds(once.drop(_SEQUENCE), primary_key)
        ],
    )
    grouped = once.groupBy(*[quoted(name) for name in primary_key])
    return grouped.agg(functions.sort_array(functions.collect_list(event)).alias(_EVENTS))


def _folded(
    events: DataFrame, once: DataFrame, primary_key: Sequence[str], max_versions: int, further: Sequence[str] = ()
) -> DataFrame:
    """The rows that events leave, with further columns of theirs behind."""
    functions, columns = spark_functions(), _folds(once.drop(_SEQUENCE), primary_key)
    keys = [quoted(name) for name in primary_key]
    newest = [functions.expr(column.newest(max_versions)).alias(column.alias) for column in columns]
    last = functions.expr(f"element_at({_EVENTS}, -1).sequence").alias(_SEQUENCE)
    folded = events.where(_EXISTS).select(*keys, *newest, last, *further)
    values = [functions.col(f"{column.alias}.value").alias(column.name) for column in columns]
    places = [functions.col(f"{_SEQUENCE}.{name}").alias(name) for name in _PLACE]
    return folded.select(*keys, *values, _unfit(columns).alias(UNFIT), *places, *further)


def quoted(name: str) -> str:
    """A name as Spark takes it, whatever letters it has."""
    return f"`{name.replace('`', '``')}`"


def _unfit(columns: Sequence[_ColumnFold]) -> Column:
    """What the rows' columns do not hold exactly."""
    entries = [
        f"if({one.alias}.unfit is null, null, named_struct('key', {one.source_name}, 'value', {one.alias}.unfit))"
        for one in columns
    ]
    made = f"map_from_entries(filter(array({', '.join(entries)}), one -> one is not null))" if entries else "map()"
    return spark_functions().expr(f"cast({made} as {UNFIT_TYPE})")


def _since_last_reset(changes: DataFrame, primary_key: Sequence[str]) -> DataFrame:
    """Without the changes before a key's last PUT or DELETE, which no longer matter."""
    functions = spark_functions()
    sequence = functions.col(_SEQUENCE)
    window = spark_sql().Window.partitionBy(*map(quoted, primary_key))
    resets = functions.when(functions.col(OPERATION) != "UPDATE", sequence)
    marked = changes.withColumn(_EVENTS, functions.max(resets).over(window))
    return marked.where(functions.col(_EVENTS).isNull() | (sequence >= functions.col(_EVENTS))).drop(_EVENTS)


@frozen
class _ColumnFold:
    """The expressions that fold one column.

    Text, because Spark parses it in a fraction of the time that building the same expressions call by call takes.
    """

    name: str
    kind: str
    alias: str

    @property
    def source_name(self) -> str:
        """Its name in the source, by which the maps of a change call it."""
        return literal(original_name(self.name))

    @property
    def _state(self) -> str:
        return f"array<struct<version:bigint,value:{self.kind},unfit:struct<type:string,value:string>>>"

    @property
    def _nothing(self) -> str:
        return f"cast(array() as {self._state})"

    def event(self, max_versions: int) -> str:
        """What one change does to the column: whether it wipes it, which versions go, which come."""
        name = self.source_name
        wiped = f"{OPERATION} <> 'UPDATE' or array_contains({DELETED_COLUMNS}, {name})"
        none = "cast(array() as array<bigint>)"
        gone = f"coalesce(try_element_at({DELETED_VERSIONS}, {name}), {none})"
        version, exact = (f"try_element_at({one}, {name})" for one in (VERSIONS, UNFIT))
        cell = f"named_struct('version', {version}, 'value', {quoted(self.name)}, 'unfit', {exact})"
        shown = f"cast(array({cell}) as {self._state})"
        put = f"if(map_contains_key({VERSIONS}, {name}), {shown}, {self._nothing})"
        if max_versions > 1:
            put = f"concat({put}, {self._older()})"
        return f"named_struct('wiped', {wiped}, 'gone', {gone}, 'put', {put})"

    def _older(self) -> str:
        """Versions that a change put behind the one that shows; the frame holds them as text."""
        own = type_of_spark_name(self.kind)
        value = "unbase64(one.value)" if own is ColumnType.BINARY else f"cast(one.value as {self.kind})"
        shown = f"if(one.type = '{own.value}', {value}, null)"
        if own is ColumnType.DOUBLE:
            is_exact = f"one.type = 'INTEGER' and abs(cast(one.value as decimal(20))) <= {MAX_EXACT_INTEGER}"
            shown = f"if(one.type = '{own.value}' or ({is_exact}), {value}, null)"
        exact = f"if(one.type = '{own.value}', null, named_struct('type', one.type, 'value', one.value))"
        cells = f"filter({OLDER_VERSIONS}, one -> one.column = {self.source_name})"
        version = f"named_struct('version', one.version, 'value', {shown}, 'unfit', {exact})"
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
