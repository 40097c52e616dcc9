"""Explaining a shard from facts made by hand: which cause is named, and which comes first."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from operate_facts import END, LEASE_SECONDS, OLDEST, ago, facts, row, waiting, worker

from streamclient.base.reasons import Cause, Reason, ReasonKind, kind_of, text_of
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import Pause, Progress, Shard
from streamclient.operate import situations
from streamclient.operate.evidence import evidence
from streamclient.operate.explanation import explain
from streamclient.operate.facts import FleetFacts, HeadFacts, Process, RowFacts, StreamView
from streamclient.operate.lease_rules import SITUATIONS, situation_of
from streamclient.operate.liveness import Liveness, life, living_workers, seconds_to_loss
from streamclient.operate.situations import Situation

PAUSE = Pause("r1", "ann@ops", "maintenance", ago(-3_600))


def said(made: FleetFacts, shard_id: str = "s1") -> tuple[str, str]:
    found = explain(made, shard_id)
    return found.situation.name, found.predicate


# --- nothing is wrong ----------------------------------------------------------------------------------------------


def test_a_shard_at_whose_checkpoint_nothing_waits_has_caught_up() -> None:
    made = facts(row("s1", "w1", moved=500), workers=[worker("w1")], heads={"s1": HeadFacts()})

    assert said(made) == ("caught-up", "moves: worker w1 has read everything there is")


def test_a_shard_behind_names_its_rate_and_lag() -> None:
    before = row("s1", "w1", checkpoint="it-0", progress=Progress(1, 100, 1))
    now = row("s1", "w1", progress=Progress(2, 340, 2), moved=50)
    made = facts(now, workers=[worker("w1")], heads={"s1": waiting(300)})
    made = evolve(made, earlier={"s1": before}, observed_seconds=2.0)

    assert said(made) == ("reading", "moves: worker w1 reads it at 120 records/s, with a lag of 5 min")


def test_a_finished_shard_names_its_children() -> None:
    made = facts(row("s1", "w1", checkpoint=END), row("s2", parents=["s1"]))

    assert said(made) == ("finished", "is finished: everything in it was processed; its children are s2")


# --- service, stream and row ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "situation"),
    [
        ("missing", situations.NO_STATUS_TABLE),
        ("misfit", situations.NOT_A_STATUS_TABLE),
        ("refused", situations.REFUSED),
        ("throttled", situations.THROTTLED),
        ("unreachable", situations.UNREACHABLE),
    ],
)
def test_a_status_table_that_cannot_be_read_is_the_first_cause(code: str, situation: Situation) -> None:
    made = facts(row("s1", "w1"), problem="OTSOops: no", problem_code=code)

    assert explain(made, "s1").situation is situation


def test_a_stream_that_is_off_is_named() -> None:
    made = evolve(facts(), stream=StreamView(table_name="orders", stream_id=None))

    assert said(made) == ("stream-off", "cannot be read: the stream of table orders is off")


def test_leases_of_a_former_stream_are_told_from_those_of_the_present_one() -> None:
    former = row("old")
    made = facts(listing=[Shard("new")], former_rows={"old": former}, former_stream_id="orders_0")

    assert said(made, "old")[0] == "stream-replaced"
    assert said(made, "new")[0] == "stream-replaced"


def test_a_shard_that_nobody_knows_is_unknown() -> None:
    assert said(facts(row("s1")), "s9")[0] == "unknown-shard"


def test_a_malformed_row_is_named_with_its_problem() -> None:
    broken = RowFacts(shard_id="s1", lease=None, problem="it lacks column Checkpoint")
    made = facts(broken, listing=[Shard("s1")])

    assert said(made) == (
        "malformed-row",
        "is left out by all workers: its row is malformed: it lacks column Checkpoint",
    )


def test_a_shard_that_left_the_stream_unread_is_named() -> None:
    made = facts(row("s1", "w1"), listing=[Shard("s2")])

    assert said(made)[0] == "left-stream"


def test_a_shard_without_row_waits_for_a_worker_or_says_that_none_lives() -> None:
    listing = [Shard("s1"), Shard("s2")]

    assert said(facts(row("s2", "w1"), listing=listing)) == (
        "no-row-yet",
        "has no lease row yet: a worker creates it soon (living: w1)",
    )
    assert said(facts(listing=listing))[0] == "no-worker"


def test_a_child_whose_parent_has_no_row_is_explained_by_the_parent() -> None:
    made = facts(row("x", "w1"), listing=[Shard("x"), Shard("p"), Shard("s1", "p")])

    found = explain(made, "s1")

    assert (found.situation.name, found.root) == ("parent-has-no-row", "p")
    assert found.predicate.startswith("waits for its parent p, which has no lease row yet")


# --- lineage -------------------------------------------------------------------------------------------------------


def test_a_child_is_explained_by_the_shard_that_has_to_move_first() -> None:
    made = facts(
        row("g", "w1"),
        row("p", "w1", parents=["g"]),
        row("s1", "w2", parents=["p"]),
        workers=[worker("w1", shards={"g": "processor failed twice: no database"}), worker("w2")],
    )

    found = explain(made, "s1")

    assert (found.situation.name, found.root) == ("waits-for-parent", "g")
    assert found.first_line == (
        "Shard s1 waits for its ancestor g, which does not move on worker w1: processor failed twice: no database."
    )


def test_a_finished_parent_below_an_unfinished_one_is_not_the_root() -> None:
    made = facts(row("g", "w1"), row("p", "w1", parents=["g"], checkpoint=END), row("s1", "w1", parents=["p"]))

    assert explain(made, "s1").root == "g"


def test_a_paused_child_of_an_unfinished_parent_waits_for_the_parent_first() -> None:
    made = facts(row("p", "w1"), row("s1", "w1", parents=["p"], pause=PAUSE, taken=True), workers=[worker("w1")])

    assert explain(made, "s1").situation is situations.WAITS_FOR_PARENT
    assert any(line.startswith("pause: by ann@ops") for line in evidence(made, "s1"))


def test_the_parent_that_blocks_is_named_among_two() -> None:
    made = facts(row("a", "w1", checkpoint=END), row("b", "w1"), row("s1", "w1", parents=["a", "b"]))

    assert explain(made, "s1").root == "b"


def test_a_circle_of_parents_ends_and_is_named() -> None:
    rows = [row("a", parents=["b"]), row("b", parents=["a"])]
    by_rows_alone = facts(*rows, listing=[Shard("a"), Shard("b")])
    listing = [Shard("a", "b"), Shard("b", "a", "c"), Shard("c"), Shard("d", "a"), Shard("own", "own")]
    found = {shard.shard_id: explain(facts(listing=listing), shard.shard_id).situation for shard in listing}

    assert explain(by_rows_alone, "a").situation is situations.WAITS_FOR_PARENT
    assert explain(facts(*rows), "a").situation is situations.PARENT_CIRCLE
    assert found["a"] is found["b"] is situations.PARENT_CIRCLE
    assert found["d"] is situations.PARENT_HAS_NO_ROW
    assert found["c"] is found["own"] is situations.NO_WORKER
    assert "lists a, b as each other's parents" in explain(facts(listing=listing), "d").first_line


# --- owners --------------------------------------------------------------------------------------------------------


def test_a_free_lease_names_the_workers_that_may_take_it() -> None:
    assert said(facts(row("s1"))) == ("no-worker", "has no owner, and no worker lives")
    assert said(facts(row("s1"), workers=[worker("w2")]))[0] == "free"


def test_a_dead_owner_is_told_from_the_last_one() -> None:
    dead = row("s1", "w1", beat=34)

    assert said(facts(dead)) == (
        "owner-dead-alone",
        "has a dead owner: worker w1 gave its last heartbeat 34 s ago, and no other worker lives",
    )
    assert said(facts(dead, row("s2", "w2"))) == (
        "owner-dead",
        "has a dead owner: worker w1 gave its last heartbeat 34 s ago; another worker takes it (living: w2)",
    )


def test_a_killed_session_is_dead_however_young_its_beat() -> None:
    made = facts(row("s1", "w1"), workers=[worker("w1", state="killed"), worker("w2")])

    assert said(made)[0] == "owner-dead"


def test_a_silent_owner_says_when_its_lease_expires() -> None:
    made = facts(row("s1", "w1", beat=12), workers=[worker("w1", beat=12)])

    assert said(made) == (
        "owner-silent",
        "is held by worker w1, which is silent (last heartbeat 12 s ago): its lease expires in 8.0 s",
    )


def test_what_this_machine_knows_of_the_process_is_said_before_the_lease_expires() -> None:
    stopped = facts(row("s1", "w1"), workers=[worker("w1", process=Process.STOPPED)])
    gone = facts(row("s1", "w1"), workers=[worker("w1", process=Process.GONE)])

    assert said(stopped)[0] == "owner-frozen"
    assert "whose process 12 on this machine is stopped" in said(stopped)[1]
    assert said(gone)[0] == "owner-silent"
    assert "whose process is gone" in said(gone)[1]


def test_a_lease_in_transit_is_told_from_one_that_is_not_picked_up() -> None:
    young = row("s1", "w2", stealer="w2", owned=2)
    old = row("s1", "w2", stealer="w2", owned=30)

    assert said(facts(young, workers=[worker("w2")]))[0] == "changing-hands"
    assert said(facts(old, workers=[worker("w2")])) == (
        "not-picked-up",
        "was handed over to worker w2 30 s ago, which has not picked it up",
    )
    assert said(facts(young, workers=[worker("w2", beat=99)]))[1].endswith("has not picked it up: it is dead")


def test_a_mark_that_is_not_served_quotes_the_owner() -> None:
    young = row("s1", "w1", stealer="w2", marked=3)
    old = row("s1", "w1", stealer="w2", marked=200)
    busy = worker("w1", shards={"s1": "process_records has been running for 190 s"})

    assert said(facts(young, workers=[busy]))[0] == "changing-hands"
    assert said(facts(old, workers=[busy])) == (
        "not-handed-over",
        (
            "is wanted by worker w2, but worker w1 has not handed it over for 3 min 20 s: "
            "process_records has been running for 190 s"
        ),
    )


def test_two_processes_of_one_name_are_seen_while_rows_are_read_twice() -> None:
    made = facts(row("s1", "w1"), workers=[worker("w1", nonce="n2")])
    made = evolve(made, earlier_workers={"w1": worker("w1", nonce="n1")}, observed_seconds=2)

    assert said(made)[0] == "name-contested"


def test_a_lease_that_a_living_worker_stopped_renewing_is_given_up() -> None:
    made = facts(
        row("s1", "w1", beat=15), workers=[worker("w1", shards={"s1": "stalled: initialize has been running for 99 s"})]
    )

    assert said(made)[0] == "given-up"
    assert "has not renewed this lease for 15 s: stalled" in said(made)[1]


def test_a_shard_that_its_processor_left_is_not_waited_for_in_vain() -> None:
    alone = facts(row("s1", "w1", beat=99), workers=[worker("w1", left=("s1",))])
    others = facts(row("s1", ""), workers=[worker("w1", left=("s1",)), worker("w2")])

    assert said(alone)[0] == "left-by-processor"
    assert said(others)[0] == "free"


def test_a_worker_whose_row_had_no_room_for_all_it_left_is_not_said_to_take_a_shard() -> None:
    """It may have left that one before those that are named; another worker takes it in any case."""
    full = worker("w1", left=("s9",), left_unnamed=3)
    unless = ", unless its processor left it on worker w1, whose session row has no room to name all such shards"

    assert said(facts(row("s1", ""), workers=[full])) == (
        "free",
        f"has no owner; it is free for the next scan of a worker (living: w1){unless}",
    )
    assert said(facts(row("s1", "w0", beat=99), workers=[full]))[1].endswith(f"takes it (living: w1){unless}")
    assert said(facts(row("s1", ""), workers=[full, worker("w2")]))[1].endswith("(living: w1, w2)")
    assert said(facts(row("s9", ""), workers=[full]), "s9")[0] == "left-by-processor"


def test_an_unwell_worker_is_named_where_it_names_no_reason() -> None:
    made = facts(row("s1", "w1"), workers=[worker("w1", trouble="no lease write was answered for 70 s")])

    assert said(made) == (
        "owner-unwell",
        "is held by worker w1, which is unwell: no lease write was answered for 70 s",
    )


# --- orders --------------------------------------------------------------------------------------------------------


def test_a_pause_names_who_until_when_and_why() -> None:
    made = facts(row("s1", "w1", pause=PAUSE, taken=True), workers=[worker("w1")])

    assert said(made) == ("paused", "is paused by ann@ops until 2023-11-14T23:13:20.000Z: maintenance")


def test_a_pause_comes_before_the_death_of_the_owner() -> None:
    assert said(facts(row("s1", "w1", pause=PAUSE, beat=99)))[0] == "paused"
    assert said(facts(row("s1", "", pause=PAUSE)))[0] == "paused"


def test_a_pause_that_is_not_acknowledged_quotes_the_owner_or_says_that_it_cannot_know() -> None:
    busy = worker("w1", shards={"s1": "process_records has been running for 45 s"})

    assert said(facts(row("s1", "w1", pause=PAUSE), workers=[busy]))[0] == "pause-pending"
    assert "process_records has been running" in said(facts(row("s1", "w1", pause=PAUSE), workers=[busy]))[1]
    assert said(facts(row("s1", "w1", pause=PAUSE)))[0] == "pause-not-obeyed"


def test_an_acknowledgement_by_another_owner_does_not_count() -> None:
    paused = row("s1", "w1", pause=PAUSE, taken=True)
    assert paused.lease is not None
    moved = evolve(paused, lease=evolve(paused.lease, owner="w2"))

    assert said(facts(moved, workers=[worker("w2")]))[0] == "pause-pending"


def test_a_pause_that_has_ended_is_no_cause() -> None:
    over = Pause("r1", "ann@ops", "maintenance", ago(1))
    made = facts(row("s1", "w1", pause=over, taken=True), workers=[worker("w1")], heads={"s1": HeadFacts()})

    assert said(made)[0] == "caught-up"


# --- what the owner says, and what the records show ----------------------------------------------------------------


def test_what_a_worker_says_is_quoted_and_sorted_by_its_cause() -> None:
    text = "processor failed 3 times: initialize: ValueError: no such database; next start in 3.0 s"
    made = facts(row("s1", "w1"), workers=[worker("w1", shards={"s1": text}, kind="processor")])

    assert said(made) == ("processor-fails", f"does not move on worker w1: {text}")
    assert situation_of(ShardTrouble("something nobody has seen before", "new")) is situations.OWNER_SAYS
    later = ShardTrouble(
        "of a later version; next start in 3.0 s", "processor", (Reason(Cause.NEXT_TRY, "start", "3"),)
    )
    assert situation_of(later) is situations.PROCESSOR_FAILS
    ended = (Reason(Cause.END_NOT_STORED), Reason(Cause.NEXT_TRY, "start", "3.0 s"))
    assert situation_of(ShardTrouble(text_of(*ended), "processor", ended)) is situations.END_NOT_STORED


def test_every_cause_has_words_and_a_situation() -> None:
    assert set(Cause) - set(SITUATIONS) == {Cause.NEXT_TRY, Cause.PRESENT_TRY, Cause.STRATEGY_ASKED}
    for cause in Cause:
        assert text_of(Reason(cause, "s", "d"))
        assert cause.kind is not ReasonKind.NONE


def test_of_several_causes_the_one_that_has_to_go_first_decides() -> None:
    def situation(*causes: Cause) -> Situation:
        reasons = tuple(map(Reason, causes))
        return situation_of(ShardTrouble(text_of(*reasons), kind_of(reasons).value, reasons))

    assert situation(Cause.PREVIOUS_PROCESSOR, Cause.LEASE_LOST, Cause.CALL_RUNS) is situations.OLD_PROCESSOR_RUNS
    assert situation(Cause.PROCESSOR_FAILED, Cause.CALL_QUEUED) is situations.WAITS_FOR_THREAD
    assert situation(Cause.GIVEN_AWAY, Cause.CALL_QUEUED) is situations.WAITS_FOR_THREAD
    assert situation(Cause.PROCESSOR_FAILED, Cause.CALL_RUNS) is situations.PROCESSOR_FAILS
    assert situation(Cause.CLOSING, Cause.CALL_RUNS) is situations.OWNER_SAYS


@given(st.lists(st.sampled_from([text_of(Reason(cause, "x", "y")) for cause in Cause]) | st.text()).map("; ".join))
@example("waiting for the epoch of this acquisition")
@example("parent p1 is not finished")
def test_the_text_of_an_exception_decides_nothing(text: str) -> None:
    """From the worker's row, as it is stored, to the verdict."""
    failed = (Reason(Cause.PROCESSOR_FAILED, "process_records", f"once: process_records: ValueError: {text}"),)
    trouble = ShardTrouble(text_of(*failed), kind_of(failed).value, failed)
    info = WorkerInfo.from_json(WorkerInfo(shards={"s1": trouble}).to_json())

    assert situation_of(info.shards["s1"]) is situations.PROCESSOR_FAILS
    assert situation_of(evolve(info.shards["s1"], reasons=())) is situations.PROCESSOR_FAILS


