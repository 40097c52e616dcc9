"""``python -m benchmarks``: runs all groups of measurements, and prints one table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import (
    costs,
    decoding,
    destinations,
    flow,
    lake,
    leases,
    loops,
    memory,
    metrics,
    mirrors,
    pages,
    parquet,
    polling,
    replication,
    requests,
    source,
    start,
    tunnels,
    workers,
)
from benchmarks.report import Line, as_json, from_json, load, machine, progress, regressions, table, targets_table
from benchmarks.settings import FULL, QUICK, Settings
from benchmarks.stage import Stage
from streamclient import ConfigurationError

GROUPS: Mapping[str, Callable[[Stage, Settings], list[Line]]] = {
    "server": pages.measure,
    "requests": requests.measure,
    "costs": costs.measure,
    "decode": decoding.measure,
    "destinations": destinations.measure,
    "lake": lake.measure,
    "mirror": mirrors.measure,
    "worker": workers.measure,
    "flow": flow.measure,
    "polling": polling.measure,
    "parquet": parquet.measure,
    "source": source.measure,
    "leases": leases.measure,
    "loops": loops.measure,
    "memory": memory.measure,
    "tunnel": tunnels.measure,
    "replication": replication.measure,
    "start": start.measure,
    "metrics": metrics.measure,
}


def run(groups: Sequence[str], settings: Settings) -> list[Line]:
    """Measure ``groups`` in this order, all against one server process."""
    with Stage() as stage:
        lines = [line for group in groups for line in GROUPS[group](stage, settings)]
    progress("")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with ``arguments``, by default those of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Print one table of measurements.")
    parser.add_argument("--only", choices=GROUPS, action="append", help="measure this group only; may be repeated")
    parser.add_argument("--quick", action="store_true", help="measure the smallest sizes: a test that everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file, for --compare")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="measure nothing: name the figures that got worse between two files of --json; exit code 1 if any did",
    )
    parser.add_argument(
        "--targets",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: print the targets, and the figures that each of these runs reached",
    )
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.compare is not None:
        sys.exit(_compared(*_runs(options.compare)))
    if options.targets is not None:
        print(targets_table(_runs(options.targets)))
        return
    started, load_before = time.monotonic(), load()
    lines = run(options.only or list(GROUPS), QUICK if options.quick else FULL)
    seconds = time.monotonic() - started
    run_as = (
        f"`{' '.join(['python -m benchmarks', *given])}` on {machine()}.\n"
        f"It took {seconds:.0f} s; load average {load_before} before, {load()} after."
    )
    print(f"{run_as}\n\n{table(lines)}")
    if options.json is not None:
        options.json.write_text(as_json(run_as, lines), encoding="utf-8")


def _compared(before: list[Line], after: list[Line]) -> int:
    found = regressions(before, after)
    print("\n".join(found) if found else "nothing got worse by more than the rounds differ")
    return 1 if found else 0


def _runs(paths: Sequence[Path]) -> list[list[Line]]:
    try:
        return [from_json(path.read_text(encoding="utf-8")) for path in paths]
    except (OSError, ConfigurationError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
