"""Which process this is, whether another one still runs, and whether this one was forked.

For names of workers, for whoever reads them, and for all that has threads: a child has none of its parent's.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

from streamclient.errors import ForkedError

STOPPED_STATES = frozenset("Tt")
"""States of Linux's ``/proc/PID/stat``: stopped by a signal, stopped by a debugger."""
ENDED_STATES = frozenset("ZX")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_SPACE_DIGITS = 12
_RANDOM_BYTES = 4


class _Forks:
    """How many forks lie between the first process and this one.

    A number is compared faster than a process id, for which the system has to be asked.
    """

    count = 0

    @classmethod
    def happened(cls) -> None:
        """In a child, before anything else of it runs."""
        cls.count += 1


if hasattr(os, "register_at_fork"):  # there is none on Windows, which does not fork
    os.register_at_fork(after_in_child=_Forks.happened)


class Birthplace:
    """The process that something was made in, or started in. Cheap enough to be looked at in every call."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _Forks.count

    @property
    def is_here(self) -> bool:
        """Whether it is this process, and no parent of it."""
        return self._forks == _Forks.count

    def require(self, what: str, instead: str = "make it in the child, after the fork") -> None:
        """Refuse to use in a child what was started in its parent.

        Raises:
            ForkedError: this process was forked since; ``what`` names the thing.
        """
        if self._forks != _Forks.count:
            raise ForkedError(
                f"{what} was started before a fork, by the parent of process {os.getpid()}, which has none of its "
                f"threads: {instead}"
            )


class OwnName:
    """A name that no other process has, not even a child of the one that it was made in."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._make()

    def __str__(self) -> str:
        if not self._birthplace.is_here:
            self._make()
        return self._text

    def _make(self) -> None:
        self._birthplace = Birthplace()
        self._text = f"{self._prefix}-{unique_name()}"


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