def test_rows_of_older_and_later_workers_are_read_as_far_as_they_go() -> None:
    older = '{"shards":{"s1":{"kind":"reading","reason":"reading failed once"}}}'
    later = older.replace("}}}", ',"reasons":[{"cause":"new"},7,{"cause":"reading_failed","subject":3}]}}}')

    assert WorkerInfo.from_json(older).shards == {"s1": ShardTrouble("reading failed once", "reading")}
    assert situation_of(WorkerInfo.from_json(older).shards["s1"]) is situations.READING_FAILS
    assert WorkerInfo.from_json(later).shards["s1"].reasons == (Reason(Cause.READING_FAILED),)


def test_a_trimmed_position_is_seen_without_the_workers_help() -> None:
    made = facts(row("s1", "w1"), heads={"s1": HeadFacts(is_trimmed=True)})

    assert said(made)[0] == "position-trimmed"


def test_a_checkpoint_that_stands_still_is_told_by_what_its_worker_can_say() -> None:
    still = row("s1", "w1", moved=90)
    heads = {"s1": waiting(85)}

    assert said(facts(still, workers=[worker("w1")], heads=heads)) == (
        "no-checkpoint",
        (
            "moves without a checkpoint: worker w1 names no obstacle, but has stored none for 1 min 30 s, although "
            "unread records wait, the oldest for 1 min 25 s"
        ),
    )
    assert said(facts(still, heads=heads))[0] == "owner-mute"


