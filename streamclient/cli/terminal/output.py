"""Printing: JSON for programs, tables and text for people, cut to the terminal where there is one."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any, TextIO

from streamclient.cli.terminal.layout import Column, cut_parts, fit_table, fold, one_line, shortener

NARROWEST = 40
"""Narrower terminals are written to as if they were so wide: less holds no table."""

TELL_SECONDS = 1.0
"""Between two changes of what tells how long something takes: often enough to be seen moving."""


def width_of(stream: TextIO) -> int | None:
    """How wide the terminal behind a stream is; ``None`` if there is none. ``COLUMNS`` in the environment wins."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if stream.isatty() else None


def has_rich() -> bool:
    """Whether ``rich`` is installed."""
    return find_spec("rich") is not None


def print_json(document: Any) -> None:
    """One JSON document, keys in the order of the documentation."""
    print(_json(document, indent=2))


def print_json_line(document: Any) -> None:
    """One JSON document on one line, at once."""
    print(_json(document), flush=True)


def _json(document: Any, indent: int | None = None) -> str:
    """As text for standard output: what its encoding lacks, or a terminal obeys, is escaped as JSON has it."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(document, ensure_ascii=not is_unicode, indent=indent)
    return "\n".join(line if line.isprintable() else _json_escaped(line) for line in text.split("\n"))


def _json_escaped(line: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def print_text(*lines: str, flush: bool = False) -> None:
    """Lines of text, folded between words on a terminal. A progress line stands below them again.

    Names and messages of others stand in them, so each argument is one line: what would begin another is escaped.
    """
    with _beside_progress():
        print(_folded(lines, sys.stdout), flush=flush)


def complain(*lines: str) -> None:
    """The same on standard error."""
    with _beside_progress():
        print(_folded(lines, sys.stderr), file=sys.stderr, flush=True)


def _folded(lines: Iterable[str], stream: TextIO) -> str:
    return fold("\n".join(map(one_line, lines)), width_of(stream))


class ComplainingHandler(logging.Handler):
    """Logs as commands complain: on standard error, folded, beside a progress line that is shown meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one entry."""
        try:
            complain(*self.format(record).split("\n"))
        except Exception:
            self.handleError(record)


def log_to_terminal(level: str | int, text: str = "%(message)s") -> None:
    """Have everything of this level or above printed, each entry as ``text`` says."""
    logging.basicConfig(level=level, format=text, handlers=[ComplainingHandler()])


def table_text(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """A table, and a line that names the columns for which there was no room."""
    table = fit_table(columns, rows, width)
    lines = list(table.lines)
    if table.dropped:
        lines.append(fold(f"(no room for {', '.join(table.dropped)}: a wider terminal or --json shows it)", width))
    return "\n".join(lines)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str) -> None:
    """A table; ``empty`` in its place if there are no rows."""
    if rows:
        print(table_text(columns, rows, width_of(sys.stdout)))
    else:
        print_text(empty)


def id_shortener(ids: Iterable[str]) -> Callable[[str], str]:
    """Replaces ids in a text by beginnings that tell them apart, on a terminal; commands take those, too."""
    return shortener(ids, width_of(sys.stdout))


class ProgressLine:
    """One line that is written over on a terminal, and appended elsewhere when it says something new. Thread-safe.

    ``close`` ends the line, so that whatever comes next begins another one; so does ``say``. What is printed meanwhile
    by this module, from any thread and on either stream, stands above the line.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._last = ""

    def show(self, text: str) -> None:
        """Have the line say this: on a terminal as many of its parts, two spaces apart, as there is room for."""
        with _PRINTING:
            width = width_of(self._stream)
            if width is not None:
                # One cell stays free: a full line moves some terminals to the next one.
                print(f"\r\x1b[K{cut_parts(text, width - 1)}", end="", file=self._stream, flush=True)
                _open_lines[:] = [self]
            elif text != self._last:
                stamp = datetime.now(timezone.utc).strftime("%H:%M:%S")
                print(f"{stamp}  {one_line(text)}", file=self._stream, flush=True)
            self._last = text

    def show_again(self) -> None:
        """Have the line stand there as before."""
        self.show(self._last)

    def say(self, text: str) -> None:
        """A line of its own, which stays."""
        self._end("\n")
        with _PRINTING:
            print(_folded([text], self._stream), file=self._stream, flush=True)

    def erase(self) -> None:
        """Take the line away, if one was begun, so that whatever comes next stands in its place."""
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
"""Held while something is printed, so that no line of another thread comes in between."""

_open_lines: list[ProgressLine] = []
"""The progress line that the terminal's cursor stands in, if there is one; both streams may lead to that terminal."""


@contextmanager
def shown_meanwhile(text: str) -> Iterator[None]:
    """Say on standard error, while the block runs, that it does; on a terminal with how long it has."""
    line, over, began = ProgressLine(sys.stderr), threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(TELL_SECONDS):
            line.show(f"{text}  {time.monotonic() - began:.0f} s")

    line.show(text)
    thread = threading.Thread(target=tell, name="progress", daemon=True)
    if width_of(sys.stderr) is not None:
        with suppress(RuntimeError):  # the system refuses a thread: the line stands still, and nothing else is lost
            thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
        line.erase()


@contextmanager
def _beside_progress() -> Iterator[None]:
    """Take a progress line away, and draw it again behind whatever the block prints."""
    with _PRINTING:
        line = _open_lines[0] if _open_lines else None
        if line is not None:
            line.erase()
        try:
            yield
        finally:
            if line is not None:
                line.show_again()
