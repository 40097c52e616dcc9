"""What every test may use."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from streamclient.worker.running import EndedBySigterm

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from streamclient.server import LocalTablestore
    from tests.installed import Installed

COMPUTING = {"spark", "interop"}
"""Marks of tests that start a Spark or a Java, which keeps a processor busy for a while."""

ONE_SPARK = "_spark"
"""In the names of files whose tests use the Spark of their process: one process runs them all, and starts one."""

SPREAD = ("_cases", "_drill", "_rounds", "_benchmarks", "_examples")
"""At the end of names of files whose tests are spread. Those of a file with the same text before the first colon of
their names stay together, and share what they start: cases of a table. The others need nothing of each other."""

INSTALLS = "test_first_hour.py"
"""Builds and installs the wheel, for which tests of other files wait then, so it begins early."""

# How long an example takes says something of the machine, not of the code.
settings.register_profile("streamclient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamclient")

# A shell starts what runs in its background with Ctrl-C ignored, and so would be whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Half of a short Spark's time goes into compiling what runs once and into the threads of a collector for large heaps.
# These variables are Spark's own: of those that every Java reads, it prints a line.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Hundreds of processes start from here: one that may not keep what it compiles spends a fifth of its start on that. So
# does this one, on the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# As in an activated environment: commands tell the names of programs that a shell finds, and the paths of others.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def pytest_configure(config: pytest.Config) -> None:
    """Give all Sparks one home: what is installed, without the archive of its own Python.

    Each Python process that Spark starts would import that archive, and compile all of it: three quarters of the time
    that a planner takes to start, for which Spark waits ten seconds, however much the machine has to do.
    """
    spec = find_spec("pyspark")
    if spec is None or "SPARK_HOME" in os.environ:
        return
    home = tempfile.TemporaryDirectory(prefix="spark-home-")
    config.add_cleanup(home.cleanup)
    for place in spec.submodule_search_locations or ():
        for entry in Path(place).iterdir():
            if entry.name != "python":
                Path(home.name, entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = home.name


def uses_the_spark_of_its_process(file: str) -> bool:
    """By the name of the file."""
    return ONE_SPARK in PurePath(file).name


def is_spread(file: str) -> bool:
    """By the name of the file."""
    return PurePath(file).stem.endswith(SPREAD)


def together(nodeid: str) -> str:
    """Tests for which this is the same are run by one process."""
    file, _, test = nodeid.partition("::")
    if uses_the_spark_of_its_process(file):
        return ONE_SPARK
    return f"{file}::{test.partition(':')[0]}" if is_spread(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Where a file's tests stay together, so do those of all files that use the Spark of their process."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Together(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """A fixture may have had Spark log an error, and the test looks at logs."""
    try:
        return (yield)
    finally:
        _leave_formatters_alone()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """The test may have had Spark log an error, and further ones look at logs."""
    try:
        return (yield)
    finally:
        _leave_formatters_alone()


def _leave_formatters_alone() -> None:
    """Some errors of Spark are logged by a logger that does not propagate, and that changes each handler it gets.

    pytest gives its own handlers to all loggers that do not propagate, and would keep JSON from then on, with errors
    that are asked for their text once more.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__module__.startswith("pyspark."):
            logger.propagate = True


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What a test printed or logged may hold what UTF-8 has no bytes for; a report with it would end the whole run."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first, since whoever begins one last leaves the other processors idle.

    First of all come those that one process runs. Others that compute are spread over the first half of the rest, most
    of which wait: so a few Sparks run at any time, and never all of them. The rest begins with the wheel, then drills.
    """
    marks = {item.path: set[str]() for item in items}
    for item in items:
        marks[item.path].update(mark.name for mark in item.iter_markers())
    first = [path for path in marks if uses_the_spark_of_its_process(str(path))]
    computing = [path for path in marks if marks[path] & COMPUTING and path not in first]
    rest = marks.keys() - {*first, *computing}

    def order(path: Path) -> tuple[bool, bool, bool, Path]:
        return path.name != INSTALLS, not is_spread(path.name), "slow" not in marks[path], path

    others = sorted(rest, key=order)
    step = max(1, len(others) // 2 // max(1, len(computing)))
    # The tests of a file stay together, so each has a place of its own.
    places = {path: (number, 1) for number, path in enumerate(others)}
    places |= {path: (number * step, 0) for number, path in enumerate(computing)}
    places |= {path: (-1, number) for number, path in enumerate(first)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(autouse=True)
def keeps_sigterm() -> Iterator[None]:
    """A test leaves SIGTERM as it found it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) != before:
        gc.collect()
        with EndedBySigterm(is_wanted=True):  # a block that another thread left makes way
            pass
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    """A running local Tablestore of the test's own, in memory; or the service that the environment names, emptied."""
    from tests.stage import started_server

    with started_server() as running:
        yield running


@pytest.fixture(scope="session")
def spark_ends() -> Iterator[None]:
    """Whatever session runs when all is over is stopped."""
    from streamclient.spark.spark_session import running_session

    yield
    session = running_session()
    if session is not None:
        session.stop()


@pytest.fixture
def spark(spark_ends: None) -> Any:
    """The session that runs. Looked for by each test: what ran between two may have stopped the one before."""
    from streamclient.spark import local_session

    # Compiling code for each tiny job takes most of its time; the documentation's examples run with it.
    return local_session("tests", **{"spark.sql.codegen.wholeStage": "false"})


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel of this checkout; one for all processes that run tests of one run."""
    from tests.installed import Installed, install

    own = tmp_path_factory.getbasetemp()
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)  # one that failed leaves half of it
            place.mkdir()
            install(place)
            (place / "done").touch()
    return Installed(place / "venv")
