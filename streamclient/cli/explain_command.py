"""``streamclient explain``: say whether a shard makes progress, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.cli.options import fleet_options, open_site, parking_options
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, runs
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from streamclient.operate.cases import Explanation

OBSERVE_SECONDS = 2.0
"""The time, in seconds, between two reads of the lease rows. It is long enough for a busy shard's position to move, and
short enough for a person to wait."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``explain``."""
    text = "say why a shard moves or does not, and what to do"
    parser = commands.add_parser(
        "explain",
        help=text,
        description=f"{text.capitalize()}. Exit code 0: each shard moves or is finished; 1: a shard does not move; 2: "
        "stream or status table cannot be read.",
        parents=[fleet_options()],
    )
    parser.add_argument(
        "shard",
        nargs="?",
        help="shard id; without one, the fleet's troubles, and a line for each shard that is not finished",
    )
    parser.add_argument("--all", action="store_true", help="also list finished shards")
    parser.add_argument(
        "--observe",
        type=float,
        default=OBSERVE_SECONDS,
        metavar="SECONDS",
        help="read the rows twice, SECONDS apart, to see what moves; 0 reads once (default: %(default)s)",
    )
    parking_options(parser)
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Explain one shard with its evidence, or all shards with one line each; return the exit code."""
    from streamclient.cli.lease_views import (  # noqa: PLC0415
        all_shards,
        named_shard,
        print_explanation,
        shard_shortener,
        with_parked,
    )
    from streamclient.cli.terminal.output import print_json, print_text  # noqa: PLC0415
    from streamclient.operate.audit import with_changes  # noqa: PLC0415
    from streamclient.operate.collection import FleetReader, readable  # noqa: PLC0415 -- brings the SDK; --help does not wait
    from streamclient.operate.explanation import explanations  # noqa: PLC0415
    from streamclient.operate.operator_documents import explanations_document  # noqa: PLC0415
    from streamclient.operate.verdict import trouble_lines, verdict  # noqa: PLC0415

    if arguments.all and arguments.shard is not None:
        raise ConfigurationError("name either a shard or --all")
    expected = "a number of seconds of at least 0"
    checks.waiting(expected, lambda value: value >= 0).require("--observe", arguments.observe)
    site = open_site(arguments)
    collector = FleetReader(site)
    facts = collector.collect(observe_seconds=arguments.observe)
    facts = with_changes(site, with_parked(site, arguments, facts))
    shards = all_shards(facts) if arguments.shard is None else [named_shard(facts, arguments.shard)]
    facts = collector.with_heads(facts, {key for shard in shards for key in collector.lineage_of(facts, shard)})
    found = sorted(explanations(facts, shards), key=_urgency)
    told = verdict(facts, found if arguments.shard is None else explanations(facts, all_shards(facts)))
    shown = [each for each in found if arguments.all or arguments.shard or not each.situation.is_finished]
    if arguments.json:
        print_json(explanations_document(facts, told, shown))
    elif facts.unreadable:
        pass  # ``readable`` below raises the error that says why the status table cannot be read
    elif arguments.shard is None:
        left_out = len(found) - len(shown)
        last = [f"{left_out} finished, not shown without --all"] if left_out else [] if shown else ["no shards"]
        lines = [*trouble_lines(told, facts.now_micros), "", *(each.first_line for each in shown), *last]
        print_text(*map(shard_shortener(facts), lines))
    else:
        print_explanation(facts, found[0])
    readable(facts)
    return EXIT_DONE if all(each.situation.moves for each in found) else EXIT_REFUSED


def _urgency(found: Explanation) -> tuple[bool, bool, str]:
    """Return the sorting key of a shard. Shards without progress come first, finished shards last."""
    return found.situation.moves, found.situation.is_finished, found.shard_id
