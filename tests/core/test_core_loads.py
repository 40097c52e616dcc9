"""Rates of leases, from what their rows say was processed."""

from __future__ import annotations

import pytest
from attrs import evolve

from streamclient.core.plan.loads import MEASURED_SECONDS, Loads
from streamclient.model import BalanceBy, CheckpointPosition, Lease, Progress


def row(key: str, records: int, bytes_: int = 0, **fields: object) -> Lease:
    return evolve(Lease(key, "stream", progress=Progress(1, records, bytes_)), **fields)


def steady(loads: Loads, seconds: float, per_second: int, *, step: float = 5.0) -> None:
    for number in range(int(seconds / step) + 1):
        at = number * step
        loads.observe([row("a", int(at * per_second), int(at * per_second) * 10)], at)


@pytest.fixture
def loads() -> Loads:
    return Loads(BalanceBy.RECORDS)


def test_a_steady_flow_has_its_rate() -> None:
    for balance_by, expected in ((BalanceBy.RECORDS, 7.0), (BalanceBy.BYTES, 70.0)):
        loads = Loads(balance_by)
        steady(loads, 600, 7)

        assert loads.rates() == {"a": pytest.approx(expected)}


def test_nothing_is_a_rate_before_it_was_watched_for_long_enough(loads: Loads) -> None:
    steady(loads, MEASURED_SECONDS - 5, 7)
    assert loads.rates() == {}
    steady(loads, MEASURED_SECONDS + 5, 7)
    assert set(loads.rates()) == {"a"}


def test_an_idle_lease_has_the_rate_zero(loads: Loads) -> None:
    steady(loads, 60, 0)
    assert loads.rates() == {"a": 0.0}


def test_how_often_one_looks_does_not_matter() -> None:
    rates = []
    for step in (1.0, 7.0, 60.0):
        loads = Loads(BalanceBy.RECORDS)
        steady(loads, 420, 10, step=step)
        rates.append(loads.rates()["a"])

    assert rates == pytest.approx([10.0, 10.0, 10.0])


def test_a_burst_fades(loads: Loads) -> None:
    steady(loads, 300, 10)
    loads.observe([row("a", 3_000 + 30_000)], 305.0)
    after_burst = loads.rates()["a"]
    loads.observe([row("a", 3_000 + 30_000 + 18_000)], 2_105.0)

    assert after_burst > 100
    assert loads.rates()["a"] < 12


def test_a_row_that_counts_anew_is_measured_anew(loads: Loads) -> None:
    steady(loads, 300, 10)
    loads.observe([row("a", 5)], 305.0)
    assert loads.rates() == {}


def test_finished_leases_and_those_without_progress_have_no_rate(loads: Loads) -> None:
    for at in (0.0, 100.0):
        done = row("done", 5, checkpoint=CheckpointPosition.SHARD_END)
        loads.observe([done, Lease("silent", "stream"), row("a", 5)], at)

    assert loads.rates() == {"a": 0.0}


def test_balancing_by_count_measures_nothing() -> None:
    loads = Loads(BalanceBy.COUNT)
    steady(loads, 300, 10)
    assert loads.rates() == {}
