"""Makes the alerting rules of Prometheus and the board of Grafana: ``docs/deploy/alerts.yaml`` and ``board.json``.

``python -m tools.alerts`` writes both files. ``--check`` writes nothing, and exits with code 1 if a file differs from
the file that this program would write. ``--to FOLDER --runbooks URL`` writes them to another folder, with the address
at which you serve the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.alert_board import board_json
from tools.alert_faults import FAULTS, NOT_PLAYED
from tools.alert_rules import RULES, Rule

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "deploy"

RUNBOOKS = "docs/_build/html"
"""The default beginning of each ``runbook_url``: the folder in a checkout in which ``make docs`` makes the pages."""

HEAD = """\
# Alerting rules for fleets of streamclient, made by `python -m tools.alerts` from the table of metrics.
# docs/alerts.md says what each rule means, and which fault fires which. With the address of your pages:
#   python -m tools.alerts --to . --runbooks https://docs.example.org/streamclient
groups:
  - name: streamclient
    rules:
"""


def rules_yaml(runbooks: str = RUNBOOKS) -> str:
    """Return the text of ``alerts.yaml``; ``runbooks`` is the address of the pages."""
    rules = ("".join(f"      {line}\n" for line in _lines(rule, runbooks)) for rule in RULES)
    return HEAD + "\n".join(rules)


def _lines(rule: Rule, runbooks: str) -> Iterator[str]:
    yield f"- alert: {rule.name}"
    yield "  expr: |-"
    yield from (f"    {line}" for line in rule.expression.splitlines())
    yield f"  # {rule.why_wait}"
    yield f"  for: {rule.wait}"
    yield "  labels:"
    yield f"    severity: {rule.severity.value}"
    yield "  annotations:"
    yield from (f"    {name}: {json.dumps(text)}" for name, text in annotations_of(rule, runbooks).items())


def annotations_of(rule: Rule, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return the annotations of a rule, whose texts contain the labels of the alert."""
    named = ", ".join(f"{label} {{{{ $labels.{label} }}}}" for label in rule.labels)
    page, anchor = rule.runbook.split("#")
    return {
        "summary": f"{rule.title}: {named}" if named else rule.title,
        "description": f"{rule.when} {rule.action} Value: {{{{ $value | {rule.value} }}}}.",
        "runbook_url": f"{runbooks.rstrip('/')}/{page}.html#{anchor}",
    }


def rule_rows() -> Iterator[str]:
    """Yield the rows of the table of rules on the page about alerts, with bars between the cells."""
    for rule in RULES:
        page, anchor = rule.runbook.split("#")
        waiting = "at once" if rule.wait == "0m" else f"for {rule.wait}"
        more = f"[More]({page}.md#{anchor})"
        yield f"`{rule.name}` | {rule.severity.value} | {rule.when} | {waiting} | {rule.action} {more}"


def fault_rows() -> Iterator[str]:
    """Yield the rows of the table of faults on the page about alerts, with bars between the cells."""
    for fault in FAULTS:
        named = ", ".join(f"`{name}`" for name in fault.named) or "none"
        also = ", ".join(f"`{name}`" for name in fault.also) or "none"
        situations = ", ".join(f"`{name}`" for name in fault.situations)
        probes = " ".join(map(str, fault.probes)) or "no answer"
        yield f"{fault.played} | {situations} | {named} | {also} | {probes}"


def unplayed_rows() -> Iterator[str]:
    """Yield the rows of the table of situations without an alert on the page about alerts, with the reasons."""
    for situation, reason in NOT_PLAYED.items():
        yield f"`{situation}` | {reason}"


def files(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {"alerts.yaml": rules_yaml(runbooks), "board.json": board_json()}


def main(words: list[str]) -> int:
    """Write the files or, with ``--check``, compare them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.alerts", description="Make the alerts and the board.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with code 1 if a file differs")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER", help="default: docs/deploy")
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help=f"address of the pages, default {RUNBOOKS}")
    options = parser.parse_args(words)
    made = files(options.runbooks)
    if options.check:
        different = [name for name, text in made.items() if _present(options.to / name) != text]
        for name in different:
            print(f"{options.to / name} is not what `python -m tools.alerts` makes: run it", file=sys.stderr)
        return min(len(different), 1)
    options.to.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (options.to / name).write_text(text, encoding="utf-8")
        print(options.to / name)
    return 0


def _present(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
