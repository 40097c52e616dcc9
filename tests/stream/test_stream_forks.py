"""Connections and forks; the tests are in ``stream_forks.py``."""

from __future__ import annotations

from pathlib import Path

from tests.own_process import run_tests_of


def test_a_child_uses_no_connection_of_its_parent() -> None:
    assert " passed" in run_tests_of(Path(__file__).with_name("stream_forks.py"))
