"""Alerts and board: made from the table of metrics, as committed, and each panel shows what a real worker measures."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_play import AGAIN, Play, grows, playing, shows
from alert_samples import MISSING, Phase, Shot, firing, input_series, names_in, promtool
from alert_scenes import SCENES
from operate_scene import Scene
from stuck_page import page_rows
from stuck_workers import Steady
from test_operate_stuck_workers import becomes

from streamclient import FailurePolicy, InitializationInput, OnFailure, ProcessRecordsInput
from streamclient.base.reasons import Cause
from streamclient.metrics import METRICS
from streamclient.metrics import metric_table as t
from streamclient.model import MetricKind
from streamclient.server import Fail, FaultRule
from streamclient.worker.parking import MemoryParkingStore
from tests.docs.page_examples import commands
from tests.patience import until
from tools import alerts
from tools.alert_board import BOARD
from tools.alert_faults import FAULTS, NOT_PLAYED
from tools.alert_rules import RULES
from tools.promql import increase, series, stands

DOCS = alerts.ROOT / "docs"
RULES_FILE, BOARD_FILE = alerts.FOLDER / "alerts.yaml", alerts.FOLDER / "board.json"

SUFFIXES = {
    MetricKind.COUNTER: ("",),
    MetricKind.GAUGE: ("",),
    MetricKind.HISTOGRAM: ("_bucket", "_count", "_sum"),
}
NAMES = {metric.name + suffix for metric in METRICS for suffix in SUFFIXES[metric.kind]}


def alerting() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES_FILE.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def targets() -> Iterator[tuple[str, str]]:
    """Expressions of the board, each with the title of its panel."""
    for panel in json.loads(BOARD_FILE.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_files_are_what_the_program_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert alerts.main(["--check"]) == 0
    assert alerts.main(["--to", f"{tmp_path}"]) == 0
    assert alerts.main(["--check", "--to", f"{tmp_path}"]) == 0
    (tmp_path / "board.json").write_text("{}")
    assert alerts.main(["--check", "--to", f"{tmp_path}"]) == 1
    assert "board.json is not what `python -m tools.alerts` makes: run it" in capsys.readouterr().err


def test_every_rule_is_complete() -> None:
    rules = alerting()

    assert [rule["alert"] for rule in rules] == [rule.name for rule in RULES]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Streamclient")
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}


def test_every_rule_says_why_it_waits() -> None:
    assert len(re.findall(r"^      +# .{20,}\n      +for: ", RULES_FILE.read_text(), re.MULTILINE)) == len(RULES)


def test_the_labels_in_the_texts_are_those_of_the_expression() -> None:
    for rule in RULES:
        grouped = re.findall(r"by \(([^)]*)\)", rule.expression)
        assert {", ".join(rule.labels)} == set(grouped) or (rule.labels == () and not grouped), rule.name


def test_rules_and_board_ask_for_metrics_that_exist() -> None:
    asked = names_in(rule["expr"] for rule in alerting()) | names_in(expression for _, expression in targets())

    assert asked <= NAMES
    assert names_in(["rate(streamclient_typo_total[5m])"]) == {"streamclient_typo_total"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: series(t.SHARDS, worcer="w1"),
        lambda: series(t.SCAN_SECONDS),
        lambda: series(t.UNHEALTHY, suffix="_count"),
        lambda: increase(t.STALLS, "1h", ("stream", "shard")),
    ],
)
def test_a_label_or_a_series_that_a_metric_lacks_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="streamclient_"):
        make()


def test_causes_are_those_of_the_code() -> None:
    assert stands(Cause.LOSS, Cause.PARKED_SHARE).count('cause=~"loss|parked_share"') == 1


def slug(heading: str) -> str:
    """The anchor of a heading, as the pages' program makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_runbooks_lead_to_headings() -> None:
    for rule, made in zip(RULES, alerting(), strict=True):
        page, anchor = rule.runbook.split("#")
        headings = re.findall(r"^##+ (.+)$", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
        assert anchor in map(slug, headings), rule.name
        assert made["annotations"]["runbook_url"] == f"{alerts.RUNBOOKS}/{page}.html#{anchor}"


def test_the_address_of_the_pages_is_given_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ((command, shown),) = commands((DOCS / "alerts.md").read_text())
    monkeypatch.chdir(tmp_path)

    assert command.startswith("python -m tools.alerts ")
    assert alerts.main(shlex.split(command)[3:]) == 0
    assert capsys.readouterr().out == shown
    urls = re.findall(r'runbook_url: "(.*)"', Path("alerts.yaml").read_text())
    assert len(urls) == len(RULES)
    assert all(re.match(r"https://docs\.example\.org/streamclient/[a-z-]+\.html#", url) for url in urls)


# --- the page --------------------------------------------------------------------------------------------------------


def test_every_situation_is_played_or_has_a_reason_why_not() -> None:
    situations = {row.name for row in page_rows()}
    played = {situation for fault in FAULTS for situation in fault.situations}

    assert played | set(NOT_PLAYED) == situations
    assert played & set(NOT_PLAYED) == set()


CONSEQUENCES = {"StreamclientShardStandsStill", "StreamclientLagGrows"}
"""Alerts that name no fault: many faults end in them."""


def test_every_fault_is_played_and_every_rule_is_fired_by_one() -> None:
    names = {rule.name for rule in RULES}
    fired = {name for fault in FAULTS for name in (*fault.named, *fault.also)}

    assert [fault.name for fault in FAULTS] == [*dict.fromkeys(SCENES)]
    assert fired == names
    assert names - {name for fault in FAULTS for name in fault.named} == CONSEQUENCES


def test_the_example_of_the_page_is_a_rule() -> None:
    page = (DOCS / "alerts.md").read_text()
    (example,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert example.strip() in re.sub("^      ", "", RULES_FILE.read_text(), flags=re.MULTILINE)


# --- the board -------------------------------------------------------------------------------------------------------


def test_every_metric_is_on_a_panel() -> None:
    shown = {metric for _, panels in BOARD for panel in panels for metric in panel.metrics}

    assert shown == set(METRICS)


def test_panels_stand_beside_each_other_and_have_names_of_their_own() -> None:
    panels = json.loads(BOARD_FILE.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


class Eventful(Steady):
    """Fails at its first start, and at one record."""

    starts = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        type(self).starts += 1
        if type(self).starts == 1:
            raise ValueError("not at the first time")

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if any(record.key["id"] == "key-02" for record in process_records_input.records):
            raise ValueError("key-02")
        super().process_records(process_records_input)


def eventful(play: Play) -> set[str]:
    """Names of all series that two workers show: a failed start, a parked record, checkpoints, reads that fail."""
    scene, metrics, other = play.scene, play.metrics(), play.metrics("b")
    Eventful.starts = 0
    park = FailurePolicy(
        retries=1, first_pause_millis=0, then=OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0
    )
    scene.write(4)
    names: set[str] = set()

    def look() -> None:
        names.update(name.partition("{")[0] for name in play.shot().values)

    with play.working(Eventful, metrics, failure_policy=park, backoff=AGAIN):
        shows(metrics, t.RECORDS_PARKED, 1)
        shard = becomes(scene, "caught-up")
        fault = scene.local.add_fault(FaultRule("GetStreamRecord", Fail("OTSNoPermissionAccess")))
        until(lambda: metrics.value(t.TIME_TO_LOSS_SECONDS) is not None, "it is told what is lost when")
        look()
        scene.local.remove_fault(fault)
        with play.working(Steady, other, name="w2"):
            until(lambda: len(scene.manager.list_workers()) == 2, "the other worker is there")
            scene.run("leases", "move", shard, "--to", "w2")
            until(lambda: (other.value(t.HAND_OVER_GAP_SECONDS) or 0) >= 1, "the shard is handed over")
            grows(other, t.SCAN_SECONDS)
            look()
    look()
    return names


@pytest.mark.slow
def test_every_panel_has_data_after_a_fault_and_a_checkpoint(quick: Scene, tmp_path: Path) -> None:
    with playing(quick, tmp_path) as play:
        names = eventful(play)

    of_tunnels = t.SUSPECTED_LOSSES.name  # test_tunnel_losses has it
    lacking = {
        title: missing
        for title, expression in targets()
        if (missing := {name.removesuffix("_bucket") for name in names_in([expression])} - plain(names) - {of_tunnels})
    }
    assert lacking == {}


def plain(names: set[str]) -> set[str]:
    """Names of metrics, with those of histograms."""
    return names | {name.removesuffix("_count") for name in names}


# --- one fault, where promtool is here -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(promtool() is None, reason=MISSING)
def test_a_fault_fires_what_the_page_says(quick: Scene, tmp_path: Path) -> None:
    """All others are played by ``test_operate_alert_faults.py``."""
    fault = next(fault for fault in FAULTS if fault.name == "reading-fails")
    with playing(quick, tmp_path) as play:
        SCENES[fault.name](play)

    assert firing(play.phases, tmp_path) == {*fault.named, *fault.also}


def test_counters_go_on_as_they_grew_and_lags_as_they_followed_the_time() -> None:
    """And what nothing answers is missing."""
    lag, counter, gauge = (f"streamclient_{name}" for name in ("lag_seconds{}", "batches_total{}", "leases{}"))
    before = Phase(2, Shot(0.0, {lag: 0.0, counter: 1.0, gauge: 1.0}), Shot(1.0, {lag: 0.0, counter: 2.0, gauge: 0.0}))
    after = Phase(3, Shot(2.0, {lag: 5.0, counter: 4.0}), Shot(4.0, {lag: 7.2, counter: 4.0}))

    assert input_series([before, after]) == {
        counter: "2.000000+60.000000x1 124.000000+0.000000x2",
        gauge: "0.000000+0.000000x1 _x3",
        lag: "0.000000+0.000000x1 7.200000+60.000000x2",
    }
