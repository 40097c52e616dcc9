"""Changes folded in Spark into the rows that result, or into all states that rows have had.

Spark groups and sorts the changes of each key; its Python processes fold them as mirrors do, by
``streamclient.destinations.folding``. Spark's own expressions could fold them too, but their plan grows with the number
of columns: for a thousand columns it did not finish.
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
"""The column for key values that their own columns do not hold exactly. Rows that differ only in these values are
different rows."""


def fold_changes(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """Return the rows that result from changes.

    The columns are the key, the attributes, ``_unfit``, and the sequence of the last change.

    Changes of one key are ordered by epoch, time stamp and row index, which grow from parent shards to their children.
    A change that occurs twice counts once. If the beginning of a row is not among the changes, the result has only its
    later writes.

    Executors need this package and pyarrow. All changes of one key pass through the memory of one Python process.

    Args:
        changes: a frame in the layout of ``destinations.change_rows``: of a sink, or of a table that stores changes.
            Its columns may have been converted to any type that Spark passes to Python through Arrow.
        primary_key: names of the key columns.
        max_versions: the table's limit of versions per column.

    Raises:
        ConfigurationError: ``primary_key`` is empty, or names a column that the changes lack; or the extra ``spark`` is
            not installed.
    """
    _check(changes, primary_key, max_versions)
    return _folded(changes, primary_key, max_versions, fold_table, ())


def row_history(changes: DataFrame, primary_key: Sequence[str], *, max_versions: int = 1) -> DataFrame:
    """Return every state that rows have had, with its validity: a slowly changing dimension of type 2.

    The columns are the same as in ``fold_changes``, with the change that led to the state, then ``_valid_from``, the
    time of that change, and ``_valid_to``, the time of the row's next change; null for the present state. A deleted row
    has no state until it is created again.

    Args:
        changes: as for ``fold_changes``, from the beginning of the stream.
        primary_key: names of the key columns.
        max_versions: the table's limit of versions per column.

    Raises:
        ConfigurationError: as for ``fold_changes``.
    """
    _check(changes, primary_key, max_versions)
    return _folded(changes, primary_key, max_versions, history_table, VALIDITY)


_key = checks.Check(
    "a sequence of one or more names of key columns", lambda value: checks.names.fits(value) and len(value) > 0
)
_versions = checks.whole(1, 2**31 - 1)
"""The length that Spark allows for an array."""


def _check(changes: DataFrame, primary_key: Sequence[str], max_versions: int) -> None:
    """Refuse a missing key, with which all rows would be one row, and a key column that the changes lack."""
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
    """Return the results of ``make`` for each key's changes, with the columns of times in ``further`` at the end."""
    attributes = [name for name in changes.columns if name not in RESERVED and name not in primary_key]
    keys = [*primary_key, _KEY_BESIDE]
    needed = (*SEQUENCE, OPERATION, VERSIONS, DELETED_COLUMNS, DELETED_VERSIONS, OLDER_VERSIONS, UNFIT)
    columns = [*map(quoted, [*primary_key, *attributes]), *needed, f"{_key_beside(primary_key)} as {_KEY_BESIDE}"]
    by_key = changes.selectExpr(*columns).repartition(*map(quoted, keys))
    ordered = by_key.sortWithinPartitions(*map(quoted, keys), *SEQUENCE)
    schema = _schema(changes, [*primary_key, *attributes, UNFIT, *SEQUENCE], further)

    names = ordered.columns

    def fold(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        # In Arrow data from Java, a name ends at its first zero byte.
        return folded_batches((batch.rename_columns(names) for batch in batches), make, keys, max_versions)

    return map_in_arrow(ordered, fold, schema)


def _schema(changes: DataFrame, names: Sequence[str], times: Sequence[str]) -> StructType:
    """Return the schema with every column nullable, and columns of times at the end."""
    types = spark_types()
    kinds = {column.name: column.dataType for column in changes.schema.fields}
    kinds |= dict.fromkeys(times, kinds[TIMESTAMP])
    return types.StructType([types.StructField(name, kinds[name]) for name in (*names, *times)])


def _key_beside(primary_key: Sequence[str]) -> str:
    """Return the expression for a key's values in ``_unfit`` as one text; null for nearly all keys."""
    names = f"array({', '.join(literal(original_name(name)) for name in primary_key)})"
    held = f"transform({names}, one -> try_element_at({UNFIT}, one))"
    return f"if(exists({names}, one -> map_contains_key({UNFIT}, one)), to_json({held}), null)"


def literal(text: str) -> str:
    """Return a text as a literal of Spark's expressions."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
