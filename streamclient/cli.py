"""The command ``streamclient``. A subcommand is a module with ``add_command``, named in ``COMMANDS``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module

from streamclient._version import __version__
from streamclient.terminal.running import Parser, open_standard_streams, run_command

COMMANDS: Mapping[str, str] = {
    "sample": "streamclient.commands.sample",
    "server": "streamclient.server.command",
    "control": "streamclient.server.control_command",
    "tables": "streamclient.commands.tables",
    "tail": "streamclient.commands.tail",
    "run": "streamclient.commands.run",
    "leases": "streamclient.operate.leases_command",
    "explain": "streamclient.operate.explain_command",
    "top": "streamclient.operate.top_command",
    "parked": "streamclient.parking.command",
    "verify": "streamclient.commands.verify",
    "maintain": "streamclient.commands.maintain",
    "mirror": "streamclient.mirror.command",
    "replicate": "streamclient.replicate.command",
    "simulate": "streamclient.testing.simulation.command",
}
"""The module of each subcommand, in the order in which they are met. Each offers ``add_command(commands)``, which adds
its parser and has it run by ``terminal.running.runs``; each imports what is heavy inside ``run``."""


def make_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser with these subcommands, all of them by default."""
    parser = Parser(prog="streamclient", description="Tools of the Tablestore stream client.")
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in names:
        import_module(COMMANDS[name]).add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default; returns the exit code. Wrong arguments exit with 2."""
    open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    # Making the parsers of all subcommands takes as long as many a subcommand itself.
    named = [name for name in given[:1] if name in COMMANDS]
    return run_command(make_parser(named or COMMANDS).parse_args(given))


if __name__ == "__main__":
    sys.exit(main())
