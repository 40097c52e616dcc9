"""``streamclient top``: show a fleet live in the terminal."""

from __future__ import annotations

import argparse

from streamclient.cli.options import fleet_options, open_site
from streamclient.cli.terminal.commands import runs

INTERVAL_SECONDS = 2.0
"""The default time, in seconds, between two refreshes. Each refresh costs two scans and a few small reads."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``top``."""
    text = "show workers and shards live, nearest to loss first"
    parser = commands.add_parser(
        "top", help=text, description=f"{text.capitalize()}. Ctrl-C ends it.", parents=[fleet_options()]
    )
    parser.add_argument("--once", action="store_true", help="show one screen and end")
    parser.add_argument(
        "--interval",
        type=float,
        default=INTERVAL_SECONDS,
        metavar="SECONDS",
        help="time between refreshes (default: %(default)s)",
    )
    parser.add_argument(
        "--groups", action="store_true", help="count shards by worker and lag, and name only some that do not move"
    )
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show screens until interrupted, or one screen; return the exit code."""
    from streamclient.cli.top_screens import show_top  # noqa: PLC0415 -- brings the SDK; --help does not wait for it

    return show_top(open_site(arguments), arguments)
