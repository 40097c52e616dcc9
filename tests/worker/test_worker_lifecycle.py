"""The transition table, and the arithmetic of pauses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.base.backoff import JITTER_SHARE, LeaseRetryStrategy, doubling_millis, with_jitter
from streamclient.core.consumer.transitions import PUBLIC_STATES, TRANSITIONS, Outcome, Phase, next_phase, stronger
from streamclient.errors import DependencyException, ErrorKind, StreamClientException
from streamclient.interfaces import RetryableAction
from streamclient.model import ShardState, ShutdownReason

USER_CODE_PHASES = {Phase.STARTING, Phase.DELIVERING, Phase.PARKING, Phase.CLOSING}
WITH_PROCESSOR = {Phase.STARTING, Phase.READING, Phase.WAITING, Phase.DELIVERING, Phase.PARKING, Phase.CLOSING}
ACTION = RetryableAction.LEASE_ACTION_LIST_LEASES


def followers(phase: Phase) -> dict[Outcome, Phase]:
    return {outcome: after for (before, outcome), after in TRANSITIONS.items() if before is phase}


def test_every_phase_has_a_public_state() -> None:
    assert set(PUBLIC_STATES) == set(Phase)
    without_consumer = {ShardState.WAITING_ON_PARENT_SHARDS, ShardState.PAUSED}
    assert set(PUBLIC_STATES.values()) | without_consumer == set(ShardState)


def test_the_end_is_final() -> None:
    assert followers(Phase.ENDED) == {}


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.ENDED, Phase.CLOSING)])
def test_a_stop_ends_every_phase_within_two_steps(phase: Phase) -> None:
    after = next_phase(phase, Outcome.STOPPED)
    assert after is Phase.ENDED or next_phase(after, Outcome.CLOSED) is Phase.ENDED


def test_a_processor_that_was_made_is_always_closed() -> None:
    """Only CLOSING leads from phases with a processor to phases without, and NOT_MADE, where none was made."""
    leaks = {
        (before, outcome)
        for (before, outcome), after in TRANSITIONS.items()
        if before in WITH_PROCESSOR and after not in WITH_PROCESSOR
    }

    assert {outcome for before, outcome in leaks if before is not Phase.CLOSING} == {Outcome.NOT_MADE}


def test_only_a_return_of_user_code_leaves_its_phases() -> None:
    returns = {
        Outcome.INITIALIZED,
        Outcome.NOT_MADE,
        Outcome.FAILED,
        Outcome.STOPPED,
        Outcome.ACCEPTED,
        Outcome.CAUGHT_UP,
        Outcome.END_REACHED,
        Outcome.REFUSED_FOR_NOW,
        Outcome.CLOSED,
        Outcome.CLOSED_TO_RESTART,
        Outcome.CLOSED_TO_HALT,
        Outcome.DELIVERY_DUE,
        Outcome.STORE_DUE,
        Outcome.GIVEN_UP,
    }

    assert all(outcome in returns for (before, outcome) in TRANSITIONS if before in USER_CODE_PHASES)


def test_only_a_page_that_is_dealt_with_leads_to_the_next_one() -> None:
    """What failed is delivered again, parked or read again; nothing else moves past it."""
    past = {
        outcome
        for (before, outcome), after in TRANSITIONS.items()
        if before in (Phase.DELIVERING, Phase.PARKING) and after not in (Phase.DELIVERING, Phase.PARKING)
    }

    assert past == {
        Outcome.ACCEPTED,
        Outcome.CAUGHT_UP,
        Outcome.END_REACHED,
        Outcome.REFUSED_FOR_NOW,
        Outcome.FAILED,
        Outcome.GIVEN_UP,
        Outcome.STOPPED,
    }


def test_every_phase_can_be_reached() -> None:
    reached = {Phase.BACKING_OFF}
    for _ in Phase:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}

    assert reached == set(Phase)


def test_an_impossible_transition_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="phase ended has no transition for outcome read_due"):
        next_phase(Phase.ENDED, Outcome.READ_DUE)


def test_a_lost_lease_outranks_an_ended_shard_which_outranks_a_request() -> None:
    """The strongest reason wins, not the last one."""
    ranked = [
        ShutdownReason.ZOMBIE,
        ShutdownReason.TERMINATE,
        ShutdownReason.STOLEN,
        ShutdownReason.PAUSED,
        ShutdownReason.PROCESS_DONE,
    ]
    for place, strong in enumerate(ranked):
        for weak in ranked[place:]:
            assert stronger(strong, weak) is strong
            assert stronger(weak, strong) is strong
    assert stronger(None, None) is None
    assert stronger(None, ShutdownReason.STOLEN) is ShutdownReason.STOLEN


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 100_000))
def test_pauses_double_from_the_shortest_to_the_longest(failures: int, shortest: int, more: int) -> None:
    longest = shortest + more
    pause = doubling_millis(failures, shortest, longest)

    if failures == 0:
        assert pause == 0
    else:
        assert shortest <= pause <= longest
        assert doubling_millis(failures + 1, shortest, longest) == min(2 * pause, longest)


@settings(deadline=None)
@given(st.integers(0, 100_000), st.integers())
def test_jitter_only_shortens_and_by_a_quarter_at_most(millis: int, seed: int) -> None:
    assert millis * (1 - JITTER_SHARE) <= with_jitter(millis, random.Random(seed)) <= millis


def test_the_default_strategy_makes_ten_retries_over_five_and_a_half_seconds() -> None:
    strategy = LeaseRetryStrategy()
    error = DependencyException("busy", kind=ErrorKind.THROTTLED)
    made = [retries for retries in range(20) if strategy.should_retry(ACTION, error, retries)]

    assert made == list(range(10))
    assert sum(strategy.backoff_millis(ACTION, error, retries) for retries in made) == 5_500


def test_the_default_strategy_retries_nothing_that_must_fail_again() -> None:
    strategy = LeaseRetryStrategy()
    assert not strategy.should_retry(ACTION, DependencyException("denied", kind=ErrorKind.PERMANENT), 0)
    assert not strategy.should_retry(ACTION, StreamClientException("bug"), 0)
