"""Sphinx configuration. Build with ``make docs``; warnings are errors."""

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from benchmarks import latency
from benchmarks.report import targets_table
from streamclient import __version__
from streamclient.base.settings import Setting
from streamclient.cli import run_sections
from streamclient.copying import mirror_settings, replication_settings
from streamclient.core.consumer.transitions import TRANSITIONS
from streamclient.core.held import NEXT
from streamclient.core.write_rules import RULES
from streamclient.metrics import METRICS
from streamclient.metrics.metric_table import WORKER_LABELS
from streamclient.server.refusals import REFUSALS
from streamclient.spark.source.source_options import OPTIONS
from tools import alerts
from tools.pictures import write_pictures
from tools.plots import (
    LAKE_HEAD,
    lake_rows,
    lake_run,
    latency_lines,
    latency_run,
)

project = "streamclient"
author = "The streamclient project"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"streamclient {release}"
exclude_patterns = ["_build", "_generated"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports = ["pyspark", "pyarrow"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]


GENERATED = Path(__file__).parent / "_generated"


def write_table(name: str, head: str, rows: Iterable[str]) -> None:
    """Write a table for pages to include; bars separate its cells."""
    ruler = "---".join("|" * (head.count("|") + 2))
    lines = [f"| {head} |", ruler, *(f"| {row} |" for row in rows)]
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / name).write_text("\n".join(lines) + "\n")


def write_lifecycle(app: object) -> None:
    """Print the consumer's life from the table that the code uses."""
    rows = [
        f"{phase.value} | {outcome.value} | {after.value}"
        for (phase, outcome), after in TRANSITIONS.items()
    ]
    head = "While it is | and this happens | it becomes"
    write_table("lifecycle.md", head, rows)


def write_metrics(app: object) -> None:
    """List the metrics, from the table that the code uses."""
    rows = []
    for metric in METRICS:
        labels = [name for name in metric.labels if name not in WORKER_LABELS]
        shown = ", ".join(f"`{label}`" for label in labels)
        names = f"`{metric.name}` | `{metric.dotted_name}`, `{metric.unit}`"
        rows.append(f"{names} | {metric.kind.value} | {shown} | {metric.help}")
    head = "Prometheus | OpenTelemetry, unit | kind | labels | says"
    write_table("metrics.md", head, rows)


def write_rules(app: object) -> None:
    """List the columns that writes of the status table compare and store."""
    rows = []
    for kind, rule in RULES.items():
        compared = ", ".join(rule.if_same) or "whatever it holds"
        stored = "removes the row" if rule.removes else ", ".join(rule.writes)
        also = ", ".join(rule.may_write)
        rows.append(f"{kind.value} | {compared} | {stored} | {also}")
    head = (
        "Write | If it is as its writer saw it | Stores "
        "| and, where there is something to store"
    )
    write_table("rules.md", head, rows)


def write_held_leases(app: object) -> None:
    """Print the next need of a held lease, from the table of the code."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for (intention, consuming, row), step in NEXT.items():
        line = lines.setdefault(
            (intention.value, consuming.value, step.value), []
        )
        line.append(row.value)
    pairs = Counter((intention, consuming) for intention, consuming, _ in lines)
    rows = [
        f"{intention} | {consuming} | {' or '.join(states)} | {step}"
        if pairs[intention, consuming] > 1
        else f"{intention} | {consuming} | any | {step}"
        for (intention, consuming, step), states in lines.items()
    ]
    head = "Its worker wants to | Consumer | Row | So the worker will"
    write_table("held-leases.md", head, rows)


def write_settings(app: object) -> None:
    """List keys and options, from the tables that read them."""
    of_files = {
        "settings-mirror.md": mirror_settings.SECTIONS,
        "settings-replicate.md": replication_settings.SECTIONS,
    }
    for name, sections in of_files.items():
        owners: dict[tuple[str, str], list[str]] = {}
        for section in sections:
            for each in section.settings:
                owner = owners.setdefault((each.name, each.text), [])
                owner.append(f"`{section.name}`")
        rows = [
            f"{', '.join(of)} | `{key}` | {text}"
            for (key, text), of in owners.items()
        ]
        write_table(name, "Section | Key | Meaning", rows)
    rows = [
        f"`{each.name}` | {' and '.join(sorted(use.value for use in uses))}"
        f" | {each.text}"
        for uses, settings in OPTIONS.items()
        for each in settings
    ]
    write_table("settings-source.md", "Option | for | Meaning", rows)
    rows = [
        f"`{section.name}` | `{each.name}` | {each.check.expected}"
        f" | {default_of_run(section.name, each)}"
        for section in run_sections.SECTIONS
        for each in section.settings
    ]
    write_table("settings-run.md", "Section | Key | Takes | Default", rows)


def default_of_run(section: str, setting: Setting) -> str:
    """Return the default of a setting of a run, as its cell shows it."""
    default = run_sections.default_of((section, setting.name))
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, bool):
        default = str(default).lower()
    shown = f"{default:,}" if isinstance(default, int) else default
    return "" if default is None else f"`{shown}`"


def write_lake(app: object) -> None:
    """Print the cost of commits, from the file that the benchmark wrote."""
    write_table("lake.md", LAKE_HEAD, lake_rows())
    (GENERATED / "lake-run.md").write_text(lake_run() + "\n")


def write_latency(app: object) -> None:
    """Print the latencies, from the file that the benchmark wrote."""
    lines = latency_lines()
    for group in (latency.GROUP, latency.HOUR):
        head, rows = latency.head_of(group), latency.rows_of(lines, group)
        write_table(f"latency-{group}.md", head, rows)
    (GENERATED / "latency-run.md").write_text(latency_run() + "\n")
    (GENERATED / "latency-targets.md").write_text(targets_table([lines]))


def write_refusals(app: object) -> None:
    """List the refusals of the local server, from the table it raises from."""
    rows = []
    for name, refusal in REFUSALS.items():
        code = f"{refusal.http_status} `{refusal.code}`"
        confirmed = "yes" if refusal.source.is_confirmed else "no"
        source = f"{refusal.source.value} | {confirmed}"
        rows.append(f"`{name}` | {code} | `{refusal.words}` | {source}")
    write_table("refusals.md", "Name | Answer | Words | From | Confirmed", rows)


def write_alerts(app: object) -> None:
    """List the rules and the faults, from the tables of the program."""
    head = "Alert | Severity | Fires when | Holds | What to do"
    write_table("alert-rules.md", head, alerts.rule_rows())
    head = "Played | Situation | Named by | Fires as well | Probes"
    write_table("alert-faults.md", head, alerts.fault_rows())
    head = "Situation | Why no alert names it"
    write_table("alert-unplayed.md", head, alerts.unplayed_rows())


def draw_pictures(app: object) -> None:
    """Draw the pictures of the pages."""
    write_pictures(GENERATED)


def setup(app: object) -> None:
    """Connect the functions above to the build, as Sphinx asks."""
    app.connect("builder-inited", write_lifecycle)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_metrics)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_held_leases)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_rules)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_refusals)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_settings)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_lake)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_latency)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_alerts)  # type: ignore[attr-defined]
    app.connect("builder-inited", draw_pictures)  # type: ignore[attr-defined]
