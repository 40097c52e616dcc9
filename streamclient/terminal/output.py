"""Printing: JSON for programs, tables and text for people, cut to the terminal where there is one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any, TextIO

from streamclient.terminal.layout import Column, cut_parts, fit_table, fold, shortener

NARROWEST = 40
"""Narrower terminals are written to as if they were so wide: less holds no table."""


def width_of(stream: TextIO) -> int | None:
    """How wide the terminal behind a stream is; ``None`` if there is none. ``COLUMNS`` in the environment wins."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if stream.isatty() else None


def has_rich() -> bool:
    """Whether ``rich`` is installed."""
    return find_spec("rich") is not None


def print_json(document: Any) -> None:
    """One JSON document, keys in the order of the documentation."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: Any) -> None:
    """One JSON document on one line, at once."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


def print_text(text: str, *, flush: bool = False) -> None:
    """Text, folded between words on a terminal."""
    print(fold(text, width_of(sys.stdout)), flush=flush)


def complain(text: str) -> None:
    """Text on standard error, folded between words on a terminal."""
    print(fold(text, width_of(sys.stderr)), file=sys.stderr, flush=True)


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
    """One line that is written over on a terminal, and appended elsewhere when it says something new.

    ``close`` ends the line, so that whatever comes next begins another one; so does ``say``.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._last = ""
        self._is_open = False

    def show(self, text: str) -> None:
        """Have the line say this: on a terminal as many of its parts, two spaces apart, as there is room for."""
        width = width_of(self._stream)
        if width is not None:
            # One cell stays free: a full line moves some terminals to the next one.
            print(f"\r\x1b[K{cut_parts(text, width - 1)}", end="", file=self._stream, flush=True)
            self._is_open = True
        elif text != self._last:
            stamp = datetime.now(timezone.utc).strftime("%H:%M:%S")
            print(f"{stamp}  {text}", file=self._stream, flush=True)
        self._last = text

    def say(self, text: str) -> None:
        """A line of its own, which stays."""
        self.close()
        print(fold(text, width_of(self._stream)), file=self._stream, flush=True)

    def erase(self) -> None:
        """Take the line away, if one was begun, so that whatever comes next stands in its place."""
        if self._is_open:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._is_open = False

    def close(self) -> None:
        """End the line, if one was begun."""
        if self._is_open:
            print(file=self._stream, flush=True)
            self._is_open = False
