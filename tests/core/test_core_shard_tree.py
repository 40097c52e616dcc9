"""The tree of shards: its order, circles, and the ends that lists of shards show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.shard_tree import REMEMBERED_LISTINGS, ListedEnds, ShardTree
from streamclient.model import Shard

A, B = Shard("a"), Shard("b")
CHILD = Shard("c", "a")
OLDER, PARENT = Shard("older"), Shard("parent", "older")
MERGED = Shard("c", "b", "a")
IDS = tuple("abcdefgh")


@pytest.mark.parametrize(
    ("listings", "is_shown"),
    [
        ([[A]], False),
        ([[A, CHILD]], True),
        ([[B]], False),
        ([[B], []], False),
        ([[B], [A, B]], False),
        ([[B], [A, B], [B]], False),
        ([[B], [B]], True),
        ([[B, PARENT], [B, PARENT]], False),
        ([[B], [B, OLDER]], False),
        ([[B, OLDER], [B, PARENT], [B], [B]], True),
        ([[B], [A, B], [B], [B]], True),
    ],
)
@pytest.mark.parametrize("is_listed_before", [False, True])
def test_absence_counts_once_two_listings_in_a_row_lack_the_shard_and_its_ancestors(
    listings: list[list[Shard]], is_shown: bool, is_listed_before: bool
) -> None:
    ends = ListedEnds()
    if is_listed_before:
        ends.listed([OLDER, PARENT, Shard("a", "parent")], 1.0)
    else:
        ends.knows({"a": frozenset({"parent"}), "parent": frozenset({"older"})})
    ends.listed([B], 2.0)
    ends.listed([B], 3.0)
    assert not ends.shows_end("a"), "those from before the question may be older than the shard"
    for shards in listings:
        ends.listed(shards, 4.0)

    assert ends.shows_end("a") is is_shown


@pytest.mark.parametrize("shown", [[[A, CHILD]], [[B], [B]]])
def test_a_page_is_the_last_one_only_if_its_read_began_after_the_end_was_known(shown: list[list[Shard]]) -> None:
    ends, listed = ListedEnds(), list[float]()
    assert not ends.confirms("a", 1.0, lambda: listed.append(1.0))
    for number, shards in enumerate(shown, start=1):
        ends.listed(shards, number + 1.0)
    known = len(shown) + 1.0
    ends.listed(shown[-1], known + 5.0)

    assert not ends.confirms("a", known - 0.5, lambda: listed.append(2.0))
    assert ends.confirms("a", known, lambda: listed.append(3.0))
    assert listed == [1.0], "an end that is known needs no new listing"


def test_parents_are_forgotten_a_hundred_listings_later() -> None:
    ends = ListedEnds()
    ends.listed([OLDER, PARENT, Shard("a", "parent")], 0.0)
    for number in range(REMEMBERED_LISTINGS + 1):
        ends.listed([B], number + 1.0)
    assert not ends.shows_end("a")
    for _ in range(2):
        ends.listed([PARENT], 200.0)

    assert ends.shows_end("a")


@pytest.mark.parametrize(
    ("parents", "circles"),
    [
        ({"a": [], "b": ["a"], "c": ["a", "b"]}, []),
        ({"a": ["a"], "b": ["a"]}, []),
        ({"a": ["gone"], "b": ["a", "a"]}, []),
        ({"a": ["b"], "b": ["a"], "c": ["a"], "d": []}, [("a", "b")]),
        (
            {"a": ["c"], "b": ["a"], "c": ["b", "d"], "d": [], "e": ["c", "f"], "f": ["e"]},
            [("a", "b", "c"), ("e", "f")],
        ),
    ],
)
def test_circles_of_parents_are_found(parents: dict[str, list[str]], circles: list[tuple[str, ...]]) -> None:
    assert sorted(set(ShardTree.of(Shard(key, *named) for key, named in parents.items()).circles.values())) == circles


def test_a_long_history_is_searched_for_circles_without_recursion() -> None:
    chain = [Shard(f"s{number:05}", f"s{number - 1:05}" if number else None) for number in range(10_000)]
    assert ShardTree.of(chain).circles == {}
    assert len(ShardTree.of([*chain[1:], Shard("s00000", "s09999")]).circles) == 10_000


def graphs() -> st.SearchStrategy[dict[str, frozenset[str]]]:
    """Any parents of any shards, be they unknown, the shard itself, or in circles."""
    return st.dictionaries(st.sampled_from(IDS), st.frozensets(st.sampled_from(IDS), max_size=3))


@settings(deadline=None, max_examples=200)
@given(graphs(), st.permutations(IDS))
def test_ancestors_descendants_circles_and_order_agree_whatever_the_graph(
    parents: dict[str, frozenset[str]], wanted: list[str]
) -> None:
    tree = ShardTree(parents)
    before = {key: set(tree.ancestors(key)) for key in IDS}
    below = {key: set(tree.descendants(key)) for key in IDS}
    is_in_circle = {key for key in IDS if any(key in before[parent] for parent in parents.get(key, set()) - {key})}
    order = tree.ancestors_first(wanted)

    assert all((other in before[key]) == (key in below[other]) for key in IDS for other in IDS)
    assert tree.circles.keys() == is_in_circle
    assert all(set(circle) == {key, *before[key] & below[key]} for key, circle in tree.circles.items())
    for key in IDS:
        steps = tree.steps_from(key)
        assert steps.keys() == (before[key] | below[key]) - {key}
        if not is_in_circle:
            assert {other for other in steps if steps[other] < 0} == before[key]
            assert all(steps[other] > steps[parent] for other in below[key] for parent in before[other] & below[key])
    assert sorted(order) == list(IDS)
    for number, key in enumerate(order):
        assert key in tree.circles or before[key] <= set(order[:number])


@pytest.mark.parametrize(
    ("done", "may_begin"),
    [("", False), ("a", False), ("ab", True), ("abc", True)],
)
def test_a_shard_may_begin_once_all_known_parents_are_done(done: str, may_begin: bool) -> None:
    """Those that are unknown have left the stream; one that names itself does not wait for itself."""
    assert ShardTree.of([A, B, MERGED]).may_begin("c", done) is may_begin
    assert ShardTree.of([MERGED]).may_begin("c", done)
    assert ShardTree.of([Shard("c", "c", "gone")]).may_begin("c", done)


def test_a_long_history_is_put_in_order_without_recursion() -> None:
    shards = [Shard(f"s{number:05}", f"s{number + 1:05}") for number in range(5_000)]
    assert ShardTree.of(shards).ancestors_first(shard.shard_id for shard in shards)[0] == "s04999"


def test_steps_between_relatives_are_those_of_the_longest_way() -> None:
    tree = ShardTree.of([OLDER, PARENT, Shard("a", "parent"), Shard("b", "older"), MERGED])

    assert tree.steps_from("c") == {"a": -1, "b": -1, "parent": -2, "older": -3}
    assert tree.steps_from("older") == {"parent": 1, "b": 1, "a": 2, "c": 3}
    assert tree.steps_from("unknown") == {}
