"""The session of those who bring none: who starts it, who stops it, and which Python it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from streamclient.spark import SparkRecordProcessorFactory
from streamclient.spark.session import SharedSession, running_session

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


def test_a_python_that_the_environment_names_runs_the_workers(
    no_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python-of-the-environment"
    other.write_text(f'#!/bin/sh\nexport STARTED_BY="$0"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    with factory():
        assert told_by_a_worker(running_session(), "STARTED_BY") == str(other)


def test_a_session_that_ran_before_is_never_stopped(spark: Any) -> None:
    shared = SharedSession()
    assert shared.hold() is shared.hold()
    shared.release()
    shared.release()

    assert running_session() is not None
    assert spark.range(3).count() == 3
