"""``python -m streamclient.server`` is ``streamclient server``."""

from __future__ import annotations

import sys

from streamclient.cli import main

if __name__ == "__main__":
    sys.exit(main(["server", *sys.argv[1:]]))
