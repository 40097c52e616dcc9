"""A fleet in groups: what is counted, what is named, how large it gets, and what ``top --groups`` shows of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from operate_facts import END, facts, row, waiting, worker
from operate_scene import Scene
from test_operate_explanation import any_facts

from streamclient.cli.top_screens import grouped_screen
from streamclient.model import Pause
from streamclient.operate.facts import FleetFacts, HeadFacts, Process
from streamclient.operate.groups import (
    LAG_BOUNDS_SECONDS,
    LAG_CLASSES,
    NOT_MOVING_SHOWN,
    Groups,
    WorkerGroup,
    groups,
    groups_document,
    lag_counts,
)
from streamclient.operate.overview import overview, overview_document

PAUSE = Pause("r1", "ann@ops", "maintenance")
FAILS = "processor failed 3 times: initialize: ValueError: no such database; next start in 3.0 s"


def fleet() -> FleetFacts:
    """Two workers and a shard without an owner: lags of most classes, and three shards that do not move."""
    lags = {"a": 0.5, "b": 1.0, "c": 9, "d": 61, "e": 3_601}
    heads = {"z": HeadFacts(), **{key: waiting(seconds) for key, seconds in lags.items()}}
    rows = [row(key, "w1") for key in ("a", "b", "c", "unknown", "z")]
    rows += [row("d", "w2", pause=PAUSE, taken=True), row("e", "w2"), row("free"), row("over", "w1", checkpoint=END)]
    return facts(*rows, workers=[worker("w1"), worker("w2", trouble="slow disk")], heads=heads)


def test_shards_are_counted_by_worker_and_lag() -> None:
    found = groups(overview(fleet()))

    assert found["lag_classes"] == list(LAG_CLASSES)
    assert LAG_CLASSES[-1] == "unknown"
    assert len(LAG_CLASSES) == len(LAG_BOUNDS_SECONDS) + 2
    assert found["workers"] == [
        {"id": "w1", "health": "well", "counts": [3, 1, 0, 0, 0, 0, 1], "shards": 5, "moving": 5},
        {"id": "w2", "health": "slow disk", "counts": [0, 0, 0, 1, 0, 1, 0], "shards": 2, "moving": 0},
        {"id": "", "health": "", "counts": [0, 0, 0, 0, 0, 0, 1], "shards": 1, "moving": 0},
    ]
    assert [(line["id"], line["shard"], line["situation"]) for line in found["not_moving"]] == [
        ("e", "e", "owner-unwell"),
        ("d", "d", "paused"),
        ("free", "free", "free"),
    ]
    assert found["not_moving_more"] == 0


def test_a_lag_at_the_end_of_a_class_is_in_it() -> None:
    view = overview(facts(row("s", "w1"), workers=[worker("w1")]))
    for number, bound in enumerate(LAG_BOUNDS_SECONDS):
        (line,) = (evolve(each, lag_seconds=bound) for each in view.shards)
        assert lag_counts([line])[number] == 1
        assert lag_counts([evolve(line, lag_seconds=bound + 0.001)])[number + 1] == 1


@given(any_facts())
def test_every_unfinished_shard_is_counted_once_and_named_if_it_does_not_move(made: FleetFacts) -> None:
    view = overview(made)
    found = groups(view)
    listed = overview_document(view)["shards"]

    assert sum(sum(group["counts"]) for group in found["workers"]) == len(view.shards)
    assert sum(group["shards"] for group in found["workers"]) == len(view.shards)
    assert sum(group["moving"] for group in found["workers"]) == view.moving
    assert len(found["not_moving"]) + found["not_moving_more"] == len(view.shards) - view.moving
    assert found["not_moving"] == [{"id": line["shard"], **line} for line in listed if not line["moves"]]


def large(shards: int, workers: int = 40) -> FleetFacts:
    """A fleet of which every second worker publishes failures of 20 shards, and the others have not paused yet."""
    names = [f"worker-{number:03}" for number in range(workers)]
    ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(shards)]
    rows = [row(key, names[number % workers], pause=PAUSE if number % 2 else None) for number, key in enumerate(ids)]
    failing = {name: dict.fromkeys(ids[number::workers][:20], FAILS) for number, name in enumerate(names)}
    sessions = [worker(name, shards=failing[name], kind="processor") for name in names[::2]]
    return facts(*rows, workers=[*sessions, *(worker(name) for name in names[1::2])])


def test_the_document_does_not_grow_with_the_shards() -> None:
    few, many = (groups_document(overview(large(count))) for count in (3_000, 6_000))

    assert len(json.dumps(many)) < len(json.dumps(few)) + 2_000, "figures have more digits"
    assert len(json.dumps(many, indent=2)) < 200_000
    assert len(many["groups"]["not_moving"]) == NOT_MOVING_SHOWN
    assert many["groups"]["not_moving_more"] == 3_000 + 20 * 20 - NOT_MOVING_SHOWN
    assert {len(trouble["shards"]) for trouble in many["verdict"]["troubles"]} == {NOT_MOVING_SHOWN}
    assert "400 shards do not move" in many["verdict"]["sentence"]
    sessions = [each["session"] for each in many["workers"]]
    assert all((each["shards"], each["left"], each["parked_of"]) == ({}, [], {}) for each in sessions)
    assert all(each["set_aside"] == [] for each in sessions)


def test_the_document_is_that_of_top_but_for_the_shards() -> None:
    view = overview(fleet())
    listed, grouped = overview_document(view), groups_document(view)

    assert grouped.keys() == (listed.keys() - {"shards"}) | {"groups"}
    assert {name: grouped[name] for name in ("table", "now_micros", "totals", "verdict")} == {
        name: listed[name] for name in ("table", "now_micros", "totals", "verdict")
    }
    assert [each["worker"] for each in grouped["workers"]] == ["w1", "w2"]
    assert grouped["workers"][1]["session"]["trouble"] == "slow disk"


def test_a_worker_that_may_be_over_is_of_unknown_health() -> None:
    made = facts(row("s", "w1", beat=34), row("t", "java-1"), workers=[worker("w2", process=Process.STOPPED)])
    found = {group["id"]: group["health"] for group in groups(overview(made))["workers"]}

    assert found == {"java-1": "no session row", "w1": "no session row", "w2": "unknown"}


def screen(made: FleetFacts, width: int | None = None, height: int | None = None) -> list[str]:
    return grouped_screen(overview(made), width, height).splitlines()


def test_the_screen_has_a_line_for_each_worker_and_names_what_does_not_move() -> None:
    lines = screen(fleet())
    head = next(number for number, line in enumerate(lines) if line.startswith("WORKER"))

    titles = "WORKER SHARDS MOVING 1 S 10 S 1 MIN 10 MIN 1 H >1 H UNKNOWN HEALTH"
    assert " ".join(lines[head].split()) == titles
    assert lines[head + 1].split() == ["w1", "5", "5", "3", "1", "0", "0", "0", "0", "1", "well"]
    assert lines[head + 3].split() == ["-", "1", "0", "0", "0", "0", "0", "0", "0", "1", "no", "owner"]
    assert lines[-4].startswith("d "), "and its cause below it"
    assert lines[-3] == "  is paused by ann@ops: maintenance"


def test_the_screen_fits_a_terminal_and_says_what_it_leaves_out() -> None:
    view = overview(large(1_000))
    text = grouped_screen(view, 80, 40)

    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 40
    assert "(30 more: --json shows them)" in text, "workers"
    assert text.splitlines()[-1] == f"({500 + 20 * 20 - NOT_MOVING_SHOWN} more that do not move)"
    assert screen(facts(row("s", "w1"), workers=[worker("w1")]))[-1] == "every shard moves"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_command_prints_the_screen_or_the_document(scene: Scene, form: list[str]) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "w1")
    scene.put_worker("w1")
    ran = scene.run("top", "--once", "--groups", *form)

    assert ran.code == 0, ran
    if form:
        assert [group["id"] for group in ran.document["groups"]["workers"]] == ["w1"]
        assert "shards" not in ran.document
    else:
        assert ran.first_line == "orders: all is well: 1 shard moves."
        assert "unfinished shards by lag, up to:" in ran.out
        assert ran.out.splitlines()[-1] == "every shard moves"


def test_values_that_are_derived_for_all_shards_are_those_of_each() -> None:
    """They are made in one pass, for a fleet of a hundred thousand shards."""
    view = overview(fleet())

    assert view.lines_of.keys() == {"w1", "w2", ""}
    assert sum(map(len, view.lines_of.values())) == len(view.shards)
    for name in ("w1", "w2"):
        assert [each.lease_key for each in view.facts.owned[name]] == [
            key for key, lease in view.facts.leases.items() if lease.owner == name
        ]


def test_the_page_names_every_member() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("| `top --groups` |"))

    assert {*Groups.__annotations__, *WorkerGroup.__annotations__} <= set(re.findall(r"`([a-z_]+)`", line))
    assert line.count(f"at most {NOT_MOVING_SHOWN} ") == 3
