"""The tree of shards: its order, circles, and the ends that lists of shards show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.shard_tree import ListedEnds, ShardTree
from streamclient.model import Shard

A, B = Shard("a"), Shard("b")
CHILD = Shard("c", "a")
MERGED = Shard("c", "b", "a")
IDS = tuple("abcdefgh")


@pytest.mark.parametrize(
    ("shards", "is_shown"),
    [
        ([], False),
        ([A], False),
        ([A, B], False),
        ([Shard("a", "a")], False),
        ([A, CHILD], True),
        ([A, B, MERGED], True),
        ([CHILD], True),
        ([B], True),
    ],
)
def test_a_listing_shows_an_end_by_a_child_or_by_the_absence_of_the_shard(shards: list[Shard], is_shown: bool) -> None:
    assert ShardTree.of(shards).shows_end("a") is is_shown


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
        ([[B], [A, B], [B], [B]], True),
    ],
)
def test_absence_counts_once_two_listings_in_a_row_lack_the_shard(listings: list[list[Shard]], is_shown: bool) -> None:
    ends = ListedEnds()
    ends.listed([B])
    ends.listed([B])
    assert not ends.shows_end("a"), "those from before the question may be older than the shard"
    for shards in listings:
        ends.listed(shards)

    assert ends.shows_end("a") is is_shown


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
