"""What was started before a fork; the tests are in ``forks.py``."""

from __future__ import annotations

from pathlib import Path

from tests.own_process import run_tests_of


def test_what_was_started_before_a_fork_says_so_in_the_child() -> None:
    assert " passed" in run_tests_of(Path(__file__).with_name("forks.py"))
