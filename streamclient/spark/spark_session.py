"""A Spark session for one machine."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.spark.java import find_java
from streamclient.spark.spark_packages import require_spark, spark_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"

_PYTHON_SETTING = "spark.pyspark.python"
"""Only spark-submit reads it; a session takes the variable below when it starts."""

_PYTHON_VARIABLE = "PYSPARK_PYTHON"

_STOPPED = "was stopped"


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

    Stopping it is up to the caller: no factory does so from now on, even if it was a factory that started it.

    Finds a Java by itself, listens on loopback only, keeps quiet on the console, and has the time zone UTC and
    case-sensitive names. Its Python workers are run by ``spark.pyspark.python`` if that is among ``conf``, else by the
    variable ``PYSPARK_PYTHON`` if it is set, else by the Python that calls.

    Args:
        app_name: name shown by Spark.
        cores: tasks at a time.
        conf: Spark settings that replace or add to these, such as ``**{"spark.driver.memory": "4g"}``; those of Hadoop
            begin with ``spark.hadoop.``.

    Raises:
        ConfigurationError: an argument cannot work; or pyspark, pyarrow or a Java is missing, and the message says what
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
    """The session that already runs in this process, or ``None``.

    Raises:
        StreamClientException: Spark's Java has ended.
    """
    require_spark()
    _check_java(import_module("pyspark").SparkContext._gateway)
    errors = import_module("pyspark.errors")
    try:
        return spark_sql().SparkSession.active()
    except errors.PySparkRuntimeError:
        return None


def why_ended(session: SparkSession) -> str | None:
    """Why nothing runs in a session any more; ``None`` while something can."""
    if is_connect(session):
        return _STOPPED if session.is_stopped else None
    context = session.sparkContext
    if context._jsc is None:
        return _STOPPED
    # Who stops it need not be this program: a cluster does, when its master or the application is gone.
    return _lost_java(context._gateway) or (_STOPPED if context._jsc.sc().isStopped() else None)


def forget_ended(session: SparkSession) -> None:
    """Have PySpark forget a session that has ended: it would give it out again to whoever asks for one.

    Raises:
        StreamClientException: Spark's Java has ended.
    """
    if not is_connect(session):
        _check_java(session.sparkContext._gateway)
    session.stop()


def _lost_java(gateway: Any) -> str | None:
    """What became of a Java that has ended."""
    java = getattr(gateway, "proc", None)  # as Spark's own launcher keeps it
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
    """The session of everybody in this process who brings none: started by the first, stopped by the last of them.

    A session that ran before anybody asked, or was given away, is somebody else's, and is never stopped. Thread-safe.
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
            session = _running_or_new()
            if not runs:
                self._own = session
            self._holders += 1
            return session

    def give_away(self, app_name: str, cores: int, conf: Mapping[str, str]) -> SparkSession:
        """The session, for somebody who does not say when it is used no longer.

        Raises:
            ConfigurationError: as ``local_session``.
        """
        with self._lock:
            self._own = None
            return _running_or_new(app_name, cores, **conf)

    def release(self) -> None:
        """The caller uses it no longer."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._own is None:
                return
            own, self._own = self._own, None
            if why_ended(own) is not None:
                return
            running = running_session()
            # Somebody else may have stopped it, and started another one.
            if running is not None and not is_connect(running) and running.sparkContext is own.sparkContext:
                own.stop()


SHARED_SESSION = SharedSession()
"""One for the process, as Spark has one context per process."""


def is_session(value: object) -> bool:
    """Whether it is a session, and no class of them."""
    return hasattr(value, "createDataFrame") and not isinstance(value, type)


def is_connect(session: SparkSession) -> bool:
    """Whether its Spark runs elsewhere, behind Spark Connect: there is no context then, and nothing of Java's."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


_COPYING = threading.Lock()
"""Held while a copy is made, which for a moment is what ``RDD.toDF`` is bound to."""


def private_copy(session: SparkSession) -> SparkSession:
    """A session with the same settings, views and tables, whose own settings may be changed without a trace.

    What Spark itself hands to the function of ``foreachBatch`` is bound to such a copy, too.
    """
    rdd = import_module("pyspark").RDD
    with _COPYING:
        own = rdd.toDF
        try:
            return type(session)(session.sparkContext, session._jsparkSession.cloneSession())
        finally:
            rdd.toDF = own


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
