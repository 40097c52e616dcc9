"""A signal ends what the main thread does, wherever that is when it comes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
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
