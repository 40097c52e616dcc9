"""Locks on files: who is kept out, and what a copy of the file, a fork and a death of the holder do to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streamclient.base.locks import HeldLock, LockHeldError, locked
from tests.patience import PATIENCE_SECONDS


def is_free(path: Path) -> bool:
    """As another process finds it: a holder is never in its own way by accident."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom streamclient.base.locks import HeldLock, LockHeldError\n"
        "try:\n    HeldLock(Path(sys.argv[1]))\nexcept LockHeldError:\n    sys.exit(9)\n"
    )
    code = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=PATIENCE_SECONDS).returncode
    assert code in (0, 9)
    return code == 0


def read_it(path: Path) -> None:
    path.read_bytes()


def open_and_close_it(path: Path) -> None:
    path.open("rb+").close()


def fork_and_exit(path: Path) -> None:
    in_child(lambda: None)


def start_a_program(path: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def in_child(work: Callable[[], object]) -> None:
    """Run something in a forked child, which must end well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("happening", [read_it, open_and_close_it, fork_and_exit, start_a_program])
def test_a_held_lock_outlasts_what_the_process_does_beside_it(
    tmp_path: Path, happening: Callable[[Path], None]
) -> None:
    path = tmp_path / "lock"
    lock = HeldLock(path)

    happening(path)

    assert not is_free(path)
    lock.release()
    lock.release()
    assert is_free(path)


def test_the_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = HeldLock(path)
    with pytest.raises(LockHeldError, match=rf"this process \({os.getpid()}\)"):
        HeldLock(path)
    path.write_text("no number")
    with pytest.raises(LockHeldError, match="another holder"):
        HeldLock(path)
    assert first.is_held
    first.release()
    assert not first.is_held
    assert path.exists(), "one that waits for a deleted file would hold nothing"
    HeldLock(path).release()


def test_a_forked_child_neither_keeps_the_lock_nor_gives_it_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = HeldLock(path)
    release_in_child = lambda: (lock.release(), _require(not lock.is_held))  # noqa: E731

    in_child(release_in_child)

    assert not is_free(path), "the child gave it up"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # to the parent's end of this test
        os._exit(0)
    try:
        lock.release()
        assert is_free(path), "the child kept it"
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def _require(fact: bool) -> None:
    assert fact


def test_a_killed_holder_leaves_nothing_although_its_child_lives(tmp_path: Path) -> None:
    """The child has copies of all that was open in the parent."""
    path = tmp_path / "lock"
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom streamclient.base.locks import HeldLock\n"
        "lock = HeldLock(Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.stdin.read()\n    os._exit(0)\n"
        "print(child, flush=True)\nsys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    child = int(holder.stdout.readline())
    try:
        assert not is_free(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE_SECONDS)
        os.kill(child, 0)  # it lives

        assert is_free(path)
    finally:
        holder.stdin.close()  # which ends the child
        holder.stdout.close()


def test_a_locked_file_excludes_writers_and_lets_readers_share(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    entered, leave, wrote = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        with path.open("rb") as file, locked(file, shared=True):
            entered.set()
            leave.wait(PATIENCE_SECONDS)

    def write() -> None:
        with path.open("rb+") as file, locked(file):
            assert leave.is_set(), "it wrote beside a reader"
            wrote.set()

    reader = threading.Thread(target=read)
    reader.start()
    entered.wait(PATIENCE_SECONDS)
    with path.open("rb") as file, locked(file, shared=True):
        pass  # beside the other reader
    writer = threading.Thread(target=write)
    writer.start()
    leave.set()
    reader.join(PATIENCE_SECONDS)
    writer.join(PATIENCE_SECONDS)
    assert wrote.is_set()


def test_a_child_forked_while_a_file_is_locked_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    reader, writer = os.pipe()
    with path.open("rb+") as file, locked(file):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        assert is_free(path)
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)
