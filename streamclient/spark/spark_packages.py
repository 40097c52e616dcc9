"""The heavy libraries, imported on first use. ``import streamclient.spark`` works without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamclient.base.checks import require_extra


def require_spark() -> None:
    """Raise ``ConfigurationError``, which says what to install, unless pyspark and pyarrow can be imported."""
    require("pyspark", "pyarrow")


def require(*modules: str) -> None:
    """Raise ``ConfigurationError``, which says what to install, unless all of these modules can be imported."""
    require_extra("spark", modules, "a Spark processor")


def pyarrow() -> Any:
    """Return the module ``pyarrow``."""
    return import_module("pyarrow")


def spark_sql() -> Any:
    """Return the module ``pyspark.sql``."""
    return import_module("pyspark.sql")


def spark_types() -> Any:
    """Return the module ``pyspark.sql.types``."""
    return import_module("pyspark.sql.types")
