"""Locks on files, over forks too; the tests are in ``locks_of_files.py``."""

from __future__ import annotations

from pathlib import Path

from tests.own_process import run_tests_of


def test_a_lock_is_held_by_one_process() -> None:
    assert " passed" in run_tests_of(Path(__file__).with_name("locks_of_files.py"))
