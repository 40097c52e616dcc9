"""The command ``streamclient``. A subcommand is a module with ``add_command``, named in ``COMMANDS``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from streamclient._version import __version__

COMMANDS = (
    "streamclient.server.command",
    "streamclient.server.control_command",
    "streamclient.operate.leases_command",
    "streamclient.operate.explain_command",
    "streamclient.parking.command",
    "streamclient.operate.top_command",
    "streamclient.replicate.command",
    "streamclient.testing.simulation.command",
)
"""Modules of the subcommands. Each offers ``add_command(commands)``, which adds its parser and sets the default
``run(arguments) -> exit code``; each imports what is heavy inside ``run``."""


def make_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    parser = argparse.ArgumentParser(prog="streamclient", description="Tools of the Tablestore stream client.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(name).add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default; returns the exit code. Wrong arguments exit with 2."""
    parsed = make_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