def test_a_worker_whose_row_had_no_room_for_all_names_is_not_said_to_name_no_obstacle() -> None:
    owner = worker("w1", unnamed=3)

    assert said(facts(row("s1", "w1", moved=90), workers=[owner], heads={"s1": waiting(85)})) == (
        "owner-says",
        "does not move on worker w1, whose session row has no room to name all shards that stand still: its log does",
    )
    assert said(facts(row("s1", "w1", moved=1), workers=[owner], heads={"s1": waiting(1)}))[0] == "reading"


def test_nothing_is_guessed_about_records_that_were_not_looked_up() -> None:
    held, moving = row("s1", "w1", moved=90), row("s2", "w1", moved=1)
    made = facts(held, moving, workers=[worker("w1")])

    assert said(made) == (
        "held",
        "is held by worker w1, which names no obstacle; the records after its checkpoint were not looked up",
    )
    assert said(made, "s2") == ("reading", "moves: worker w1 reads it")


# --- liveness and loss ---------------------------------------------------------------------------------------------


def test_a_worker_without_session_lives_by_the_heartbeats_of_its_leases() -> None:
    made = facts(row("a", "w1", beat=50), row("b", "w1", beat=2), row("c", "w2", stealer="w2", beat=1))

    assert (life(made, "w1"), life(made, "w2"), life(made, "w3")) == (Liveness.LIVING, Liveness.UNSEEN, Liveness.UNSEEN)


