"""The session of those who bring none: who starts it, who stops it, and which Python it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, put

from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.model import ShutdownReason
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory, local_session
from streamclient.spark.spark_session import SharedSession, running_session
from tests.patience import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def no_session(spark_ends: None) -> None:
    """As where nobody has started Spark yet. The Java of an earlier session runs on, and takes the next one."""
    session = running_session()
    if session is not None:
        session.stop()


def factory() -> SparkRecordProcessorFactory:
    """One that has started the session that it shares."""
    made = SparkRecordProcessorFactory(lambda frame, context: None)
    made.create_processor()
    return made


def told_by_a_worker(session: Any, variable: str) -> str:
    """A variable of the environment in which Spark runs Python, and which Python that is."""

    def tell(number: int) -> str:
        return os.environ.get(variable, sys.executable)

    (told,) = session.sparkContext.parallelize([1], 1).map(tell).collect()
    return str(told)


def test_the_last_factory_to_close_stops_the_session_and_its_workers_run_the_same_python(
    no_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    first, second = factory(), factory()
    first.close()
    first.close()
    session = running_session()

    assert session is not None
    assert session.range(3).count() == 3
    assert os.path.realpath(told_by_a_worker(session, "NO_SUCH_VARIABLE")) == os.path.realpath(sys.executable)
    second.close()
    assert running_session() is None


def python_in(directory: Path, name: str) -> str:
    """The Python that runs the tests, by another name, which it tells."""
    made = directory / name
    made.write_text(f'#!/bin/sh\nexport STARTED_BY="$0"\nexec {sys.executable} "$@"\n')
    made.chmod(0o755)
    return str(made)


def test_a_python_that_the_environment_names_runs_the_workers(
    no_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = python_in(tmp_path, "python-of-the-environment")
    monkeypatch.setenv("PYSPARK_PYTHON", other)
    with factory():
        assert told_by_a_worker(running_session(), "STARTED_BY") == other


def test_a_python_that_a_setting_names_comes_before_that_of_the_environment(
    no_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = python_in(tmp_path, "python-of-the-setting")
    monkeypatch.setenv("PYSPARK_PYTHON", python_in(tmp_path, "python-of-the-environment"))
    session = local_session(**{"spark.pyspark.python": other})
    try:
        assert told_by_a_worker(session, "STARTED_BY") == other
    finally:
        session.stop()


def test_a_session_that_the_program_asked_for_is_not_stopped_by_the_factory_that_started_it(no_session: None) -> None:
    with factory():
        session = local_session()
    try:
        with factory():
            assert running_session() is session
        assert session.range(3).count() == 3
    finally:
        session.stop()


@pytest.mark.parametrize(
    ("name", "hint"), [("appName", "did you mean app_name"), ("driver.memory", "settings begin with 'spark.'")]
)
def test_a_setting_that_is_none_of_spark_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no setting {name}.*{hint}"):
        local_session(**{name: "4g"})


def test_batches_leave_the_session_that_was_given_as_it_is_and_the_active_one(spark: Any) -> None:
    """Two committers at once, and whoever asks meanwhile."""
    spark.createDataFrame([(1,)], ["v"])  # as in any program: it is the active session of this thread now
    before = settings_of(spark)
    both_write = threading.Barrier(2)
    told: list[tuple[Any, Any]] = []

    def sink(frame: Any, context: BatchContext) -> None:
        both_write.wait(PATIENCE_SECONDS)
        frame.collect()
        told.append((frame.sparkSession, type(spark).active()))

    with (
        SparkRecordProcessorFactory(sink, session=spark) as one,
        SparkRecordProcessorFactory(sink, session=spark) as other,
    ):
        runs = [Run(each, StoredShard("s1", [put(1, 1, v=1)])) for each in (one, other)]
        with ThreadPoolExecutor(len(runs)) as pool:
            for run in runs:
                run.read(1)
            list(pool.map(Run.stop, runs))

    assert len({id(session) for session, _ in told} | {id(spark)}) == 3
    assert [active for _, active in told] == [spark, spark]
    assert running_session() is local_session() is spark
    assert spark.sparkContext.parallelize([(1,)]).toDF(["v"]).sparkSession is spark
    assert settings_of(spark) == before


def settings_of(session: Any) -> dict[str, str]:
    return {row.key: row.value for row in session.sql("set").collect()}


def test_a_session_that_ran_before_is_never_stopped(spark: Any) -> None:
    shared = SharedSession()
    assert shared.hold() is shared.hold()
    shared.release()
    shared.release()

    assert running_session() is not None
    assert spark.range(3).count() == 3


def stop_python(session: Any) -> None:
    session.stop()


def stop_java(session: Any) -> None:
    """As a cluster does when its master or the application is gone: PySpark is not told."""
    session._jsc.sc().stop()


STOPS = pytest.mark.parametrize("stop", [stop_python, stop_java], ids=["by the program", "by the cluster"])


def keys_through(factory: SparkRecordProcessorFactory, stop: Callable[[Any], None]) -> list[str]:
    """Three batches, each by a processor of its own; what is checkpointed. The session is stopped after the first."""
    shard = StoredShard("s1", [put(number, number, v=number) for number in range(1, 4)])
    for number in range(3):
        run = Run(factory, shard)
        run.read(1)
        run.stop()
        if number == 0:
            stop(factory._session)
    return shard.checkpoints


def count(frame: Any, context: BatchContext) -> None:
    assert frame.count() == 1


@STOPS
@pytest.mark.parametrize("makes", [False, True], ids=["of the factory", "of a function"])
def test_another_session_is_made_when_one_was_stopped(no_session: None, stop: Any, makes: bool) -> None:
    """It would be given out again and again, and each batch would fail until somebody starts the worker anew."""
    with SparkRecordProcessorFactory(count, session=local_session if makes else None) as factory:
        assert keys_through(factory, stop) == ["after 1", "after 2", "after 3"]
    left = running_session()
    assert (left is not None) is makes
    if left is not None:
        left.stop()


@STOPS
def test_a_session_that_was_given_and_stopped_is_named(no_session: None, stop: Any) -> None:
    with (
        SparkRecordProcessorFactory(count, session=local_session()) as factory,
        pytest.raises(StreamClientException, match="the SparkSession given to the factory was stopped: give"),
    ):
        keys_through(factory, stop)


def test_batch_of_a_lost_lease_ends_although_its_session_was_stopped(no_session: None) -> None:
    session, shard, entered, go_on = local_session(), StoredShard("s1", [put(1, 1, v=1)]), *events(2)

    def sink(frame: Any, context: BatchContext) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)

    with SparkRecordProcessorFactory(sink, session=session, config=SparkConfig(max_records=1)) as factory:
        run = Run(factory, shard)
        run.read(1)
        assert entered.wait(PATIENCE_SECONDS)
        session.stop()
        run.stop(ShutdownReason.ZOMBIE)
        go_on.set()
        until(lambda: factory.buffered_bytes == 0)
    assert shard.checkpoints == []


def events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_java_that_has_ended_is_named_and_so_is_what_to_do() -> None:
    """In a process of its own, as Spark starts no second one."""
    program = (
        "import os, signal\n"
        "from streamclient.errors import StreamClientException\n"
        "from streamclient.spark import SparkRecordProcessorFactory, local_session\n"
        "def attempt(call):\n"
        "    try:\n"
        "        call()\n"
        "    except StreamClientException as error:\n"
        "        print(error)\n"
        "with SparkRecordProcessorFactory(lambda frame, context: None) as factory:\n"
        "    factory.create_processor()\n"
        "    java = factory._session.sparkContext._gateway.proc\n"
        "    pid = factory._session._jvm.java.lang.ProcessHandle.current().pid()\n"
        "    os.kill(pid, signal.SIGKILL)\n"
        "    java.wait()\n"
        "    attempt(factory.create_processor)\n"
        "attempt(local_session)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert re.findall(
        r"Spark has lost its Java, process \d+, which ended with code -?\d+, .*: end this program", done.stdout
    )
    assert done.stdout.count("end this program and start it again") == 2
