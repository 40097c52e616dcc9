"""Rows for the shards of a stream: creation, deletion, initial positions, and the gate of a child."""

from __future__ import annotations

from typing import Any

from holdings_driver import STREAM_ID, row
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.base.reasons import Cause, Reason, ReasonKind, text_of
from streamclient.core.shard_tree import Listing, index_shards
from streamclient.core.shards import (
    ABSENCE_SECONDS,
    COUNTERS_BETWEEN,
    Gates,
    NewLease,
    Start,
    SyncPlan,
    parents_finished,
    plan_shard_sync,
)
from streamclient.model import InitialPosition, Lease, Shard

OLDEST = Start(STREAM_ID, InitialPosition.oldest(), 777)
LATEST = Start(STREAM_ID, InitialPosition.latest(), 777)
AT = Start(STREAM_ID, InitialPosition.at(555), 777)


def listing(*shards: Shard) -> Listing:
    return index_shards(shards)


def rows_of(*leases: Lease) -> dict[str, Lease]:
    return {lease.lease_key: lease for lease in leases}


FAMILY = listing(Shard("p"), Shard("c", "p"), Shard("g", "c"))


def sync(
    shards: Listing,
    rows: dict[str, Lease],
    now: float,
    before: SyncPlan | None = None,
    *,
    previous: Listing | None = None,
) -> SyncPlan:
    absent = {} if before is None else before.absent_since
    return plan_shard_sync(shards, rows, OLDEST, now=now, previous=previous, absent_since=absent, deletes_rows=True)


# --- creating --------------------------------------------------------------------------------------------------------


def test_missing_rows_are_created_parents_first() -> None:
    shards = listing(Shard("a", "b", "c"), Shard("b", "d"), Shard("c", "d"), Shard("d"))
    created = plan_shard_sync(shards, rows_of(row("c", parent_shard_ids={"d"})), OLDEST, now=0.0).creates

    assert [new.lease.lease_key for new in created] == ["d", "b", "a"]
    assert created[2] == NewLease(row("a", parent_shard_ids={"b", "c"}))


def test_parent_of_a_child_that_was_read_is_created_as_finished() -> None:
    """It would be read again after its children otherwise."""
    rows = rows_of(row("c", "x", 9, checkpoint="i7", parent_shard_ids={"p"}))
    (created, grandchild) = plan_shard_sync(FAMILY, rows, OLDEST, now=0.0).creates

    assert created == NewLease(row("p", checkpoint="SHARD_END"))
    assert grandchild.lease.checkpoint == "TRIM_HORIZON"


def test_iterator_of_an_unread_child_does_not_prove_that_its_parent_ended() -> None:
    """Rows that start by time hold an iterator from the beginning."""
    rows = rows_of(row("c", checkpoint="i7", parent_shard_ids={"p"}), row("g", checkpoint="i8"))
    assert plan_shard_sync(FAMILY, rows, AT, now=0.0).creates == (NewLease(row("p"), 555),)
    assert plan_shard_sync(FAMILY, rows, LATEST, now=0.0).creates == (NewLease(row("p")),)


def test_vanished_row_is_created_where_it_was_last_seen() -> None:
    vanished = {"p": row("p", "x", 41, checkpoint="i9")}
    rows = rows_of(row("c"), row("g"))

    assert plan_shard_sync(FAMILY, rows, OLDEST, now=0.0, vanished=vanished).creates == (
        NewLease(row("p", counter=41 + COUNTERS_BETWEEN, checkpoint="i9")),
    )


def test_start_by_time_applies_to_every_shard() -> None:
    created = plan_shard_sync(FAMILY, rows_of(row("p")), AT, now=0.0).creates
    assert [new.timestamp_micros for new in created] == [555, 555]


def test_latest_means_the_workers_start_but_descendants_of_known_shards_start_at_their_beginning() -> None:
    fresh = plan_shard_sync(FAMILY, {}, LATEST, now=0.0).creates
    grown = plan_shard_sync(FAMILY, rows_of(row("p")), LATEST, now=0.0).creates

    assert [new.timestamp_micros for new in fresh] == [777, 777, 777]
    assert [(new.timestamp_micros, new.lease.checkpoint) for new in grown] == [(None, "TRIM_HORIZON")] * 2


def test_latest_lets_a_fleet_that_comes_back_read_every_new_shard_from_its_oldest_record() -> None:
    """The parents of ``g`` came and went while no worker ran, so only ``p`` shows that the fleet is old."""
    rows, shards = rows_of(row("p", checkpoint="i7")), listing(Shard("g", "c"), Shard("h", "g"), Shard("n"))
    parents = {"g": {"c"}, "h": {"g"}, "n": set[str]()}
    expected = tuple(NewLease(row(key, parent_shard_ids=named)) for key, named in parents.items())

    for first in (None, ()):
        assert plan_shard_sync(shards, rows, LATEST, now=0.0, first_listed=first).creates == expected
    assert {new.timestamp_micros for new in plan_shard_sync(shards, rows, AT, now=0.0).creates} == {555}


