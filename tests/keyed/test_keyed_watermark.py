"""Up to where everything is done, in any order of finishing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.worker.keyed.pending_records import OVERHEAD_BYTES, record_bytes
from streamclient.worker.keyed.watermark import Watermark
from tests.placed_records import make_record


def test_a_position_counts_once_everything_before_it_is_finished() -> None:
    mark = Watermark()
    first, second, third = mark.begin("p1", 2), mark.begin("p2", 1), mark.begin("p3", 1)
    mark.finish(second)
    mark.finish(first)
    assert (mark.position, mark.unfinished) == (None, 2)
    mark.finish(first)
    assert (mark.position, mark.unfinished) == ("p2", 1)
    mark.finish(third)
    assert (mark.position, mark.unfinished) == ("p3", 0)


def test_a_batch_without_records_is_finished_with_what_is_before_it() -> None:
    mark = Watermark()
    mark.begin("p1", 0)
    assert mark.position == "p1"
    second = mark.begin("p2", 1)
    mark.begin("p3", 0)
    assert mark.position == "p1"
    mark.finish(second)
    assert mark.position == "p3"


def test_a_batch_that_is_withdrawn_may_begin_again_in_parts() -> None:
    mark = Watermark()
    mark.finish(mark.begin("p1", 1))
    whole = mark.begin("p2", 3)
    mark.finish(whole)
    mark.withdraw(whole)
    first_half, second_half = mark.begin("p1", 1), mark.begin("p2", 2)
    mark.finish(second_half)
    mark.finish(first_half)
    assert mark.position == "p1"
    mark.finish(second_half)
    assert mark.position == "p2"


def test_what_was_never_begun_cannot_be_finished_or_withdrawn() -> None:
    mark = Watermark()
    number = mark.begin("p1", 1)
    mark.begin("p2", 1)
    mark.finish(number)
    with pytest.raises(ValueError, match="finished already"):
        mark.finish(number)
    with pytest.raises(ValueError, match="not the last unfinished one"):
        mark.withdraw(number)


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 2**32))
def test_the_position_is_that_of_reference_arithmetic_at_every_moment(sizes: list[int], seed: int) -> None:
    """Against the plain definition: the last batch before which, itself included, nothing is left."""
    dice = random.Random(seed)
    mark = Watermark()
    left: list[int] = []
    waiting: list[tuple[int, int]] = []
    to_begin = list(enumerate(sizes))
    while to_begin or waiting:
        if to_begin and (not waiting or dice.random() < 0.5):
            index, size = to_begin.pop(0)
            number = mark.begin(f"p{index}", size)
            left.append(size)
            waiting += [(index, number)] * size
        else:
            index, number = waiting.pop(dice.randrange(len(waiting)))
            mark.finish(number)
            left[index] -= 1
        done = next((index for index, count in enumerate(left) if count), len(left))

        assert mark.position == (f"p{done - 1}" if done else None)
        assert mark.unfinished == sum(left)


def test_the_size_of_a_record_grows_with_its_content() -> None:
    small, large = make_record("k", 1), make_record("k", 1, text="x" * 1_000, number=1)
    assert record_bytes(small) == OVERHEAD_BYTES + len("id") + len("k")
    assert record_bytes(large) == record_bytes(small) + 2 * OVERHEAD_BYTES + len("text") + 1_000 + len("number") + 8
