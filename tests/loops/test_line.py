"""The line: first ready, first given; nothing is lost, whatever interrupts the consumer."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.loops.line import Line


class Thing:
    """A delivery that may be taken back."""

    def __init__(self, name: int = 0, taken_at: float = 1.0) -> None:
        self.name, self.taken_at = name, taken_at
        self.is_free = True

    def claim(self) -> bool:
        is_claimed, self.is_free = self.is_free, False
        return is_claimed


@given(st.lists(st.booleans(), max_size=20))
def test_first_ready_is_first_given_and_what_was_taken_back_is_skipped(taken_back: list[bool]) -> None:
    line, things = Line[Thing](), [Thing(name) for name in range(len(taken_back))]
    for thing, is_so in zip(things, taken_back, strict=True):
        line.put(thing)
        thing.is_free = not is_so

    wanted = [thing.name for thing, is_so in zip(things, taken_back, strict=True) if not is_so]
    assert [taken.name for taken in iter(line.take, None)] == wanted
    assert line.out is None


def test_the_time_of_the_last_taking_is_that_of_the_claim() -> None:
    line = Line[Thing]()
    line.put(Thing(taken_at=7.0))
    assert line.last_taken_at == 0.0

    line.take()

    assert line.last_taken_at == 7.0


def test_a_consumer_that_is_interrupted_at_its_claim_still_holds_what_it_claimed() -> None:
    """A signal may raise anywhere: what is claimed has a place where it is found."""

    class Interrupted(Thing):
        def claim(self) -> bool:
            super().claim()
            raise KeyboardInterrupt

    line, thing = Line[Thing](), Interrupted()
    line.put(thing)

    with pytest.raises(KeyboardInterrupt):
        line.take()

    assert line.out is thing


def test_a_sleeper_is_woken_once_by_what_comes_and_does_not_sleep_if_something_is_there() -> None:
    line, rings = Line[Thing](), list[int]()
    assert line.sleep(lambda: rings.append(1))

    line.put(Thing())
    line.put(Thing())

    assert rings == [1]
    assert not line.sleep(lambda: rings.append(2))


def test_a_sleeper_is_woken_by_the_end_and_none_sleeps_after_it() -> None:
    line, bell = Line[Thing](), threading.Event()
    line.sleep(bell.set)

    line.end()

    assert bell.is_set()
    assert line.has_ended
    assert not line.sleep(bell.clear)


def test_a_wait_that_was_given_up_takes_nothing() -> None:
    line, first = Line[Thing](), Thing()
    line.sleep(lambda: None)  # a wait that is cancelled leaves its bell behind
    line.put(first)

    assert line.take() is first


def test_what_is_dropped_or_drained_is_never_given() -> None:
    line, (first, second, third) = Line[Thing](), (Thing(1), Thing(2), Thing(3))
    for thing in (first, second, third):
        line.put(thing)

    assert line.drop(second)
    assert not line.drop(second)
    assert line.drain() == [first, third]
    assert line.take() is None
