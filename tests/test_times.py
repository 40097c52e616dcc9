"""Times and durations as people write and read them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.times import (
    duration,
    parse_duration,
    parse_local_time,
    parse_moment,
    parse_timestamp,
    rough_duration,
    utc_text,
    zoned_micros,
)
from streamclient.errors import ConfigurationError

NOON = 1_767_268_800_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (12.4, "12 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (86_399, "23 h 59 min"),
        (530_000, "6 d 3 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5_400), ("1.5d", 129_600)])
def test_durations_are_read_as_they_are_documented(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1w", "2h ", "h", "0s", "-1h", "1h-2m"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["3652059d", "9" * 25 + "d", "9" * 400 + "d"])
def test_a_duration_that_is_longer_than_all_time_is_refused(text: str) -> None:
    assert parse_duration("3652058d") == 3_652_058 * 86_400
    with pytest.raises(ConfigurationError, match="a duration must be at most 3652058d") as refused:
        parse_duration(text)
    assert len(str(refused.value)) < 300, "a long text is cut"


@pytest.mark.parametrize("text", ["3000000d-ago", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_no_text_can_express_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is outside of the years 1 to 9999$"):
        parse_moment(text, NOON)
    assert utc_text(parse_moment("9999-12-31T23:59:59Z", NOON)) == "9999-12-31T23:59:59.000Z"
    assert utc_text(parse_moment("0001-01-01T00:00:00Z", NOON)) == "0001-01-01T00:00:00.000Z"


@pytest.mark.parametrize("micros", [253_402_300_800_000_000, -62_135_596_800_000_001, 10**30])
def test_a_time_that_has_no_text_is_shown_as_a_number(micros: int) -> None:
    """It may stand in a lease row, and a worker that shows it goes on."""
    assert utc_text(micros) == f"{micros} microseconds since 1970"


@pytest.mark.parametrize("text", ["2026-01-01T12:00:00Z", "2026-01-01T20:00:00+08:00", "2026-01-01T12:00:00.000+00:00"])
def test_times_are_read_with_their_zone(text: str) -> None:
    assert parse_timestamp(text) == NOON


def test_a_time_may_be_so_long_ago() -> None:
    assert parse_moment("2h-ago", NOON) == NOON - 7_200_000_000


@pytest.mark.parametrize("text", ["2026-01-01T12:00:00", "yesterday", "12:00Z", "-ago"])
def test_a_time_without_zone_or_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_moment(text, NOON)


@given(st.integers(0, 4_000_000_000))
def test_a_moment_comes_back_as_it_was_written(seconds: int) -> None:
    assert parse_moment(utc_text(seconds * 1_000_000), 0) == seconds * 1_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (7_200, "2 h"), (172_800, "2 days")],
)
def test_a_rough_duration_has_its_natural_unit(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_a_local_time_is_read_in_its_zone() -> None:
    assert zoned_micros(parse_local_time("2026-01-01 20:00:00"), ZoneInfo("Asia/Shanghai")) == NOON


@pytest.mark.parametrize(
    ("number", "unit"),
    [
        ("1767268800", "seconds"),
        ("1767268800000", "milliseconds"),
        ("1767268800000000", "microseconds"),
        ("1767268800000000000", "nanoseconds"),
    ],
)
def test_a_number_in_place_of_a_time_is_refused_with_its_unit(number: str, unit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"2h-ago; {number} are {unit}$"):
        parse_moment(number, NOON)
    if unit in ("microseconds", "nanoseconds"):
        with pytest.raises(ConfigurationError, match=f"^{number} are {unit}$"):
            parse_timestamp(number)
    else:
        assert parse_timestamp(number) == int(number) * 1_000
