"""Which process this is, and whether another one still runs: for names of workers, and for whoever reads them."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

STOPPED_STATES = frozenset("Tt")
"""States of Linux's ``/proc/PID/stat``: stopped by a signal, stopped by a debugger."""
ENDED_STATES = frozenset("ZX")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_SPACE_DIGITS = 12
_RANDOM_BYTES = 4


def unique_name() -> str:
    """A name that no other process has: host and process id for people, and a random part.

    The first two do not suffice: containers may share a host's name, and each counts its processes from 1.
    """
    return f"{socket.gethostname() or 'host'}-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"


def process_space() -> str:
    """Identifies what this process's id counts in: a boot of a machine, and there a namespace of process ids.

    Twelve hexadecimal digits; equal ones mean that ids can be compared. Empty where the system does not say, which is
    everywhere but on Linux: then nothing can be known about a process by its id.
    """
    try:
        said = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(_PID_NAMESPACE)}"
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(said.encode()).hexdigest()[:_SPACE_DIGITS]


def process_state(pid: int) -> str | None:
    """The letter of a process's state, ``None`` if there is no such process or only what is left of one.

    ``R`` where the system tells no more than that it is there. A process id means nothing unless its
    ``process_space`` is this process's own.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "R" if _answers(pid) else None
    # The name, in parentheses, may hold anything, parentheses too.
    state = text.rpartition(")")[2].split()[0]
    return None if state in ENDED_STATES else state


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # there, but not ours
    return True
