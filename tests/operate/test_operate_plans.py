"""What operators' commands would write, and when they may not: pure."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from operate_facts import END, NOW, OLDEST, ago, facts, row, worker

from streamclient.core.write_rules import WriteKind, apply_write
from streamclient.model import Lease, Pause
from streamclient.operate.facts import FleetFacts, RowFacts
from streamclient.operate.plans import (
    ChangePlan,
    Hindrance,
    Target,
    owner_hindrance,
    plan_move,
    plan_pause,
    plan_release,
    plan_reset,
    plan_resume,
    plan_rewind,
    plan_skip,
)

PAUSE = Pause("r1", "ann@ops", "maintenance")
BROKEN = RowFacts(shard_id="x", lease=None, problem="it is broken")
OLD = Target(checkpoint=OLDEST, text="the oldest record")
FAR = Target(checkpoint="it-9", text="later")
AT_END = Target(checkpoint=END, text="the end of the shard")


def results(plan: ChangePlan) -> dict[str, tuple[str, str]]:
    return {
        change.shard_id: (change.write.kind.value, change.write.result.checkpoint if change.write.result else "")
        for change in plan.changes
    }


def reasons(plan: ChangePlan) -> list[tuple[str, Hindrance]]:
    return [(each.shard_id, each.hindrance) for each in plan.refusals]


# --- the guard -----------------------------------------------------------------------------------------------------


def hindrance(made: FleetFacts, *, stood_still: tuple[str, ...] = ()) -> Hindrance | None:
    lease = made.leases["s1"]
    found = owner_hindrance(made, lease, stood_still)
    return None if found is None else found.hindrance


SHORT, LONG = evolve(PAUSE, until_micros=ago(-30)), evolve(PAUSE, until_micros=ago(-300))
SILENT = row("s1", "w1", beat=99)
W1, W2 = worker("w1"), worker("w2")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (facts(row("s1", "w1"), workers=[W1]), Hindrance.OWNER_RUNS),
        (facts(row("s1", "w1", pause=PAUSE), workers=[W1]), Hindrance.OWNER_RUNS),
        (facts(row("s1", "w1", pause=PAUSE, taken=True), workers=[W1]), None),
        (facts(row("s1", "w1", pause=SHORT, taken=True)), Hindrance.OWNER_RUNS),
        (facts(row("s1", "w1", pause=LONG, taken=True)), None),
        (facts(row("s1", "w1")), Hindrance.FINAL),
        (facts(row("s1", "w1", beat=15)), Hindrance.UNOBSERVED),
        (facts(SILENT), Hindrance.UNOBSERVED),
        (facts(row("s1", "w1", beat=15), workers=[W1]), Hindrance.UNOBSERVED),
        (facts(row("s1", "w1"), workers=[worker("w1", state="killed")]), None),
        (facts(row("s1")), None),
        (facts(row("s1", "w1", stealer="w1")), None),
    ],
    ids=[
        "a running owner hinders",
        "until it acknowledges a pause",
        "which protects the change",
        "unless it is about to end",
        "or lasts",
        "an owner that does not know pauses hinders for good",
        "a silent owner has to be watched",
        "however long it has been silent",
        "as has one that let the lease go and lives",
        "the fleet's verdict on an owner is enough",
        "a lease without owner hinders nothing",
        "nor does one in transit",
    ],
)
def test_an_owner_hinders_a_change_while_it_may_be_reading(made: FleetFacts, expected: Hindrance | None) -> None:
    assert hindrance(made) is expected


def test_an_owner_that_stood_still_while_it_was_watched_hinders_nothing() -> None:
    assert hindrance(facts(SILENT), stood_still=("s1",)) is None


def test_a_lease_that_a_living_owner_let_go_is_moved_like_a_dead_owners() -> None:
    made = facts(row("s1", "w1", beat=15), workers=[W1, W2])
    assert results(plan_move(made, ("s1",), shard_id="s1", receiver="w2"))


# --- positions -----------------------------------------------------------------------------------------------------


def test_a_rewind_writes_the_position_on_the_row_as_seen() -> None:
    plan = plan_rewind(facts(row("s1")), (), shard_id="s1", target=OLD)
    assert results(plan) == {"s1": ("rewind", OLDEST)}
    assert "counter" in plan.changes[0].write.rule.if_same


def test_a_rewind_to_the_present_position_changes_nothing() -> None:
    plan = plan_rewind(facts(row("s1")), (), shard_id="s1", target=Target(checkpoint="it-1", text="here"))
    assert (plan.changes, plan.refusals) == ((), ())
    assert "nothing to change" in plan.notes[0]


def family() -> list[RowFacts]:
    return [
        row("p", checkpoint=END),
        row("c1", checkpoint=END, parents=["p"]),
        row("c2", checkpoint="it-5", parents=["p"]),
        row("g", checkpoint=OLDEST, parents=["c1"]),
    ]


def test_a_parent_is_not_read_again_without_the_children_that_have_begun() -> None:
    plan = plan_rewind(facts(*family()), (), shard_id="p", target=OLD)
    assert reasons(plan) == [("p", Hindrance.FINAL)]
    assert "3 descendants have been read already (c1, c2, g)" in plan.refusals[0].reason


def test_with_descendants_all_of_them_are_set_back_ancestors_first() -> None:
    plan = plan_rewind(facts(*family()), (), shard_id="p", target=OLD, with_descendants=True)
    assert results(plan) == dict.fromkeys(("p", "c1", "c2", "g"), ("rewind", OLDEST))
    assert [(change.shard_id, change.rank) for change in plan.changes] == [("p", 0), ("c1", 1), ("c2", 1), ("g", 2)]


def test_what_lies_below_and_is_at_its_beginning_is_written_only_while_it_could_be_begun() -> None:
    """A write that compares finds whoever began it since; behind an unfinished parent nobody can."""
    rows = [
        *family()[:2],
        row("open", checkpoint=OLDEST, parents=["c1"]),
        row("far", checkpoint=OLDEST, parents=["open"]),
    ]
    plan = plan_rewind(facts(*rows), (), shard_id="p", target=OLD, with_descendants=True)

    assert sorted(results(plan)) == ["c1", "open", "p"]


def test_a_parent_whose_children_have_not_begun_may_be_read_again_alone() -> None:
    made = facts(row("p", checkpoint=END), row("c", checkpoint=OLDEST, parents=["p"], counter=0))
    assert results(plan_rewind(made, (), shard_id="p", target=OLD)) == {"p": ("rewind", OLDEST)}


def test_a_child_that_is_read_without_a_checkpoint_has_begun_and_one_behind_a_gate_has_not() -> None:
    reading = facts(row("p", checkpoint=END), row("c", "w1", checkpoint=OLDEST, parents=["p"]))
    waiting = facts(row("p"), row("c", "w1", checkpoint=OLDEST, parents=["p"]))

    assert reasons(plan_rewind(reading, ("p", "c"), shard_id="p", target=OLD)) == [("p", Hindrance.FINAL)]
    assert results(plan_rewind(waiting, ("p", "c"), shard_id="p", target=OLD)) == {"p": ("rewind", OLDEST)}


def test_one_running_owner_among_the_descendants_refuses_the_whole_rewind() -> None:
    rows = [*family()[:3], row("g", "w1", checkpoint="it-2", parents=["c1"])]
    plan = plan_rewind(facts(*rows, workers=[worker("w1")]), (), shard_id="p", target=OLD, with_descendants=True)
    assert reasons(plan) == [("g", Hindrance.OWNER_RUNS)]


def test_a_skip_to_the_end_needs_a_closed_shard_and_says_that_children_may_start() -> None:
    alone = plan_skip(facts(row("s1")), (), shard_id="s1", target=AT_END)
    parent = plan_skip(facts(row("s1"), row("c", parents=["s1"])), (), shard_id="s1", target=AT_END)

    assert reasons(alone) == [("s1", Hindrance.FINAL)]
    assert results(parent) == {"s1": ("rewind", END)}
    assert parent.notes == ("at the end of a shard its children may start: c",)


def test_a_finished_shard_has_nothing_to_skip() -> None:
    assert reasons(plan_skip(facts(row("s1", checkpoint=END)), (), shard_id="s1", target=FAR))


def test_a_reset_moves_every_shard_and_refuses_malformed_rows() -> None:
    good = plan_reset(facts(*family()), (), targets=dict.fromkeys(("p", "c1", "c2", "g"), OLD))
    bad = plan_reset(facts(*family(), BROKEN), (), targets={"p": OLD})

    assert sorted(results(good)) == ["c1", "c2", "g", "p"]
    assert reasons(bad) == [("x", Hindrance.FINAL)]


def test_unknown_and_malformed_shards_are_refused_by_every_command() -> None:
    made = facts(row("s1"), BROKEN, workers=[worker("w1")])
    for shard_id in ("x", "nowhere"):
        plans = [
            plan_rewind(made, (), shard_id=shard_id, target=OLD),
            plan_skip(made, (), shard_id=shard_id, target=FAR),
            plan_release(made, (), shard_id=shard_id),
            plan_move(made, (), shard_id=shard_id, receiver="w1"),
            plan_pause(made, (), shard_ids=[shard_id], pause=PAUSE),
            plan_resume(made, (), shard_ids=[shard_id]),
        ]

        assert [reasons(plan) for plan in plans] == [[(shard_id, Hindrance.FINAL)]] * len(plans)


# --- owners --------------------------------------------------------------------------------------------------------


def test_a_release_clears_the_owner_of_a_dead_worker() -> None:
    plan = plan_release(facts(row("s1", "w1", beat=99)), ("s1",), shard_id="s1")

    (change,) = plan.changes
    assert change.write.kind is WriteKind.RELEASE
    assert change.write.result is not None
    assert change.write.result.owner == ""


def test_a_vouched_release_still_needs_a_missed_heartbeat() -> None:
    silent = plan_release(facts(row("s1", "w1", beat=12)), (), shard_id="s1", vouched=True)
    beating = facts(row("s1", "w1", beat=5), workers=[worker("w1", beat=5)])
    running = plan_release(beating, (), shard_id="s1", vouched=True)

    assert results(silent) == {"s1": ("release", "it-1")}
    assert reasons(running) == [("s1", Hindrance.FINAL)]
    assert "--force needs an owner that has missed a heartbeat" in running.refusals[0].reason


def test_a_move_marks_the_lease_of_a_living_owner_and_hands_over_a_free_one() -> None:
    for lease, kind in ((row("s1", "w1"), "steal"), (row("s1"), "transfer")):
        plan = plan_move(facts(lease, workers=[W1, W2]), (), shard_id="s1", receiver="w2")
        assert results(plan) == {"s1": (kind, "it-1")}


def test_a_move_to_nobody_or_in_vain_is_refused() -> None:
    workers = [W1, W2, worker("w3", beat=99)]
    cases = {
        "worker w3 does not live": (row("s1", "w1"), "w3"),
        "worker w1 has it already": (row("s1", "w1"), "w1"),
        "worker w2 has asked for it already": (row("s1", "w1", stealer="w2"), "w2"),
        "it is on its way to worker w2": (row("s1", "w2", stealer="w2"), "w1"),
    }
    for reason, (lease, receiver) in cases.items():
        plan = plan_move(facts(lease, workers=workers), (), shard_id="s1", receiver=receiver)

        assert reason in plan.refusals[0].reason


def test_a_pause_leaves_the_counter_alone_and_names_owners_that_do_not_obey() -> None:
    plan = plan_pause(facts(row("s1", "w1"), row("s2")), (), shard_ids=["s1", "s2"], pause=PAUSE)
    assert ["counter" in change.write.rule.if_same for change in plan.changes] == [False, False]
    assert plan.notes == ("worker w1 has no session row, so it does not obey pauses",)


def test_a_finished_shard_is_not_paused_and_one_that_is_not_paused_is_not_resumed() -> None:
    made = facts(row("s1", checkpoint=END), row("s2", pause=PAUSE))

    assert reasons(plan_pause(made, (), shard_ids=["s1"], pause=PAUSE)) == [("s1", Hindrance.FINAL)]
    assert reasons(plan_resume(made, (), shard_ids=["s1"])) == [("s1", Hindrance.FINAL)]
    assert results(plan_resume(made, (), shard_ids=["s2"])) == {"s2": ("set pause", "it-1")}


# --- properties ----------------------------------------------------------------------------------------------------

IDS = ("a", "b", "c", "d", "e")


@st.composite
def any_rows(draw: st.DrawFn) -> list[RowFacts]:
    rows = []
    for place, key in enumerate(IDS):
        above = IDS[:place]
        rows.append(
            row(
                key,
                draw(st.sampled_from(["", "w1", "w2", "w9"])),
                stealer=draw(st.sampled_from(["", "w1"])),
                checkpoint=draw(st.sampled_from([OLDEST, "it-1", END])),
                parents=draw(st.lists(st.sampled_from(above), unique=True, max_size=2)) if above else (),
                pause=draw(st.sampled_from([None, PAUSE])),
                taken=draw(st.booleans()),
                beat=draw(st.floats(0, 60)),
            )
        )
    return rows


@given(any_rows(), st.sampled_from(IDS), st.booleans())
def test_a_rewind_never_brings_a_child_in_front_of_its_parents(
    rows: list[RowFacts], shard_id: str, with_descendants: bool
) -> None:
    """After a whole plan, nothing below the shard has begun that was not set back, and ranks follow the lineage."""
    made = facts(*rows, workers=[worker("w1")])
    plan = plan_rewind(made, IDS, shard_id=shard_id, target=OLD, with_descendants=with_descendants)
    if plan.refusals:
        return
    after: dict[str, Lease | None] = dict(made.leases)
    for change in plan.changes:
        after[change.shard_id] = apply_write(after[change.shard_id], change.write)
    parents = made.parents
    for below in made.tree.descendants(shard_id):
        lease = after[below]
        assert lease is not None
        assert lease.checkpoint == OLDEST
    ranks = {change.shard_id: change.rank for change in plan.changes}
    for key, rank in ranks.items():
        assert all(ranks[parent] < rank for parent in parents[key] if parent in ranks)


@given(any_rows())
def test_no_plan_touches_a_lease_that_somebody_may_be_reading(rows: list[RowFacts]) -> None:
    made = facts(*rows, workers=[worker("w1"), worker("w2", state="killed")])
    for key in IDS:
        lease = made.leases[key]
        plan = plan_reset(made, (), targets={key: Target(checkpoint="it-7", text="there")})
        may_be_read = lease.owner and not lease.is_handed_over and not lease.is_paused_by_owner and lease.owner != "w2"

        assert bool(plan.refusals) == bool(may_be_read)
        assert bool(plan.changes) != bool(may_be_read)


def test_the_moment_of_the_facts_is_in_the_past_of_their_pauses() -> None:
    """The helper itself: ages are ages."""
    assert ago(10) == NOW - 10_000_000
