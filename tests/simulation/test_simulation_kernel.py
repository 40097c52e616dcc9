"""What all simulations are played on: time, the network, processes that freeze and die."""

from __future__ import annotations

import pytest

from streamclient.testing.simulation.kernel import EVERYBODY, Agenda, Dice, PlayedHistory, SimulatedProcess
from streamclient.testing.simulation.plan import Action, Plan, Rates
from streamclient.testing.simulation.simulated_faults import Do, Fate


@pytest.fixture
def history() -> PlayedHistory:
    return PlayedHistory(Plan(seed=1))


@pytest.fixture
def process(history: PlayedHistory) -> SimulatedProcess:
    return SimulatedProcess(history, "w1", "w1#1", Dice.of(1, "process"))


def test_calls_happen_by_time_and_then_by_order() -> None:
    agenda, called = Agenda(), list[tuple[float, str]]()
    for seconds, name in ((2.0, "late"), (1.0, "first"), (1.0, "second"), (9.0, "never")):
        agenda.after(seconds, lambda name=name: called.append((agenda.now, name)))
    agenda.run_until(5.0)

    assert called == [(1.0, "first"), (1.0, "second"), (2.0, "late")]
    assert (agenda.now, agenda.next_moment) == (5.0, 9.0)


def test_time_never_goes_back_to_a_call_that_is_overdue() -> None:
    agenda, called = Agenda(), list[float]()
    agenda.after(1.0, lambda: called.append(agenda.now))
    agenda.now = 3.0
    agenda.run_until(2.0)

    assert called == [3.0]
    assert agenda.now == 3.0


def test_waiting_ends_when_nothing_is_missing_or_when_the_time_is_over() -> None:
    agenda = Agenda()

    assert agenda.wait(lambda: ["a shard"] if agenda.now < 4.0 else [], 10.0, 3.0) == []
    assert agenda.now == 6.0
    assert agenda.wait(lambda: "a shard", 10.0, 3.0) == "a shard"
    assert agenda.now == 18.0


def test_a_frozen_process_goes_on_in_order_and_a_dead_one_does_not(
    history: PlayedHistory, process: SimulatedProcess
) -> None:
    called = list[tuple[float, str]]()
    for seconds, name in ((1.0, "one"), (2.0, "two"), (9.0, "three")):
        process.later(seconds, lambda name=name: called.append((history.now, name)))
    process.freeze(5.0)
    history.agenda.run_until(6.0)
    process.crash()
    history.agenda.run_until(10.0)

    assert called == [(5.0, "one"), (5.0, "two")]


def test_clocks_differ_and_their_rates_are_wrong_by_no_more_than_the_drift(
    history: PlayedHistory, process: SimulatedProcess
) -> None:
    process.set_clock(0.002)
    began = process.local()
    history.agenda.run_until(1_000.0)

    assert 0.0 < began < 1_000.0
    assert 0.0 < abs(process.local() - began - 1_000.0) <= 2.0


def test_an_action_is_counted_only_if_it_had_an_effect(history: PlayedHistory) -> None:
    acts = {Do.SPLIT: lambda actor, action: action.where > 0.5}
    for where in (0.1, 0.9):
        history.act(acts, None, Action(at=0.0, do=Do.SPLIT, where=where))

    assert history.injected == {"split": 1}
    assert [entry[2] for entry in history.trace.entries] == ["split where 0.1", "split where 0.9"]


def test_a_disturbance_lasts_for_its_time_and_ends_with_the_storm(history: PlayedHistory) -> None:
    dice = Dice.of(1, "calls")
    history.act({}, None, Action(at=0.0, do=Do.CUT, who="w1", seconds=5.0))
    history.act({}, None, Action(at=0.0, do=Do.DEAFEN, who=EVERYBODY, seconds=20.0))
    first = [history.network.fate(who, dice) for who in ("w1", "w2")]
    history.agenda.run_until(6.0)
    then = history.network.fate("w1", dice)
    history.network.calm()

    assert first == [Fate.CUT, Fate.DEAF]
    assert then is Fate.DEAF
    assert history.network.fate("w1", dice) is Fate.FINE


def test_single_calls_fail_at_their_rates() -> None:
    history = PlayedHistory(Plan(seed=1, rates=Rates(lost_answer=0.2, throttled=0.1)))
    dice = Dice.of(1, "calls")
    fates = [history.network.fate("w1", dice) for _ in range(2_000)]

    assert set(fates) == {Fate.FINE, Fate.LOST_ANSWER, Fate.THROTTLED}
    assert 340 < fates.count(Fate.LOST_ANSWER) < 460
    assert 150 < fates.count(Fate.THROTTLED) < 250
    assert history.injected == {"lost answer": fates.count(Fate.LOST_ANSWER), "throttled": fates.count(Fate.THROTTLED)}
