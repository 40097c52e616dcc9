"""The story of a stream: bands and spans from looks at its shards and leases."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.model import Lease, Pause, Shard
from streamclient.operate.story import KEEP_MICROS, Band, Story, StoryBook, key_ranges

NOON = 1_767_268_800 * MICROS_PER_SECOND
SECOND = MICROS_PER_SECOND


def lease(shard: str, owner: str = "", **more: Any) -> Lease:
    return Lease(shard, "stream", owner=owner, **more)


def rows(*leases: Lease) -> dict[str, Lease]:
    return {each.lease_key: each for each in leases}


def bands(story: Story) -> dict[str, Band]:
    return {band["shard"]: band for band in story["bands"]}


FAMILY = (Shard("a"), Shard("b", "a"), Shard("c", "a"))


# --- bands -----------------------------------------------------------------------------------------------------------


def test_a_split_between_two_looks_closes_the_parent_and_opens_its_children_when_it_was_seen() -> None:
    book = StoryBook()
    book.saw([Shard("a")], {}, NOON)
    book.saw(FAMILY, {}, NOON + 5 * SECOND)
    found = bands(book.story(NOON - SECOND, NOON + 9 * SECOND))

    assert (found["a"]["opened_micros"], found["a"]["closed_micros"]) == (None, NOON + 5 * SECOND)
    assert {found[name]["opened_micros"] for name in "bc"} == {NOON + 5 * SECOND}
    assert [(found[name]["low"], found[name]["high"]) for name in "abc"] == [(0.0, 1.0), (0.0, 0.5), (0.5, 1.0)]
    assert not any(band["is_range_known"] for band in found.values())


def test_what_was_closed_before_the_first_look_is_left_out() -> None:
    book = StoryBook()
    book.saw(FAMILY, {}, NOON)

    assert bands(book.story(NOON - 60 * SECOND, NOON)).keys() == {"b", "c"}


def test_ranges_and_times_that_the_caller_knows_are_taken() -> None:
    book = StoryBook()
    ranges = {"a": (0.0, 1.0), "b": (0.0, 0.2), "c": (0.2, 1.0)}
    opened = {"a": NOON - 90 * SECOND, "b": NOON - 30 * SECOND, "c": NOON - 30 * SECOND}
    book.saw(FAMILY, {}, NOON, ranges=ranges, opened=opened, closed={"a": NOON - 30 * SECOND})
    found = bands(book.story(NOON - 60 * SECOND, NOON))

    assert {name: (band["low"], band["high"]) for name, band in found.items()} == ranges
    assert all(band["is_range_known"] for band in found.values())
    assert found["a"]["closed_micros"] == found["b"]["opened_micros"] == NOON - 30 * SECOND
    assert bands(book.story(NOON - 20 * SECOND, NOON)).keys() == {"b", "c"}


def test_a_shard_that_leaves_the_list_is_closed_and_is_forgotten_after_a_day() -> None:
    book = StoryBook()
    book.saw([Shard("a"), Shard("z")], {}, NOON)
    book.saw([Shard("z")], {}, NOON + SECOND)

    assert bands(book.story(NOON, NOON + 2 * SECOND))["a"]["closed_micros"] == NOON + SECOND
    book.saw([Shard("z")], {}, NOON + KEEP_MICROS + 3 * SECOND)
    assert bands(book.story(NOON, NOON + KEEP_MICROS + 3 * SECOND)).keys() == {"z"}


# --- leases ----------------------------------------------------------------------------------------------------------


def test_owners_follow_one_another_as_spans() -> None:
    book = StoryBook()
    for number, owner in enumerate(("w1", "w1", "", "w2")):
        book.saw([Shard("a")], rows(lease("a", owner)), NOON + number * SECOND)
    spans = book.story(NOON, NOON + 5 * SECOND)["spans"]

    assert [(span["owner"], span["from_micros"] - NOON, span["to_micros"] - NOON) for span in spans] == [
        ("w1", 0, 2 * SECOND),
        ("w2", 3 * SECOND, 5 * SECOND),
    ]


PAUSE = Pause("p1", "ann@ops", "maintenance")


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (lease("b", "w1"), "held"),
        (lease("b"), "free"),
        (lease("b", "w1", checkpoint="SHARD_END"), "finished"),
        (lease("b", "w1", stealer="w2"), "changing-hands"),
        (lease("b", "w2", stealer="w2"), "changing-hands"),
        (lease("b", "w1", pause=PAUSE), "pause-pending"),
        (lease("b", "w1", pause=PAUSE, pause_taken="p1 w1"), "paused"),
        (None, "no-row-yet"),
    ],
)
def test_a_row_alone_tells_a_situation(row: Lease | None, word: str) -> None:
    book = StoryBook()
    parent = lease("a", "w1", checkpoint="SHARD_END")
    book.saw(FAMILY, rows(parent, *([row] if row is not None else [])), NOON)
    band = bands(book.story(NOON - SECOND, NOON))["b"]

    assert (band["situation"], band["moves"]) == (word, word != "paused")


def test_a_child_waits_until_its_parent_is_finished() -> None:
    book = StoryBook()
    book.saw(FAMILY, rows(lease("a", "w1"), lease("b", "w1")), NOON)

    assert bands(book.story(NOON - SECOND, NOON))["b"]["situation"] == "waits-for-parent"


def test_without_any_row_nothing_is_said_about_leases() -> None:
    book = StoryBook()
    book.saw([Shard("a")], {}, NOON)
    (band,) = book.story(NOON - SECOND, NOON)["bands"]

    assert (band["situation"], band["owner"], band["read_to_micros"], band["moves"]) == ("", "", None, True)


def test_a_band_is_read_to_its_next_unread_record_and_else_to_its_end() -> None:
    book = StoryBook()
    listing = [Shard("a"), Shard("b"), Shard("c")]
    leases = rows(lease("a", "w1"), lease("b", "w1"), lease("c", "w1", checkpoint="SHARD_END"))
    book.saw(listing, leases, NOON, next_records={"b": NOON - 4 * SECOND})
    found = bands(book.story(NOON - 9 * SECOND, NOON + SECOND))

    assert [found[name]["read_to_micros"] for name in "abc"] == [NOON + SECOND, NOON - 4 * SECOND, NOON + SECOND]
    book.saw(listing, leases, NOON, next_records={"b": NOON - 4 * SECOND}, unknown={"a", "c"})
    found = bands(book.story(NOON - 9 * SECOND, NOON + SECOND))
    assert [found[name]["read_to_micros"] for name in "abc"] == [None, NOON - 4 * SECOND, NOON + SECOND]


# --- key ranges ------------------------------------------------------------------------------------------------------


@st.composite
def families(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The parents of every shard of a stream that split and merged neighbours, and the open shards by their keys."""
    names = iter(draw(st.permutations([f"s{number:02d}" for number in range(60)])))
    first = draw(st.integers(1, 5))
    opened = sorted(next(names) for _ in range(first))
    parents: dict[str, tuple[str, ...]] = dict.fromkeys(opened, ())
    for place, is_split in draw(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=18)):
        at = place % len(opened)
        if is_split or at + 1 == len(opened):
            children = sorted((next(names), next(names)))
            parents.update(dict.fromkeys(children, (opened[at],)))
            opened[at : at + 1] = children
        else:
            child = next(names)
            parents[child] = (opened[at], opened[at + 1])
            opened[at : at + 2] = [child]
    return parents, opened


