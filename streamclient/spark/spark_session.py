"""A Spark session for one machine."""

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
"""The setting for the workers' Python. Only spark-submit reads it; a session reads the variable below when it
starts."""

_PYTHON_VARIABLE = "PYSPARK_PYTHON"

_STOPPED = "was stopped"


def _settings() -> dict[str, str]:
    return {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        # Over TCP, each Python task would wait 40 ms at its end for an acknowledgement that the kernel delays.
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
        # Tablestore's column names are case-sensitive.
        "spark.sql.caseSensitive": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # The default is two hundred: far too many tasks for the data of one machine.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "streamclient-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def local_session(app_name: str = "streamclient", *, cores: int = 2, **conf: str) -> SparkSession:
    """Start Spark in this process, or return the session that already runs.

    The caller must stop this session: no factory does so from now on, even if a factory started it.

    The function finds a Java by itself. The session listens on loopback only, prints little on the console, and has the
    time zone UTC and case-sensitive names. Its Python workers run ``spark.pyspark.python`` if that is in ``conf``, else
    the variable ``PYSPARK_PYTHON`` if it is set, else the calling Python.

    Args:
        app_name: name shown by Spark.
        cores: the number of tasks that run at the same time.
        conf: Spark settings that replace or extend these, such as ``**{"spark.driver.memory": "4g"}``; settings of
            Hadoop begin with ``spark.hadoop.``.

    Raises:
        ConfigurationError: an argument is invalid; or pyspark, pyarrow or a Java is missing, and the message says what
            to install.
    """
    checks.text.require("app_name", app_name)
    checks.positive.require("cores", cores)
    for name, value in conf.items():
        if not name.startswith("spark."):
            raise ConfigurationError(
                f"local_session has no setting {name}, and Spark's begin with 'spark.', Hadoop's with 'spark.hadoop.'"
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
    """Return the session that already runs in this process, or ``None``.

    Raises:
        StreamClientException: Spark's Java has ended.
    """
    require_extra("spark", "a Spark session")
    _check_java(pyspark().SparkContext._gateway)
    errors = pyspark("errors")
    try:
        return spark_sql().SparkSession.active()
    except errors.PySparkRuntimeError:
        return None


def why_ended(session: SparkSession) -> str | None:
    """Return the reason why a session can no longer run anything; ``None`` while it can run jobs."""
    if is_connect(session):
        return _STOPPED if session.is_stopped else None
    context = session.sparkContext
    if context._jsc is None:
        return _STOPPED
    # Another program may have stopped it: a cluster does, when its master or the application is gone.
    return _lost_java(context._gateway) or (_STOPPED if context._jsc.sc().isStopped() else None)


def forget_ended(session: SparkSession) -> None:
    """Make PySpark forget a session that has ended; otherwise PySpark would return it to the next caller.

    Raises:
        StreamClientException: Spark's Java has ended.
    """
    if not is_connect(session):
        _check_java(session.sparkContext._gateway)
    session.stop()


def _lost_java(gateway: Any) -> str | None:
    """Return how Spark's Java process has ended; ``None`` while it runs."""
    java = getattr(gateway, "proc", None)  # where Spark's own launcher keeps it
    if java is None or java.poll() is None:
        return None
    return f"has lost its Java, process {java.pid}, which ended with code {java.returncode}"


def _check_java(gateway: Any) -> None:
    lost = _lost_java(gateway)
    if lost is not None:
        raise StreamClientException(
            f"Spark {lost}, often for want of memory: end this program and start it again, as Spark starts no second "
            "Java in a process"
        )


class SharedSession:
    """The session shared by all factories in this process that were given no session of their own.

    The first of these factories starts the session, and the last one stops it. A session that ran before, or was given
    away, belongs to the user and is never stopped. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: SparkSession | None = None
        self._holders = 0

    def hold(self) -> SparkSession:
        """Return the session, to be used until ``release``, which must follow exactly once.

        Raises:
            ConfigurationError: as ``local_session``.
        """
        with self._lock:
            runs = running_session() is not None
            session = _running_or_new()
            if not runs:
                self._own = session
            self._holders += 1
            return session

    def give_away(self, app_name: str, cores: int, conf: Mapping[str, str]) -> SparkSession:
        """Return the session to a user who does not report the end of its use.

        Raises:
            ConfigurationError: as ``local_session``.
        """
        with self._lock:
            self._own = None
            return _running_or_new(app_name, cores, **conf)

    def release(self) -> None:
        """End the caller's use of the session."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._own is None:
                return
            own, self._own = self._own, None
            if why_ended(own) is not None:
                return
            running = running_session()
            # Other code may have stopped it, and started another one.
            if running is not None and not is_connect(running) and running.sparkContext is own.sparkContext:
                own.stop()


SHARED_SESSION = SharedSession()
"""The only instance in the process, because Spark has one context per process."""


def is_session(value: object) -> bool:
    """Return whether ``value`` is a session, and not a class of sessions."""
    return hasattr(value, "createDataFrame") and not isinstance(value, type)


def is_connect(session: SparkSession) -> bool:
    """Return whether the session uses Spark Connect.

    If so, Spark runs elsewhere, without a context and Java objects here.
    """
    return type(session).__module__.startswith("pyspark.sql.connect.")


_COPYING = threading.Lock()
"""Held while a copy of a session is made, because ``RDD.toDF`` is bound to the copy for a moment."""


def private_copy(session: SparkSession) -> SparkSession:
    """Return a session with the same settings, views and tables. Changes of its settings affect no other session.

    Spark itself binds the frame given to the function of ``foreachBatch`` to such a copy, too.
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
    """Set variables for the launch of the Java process, which inherits them; restore the former values afterwards."""
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
