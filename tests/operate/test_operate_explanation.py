"""Explaining a shard from facts made by hand: which cause is named, and which comes first."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from operate_facts import END, LEASE_SECONDS, OLDEST, ago, facts, row, waiting, worker

from streamclient.base.reasons import Cause, Reason, ReasonKind, kind_of, text_of
from streamclient.core.costs import Cost
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import Pause, Progress, Shard
from streamclient.operate import situations
from streamclient.operate.cases import Case, Explanation
from streamclient.operate.evidence import evidence
from streamclient.operate.explanation import _judged, explain, explanations
from streamclient.operate.facts import FleetFacts, HeadFacts, Process, RowFacts, StreamView, WorkerFacts
from streamclient.operate.lease_rules import SITUATIONS, situation_of
from streamclient.operate.liveness import Liveness, lag_seconds, life, living_workers, seconds_to_loss
from streamclient.operate.operator_documents import session_document
from streamclient.operate.situations import Situation

PAUSE = Pause("r1", "ann@ops", "maintenance", ago(-3_600))


def said(made: FleetFacts, shard_id: str = "s1") -> str:
    found = explain(made, shard_id)
    return f"{found.situation.name}: {found.predicate}"


BUSY = worker("w1", shards={"s1": "process_records has been running for 190 s"})
MUTE = worker("w1", unnamed=3)
NO_ROOM = worker("w1", left=("s9",), left_unnamed=3)
"""A worker whose row had no room for all it left: it may have left a shard before those that are named."""
UNLESS = ", unless its processor left it on worker w1, whose session row has no room to name all such shards"
DEAD = row("s1", "w1", beat=34)
ASKED_FOR, HANDED_OVER = row("s1", "w1", stealer="w2", marked=3), row("s1", "w2", stealer="w2", owned=2)
OLD_HANDED_OVER = row("s1", "w2", stealer="w2", owned=30)
PAUSED, TAKEN = row("s1", "w1", pause=PAUSE), row("s1", "w1", pause=PAUSE, taken=True)
OVER = row("s1", "w1", pause=Pause("r1", "ann@ops", "maintenance", ago(1)), taken=True)
MALFORMED = RowFacts(shard_id="s1", lease=None, problem="it lacks column Checkpoint")
FAILS = "processor failed 3 times: initialize: ValueError: no such database; next start in 3.0 s"
STANDS = row("s1", "w1", moved=90)
OWN, W1, W2 = row("s1", "w1"), worker("w1"), worker("w2")

EXPLAINED: dict[str, tuple[FleetFacts, str]] = {
    "nothing waits at its checkpoint": (
        facts(row("s1", "w1", moved=500), workers=[W1], heads={"s1": HeadFacts()}),
        "caught-up: moves: worker w1 has read everything there is",
    ),
    "it lags behind, at its rate": (
        evolve(
            facts(row("s1", "w1", progress=Progress(2, 340, 2), moved=50), workers=[W1], heads={"s1": waiting(300)}),
            earlier={"s1": row("s1", "w1", checkpoint="it-0", progress=Progress(1, 100, 1))},
            observed_seconds=2.0,
        ),
        "reading: moves: worker w1 reads it at 120 records/s, with a lag of 5 min",
    ),
    "it is finished, and has children": (
        facts(row("s1", "w1", checkpoint=END), row("s2", parents=["s1"])),
        "finished: is finished: everything in it was processed; its children are s2",
    ),
    "the stream is off": (
        evolve(facts(), stream=StreamView(table_name="orders", stream_id=None)),
        "stream-off: cannot be read: the stream of table orders is off",
    ),
    "nobody knows it": (facts(row("s2")), "unknown-shard: *"),
    "its row is malformed": (
        facts(MALFORMED, listing=[Shard("s1")]),
        "malformed-row: is left out by all workers: its row is malformed: it lacks column Checkpoint",
    ),
    "it left the stream unread": (facts(OWN, listing=[Shard("s2")]), "left-stream: *"),
    "it has no row, and a worker lives": (
        facts(row("s2", "w1"), listing=[Shard("s1"), Shard("s2")]),
        "no-row-yet: has no lease row yet: a worker creates it soon (living: w1)",
    ),
    "it has no row, and no worker lives": (facts(listing=[Shard("s1"), Shard("s2")]), "no-worker: *"),
    "its lease is free, and no worker lives": (facts(row("s1")), "no-worker: has no owner, and no worker lives"),
    "its lease is free": (facts(row("s1"), workers=[W2]), "free: *"),
    "its owner is dead, and no other worker lives": (
        facts(DEAD),
        "owner-dead-alone: has a dead owner: worker w1 gave its last heartbeat 34 s ago, and no other worker lives",
    ),
    "its owner is dead, and another worker lives": (
        facts(DEAD, row("s2", "w2")),
        (
            "owner-dead: has a dead owner: worker w1 gave its last heartbeat 34 s ago; "
            "another worker takes it (living: w2)"
        ),
    ),
    "its owner was killed a moment ago": (facts(OWN, workers=[worker("w1", state="killed"), W2]), "owner-dead: *"),
    "its owner is silent": (
        facts(row("s1", "w1", beat=12), workers=[worker("w1", beat=12)]),
        "owner-silent: is held by worker w1, which is silent (last heartbeat 12 s ago): its lease expires in 8.0 s",
    ),
    "its owner's process is stopped on this machine": (
        facts(OWN, workers=[worker("w1", process=Process.STOPPED)]),
        "owner-frozen: *whose process 12 on this machine is stopped*",
    ),
    "its owner's process is gone from this machine": (
        facts(OWN, workers=[worker("w1", process=Process.GONE)]),
        "owner-silent: *whose process is gone*",
    ),
    "its owner's process runs on this machine and writes nothing": (
        facts(row("s1", "w1", beat=34), workers=[worker("w1", beat=34, process=Process.RUNNING)]),
        (
            "owner-cut-off: is held by worker w1, whose process 12 on this machine runs, but does not reach the status "
            "table: its last heartbeat was 34 s ago"
        ),
    ),
    "its silent owner's process runs on this machine": (
        facts(row("s1", "w1", beat=12), workers=[worker("w1", beat=12, process=Process.RUNNING), W2]),
        "owner-cut-off: *its last heartbeat was 12 s ago",
    ),
    "its owner's process runs on this machine, and another worker takes it": (
        facts(row("s1", "w1", beat=34), workers=[worker("w1", beat=34, process=Process.RUNNING), W2]),
        "owner-dead: *another worker takes it (living: w2)",
    ),
    "it was handed over a moment ago": (facts(HANDED_OVER, workers=[W2]), "changing-hands: *"),
    "it was handed over and is not picked up": (
        facts(OLD_HANDED_OVER, workers=[W2]),
        "not-picked-up: was handed over to worker w2 30 s ago, and the worker has not picked it up",
    ),
    "it was handed over to a dead worker": (
        facts(HANDED_OVER, workers=[worker("w2", beat=99)]),
        "*: *has not picked it up: the worker is dead",
    ),
    "it was asked for a moment ago": (facts(ASKED_FOR, workers=[BUSY]), "changing-hands: *"),
    "it was asked for and is not handed over": (
        facts(row("s1", "w1", stealer="w2", marked=200), workers=[BUSY]),
        (
            "not-handed-over: is wanted by worker w2, but worker w1 has not handed it over for 3 min 20 s: "
            "process_records has been running for 190 s"
        ),
    ),
    "two processes have the name of its owner": (
        evolve(
            facts(OWN, workers=[worker("w1", nonce="n2")]),
            earlier_workers={"w1": worker("w1", nonce="n1")},
            observed_seconds=2,
        ),
        "name-contested: *",
    ),
    "its living owner stopped renewing it": (
        facts(
            row("s1", "w1", beat=15),
            workers=[worker("w1", shards={"s1": "stalled: initialize has been running for 99 s"})],
        ),
        "given-up: *has not renewed this lease for 15 s: stalled*",
    ),
    "its processor left it on the only worker": (
        facts(row("s1", "w1", beat=99), workers=[worker("w1", left=("s1",))]),
        "left-by-processor: *",
    ),
    "its processor left it, and another worker lives": (
        facts(row("s1", ""), workers=[worker("w1", left=("s1",)), W2]),
        "free: *",
    ),
    "it may have been left without being named": (
        facts(row("s1", ""), workers=[NO_ROOM]),
        f"free: has no owner; it is free for the next scan of a worker (living: w1){UNLESS}",
    ),
    "a dead owner's shard may have been left without being named": (
        facts(row("s1", "w0", beat=99), workers=[NO_ROOM]),
        f"*: *takes it (living: w1){UNLESS}",
    ),
    "another worker takes what may have been left": (
        facts(row("s1", ""), workers=[NO_ROOM, W2]),
        "*: *(living: w1, w2)",
    ),
    "its owner is unwell": (
        facts(OWN, workers=[worker("w1", trouble="no lease write was answered for 70 s")]),
        "owner-unwell: is held by worker w1, which is unwell: no lease write was answered for 70 s",
    ),
    "it is paused": (
        facts(TAKEN, workers=[W1]),
        "paused: is paused by ann@ops until 2023-11-14T23:13:20.000Z: maintenance",
    ),
    "it is paused, and its owner died": (facts(row("s1", "w1", pause=PAUSE, beat=99)), "paused: *"),
    "it is paused, and has no owner": (facts(row("s1", "", pause=PAUSE)), "paused: *"),
    "its owner has not acknowledged a pause": (
        facts(PAUSED, workers=[BUSY]),
        "pause-pending: *process_records has been running*",
    ),
    "its owner cannot know of a pause": (facts(PAUSED), "pause-not-obeyed: *"),
    "another owner acknowledged the pause": (
        facts(evolve(TAKEN, lease=evolve(TAKEN.lease, owner="w2")), workers=[W2]),  # type: ignore[arg-type]
        "pause-pending: *",
    ),
    "its pause has ended": (facts(OVER, workers=[W1], heads={"s1": HeadFacts()}), "caught-up: *"),
    "its worker says that the processor fails": (
        facts(OWN, workers=[worker("w1", shards={"s1": FAILS}, kind="processor")]),
        f"processor-fails: does not move on worker w1: {FAILS}",
    ),
    "its position was trimmed, seen without the worker": (
        facts(OWN, heads={"s1": HeadFacts(is_trimmed=True)}),
        "position-trimmed: *",
    ),
    "its checkpoint stands still, and its worker names no obstacle": (
        facts(STANDS, workers=[W1], heads={"s1": waiting(85)}),
        (
            "no-checkpoint: moves without a checkpoint: worker w1 names no obstacle, but has stored no checkpoint for "
            "1 min 30 s, although unread records wait, the oldest for 1 min 25 s"
        ),
    ),
    "its checkpoint stands still, because its last records were parked": (
        facts(STANDS, workers=[worker("w1", set_aside=("s1",))], heads={"s1": waiting(85)}),
        (
            "caught-up: moves: worker w1 has read everything there is; the records after its checkpoint are parked or "
            "skipped"
        ),
    ),
    "its checkpoint stands still, and another worker had parked its last records": (
        facts(STANDS, workers=[W1, worker("w2", set_aside=("s1",))], heads={"s1": waiting(85)}),
        "no-checkpoint: *",
    ),
    "its last records were parked, and the stream no longer keeps them": (
        facts(STANDS, workers=[worker("w1", set_aside=("s1",))], heads={"s1": HeadFacts(is_trimmed=True)}),
        (
            "caught-up: moves: worker w1 has read everything there is; the records after its checkpoint are parked or "
            "skipped"
        ),
    ),
    "its last records were parked by a worker that is dead": (
        facts(row("s1", "w1", beat=30), workers=[worker("w1", beat=30, set_aside=("s1",))], heads={"s1": waiting(85)}),
        "owner-dead-alone: *",
    ),
    "its last records were parked, and its next one fails": (
        facts(STANDS, workers=[worker("w1", set_aside=("s1",), shards={"s1": "bad"})], heads={"s1": waiting(85)}),
        "owner-says: *",
    ),
    "its checkpoint stands still, and its worker has no session": (
        facts(STANDS, heads={"s1": waiting(85)}),
        "owner-mute: *",
    ),
    "its checkpoint stands still, and its worker had no room to name it": (
        facts(STANDS, workers=[MUTE], heads={"s1": waiting(85)}),
        (
            "owner-says: does not move on worker w1, whose session row has no room to name all shards that stand "
            "still: its log names them"
        ),
    ),
    "it moves on a worker that had no room for all names": (
        facts(row("s1", "w1", moved=1), workers=[MUTE], heads={"s1": waiting(1)}),
        "reading: *",
    ),
    "it stands still, and its records were not looked up": (
        facts(STANDS, workers=[W1]),
        "held: is held by worker w1, which names no obstacle; the records after its checkpoint were not looked up",
    ),
    "it moves, and its records were not looked up": (
        facts(row("s1", "w1", moved=1), workers=[W1]),
        "reading: moves: worker w1 reads it",
    ),
}


@pytest.mark.parametrize(("made", "words"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_shard_is_explained_by_the_cause_that_comes_first(made: FleetFacts, words: str) -> None:
    assert fnmatchcase(said(made), words), said(made)


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
    assert explain(facts(OWN, problem="OTSOops: no", problem_code=code), "s1").situation is situation


def test_leases_of_a_former_stream_are_told_from_those_of_the_present_one() -> None:
    made = facts(listing=[Shard("new")], former_rows={"old": row("old")}, former_stream_id="orders_0")
    assert [explain(made, key).situation.name for key in ("old", "new")] == ["stream-replaced"] * 2


def test_a_shard_left_by_its_processor_is_known_although_the_row_had_no_room_for_all() -> None:
    assert said(facts(row("s9", ""), workers=[NO_ROOM]), "s9").startswith("left-by-processor: ")


# --- lineage -------------------------------------------------------------------------------------------------------


def test_a_child_whose_parent_has_no_row_is_explained_by_the_parent() -> None:
    found = explain(facts(row("x", "w1"), listing=[Shard("x"), Shard("p"), Shard("s1", "p")]), "s1")
    assert (found.situation.name, found.root) == ("parent-has-no-row", "p")
    assert found.predicate.startswith("waits for its parent p, which has no lease row yet")


def test_a_child_is_explained_by_the_shard_that_has_to_move_first() -> None:
    made = facts(
        row("g", "w1"),
        row("p", "w1", parents=["g"]),
        row("s1", "w2", parents=["p"]),
        workers=[worker("w1", shards={"g": "processor failed twice: no database"}), W2],
    )
    found = explain(made, "s1")

    assert (found.situation.name, found.root) == ("waits-for-parent", "g")
    assert found.first_line == (
        "Shard s1 waits for its ancestor g, which does not move on worker w1: processor failed twice: no database."
    )


@pytest.mark.parametrize(
    ("rows", "root"),
    [
        ([row("g", "w1"), row("p", "w1", parents=["g"], checkpoint=END), row("s1", "w1", parents=["p"])], "g"),
        ([row("a", "w1", checkpoint=END), row("b", "w1"), row("s1", "w1", parents=["a", "b"])], "b"),
    ],
    ids=["a finished parent below an unfinished one is not the root", "the parent that blocks is named among two"],
)
def test_the_root_is_the_unfinished_ancestor(rows: list[RowFacts], root: str) -> None:
    assert explain(facts(*rows), "s1").root == root


def test_a_paused_child_of_an_unfinished_parent_waits_for_the_parent_first() -> None:
    made = facts(row("p", "w1"), row("s1", "w1", parents=["p"], pause=PAUSE, taken=True), workers=[W1])
    assert explain(made, "s1").situation is situations.WAITS_FOR_PARENT
    assert any(line.startswith("pause: by ann@ops") for line in evidence(made, "s1"))


def test_the_facts_about_an_owner_tell_that_its_reads_are_held_back() -> None:
    made = facts(OWN, workers=[worker("w1", pace="reads are at their ceiling of 400 a second")])
    (line,) = [line for line in evidence(made, "s1") if line.startswith("worker w1: ")]

    assert line.endswith(", reads are at their ceiling of 400 a second")
    assert explain(made, "s1").situation.moves, "that is no trouble"


def test_the_facts_tell_what_the_living_workers_cost_together_in_an_hour() -> None:
    """Each states the cost of its own time; one that is dead, or counts nothing, adds nothing."""
    minute = Cost(
        seconds=60,
        stream_requests=240,
        stream_read_units=2,
        status_table_requests=160,
        status_table_read_units=95,
        status_table_write_units=11,
    )
    ten_minutes = Cost(seconds=600, stream_requests=1, status_table_requests=6_000)
    fleet = [
        worker("w1", cost=minute),
        worker("w2", cost=ten_minutes),
        worker("w3"),
        worker("dead", beat=3_600.0, cost=minute),
    ]
    told = "the fleet's cost per hour: stream 14,406 requests and 120 read units, "
    told += "status table 45,600 requests, 5,700 read and 660 write units"

    assert [line for line in evidence(facts(OWN, workers=fleet), "s1") if "cost per hour" in line] == [told]
    assert [line for line in evidence(facts(OWN, workers=fleet[2:]), "s1") if "cost per hour" in line] == []
    assert session_document(facts(OWN, workers=fleet), fleet[0])["cost"]["stream_requests"] == 240


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


# --- what the owner says -------------------------------------------------------------------------------------------


def test_what_a_worker_says_is_sorted_by_its_cause() -> None:
    assert situation_of(ShardTrouble("something nobody has seen before", "new")) is situations.OWNER_SAYS
    next_try = Reason(Cause.NEXT_TRY, "start", "3")
    later = ShardTrouble("of a later version; next start in 3.0 s", "processor", (next_try,))
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


# --- liveness and loss ---------------------------------------------------------------------------------------------


def test_a_worker_without_session_lives_by_the_heartbeats_of_its_leases() -> None:
    made = facts(row("a", "w1", beat=50), row("b", "w1", beat=2), row("c", "w2", stealer="w2", beat=1))
    assert (life(made, "w1"), life(made, "w2"), life(made, "w3")) == (Liveness.LIVING, Liveness.UNSEEN, Liveness.UNSEEN)


def test_a_leaving_worker_is_none_that_takes_leases() -> None:
    assert living_workers(facts(workers=[worker("w1", state="leaving"), worker("w2")])) == ["w2"]


def test_time_to_loss_is_retention_less_the_age_of_the_next_record() -> None:
    heads = {"s1": waiting(3_600), "s2": HeadFacts(is_trimmed=True), "s3": HeadFacts()}
    made = facts(*map(row, heads), heads=heads)

    assert [seconds_to_loss(made, key) for key in (*heads, "s4")] == [23 * 3_600, 0.0, None, None]


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


def test_a_long_chain_of_waiting_shards_has_one_root() -> None:
    """A growing key splits its newest shard again and again; a fleet that stood still has all of them before it."""
    count = 1_200
    ids = [f"s{number:04}" for number in range(count)]
    made = facts(
        *(row(key, "w1", parents=ids[max(0, number - 1) : number]) for number, key in enumerate(ids)), workers=[W1]
    )
    last = explain(made, ids[-1])

    assert (last.situation, last.root) == (situations.WAITS_FOR_PARENT, ids[0])
    assert last.predicate == f"waits for its ancestor {ids[0]}, which {explain(made, ids[0]).predicate}"
    found = explanations(made, reversed(ids))
    assert [each.shard_id for each in found] == ids[::-1]
    assert {each.root for each in found} == {ids[0]}


@given(any_facts())
@example(facts(row("a", "w1", parents=["b"]), row("b", "w1", parents=["a"]), listing=[Shard("a"), Shard("b")]))
def test_shards_are_explained_together_as_each_alone(made: FleetFacts) -> None:
    keys = ["d", "b", "a", "c"]

    assert explanations(made, keys) == [explain(made, key) for key in keys]
    assert explanations(made, keys) == [in_one_go(made, key) for key in keys]


def in_one_go(made: FleetFacts, shard_id: str) -> Explanation:
    """The verdict without memory: each shard that waits has the one before it judged anew."""
    return _judged(Case(facts=made, shard_id=shard_id, judge=_judged, living=tuple(living_workers(made))))


def test_a_sentence_names_only_some_of_many_workers() -> None:
    made = facts(row("s1"), workers=[worker(f"w{number}") for number in range(8)])

    assert said(made) == (
        "free: has no owner; it is free for the next scan of a worker (living: w0, w1, w2, w3, w4 and 3 more)"
    )
    assert "living workers: w0, w1, w2, w3, w4, w5, w6, w7" in evidence(made, "s1")


@pytest.mark.parametrize(
    ("owner", "lag", "loss"),
    [
        (worker("w1", set_aside=("s1",)), 0.0, None),
        (worker("w1", set_aside=("s1",), beat=LEASE_SECONDS * 0.6), 85.0, 86_315.0),
        (worker("w1", set_aside=("s1",), beat=LEASE_SECONDS * 2), 85.0, 86_315.0),
        (worker("w1", set_aside=("s1",), state="killed"), 85.0, 86_315.0),
    ],
    ids=["lives", "is silent", "is dead", "was killed"],
)
def test_only_a_living_owner_is_believed_that_it_has_set_the_records_aside(
    owner: WorkerFacts, lag: float, loss: float | None
) -> None:
    """Later records may have come after the last heartbeat of any other owner."""
    given = facts(STANDS, workers=[owner], heads={"s1": waiting(85)})

    assert (lag_seconds(given, "s1"), seconds_to_loss(given, "s1")) == (lag, loss)
