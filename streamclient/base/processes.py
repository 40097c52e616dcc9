"""The identity of this process, the state of other processes, and whether this process was forked.

Workers make their names by this module. Code with threads uses this module to refuse calls in a forked child, because
the child has none of its parent's threads.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

from streamclient.errors import ForkedError

STOPPED_STATES = frozenset("Tt")
"""The letters in Linux's ``/proc/PID/stat`` for a process that is stopped by a signal or by a debugger."""
ENDED_STATES = frozenset("ZX")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_SPACE_DIGITS = 12
_RANDOM_BYTES = 4


class _Forks:
    """The number of forks between the process that first imported this module and the present process.

    Comparing this number is faster than asking the system for a process id.
    """

    count = 0

    @classmethod
    def happened(cls) -> None:
        """Count a fork. The child calls this method before its other code runs."""
        cls.count += 1


if hasattr(os, "register_at_fork"):  # Windows does not fork, and lacks this function
    os.register_at_fork(after_in_child=_Forks.happened)


class Birthplace:
    """The process in which an object was made or started. Checking it is cheap enough for every call."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _Forks.count

    @property
    def is_here(self) -> bool:
        """Whether the present process made or started the object, and is not a forked child of that process."""
        return self._forks == _Forks.count

    def require(self, what: str, instead: str = "make it in the child, after the fork") -> None:
        """Refuse the use of an object in a forked child of the process that started it.

        Raises:
            ForkedError: this process is a forked child. The message names the object ``what`` and the advice
                ``instead``.
        """
        if self._forks != _Forks.count:
            raise ForkedError(
                f"{what} was started before a fork, by the parent of process {os.getpid()}; a forked child has none of "
                f"its parent's threads: {instead}"
            )


class OwnName:
    """A name that no other process has. In a forked child, the object gets another name."""

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
    """Return a name that no other process has: the host, the process id, and a random part.

    Host and process id do not suffice: containers may share a host's name, and each numbers its processes from 1.
    """
    return f"{socket.gethostname() or 'host'}-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"


def process_space() -> str:
    """Return the id of the space in which this process's id is unique.

    The space is one namespace of process ids in one boot of a machine. Its id has twelve hexadecimal digits. Two
    process ids can be compared only if the ids of their spaces are equal. Only Linux provides this id. On other systems
    it is empty, and a process id then says nothing about a process.
    """
    try:
        said = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(_PID_NAMESPACE)}"
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(said.encode()).hexdigest()[:_SPACE_DIGITS]


def process_state(pid: int) -> str | None:
    """Return the letter of a process's state; ``None`` if the process does not exist or has ended.

    The letter is ``R`` if the system only says that the process exists. The process id ``pid`` must come from the
    ``process_space`` of this process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "R" if _answers(pid) else None
    # The name of the process, in parentheses, may contain any characters, even parentheses.
    state = text.rpartition(")")[2].split()[0]
    return None if state in ENDED_STATES else state


def _answers(pid: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, signal 0 is Ctrl-C
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process exists, but belongs to another user
    return True
