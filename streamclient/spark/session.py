"""A Spark session for one machine."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
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

_PYTHON_SETTING = "spark.pyspark.python"
"""Only spark-submit reads it; a session takes the variable below when it starts."""

_PYTHON_VARIABLE = "PYSPARK_PYTHON"


def _settings() -> dict[str, str]:
    return {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        # Over TCP, each task in Python waits 40 ms at its end for an acknowledgement that the kernel delays.
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
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
    case-sensitive names. Its Python workers are run by ``spark.pyspark.python`` if that is among ``conf``, else by the
    variable ``PYSPARK_PYTHON`` if it is set, else by the Python that calls.

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
    python = conf.get(_PYTHON_SETTING) or os.environ.get(_PYTHON_VARIABLE) or sys.executable
    variables = {"JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": _LOOPBACK, _PYTHON_VARIABLE: python}
    with _environment(**variables):
        return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """The session that already runs in this process, or ``None``."""
    require_spark()
    errors = import_module("pyspark.errors")
    try:
        return spark_sql().SparkSession.active()
    except errors.PySparkRuntimeError:
        return None


class SharedSession:
    """The session of everybody in this process who brings none: started by the first, stopped by the last of them.

    A session that ran before anybody asked is somebody else's, and is never stopped. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: SparkSession | None = None
        self._holders = 0

    def hold(self) -> SparkSession:
        """The session, until ``release``, which has to follow exactly once.

        Raises:
            ConfigurationError: as ``local_session``.
        """
        with self._lock:
            runs = running_session() is not None
            session = local_session()
            if not runs:
                self._own = session
            self._holders += 1
            return session

    def release(self) -> None:
        """The caller uses it no longer."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._own is None:
                return
            own, self._own = self._own, None
            running = running_session()
            # Somebody else may have stopped it, and started another one.
            if running is not None and not is_connect(running) and running.sparkContext is own.sparkContext:
                own.stop()


SHARED_SESSION = SharedSession()
"""One for the process, as Spark has one context per process."""


def is_connect(session: SparkSession) -> bool:
    """Whether its Spark runs elsewhere, behind Spark Connect: there is no context then, and nothing of Java's."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def private_copy(session: SparkSession) -> SparkSession:
    """A session with the same settings, views and tables, whose own settings may be changed without a trace.

    What Spark itself hands to the function of ``foreachBatch`` is bound to such a copy, too.
    """
    copy = session._jsparkSession.cloneSession()
    return type(session)(session.sparkContext, copy)


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
