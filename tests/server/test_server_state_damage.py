"""Data directories that are damaged, held, or left by a fork; the tests are in ``server_state_damage.py``."""

from __future__ import annotations

from pathlib import Path

from tests.own_process import run_tests_of


def test_a_data_directory_is_refused_or_served_whole() -> None:
    assert " passed" in run_tests_of(Path(__file__).with_name("server_state_damage.py"))
