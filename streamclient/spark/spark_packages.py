"""Functions that import Spark and Arrow on first use, so that ``import streamclient.spark`` works without them."""

from __future__ import annotations

from typing import Any

from streamclient.base.extras import load


def pyspark(module: str = "") -> Any:
    """Import ``pyspark``, or its module ``module``. If that fails, raise an error that says which extra to install."""
    return load(f"pyspark.{module}" if module else "pyspark", "spark")


def pyarrow() -> Any:
    """Import ``pyarrow``, or raise an error that says which extra to install."""
    return load("pyarrow", "spark")


def spark_sql() -> Any:
    """Import ``pyspark.sql``, or raise an error that says which extra to install."""
    return pyspark("sql")


def spark_types() -> Any:
    """Import ``pyspark.sql.types``, or raise an error that says which extra to install."""
    return pyspark("sql.types")
