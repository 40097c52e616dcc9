"""Who shall have which lease, in a fleet whose workers all know of each other: by count and by load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.plan.assign import PAYING_SHARE, Assignment, Placed, assign_by_count, assign_by_load

NAMES = "abcdef"


@st.composite
def fleets(draw: st.DrawFn, most_leases: int = 24, most_workers: int = 6) -> tuple[list[Placed], list[str]]:
    """Leases in any hands, also in those of workers that do not stay, and the workers that do."""
    workers = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=most_workers))
    holders = st.sampled_from(["", "gone", *NAMES])
    kinds = draw(st.lists(st.tuples(holders, st.booleans()), max_size=most_leases))
    return [Placed(f"s{number:02}", holder, is_done) for number, (holder, is_done) in enumerate(kinds)], workers


def applied(leases: Sequence[Placed], target: Assignment) -> list[Placed]:
    """The fleet once everybody has done its part."""
    return [evolve(lease, holder=target[lease.lease_key]) for lease in leases]


def moved(leases: Sequence[Placed], target: Assignment, workers: Sequence[str]) -> tuple[int, int]:
    """How many unfinished, and how many finished, leases leave a worker that stays."""
    left = [lease for lease in leases if lease.holder in workers and target[lease.lease_key] != lease.holder]
    return sum(not lease.is_finished for lease in left), sum(lease.is_finished for lease in left)


def spread(target: Assignment, workers: Sequence[str], keys: Sequence[str]) -> int:
    counts = Counter(target[key] for key in keys)
    return max(counts[name] for name in workers) - min(counts[name] for name in workers)


def unfinished(leases: Sequence[Placed]) -> list[str]:
    return [lease.lease_key for lease in leases if not lease.is_finished]


# --- by count --------------------------------------------------------------------------------------------------------


def test_the_worked_example_of_the_docstring() -> None:
    leases = [Placed(key, "a") for key in ("u1", "u2", "u3", "u4")]
    leases += [Placed("f1", "a", True), Placed("f2", "b", True), Placed("f3", "b", True), Placed("u5", "died")]
    target = assign_by_count(leases, ["a", "b", "c"])

    assert target == {"u1": "a", "u2": "a", "u3": "c", "u4": "b", "u5": "c", "f1": "a", "f2": "b", "f3": "b"}
    assert assign_by_count(applied(leases, target), ["a", "b", "c"]) == target


@given(fleets())
def test_counts_are_even_and_doing_it_leaves_nothing_to_do(fleet: tuple[list[Placed], list[str]]) -> None:
    leases, workers = fleet
    target = assign_by_count(leases, workers)

    assert set(target) == {lease.lease_key for lease in leases}
    assert set(target.values()) <= set(workers)
    assert spread(target, workers, list(target)) <= 1
    assert spread(target, workers, unfinished(leases)) <= 1
    assert assign_by_count(applied(leases, target), workers) == target


@given(fleets(), st.randoms(use_true_random=False))
def test_whoever_looks_while_others_do_their_parts_computes_the_same(
    fleet: tuple[list[Placed], list[str]], rng: Random
) -> None:
    """Otherwise two workers would take the same lease, and both leave another one for the next look.

    Not so where finished leases move, too: how many of these a worker has decides who gets one unfinished more.
    """
    leases, workers = [evolve(lease, is_finished=False) for lease in fleet[0]], fleet[1]
    target = assign_by_count(leases, workers)
    partly = [evolve(lease, holder=target[lease.lease_key]) if rng.random() < 0.5 else lease for lease in leases]

    assert assign_by_count(partly, workers) == target


@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_in_which_rows_and_names_come_does_not_matter(
    fleet: tuple[list[Placed], list[str]], rng: Random
) -> None:
    leases, workers = fleet
    expected = assign_by_count(leases, workers), assign_by_load(leases, workers), assign_by_load(leases, workers, {})
    rng.shuffle(leases)
    rng.shuffle(workers)

    assert expected == (
        assign_by_count(leases, workers),
        assign_by_load(leases, workers),
        assign_by_load(leases, workers, {}),
    )


@settings(deadline=None)
@given(fleets(most_leases=6, most_workers=3))
def test_no_even_assignment_moves_fewer_leases(fleet: tuple[list[Placed], list[str]]) -> None:
    """Fewest moves of unfinished leases, then of finished ones, among all even assignments there are."""
    leases, workers = fleet
    keys = [lease.lease_key for lease in leases]
    best = min(
        moved(leases, target, workers)
        for names in product(workers, repeat=len(keys))
        if (target := dict(zip(keys, names, strict=True))) is not None
        and spread(target, workers, keys) <= 1
        and spread(target, workers, unfinished(leases)) <= 1
    )

    assert moved(leases, assign_by_count(leases, workers), workers) == best


@given(st.integers(0, 40), st.integers(0, 20), st.integers(1, 5))
def test_a_worker_that_joins_gets_its_share_and_nobody_else_gets_anything(
    open_leases: int, finished_leases: int, workers: int
) -> None:
    names = list(NAMES[:workers])
    leases = [Placed(f"u{number:02}", "") for number in range(open_leases)]
    leases += [Placed(f"f{number:02}", "", True) for number in range(finished_leases)]
    settled = applied(leases, assign_by_count(leases, names))
    target = assign_by_count(settled, [*names, "z"])
    receivers = {target[lease.lease_key] for lease in settled if lease.holder != target[lease.lease_key]}

    assert receivers <= {"z"}
    assert sum(moved(settled, target, names)) <= -(-len(leases) // (workers + 1))


@given(st.integers(0, 60), st.integers(2, 6))
def test_leases_of_a_worker_that_is_gone_are_spread_and_no_other_moves(open_leases: int, workers: int) -> None:
    names = list(NAMES[:workers])
    leases = [Placed(f"u{number:02}", "") for number in range(open_leases)]
    settled = applied(leases, assign_by_count(leases, names))

    assert moved(settled, assign_by_count(settled, names[1:]), names[1:]) == (0, 0)


def test_nine_hundred_leases_are_evened_out_in_one_pass_when_a_tenth_worker_joins() -> None:
    names = [f"w{number}" for number in range(9)]
    leases = [Placed(f"s{number:03}", names[number % 9]) for number in range(900)]
    target = assign_by_count(leases, [*names, "w9"])

    assert set(Counter(target.values()).values()) == {90}
    assert moved(leases, target, names) == (90, 0)


def test_with_nobody_to_have_them_leases_have_no_place() -> None:
    assert assign_by_count([Placed("s1", "")], []) == assign_by_load([Placed("s1", "")], [], {}) == {}


# --- by load ---------------------------------------------------------------------------------------------------------

WEIGHTS = st.one_of(st.just(0.0), st.floats(0.0, 10.0), st.floats(0.0, 1000.0))


def loads(target: Assignment, workers: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(weights[key] for key, holder in target.items() if holder == name) for name in workers}


def placed(**counts: int) -> list[Placed]:
    """So many unfinished leases each, ``a0``, ``a1`` and so on with worker a."""
    return [Placed(f"{name}{number:03}", name) for name, count in counts.items() for number in range(count)]


def test_the_heaviest_leases_that_bring_loads_nearer_to_each_other_go_first() -> None:
    """Of 20 and 4, a lease of 9 makes 11 and 13; one of 1 that comes back makes 12 and 12."""
    leases = placed(a=4, b=4)
    weights = {lease.lease_key: 9.0 if lease.lease_key in ("a000", "a001") else 1.0 for lease in leases}
    target = assign_by_load(leases, ["a", "b"], weights)

    assert loads(target, ["a", "b"], weights) == {"a": 12.0, "b": 12.0}
    assert moved(leases, target, ["a", "b"]) == (2, 0)


@given(fleets(), st.lists(WEIGHTS, min_size=24, max_size=24))
def test_steady_loads_cause_no_moves(fleet: tuple[list[Placed], list[str]], numbers: list[float]) -> None:
    """Whatever was moved once for these loads, the same loads move nothing again."""
    leases, workers = fleet
    weights = {lease.lease_key: number for lease, number in zip(leases, numbers, strict=False)}
    target = assign_by_load(leases, workers, weights)

    assert set(target) == {lease.lease_key for lease in leases}
    assert set(target.values()) <= set(workers)
    assert assign_by_load(applied(leases, target), workers, weights) == target


@given(fleets(), st.lists(WEIGHTS, min_size=24, max_size=24))
def test_moves_by_load_never_widen_the_gap(fleet: tuple[list[Placed], list[str]], numbers: list[float]) -> None:
    leases, workers = fleet
    open_leases = [lease for lease in leases if not lease.is_finished]
    weights = {lease.lease_key: max(number, 0.5) for lease, number in zip(open_leases, numbers, strict=False)}
    before = loads(assign_by_load(open_leases, workers), workers, weights)
    after = loads(assign_by_load(open_leases, workers, weights), workers, weights)

    assert max(after.values()) <= max(before.values()) * 1.000001
    assert min(after.values()) >= min(before.values()) * 0.999999


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_even_loads_that_differ_by_a_few_percent_each_minute_move_nothing(noise: float) -> None:
    rng = Random(1)
    leases = placed(a=30, b=30, c=30)
    for _ in range(50):
        weights = {lease.lease_key: 5.0 * rng.uniform(1 - noise, 1 + noise) for lease in leases}

        assert moved(leases, assign_by_load(leases, ["a", "b", "c"], weights), ["a", "b", "c"]) == (0, 0)


def test_a_single_hot_shard_is_not_shuffled_around() -> None:
    """Its worker gives away what else it has, once, and keeps the hot one however often the loads are looked at."""
    rng = Random(2)
    leases = placed(a=11, b=10, c=10)
    for number in range(50):
        weights = {lease.lease_key: rng.uniform(0.8, 1.2) for lease in leases} | {"a000": 100.0 + rng.uniform(-9, 9)}
        target = assign_by_load(leases, ["a", "b", "c"], weights)
        assert target["a000"] == "a"
        if number:
            assert moved(leases, target, ["a", "b", "c"]) == (0, 0)
        leases = applied(leases, target)

    assert Counter(lease.holder for lease in leases)["a"] <= 6


def test_a_worker_that_joins_gets_its_share_from_many_who_each_give_little() -> None:
    names = [f"w{number:02}" for number in range(20)]
    leases = [Placed(f"s{number:03}", names[number % 20]) for number in range(400)]
    weights = {lease.lease_key: 3.0 for lease in leases}
    target = assign_by_load(leases, [*names, "w20"], weights)
    after = loads(target, [*names, "w20"], weights)
    mean = sum(after.values()) / 21

    assert after["w20"] >= mean * (1 - PAYING_SHARE)
    assert {target[key.lease_key] for key in leases if target[key.lease_key] != key.holder} == {"w20"}


def test_idle_leases_are_spread_too() -> None:
    assert Counter(assign_by_load(placed(a=12), ["a", "b"], dict.fromkeys("none", 0.0)).values()) == {"a": 6, "b": 6}


def test_leases_that_nobody_has_measured_count_as_the_mean() -> None:
    leases = placed(a=6)
    assert Counter(assign_by_load(leases, ["a", "b"], {"a000": 8.0, "a001": 8.0}).values()) == {"a": 3, "b": 3}


def test_without_weights_only_leases_without_a_holder_and_finished_ones_move() -> None:
    leases = [*placed(a=9, b=1), *(Placed(f"h{number}", "gone") for number in range(4))]
    leases += [Placed(f"f{number}", "a", True) for number in range(3)]
    target = assign_by_load(leases, ["a", "b"])

    assert moved([lease for lease in leases if not lease.is_finished], target, ["a", "b"]) == (0, 0)
    assert Counter(target[f"h{number}"] for number in range(4)) == {"a": 2, "b": 2}
    assert [target[f"f{number}"] for number in range(3)] == ["b", "b", "b"]
