"""Reading back what ``FileSink`` wrote: all changes, or the rows that they leave."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from streamclient.model import ColumnType
from streamclient.spark.catalog import Directory, committed
from streamclient.spark.context import FrameColumn
from streamclient.spark.extra import require_spark, spark_functions
from streamclient.spark.files import LakeFiles
from streamclient.spark.fold import UNFIT, UNFIT_TYPE, fold_changes, literal
from streamclient.spark.formats import decode, quoted, stored_schema
from streamclient.spark.manifest import Manifest
from streamclient.spark.types import BINARY_TEXT_PREFIX, spark_type_name, wider

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_changes(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """All committed changes of a lake, one row each, in no particular order.

    Columns that appeared later are null in earlier rows; a column that changed its type has the type that holds all
    its values (INTEGER, then DOUBLE if exact, then STRING). Order one key's changes by ``_sequence``.

    The frame is a view of the directories present now. A worker may replace its last, unchecked directory meanwhile;
    then reading fails with a missing file, and reading again helps.

    Raises:
        StreamClientException: there is no committed batch at the path.
    """
    return read_directories(spark, _directories(spark, path))


def current_rows(spark: SparkSession, path: str | os.PathLike[str], *, max_versions: int = 1) -> DataFrame:
    """The rows that the lake's changes leave: key columns, attributes, and ``_sequence`` of the last change.

    Equals the table if the lake holds its changes from the beginning. See ``fold_changes`` for the rules.
    """
    directories = _directories(spark, path)
    changes = read_directories(spark, directories)
    first = directories[0][1]
    return fold_changes(changes, first.primary_key, prefix=first.prefix, max_versions=max_versions)


def manifests(spark: SparkSession, path: str | os.PathLike[str]) -> tuple[Manifest, ...]:
    """What each committed directory of a lake holds, by path."""
    return tuple(manifest for _, manifest in _directories(spark, path))


def _directories(spark: SparkSession, path: str | os.PathLike[str]) -> list[Directory]:
    require_spark()
    root = os.fspath(path).rstrip("/")
    return committed(LakeFiles.of(spark, root), root)


def read_directories(spark: SparkSession, directories: Sequence[Directory]) -> DataFrame:
    """The changes in some committed directories."""
    columns = merged_columns([manifest.columns for _, manifest in directories])
    groups: dict[tuple[str, str, str], list[Directory]] = {}
    for path, manifest in directories:
        options = json.dumps(manifest.options, sort_keys=True)
        groups.setdefault((manifest.format, options, manifest.schema), []).append((path, manifest))
    frames = [_read_group(spark, group, columns) for group in groups.values()]
    changes = frames[0]
    for frame in frames[1:]:
        changes = changes.unionByName(frame)
    return changes


def merged_columns(schemas: Sequence[Sequence[FrameColumn]]) -> tuple[FrameColumn, ...]:
    """Columns that hold those of all schemas: keys first, then attributes by name."""
    merged: dict[str, FrameColumn] = {}
    for column in (column for schema in schemas for column in schema):
        known = merged.setdefault(column.name, column)
        merged[column.name] = evolve(known, has_wide_integers=known.has_wide_integers or column.has_wide_integers)
    for column in (column for schema in schemas for column in schema):
        known = merged[column.name]
        kind = wider(known.type, column.type, has_wide_integers=known.has_wide_integers)
        merged[column.name] = evolve(known, type=kind)
    keys = [column for column in merged.values() if column.is_key]
    return (*keys, *sorted((one for one in merged.values() if not one.is_key), key=lambda one: one.name))


def _read_group(spark: SparkSession, group: Sequence[Directory], columns: Sequence[FrameColumn]) -> DataFrame:
    """Directories with one schema, which is given to Spark: it neither guesses nor merges."""
    first = group[0][1]
    schema = _parsed_schema(first.schema)
    reader = spark.read.schema(stored_schema(schema, first.format)).format(first.format).options(**first.options)
    frame = decode(reader.load([path for path, _ in group]), schema, first.format)
    own = {column.name: column.type for column in first.columns}
    unfit = first.prefix + UNFIT
    known = quoted(unfit) if unfit in schema.fieldNames() else f"cast(map() as {UNFIT_TYPE})"
    added = [spark_functions().col(quoted(name)) for name in schema.fieldNames() if name not in own and name != unfit]
    shown = [_merged(column, own.get(column.name), known) for column in columns]
    return frame.select(shown + added + [_unfit(columns, own, known).alias(unfit)])


def _parsed_schema(text: str) -> Any:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - pyspark is only imported when it is used

    return StructType.fromJson(json.loads(text))


def _merged(column: FrameColumn, own: ColumnType | None, unfit: str) -> Column:
    """The column as all directories together have it. ``unfit`` is the expression of the map beside it."""
    functions = spark_functions()
    target = spark_type_name(column.type)
    if own is None:
        return functions.lit(None).cast(target).alias(column.name)
    value = functions.col(quoted(column.name))
    if own is ColumnType.BINARY and column.type is ColumnType.STRING:
        return functions.concat(functions.lit(BINARY_TEXT_PREFIX), functions.base64(value)).alias(column.name)
    if own is ColumnType.DOUBLE and column.type is ColumnType.STRING:
        # An integer that a double had to show is an integer again in text.
        exact = functions.expr(f"try_element_at({unfit}, {literal(column.name)}).value")
        return functions.coalesce(exact, value.cast(target)).alias(column.name)
    return value.cast(target).alias(column.name)


def _unfit(columns: Sequence[FrameColumn], own: Mapping[str, ColumnType], known: str) -> Column:
    """What stood beside these directories' columns, and what those held exactly and the merged ones do not."""
    entries = []
    for column in columns:
        kind = own.get(column.name)
        if kind is None or kind is column.type:
            continue
        name, value = literal(column.name), quoted(column.name)
        text = f"base64({value})" if kind is ColumnType.BINARY else f"cast({value} as string)"
        cell = f"named_struct('type', '{kind.value}', 'value', {text})"
        is_new = f"{value} is not null and not map_contains_key({known}, {name})"
        entries.append(f"if({is_new}, named_struct('key', {name}, 'value', {cell}), null)")
    functions = spark_functions()
    if not entries:
        return functions.expr(known)
    new = f"map_from_entries(filter(array({', '.join(entries)}), one -> one is not null))"
    return functions.expr(f"cast(map_concat({known}, {new}) as {UNFIT_TYPE})")
