"""The verdict about a fleet, from facts made by hand: what is one trouble, which comes first, and what it says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from attrs import evolve
from hypothesis import given
from operate_facts import END, NOW, ago, facts, row, waiting, worker
from test_operate_explanation import any_facts

from streamclient.base.reasons import Cause, Reason, text_of
from streamclient.core.worker_info import ShardTrouble
from streamclient.model import Pause, Progress
from streamclient.operate import situations
from streamclient.operate.explanation import explain
from streamclient.operate.facts import FleetFacts, HeadFacts, Process
from streamclient.operate.liveness import is_lag_bound, lag_seconds, seconds_to_loss
from streamclient.operate.situations import Situation
from streamclient.operate.verdict import URGENCIES, FleetVerdict, Urgency, trouble_lines, verdict

HOUR = 3_600.0
PAUSE = Pause("r1", "ann@ops", "maintenance")


def judged(made: FleetFacts, before: FleetVerdict | None = None) -> FleetVerdict:
    keys = sorted({*made.rows, *(made.stream.listing or {})})
    return verdict(made, [explain(made, key) for key in keys], before)


def fails(times: int) -> str:
    return f"processor failed {times} times: initialize: ValueError: no row 'x{times}'; next start in {times}.0 s"


def names(told: FleetVerdict) -> list[str]:
    return [trouble["situation"] for trouble in told["troubles"]]


def test_a_fleet_whose_shards_all_move_is_well() -> None:
    told = judged(facts(row("s1", "w1"), row("s2", "w1", checkpoint=END), workers=[worker("w1")]))

    assert (told["is_well"], told["troubles"]) == (True, [])
    assert told["sentence"] == "orders: all is well: 1 shard moves."
    assert trouble_lines(told, NOW) == [told["sentence"]]
    assert judged(facts())["sentence"] == "orders: all is well: no shard is unfinished."


def test_shards_with_one_cause_are_one_trouble_and_numbers_and_quotes_do_not_count() -> None:
    made = facts(
        row("s1", "w1"),
        row("s2", "w2", moved=600),
        row("s3", "w2"),
        workers=[
            worker("w1", shards={"s1": fails(2)}, kind="processor"),
            worker("w2", shards={"s2": fails(3), "s3": "something else"}, kind="processor"),
        ],
    )
    told = judged(made)
    first, second = told["troubles"]

    assert (first["shards"], first["worker"], first["shard"]) == (["s1", "s2"], None, "s1")
    assert first["first_line"] == f"2 shards do not move: {fails(2)}."
    assert first["since_micros"] == ago(600), "the earlier one"
    assert (second["shards"], second["worker"]) == (["s3"], "w2")
    assert second["first_line"] == "Shard s3 does not move on worker w2: something else."
    assert told["sentence"] == f"orders: 2 shards do not move: {fails(2)}. And 1 more trouble."


def test_a_failure_is_the_same_whatever_follows_it_and_whichever_request_it_was() -> None:
    def said(times: str, request: str, *following: Reason) -> ShardTrouble:
        text = f"{times}: DependencyException: OTSServerBusy: busy (request {request})"
        reasons = (Reason(Cause.READING_FAILED, detail=text), *following)
        return ShardTrouble(text_of(*reasons), "reading", reasons)

    told_of = {
        "s1": said("once", "fcec4671-38ae-4ab8-b52b-514f91f1ebf3", Reason(Cause.NEXT_TRY, "attempt", "0.3 s")),
        "s2": said("5 times", "6567f004-aae2-4e96-ab69-9b552e07fa62", Reason(Cause.PRESENT_TRY, "attempt")),
    }
    session = worker("w1")
    session = evolve(session, info=evolve(session.info, shards=told_of))
    (trouble,) = judged(facts(*(row(key, "w1") for key in told_of), workers=[session]))["troubles"]

    assert trouble["shards"] == ["s1", "s2"]


def test_workers_whose_names_differ_by_a_number_are_different_troubles() -> None:
    made = facts(row("s1", "w1", beat=34), row("s2", "w2", beat=34), row("s3", "w2", beat=34))
    told = judged(made)

    assert [(each["worker"], each["shards"]) for each in told["troubles"]] == [("w1", ["s1"]), ("w2", ["s2", "s3"])]
    assert told["troubles"][1]["first_line"].startswith("2 shards do not move; shard s2 has a dead owner: worker w2 ")


def test_shards_that_wait_for_others_are_counted_at_these() -> None:
    made = facts(
        row("p", "w1", beat=34, moved=50),
        row("c1", "w1", beat=34, parents=["p"]),
        row("c2", "w1", beat=34, parents=["c1"]),
    )
    (trouble,) = judged(made)["troubles"]

    assert (trouble["shards"], trouble["waiting_shards"]) == (["p"], 2)
    assert "2 more shards wait for it" in "\n".join(trouble_lines(judged(made), NOW))


def test_the_worst_comes_first() -> None:
    """Loss near, stuck, failing, slow, told."""
    made = facts(
        row("a", "w1", pause=PAUSE, taken=True),
        row("b", "w1"),
        row("c", "w2"),
        row("d", "java-1", moved=90),
        row("e", "w3"),
        workers=[
            worker("w1", shards={"b": "process_records has been running for 9 s"}, kind="user_code"),
            worker("w2", shards={"c": fails(1)}, kind="processor"),
            worker("w3", parked=3, parked_of={"e": 3}),
        ],
        heads={"d": waiting(HOUR), "e": waiting(18.5 * HOUR)},
    )
    told = judged(made)

    assert names(told) == [
        "reading",
        "owner-mute",
        "processor-fails",
        "user-code-runs",
        "paused",
        "records-parked",
    ]
    assert [each["urgency"] for each in told["troubles"]] == ["loss", "stuck", "failing", "slow", "told", "told"]
    assert [each["kind"] for each in told["troubles"]] == ["lost", "stuck", "stuck", "waits", "waits", "parked"]
    assert told["sentence"].startswith("orders: shard e moves: worker w3 reads it, with a lag of 18 h 30 min. And 5 ")
    assert not told["is_well"]


def test_of_several_near_loss_the_nearest_comes_first() -> None:
    heads = {"s1": waiting(20 * HOUR), "s2": waiting(23 * HOUR), "s3": HeadFacts(is_trimmed=True)}
    told = judged(facts(*(row(key, "w1") for key in heads), workers=[worker("w1")], heads=heads))

    assert [trouble["shards"] for trouble in told["troubles"]] == [["s3"], ["s2", "s1"]]
    assert [trouble["seconds_to_loss"] for trouble in told["troubles"]] == [0.0, HOUR]
    text = "\n".join(trouble_lines(told, NOW))
    assert "; records are lost" in text
    assert "; records are deleted in 1 h at the earliest" in text
    assert "also: 2 shards are near loss; shard s2 moves: worker w1 reads it, with a lag of 23 h." in text


def test_what_is_only_told_leaves_a_fleet_well_and_is_named() -> None:
    made = facts(row("s1", "w1"), workers=[worker("w1", parked=2, parked_of={"s1": 2}), worker("w2", beat=12)])
    told = judged(made)

    assert told["is_well"]
    assert trouble_lines(told, NOW) == [
        "orders: all is well: 1 shard moves.",
        "also: Worker w2 is silent: its last heartbeat was 12 s ago.",
        "  since 2023-11-14T22:13:08.000Z, 12 s ago",
        f"  what to do: {situations.OWNER_SILENT.advice}",
        "also: 2 records were parked since the workers started (worker w1: 2).",
        f"  what to do: {situations.RECORDS_PARKED.advice}",
    ]


def test_a_store_that_was_named_knows_what_is_still_parked() -> None:
    made = facts(row("s1", "w1"), workers=[worker("w1", parked=2)])

    assert names(judged(evolve(made, parked={}))) == []
    (trouble,) = judged(evolve(made, parked={"s1": 1}))["troubles"]
    assert trouble["first_line"] == "1 key has parked records."


def test_an_unwell_worker_is_named_once_by_its_shards_or_by_itself() -> None:
    idle = worker("w2", trouble="no scan succeeded for 60 s")
    held = worker("w1", trouble="no scan succeeded for 60 s")
    told = judged(facts(row("s1", "w1"), workers=[held, idle]))

    assert [(each["kind"], each["worker"]) for each in told["troubles"]] == [("stuck", "w1"), ("worker", "w2")]
    assert told["troubles"][1]["first_line"] == "Worker w2 is unwell: no scan succeeded for 60 s."


PAUSED = row("s1", "w1", pause=PAUSE, taken=True)
FROZEN = worker("w1", process=Process.STOPPED)


@pytest.mark.parametrize(
    ("made", "since", "command"),
    [
        (facts(PAUSED, workers=[worker("w1")]), ago(5), "streamclient leases resume s1"),
        (facts(row("s1", "w1"), workers=[FROZEN]), ago(1), "kill -CONT 12"),
        (
            facts(row("s1", "w1", moved=90), workers=[worker("w1")], heads={"s1": HeadFacts(is_trimmed=True)}),
            ago(90),
            "streamclient leases rewind s1 --to oldest --pause",
        ),
        (
            facts(row("$(x)", "w1", pause=PAUSE, taken=True), workers=[worker("w1")]),
            ago(5),
            "streamclient leases resume '$(x)'",
        ),
        (facts(row("s1", owned=70)), ago(70), ""),
        (facts(row("s1", "java-1", moved=90), heads={"s1": waiting(40)}), ago(40), ""),
    ],
)
def test_a_trouble_says_since_when_and_by_which_command_it_ends(made: FleetFacts, since: int, command: str) -> None:
    """An order counts from its writing, a worker from its last heartbeat, a standstill from the next unread record."""
    (trouble,) = judged(made)["troubles"]

    assert (trouble["since_micros"], trouble["since_is_seen"], trouble["command"]) == (since, False, command)


def test_a_reader_that_goes_on_knows_since_when_it_sees_a_trouble_and_which_was_the_last() -> None:
    well = facts(row("s1", "w1"), workers=[worker("w1")])
    ill = evolve(well, workers={"w1": worker("w1"), "w2": worker("w2", trouble="no scan")}, now_micros=NOW + 1)
    first = judged(well)
    second = judged(ill, first)
    third = judged(evolve(ill, now_micros=NOW + 2), second)
    last = judged(evolve(well, now_micros=NOW + 3), third)
    after = judged(evolve(well, now_micros=NOW + 4), last)

    assert judged(ill)["troubles"][0]["since_micros"] is None, "a single reading does not know it"
    for told in (second, third):
        (trouble,) = told["troubles"]
        assert (trouble["since_micros"], trouble["since_is_seen"]) == (NOW + 1, True)
    assert "  seen since 2023-11-14T22:13:20.000Z" in trouble_lines(third, NOW + 2)[1]
    assert first["last_trouble"] is second["last_trouble"] is None
    assert last["last_trouble"] == after["last_trouble"] == third["troubles"][0]
    assert {told["complete_since_micros"] for told in (first, second, third, last, after)} == {NOW}


def test_what_could_not_be_read_is_the_only_trouble() -> None:
    made = facts(row("s1"), problem="OTSServerBusy: busy", problem_code="throttled")
    told = judged(made)
    (trouble,) = told["troubles"]

    assert (trouble["kind"], trouble["situation"], told["is_well"]) == ("unreadable", "throttled", False)
    assert told["sentence"] == "orders: status table orders_status cannot be read: OTSServerBusy: busy."
    assert trouble["advice"] == situations.THROTTLED.advice


# --- lag while the next record cannot be read ----------------------------------------------------------------------


def test_lag_and_time_to_loss_are_known_by_the_checkpoint_while_reads_fail() -> None:
    """The newest record before the checkpoint is older than the next one: the lag is at most that."""
    read = row("s1", "w1", progress=Progress(ago(2 * HOUR), 5, 5))
    made = facts(read, row("java", "j1"), heads=dict.fromkeys(("s1", "java"), HeadFacts(problem="busy")))

    assert (lag_seconds(made, "s1"), seconds_to_loss(made, "s1")) == (2 * HOUR, 22 * HOUR)
    assert is_lag_bound(made, "s1")
    assert (lag_seconds(made, "java"), seconds_to_loss(made, "java"), is_lag_bound(made, "java")) == (None, None, False)
    exact = evolve(made, heads={"s1": waiting(HOUR)})
    assert (lag_seconds(exact, "s1"), is_lag_bound(exact, "s1")) == (HOUR, False)


# --- properties ----------------------------------------------------------------------------------------------------


def stuck_situations() -> Iterable[Situation]:
    found = (value for value in vars(situations).values() if isinstance(value, Situation))
    return [situation for situation in found if not situation.moves]


def test_the_table_of_urgencies_is_about_situations_in_which_a_shard_does_not_move() -> None:
    assert set(URGENCIES) <= set(stuck_situations())
    assert Urgency.STUCK not in URGENCIES.values(), "the others are"


@given(any_facts())
def test_every_shard_that_does_not_move_is_in_one_trouble_or_waits_for_one(made: FleetFacts) -> None:
    keys = sorted({*made.rows, *(made.stream.listing or {})})
    found = [explain(made, key) for key in keys]
    told = verdict(made, found)
    named = [shard for trouble in told["troubles"] for shard in trouble["shards"]]
    stands = {each.shard_id for each in found if not each.situation.moves}
    roots = {each.shard_id: each.root for each in found}

    assert len(named) == len(set(named))
    assert all(shard in named or roots[shard] in named for shard in stands)
    assert told["is_well"] <= (not stands)
    assert [trouble["urgency"] for trouble in told["troubles"]] == [
        each.name.lower() for each in sorted(Urgency[trouble["urgency"].upper()] for trouble in told["troubles"])
    ]
    assert all(trouble["first_line"].endswith(".") and trouble["advice"] for trouble in told["troubles"])
