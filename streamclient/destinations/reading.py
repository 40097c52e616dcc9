"""A Delta table as a DataFrame of any version of Spark, without a jar.

The table says which files it has at one version, and Spark reads those. Three things must be told to it, each of which
it would else get wrong without a word: the schema (or it takes that of one file), the base path (or the columns of the
partition are null), and the list of files (or it reads those that were removed).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamclient.destinations.delta import refuse_reading
from streamclient.destinations.extra import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_delta(
    spark: SparkSession,
    url: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
) -> DataFrame:
    """The rows of a Delta table at one version, which is fixed at the call.

    Args:
        spark: a session that sees the files under the table's address (``s3://`` is read as ``s3a://``).
        url: the table.
        storage_options: for delta-rs, to read the log.
        version: an earlier one; by default the present one.

    Raises:
        ConfigurationError: the table has deletion vectors or mapped columns, so its files alone do not say its rows.
    """
    types = load("pyspark.sql.types", "spark")
    table = load("deltalake", "delta").DeltaTable(
        url, version=version, storage_options=dict(storage_options) if storage_options else None
    )
    refuse_reading(table.metadata().configuration, url)
    schema = types.StructType.fromJson(json.loads(table.schema().to_json()))
    files = [_for_spark(one) for one in table.file_uris()]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", _for_spark(table.table_uri)).parquet(*files)


def _for_spark(address: str) -> str:
    # Never unquoted or quoted anew: addresses are escaped as the files are named.
    return "s3a" + address[2:] if address.startswith("s3:") else address
