"""The entry point of ``python -m streamclient``, which runs the command ``streamclient``."""

from __future__ import annotations

import sys

from streamclient.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
