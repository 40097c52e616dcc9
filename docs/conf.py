"""Sphinx configuration. Build with ``make docs``; warnings are errors."""

from pathlib import Path

from streamclient import __version__
from streamclient.core.lifecycle import TRANSITIONS
from streamclient.core.rows import RULES
from streamclient.metrics import METRICS
from streamclient.metrics.table import WORKER_LABELS
from tools.structure import draw_floors

project = "streamclient"
author = "The streamclient authors"
release = __version__
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


def write_lifecycle(app: object) -> None:
    """Draw the consumer's life from the transition table itself, so that the page cannot go stale."""
    lines = ["| While it is | and this happens | it becomes |", "|---|---|---|"]
    lines += [f"| {phase.value} | {outcome.value} | {after.value} |" for (phase, outcome), after in TRANSITIONS.items()]
    target = Path(__file__).parent / "_generated" / "lifecycle.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def write_metrics(app: object) -> None:
    """List what is measured, from the table that the code uses."""
    lines = ["| Prometheus | OpenTelemetry, unit | kind | labels | says |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels if label not in WORKER_LABELS)
        names = f"`{metric.name}` | `{metric.dotted_name}`, `{metric.unit}`"
        lines.append(f"| {names} | {metric.kind.value} | {labels} | {metric.help} |")
    target = Path(__file__).parent / "_generated" / "metrics.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def write_rules(app: object) -> None:
    """List what each write of the status table compares and stores, from the table that the code uses."""
    lines = ["| Write | If it is as its writer saw it | Stores | and, where there is something to store |"]
    lines.append("|---|---|---|---|")
    for kind, rule in RULES.items():
        compared, always, sometimes = (", ".join(names) for names in (rule.if_same, rule.writes, rule.may_write))
        stores = "removes the row" if rule.removes else always
        lines.append(f"| {kind.value} | {compared or 'whatever it holds'} | {stores} | {sometimes} |")
    target = Path(__file__).parent / "_generated" / "rules.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def write_floors(app: object) -> None:
    """Draw the rooms of the package from their imports."""
    target = Path(__file__).parent / "_generated" / "floors.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text(draw_floors())


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_lifecycle)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_metrics)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_rules)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_floors)  # type: ignore[attr-defined]
