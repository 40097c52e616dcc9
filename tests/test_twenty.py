"""What ``make test-twenty`` runs again, and how often."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.twenty import without_turn

ROOT = Path(__file__).resolve().parents[1]

SUITE = """
import socket, subprocess, sys, threading
import pytest

@pytest.fixture(scope="module")
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening

@pytest.mark.parametrize("number", [1, 2])
def test_thread(number):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_server(server):
    pass

def test_server_again(server):
    pass

def test_alone():
    pass
"""


def run(folder: Path, suite: str, *options: str) -> tuple[int, str]:
    (folder / "test_suite.py").write_text(suite)
    done = subprocess.run(
        [sys.executable, "-m", "tests.twenty", "--times", "3", str(folder), "-v", "-c", "/dev/null", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_what_runs_beside_something_runs_again_and_nothing_else(tmp_path: Path) -> None:
    code, printed = run(tmp_path, SUITE)
    passed = re.findall(r"::(\w+)\S* PASSED", printed.partition("times in a row")[2])

    assert code == 0, printed
    assert "5 tests do; each of them 3 times in a row" in printed
    assert passed == [
        name
        for name in ("test_thread", "test_thread", "test_process", "test_server", "test_server_again")
        for _ in range(3)
    ]


@pytest.mark.slow
def test_several_processes_share_the_turns(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(SUITE)
    code, printed = run(tmp_path, SUITE, "-n", "2", "--dist", "loadfile")
    passed = re.findall(r"(gw\d).* PASSED (\S+\.py)::(\w+)", printed.partition("times in a row")[2])

    assert code == 0, printed
    assert "10 tests do; each of them 3 times in a row" in printed
    assert len(passed) == 30
    assert len({(process, file) for process, file, _ in passed}) == 2


@pytest.mark.slow
def test_one_failure_in_many_turns_fails_the_run(tmp_path: Path) -> None:
    """It passes while it is looked at, and the second time in a row it does not."""
    count = tmp_path / "count"
    suite = f"""
import pathlib, threading

def test_now_and_then():
    threading.Thread(target=int).start()
    count = pathlib.Path({str(count)!r})
    count.write_text(count.read_text() + "." if count.exists() else ".")
    assert len(count.read_text()) != 3
"""
    code, printed = run(tmp_path, suite)

    assert code == 1, printed
    assert "1 failed, 2 passed" in printed


@pytest.mark.parametrize(
    ("node", "plain"),
    [
        ("a.py::test_b[turn0]", "a.py::test_b"),
        ("a.py::test_b[x-turn19]", "a.py::test_b[x]"),
        ("a.py::test_b[x-1]", "a.py::test_b[x-1]"),
        ("a.py::test_return", "a.py::test_return"),
        ("a.py::test_b[return]", "a.py::test_b[return]"),
    ],
)
def test_a_turn_is_no_part_of_a_tests_name(node: str, plain: str) -> None:
    assert without_turn(node) == plain
