"""The reading of a Delta table into a Spark DataFrame, with any version of Spark and without Delta's jar.

delta-rs lists the files of one version of the table, and Spark reads these files. Spark needs three options. Without
the schema, Spark would use the schema of one file. Without the base path, partition columns would be null. Without the
list of files, Spark would also read removed files.

Spark expects paths, but delta-rs returns escaped addresses, in which a space is ``%20``. So this module unescapes the
names. It also tells Spark not to treat ``{a,b}``, ``*`` or ``?`` in a name as a pattern.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from streamclient.base.extras import load
from streamclient.destinations.delta.object_stores import Location, open_table, refuse_reading
from streamclient.destinations.destination_packages import own_errors, pyarrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_delta(
    spark: SparkSession,
    url: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the rows of one version of a Delta table. Later commits do not change the DataFrame.

    Args:
        spark: a session that can read the table's files at ``url`` (with the scheme ``s3a`` instead of ``s3``).
        url: the address of the table.
        storage_options: options with which delta-rs reads the table's log.
        version: the version of the table; by default the newest one.

    Raises:
        ConfigurationError: the table has deletion vectors or mapped columns, which Spark would ignore.
        DependencyException: the table does not exist, or cannot be read.
    """
    types = load("pyspark.sql.types", "spark")
    with own_errors(url):
        location = Location(url, urlsplit(url).scheme or "file", dict(storage_options or {}))
        table = open_table(location, version=version, is_awaited=True)
        refuse_reading(table.metadata().configuration, url)
        schema = types.StructType.fromJson(json.loads(table.schema().to_json()))
        names = pyarrow().table(table.get_add_actions()).column("path").to_pylist()
    if not names:
        return spark.createDataFrame([], schema)
    base = _spark_path(table.table_uri)
    # The names in the log are escaped. ``unquote`` makes them the names in the file system.
    files = [f"{base}/{unquote(name)}" for name in names]
    return spark.read.schema(schema).option("basePath", base).option(_PATTERNS, "false").parquet(*files)


_PATTERNS = "__globPaths__"
"""The internal option of Spark that makes Spark treat characters such as ``*`` in file names as patterns."""


def _spark_path(address: str) -> str:
    """Return ``address``, the table's address, as an unescaped path for Spark. The scheme ``s3`` becomes ``s3a``."""
    parts = urlsplit(address)
    scheme = "s3a" if parts.scheme == "s3" else parts.scheme
    return f"{scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}"