def test_a_leaving_worker_is_none_that_takes_leases() -> None:
    made = facts(workers=[worker("w1", state="leaving"), worker("w2")])

    assert living_workers(made) == ["w2"]


def test_time_to_loss_is_retention_less_the_age_of_the_next_record() -> None:
    made = facts(row("s1"))

    assert seconds_to_loss(made, waiting(3_600)) == 23 * 3_600
    assert seconds_to_loss(made, HeadFacts(is_trimmed=True)) == 0.0
    assert seconds_to_loss(made, HeadFacts()) is None


# --- properties ----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "w1", "w2"])
AGES = st.floats(0, 3 * LEASE_SECONDS)


@st.composite
def any_row(draw: st.DrawFn, shard_id: str, parents: tuple[str, ...]) -> RowFacts:
    if draw(st.integers(0, 9)) == 0:
        return RowFacts(shard_id=shard_id, lease=None, problem="it is broken")
    return row(
        shard_id,
        draw(NAMES),
        stealer=draw(NAMES),
        checkpoint=draw(st.sampled_from([OLDEST, "it-1", END])),
        parents=draw(st.lists(st.sampled_from(parents), unique=True)) if parents else (),
        pause=draw(st.sampled_from([None, PAUSE])),
        taken=draw(st.booleans()),
        beat=draw(AGES),
        moved=draw(AGES),
        owned=draw(AGES),
        marked=draw(AGES),
    )