@pytest.mark.slow
@given(families())
def test_open_shards_share_the_key_space_without_a_gap(family: tuple[dict[str, tuple[str, ...]], list[str]]) -> None:
    parents, opened = family
    ranges = key_ranges(parents)
    ends = [0.0, *(ranges[name][1] for name in opened)]

    assert [ranges[name][0] for name in opened] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(1.0)
    assert ends == sorted(ends)


@given(families(), st.data())
def test_a_list_whose_oldest_shards_have_left_still_gives_ranges_that_do_not_overlap(
    family: tuple[dict[str, tuple[str, ...]], list[str]], data: st.DataObject
) -> None:
    parents, opened = family
    names = list(parents)  # in the order in which they appeared
    left = set(names[: data.draw(st.integers(0, len(names) - len(opened)))]) - set(opened)
    ranges = key_ranges({name: above for name, above in parents.items() if name not in left})
    shown = sorted(ranges[name] for name in opened)

    assert all(low <= high for low, high in ranges.values())
    assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(shown))


def test_a_merge_of_strangers_has_the_keys_of_the_first_one() -> None:
    ranges = key_ranges({"a": (), "b": (), "c": (), "d": ("a", "c")})

    assert ranges["d"] == ranges["a"]


def test_shards_that_are_each_others_parents_have_no_keys_and_a_long_chain_is_no_trouble() -> None:
    chain = {f"s{number:05d}": (f"s{number - 1:05d}",) if number else () for number in range(3_000)}

    assert key_ranges({"a": ("b",), "b": ("a",)}) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}
    assert set(key_ranges(chain).values()) == {(0.0, 1.0)}


# --- any looks -------------------------------------------------------------------------------------------------------

OWNERS = st.sampled_from(["", "w1", "w2", "w3"])


@given(st.lists(st.tuples(st.integers(1, 9), st.dictionaries(st.sampled_from("abcd"), OWNERS)), min_size=1))
def test_no_look_makes_a_story_that_contradicts_itself(looks: list[tuple[int, dict[str, str]]]) -> None:
    """A shard has one owner at a time, no span leaves its band's time, and the last row is the band's."""
    book, now = StoryBook(), NOON
    for seconds, owners in looks:
        now += seconds * SECOND
        book.saw(listed(owners), rows(*(lease(name, owner) for name, owner in owners.items())), now)
    story = book.story(NOON, now)

    for band in story["bands"]:
        spans = [span for span in story["spans"] if span["shard"] == band["shard"]]
        times = [time for span in spans for time in (span["from_micros"], span["to_micros"])]
        assert times == sorted(times)
        assert all(NOON <= time <= now for time in times)
        assert band["owner"] == looks[-1][1].get(band["shard"], "")
        changes = [
            (one["owner"] != next_["owner"], one["to_micros"] < next_["from_micros"]) for one, next_ in pairwise(spans)
        ]
        assert all(is_other or has_gap for is_other, has_gap in changes)


def listed(names: Iterable[str]) -> list[Shard]:
    return [Shard(name) for name in sorted(names)]
