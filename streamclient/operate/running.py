"""What the commands have in common: errors become one line and an exit code."""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streamclient.errors import StreamClientError
from streamclient.operate.connection import open_site
from streamclient.operate.site import Site

EXIT_DONE = 0
EXIT_REFUSED = 1
"""The command was not allowed, not carried out entirely, or found a shard that does not move."""
EXIT_UNUSABLE = 2
"""Wrong arguments, or a table that cannot be read."""
EXIT_INTERRUPTED = 130
"""As shells have it for SIGINT."""

Action = Callable[[Site, argparse.Namespace], int]


def run_action(command: str, action: Action, arguments: argparse.Namespace) -> int:
    """Do it; the exit code. A SIGTERM ends it like an interrupt: what was paused for it is resumed."""
    try:
        with _interrupted_by_sigterm():
            return action(open_site(arguments), arguments)
    except StreamClientError as error:
        print(f"streamclient {command}: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        print(f"streamclient {command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def operator_name() -> str:
    """``user@host`` of whoever runs this."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
