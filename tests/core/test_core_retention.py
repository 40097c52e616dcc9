"""How far behind, how long until records are lost, and what will come of it: numbers in, numbers out."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND
from streamclient.core.consumer import retention
from streamclient.core.consumer.retention import (
    CAUGHT_UP,
    NOTHING_KNOWN,
    Backlog,
    RecordClock,
    RetentionReport,
    forecast,
)

START = 1_700_000_000 * MICROS_PER_SECOND
DAY = 24 * MICROS_PER_HOUR


def report(backlog: Backlog, now: float, *, expiration_micros: int | None = DAY) -> RetentionReport:
    """With a service whose clock reads START at monotonic 0."""
    service_micros = START + int(now * MICROS_PER_SECOND)
    return backlog.report(now, service_micros, expiration_micros=expiration_micros, fresh_seconds=6.0)


def at(seconds: float) -> int:
    return START + int(seconds * MICROS_PER_SECOND)


def test_the_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(retention).failed == 0


# --- clock ------------------------------------------------------------------------------------------------------------


def test_without_records_the_service_has_this_machines_time() -> None:
    assert RecordClock().micros(START, 5.0) == START


def test_a_machine_that_is_behind_is_put_right_by_the_newest_record() -> None:
    clock = RecordClock()
    clock.saw(START, 10.0)
    clock.saw(START - 50, 11.0)

    assert clock.micros(START - 999, 12.5) == START + 2_500_000


def test_a_machine_that_is_ahead_overstates_lags_by_as_much() -> None:
    """It warns early; nothing tells it better."""
    clock = RecordClock()
    clock.saw(START, 10.0)
    assert clock.micros(START + 7_000_000, 11.0) == START + 7_000_000


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1_000)), max_size=20))
def test_the_service_is_never_before_a_record_that_was_seen(sightings: list[tuple[int, float]]) -> None:
    clock = RecordClock()
    for micros, now in sightings:
        clock.saw(micros, now)
    latest = max((now for _, now in sightings), default=0.0)

    assert all(clock.micros(0, latest) >= micros - 1 for micros, _ in sightings)


# --- backlog ----------------------------------------------------------------------------------------------------------


def test_nothing_is_reported_before_anything_is_known() -> None:
    assert report(Backlog(), 0.0) == NOTHING_KNOWN


def test_the_stored_progress_counts_before_the_first_read() -> None:
    """As for a shard that waits, or is paused: it is behind by at least that."""
    lag = report(Backlog(at(-7_200)), 0.0)
    assert (lag.lag_seconds, lag.time_to_loss_seconds) == (7_200.0, 79_200.0)


def test_a_page_that_waits_for_its_processor_is_unread_from_its_first_record() -> None:
    backlog = Backlog()
    backlog.came(at(-100), 0.0)

    assert report(backlog, 5.0).lag_seconds == 105.0
    backlog.dealt_with(at(-40), 5.0)
    assert report(backlog, 5.0).lag_seconds == 45.0


def test_a_shard_that_found_nothing_more_is_caught_up_as_long_as_it_is_read() -> None:
    """After that, what may have come since its last read counts as unread."""
    backlog = Backlog()
    backlog.dealt_with(at(-900), 0.0)
    backlog.caught_up(at(0), 0.0)

    assert report(backlog, 6.0) == CAUGHT_UP
    assert report(backlog, 7.0).lag_seconds == 7.0
    backlog.caught_up(at(8), 8.0)
    assert report(backlog, 8.0) == CAUGHT_UP


def test_a_shard_after_which_records_may_follow_lags_since_it_was_caught_up() -> None:
    backlog = Backlog()
    backlog.dealt_with(at(-900), 0.0)
    backlog.may_follow()
    assert report(backlog, 1.0).lag_seconds == 901.0

    backlog.caught_up(at(2), 2.0)
    backlog.may_follow()
    assert report(backlog, 3.0).lag_seconds == 1.0


def test_a_shard_that_goes_on_elsewhere_starts_with_nothing() -> None:
    backlog = Backlog(at(-7_200))
    backlog.forget()

    assert report(backlog, 0.0) == NOTHING_KNOWN
    assert backlog.unread_micros is None


def test_without_retention_there_is_a_lag_and_no_loss() -> None:
    found = report(Backlog(at(-60)), 0.0, expiration_micros=None)
    assert (found.lag_seconds, found.time_to_loss_seconds) == (60.0, None)


def moved(pace: float, seconds: int, *, behind: float = 3_600.0) -> tuple[Backlog, float]:
    """A shard that has dealt with records at a pace for so long, a second at a time."""
    backlog = Backlog()
    for second in range(seconds + 1):
        backlog.dealt_with(at(-behind + pace * second), float(second))
    return backlog, float(seconds)


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (3.0, "catches up in about 25 min"),
        (1.0, "keeps its lag"),
        (0.5, "falls behind: records are lost in about 46 h"),
        (0.0, "stands still: records are lost in about 23 h"),
    ],
)
def test_the_forecast_follows_the_pace_of_the_last_minutes(pace: float, expected: str) -> None:
    backlog, now = moved(pace, 300)
    assert report(backlog, now).forecast == expected


def test_nothing_is_forecast_from_a_few_seconds() -> None:
    backlog, now = moved(3.0, 9)
    assert report(backlog, now).forecast == ""


def test_a_shard_that_stops_moving_is_noticed_within_minutes() -> None:
    backlog, now = moved(3.0, 300)
    assert report(backlog, now + 150).forecast.startswith("catches up")
    assert report(backlog, now + 400).forecast.startswith("stands still")


def test_what_is_remembered_is_bounded() -> None:
    backlog, _ = moved(2.0, 5_000)
    assert len(backlog._moments) <= 62


def test_past_retention_is_said_as_such() -> None:
    assert report(Backlog(at(-90_000)), 0.0).forecast == "past the stream's retention: records may be lost already"


@given(st.floats(0, 10**7), st.floats(0, 10**6), st.floats(-10, 100))
def test_every_forecast_is_one_of_a_few_sentences(lag: float, left: float, pace: float) -> None:
    known = ("catches up in", "keeps its", "falls behind", "stands still", "past the")
    assert forecast(lag, left, pace).startswith(known)
    assert forecast(lag, None, pace).startswith(known)


def test_a_forecast_comes_true_at_a_steady_pace() -> None:
    """The shard goes on as before: at the forecast time its oldest unread record is at its end."""
    backlog, now = moved(0.5, 300)
    assert report(backlog, now).forecast == "falls behind: records are lost in about 46 h"
    lag_seconds = report(backlog, now).lag_seconds or 0.0
    for minute in range(46 * 60):
        backlog.dealt_with(at(300 - lag_seconds + 30 * minute), now + 60.0 * minute)

    left = report(backlog, now + 46 * 3_600.0).time_to_loss_seconds
    assert left is not None
    assert abs(left) < 3_600
