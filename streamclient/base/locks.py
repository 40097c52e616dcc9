"""Locks on files, for processes of one machine.

Laws:

- A lock belongs to the process that took it, and ends with that process, however the process ends. A forked child
  neither keeps nor releases the lock; a started program does not inherit it.
- Reading, copying or closing the file elsewhere in the process does not end the lock. That is why this module uses
  ``flock``, and ``msvcrt.locking`` on Windows, and no POSIX record locks: these end with the first ``close`` of the
  file anywhere in the process.
- A locked file is never deleted. Otherwise a process that waits for the lock would get the lock of a deleted file, and
  another process could lock a new file with the same name.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_RETRY_SECONDS = 0.05
"""The pause between two attempts to get a lock, on systems that cannot wait for a lock themselves."""

_LOCKED_BYTE = 1 << 62
"""The offset of the byte that is locked on Windows. It is after every file's end, because no other process can read a
locked byte."""

_HELD_ELSEWHERE = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})
"""The numbers of the errors by which a system reports that another holder has the lock."""

_LONGEST_NOTE_BYTES = 64
"""The largest number of bytes of a note, which is the process id that the holder of a lock writes into the file."""


class LockHeldError(Exception):
    """The error for a lock that another holder has. ``pid`` is the holder's process id, ``None`` if it is unknown."""

    def __init__(self, path: Path, pid: int | None) -> None:
        by = "another holder" if pid is None else f"this process ({pid})" if pid == os.getpid() else f"process {pid}"
        super().__init__(f"{path} is locked by {by}")
        self.path = path
        self.pid = pid
        self.holder = by


class HeldLock:
    """The lock of a file that serves only as a lock. It lasts until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Create the file if it is missing, lock it without waiting, and write this process's id into it.

        Raises:
            LockHeldError: another holder has the lock, in this process or in another process.
            OSError: the file cannot be opened, or its file system has no locks.
        """
        self.path = path
        self._pid = os.getpid()
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if not _lock(self._descriptor, shared=False, waits=False):
                raise LockHeldError(path, _noted(self._descriptor))
            _note(self._descriptor, self._pid)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = None
            raise
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock. A child that was forked from the holder does not hold it."""
        return self._descriptor is not None and self._pid == os.getpid()

    def release(self) -> None:
        """Release the lock. A second call does nothing, and so does a call in a forked child."""
        descriptor, self._descriptor = self._descriptor, None
        _HELD.discard(self)
        if descriptor is not None and self._pid == os.getpid():
            # Unlock the file before closing it: a forked child may not have closed its copy yet.
            with suppress(OSError):
                _unlock(descriptor)
            os.close(descriptor)

    def leave_to_parent(self) -> None:
        """Close a forked child's copy of the file's descriptor without releasing the lock, which all copies share."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def locked(file: IO[bytes], *, shared: bool = False) -> Iterator[None]:
    """Wait for other holders, and lock an open file until the block ends.

    With ``shared``, several readers may hold the lock, but no writer. On Windows readers exclude each other, too.
    """
    descriptor = file.fileno()
    _lock(descriptor, shared=shared, waits=True)
    owner = os.getpid()
    try:
        yield
    finally:
        # Unlock the file before closing it: a child that was forked meanwhile has a copy of the file and would keep the
        # lock.
        if owner == os.getpid():
            _unlock(descriptor)


_HELD: weakref.WeakSet[HeldLock] = weakref.WeakSet()
"""The locks of this process, which a forked child must leave to its parent."""


def _forked() -> None:
    for lock in list(_HELD):
        lock.leave_to_parent()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _note(descriptor: int, pid: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f"{pid}\n".encode("ascii"))


def _noted(descriptor: int) -> int | None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, _LONGEST_NOTE_BYTES)
    return int(text) if text.endswith(b"\n") and text.strip().isdigit() else None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, *, shared: bool, waits: bool) -> bool:
        while True:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if error.errno not in _HELD_ELSEWHERE:
                    raise
                if not waits:
                    return False
            else:
                return True
            time.sleep(_RETRY_SECONDS)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int, *, shared: bool, waits: bool) -> bool:
        kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB)
        try:
            fcntl.flock(descriptor, kind)
        except OSError as error:
            if waits or error.errno not in _HELD_ELSEWHERE:
                raise
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
