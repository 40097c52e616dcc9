"""How much of the production core some histories run through: lines and branches, by the package ``coverage``.

Measuring begins before the core is imported, so it happens in a process of its own, and this module imports nothing of
what it measures.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from attrs import frozen

MEASURED = "streamclient.core"


@frozen
class CoreCoverage:
    """What was run of the core, as shares of what there is."""

    histories: int
    lines: float
    branches: float
    missed: Mapping[str, tuple[int, ...]]
    """Numbers of the lines that no history ran through, by file."""

    def __str__(self) -> str:
        return (
            f"coverage of {MEASURED} over {self.histories} histories: {100 * self.lines:.1f} % of the lines, "
            f"{100 * self.branches:.1f} % of the branches"
        )


def is_measurable() -> bool:
    """Whether the package ``coverage`` is there."""
    return find_spec("coverage") is not None


def measure_core(first_seed: int, histories: int) -> CoreCoverage:
    """Run some histories in another process and measure them; slow, some four times the usual time each.

    Raises:
        ModuleNotFoundError: the package ``coverage`` is not installed.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        report = pool.submit(_measured, first_seed, histories).result()
    totals = report["totals"]
    missed = {Path(name).name: tuple(entry["missing_lines"]) for name, entry in sorted(report["files"].items())}
    return CoreCoverage(
        histories,
        totals["covered_lines"] / totals["num_statements"],
        totals["covered_branches"] / totals["num_branches"],
        {name: lines for name, lines in missed.items() if lines},
    )


def _measured(first_seed: int, histories: int) -> dict[str, Any]:
    import coverage  # noqa: PLC0415  # an extra, for development

    with tempfile.TemporaryDirectory() as directory:
        measure = coverage.Coverage(data_file=None, config_file=False, branch=True, source=[MEASURED])
        measure.start()
        from streamclient.testing.simulation.campaign import run_seeds  # noqa: PLC0415  # measured from its import on

        run_seeds(range(first_seed, first_seed + histories))
        measure.stop()
        target = Path(directory, "report.json")
        measure.json_report(outfile=str(target))
        report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return report
