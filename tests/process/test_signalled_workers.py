"""A signal at the steps of a start and a stop: the process ends, and the next one has all records."""

from __future__ import annotations

import signal

import pytest

from tests.interrupts import handled_by_python
from tests.process.hostile import row_of_a_signal


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (signal.SIGTERM, "made"),
        (signal.SIGINT, "processed"),
        (signal.SIGTERM, "shut down"),
    ],
)
def test_a_signal_costs_no_record(number: signal.Signals, step: str) -> None:
    with handled_by_python():
        row = row_of_a_signal(number, step)

    assert row.problem == ""
