"""A Spark session for one machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient import checks
from streamclient.spark.extra import require_spark, spark_sql
from streamclient.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"


def _settings() -> dict[str, str]:
    return {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.pyspark.python": sys.executable,
        # Tablestore tells column names apart by case.
        "spark.sql.caseSensitive": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # Two hundred by default: far too many tasks for the data of one machine.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "streamclient-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def local_session(app_name: str = "streamclient", *, cores: int = 2, **conf: str) -> SparkSession:
    """Start Spark in this process, or return the session that already runs.

    Finds a Java by itself, listens on loopback only, keeps quiet on the console, and has the time zone UTC and
    case-sensitive names.

    Args:
        app_name: name shown by Spark.
        cores: tasks at a time.
        conf: Spark settings that replace or add to these, such as ``**{"spark.driver.memory": "4g"}``.

    Raises:
        ConfigurationError: pyspark, pyarrow or a Java is missing; the message says what to install.
    """
    checks.text.require("app_name", app_name)
    checks.positive.require("cores", cores)
    for name, value in conf.items():
        checks.any_text.require(name, value)
    require_spark()
    active = running_session()
    if active is not None:
        return active
    builder = spark_sql().SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in {**_settings(), **conf}.items():
        builder = builder.config(name, value)
    with _environment(JAVA_HOME=str(find_java().home), SPARK_LOCAL_IP=_LOOPBACK):
        return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """The session that already runs in this process, or ``None``."""
    require_spark()
    errors = import_module("pyspark.errors")
    try:
        return spark_sql().SparkSession.active()
    except errors.PySparkRuntimeError:
        return None


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for the launch of the Java process, which inherits them; then put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
