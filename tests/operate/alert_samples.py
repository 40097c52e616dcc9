"""What Prometheus would have read over hours, from two real expositions of each phase; and promtool, which judges it.

An exposition is taken twice in each phase, a moment apart. What a counter grew between the two it goes on growing; a
gauge of seconds that followed the time goes on following it; any other gauge keeps its value. A series that the second
exposition lacks is missing in the phase, as if nothing had answered.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from streamclient.metrics import METRICS
from streamclient.model import MetricKind
from tests.patience import PATIENCE_SECONDS, until
from tools.alerts import FOLDER, ROOT

KEPT = ROOT / "build" / "promtool"
"""Where ``make promtool`` puts it, if the machine has none."""

MISSING = "promtool is neither on PATH nor in build/promtool: `make promtool` takes it from Debian's package prometheus"

LEFT_OUT = ("_bucket", "_created")
"""Ends of names of samples that no rule asks for."""

MEASURED_SECONDS = 0.6
"""How long a phase is measured: many samples of a worker that samples every ``SAMPLE_SECONDS`` of these tests."""

SAMPLE_SECONDS = 0.05

GAUGES = {metric.name: metric for metric in METRICS if metric.kind is MetricKind.GAUGE}


def promtool() -> str | None:
    """The program, if it is here."""
    return shutil.which("promtool") or next((f"{path}" for path in KEPT.rglob("promtool") if path.is_file()), None)


@frozen
class Shot:
    """An exposition: values by series, as PromQL writes them."""

    at: float
    values: Mapping[str, float]


@frozen
class Phase:
    """Two expositions of one state, and how long it lasts."""

    minutes: int
    first: Shot
    second: Shot


def shot(text: str, **more: str) -> Shot:
    """The samples of an exposition; ``more`` are the labels that Prometheus adds to each."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("streamclient_") and not sample.name.endswith(LEFT_OUT):
                labels = ",".join(
                    f"{name}={json.dumps(value)}" for name, value in sorted({**sample.labels, **more}.items())
                )
                values[f"{sample.name}{{{labels}}}"] = sample.value
    return Shot(time.monotonic(), values)


def scraped(url: str, seconds: float = PATIENCE_SECONDS) -> str:
    """What an endpoint answers; nothing, if it does not."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            text: str = answer.read().decode()
            return text
    except (TimeoutError, urllib.error.URLError, ConnectionError):
        return ""


def let_time_pass(seconds: float = MEASURED_SECONDS) -> None:
    """So that what is measured can grow."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end)


def rate_of(name: str, phase: Phase) -> float:
    """How much a series grows in a second."""
    first, second = phase.first.values.get(name), phase.second.values[name]
    seconds = phase.second.at - phase.first.at
    if first is None or seconds <= 0:
        return 0.0
    gauge = GAUGES.get(name.partition("{")[0])
    if gauge is None:
        return max(0.0, second - first) / seconds
    return float(round((second - first) / seconds)) if gauge.unit == "s" else 0.0


def input_series(phases: Sequence[Phase]) -> dict[str, str]:
    """Each series in promtool's notation, one value a minute."""
    return {name: _values(name, phases) for name in sorted({name for phase in phases for name in phase.second.values})}


def _values(name: str, phases: Sequence[Phase]) -> str:
    parts, is_gauge = [], name.partition("{")[0] in GAUGES
    level: float | None = None
    last = 0.0
    for phase in phases:
        value = phase.second.values.get(name)
        if value is None:
            parts.append(f"_x{phase.minutes}")
            continue
        # A counter goes on from what it has grown to; what it did between two phases, it did.
        start = value if is_gauge or level is None or value < last else level + value - last
        step, last = 60 * rate_of(name, phase), value
        sign = "-" if step < 0 else "+"
        parts.append(f"{start:f}{sign}{abs(step):f}x{phase.minutes - 1}")
        level = start + step * phase.minutes
    return " ".join(parts)


def promtool_file(phases: Sequence[Phase], rules: Path) -> str:
    """A file for ``promtool test rules``, which asks for all alerts that fired and expects none."""
    minutes = sum(phase.minutes for phase in phases)
    series = [{"series": name, "values": values} for name, values in input_series(phases).items()]
    fired = f'count by (alertname) (last_over_time(ALERTS{{alertstate="firing"}}[{minutes}m]))'
    asked = [{"expr": fired, "eval_time": f"{minutes - 1}m", "exp_samples": []}]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]
    return json.dumps({"rule_files": [f"{rules}"], "evaluation_interval": "1m", "tests": tests}, indent=1)


def firing(phases: Sequence[Phase], folder: Path, rules: Path = FOLDER / "alerts.yaml") -> set[str]:
    """The alerts that fired in these phases, as promtool judges them."""
    program = promtool()
    assert program is not None, MISSING
    file = folder / "fault.json"
    file.write_text(promtool_file(phases, rules))
    done = subprocess.run([program, "test", "rules", f"{file}"], capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    found = set(re.findall(r'\{alertname="(\w+)"\}', printed))
    assert bool(found) == (done.returncode != 0), printed
    return found


def names_in(expressions: Iterable[str]) -> set[str]:
    """Names of metrics in expressions of PromQL."""
    return {name for expression in expressions for name in re.findall(r"\bstreamclient_\w+", expression)}
