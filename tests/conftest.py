"""What every test may use."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore
    from tests.installed import Installed

COMPUTING = {"spark", "interop"}
"""Marks of tests that start a Spark or a Java, which keeps a processor busy for a while."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first, since whoever begins one last leaves the other processors idle.

    Those that compute are spread over the first half of the others, most of which wait: so a few Sparks run at any
    time, and never all of them.
    """
    marks = {item.path: set[str]() for item in items}
    for item in items:
        marks[item.path].update(mark.name for mark in item.iter_markers())
    computing = [path for path in marks if marks[path] & COMPUTING]
    others = sorted(marks.keys() - set(computing), key=lambda path: ("slow" not in marks[path], path))
    step = max(1, len(others) // 2 // max(1, len(computing)))
    # The tests of a file stay together, so each has a place of its own.
    places = {path: (number, 1) for number, path in enumerate(others)}
    places |= {path: (number * step, 0) for number, path in enumerate(computing)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    """A running local Tablestore of the test's own, in memory; or the service that the environment names, emptied."""
    from streamclient.server import LocalTablestore
    from tests.service_under_test import real_service

    service = real_service()
    if service is not None:
        yield cast("LocalTablestore", service)
        service.clear()
        return
    with LocalTablestore() as running:
        yield running


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
