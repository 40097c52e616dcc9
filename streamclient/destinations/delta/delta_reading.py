"""A Delta table as a DataFrame of any version of Spark, without a jar.

The table says which files it has at one version, and Spark reads these files. Spark must be told three things, and
would silently get each of them wrong otherwise: the schema (else Spark takes that of one file), the base path (else the
columns of the partition are null), and the list of files (else Spark reads removed files).

Spark takes paths, while delta-rs gives addresses, in which a space is ``%20``; so this module builds paths from
unescaped names. Spark must also be kept from reading ``{a,b}``, ``*`` or ``?`` in a name as a pattern.
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
    """Return the rows of a Delta table at one version, which is fixed at the call.

    Args:
        spark: a session that sees the files under the table's address (``s3://`` is read as ``s3a://``).
        url: the table.
        storage_options: options with which delta-rs reads the log.
        version: an earlier version; by default the present version.

    Raises:
        ConfigurationError: the table has deletion vectors or mapped columns, so its files alone do not give its rows.
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
    # In the log, names are escaped once more than in the file system.
    files = [f"{base}/{unquote(name)}" for name in names]
    return spark.read.schema(schema).option("basePath", base).option(_PATTERNS, "false").parquet(*files)


_PATTERNS = "__globPaths__"
"""Spark's own option for reading a given list of files without treating characters of their names as patterns."""


def _spark_path(address: str) -> str:
    """Return a table's directory as Spark names it: with scheme and host, and not escaped."""
    parts = urlsplit(address)
    scheme = "s3a" if parts.scheme == "s3" else parts.scheme
    return f"{scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}"
