"""Text and tables for a line of so many cells. Pure.

Where there is no width, as in a pipe or a file, nothing is cut, dropped or folded: programs and ``grep`` see it whole.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import frozen

from streamclient.errors import ConfigurationError, printable

GAP = "  "
"""Between two columns."""

ELLIPSIS = "…"

SHORTEST_ID = 8
"""Characters of a shortened id; more where two ids begin alike for longer."""

_SAYS_NOTHING = frozenset({"", "-"})


@frozen
class Column:
    """A column of a table, and what becomes of it where the line is too short."""

    title: str
    drop: int = 0
    """The column with the highest number goes first; one with 0 always stays."""
    least: int | None = None
    """It may be cut to so many cells, with an ellipsis, before another one is dropped; ``None``: it is never cut."""


@frozen
class FittedTable:
    """Lines, and the titles of columns that had something to say and no room."""

    lines: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def display_width(text: str) -> int:
    """Cells of a terminal that the text takes: two for wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
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
    """As many parts of the text, two spaces apart, as fit; never less than the beginning of the first."""
    parts = one_line(text).split(GAP)
    while len(parts) > 1 and display_width(GAP.join(parts)) > width:
        parts.pop()
    return cut(GAP.join(parts), width)


def one_line(text: str) -> str:
    """The text with escapes for anything that would begin another line or move the cursor."""
    return printable(text, None)


def fit_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> FittedTable:
    """The table with its titles, columns two cells apart.

    Too wide for ``width``, columns that say nothing go first; then those that may be cut are cut; then columns go by
    their ``drop``.
    """
    cells = [[column.title for column in columns], *([one_line(cell) for cell in row] for row in rows)]
    natural = [max(display_width(row[place]) for row in cells) for place in range(len(columns))]
    kept, widths = _choose(columns, cells, natural, width)
    lines = [
        GAP.join(_padded(row[place], cell_width) for place, cell_width in zip(kept, widths, strict=True)).rstrip()
        for row in cells
    ]
    dropped = tuple(
        column.title for place, column in enumerate(columns) if place not in kept and not _says_nothing(cells, place)
    )
    return FittedTable(tuple(lines if width is None else (cut(line, width) for line in lines)), dropped)


def _choose(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], natural: Sequence[int], width: int | None
) -> tuple[list[int], list[int]]:
    """Places of the columns that stay, and their widths."""
    kept = list(range(len(columns)))
    while True:
        widths = [natural[place] for place in kept]
        excess = 0 if width is None else sum(widths) + len(GAP) * (len(kept) - 1) - width
        if excess <= 0:
            return kept, widths
        silent = [place for place in kept if columns[place].drop and _says_nothing(cells, place)]
        spare = [_spare(columns[place], natural[place]) for place in kept]
        droppable = [place for place in kept if columns[place].drop]
        if not silent and (sum(spare) >= excess or not droppable):
            return kept, _shrunk(widths, spare, excess)
        kept.remove(max(silent or droppable, key=lambda place: columns[place].drop))


def _says_nothing(cells: Sequence[Sequence[str]], place: int) -> bool:
    return all(row[place] in _SAYS_NOTHING for row in cells[1:])


def _spare(column: Column, natural: int) -> int:
    return 0 if column.least is None else max(0, natural - max(column.least, len(column.title)))


def _shrunk(widths: Sequence[int], spare: Sequence[int], excess: int) -> list[int]:
    """Take cells from the widest that may give some, one at a time."""
    found, left = list(widths), list(spare)
    for _ in range(min(excess, sum(spare))):
        place = max((place for place in range(len(found)) if left[place]), key=lambda place: found[place])
        found[place] -= 1
        left[place] -= 1
    return found


def _padded(text: str, width: int) -> str:
    shown = cut(text, width)
    return shown + " " * (width - display_width(shown))


def fold(text: str, width: int | None) -> str:
    """Lines of at most ``width``, broken between words; what is continued is indented by two more than its line."""
    lines = map(one_line, text.split("\n"))
    return "\n".join(lines if width is None else (_fold_line(line, width) for line in lines))


def _fold_line(line: str, width: int) -> str:
    if display_width(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    # Wide characters count twice; the library counts characters, so a line of them gets half the room.
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
    """The beginning of each id: as short as tells all of them apart, but not below ``SHORTEST_ID``."""
    known = sorted(set(ids))
    length = SHORTEST_ID
    for one, next_one in pairwise(known):
        shared = next((n for n, (a, b) in enumerate(zip(one, next_one, strict=False)) if a != b), len(one))
        length = max(length, shared + 1)
    return {each: each[:length] for each in known}


def shortener(ids: Iterable[str], width: int | None) -> Callable[[str], str]:
    """Replaces ids by their beginnings wherever they stand in a text; leaves texts alone where there is no width."""
    shorts = {} if width is None else {full: short for full, short in short_ids(ids).items() if short != full}
    if not shorts:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(full) for full in sorted(shorts, key=len, reverse=True)))
    return lambda text: pattern.sub(lambda found: shorts[found[0]], text)


def matching_id(given: str, ids: Iterable[str], noun: str) -> str:
    """The one id that is this or begins with it; ``given`` itself if none does, which whoever looks it up will say.

    Raises:
        ConfigurationError: several begin so.
    """
    found = sorted({each for each in ids if each.startswith(given)}) if given else []
    if given in found or not found:
        return given
    if len(found) > 1:
        raise ConfigurationError(f"{noun} {given!r} is ambiguous: {', '.join(found[:5])} begin so; give more of it")
    return found[0]


def counted(count: int | str, noun: str) -> str:
    """``1 row``, ``2 rows``, or ``no rows`` where that is said for none."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
