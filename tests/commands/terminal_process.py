"""A process that runs commands, each in a child of its own on a terminal of 80 columns. Reads and answers JSON lines.

It has one thread, so that it may fork: a child begins with everything imported, and a page of commands takes seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import warnings
from typing import Any

from tests.patience import PATIENCE_SECONDS

COLUMNS, LINES = 80, 40


def run_on_a_terminal(words: list[str], interrupt_after: str | None) -> tuple[int, str]:
    """Exit code, and what the terminal was sent; Ctrl-C is pressed once it has shown a line with something in it."""
    child, terminal = pty.fork()
    if child == 0:
        run_child(words)
    # To its end: a terminal hands a line over in pieces. A progress line has none, it is written over.
    end = rb"[^\n]*?(\n|\r\x1b)"
    awaited = None if interrupt_after is None else re.compile(re.escape(interrupt_after.encode()) + end)
    seen = b""
    while select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
        try:
            seen += os.read(terminal, 65_536)
        except OSError:  # the child has closed its end
            break
        if awaited is not None and awaited.search(seen):
            os.write(terminal, b"\x03")
            awaited = None
    else:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), as_shown(seen.decode())


def run_child(words: list[str]) -> None:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    modes = termios.tcgetattr(1)
    modes[3] |= termios.NOFLSH  # else Ctrl-C discards what was printed and is not read yet
    termios.tcsetattr(1, termios.TCSANOW, modes)
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"
    code = 70
    try:
        from streamclient.cli.main import main

        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 70
    finally:
        sys.stdout.flush()
        os._exit(code)


def as_shown(sent: str) -> str:
    """What is left on the lines: a line that was begun anew shows what was written last."""
    lines = [re.split(r"\r(?:\x1b\[K)?", line)[-1] for line in sent.replace("\r\n", "\n").split("\n")]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "\n".join(lines)).replace("^C", "")


def main() -> None:
    warnings.simplefilter("ignore")
    import streamclient.cli.lease_changes
    import streamclient.cli.main
    import streamclient.cli.top_screens
    import streamclient.testing.simulation.campaign
    import streamclient.worker
    import streamclient.worker.parking.parking_table  # noqa: F401

    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        os.chdir(asked["folder"])
        os.environ.update(asked["environment"])
        code, shown = run_on_a_terminal(asked["words"], asked["interrupt_after"])
        print(json.dumps({"code": code, "shown": shown}), flush=True)


if __name__ == "__main__":
    main()
