"""The command ``streamclient``. A subcommand is a module with ``add_command``, named in ``COMMANDS``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from streamclient._version import __version__
from streamclient.terminal.running import Parser, run_command

COMMANDS = (
    "streamclient.commands.sample",
    "streamclient.server.command",
    "streamclient.server.control_command",
    "streamclient.commands.tables",
    "streamclient.commands.tail",
    "streamclient.commands.run",
    "streamclient.operate.leases_command",
    "streamclient.operate.explain_command",
    "streamclient.operate.top_command",
    "streamclient.parking.command",
    "streamclient.commands.verify",
    "streamclient.commands.maintain",
    "streamclient.mirror.command",
    "streamclient.replicate.command",
    "streamclient.testing.simulation.command",
)
"""Modules of the subcommands, in the order in which they are met. Each offers ``add_command(commands)``, which adds its
parser and has it run by ``terminal.running.runs``; each imports what is heavy inside ``run``."""


def make_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    parser = Parser(prog="streamclient", description="Tools of the Tablestore stream client.")
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(name).add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default; returns the exit code. Wrong arguments exit with 2."""
    return run_command(make_parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