def test_a_row_of_a_shard_that_a_listing_is_too_old_to_have_does_not_make_the_fleet_old() -> None:
    rows = rows_of(row("a", checkpoint="i7"), row("late", checkpoint="i8", parent_shard_ids={"a"}))
    created = plan_shard_sync(listing(Shard("a"), Shard("b", "gone")), rows, LATEST, now=0.0).creates

    assert created == (NewLease(row("b", parent_shard_ids={"gone"}), 777),)


def test_a_child_starts_late_as_its_parent_did_unless_it_was_opened_since_then() -> None:
    rows = rows_of(row("p", "x", 7, checkpoint="i9"))
    planned = [
        plan_shard_sync(FAMILY, rows, LATEST, now=0.0, begun_late=begun_late, first_listed=first_listed).creates
        for begun_late in ({"p"}, set[str]())
        for first_listed in (FAMILY, {"p"})
    ]

    assert [[new.timestamp_micros for new in creates] for creates in planned] == [[777] * 2, *[[None] * 2] * 3]


def test_a_child_of_two_parents_starts_late_only_if_both_did() -> None:
    shards, rows = listing(Shard("p"), Shard("q"), Shard("m", "p", "q")), rows_of(row("p"), row("q"))
    planned = [
        plan_shard_sync(shards, rows, LATEST, now=0.0, begun_late=begun_late, first_listed=shards).creates
        for begun_late in ({"p"}, {"p", "q"})
    ]

    assert [new.timestamp_micros for (new,) in planned] == [None, 777]


def test_the_first_plan_leaves_children_of_rows_to_the_workers_that_may_be_creating_theirs() -> None:
    rows, finished = rows_of(row("p", checkpoint="i7")), rows_of(row("p"), row("g", checkpoint="SHARD_END"))
    vanished = {"c": row("c", "x", 3, checkpoint="i5")}

    def first(rows: dict[str, Lease], start: Start, **more: Any) -> list[str]:
        plan = plan_shard_sync(FAMILY, rows, start, now=0.0, first_listed=None, **more)
        return [new.lease.lease_key for new in plan.creates]

    assert first(rows, LATEST) == []
    assert first(rows, OLDEST) == first(rows, AT) == first({"p": rows["p"], "gone": row("gone")}, LATEST) == ["c", "g"]
    assert first(rows, LATEST, vanished=vanished) == first(finished, LATEST) == ["c"]


# --- deleting --------------------------------------------------------------------------------------------------------


def test_row_is_deleted_only_after_two_listings_far_enough_apart() -> None:
    rows = rows_of(row("a", checkpoint="SHARD_END"), row("b"))
    first = sync(listing(Shard("b")), rows, 1000.0)
    soon = sync(listing(Shard("b")), rows, 1000.0 + ABSENCE_SECONDS - 1, first)
    late = sync(listing(Shard("b")), rows, 1000.0 + ABSENCE_SECONDS, soon)

    assert (first.deletes, soon.deletes, late.deletes) == ((), (), (rows["a"],))
    assert late.losses == ()


def test_shard_that_reappears_starts_over() -> None:
    rows = rows_of(row("a"), row("b"))
    first = sync(listing(Shard("b")), rows, 0.0)
    assert sync(listing(Shard("a"), Shard("b")), rows, 10.0, first).absent_since == {}


def test_empty_listing_proves_nothing() -> None:
    rows = rows_of(row("a"), row("b"))
    first = sync(listing(Shard("b")), rows, 0.0)
    assert sync({}, rows, 10_000.0, first) == SyncPlan(absent_since=first.absent_since)


def test_listing_that_shrank_implausibly_is_believed_only_when_the_next_one_agrees() -> None:
    shards = index_shards(Shard(f"s{n}") for n in range(9))
    rows = rows_of(*(row(key) for key in shards))
    short = listing(Shard("s0"))
    first = sync(short, rows, 0.0, previous=shards)
    second = sync(short, rows, 10.0, first, previous=short)

    assert first.absent_since == {}
    assert len(second.absent_since) == 8


def test_only_the_leader_deletes() -> None:
    rows = rows_of(row("a"), row("b"))
    assert plan_shard_sync(listing(Shard("b")), rows, OLDEST, now=9999.0, absent_since={"a": 0.0}).deletes == ()


def test_deleting_an_unfinished_row_is_a_loss() -> None:
    rows = rows_of(row("a", checkpoint="i5"), row("b"))
    assert sync(listing(Shard("b")), rows, 9999.0, SyncPlan(absent_since={"a": 0.0})).losses == (rows["a"],)


# --- the gate --------------------------------------------------------------------------------------------------------

CHILD = row("c", parent_shard_ids={"p"})
PAIR = listing(Shard("p"), Shard("c", "p"))


def test_shard_without_parents_may_be_read() -> None:
    assert parents_finished(row("a"), {}, None).is_open


def test_child_waits_for_every_parent() -> None:
    merged = row("m", parent_shard_ids={"p", "q"})
    ended, open_ = row("p", checkpoint="SHARD_END"), row("q", "x", 4)
    gate = parents_finished(merged, rows_of(ended, open_, merged), None)

    assert not gate.is_open
    assert gate.reason == Reason(Cause.PARENT, "q", "is not finished: q (owner x, counter 4, at TRIM_HORIZON)")
    assert parents_finished(merged, rows_of(ended, row("q", checkpoint="SHARD_END"), merged), None).is_open


