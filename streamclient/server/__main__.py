"""``python -m streamclient.server`` is ``streamclient server``."""

from __future__ import annotations

import argparse
import sys

from streamclient.server.command import add_command
from streamclient.terminal.running import Parser, run_command


def main() -> int:
    """Run the server; returns the exit code."""
    parser: argparse.ArgumentParser = Parser(prog="streamclient")
    add_command(parser.add_subparsers())
    return run_command(parser.parse_args(["server", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
