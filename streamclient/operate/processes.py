"""Whether a process of this machine runs, for workers that say where they run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from streamclient.core.worker_info import WorkerInfo
from streamclient.operate.facts import Process

STOPPED_STATES = frozenset("Tt")
"""States of Linux's ``/proc/PID/stat``: stopped by a signal, stopped by a debugger."""
ENDED_STATES = frozenset("ZX")


def process_of(info: WorkerInfo) -> Process:
    """What this machine says about the worker's process; ``ELSEWHERE`` unless it is this machine's own."""
    if not info.pid or info.host != socket.gethostname():
        return Process.ELSEWHERE
    state = _state(info.pid)
    if state is None or state in ENDED_STATES:
        return Process.GONE
    return Process.STOPPED if state in STOPPED_STATES else Process.RUNNING


def _state(pid: int) -> str | None:
    """The state's letter, ``None`` if there is no such process; ``R`` where there is no ``/proc`` to tell more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "R" if _answers(pid) else None
    # The name, in parentheses, may hold anything, parentheses too.
    return text.rpartition(")")[2].split()[0]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
