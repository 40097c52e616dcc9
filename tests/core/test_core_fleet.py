"""What one worker does of the assignment: what it takes, asks for, hands on, and whom it wakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from attrs import evolve
from holdings_driver import only, row, writes
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_driver import FleetDriver, started

from streamclient.core import events, leases
from streamclient.core.held import Consuming
from streamclient.core.plan.moves import Moves
from streamclient.core.plan.own_part import FleetView, plan_part
from streamclient.core.sightings import LeaseView
from streamclient.core.write_rules import WriteKind, WriteOutcome, apply_write, permits
from streamclient.model import BalanceBy, Lease, Progress

DURATION = 20.0


def view_of(*rows: Lease, still: Iterable[str] = (), killed: Iterable[str] = ()) -> LeaseView:
    """Rows seen at 100; those in ``still`` have not moved for longer than the lease duration since."""
    view = LeaseView("me", DURATION)
    view.observe(rows, 50.0, 50.0)
    unmoved = set(still)
    view.observe(
        [each if each.lease_key in unmoved else evolve(each, counter=each.counter + 1) for each in rows], 100.0, 100.0
    )
    view.note_killed(killed, 100.0, 100.0)
    return view


def plan(*rows: Lease, staying: Iterable[str] = ("a", "b", "me"), **fields: Any) -> Moves:
    still, killed = fields.pop("still", ()), fields.pop("killed", ())
    values: dict[str, Any] = {"held": (), "pending": {}, "busy": (), "declined": (), "now": 100.0, **fields}
    return plan_part(
        FleetView(worker_id="me", view=view_of(*rows, still=still, killed=killed), staying=sorted(staying), **values)
    )


def keys(rows: Iterable[Lease]) -> list[str]:
    return [each.lease_key for each in rows]


def moves(plan_: Moves, kind: str) -> dict[str, str]:
    return {move.row.lease_key: move.receiver for move in getattr(plan_, kind)}


def test_each_worker_asks_for_its_share_in_one_pass_and_knows_who_else_lacks_one() -> None:
    made = plan(*(row(f"s{number}", "a", 5) for number in range(9)))

    assert len(made.marks) == 3
    assert set(moves(made, "marks").values()) == {"me"}
    assert made.wakes == ("b",)
    assert (made.takes, made.transfers) == ((), ())


HANDED_OVER = row("s1", "a", 5, stealer="a")
DECLINED = row("s1", "me", 5, stealer="me")
MANY = [row(f"s{number}", "a", 5) for number in range(8)] + [row("s9", "dead", 5)]
NOTHING = {"is_nothing": True}

PARTS: dict[str, tuple[Callable[[], Moves], dict[str, Any]]] = {
    "leases of a killed session are free": (
        lambda: plan(row("s1", "dead", 5), row("s2", "a", 5), row("s3", "b", 5), killed=["dead"]),
        {"takes": ["s1"]},
    ),
    "leases of a leaving worker are left to it": (
        lambda: plan(row("s1", "leaving", 5), row("s2", "a", 5), row("s3", "b", 5)),
        NOTHING,
    ),
    "a mark of a worker that is gone counts for the owner, which erases it": (
        lambda: plan(row("s1", "a", 5, stealer="gone"), staying=["a", "me"]),
        {"marks": {}},
    ),
    "leases handed to this worker are taken even if they are too many": (
        lambda: plan(*(row(f"s{number}", "me", 5, stealer="me") for number in range(2)), staying=["me"]),
        {"takes": ["s0", "s1"]},
    ),
    "a worker that let a lease stand still does not get it back beside another one": (
        lambda: plan(row("s1", "a", 5), row("s2", "a", 5), still=["s1"], staying=["a", "me"]),
        {"takes": ["s1"]},
    ),
    "a worker that let a lease stand still gets it back if it is alone": (
        lambda: plan(row("s1", "a", 5), still=["s1"], staying=["a"]),
        {"transfers": {"s1": "a"}},
    ),
    "a lease that was handed over and not picked up goes to another worker": (
        lambda: plan(HANDED_OVER, row("s2", "a", 5), still=["s1"], staying=["a", "me"]),
        {"takes": ["s1"]},
    ),
    "a worker that does not pick up its lease is woken": (
        lambda: plan(HANDED_OVER, row("s2", "b", 5), row("s3", "me", 5), held=["s3"]),
        {"wakes": ("a",)},
    ),
    "a declined lease is handed to another worker": (
        lambda: plan(DECLINED, row("s2", "a", 5), row("s3", "b", 5), row("s4", "b", 5), declined=["s1"]),
        {"transfers": {"s1": "a"}},
    ),
    "a declined lease stays with a worker that is alone": (
        lambda: plan(DECLINED, declined=["s1"], staying=["me"]),
        NOTHING,
    ),
    "a busy lease is not touched": (
        lambda: plan(row("s1", "me", 5), row("s2", "a", 5), row("s3", "a", 5), busy=["s1"], staying=["a", "me"]),
        NOTHING,
    ),
    "a worker that may not ask takes only what is free": (
        lambda: plan(*MANY, may_mark=False, killed=["dead"], staying=["a", "me"]),
        {"takes": ["s9"], "marks": {}, "wakes": ()},
    ),
}


@pytest.mark.parametrize(("planned", "expected"), PARTS.values(), ids=PARTS)
def test_the_part_of_one_worker(planned: Callable[[], Moves], expected: dict[str, Any]) -> None:
    made = planned()
    told = {"takes": keys(made.takes), "wakes": made.wakes, "is_nothing": made == Moves()}
    told |= {kind: moves(made, kind) for kind in ("marks", "transfers")}
    assert {name: told[name] for name in expected} == expected


def test_finished_leases_are_asked_for_like_others() -> None:
    assert len(plan(*(row(f"s{number}", "a", 5, checkpoint="SHARD_END") for number in range(3))).marks) == 1


def free_leases(now: float) -> Moves:
    """Six free leases that were seen at 100."""
    view = LeaseView("me", DURATION)
    view.observe([row(f"s{number}") for number in range(6)], 100.0, 100.0)
    names = ["a", "b", "me"]
    return plan_part(
        FleetView(worker_id="me", view=view, now=now, staying=names, held=(), pending={}, busy=(), declined=())
    )


def test_only_the_own_share_of_free_leases_is_taken() -> None:
    made = free_leases(now=120.0)
    assert len(made.takes) == 2
    assert made.wakes == ("a", "b")


def test_what_others_leave_for_a_lease_duration_is_taken_by_whoever_sees_that() -> None:
    """They may be unable to scan, or to take."""
    assert len(free_leases(now=120.1).takes) == 6


def test_a_released_lease_is_left_to_whom_it_is_assigned_when_it_expires() -> None:
    view = view_of(row("s1", "a", 5), row("s2", "me", 5))
    view.observe([row("s1", "", 7), row("s2", "me", 7)], 105.0, 105.0)
    names = ["a", "me"]
    fleet = FleetView(
        worker_id="me", view=view, now=126.0, staying=names, held=["s2"], pending={}, busy=(), declined=()
    )

    assert plan_part(fleet).wakes == ("a",)


def test_a_row_in_transit_is_left_alone() -> None:
    made = plan(row("s1", "a", 5, stealer="b"), row("s2", "a", 5), row("s3", "a", 5))
    assert moves(made, "marks") in ({"s2": "me"}, {"s3": "me"})


def test_a_former_life_leaves_leases_that_are_taken_or_handed_on() -> None:
    made = plan(*(row(f"s{number}", "me", 5) for number in range(3)))
    assert len(made.takes) == 1
    assert set(moves(made, "transfers").values()) == {"a", "b"}


def test_what_stands_still_is_assigned_by_whoever_saw_it() -> None:
    """Others may have looked later, and would wait."""
    rows = [row("s1", "a", 5), row("s2", "b", 5), row("s3", "me", 5), row("s4", "me", 5)]
    made = plan(*rows, held=["s3", "s4"], still=["s1"])
    assert moves(made, "transfers") | dict.fromkeys(keys(made.takes), "me") == {"s1": "me"}


def test_a_lease_that_lost_its_owner_is_looked_at_again_when_it_expires() -> None:
    view = view_of(row("s1", "a", 5), row("s2", "me", 5))
    view.observe([row("s1", "", 0), row("s2", "me", 7)], 105.0, 105.0)
    fleet = FleetView(
        worker_id="me", view=view, now=105.0, staying=["me"], held=["s2"], pending={}, busy=(), declined=()
    )

    assert plan_part(fleet).look_again_at == 125.0


def test_the_worker_that_evens_out_loads_asks_for_others_too_and_gives_of_its_own() -> None:
    rows = [row(f"a{number}", "a", 5) for number in range(4)] + [row(f"m{number}", "me", 5) for number in range(4)]
    rates = {each.lease_key: 10.0 for each in rows}
    made = plan(*rows, held=keys(rows[4:]), balance_by=BalanceBy.BYTES, rates=rates)

    assert set(moves(made, "marks").values()) == {"b"}
    assert set(moves(made, "transfers").values()) == {"b"}
    assert 2 <= len(made.marks) + len(made.transfers) <= 3
    assert plan(*rows, held=keys(rows[4:]), balance_by=BalanceBy.BYTES) == Moves()


WORKERS = ("a", "b", "me")


@st.composite
def tables(draw: st.DrawFn) -> list[Lease]:
    kinds = draw(
        st.lists(st.tuples(st.sampled_from(["", "dead", *WORKERS]), st.sampled_from(["", *WORKERS]), st.booleans()))
    )
    return [
        row(f"s{number:02}", owner, 5, stealer=stealer if owner else "", checkpoint="SHARD_END" if is_done else "i1")
        for number, (owner, stealer, is_done) in enumerate(kinds)
    ]


@settings(deadline=None)
@given(tables())
def test_whatever_the_rows_say_the_parts_of_all_workers_are_disjoint_and_come_to_an_end(rows: list[Lease]) -> None:
    """Everybody plans from the same rows and acts; after a few rounds nobody has anything to do, in even shares."""
    table = {each.lease_key: each for each in rows}
    for _ in range(6):
        parts = {name: _part(name, table) for name in WORKERS}
        taken = [key for part in parts.values() for key in (*keys(part.takes), *moves(part, "transfers"))]
        assert len(taken) == len(set(taken))
        for name, part in parts.items():
            _act(name, part, table)
    assert {name: _part(name, table) for name in WORKERS} == dict.fromkeys(WORKERS, Moves())
    counts = [sum(each.owner == name for each in table.values()) for name in WORKERS]
    assert max(counts) - min(counts) <= 1


def _part(name: str, table: Mapping[str, Lease]) -> Moves:
    view = LeaseView(name, DURATION)
    view.observe(list(table.values()), 100.0, 100.0)
    view.note_killed(["dead"], 100.0, 100.0)
    held = [key for key, each in table.items() if each.owner == name and not each.is_handed_over]
    return plan_part(
        FleetView(worker_id=name, view=view, now=100.0, staying=WORKERS, held=held, pending={}, busy=(), declined=())
    )


def _act(name: str, part: Moves, table: dict[str, Lease]) -> None:
    changes = [leases.take(each, name) for each in part.takes]
    changes += [leases.transfer(move.row, move.receiver) for move in part.transfers]
    changes += [leases.steal(move.row, move.receiver) for move in part.marks]
    changes += [leases.transfer(each, each.stealer) for each in table.values() if each.owner == name and each.is_marked]
    for change in changes:
        if permits(table[change.lease_key], change):
            table[change.lease_key] = apply_write(table[change.lease_key], change) or change.seen


# --- through Holdings ------------------------------------------------------------------------------------------------


def test_a_hundred_leases_are_asked_for_in_one_pass() -> None:
    driver = FleetDriver(*(row(f"s{number:03}", "a", 5) for number in range(200)), workers=["a"])
    marks = [write for write in writes(driver.start()) if write.kind is WriteKind.STEAL]
    assert len(marks) == 100


def test_a_lease_whose_processor_is_done_goes_round_only_once_in_a_lease_duration() -> None:
    driver = started(row("s1"), workers=["x"])
    driver.settle(driver.stopped("s1", events.ConsumerEnd.DONE))
    assert driver.table["s1"].owner == "x"
    handed = 0
    for _ in range(60):
        if driver.table["s1"].owner == "x":
            driver.table["s1"] = leases.transfer(driver.table["s1"], "me").result or driver.table["s1"]
            handed += 1
        driver.run(1.0)

    assert 2 <= handed <= 4
    assert len(only(driver.log, events.StartConsumer)) == 1


def test_a_lease_whose_consumer_hangs_runs_elsewhere_soon_after_it_expired_however_large_the_fleet() -> None:
    """Nobody else looks for long: its owner hands it on when it has stood still for a lease duration."""
    driver = started(row("s1"), workers=[f"x{number}" for number in range(9)])
    driver.run(3.0)
    held = driver.holdings.held["s1"]
    driver.settle(driver.send(events.ConsumerStalled("s1", held.identifier, "it hangs")))
    driver.woken.clear()
    driver.run(21.5)

    assert driver.table["s1"].owner.startswith("x")
    assert driver.woken == [driver.table["s1"].owner]
    assert driver.table["s1"].is_handed_over


def test_a_lease_that_could_not_be_renewed_is_taken_again_soon_however_large_the_fleet() -> None:
    driver = started(row("s1"), workers=[f"x{number}" for number in range(9)])
    commands = driver.run(0.2)
    driver.now += 18.7
    driver.settle([c for c in driver.send(events.RenewDue()) if not isinstance(c, events.WriteLease)])
    driver.now += 0.3
    commands = driver.settle([c for c in driver.send(events.Tick()) if not isinstance(c, events.WriteLease)])
    assert "s1" not in driver.holdings.held
    (flight,) = [c.write for c in only(driver.log, events.WriteLease) if c.write.kind is WriteKind.RENEW][-1:]
    driver.send(events.Answered(events.WriteLease(flight), WriteOutcome.UNCERTAIN, driver.now))
    for stop in only(driver.log, events.StopConsumer):
        commands += driver.settle(driver.stopped(stop.lease_key, identifier=stop.consumer_id))
    driver.run(3.0, ticks=False)

    assert "s1" in driver.holdings.held


def test_loads_are_evened_out_by_the_leader_alone() -> None:
    for name, expects_marks in (("aa", True), ("me", False)):
        rows = [row(f"{owner}{number}", owner, 5) for owner in ("x", "y") for number in range(4)]
        driver = FleetDriver(
            *rows, workers=["x", "y", *([] if expects_marks else ["a"])], name=name, balance_by="bytes"
        )
        driver.start()
        for step in range(80):
            for each in driver.table.values():
                speed = 100_000 if each.owner == "x" else 1_000
                progress = Progress(1, step, step * speed)
                driver.table[each.lease_key] = evolve(each, counter=each.counter + 1, progress=progress)
            driver.run(1.0, ticks=step % 6 == 0)
        marks = [w for w in writes(driver.log) if w.kind is WriteKind.STEAL and w.result and w.seen.owner == "x"]

        assert bool([mark for mark in marks if mark.result and mark.result.stealer != name]) == expects_marks


def test_beside_workers_without_sessions_loads_are_ignored_and_that_is_said_once() -> None:
    driver = started(row("s1", "java", 5), row("s2"), balance_by="records")
    driver.run(20.0)
    reports = [report.text for report in only(driver.log, events.Report) if "balance_by='records'" in report.text]

    assert len(reports) == 1


def test_what_the_leader_promises_it_hands_over_and_reads_no_more() -> None:
    rows = [row(f"s{number}") for number in range(4)]
    driver = started(*rows, balance_by="bytes")
    driver.workers["x"] = evolve(driver.workers["me"], worker_id="x", nonce="x-1")
    for step in range(80):
        for each in driver.table.values():
            progress = Progress(1, step, step * 1_000)
            driver.table[each.lease_key] = evolve(each, progress=progress)
        driver.run(1.0, ticks=step % 6 == 0)
        stops = {c.lease_key: c for c in only(driver.log, events.StopConsumer)}
        for key in stops:
            if key in driver.holdings.held and driver.holdings.held[key].consuming is Consuming.LEAVING:
                driver.settle(driver.stopped(key))

    assert sorted(each.owner for each in driver.table.values()) == ["me", "me", "x", "x"]
