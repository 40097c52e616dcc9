"""The balancer: even, lazy, and never at odds with the Java stream client's arithmetic."""

from __future__ import annotations

from collections import Counter
from random import Random

from holdings_driver import row
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.config import ClientConfig
from streamclient.core import leases
from streamclient.core.plan.beside_java import plan_takes
from streamclient.core.plan.moves import Moves
from streamclient.core.sightings import LeaseView
from streamclient.core.write_rules import apply_write
from streamclient.model import Lease

NOW = 100.0
Rows = dict[str, Lease]


def plan(rows: Rows, worker: str, *, held: set[str] | None = None, seed: int = 0, now: float = NOW) -> Moves:
    """Plan over rows that were all just seen moving, except those without owner."""
    view = LeaseView(worker, 20.0)
    view.observe(rows.values(), now, now)
    mine = {key for key, lease in rows.items() if lease.owner == worker and not lease.is_handed_over}
    return plan_takes(view, worker, mine if held is None else held, now, ClientConfig(), rng=Random(seed))


def owned(*owners: str) -> Rows:
    return {f"s{number:02d}": row(f"s{number:02d}", owner, 1) for number, owner in enumerate(owners)}


def keys(rows: tuple[Lease, ...]) -> list[str]:
    return sorted(lease.lease_key for lease in rows)


def loads(rows: Rows) -> Counter[str]:
    return Counter(lease.stealer or lease.owner for lease in rows.values())


def is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


def marked(chosen: Moves) -> tuple[Lease, ...]:
    return tuple(move.row for move in chosen.marks)


def run_pass(rows: Rows, worker: str, seed: int) -> int:
    """Apply one worker's plan, complete all hand-overs; returns the number of leases that moved."""
    chosen = plan(rows, worker, seed=seed)
    for lease in chosen.takes:
        rows[lease.lease_key] = apply_write(lease, leases.take(lease, worker)) or lease
    for lease in marked(chosen):
        rows[lease.lease_key] = row(lease.lease_key, worker, lease.counter + 1)
    return len(chosen.takes) + len(chosen.marks)


def test_worked_example_of_the_documentation() -> None:
    rows = owned("A", "A", "A", "A", "A", "B", "")
    first = plan(rows, "B")
    assert keys(first.takes) == ["s06"]
    assert len(first.marks) == 1
    assert first.marks[0].row.owner == "A"

    rows["s06"] = row("s06", "B", 1)
    marked = first.marks[0].row.lease_key
    rows[marked] = row(marked, "A", 1, stealer="B")
    assert plan(rows, "B") == Moves()


def test_everything_handed_over_is_taken_whatever_the_need() -> None:
    rows = owned("me", "me", "me", "x") | {key: row(key, "me", 3, stealer="me") for key in ("h1", "h2", "h3")}
    assert keys(plan(rows, "me").takes) == ["h1", "h2", "h3"]


def test_row_in_my_name_that_i_do_not_hold_is_taken() -> None:
    assert keys(plan(owned("me", "x"), "me", held=set()).takes) == ["s00"]


def test_marked_lease_is_not_stolen_again() -> None:
    rows = {f"s{n}": row(f"s{n}", "A", 1, stealer="C") for n in range(6)} | owned("A", "A", "A")
    assert all(not lease.stealer for lease in marked(plan(rows, "me")))


def test_expired_and_finished_leases_are_not_stolen() -> None:
    rows = owned("A") | {f"f{n}": row(f"f{n}", "A", 1, checkpoint="SHARD_END") for n in range(8)}
    assert [keys(marked(plan(rows, "me", seed=seed))) for seed in range(5)] == [["s00"]] * 5


def test_child_that_waits_is_the_last_choice() -> None:
    """A Java owner cannot hand it over before its parents end."""
    waiting = {f"c{n}": row(f"c{n}", "A", 1, parent_shard_ids={"p"}) for n in range(5)}
    rows = waiting | {"p": row("p", "A", 1)}
    assert {keys(marked(plan(rows, "me", seed=seed)))[0] for seed in range(10)} == {"p"}


def test_finished_leases_of_a_worker_do_not_cost_it_its_only_live_one() -> None:
    rows = owned("A", "me") | {f"f{n}": row(f"f{n}", "A", 1, checkpoint="SHARD_END") for n in range(6)}
    assert plan(rows, "me").marks == ()


def test_marks_of_one_pass_are_a_third_of_the_need() -> None:
    assert len(plan(owned(*["A"] * 20), "me").marks) == 4


def test_auto_steal_can_be_switched_off() -> None:
    view = LeaseView("me", 20.0)
    view.observe(owned(*["A"] * 6).values(), NOW, NOW)
    assert plan_takes(view, "me", (), NOW, ClientConfig(auto_steal_lease=False), rng=Random(0)) == Moves()


def test_leases_being_taken_count_as_taken() -> None:
    view = LeaseView("me", 20.0)
    view.observe(owned("A", "A", "", "").values(), NOW, NOW)
    chosen = plan_takes(view, "me", (), NOW, ClientConfig(), rng=Random(0), pending={"s02": "me", "s03": "me"})

    assert chosen == Moves()


def test_same_arguments_give_the_same_plan() -> None:
    rows = owned("A", "A", "A", "A", "B", "B", "", "")
    assert plan(rows, "me", seed=3) == plan(dict(reversed(rows.items())), "me", seed=3)


fleets = st.lists(st.sampled_from(["A", "B", "C", "D", ""]), min_size=1, max_size=25)


@settings(deadline=None, max_examples=150)
@given(fleets, st.integers(0, 1000))
def test_fleet_becomes_even_and_then_moves_nothing(owners: list[str], seed: int) -> None:
    rows, workers = owned(*owners), ["A", "B", "C", "D"]
    for number in range(40):
        moved = sum(run_pass(rows, worker, seed + number) for worker in workers)
        if not moved:
            break

    assert moved == 0
    assert is_even([loads(rows)[worker] for worker in workers])


@settings(deadline=None, max_examples=150)
@given(fleets, st.integers(0, 1000))
def test_no_mark_leaves_its_victim_with_fewer_leases_than_the_thief(owners: list[str], seed: int) -> None:
    rows = owned(*owners)
    chosen = plan(rows, "A", seed=seed)
    for lease in chosen.takes:
        rows[lease.lease_key] = row(lease.lease_key, "A", 2)
    victims = {lease.owner for lease in marked(chosen)}
    for lease in marked(chosen):
        rows[lease.lease_key] = row(lease.lease_key, lease.owner, 1, stealer="A")

    assert all(loads(rows)[victim] >= loads(rows)["A"] for victim in victims)
