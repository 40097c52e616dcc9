"""Every fault of the page on alerts, played in a real fleet and judged by promtool; a shorter one is beside it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from alert_play import playing
from alert_samples import MISSING, firing, promtool
from alert_scenes import SCENES
from operate_scene import Scene

from tools.alert_board import RATE_WINDOW
from tools.alert_faults import FAULTS, WELL, Fault
from tools.alerts import FOLDER

pytestmark = [pytest.mark.long, pytest.mark.skipif(promtool() is None, reason=MISSING)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fires_its_alerts_and_no_others(quick: Scene, tmp_path: Path, fault: Fault) -> None:
    with playing(quick, tmp_path) as play:
        SCENES[fault.name](play)

    assert firing(play.phases, tmp_path) == {*fault.named, *fault.also}
    befallen, *others = play.probed
    assert befallen == fault.probes
    assert set(others) <= {WELL}


def test_promtool_accepts_the_rules() -> None:
    check(FOLDER / "alerts.yaml")


def check(rules: Path) -> None:
    done = subprocess.run([f"{promtool()}", "check", "rules", f"{rules}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_expressions_of_the_board(tmp_path: Path) -> None:
    """As rules that record: a board's expressions have Grafana's variables in them, which Grafana replaces."""
    panels = json.loads((FOLDER / "board.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace(RATE_WINDOW, "5m")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "board.json"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))

    check(file)
