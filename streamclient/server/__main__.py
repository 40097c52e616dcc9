"""``python -m streamclient.server`` is ``streamclient server``."""

from __future__ import annotations

import argparse
import sys

from streamclient.server.command import DESCRIPTION, add_arguments, run


def main() -> int:
    """Run the server; returns the exit code."""
    parser = argparse.ArgumentParser(prog="streamclient server", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
