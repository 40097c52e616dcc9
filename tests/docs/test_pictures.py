"""Each picture shows what it is drawn from, the same each time, and stands on a page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.following import CHECKPOINT_NANOS
from benchmarks.latency import FLOOR, FULL, GROUP, HOUR, LOW_LATENCY
from streamclient.core.consumer.transitions import PUBLIC_STATES, TRANSITIONS, Phase
from streamclient.core.write_rules import WriteKind
from streamclient.model import ShardState
from tools.pictures import (
    LEASES,
    SENT,
    commit_steps,
    consumer_steps,
    draw_commit,
    draw_consumer_states,
    draw_hand_over,
    draw_lease_states,
    draw_lineage,
    draw_top,
    hand_over,
    lease_state,
    lease_steps,
    pictures,
)
from tools.plots import (
    CURVES,
    LATENCY_PLOTS,
    PAGE,
    draw_curves,
    draw_latency,
    draw_plot,
    figures,
    lake_lines,
    lake_rows,
    latency_curves,
    latency_lines,
    plotted,
    plotted_groups,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"


def texts(svg: str) -> list[str]:
    """What can be read in a picture, in the order in which it is drawn, without the outlines below letters."""
    nodes = [node for node in ET.fromstring(svg).iter() if node.tag.endswith("}text")]
    return ["".join(node.itertext()) for node in nodes if node.get("aria-hidden") is None]


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_drawn_the_same_each_time(name: str) -> None:
    draw = pictures()[name]

    assert draw() == draw()


def test_every_picture_stands_on_a_page_and_every_page_finds_its_pictures() -> None:
    pages = [page for page in DOCS.rglob("*.md") if "_generated" not in page.parts]
    shown = {name for page in pages for name in re.findall(r"_generated/([\w-]+\.svg)", page.read_text())}

    assert shown == set(pictures())


def test_the_shards_of_the_lineage_are_split_and_merged() -> None:
    words = texts(draw_lineage())

    assert [word for word in words if word.startswith("shard ")] == [
        "shard 1, closed",
        "shard 2, closed",
        "shard 3, closed",
        "shard 4, open",
        "shard 5, closed",
        "shard 6, open",
    ]
    assert draw_lineage().count("<polygon") == 6  # an arrow from each parent to each of its children
    assert "keys 'g' to 'm'" in words


def test_every_state_of_a_lease_and_every_write_that_changes_it_are_shown() -> None:
    words = texts(draw_lease_states())
    named = {WriteKind.CREATE.value, *(name.split(",")[0].split(" at ")[0] for name in SENT)}
    keeps_its_state = {"take pause", "leave pause", "set pause", "set orders", "end orders", "rewind"}

    assert set(words) >= {"absent", *LEASES, *SENT}
    assert named == {kind.value for kind in WriteKind} - keeps_its_state


def test_arrows_between_leases_are_what_the_writes_do() -> None:
    steps = lease_steps()

    assert {lease_state(lease) for lease in LEASES.values()} == set(LEASES)
    assert steps["held", "marked"] == ["steal"]
    assert steps["marked", "handed over"] == ["transfer"]
    assert steps["handed over", "held"] == ["take"]
    assert steps["held", "finished"] == ["checkpoint at SHARD_END"]
    assert "take, if expired" in steps["marked", "held"]


def test_every_phase_of_a_consumer_and_every_outcome_is_shown() -> None:
    words = texts(draw_consumer_states())
    outcomes = {word for line in words for word in line.split(", ")}

    assert set(words) >= {phase.value for phase in Phase}
    assert outcomes >= {outcome.value for _, outcome in TRANSITIONS}


def test_the_arrows_of_a_consumer_are_its_table() -> None:
    processing = ShardState.PROCESSING
    arrows = {(begin, name, end) for (begin, end), names in consumer_steps().items() for name in names}

    assert arrows == {
        (
            processing.name
            if PUBLIC_STATES[phase] is processing and PUBLIC_STATES[after] is not processing
            else phase.value,
            outcome.value,
            after.value,
        )
        for (phase, outcome), after in TRANSITIONS.items()
    }


def test_a_hand_over_goes_from_the_mark_to_the_first_read() -> None:
    steps = [(actor.partition("#")[0], what) for _, actor, what, _, _ in hand_over()]
    words = texts(draw_hand_over())

    assert steps[0] == ("worker-2", "steal")
    assert steps[-1] == ("worker-2", "starts to read")
    assert [step for step in steps if step[1] in ("ends reading", "transfer", "take")] == [
        ("worker-1", "ends reading"),
        ("worker-1", "transfer"),
        ("worker-2", "take"),
    ]
    assert [word for word in words if word in {what for _, what in steps}] == [what for _, what in steps]


def test_a_planned_move_takes_about_a_second_as_the_page_says() -> None:
    gaps = []
    for seed in range(1, 12):
        entries = hand_over(seed)
        gaps.append(entries[-1][0] - next(entry[0] for entry in entries if entry[2] == "ends reading"))

    assert 0.5 < statistics.median(gaps) < 1.5
    assert max(gaps) < 2
    (text,) = [word for word in texts(draw_hand_over()) if word.startswith("no worker reads")]
    assert text == f"no worker reads the shard for {gaps[0]:.2f} s"
    assert "a planned move takes about a second" in " ".join((DOCS / "concepts.md").read_text().split())


def test_the_commit_shows_its_steps_in_order_and_what_a_crash_leads_to() -> None:
    words = " ".join(texts(draw_commit()))
    places = [words.index(f"{number}. {step}") for number, step in enumerate(commit_steps(), 1)]

    assert len(places) == 7
    assert places == sorted(places)
    assert words.count("a crash here") == 4


def test_the_screen_of_top_has_its_workers_its_shards_and_80_columns() -> None:
    svg = draw_top()
    lines = [unescape(text).replace("\u00a0", " ") for text in texts(svg)]
    screen = "\n".join(lines)

    assert all(len(line.rstrip()) <= 80 for line in lines)
    for word in ("worker-1", "worker-2", "worker-3", "c90a6d3f", "owner-dead", "TIME TO LOSS", "records/s"):
        assert word in screen
    assert "url(" not in re.sub(r"url\(#", "", svg)


@pytest.mark.parametrize("group", plotted_groups())
def test_a_plot_has_a_bar_for_each_row_of_its_table(group: str) -> None:
    words = texts(draw_plot(group))
    unsorted = [row for row in figures(PAGE.read_text()) if row.group == group and "/" in row.unit]
    comparisons = list(dict.fromkeys((row.compared, row.unit) for row in unsorted))
    rows = sorted(unsorted, key=lambda row: comparisons.index((row.compared, row.unit)))

    assert [row for part in plotted(group) for row in part] == rows
    assert [word for word in words if re.fullmatch(r"[\d,]+", word)] == [f"{row.value:,.0f}" for row in rows]
    assert [word for word in words if word in {row.name for row in rows}] == [row.name for row in rows]


def test_a_longer_bar_is_a_larger_figure() -> None:
    for group in plotted_groups():
        rows = [row for part in plotted(group) for row in part]
        lengths = [
            float(width)
            for width in re.findall(r'<rect x="380.0" [^>]*? width="([\d.]+)" height="14.0"', draw_plot(group))
        ]
        by_value = sorted(range(len(rows)), key=lambda number: rows[number].value)

        assert len(lengths) == len(rows)
        assert [lengths[number] for number in by_value] == sorted(lengths)


def test_all_rates_of_the_page_are_plotted() -> None:
    rates = {row.group for row in figures(PAGE.read_text()) if "/" in row.unit}

    assert rates == set(plotted_groups())


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_has_a_point_for_each_measured_row_and_a_larger_figure_stands_higher(name: str) -> None:
    rows = [line for line in lake_lines() if line.unit == CURVES[name]]
    svg = draw_curves(name)
    heights = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="6.0" height="6.0"', svg)]
    by_figure = sorted(range(len(rows)), key=lambda number: rows[number].figure)

    assert rows
    assert len(heights) == len(rows)
    assert [heights[number] for number in by_figure] == sorted(heights, reverse=True)
    assert {f"{row.figure:,.0f}" for row in rows} <= set(texts(svg))


def test_the_table_of_commits_has_every_measured_figure() -> None:
    cells = [cell.strip() for row in lake_rows() for cell in row.split("|")[2:]]

    assert sorted(filter(None, cells)) == sorted(f"{line.figure:,.0f}" for line in lake_lines())


@pytest.mark.parametrize("name", LATENCY_PLOTS)
def test_a_curve_of_latency_has_a_point_for_each_row_at_its_place(name: str) -> None:
    """Rows of 64 shards and the floor stand in the table only."""
    group, svg = HOUR if name == "latency-hour" else GROUP, draw_latency(name)
    rows = [line for line in latency_lines() if line.group == group and line.unit == LATENCY_PLOTS[name]]
    drawn = [line.figure for line in rows if "over 64 shards" not in line.name and line.name != FLOOR]
    points = [point for curve in latency_curves(name).values() for point in curve]
    places = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="6.0" height="6.0"', svg)
    lefts, heights = [float(left) for left, _ in places], [-float(y) for _, y in places]

    assert len(drawn) >= 4
    assert sorted(figure for _, figure in points) == sorted(drawn)
    assert len(places) == len(points)
    assert in_order_of(lefts, [x for x, _ in points])
    assert in_order_of(heights, [figure for _, figure in points])
    bold = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*bold[^>]*>', svg)
    names = sorted({float(y) for y in bold})
    assert set(latency_curves(name)) <= set(texts(svg))
    assert len(names) == len(latency_curves(name))
    assert all(below - above >= 13 for above, below in pairwise(names))  # no name covers another


def in_order_of(places: Sequence[float], figures: Sequence[float]) -> bool:
    """Whether places ascend with their figures."""
    by_figure = [place for _, place in sorted(zip(figures, places, strict=True))]
    return by_figure == sorted(places)


def test_the_page_says_with_which_sizes_latency_is_measured() -> None:
    text = " ".join(PAGE.read_text().split())
    ((setting, value),) = LOW_LATENCY.items()
    words = {5.0: "five", 40.0: "forty"}

    assert f"has `ClientConfig({setting}={value})`" in text
    assert f"the same traffic flows for {words[FULL.settle_seconds]} seconds" in text
    assert f"{words[FULL.seconds]} seconds of them, and {FULL.least_records} at least" in text
    assert "checkpoint each shard once a second" in text
    assert CHECKPOINT_NANOS == 1e9
