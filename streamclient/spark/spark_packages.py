"""The heavy libraries, imported on first use. ``import streamclient.spark`` works without them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from streamclient.base.checks import missing_extra


def require_spark() -> None:
    """Raise ``ConfigurationError``, which says what to install, unless pyspark and pyarrow can be imported."""
    require("pyspark", "pyarrow")


def require(*modules: str) -> None:
    """Raise ``ConfigurationError``, which says what to install, unless all of these modules can be imported."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise missing_extra(f"{' and '.join(missing)} cannot be imported; Spark processors need them", "spark")


def pyarrow() -> Any:
    """Return the module ``pyarrow``."""
    return import_module("pyarrow")


def spark_sql() -> Any:
    """Return the module ``pyspark.sql``."""
    return import_module("pyspark.sql")


def spark_types() -> Any:
    """Return the module ``pyspark.sql.types``."""
    return import_module("pyspark.sql.types")
