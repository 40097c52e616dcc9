"""Folding a Spark DataFrame of changes into the current rows of a table, or into the history of each row.

Spark groups the changes by key and sorts them. Its Python workers fold the changes of each key by
``streamclient.destinations.folding``. Expressions of Spark SQL could fold changes, too, but the query plan grows with
the number of columns. With a thousand columns, Spark did not finish the planning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.base.extras import require_extra
from streamclient.destinations.folding.merged_tables import SEQUENCE, Fold, fold_table, folded_batches, history_table
from streamclient.destinations.rows.change_rows import (
    DELETED_COLUMNS,
    DELETED_VERSIONS,
    OLDER_VERSIONS,
    OPERATION,
    PASSING,
    RESERVED,
    TIMESTAMP,
    UNFIT,
    VALIDITY,
    VERSIONS,
)
from streamclient.destinations.rows.column_names import original_name
from streamclient.errors import ConfigurationError
from streamclient.spark.processor.arrow import map_in_arrow, quoted
from streamclient.spark.spark_packages import spark_types

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KEY_BESIDE = PASSING[2]
"""The name of a temporary column with the key values that do not fit the types of their columns. Without this column,
rows that differ only in such values would be folded as one row."""


def fold_changes(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """Return the current rows that result from ``changes``.

    The result has the key columns, the attributes, ``_unfit``, and the sequence of the row's last change.

    The function applies the changes of one key in the order of their sequence: epoch, timestamp and row index. A
    repeated change counts once. If ``changes`` lacks the early changes of a row, the row has only the values that later
    changes put. If one change both puts and deletes a column, the deletion is applied first, because ``changes`` does
    not have the order of the two.

    Executors need this package and pyarrow. All changes of one key must fit in the memory of one Python process.

    Args:
        changes: a frame in the layout of ``destinations.change_rows``, for example the frame that a sink is given, or a
            table that stores changes. Its columns may have any type that Spark passes to Python through Arrow.
        primary_key: the names of the key columns.
        max_versions: the number of versions that the source table keeps of each column.

    Raises:
        ConfigurationError: ``primary_key`` is empty or names a column that ``changes`` lacks, or the extra ``spark`` is
            not installed.
    """
    _check(changes, primary_key, max_versions)
    return _folded(changes, primary_key, max_versions, fold_table, ())


def row_history(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """Return every state that each row has had, with its time of validity (a slowly changing dimension of type 2).

    A state has the columns that ``fold_changes`` returns, with the sequence of the change that led to the state. It has
    two further columns. ``_valid_from`` is the time of that change. ``_valid_to`` is the time of the row's next change,
    or null for the present state. A deleted row has no state until a later change creates the row again.

    Args:
        changes: a frame as for ``fold_changes``, with all changes since the beginning of the stream.
        primary_key: the names of the key columns.
        max_versions: the number of versions that the source table keeps of each column.

    Raises:
        ConfigurationError: for the reasons that ``fold_changes`` names.
    """
    _check(changes, primary_key, max_versions)
    return _folded(changes, primary_key, max_versions, history_table, VALIDITY)


_key = checks.Check(
    "a sequence of one or more names of key columns", lambda value: checks.names.fits(value) and len(value) > 0
)
_versions = checks.whole(1, 2**31 - 1)
"""The check of ``max_versions``. The upper limit is the greatest length of an array in Spark."""


def _check(changes: DataFrame, primary_key: Sequence[str], max_versions: int) -> None:
    """Raise if an argument is invalid. An empty key is invalid, because it would make one row of all changes."""
    require_extra("spark", "the folding of a frame")
    _versions.require("max_versions", max_versions)
    _key.require("primary_key", primary_key)
    missing = [name for name in primary_key if name not in changes.columns]
    if missing:
        raise ConfigurationError(
            f"primary_key names {', '.join(map(repr, missing))}, and the changes have the columns "
            f"{checks.shown(changes.columns)}: give the names as the frame has them"
        )


def _folded(
    changes: DataFrame, primary_key: Sequence[str], max_versions: int, make: Fold, further: Sequence[str]
) -> DataFrame:
    """Return the rows that ``make`` folds from the changes of each key.

    The last columns of each row are the timestamps ``further``.
    """
    attributes = [name for name in changes.columns if name not in RESERVED and name not in primary_key]
    keys = [*primary_key, _KEY_BESIDE]
    needed = (*SEQUENCE, OPERATION, VERSIONS, DELETED_COLUMNS, DELETED_VERSIONS, OLDER_VERSIONS, UNFIT)
    columns = [*map(quoted, [*primary_key, *attributes]), *needed, f"{_key_beside(primary_key)} as {_KEY_BESIDE}"]
    by_key = changes.selectExpr(*columns).repartition(*map(quoted, keys))
    ordered = by_key.sortWithinPartitions(*map(quoted, keys), *SEQUENCE)
    schema = _schema(changes, [*primary_key, *attributes, UNFIT, *SEQUENCE], further)

    names = ordered.columns

    def fold(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        # Take the column names from Spark. Arrow data from Java cuts a name at its first zero byte.
        return folded_batches((batch.rename_columns(names) for batch in batches), make, keys, max_versions)

    return map_in_arrow(ordered, fold, schema)


def _schema(changes: DataFrame, names: Sequence[str], times: Sequence[str]) -> StructType:
    """Return a schema of nullable columns: ``names`` with their types in ``changes``, then the timestamps ``times``."""
    types = spark_types()
    kinds = {column.name: column.dataType for column in changes.schema.fields}
    kinds |= dict.fromkeys(times, kinds[TIMESTAMP])
    return types.StructType([types.StructField(name, kinds[name]) for name in (*names, *times)])


def _key_beside(primary_key: Sequence[str]) -> str:
    """Return an SQL expression for the key values in the map ``_unfit``: as JSON text, or null without such values."""
    names = f"array({', '.join(literal(original_name(name)) for name in primary_key)})"
    held = f"transform({names}, one -> try_element_at({UNFIT}, one))"
    return f"if(exists({names}, one -> map_contains_key({UNFIT}, one)), to_json({held}), null)"


def literal(text: str) -> str:
    """Return ``text`` as a string literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
