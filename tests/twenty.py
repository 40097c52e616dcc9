"""Runs every test that starts a thread, a process or a server many times in a row: ``make test-twenty``.

A test that passes now and then fails now and then, and is not to be believed. Which tests are meant is seen, not
declared: first everything runs once, and the starts of threads and Python's audit events tell which tests start or meet
something that runs beside them. Those run again, each the given number of times one after the other. Nothing is
retried: one failure fails all.

Several processes may share the tests (``-n``, as in ``make test``): the turns of one test stay in one of them where its
file does (``--dist loadfile``).

usage: python -m tests.twenty [--times N] [what pytest takes]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BESIDE = {
    "subprocess.Popen",
    "os.fork",
    "os.posix_spawn",
    "socket.connect",
    "socket.bind",
}
"""Audit events of processes and servers. Threads have one from Python 3.12 on only."""

TURN = "turn"


class Meeting:
    """Notes which tests start something, or use a fixture that did: a server of their module, for example."""

    def __init__(self) -> None:
        self.tests: set[str] = set()
        self._fixtures: set[tuple[str, str]] = set()
        self._current: str | None = None
        self._events = 0
        sys.addaudithook(lambda event, _: self._heard() if event in BESIDE else None)
        start = threading.Thread.start

        def heard_start(thread: threading.Thread) -> None:
            self._heard()
            start(thread)

        threading.Thread.start = heard_start  # type: ignore[method-assign]

    def _heard(self) -> None:
        if self._current is not None:
            self._events += 1
            self.tests.add(self._current)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._current = item.nodeid
        try:
            return (yield)
        finally:
            self._current = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self._events
        try:
            return (yield)
        finally:
            if self._events > before:
                self._fixtures.add((fixturedef.argname, fixturedef.baseid))

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        used = getattr(item, "fixturenames", ())
        if any(name in used and item.nodeid.startswith(place) for name, place in self._fixtures):
            self.tests.add(item.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("twenty")
    group.addoption("--met", metavar="DIR", help="write the tests that start or meet something, a file each process")
    group.addoption("--only", metavar="FILE", help="run only the tests of such a file")
    group.addoption("--turns", type=int, default=1, help="run each test so many times in a row")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--met"):
        config.pluginmanager.register(Meeting(), "meeting")


def pytest_sessionfinish(session: pytest.Session) -> None:
    meeting = session.config.pluginmanager.get_plugin("meeting")
    if meeting is not None:
        met = Path(session.config.getoption("--met")) / f"{os.getpid()}"
        met.write_text("\n".join(sorted(meeting.tests)), encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test in as many copies as there are turns, one right behind the other."""
    turns = metafunc.config.getoption("--turns")
    if turns > 1:
        metafunc.fixturenames.append(TURN)
        metafunc.parametrize(TURN, range(turns), ids=[f"{TURN}{number}" for number in range(turns)])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = config.getoption("--only")
    if listed:
        meant = set(Path(listed).read_text(encoding="utf-8").splitlines())
        chosen = [item for item in items if without_turn(item.nodeid) in meant]
        config.hook.pytest_deselected(items=[item for item in items if without_turn(item.nodeid) not in meant])
        items[:] = chosen


def without_turn(node: str) -> str:
    """The name of a test as it is without turns: the turn is the last of its parameters."""
    head, _, turn = node.rpartition(TURN)
    if not turn.removesuffix("]").isdigit():
        return node
    return head.removesuffix("[") if head.endswith("[") else f"{head.removesuffix('-')}]"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.twenty", description="Run tests many times in a row.")
    parser.add_argument("--times", type=int, default=20)
    options, words = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "pytest", "-p", "tests.twenty", *words]
    with tempfile.TemporaryDirectory() as directory:
        print("once, to see which tests start a thread, a process or a server", flush=True)
        code = subprocess.run([*command, f"--met={directory}"], check=False).returncode
        if code != 0:
            return code
        tests = {test for met in Path(directory).iterdir() for test in met.read_text(encoding="utf-8").splitlines()}
        chosen = Path(directory) / "chosen"
        chosen.write_text("\n".join(sorted(tests)), encoding="utf-8")
        print(f"{len(tests)} tests do; each of them {options.times} times in a row", flush=True)
        return subprocess.run([*command, f"--only={chosen}", f"--turns={options.times}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
