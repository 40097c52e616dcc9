"""Ctrl-C for programs that let a worker run in their main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_SECONDS


@contextmanager
def interrupted_after(wait: Callable[[], object]) -> Iterator[None]:
    """The main thread gets SIGINT inside the block once ``wait`` has returned, and ``KeyboardInterrupt`` must leave it.

    A process that a shell started in the background ignores SIGINT; here it arrives.
    """
    main_thread = threading.get_ident()

    def interrupt() -> None:
        wait()
        signal.pthread_kill(main_thread, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter = threading.Thread(target=interrupt)
    try:
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            yield
        interrupter.join(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
