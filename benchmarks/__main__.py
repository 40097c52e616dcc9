"""``python -m benchmarks``: run every group, print one table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks import costs, decoding, destinations, flow, leases, metrics, pages, parquet, polling, tunnels, workers
from benchmarks.report import Line, load, machine, progress, table
from benchmarks.settings import FULL, QUICK, Settings
from benchmarks.stage import Stage

GROUPS: Mapping[str, Callable[[Stage, Settings], list[Line]]] = {
    "server": pages.measure,
    "costs": costs.measure,
    "decode": decoding.measure,
    "destinations": destinations.measure,
    "worker": workers.measure,
    "flow": flow.measure,
    "polling": polling.measure,
    "parquet": parquet.measure,
    "leases": leases.measure,
    "tunnel": tunnels.measure,
    "metrics": metrics.measure,
}


def run(groups: Sequence[str], settings: Settings) -> list[Line]:
    """Measure the groups, in this order, against one server process."""
    lines: list[Line] = []
    with Stage() as stage:
        for group in groups:
            lines += GROUPS[group](stage, settings)
    progress("")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Print one table of measurements.")
    parser.add_argument("--only", choices=GROUPS, action="append", help="measure this group only; may be repeated")
    parser.add_argument("--quick", action="store_true", help="smallest sizes: shows that it runs, not how fast")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    started, load_before = time.monotonic(), load()
    lines = run(options.only or list(GROUPS), QUICK if options.quick else FULL)
    seconds = time.monotonic() - started
    print(f"`{' '.join(['python -m benchmarks', *given])}` on {machine()}.")
    print(f"It took {seconds:.0f} s; load average {load_before} before, {load()} after.\n")
    print(table(lines))


if __name__ == "__main__":
    main()