def test_absent_parent_row_blocks_while_the_stream_lists_the_parent() -> None:
    gate = parents_finished(CHILD, rows_of(CHILD), PAIR)

    assert (gate.is_open, gate.wants_listing) == (False, True)
    assert gate.reason is not None
    assert gate.reason.kind is ReasonKind.LEASE, "it does not wait for the parent, but to know whether it has to"
    assert text_of(gate.reason) == "parent p has no lease row yet, but the stream lists it"


def test_absent_parent_row_blocks_without_a_listing_young_enough_to_know_the_child() -> None:
    gate = parents_finished(CHILD, rows_of(CHILD), None)

    assert not gate.is_open
    assert gate.reason is not None
    assert gate.reason.kind is ReasonKind.LEASE
    assert text_of(gate.reason) == "parent p has no lease row; waiting for the list of shards"
    assert not parents_finished(CHILD, rows_of(CHILD), listing(Shard("z"))).is_open
    assert parents_finished(CHILD, rows_of(CHILD), listing(Shard("c", "p"))).is_open


def test_listed_ancestor_with_an_unfinished_row_blocks_too() -> None:
    """The row between may be gone."""
    grandchild = row("g", parent_shard_ids={"c"})
    finished = row("c", checkpoint="SHARD_END", parent_shard_ids={"p"})
    rows = rows_of(grandchild, finished, row("p", "x", 3))

    assert not parents_finished(grandchild, rows, FAMILY).is_open
    assert parents_finished(grandchild, rows, listing(Shard("c", "p"), Shard("g", "c"))).is_open


def test_parent_that_the_listing_names_counts_although_the_row_does_not() -> None:
    assert not parents_finished(row("c"), rows_of(row("c"), row("p", "x", 3)), PAIR).is_open


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30), st.sets(st.integers(0, 30)))
def test_an_open_gate_has_finished_parents_whatever_the_graph(edges: list[tuple[int, int]], finished: set[int]) -> None:
    parents: dict[str, set[str]] = {}
    for child, parent in edges:
        if parent < child:
            parents.setdefault(f"s{child}", set()).add(f"s{parent}")
    shards = index_shards(Shard(f"s{n}", *([*sorted(parents.get(f"s{n}", ()))[:2], None, None][:2])) for n in range(31))
    rows = rows_of(
        *(
            row(
                key,
                checkpoint="SHARD_END" if int(key[1:]) in finished else "i",
                parent_shard_ids=shard.parent_shard_ids,
            )
            for key, shard in shards.items()
        )
    )
    for key, lease in rows.items():
        gate = parents_finished(lease, rows, shards)
        assert not gate.is_open or all(rows[parent].is_finished for parent in shards[key].parent_shard_ids)


HAS_ROW = st.integers(0, 5).map(bool)
"""Most shards have a row, and most are listed."""


@st.composite
def any_leases(draw: st.DrawFn) -> tuple[dict[str, Lease], Listing | None]:
    """Rows and a listing that may lack shards, name parents differently, and have circles."""
    ids = [f"s{number}" for number in range(7)]
    names = st.sets(st.sampled_from(ids), max_size=2)
    ends = st.sampled_from(["SHARD_END", "SHARD_END", "it-1"])
    rows = rows_of(*(row(key, checkpoint=draw(ends), parent_shard_ids=draw(names)) for key in ids if draw(HAS_ROW)))
    shards = [Shard(key, *[*sorted(draw(names)), None, None][:2]) for key in ids if draw(HAS_ROW)]
    return rows, None if draw(st.integers(0, 4)) == 0 else index_shards(shards)


@settings(deadline=None, max_examples=150)
@given(any_leases())
def test_remembered_gates_are_those_of_a_walk_through_all_ancestors(
    made: tuple[dict[str, Lease], Listing | None],
) -> None:
    rows, shards = made
    gates = Gates(rows, shards)

    for lease in [*rows.values(), *reversed(rows.values()), row("other", parent_shard_ids={"s0", "s1"})]:
        assert gates.of(lease) == parents_finished(lease, rows, shards)


class CountedRows(dict[str, Lease]):
    """Rows that count how often one is looked up."""

    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up += 1
        return super().get(key, default)


def test_a_chain_of_shards_costs_each_of_them_once() -> None:
    """A key that grows: each split closes one shard and leaves one of its children for good."""
    count = 300
    rows = CountedRows()
    for number in range(count):
        parents = {f"s{number - 1}"} if number else set()
        rows[f"s{number}"] = row(f"s{number}", checkpoint="SHARD_END", parent_shard_ids=parents)
        rows[f"leaf{number}"] = row(f"leaf{number}", parent_shard_ids={f"s{number}"})
    gates = Gates(rows, None)

    assert all(gates.of(lease).is_open for lease in rows.values())
    assert rows.looked_up < 20 * count, "a walk through all ancestors of each looks up 45,000"
