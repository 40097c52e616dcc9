"""The table of held leases: what facts make a state, and that none of the states that cannot be is in it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from attrs import evolve
from holdings_driver import row

from streamclient.core.held import NEXT, Acquisition, Consuming, HeldLease, Intention, LeaseStep, RowState
from streamclient.core.write_rules import NO_DOUBT

HELD = HeldLease(row("a", "me", 3), "t1", 119.0, 3, 100.0, Acquisition(1))


def test_every_intention_has_a_step_for_every_state_that_can_be() -> None:
    """Nothing is offered while user code may run, and no consumer starts before an acknowledgement is taken back."""
    cannot_be = {
        (Consuming.CONSUMER, RowState.OBEYS),
        (Consuming.CONSUMER, RowState.OFFERED),
        (Consuming.LEAVING, RowState.OFFERED),
    }
    expected = {state for state in product(Intention, Consuming, RowState) if state[1:] not in cannot_be}

    assert set(NEXT) == expected


def test_a_consumer_starts_in_one_state_only() -> None:
    starts = [state for state, step in NEXT.items() if step is LeaseStep.START]
    assert starts == [(Intention.READ, Consuming.NO_CONSUMER, RowState.OWN)]


def test_nothing_is_handed_over_while_user_code_may_run() -> None:
    given = {consuming for (_, consuming, _), step in NEXT.items() if step is LeaseStep.HAND_OVER}
    assert given == {Consuming.NO_CONSUMER}


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, RowState.OWN),
        ({"may_acknowledge": True}, RowState.OBEYS),
        ({"may_acknowledge": True, "is_offered": True}, RowState.OFFERED),
        ({"may_acknowledge": True, "is_offered": True, "is_gone": True}, RowState.GONE),
    ],
)
def test_what_keeps_a_row_from_being_read_for_longest_is_its_state(facts: dict[str, Any], state: RowState) -> None:
    held = evolve(HELD, **facts)
    assert held.row is state
    assert held.step is NEXT[Intention.READ, Consuming.NO_CONSUMER, state]


def test_writes_in_doubt_count_from_the_earliest_and_wait_ever_longer() -> None:
    """Any of them may be the one that moved the row, so nothing later may be relied on."""
    doubt = NO_DOUBT.sent(12.0).sent(10.0).sent(11.0)
    again = doubt.again(20.0, lambda failures: 2.0 * failures).again(30.0, lambda failures: 2.0 * failures)

    assert (doubt.since, doubt.tries) == (10.0, 0)
    assert (again.since, again.tries, again.not_before) == (10.0, 2, 34.0)
