"""``streamclient explain``: why a shard moves or does not."""

from __future__ import annotations

import argparse

from streamclient.operate.connection import deferred, fleet_options, parking_options
from streamclient.terminal.running import runs

OBSERVE_SECONDS = 2.0
"""Between two readings of the rows: enough to see a busy shard's position move, short enough to wait for."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    text = "say why a shard moves or does not, and what to do"
    parser = commands.add_parser(
        "explain",
        help=text,
        description=f"{text.capitalize()}. Exit code 0: it moves or is finished; 1: it does not move.",
        parents=[fleet_options()],
    )
    parser.add_argument("shard", nargs="?", help="shard id")
    parser.add_argument("--all", action="store_true", help="all shards, one line for each")
    parser.add_argument(
        "--observe",
        type=float,
        default=OBSERVE_SECONDS,
        metavar="SECONDS",
        help="read the rows twice, so far apart, to see what moves; 0 reads once (default: %(default)s)",
    )
    parking_options(parser)
    runs(parser, deferred("explain_action:explain_shards"))
