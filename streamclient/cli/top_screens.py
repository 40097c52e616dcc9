"""The screens of ``streamclient top``, which are read and shown at an interval."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from threading import Event

from attrs import frozen

from streamclient.base import checks
from streamclient.cli.lease_views import known_ids
from streamclient.cli.terminal.commands import EXIT_DONE, shown_until_ended
from streamclient.cli.terminal.layout import Column, cut, fold, one_line, shortener
from streamclient.cli.terminal.output import has_rich, print_json, print_json_line, table_text, width_of
from streamclient.cli.top_tables import (
    GROUP_COLUMNS,
    SHARD_COLUMNS,
    WORKER_COLUMNS,
    causes,
    group_rows,
    shard_rows,
    worker_rows,
)
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.operate.fleet_watch import FleetWatch
from streamclient.operate.groups import WELL, groups, groups_document
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, ShardLine, cost_line, headline, overview_document
from streamclient.operate.site import Site, text_of
from streamclient.operate.verdict import MOST_SHARDS_OF_COMMAND, FleetVerdict, trouble_lines

SHORTEST_INTERVAL_SECONDS = 0.2

SPARE_LINES = 2
"""The number of lines of a screen that are reserved for the number of omitted shards, and for the cursor."""

VERDICT_SHARE, WORKER_SHARE = 3, 4
"""The numbers by which a screen's height is divided: the verdict gets at most a third of the lines, and the workers get
at most a quarter. With larger parts, no line might be left for a shard."""

SENTENCE_LINES = 3
"""The largest number of lines of the verdict's first sentence on a screen of limited height. The sentence may be cut,
because the whole cause is shown below the shard."""

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
"""The terminal's control sequences to move to the first line, to erase to the end of a line, and to erase to the end of
the screen. With these sequences, a screen replaces the former screen without flickering."""

BY_LAG = "unfinished shards by lag, up to:"
"""The line above the table of groups, whose columns are the classes of lag."""

WHY_INDENT = "  "
"""The indent before the cause that is shown below a shard."""


def show_top(site: Site, arguments: argparse.Namespace) -> int:
    """Show screens until interrupted, or one screen with ``--once``; return the exit code."""
    expected = f"a number of seconds of at least {SHORTEST_INTERVAL_SECONDS}"
    checks.waiting(expected, lambda value: value >= SHORTEST_INTERVAL_SECONDS).require("--interval", arguments.interval)
    watch = FleetWatch(site)
    form = GROUPED if arguments.groups else LISTED
    if arguments.once:
        view = watch.next()
        if arguments.json:
            print_json(form.document(view))
        else:
            print(form.text(view, width_of(sys.stdout), None))
        return EXIT_DONE
    screens = _screens(watch, f"table {site.data_table}, status table {site.status_table}", arguments.interval)
    with shown_until_ended():
        _show_each(screens, form, as_json=arguments.json)
    return EXIT_DONE


@frozen
class FailedScreen:
    """A refresh that failed, with the last verdict before it."""

    text: str
    """The reason why the refresh failed, and what to do."""
    verdict: FleetVerdict | None

    @property
    def document(self) -> Document:
        """The failed refresh as a JSON document."""
        return {"problem": self.text, "verdict": self.verdict}


@frozen
class ScreenForm:
    """One form of screens, with functions that make a text for people and a document for programs."""

    text: Callable[[Overview, int | None, int | None], str]
    """A function that returns the text of a screen for a width and a height."""
    document: Callable[[Overview], Document]

    def text_of(self, screen: Overview | FailedScreen, width: int | None, height: int | None) -> str:
        """Return the text of a screen; for a failed refresh, return the reason of the failure."""
        return fold(screen.text, width) if isinstance(screen, FailedScreen) else self.text(screen, width, height)


def _show_each(screens: Iterator[Overview | FailedScreen], form: ScreenForm, *, as_json: bool) -> None:
    if as_json:
        for screen in screens:
            print_json_line(screen.document if isinstance(screen, FailedScreen) else form.document(screen))
    elif not sys.stdout.isatty():
        for screen in screens:
            print(form.text_of(screen, None, None), end="\n\n", flush=True)
    elif has_rich():
        _show_rich(screens, form)
    else:
        _show_plain(screens, form)


def _show_plain(screens: Iterator[Overview | FailedScreen], form: ScreenForm) -> None:
    """Show each screen in place of the former screen, or below the former screen if the terminal cannot replace it."""
    is_simple = os.environ.get("TERM", "dumb") == "dumb"
    for number, screen in enumerate(screens):
        text = form.text_of(screen, width_of(sys.stdout), shutil.get_terminal_size().lines)
        if is_simple:
            print(text, end="\n\n", flush=True)
            continue
        begin = HOME if number else f"{HOME}{REST_OF_SCREEN}"
        print(begin + text.replace("\n", f"{REST_OF_LINE}\n"), end=f"{REST_OF_LINE}\n{REST_OF_SCREEN}", flush=True)


def _screens(watch: FleetWatch, subject: str, interval_seconds: float) -> Iterator[Overview | FailedScreen]:
    """Yield one screen after another without end. A refresh that cannot read the fleet yields a ``FailedScreen``.

    Raises:
        ConfigurationError: the first refresh failed because a name or key is wrong, so no refresh would ever succeed.
    """
    pause, has_begun = Event(), False
    while True:
        try:
            screen: Overview | FailedScreen = watch.next()
        except StreamClientError as error:
            if isinstance(error, ConfigurationError) and not has_begun:
                raise
            screen = FailedScreen(f"{subject}: cannot be read at the moment: {text_of(error)}", watch.verdict)
        has_begun = True
        yield screen
        pause.wait(interval_seconds)


def plain_screen(view: Overview, width: int | None = None, height: int | None = None) -> str:
    """Return one screen as text. Without ``width`` no line is cut; without ``height`` no line is left out.

    The verdict comes first. Below each shard without progress is the whole cause, in several lines if needed. With
    ``height``, the screen has at least one shard, and says how many workers and shards are left out.
    """
    short = shortener(known_ids(view.facts), width)
    above = f"{_heading(view, width, height, short)}\n\n{_worker_table(view, width, height)}\n"
    return _with_shards(above, view.shards, short, width, height)


def grouped_screen(view: Overview, width: int | None = None, height: int | None = None) -> str:
    """Return a screen for a fleet with very many shards: counts by worker and lag, and some shards without progress."""
    found = groups(view)
    shown = [line for line in view.shards if not line.explanation.situation.moves][: len(found["not_moving"])]
    named = {each for line in shown for each in (line.shard_id, line.explanation.root)}
    named.update(shard for trouble in view.verdict["troubles"] for shard in trouble["shards"][:MOST_SHARDS_OF_COMMAND])
    short = shortener(known_ids(view.facts), width, named)
    table = _cut_table(GROUP_COLUMNS, group_rows(found), width, height)
    above = f"{_heading(view, width, height, short)}\n\n{BY_LAG}\n{table}\n"
    if not shown:
        return f"{above}\nevery shard moves"
    more = found["not_moving_more"]
    if not more:
        return _with_shards(above, shown, short, width, height)
    text = _with_shards(above, shown, short, width, None if height is None else height - 1)
    return f"{text}\n({more} more that do not move)"


def _with_shards(
    above: str, shards: Sequence[ShardLine], short: Callable[[str], str], width: int | None, height: int | None
) -> str:
    cells = [[short(cell) for cell in row] for row in shard_rows(shards)]
    head, *rows = table_text(SHARD_COLUMNS, cells, width).split("\n")
    whys = [fold(WHY_INDENT + one_line(short(cause)), width).split("\n") if cause else [] for cause in causes(shards)]
    blocks = [[row, *why] for row, why in zip(rows, whys, strict=False)]
    below = rows[len(blocks) :]  # the line that names the dropped columns, if any
    lines = [above, head]
    left = None if height is None else height - above.count("\n") - len(lines) - len(below) - SPARE_LINES
    for number, block in enumerate(blocks):
        if left is not None and number and len(block) > left:
            below.append(f"({len(blocks) - number} more: a higher terminal or --json shows them)")
            break
        lines += block
        left = None if left is None else left - len(block)
    return "\n".join([*lines, *below])


def _heading(view: Overview, width: int | None, height: int | None, short: Callable[[str], str]) -> str:
    sentence, *details = (one_line(short(line)) for line in trouble_lines(view.verdict, view.facts.now_micros))
    if height is not None and width is not None:
        sentence = cut(sentence, SENTENCE_LINES * (width - len(WHY_INDENT)))
    told = "\n".join(fold(line, width) for line in (sentence, *details)).split("\n")
    if height is not None:
        told = told[: max(1, height // VERDICT_SHARE)]
    return "\n".join([*told, *(fold(line, width) for line in (headline(view), cost_line(view)) if line)])


def _worker_table(view: Overview, width: int | None, height: int | None) -> str:
    return _cut_table(WORKER_COLUMNS, worker_rows(view), width, height)


def _cut_table(columns: Sequence[Column], rows: list[tuple[str, ...]], width: int | None, height: int | None) -> str:
    """Return a table of workers, cut to a part of ``height``. If it is cut, workers that are not well come first."""
    most = len(rows) if height is None else max(1, height // WORKER_SHARE)
    if len(rows) <= most:
        return table_text(columns, rows, width)
    rows.sort(key=lambda cells: cells[-1] == WELL)
    return f"{table_text(columns, rows[:most], width)}\n({len(rows) - most} more: --json shows them)"


def _show_rich(screens: Iterator[Overview | FailedScreen], form: ScreenForm) -> None:
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False) as live:
        for screen in screens:
            size = shutil.get_terminal_size()
            text = form.text_of(screen, size.columns, size.lines)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


LISTED = ScreenForm(plain_screen, overview_document)
"""The form with a line for each shard."""

GROUPED = ScreenForm(grouped_screen, groups_document)
"""The form with counts of shards, for a fleet with very many shards."""
