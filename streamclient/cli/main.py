"""The command ``streamclient``. Each subcommand is a module with a function ``add_command``, listed in ``COMMANDS``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module

from streamclient._version import __version__
from streamclient.cli.terminal.commands import Parser, open_standard_streams, run_command

COMMANDS: Mapping[str, str] = {
    "sample": "streamclient.cli.sample_command",
    "server": "streamclient.cli.server_command",
    "control": "streamclient.cli.control_command",
    "tables": "streamclient.cli.tables_command",
    "tunnels": "streamclient.cli.tunnels_command",
    "tail": "streamclient.cli.tail_command",
    "run": "streamclient.cli.run_command",
    "settings": "streamclient.cli.settings_command",
    "leases": "streamclient.cli.leases_command",
    "explain": "streamclient.cli.explain_command",
    "top": "streamclient.cli.top_command",
    "console": "streamclient.cli.console_command",
    "parked": "streamclient.cli.parked_command",
    "verify": "streamclient.cli.verify_command",
    "maintain": "streamclient.cli.maintain_command",
    "mirror": "streamclient.cli.mirror_command",
    "replicate": "streamclient.cli.replicate_command",
    "simulate": "streamclient.cli.simulate_command",
}
"""The module of each subcommand, in the order of ``--help``. Each module has a function ``add_command(commands)``. This
function adds the subcommand's parser, and passes the function that runs the subcommand to ``terminal.commands.runs``.
Slow modules are imported only when the subcommand runs, so that ``--help`` is quick."""


def make_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line with the subcommands ``names``, by default with all subcommands."""
    parser = Parser(prog="streamclient", description="Tools of the Tablestore stream client.")
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in names:
        import_module(COMMANDS[name]).add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default ``sys.argv``; return the exit code. Wrong arguments exit with code 2.

    Without arguments, print the list of subcommands as ``--help`` does.
    """
    open_standard_streams()
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # Making the parsers of all subcommands would take as long as some subcommands take to run.
    named = [name for name in given[:1] if name in COMMANDS]
    parsed = make_parser(named or COMMANDS).parse_args(given)
    parsed.words = given
    return run_command(parsed)


if __name__ == "__main__":
    sys.exit(main())
