"""A signal ends what the main thread does, wherever that is when it comes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamclient.base.interrupts import RaisedBySignal
from streamclient.cli.terminal.commands import EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED, run_command
from streamclient.worker.running import EndedBySigterm, wait_awake
from tests.interrupts import handled_by_python
from tests.own_process import ROOT
from tests.patience import PATIENCE_SECONDS


class Thing:
    """May be referred to weakly."""


def signalled(number: int) -> None:
    """The signal comes, and its handler runs, in here."""
    os.kill(os.getpid(), number)
    for _ in range(10_000):
        pass


def swallow(number: int) -> None:
    """The signal comes in a callback, which lets no exception out."""
    thing = Thing()
    kept = weakref.ref(thing, lambda _: signalled(number))
    del thing
    assert kept() is None


def wait_for_ever() -> None:
    assert wait_awake(threading.Event(), PATIENCE_SECONDS), "nothing was raised"


@contextmanager
def installed(handler: RaisedBySignal) -> Iterator[list[Any]]:
    """The handler, and what it leaves to the hook that was there before."""
    left: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, left.append
    handler.install()
    try:
        yield left
    finally:
        handler.remove()
        assert sys.unraisablehook == left.append
        sys.unraisablehook = before


def test_an_exception_that_is_swallowed_is_raised_again_until_it_gets_out() -> None:
    with installed(RaisedBySignal(signal.SIGTERM, lambda: SystemExit(7), once=True)) as left:
        swallow(signal.SIGTERM)
        swallow(signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            wait_for_ever()
        signalled(signal.SIGTERM)

    assert raised.value.code == 7
    assert left == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_else_is_swallowed_is_told_as_before() -> None:
    thing = Thing()
    with installed(RaisedBySignal(signal.SIGTERM, SystemExit, once=True)) as left:
        kept = weakref.ref(thing, lambda _: 1 / 0)
        del thing

    assert kept() is None
    assert [found.exc_type for found in left] == [ZeroDivisionError]


def test_each_of_several_signals_raises_where_they_mean_hurry() -> None:
    with installed(RaisedBySignal(signal.SIGTERM, SystemExit, once=False)):
        for _ in range(3):
            with pytest.raises(SystemExit):
                signalled(signal.SIGTERM)


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    handler = RaisedBySignal(signal.SIGTERM, SystemExit, once=True)
    with installed(handler):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        handler.remove()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, EXIT_TERMINATED), (signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGHUP, EXIT_HUNG_UP)],
)
def test_a_command_ends_though_its_signal_was_swallowed(number: int, code: int) -> None:
    def run(_: argparse.Namespace) -> int:
        swallow(number)
        wait_for_ever()
        return 0

    with handled_by_python():
        assert run_command(argparse.Namespace(run=run, command="streamclient test")) == code


@pytest.mark.parametrize("rest", [wait_for_ever, lambda: None])
def test_a_worker_ends_though_its_signal_was_swallowed(rest: Callable[[], None]) -> None:
    def run() -> None:
        with EndedBySigterm(is_wanted=True):
            swallow(signal.SIGTERM)
            rest()

    with pytest.raises(SystemExit, match="143"):
        run()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_blocks_are_left_in_any_order() -> None:
    first, second = EndedBySigterm(is_wanted=True), EndedBySigterm(is_wanted=True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(SystemExit, match="143"):
        signalled(signal.SIGTERM)
    second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def left_elsewhere() -> None:
    """A block that the main thread entered is left by another thread, which cannot restore the handler."""
    block = EndedBySigterm(is_wanted=True).__enter__()
    leaving = threading.Thread(target=block.leave)
    leaving.start()
    leaving.join()


def test_a_block_that_another_thread_left_makes_way_for_the_next_one() -> None:
    left_elsewhere()
    with EndedBySigterm(is_wanted=True), pytest.raises(SystemExit, match="143"):
        signalled(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def forked() -> None:
    """Enter a block, and go on in a child; the parent ends as the child does."""
    EndedBySigterm(is_wanted=True).__enter__()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))


@pytest.mark.parametrize("way", ["left_elsewhere", "forked"])
def test_a_signal_ends_the_process_as_if_a_block_that_is_over_were_not_there(way: str) -> None:
    program = f"""
        import signal
        from tests.test_signals import {way}, signalled
        {way}()
        print(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, flush=True)
        signalled(signal.SIGTERM)
        print("goes on")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "True\n", "")


HELD_BACK = """
import os, signal, threading, time
from streamclient.base.interrupts import ending_signals_held_back

is_over = threading.Event()
threading.Thread(target=is_over.wait, daemon=True).start()  # it may get the signal, whatever the main thread blocks
try:
    with ending_signals_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100_000):
            pass
        print("the block ends")
    is_over.wait()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="the system blocks no signals")
def test_a_signal_that_comes_while_processes_are_started_counts_afterwards() -> None:
    ended = subprocess.run([sys.executable, "-c", HELD_BACK], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines() == ["the block ends", "interrupted"]
