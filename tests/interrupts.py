"""Ctrl-C for programs that let a worker run in their main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_SECONDS


@contextmanager
def handled_by_python() -> Iterator[None]:
    """SIGINT raises ``KeyboardInterrupt`` in here, and SIGHUP is not ignored, as in a new program; nor in its children.

    It does not where a shell started the process in the background, nor, in Python's own way, where the process has
    had a Spark: that leaves a handler of its own behind. SIGHUP is ignored under ``nohup``.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_after(wait: Callable[[], object]) -> Iterator[None]:
    """The main thread gets SIGINT inside the block once ``wait`` has returned; ``KeyboardInterrupt`` must leave it."""
    main_thread = threading.get_ident()

    def interrupt() -> None:
        wait()
        signal.pthread_kill(main_thread, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    with handled_by_python():
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            yield
        interrupter.join(PATIENCE_SECONDS)
