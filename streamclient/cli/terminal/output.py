"""Printing: JSON for programs, tables and text for people, fitted to the terminal if there is one."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any, TextIO

from streamclient.base.logs import is_said_at_end
from streamclient.cli.terminal.layout import Column, cut_parts, fit_table, fold, one_line, shortener

NARROWEST = 40
"""The smallest width that a terminal is assumed to have. No table fits into less."""

TELL_SECONDS = 1.0
"""The seconds between two updates of a line that shows elapsed time. They are so short that a person sees the line
move."""


def width_of(stream: TextIO) -> int | None:
    """Return the width of a stream's terminal; ``None`` without a terminal. ``COLUMNS`` in the environment wins."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if stream.isatty() else None


def is_read(stream: TextIO) -> bool | None:
    """Return whether the other end of a stream, such as a pipe, is open; ``None`` if the system does not tell."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # the end of the reader is told without being asked for
    except (AttributeError, OSError, ValueError):  # Windows has no poll; a stream in memory has no number
        return None
    return not poll.poll(0)


def has_rich() -> bool:
    """Return whether ``rich`` is installed."""
    return find_spec("rich") is not None


def print_json(document: Any) -> None:
    """Print one JSON document, keys in the order of the documentation."""
    print(json_text(document, sys.stdout, indent=2))


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line, at once."""
    print(json_text(document, sys.stdout), flush=True)


def json_text(document: Any, stream: TextIO, indent: int | None = None) -> str:
    """Return JSON for a stream. Characters that its encoding lacks or that a terminal obeys are escaped."""
    is_unicode = (stream.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(document, ensure_ascii=not is_unicode, indent=indent)
    return "\n".join(line if line.isprintable() else _json_escaped(line) for line in text.split("\n"))


def _json_escaped(line: str) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)


def print_text(*lines: str, flush: bool = False) -> None:
    """Print lines of text, folded between words on a terminal, above a progress line if there is one.

    Each argument is one line: as it may quote foreign names and messages, characters that begin a line are escaped.
    """
    with _beside_progress():
        print(_folded(lines, sys.stdout), flush=flush)


def complain(*lines: str) -> None:
    """Print lines of text in the same way to standard error."""
    with _beside_progress():
        print(_folded(lines, sys.stderr), file=sys.stderr, flush=True)


def _folded(lines: Iterable[str], stream: TextIO) -> str:
    return fold("\n".join(map(one_line, lines)), width_of(stream))


class ComplainingHandler(logging.Handler):
    """A log handler that prints as ``complain`` does: to standard error, folded, above a progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one entry."""
        try:
            complain(*self.format(record).split("\n"))
        except Exception:
            self.handleError(record)


def log_to_terminal(level: str | int, text: str = "%(message)s") -> None:
    """Print log entries of ``level`` or above to standard error, in the format ``text``.

    Entries that the command says again as its last line are left out.
    """
    logging.basicConfig(level=level, format=text, handlers=[without_last_words(ComplainingHandler())])


def without_last_words(handler: logging.Handler) -> logging.Handler:
    """Make the handler leave out the reason for which a worker ends, and return it.

    The command itself ends with that reason.
    """
    handler.addFilter(lambda record: not is_said_at_end(record))
    return handler


def table_text(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Return a table, with a line that names the columns for which there was no room."""
    table = fit_table(columns, rows, width)
    lines = list(table.lines)
    if table.dropped:
        lines.append(fold(f"(no room for {', '.join(table.dropped)}: a wider terminal or --json shows it)", width))
    return "\n".join(lines)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print a table; if there are no rows, print ``empty``."""
    if rows:
        print(table_text(columns, rows, width_of(sys.stdout)))
    else:
        print_text(empty)


def id_shortener(ids: Iterable[str]) -> Callable[[str], str]:
    """Return a function that, on a terminal, shortens ids in a text. Commands accept the short ids, too."""
    return shortener(ids, width_of(sys.stdout))


class ProgressLine:
    """A line of progress. It is overwritten on a terminal, elsewhere appended whenever its text changes. Thread-safe.

    ``close`` ends the line, so that the next output begins another one; so does ``say``. Text that this module prints
    meanwhile, from any thread and on either stream, appears above the line.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._last = ""

    def show(self, text: str) -> None:
        """Show ``text`` as the progress. On a terminal, show only as many of its parts, two spaces apart, as fit."""
        with _PRINTING:
            width = width_of(self._stream)
            if width is not None:
                # One cell stays free: after a full line some terminals move to the next one.
                print(f"\r\x1b[K{cut_parts(text, width - 1)}", end="", file=self._stream, flush=True)
                _open_lines[:] = [self]
            elif text != self._last:
                stamp = datetime.now(timezone.utc).strftime("%H:%M:%S")
                print(f"{stamp}  {one_line(text)}", file=self._stream, flush=True)
            else:
                self.require_reader()
            self._last = text

    def require_reader(self) -> None:
        """Raise ``BrokenPipeError``, as a write would, if the stream is no longer read."""
        if is_read(self._stream) is False:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def show_again(self) -> None:
        """Show the last text again."""
        self.show(self._last)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._end("\n")
        with _PRINTING:
            print(_folded([text], self._stream), file=self._stream, flush=True)

    def erase(self) -> None:
        """Remove the line, if one was begun, so that the next output takes its place."""
        self._end("\r\x1b[K")

    def close(self) -> None:
        """End the line, if one was begun."""
        self._end("\n")

    def _end(self, with_what: str) -> None:
        with _PRINTING:
            if self in _open_lines:
                print(end=with_what, file=self._stream, flush=True)
                _open_lines.clear()


_PRINTING = threading.RLock()
"""The lock held while a thread prints, so that no line of another thread comes in between."""

_open_lines: list[ProgressLine] = []
"""The progress line that holds the terminal's cursor, if there is one; both streams may write to that terminal."""


@contextmanager
def shown_meanwhile(text: str) -> Iterator[None]:
    """Show ``text`` on standard error while the block runs; on a terminal with the elapsed time."""
    line, began = ProgressLine(sys.stderr), time.monotonic()

    def tell() -> bool:
        line.show(f"{text}  {time.monotonic() - began:.0f} s")
        return True

    line.show(text)
    try:
        with repeated(tell, TELL_SECONDS, "progress") if width_of(sys.stderr) is not None else nullcontext():
            yield
    finally:
        line.erase()


@contextmanager
def repeated(look: Callable[[], bool], seconds: float, name: str) -> Iterator[None]:
    """Call ``look`` in another thread after each interval, until the block ends or ``look`` returns ``False``.

    If the system refuses a thread, ``look`` is never called.
    """
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(seconds) and look():
            pass

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    with suppress(RuntimeError):
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


@contextmanager
def _beside_progress() -> Iterator[None]:
    """Remove a progress line, and draw it again after the output of the block."""
    with _PRINTING:
        line = _open_lines[0] if _open_lines else None
        if line is not None:
            line.erase()
        try:
            yield
        finally:
            if line is not None:
                line.show_again()
