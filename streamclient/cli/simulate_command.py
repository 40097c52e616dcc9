"""``streamclient simulate``: run many simulated histories of fleets, or one history step by step."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from streamclient.base.reasons import counted
from streamclient.cli.terminal.commands import CommandFailed, runs
from streamclient.cli.terminal.output import ProgressLine, complain, print_text

if TYPE_CHECKING:
    from streamclient.testing.simulation.campaign import Summary
    from streamclient.testing.simulation.drawing import Size
    from streamclient.testing.simulation.kernel import PlayedHistory
    from streamclient.testing.simulation.plan import HistoryPlan
    from streamclient.testing.simulation.runner import HistoryVerdict

DEFAULT_SEEDS = 2_000

SHRUNK_LAWS = 3
"""The largest number of broken laws for which the command looks for a smaller plan that still breaks the law. Each
search takes up to several minutes."""

PROGRESS_SECONDS = 10.0

EXIT_VIOLATED = 1
"""The exit code if a law was broken."""

DESCRIPTION = (
    "Run the production core in simulated fleets, under faults that the seeds decide, and check the laws of the lease "
    "protocol at every event. The exit code is 0 only if no law was broken."
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``simulate``."""
    parser = commands.add_parser("simulate", help="run simulated fleets and check their laws", description=DESCRIPTION)
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT_SEEDS, metavar="N", help="number of seeds (default: %(default)s)"
    )
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="first seed (default: 0)")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="P", help="number of processes (default: one per core)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--full-size", action="store_true", help="only fleets of 20 workers and 200 shards")
    kinds.add_argument("--tunnels", action="store_true", help="clients of a tunnel instead of fleets")
    kinds.add_argument("--loops", action="store_true", help="fleets whose user code is a loop, or coroutines")
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink violations")
    parser.add_argument("--save", metavar="DIR", help="write the plans of shrunk violations into this directory")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    single = parser.add_argument_group("one history")
    single.add_argument("--seed", type=int, metavar="N", help="run this seed alone")
    single.add_argument("--plan", metavar="FILE", help="run the plan in this file alone")
    single.add_argument("--page", metavar="FILE", help="write the history as a page that plays it")
    single.add_argument("--replay", action="store_true", help="print every event, command and change of a row")
    single.add_argument("--lease", metavar="KEY", help="with --replay: only lines about this lease")
    single.add_argument("--step", action="store_true", help="with --replay: wait for Enter after each moment")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Run one history or many histories; return the exit code."""
    if arguments.seed is not None or arguments.plan:
        return _run_one(arguments)
    if arguments.replay or arguments.page:
        option = "--page" if arguments.page else "--replay"
        raise CommandFailed(f"{option} needs --seed or --plan")
    if arguments.seeds < 1:
        raise CommandFailed(f"--seeds must be at least 1, not {arguments.seeds}")
    return _run_many(arguments)


# --- many histories --------------------------------------------------------------------------------------------------


def _run_many(arguments: argparse.Namespace) -> int:
    from streamclient.testing.simulation.campaign import run_campaign  # noqa: PLC0415

    if arguments.save:
        try:
            Path(arguments.save).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandFailed(f"cannot save plans in {arguments.save}: {error.strerror}") from error
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    began, shown, line = time.monotonic(), [time.monotonic()], ProgressLine(sys.stderr)

    def progress(summary: Summary, verdict: HistoryVerdict) -> None:
        now = time.monotonic()
        if now - shown[0] >= PROGRESS_SECONDS:
            shown[0] = now
            done = sum(summary.histories.values())
            broken = counted(len(summary.violations), "violation")
            line.show(f"{done} of {counted(len(seeds), 'history')}, {broken}, {now - began:.0f} s")

    try:
        summary, broken = run_campaign(seeds, processes=arguments.processes, size=_size(arguments), progress=progress)
    finally:
        line.erase()  # the summary below has the same numbers
    wall_seconds = time.monotonic() - began
    shrunk = _shrunk(broken, arguments)
    if arguments.json:
        entry = {**summary.as_json(), "wall_seconds": round(wall_seconds, 1)}
        print(json.dumps({**entry, "plans": [json.loads(verdict.plan.to_json()) for verdict in shrunk]}, indent=1))
    else:
        print_text(*summary.lines(), f"took {wall_seconds:.0f} s")
    return EXIT_VIOLATED if summary.violations else 0


_SIZES = {"full_size": "FULL", "tunnels": "TUNNEL", "loops": "LOOP"}
"""The name of the ``Size`` that each option for a kind of history selects."""


def _kind(arguments: argparse.Namespace) -> str:
    return next((f" --{kind.replace('_', '-')}" for kind in _SIZES if getattr(arguments, kind)), "")


def _size(arguments: argparse.Namespace) -> Size | None:
    from streamclient.testing.simulation.drawing import Size  # noqa: PLC0415

    return next((Size[size] for kind, size in _SIZES.items() if getattr(arguments, kind)), None)


def _shrunk(broken: list[HistoryVerdict], arguments: argparse.Namespace) -> list[HistoryVerdict]:
    """Print one violation for each of the first ``SHRUNK_LAWS`` broken laws; return the verdicts that were printed.

    Unless ``--no-shrink`` is given, look for a smaller plan that breaks the same law, and print its violation instead.
    """
    first: dict[str, HistoryVerdict] = {}
    for verdict in broken:
        if verdict.violation is not None:
            first.setdefault(verdict.violation.law, verdict)
    return [_explained(verdict, arguments) for verdict in list(first.values())[:SHRUNK_LAWS]]


def _explained(verdict: HistoryVerdict, arguments: argparse.Namespace) -> HistoryVerdict:
    from streamclient.testing.simulation.campaign import violation_lines  # noqa: PLC0415
    from streamclient.testing.simulation.shrink import shrink  # noqa: PLC0415

    seed = verdict.plan.seed
    if not arguments.no_shrink:
        verdict = shrink(verdict)
    complain(*violation_lines(verdict))
    complain("its plan:", *verdict.plan.to_json().split("\n"))
    complain(f"replay the whole history with: streamclient simulate{_kind(arguments)} --seed {seed} --replay")
    if arguments.save and verdict.violation is not None:
        path = Path(arguments.save) / f"{verdict.violation.law.replace(' ', '-')}-{seed}.json"
        try:
            path.write_text(verdict.plan.to_json(), encoding="utf-8")
            complain(f"saved as {path}")
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}")  # the command does not fail: it has printed the plan
    return verdict


# --- one history -----------------------------------------------------------------------------------------------------


def _run_one(arguments: argparse.Namespace) -> int:
    from streamclient.cli.simulate_replay import Replay  # noqa: PLC0415
    from streamclient.testing.simulation.campaign import Summary, violation_lines  # noqa: PLC0415
    from streamclient.testing.simulation.runner import play_plan  # noqa: PLC0415

    try:
        plan = _plan(arguments)
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    if arguments.page:
        _require_fleet(plan)
    # With --json, only the document goes to standard output.
    output = sys.stderr if arguments.json else sys.stdout
    replay = Replay(arguments.lease, step=arguments.step, output=output) if arguments.replay else None
    history, verdict = play_plan(plan, replay)
    summary = Summary()
    summary.add(verdict, 0.0)
    if arguments.json:
        print(json.dumps({**summary.as_json(), "plan": json.loads(plan.to_json())}, indent=1))
    else:
        print_text(*violation_lines(verdict), f"digest {verdict.digest}, {verdict.events} events")
    if arguments.page:
        print(_write_page(arguments.page, history, verdict), file=output)
    return EXIT_VIOLATED if verdict.violation is not None else 0


def _require_fleet(plan: HistoryPlan) -> None:
    from streamclient.testing.simulation.plan import Plan  # noqa: PLC0415

    if not isinstance(plan, Plan):
        raise CommandFailed("--page shows histories of fleets; leave --tunnels and --loops out, or use --replay")


def _write_page(file: str, history: PlayedHistory, verdict: HistoryVerdict) -> str:
    """Write the page of a fleet's history to ``file``; return the line to print about the page."""
    from streamclient.console.history_page import page_file  # noqa: PLC0415
    from streamclient.testing.simulation.fleet_history import fleet_history  # noqa: PLC0415
    from streamclient.testing.simulation.world import SimulatedWorld  # noqa: PLC0415

    assert isinstance(history, SimulatedWorld)
    text = page_file(fleet_history(history, verdict))
    try:
        Path(file).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CommandFailed(f"cannot write the page to {file}: {error.strerror}") from error
    return f"wrote {file} ({len(text.encode()) // 1_000} kB): open it in a browser"


def _plan(arguments: argparse.Namespace) -> HistoryPlan:
    from streamclient.testing.simulation.drawing import draw_plan  # noqa: PLC0415
    from streamclient.testing.simulation.plan import plan_from_json  # noqa: PLC0415

    if arguments.plan:
        return plan_from_json(Path(arguments.plan).read_text(encoding="utf-8"))
    return draw_plan(arguments.seed, _size(arguments))
