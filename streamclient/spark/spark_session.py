"""Spark sessions: starting one on this machine, sharing it among processor factories, and detecting its end."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.base.extras import require_extra
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.spark.java import find_java
from streamclient.spark.spark_packages import pyspark, spark_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"

_PYTHON_SETTING = "spark.pyspark.python"
"""The Spark setting that names the Python interpreter of Spark's worker processes. Only ``spark-submit`` reads this
setting, so ``local_session`` passes its value to Spark in the variable ``PYSPARK_PYTHON``."""

_PYTHON_VARIABLE = "PYSPARK_PYTHON"

_STOPPED = "was stopped"


def _settings() -> dict[str, str]:
    return {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        # Over TCP, each Python task would end 40 ms later, because the kernel delays an acknowledgement.
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
        # Tablestore's column names are case-sensitive.
        "spark.sql.caseSensitive": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default of 200 partitions makes too many small tasks on one machine.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "streamclient-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def local_session(app_name: str = "streamclient", *, cores: int = 2, **conf: str) -> SparkSession:
    """Start Spark in this process, or return the session that already runs.

    The caller must stop the session. No ``SparkRecordProcessorFactory`` stops it, not even one that has started it.

    The function searches this machine for a Java. A session that it starts listens on loopback only, prints little on
    the console, and has the time zone UTC and case-sensitive names. The session's worker processes run the Python
    interpreter that the setting ``spark.pyspark.python`` in ``conf`` names. Without this setting, they run the
    interpreter that the variable ``PYSPARK_PYTHON`` names, or by default the caller's interpreter.

    Args:
        app_name: the name of the application that Spark shows.
        cores: the number of tasks that run at the same time.
        conf: settings of Spark that replace or extend the defaults, such as ``**{"spark.driver.memory": "4g"}``.
            Settings of Hadoop begin with ``spark.hadoop.``.

    Raises:
        ConfigurationError: an argument is invalid, or pyspark, pyarrow or a Java is missing. The message says which
            package to install.
    """
    checks.text.require("app_name", app_name)
    checks.positive.require("cores", cores)
    for name, value in conf.items():
        if not name.startswith("spark."):
            raise ConfigurationError(
                f"local_session has no setting {name}; settings begin with 'spark.', for Hadoop with 'spark.hadoop.'"
                + checks.did_you_mean(name, ("app_name", "cores"))
            )
        checks.any_text.require(name, value)
    require_extra("spark", "a Spark session")
    return SHARED_SESSION.give_away(app_name, cores, conf)


def _running_or_new(app_name: str = "streamclient", cores: int = 2, **conf: str) -> SparkSession:
    running = running_session()
    if running is not None:
        return running
    builder = spark_sql().SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in {**_settings(), **conf}.items():
        builder = builder.config(name, value)
    python = conf.get(_PYTHON_SETTING) or os.environ.get(_PYTHON_VARIABLE) or sys.executable
    variables = {"JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": _LOOPBACK, _PYTHON_VARIABLE: python}
    with _environment(**variables):
        return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """Return the active session of this process; ``None`` if no session runs.

    Raises:
        StreamClientException: Spark's Java process has ended.
    """
    require_extra("spark", "a Spark session")
    _check_java(pyspark().SparkContext._gateway)
    errors = pyspark("errors")
    try:
        return spark_sql().SparkSession.active()
    except errors.PySparkRuntimeError:
        return None


def why_ended(session: SparkSession) -> str | None:
    """Return in words why ``session`` can no longer run jobs; ``None`` while it can run jobs."""
    if is_connect(session):
        return _STOPPED if session.is_stopped else None
    context = session.sparkContext
    if context._jsc is None:
        return _STOPPED
    # Spark may have stopped the context without a request, for example because the cluster's master is gone.
    return _lost_java(context._gateway) or (_STOPPED if context._jsc.sc().isStopped() else None)


def forget_ended(session: SparkSession) -> None:
    """Stop a ``session`` that can no longer run jobs, so that PySpark does not return it to the next caller.

    Raises:
        StreamClientException: Spark's Java process has ended.
    """
    if not is_connect(session):
        _check_java(session.sparkContext._gateway)
    session.stop()


def _lost_java(gateway: Any) -> str | None:
    """Return in words how Spark's Java process has ended; ``None`` while it runs."""
    # Spark's launcher keeps its Java process in the attribute ``proc``.
    java = getattr(gateway, "proc", None)
    if java is None or java.poll() is None:
        return None
    return f"has lost its Java, process {java.pid}, which ended with code {java.returncode}"


def _check_java(gateway: Any) -> None:
    lost = _lost_java(gateway)
    if lost is not None:
        raise StreamClientException(
            f"Spark {lost}, often for want of memory: end this program and start it again, because Spark starts no "
            "second Java in a process"
        )


class SharedSession:
    """The Spark session that processor factories without a session of their own share in this process. Thread-safe.

    The first of these factories starts the session, and the last one stops it. A session that already ran, or that
    ``give_away`` has returned, belongs to the user. ``SharedSession`` never stops such a session.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: SparkSession | None = None
        self._holders = 0

    def hold(self) -> SparkSession:
        """Return the session of this process for a factory to use; start one if none runs.

        The factory must call ``release`` once when it no longer uses the session.

        Raises:
            ConfigurationError: pyspark, pyarrow or a Java is missing.
        """
        with self._lock:
            runs = running_session() is not None
            session = _running_or_new()
            if not runs:
                self._own = session
            self._holders += 1
            return session

    def give_away(self, app_name: str, cores: int, conf: Mapping[str, str]) -> SparkSession:
        """Return the session of this process for a user, who has to stop it. A later ``release`` does not stop it.

        If no session runs, start one with the given name, number of cores and settings of Spark.

        Raises:
            ConfigurationError: pyspark, pyarrow or a Java is missing.
        """
        with self._lock:
            self._own = None
            return _running_or_new(app_name, cores, **conf)

    def release(self) -> None:
        """Record that a factory no longer uses the session.

        When the last factory releases the session, stop it if ``hold`` has started it.
        """
        with self._lock:
            self._holders -= 1
            if self._holders or self._own is None:
                return
            own, self._own = self._own, None
            if why_ended(own) is not None:
                return
            running = running_session()
            # Other code may have stopped the session and started another one.
            if running is not None and not is_connect(running) and running.sparkContext is own.sparkContext:
                own.stop()


SHARED_SESSION = SharedSession()
"""The only ``SharedSession`` of this process, because Spark allows one context in a process."""


def is_session(value: object) -> bool:
    """Return whether ``value`` is a Spark session, and not the class ``SparkSession``."""
    return hasattr(value, "createDataFrame") and not isinstance(value, type)


def is_connect(session: SparkSession) -> bool:
    """Return whether the session uses Spark Connect, so that this process has no Spark context and no Java."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


_COPYING = threading.Lock()
"""The lock that makes calls of ``private_copy`` wait for each other. PySpark replaces ``RDD.toDF`` during a copy, and
``private_copy`` restores it."""


def private_copy(session: SparkSession) -> SparkSession:
    """Return a copy of ``session`` with its views and tables, and with settings that can be changed independently.

    Spark itself makes such a copy for the frames that it passes to the function of ``foreachBatch``.
    """
    rdd = pyspark().RDD
    with _COPYING:
        own = rdd.toDF
        try:
            return type(session)(session.sparkContext, session._jsparkSession.cloneSession())
        finally:
            rdd.toDF = own


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for the Java process that is started in this context; restore them afterwards."""
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
