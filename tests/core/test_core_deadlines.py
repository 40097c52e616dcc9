"""What is due when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamclient.core.deadlines import SPARE_ENTRIES, Deadlines

CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 20), st.integers(0, 3)), max_size=40)


@given(CHANGES)
def test_exactly_the_keys_whose_moment_has_come_are_due_each_once(changes: list[tuple[str, int | None, int]]) -> None:
    deadlines, moments, now = Deadlines(), {}, 0
    for key, moment, seconds in changes:
        deadlines.set(key, moment)
        moments[key] = moment
        known = {key: moment for key, moment in moments.items() if moment is not None}
        assert deadlines.next == min(known.values(), default=None)

        now += seconds
        expected = sorted((moment, key) for key, moment in known.items() if moment <= now)
        assert deadlines.take_due(now) == [key for _, key in expected]
        for _, due in expected:
            del moments[due]


def test_changing_one_moment_for_ever_takes_no_more_memory() -> None:
    deadlines = Deadlines()
    deadlines.set("far", 1e9)
    for moment in range(10_000):
        deadlines.set("a", float(moment))

    assert len(deadlines._heap) <= SPARE_ENTRIES + 5
    assert deadlines.next == 9_999
