"""Functions that fit text and tables to the width of a terminal.

Without a width, as in a pipe or a file, no text is cut, dropped or folded. So programs and ``grep`` see the whole text.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from attrs import frozen

from streamclient.errors import ConfigurationError, printable

GAP = "  "
"""The spaces between two columns of a table."""

ELLIPSIS = "…"

SHORTEST_ID = 8
"""The smallest number of characters of a shortened id. Ids with the same first characters keep more characters."""

_EMPTY_CELLS = frozenset({"", "-"})


@frozen
class Column:
    """A column of a table, with the rules for a terminal that is too narrow for the table."""

    title: str
    drop: int = 0
    """The order in which columns are dropped, highest number first. A column with 0 is never dropped."""
    least: int | None = None
    """The width, in cells, to which the column may be cut before columns are dropped; ``None`` if it is never cut."""


@frozen
class FittedTable:
    """The lines of a table that was fitted to a width, and the titles of dropped columns that were not empty."""

    lines: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def display_width(text: str) -> int:
    """Return the width of ``text`` in terminal cells: two for a wide character, none for a combining character."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """Return ``text``, cut to ``width`` cells with an ellipsis if it is wider."""
    if display_width(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += display_width(character)
        if used > width - 1:
            break
        kept += character
    return kept + ELLIPSIS


def cut_parts(text: str, width: int) -> str:
    """Return the first parts of ``text`` that fit into ``width``. Parts are separated by two spaces.

    If not even the first part fits, return its beginning with an ellipsis.
    """
    parts = one_line(text).split(GAP)
    while len(parts) > 1 and display_width(GAP.join(parts)) > width:
        parts.pop()
    return cut(GAP.join(parts), width)


def one_line(text: str) -> str:
    """Return ``text`` with escapes for characters that would begin another line or move the cursor."""
    return printable(text, None)


def fit_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> FittedTable:
    """Return the table with its titles and ``rows``, fitted to ``width``.

    If the table is too wide, empty columns are dropped first. If cutting columns to their ``least`` is not enough,
    further columns are dropped in the order of ``drop``. The remaining columns are cut as far as needed.
    """
    cells = [[column.title for column in columns], *([one_line(cell) for cell in row] for row in rows)]
    natural = [max(display_width(row[index]) for row in cells) for index in range(len(columns))]
    kept, widths = _choose(columns, cells, natural, width)
    lines = [
        GAP.join(_padded(row[index], cell_width) for index, cell_width in zip(kept, widths, strict=True)).rstrip()
        for row in cells
    ]
    dropped = tuple(
        column.title for index, column in enumerate(columns) if index not in kept and not _is_empty(cells, index)
    )
    return FittedTable(tuple(lines if width is None else (cut(line, width) for line in lines)), dropped)


def _choose(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], natural: Sequence[int], width: int | None
) -> tuple[list[int], list[int]]:
    """Return the indexes of the columns that stay, and their widths."""
    kept = list(range(len(columns)))
    while True:
        widths = [natural[index] for index in kept]
        excess = 0 if width is None else sum(widths) + len(GAP) * (len(kept) - 1) - width
        if excess <= 0:
            return kept, widths
        empty = [index for index in kept if columns[index].drop and _is_empty(cells, index)]
        spare = [_spare(columns[index], natural[index]) for index in kept]
        droppable = [index for index in kept if columns[index].drop]
        if not empty and (sum(spare) >= excess or not droppable):
            return kept, _shrunk(widths, spare, excess)
        kept.remove(max(empty or droppable, key=lambda index: columns[index].drop))


def _is_empty(cells: Sequence[Sequence[str]], index: int) -> bool:
    return all(row[index] in _EMPTY_CELLS for row in cells[1:])


def _spare(column: Column, natural: int) -> int:
    return 0 if column.least is None else max(0, natural - max(column.least, len(column.title)))


def _shrunk(widths: Sequence[int], spare: Sequence[int], excess: int) -> list[int]:
    """Return ``widths`` without ``excess`` cells. Each cell is taken from the widest column that may still be cut."""
    shrunk, left = list(widths), list(spare)
    for _ in range(min(excess, sum(spare))):
        widest = max((index for index in range(len(shrunk)) if left[index]), key=lambda index: shrunk[index])
        shrunk[widest] -= 1
        left[widest] -= 1
    return shrunk


def _padded(text: str, width: int) -> str:
    shown = cut(text, width)
    return shown + " " * (width - display_width(shown))


def fold(text: str, width: int | None) -> str:
    """Return ``text`` in lines of at most ``width`` cells, broken between words.

    The continuation of a line is indented by two more cells than the line.
    """
    lines = map(one_line, text.split("\n"))
    return "\n".join(lines if width is None else (_fold_line(line, width) for line in lines))


def _fold_line(line: str, width: int) -> str:
    if display_width(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    # Wide characters take two cells, but textwrap counts characters. So a line with such characters gets half the room.
    room = width if display_width(line) == len(line) else max(20, width // 2)
    return textwrap.fill(
        line.strip(),
        room,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


# --- ids -----------------------------------------------------------------------------------------------------------


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return a short id for each id: its first characters, at least ``SHORTEST_ID``. All short ids are different."""
    known = sorted(set(ids))
    length = SHORTEST_ID
    for full, following in pairwise(known):
        shared = next((n for n, (a, b) in enumerate(zip(full, following, strict=False)) if a != b), len(full))
        length = max(length, shared + 1)
    return {full: full[:length] for full in known}


def shortener(ids: Iterable[str], width: int | None, named: Collection[str] | None = None) -> Callable[[str], str]:
    """Return a function that replaces each of ``ids`` in a text by a short id; without a width it changes nothing.

    With ``named``, only the ids in ``named`` are replaced. This saves time for a caller with very many ids, if only a
    few of them can occur in its texts.

    An id in a call in Python, such as ``worker.accept_loss('ID')``, is not replaced, because only commands accept short
    ids.
    """
    known = {} if width is None else short_ids(ids)
    shorts = {full: short for full, short in known.items() if short != full and (named is None or full in named)}
    if not shorts:
        return lambda text: text
    ids_only = "|".join(re.escape(full) for full in sorted(shorts, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\(')(?:{ids_only})")
    return lambda text: pattern.sub(lambda match: shorts[match[0]], text)


def matching_id(given: str, ids: Iterable[str], noun: str) -> str:
    """Return the only id that begins with ``given``.

    If no id begins with ``given``, return ``given`` itself: a later look-up reports the unknown id.

    Raises:
        ConfigurationError: several ids begin with ``given``.
    """
    matching = sorted({full for full in ids if full.startswith(given)}) if given else []
    if given in matching or not matching:
        return given
    if len(matching) > 1:
        raise ConfigurationError(
            f"{noun} {given!r} is ambiguous: {', '.join(matching[:5])} begin with it; give more characters"
        )
    return matching[0]