@st.composite
def any_facts(draw: st.DrawFn) -> FleetFacts:
    ids = ["a", "b", "c", "d"]
    rows = [draw(any_row(key, tuple(ids))) for key in ids if draw(st.booleans())]
    workers = [
        worker(
            name,
            state=draw(st.sampled_from(["running", "leaving", "killed"])),
            beat=draw(AGES),
            shards={key: "some reason" for key in ids if draw(st.integers(0, 3)) == 0},
            process=draw(st.sampled_from(list(Process))),
        )
        for name in ("w1", "w2")
        if draw(st.booleans())
    ]
    listing = [Shard(key, draw(st.sampled_from([None, *ids]))) for key in ids if draw(st.booleans())]
    heads = {key: draw(st.sampled_from([HeadFacts(), waiting(5), HeadFacts(is_trimmed=True)])) for key in ids}
    return facts(*rows, workers=workers, listing=listing, heads=heads)


@given(any_facts())
def test_every_state_of_the_tables_has_an_explanation(made: FleetFacts) -> None:
    """Whatever stands in the tables: one sentence, a root that exists or is the shard itself, and evidence."""
    for key in ("a", "b", "c", "d"):
        found = explain(made, key)

        assert found.first_line.startswith(f"Shard {key} ")
        assert "\n" not in found.first_line
        assert found.root == key or found.root in {*made.rows, *(made.stream.listing or {})}
        assert evidence(made, key)


@given(any_facts())
def test_a_shard_is_only_said_to_move_while_its_owner_lives(made: FleetFacts) -> None:
    for key in ("a", "b", "c", "d"):
        found = explain(made, key)
        lease = made.lease(key)
        if found.situation in (situations.CAUGHT_UP, situations.READING):
            assert lease is not None
            assert life(made, lease.owner) is Liveness.LIVING
