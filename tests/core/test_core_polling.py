"""The rhythm of arrivals and the pauses that follow from it."""

from __future__ import annotations

import random
from statistics import median, quantiles

from hypothesis import given
from hypothesis import strategies as st

from streamclient.core.consumer.pauses import REMEMBERED_GAPS, ArrivalRhythm

SHORTEST, LONGEST = 0.02, 5.0


def polled(arrivals: list[float], until: float, rhythm: ArrivalRhythm) -> tuple[int, list[float]]:
    """Reads until a time, and how long each arrival waited for its read.

    A read that found records is followed by one at once, as a worker does it.
    """
    now, reads, delays, left = 0.0, 0, [], list(arrivals)
    while now < until:
        reads += 1
        found = [moment for moment in left if moment <= now]
        left = left[len(found) :]
        delays += [now - moment for moment in found]
        if found:
            rhythm.records_came(now)
            now += 0.001
        else:
            rhythm.nothing_came(now)
            now += rhythm.pause_seconds(now, SHORTEST, LONGEST)
    return reads, delays


def test_silence_makes_pauses_longer_up_to_the_longest() -> None:
    rhythm = ArrivalRhythm()
    rhythm.nothing_came(0.0)
    pauses = [rhythm.pause_seconds(float(second), SHORTEST, LONGEST) for second in range(2_000)]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[1], pauses[-1]) == (SHORTEST, 0.2, LONGEST)


def test_a_first_record_after_a_long_silence_is_followed_by_eager_reading() -> None:
    rhythm = ArrivalRhythm()
    rhythm.nothing_came(0.0)
    rhythm.records_came(3_600.0)
    rhythm.nothing_came(3_600.0)

    assert rhythm.pause_seconds(3_600.0, SHORTEST, LONGEST) == SHORTEST


def test_gaps_count_once_enough_of_them_agree() -> None:
    """A record every ten seconds, then two close together."""
    rhythm = ArrivalRhythm()
    pauses = []
    for number in range(REMEMBERED_GAPS + 1):
        rhythm.nothing_came(10.0 * number)
        pauses.append(round(rhythm.pause_seconds(10.0 * number, SHORTEST, LONGEST), 2))
        rhythm.records_came(10.0 * number + 10.0)
    rhythm.nothing_came(60.0)
    rhythm.records_came(60.1)

    assert pauses == [SHORTEST] * REMEMBERED_GAPS + [0.63]
    assert round(rhythm.pause_seconds(60.1, SHORTEST, LONGEST), 2) == 0.06


def test_a_backlog_leaves_no_memory_of_slow_processing() -> None:
    """Records that were there already say nothing about when the next ones come."""
    rhythm = ArrivalRhythm()
    for second in range(0, 100, 10):
        rhythm.records_came(float(second))
    rhythm.nothing_came(100.0)

    assert rhythm.pause_seconds(100.0, SHORTEST, LONGEST) == SHORTEST


def test_records_at_random_wait_a_third_of_what_a_doubling_pause_makes_them_wait() -> None:
    """A record a second, at random.

    A pause that doubles from 20 ms to 1 s makes 293 reads a minute here; half of the records wait for more than 218 ms,
    and one in a hundred for more than 980 ms.
    """
    dice = random.Random(3)
    moments, now = [], 0.0
    while now < 1_200:
        now += dice.expovariate(1.0)
        moments.append(now)
    reads, delays = polled(moments, 1_200, ArrivalRhythm())

    assert reads / 20 < 470
    assert median(delays) < 0.10
    assert quantiles(delays, n=100)[-1] < 0.35


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10_000)), max_size=50), st.floats(0.001, 1), st.floats(0, 60))
def test_a_pause_keeps_its_bounds_whatever_happened(
    answers: list[tuple[bool, float]], shortest: float, more: float
) -> None:
    rhythm, now = ArrivalRhythm(), 0.0
    for had_records, seconds in answers:
        now += seconds
        (rhythm.records_came if had_records else rhythm.nothing_came)(now)

        assert shortest <= rhythm.pause_seconds(now, shortest, shortest + more) <= shortest + more
