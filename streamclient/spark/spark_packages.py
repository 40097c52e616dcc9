"""The heavy libraries, imported on first use. ``import streamclient.spark`` works without them."""

from __future__ import annotations

from typing import Any

from streamclient.base.extras import load


def pyspark(module: str = "") -> Any:
    """Return the module ``pyspark``, or the one of that name below it."""
    return load(f"pyspark.{module}" if module else "pyspark", "spark")


def pyarrow() -> Any:
    """Return the module ``pyarrow``."""
    return load("pyarrow", "spark")


def spark_sql() -> Any:
    """Return the module ``pyspark.sql``."""
    return pyspark("sql")


def spark_types() -> Any:
    """Return the module ``pyspark.sql.types``."""
    return pyspark("sql.types")
