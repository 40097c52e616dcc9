"""Output of commands: JSON for programs, and tables and text for people, fitted to the terminal."""

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
"""The smallest width that a terminal is assumed to have, in cells. No table fits into fewer cells."""

TELL_SECONDS = 1.0
"""The time, in seconds, between two updates of a line that shows elapsed time. A person still sees the line move."""


def width_of(stream: TextIO) -> int | None:
    """Return the width of a stream's terminal, in cells; ``None`` if the stream is not a terminal.

    The environment variable ``COLUMNS`` overrides the width.
    """
    return max(NARROWEST, shutil.get_terminal_size().columns) if stream.isatty() else None


def is_read(stream: TextIO) -> bool | None:
    """Return whether the other end of a stream, such as a pipe, is open; ``None`` if the system cannot tell."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # poll reports that the reader has gone even without a requested event
    except (AttributeError, OSError, ValueError):  # Windows has no poll; a stream in memory has no descriptor
        return None
    return not poll.poll(0)


def has_rich() -> bool:
    """Return whether ``rich`` is installed."""
    return find_spec("rich") is not None


def print_json(document: Any) -> None:
    """Print one JSON document, indented, with its keys in their given order."""
    print(json_text(document, sys.stdout, indent=2))


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line, and flush the output."""
    print(json_text(document, sys.stdout), flush=True)


def json_text(document: Any, stream: TextIO, indent: int | None = None) -> str:
    """Return ``document`` as JSON for ``stream``.

    Characters that the stream's encoding lacks, and characters that control a terminal, are escaped.
    """
    is_unicode = (stream.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(document, ensure_ascii=not is_unicode, indent=indent)
    return "\n".join(line if line.isprintable() else _json_escaped(line) for line in text.split("\n"))


def _json_escaped(line: str) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)


def print_text(*lines: str, flush: bool = False) -> None:
    """Print lines of text above the progress line, if any. On a terminal, long lines are folded between words.

    Each argument is one line. It may quote names and messages from elsewhere, so line breaks in it are escaped.
    """
    with _beside_progress():
        print(_folded(lines, sys.stdout), flush=flush)


def complain(*lines: str) -> None:
    """Print lines of text to standard error, as ``print_text`` does to standard output."""
    with _beside_progress():
        print(_folded(lines, sys.stderr), file=sys.stderr, flush=True)


def _folded(lines: Iterable[str], stream: TextIO) -> str:
    return fold("\n".join(map(one_line, lines)), width_of(stream))


class ComplainingHandler(logging.Handler):
    """A log handler that prints entries by ``complain``, so that they appear above a progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log entry."""
        try:
            complain(*self.format(record).split("\n"))
        except Exception:
            self.handleError(record)


def log_to_terminal(level: str | int, text: str = "%(message)s") -> None:
    """Print log entries of ``level`` or above to standard error from now on, in the format ``text``.

    Entries whose text the command prints as its last line are left out.
    """
    logging.basicConfig(level=level, format=text, handlers=[without_last_words(ComplainingHandler())])


def without_last_words(handler: logging.Handler) -> logging.Handler:
    """Let a log handler leave out the reason why a worker ends; return the handler.

    The command itself prints that reason as its last line.
    """
    handler.addFilter(lambda record: not is_said_at_end(record))
    return handler


def table_text(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Return a table as text, with a last line that names the columns for which the width was too small."""
    table = fit_table(columns, rows, width)
    lines = list(table.lines)
    if table.dropped:
        lines.append(fold(f"(no room for {', '.join(table.dropped)}: a wider terminal or --json shows it)", width))
    return "\n".join(lines)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print a table; without ``rows``, print the text ``empty``."""
    if rows:
        print(table_text(columns, rows, width_of(sys.stdout)))
    else:
        print_text(empty)


def id_shortener(ids: Iterable[str]) -> Callable[[str], str]:
    """Return a function that shortens ids in a text if the output is a terminal. Commands accept short ids, too."""
    return shortener(ids, width_of(sys.stdout))


class ProgressLine:
    """A line that shows progress. Thread-safe.

    On a terminal each text replaces the former text. Elsewhere each new text is printed on a line of its own. Text that
    this module prints meanwhile, from any thread and on either stream, appears above the line. ``close`` and ``say``
    end the line, so that the next output begins another line.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._last = ""

    def show(self, text: str) -> None:
        """Show ``text``. On a terminal, show only its first parts that fit; parts are separated by two spaces."""
        with _PRINTING:
            width = width_of(self._stream)
            if width is not None:
                # One cell stays free, because some terminals move to the next line after a full line.
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
        """Show the last text once more, after other output has replaced it."""
        self.show(self._last)

    def say(self, text: str) -> None:
        """End the line of progress, and print ``text`` on a line that stays."""
        self._end("\n")
        with _PRINTING:
            print(_folded([text], self._stream), file=self._stream, flush=True)

    def erase(self) -> None:
        """Remove the line of progress from the terminal, if it is shown, so that the next output takes its place."""
        self._end("\r\x1b[K")

    def close(self) -> None:
        """End the line of progress, if it is shown, so that it stays and the next output begins another line."""
        self._end("\n")

    def _end(self, with_what: str) -> None:
        with _PRINTING:
            if self in _open_lines:
                print(end=with_what, file=self._stream, flush=True)
                _open_lines.clear()


_PRINTING = threading.RLock()
"""The lock that a thread holds while it prints, so that lines of different threads do not mix."""

_open_lines: list[ProgressLine] = []
"""A list with the progress line in which the terminal's cursor is now; empty if there is no such line. Standard output
and standard error share this list, because both may write to the same terminal."""


@contextmanager
def shown_meanwhile(text: str) -> Iterator[None]:
    """Show ``text`` as progress on standard error while the block runs. On a terminal, add the elapsed time."""
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
    """Call ``look`` in another thread every ``seconds``, until the block ends or ``look`` returns ``False``.

    If the system refuses to start the thread, ``look`` is never called.
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
    """Remove the progress line, if any, while the block prints, and show it once more afterwards."""
    with _PRINTING:
        line = _open_lines[0] if _open_lines else None
        if line is not None:
            line.erase()
        try:
            yield
        finally:
            if line is not None:
                line.show_again()
