"""Moves of leases: what one reading remembers, what two of them tell, and how long it is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from operate_facts import END, NOW, OLDEST, ago, facts, row, worker
from operate_scene import Scene
from test_operate_explanation import any_facts

from streamclient.core import leases as rule
from streamclient.model import Pause
from streamclient.operate import lease_moves
from streamclient.operate.facts import FleetFacts, RowFacts, WorkerFacts
from streamclient.operate.lease_moves import LaneSpan, LeaseMove, LeaseMoveKind, LeaseMoves, MovesDocument, WorkerLane
from streamclient.worker.lease.audit_rows import AuditRecord

SECOND = 1_000_000
PAUSE = Pause("r1", "ann@ops", "maintenance", NOW + 300 * SECOND)


def at(now: float, *rows: RowFacts, workers: Iterable[WorkerFacts] = ()) -> FleetFacts:
    """A reading ``now`` seconds after ``NOW``; ages of its rows and workers are by ``NOW``."""
    return evolve(facts(*rows, workers=workers), now_micros=NOW + round(now * SECOND))


def told(*readings: FleetFacts) -> MovesDocument:
    book = LeaseMoves()
    for reading in readings:
        book.read(reading)
    return book.document()


def short(move: LeaseMove) -> tuple[str, str | None, str | None, float, float | None]:
    """Kind, from, to, age by ``NOW`` in seconds, and the seconds without a reader."""
    return move["kind"], move["from"], move["to"], (NOW - move["at_micros"]) / SECOND, move["seconds"]


def after(before: FleetFacts, now: FleetFacts) -> list[tuple[str, str | None, str | None, float, float | None]]:
    """What the second reading adds to the first."""
    known = {move["id"] for move in told(before)["moves"]}
    return [short(move) for move in told(before, now)["moves"] if move["id"] not in known]


# --- one reading ---------------------------------------------------------------------------------------------------


def test_one_reading_tells_what_the_rows_remember() -> None:
    made = facts(
        row("held", "w1", owned=100),
        row("on-its-way", "w2", stealer="w2", owned=3),
        row("let-go", owned=40, moved=90),
        row("new", checkpoint=OLDEST, counter=0, owned=70, moved=70),
        row("rewound", counter=1, owned=60, moved=20),
        row("done", "w1", checkpoint=END, owned=90, moved=10),
        row("held-back", "w1", owned=80, pause=PAUSE),
    )
    document = told(made)

    assert document["complete_since_micros"] == NOW
    assert [(move["shard"], *short(move)) for move in document["moves"]] == [
        ("on-its-way", "handed-over", None, "w2", 3, None),
        ("held-back", "paused", None, None, 5, None),
        ("done", "finished", "w1", None, 10, None),
        ("let-go", "released", None, None, 40, None),
        ("held-back", "taken", None, "w1", 80, None),
        ("done", "taken", None, "w1", 90, None),
        ("held", "taken", None, "w1", 100, None),
    ]
    assert not any(move["at_is_seen"] for move in document["moves"])
    paused = document["moves"][1]
    assert (paused["who"], paused["reason"]) == ("ann@ops", "maintenance")
    assert document["lanes"] == [
        {
            "id": "w1",
            "spans": [
                {"shard": "held", "from_micros": ago(100), "to_micros": NOW},
                {"shard": "done", "from_micros": ago(90), "to_micros": ago(10)},
                {"shard": "held-back", "from_micros": ago(80), "to_micros": NOW},
            ],
        },
        {"id": "w2", "spans": []},
    ]


def test_without_a_reading_nothing_is_known() -> None:
    assert LeaseMoves().document() == {"complete_since_micros": 0, "moves": [], "lanes": []}


# --- two readings --------------------------------------------------------------------------------------------------

HELD = row("s", "w1", owned=100, beat=1)
W1, W2 = worker("w1"), worker("w2")
DEAD = worker("w1", beat=30)

CHANGES: dict[str, tuple[FleetFacts, FleetFacts, list[Any]]] = {
    "its living owner hands it over, and the reader sees only the end": (
        at(0, HELD, workers=[W1, W2]),
        at(2, row("s", "w2", owned=-1), workers=[worker("w1", beat=-1), W2]),
        [("handed-over", "w1", "w2", -1, None)],
    ),
    "its dead owner's lease is taken": (
        at(0, row("s", "w1", owned=100, beat=31), workers=[DEAD, W2]),
        at(2, row("s", "w2", owned=-1), workers=[DEAD, W2]),
        [("taken", "w1", "w2", -1, 31.0)],
    ),
    "its owner was killed": (
        at(0, HELD, workers=[worker("w1", beat=4), W2]),
        at(2, row("s", "w2", owned=-1), workers=[worker("w1", beat=4, state="killed"), W2]),
        [("taken", "w1", "w2", -1, 2.0)],
    ),
    "its owner leaves": (
        at(0, HELD, workers=[worker("w1", state="leaving", beat=15), W2]),
        at(2, row("s", "w2", owned=-1), workers=[W2]),
        [("handed-over", "w1", "w2", -1, None)],
    ),
    "its Java owner, dead for the reader too, is replaced": (
        at(0, row("s", "java", owned=100, beat=25), workers=[W2]),
        at(2, row("s", "w2", owned=-1), workers=[W2]),
        [("taken", "java", "w2", -1, 26.0)],
    ),
    "its Java owner died between the readings: its last sign is not known": (
        at(0, HELD, workers=[W2]),
        at(40, row("s", "w2", owned=-30), workers=[W2]),
        [("taken", "w1", "w2", -30, None)],
    ),
    "it is released": (
        at(0, HELD, workers=[W1]),
        at(2, row("s", owned=-1), workers=[W1]),
        [("released", "w1", None, -1, None)],
    ),
    "a released one is taken": (
        at(0, row("s", owned=10, moved=90), workers=[W1]),
        at(2, row("s", "w1", owned=-1), workers=[W1]),
        [("taken", None, "w1", -1, 11.0)],
    ),
    "a new one is taken": (
        at(0, row("s", checkpoint=OLDEST, counter=0, owned=10, moved=10), workers=[W1]),
        at(2, row("s", "w1", checkpoint=OLDEST, owned=-1, moved=10), workers=[W1]),
        [("taken", None, "w1", -1, None)],
    ),
    "the worker was restarted under its name": (
        at(0, HELD, workers=[W1]),
        at(40, row("s", "w1", owned=-30), workers=[worker("w1", nonce="n2", beat=-39)]),
        [("taken", "w1", "w1", -30, None)],
    ),
    "it was handed over to a worker that died, and is taken by another": (
        at(0, row("s", "w1", stealer="w1", owned=25), workers=[DEAD, W2]),
        at(2, row("s", "w2", owned=-1), workers=[DEAD, W2]),
        [("taken", None, "w2", -1, 26.0)],
    ),
    "it is finished": (
        at(0, HELD, workers=[W1]),
        at(2, row("s", "w1", owned=100, checkpoint=END, moved=-1), workers=[W1]),
        [("finished", "w1", None, -1, None)],
    ),
    "a heartbeat and a checkpoint are no moves": (
        at(0, HELD, workers=[W1]),
        at(2, row("s", "w1", owned=100, counter=9, checkpoint="it-2", moved=-1, beat=-1), workers=[W1]),
        [],
    ),
    "a row that appears is like one of the first reading": (
        at(0, workers=[W1]),
        at(2, row("s", "w1", owned=-1), workers=[W1]),
        [("taken", None, "w1", -1, None)],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_two_readings_tell_the_change_between_them(change: str) -> None:
    before, now, expected = CHANGES[change]

    assert after(before, now) == expected


def test_a_hand_over_that_is_picked_up_is_one_move_with_its_duration() -> None:
    book = LeaseMoves()
    book.read(at(0, HELD, workers=[W1, W2]))
    book.read(at(2, row("s", "w2", stealer="w2", owned=-1), workers=[W1, W2]))
    under_way = book.document()
    book.read(at(4, row("s", "w2", owned=-3), workers=[W1, W2]))
    done = book.document()

    assert [short(move) for move in under_way["moves"]][:1] == [("handed-over", "w1", "w2", -1, None)]
    assert [short(move) for move in done["moves"]] == [
        ("handed-over", "w1", "w2", -1, 2.0),
        ("taken", None, "w1", 100, None),
    ]
    assert under_way["moves"][0]["seconds"] is None, "a document that was given out does not change"
    assert done["lanes"] == [
        {"id": "w1", "spans": [{"shard": "s", "from_micros": ago(100), "to_micros": ago(-1)}]},
        {"id": "w2", "spans": [{"shard": "s", "from_micros": ago(-3), "to_micros": ago(-4)}]},
    ]


def test_the_span_of_a_dead_owner_ends_with_its_last_sign() -> None:
    before, now, _ = CHANGES["its dead owner's lease is taken"]
    lanes = {lane["id"]: lane["spans"] for lane in told(before, now)["lanes"]}

    assert lanes["w1"] == [{"shard": "s", "from_micros": ago(100), "to_micros": ago(30)}]
    assert lanes["w2"] == [{"shard": "s", "from_micros": ago(-1), "to_micros": ago(-2)}]


def test_an_owner_that_died_at_once_has_a_span_without_length() -> None:
    frozen = worker("w1", beat=30)
    before = at(0, row("s", "w1", owned=30, beat=30), workers=[frozen])
    now = at(2, row("s", "w2", owned=-1), workers=[frozen, W2])
    lanes = {lane["id"]: lane["spans"] for lane in told(before, now)["lanes"]}

    assert lanes["w1"] == [{"shard": "s", "from_micros": ago(30), "to_micros": ago(30)}]


def test_a_shard_that_left_ends_its_span_with_the_reading() -> None:
    document = told(at(0, HELD, workers=[W1]), at(2, workers=[W1]))

    assert document["lanes"][0]["spans"] == [{"shard": "s", "from_micros": ago(100), "to_micros": ago(-2)}]


def test_a_pause_that_is_ended_was_ended_before_the_reading_and_one_that_runs_out_at_its_time() -> None:
    paused = at(0, row("s", "w1", pause=PAUSE), workers=[W1])
    resumed = at(2, row("s", "w1"), workers=[W1])
    ran_out = evolve(paused, now_micros=NOW + 301 * SECOND)
    (ended, *_), (over, *_) = told(paused, resumed)["moves"], told(paused, ran_out)["moves"]

    assert (ended["kind"], ended["at_micros"], ended["at_is_seen"]) == ("resumed", ago(-2), True)
    assert (over["kind"], over["at_micros"], over["at_is_seen"]) == ("resumed", PAUSE.until_micros, False)
    again = told(paused, ran_out, evolve(resumed, now_micros=NOW + 303 * SECOND))["moves"]
    assert [move["kind"] for move in again].count("resumed") == 1
    other = at(2, row("s", "w1", pause=evolve(PAUSE, request_id="r2", by="bob@ops")), workers=[W1])
    other = evolve(other, rows={"s": evolve(other.rows["s"], pause_micros=ago(-1))})
    assert [(move["kind"], move["who"]) for move in told(paused, other)["moves"]][:2] == [
        ("paused", "bob@ops"),
        ("paused", "ann@ops"),
    ]
    accepts = at(0, row("s", "w1", pause=evolve(PAUSE, accepts_end=True)), workers=[W1])
    assert [move["kind"] for move in told(accepts)["moves"]] == ["taken"], "the order to accept an end pauses nothing"


# --- the audit -----------------------------------------------------------------------------------------------------


def order(number: int, *, outcome: str = "done", seconds: float = 50, **fields: Any) -> AuditRecord:
    given = {"before": "{}", "after": "{}", **{name: json.dumps(value) for name, value in fields.items()}}
    return AuditRecord(
        at_micros=ago(seconds),
        change_id="c1",
        number=number,
        who="ann@ops",
        command="move s --to w2",
        shard_id="s",
        reason="slow",
        outcome=outcome,
        **given,
    )


def test_orders_stand_among_the_moves_and_a_later_outcome_replaces_the_first() -> None:
    book = LeaseMoves()
    book.read(at(0, HELD, workers=[W1]))
    book.audited([order(0, outcome="intended", before={"stealer": ""}, after={"stealer": "w2"})])
    book.audited([order(0, before={"stealer": ""}, after={"stealer": "w2"}), order(1, before=["?"], seconds=60)])
    newest, second, last = book.document()["moves"]

    assert newest == {
        "id": f"order {ago(50):016d}-c1-00000",
        "at_micros": ago(50),
        "at_is_seen": False,
        "shard": "s",
        "kind": "order",
        "from": None,
        "to": "w2",
        "seconds": None,
        "who": "ann@ops",
        "command": "move s --to w2",
        "reason": "slow",
        "outcome": "done",
    }
    assert (second["kind"], second["to"], last["kind"]) == ("order", None, "taken")
    released = order(0, before={"owner": "w1", "stealer": ""}, after={"owner": "", "stealer": ""})
    book.audited([released])
    assert (book.document()["moves"][0]["from"], book.document()["moves"][0]["to"]) == ("w1", None)


# --- how much is kept ----------------------------------------------------------------------------------------------


def test_only_the_newest_moves_and_spans_are_kept() -> None:
    book = LeaseMoves()
    rows = [row(f"s{number:05}", "w1", owned=number) for number in range(5_000)]
    book.read(at(0, *rows, workers=[W1]))
    document = book.document()
    (lane,) = document["lanes"]

    assert [move["shard"] for move in document["moves"]] == [
        f"s{number:05}" for number in range(lease_moves.MOST_MOVES)
    ]
    assert {span["shard"] for span in lane["spans"]} == {f"s{number:05}" for number in range(lease_moves.MOST_SPANS)}
    assert len(book._moves) <= 2 * lease_moves.MOST_MOVES


def test_a_span_is_kept_for_a_day_and_a_longer_one_is_cut() -> None:
    day = 86_400.0
    first = at(0, row("old", "w1", owned=2 * day), row("s", "w1", owned=100), workers=[W1])
    second = at(2, row("old", "w1", owned=2 * day), row("s", owned=-1), workers=[W1])
    book = LeaseMoves()
    book.read(first)
    book.read(second)
    kept = {span["shard"]: span["from_micros"] for span in book.document()["lanes"][0]["spans"]}
    book.read(evolve(second, now_micros=NOW + round((day + 3) * SECOND)))
    left = {span["shard"] for span in book.document()["lanes"][0]["spans"]}

    assert kept == {"old": ago(day - 2), "s": ago(100)}
    assert left == {"old"}


@given(st.lists(any_facts(), max_size=4))
def test_whatever_is_read_moves_are_in_order_and_no_span_ends_before_it_begins(readings: list[FleetFacts]) -> None:
    document = told(*(evolve(reading, now_micros=NOW + number * SECOND) for number, reading in enumerate(readings)))
    times = [move["at_micros"] for move in document["moves"]]

    assert times == sorted(times, reverse=True)
    assert len({move["id"] for move in document["moves"]}) == len(times)
    for lane in document["lanes"]:
        assert all(span["from_micros"] <= span["to_micros"] for span in lane["spans"])
    json.dumps(document)


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_what_one_reading_and_the_audit_tell(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "w1", owned=100, checkpoint=scene.iterator())
    scene.put_worker("w1")
    scene.put_worker("w2")
    assert scene.run("leases", "move", scene.shard, "--to", "w2", "--reason", "slow").code == 0
    ran = scene.run("leases", "moves")
    document = scene.run("leases", "moves", "--json").document
    head, *lines = ran.out.splitlines()

    assert head.split() == ["TIME", "SHARD", "MOVE", "FROM", "TO", "WHO", "OUTCOME", "REASON"]
    assert [line.split()[2] for line in lines] == ["order:", "taken"]
    assert "  order: move --to w2  " in lines[0]
    assert lines[0].endswith("done     slow")
    assert [(move["kind"], move["to"]) for move in document["moves"]] == [("order", "w2"), ("taken", "w1")]
    assert [lane["id"] for lane in document["lanes"]] == ["w1", "w2"]
    assert document["complete_since_micros"] > document["moves"][0]["at_micros"]


def test_the_command_names_moves_of_one_shard_and_says_how_many_it_leaves_out(scene: Scene) -> None:
    scene.put_lease("aaa", "w1", owned=50)
    scene.put_lease("bbb", "w1", owned=40)
    scene.send(rule.release(scene.lease("bbb")))
    one = scene.run("leases", "moves", "--shard", "aa", "--json").document
    cut = scene.run("leases", "moves", "--limit", "1")

    assert [(move["shard"], move["kind"]) for move in one["moves"]] == [("aaa", "taken")]
    assert [span["shard"] for lane in one["lanes"] for span in lane["spans"]] == ["aaa"]
    assert cut.out.splitlines()[-1] == "(1 more: --limit shows them)"
    assert scene.run("leases", "moves", "--limit", "0").code == 2
    assert "no moves" not in cut.out


def test_a_fleet_that_has_not_run_has_no_moves(scene: Scene) -> None:
    assert scene.run("leases", "moves").out == "no moves: no worker has run yet\n"


def test_the_page_names_every_member() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("| `leases moves` |"))
    members = {
        *MovesDocument.__annotations__,
        *LeaseMove.__annotations__,
        *WorkerLane.__annotations__,
        *LaneSpan.__annotations__,
    }

    assert members <= set(re.findall(r"`([a-z_]+)`", line))
    assert all(f"`{kind}`" in line for kind in get_args(LeaseMoveKind))
