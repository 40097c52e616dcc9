"""Threads that the system refuses, as it does in a container that has as many as it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

REFUSAL = "can't start new thread"
_STARTERS = ("_start_new_thread", "_start_joinable_thread")
"""What ``Thread.start`` calls, up to Python 3.12 and from 3.13 on."""


class Refusals:
    """Which threads were refused, by name."""

    def __init__(self, is_refused: Callable[[str], bool], most: int | None) -> None:
        self._is_refused, self._most = is_refused, most
        self.names: list[str] = []

    def stop(self) -> None:
        """Refuse no thread any more."""
        self._most = 0

    def look(self, name: str) -> None:
        """Raise if the thread of that name is refused."""
        if self._is_refused(name) and (self._most is None or len(self.names) < self._most):
            self.names.append(name)
            raise RuntimeError(REFUSAL)


@contextmanager
def refused(is_refused: Callable[[str], bool], most: int | None = None) -> Iterator[Refusals]:
    """Refuse the threads with such names, at most so many of them."""
    refusals = Refusals(is_refused, most)
    name = next(name for name in _STARTERS if hasattr(threading, name))
    original = getattr(threading, name)

    def start(function: Any, *arguments: Any, **keywords: Any) -> Any:
        refusals.look(getattr(getattr(function, "__self__", None), "name", ""))
        return original(function, *arguments, **keywords)

    setattr(threading, name, start)
    try:
        yield refusals
    finally:
        setattr(threading, name, original)
