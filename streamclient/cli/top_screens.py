"""The screens of ``streamclient top``: read, show, wait, again."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from threading import Event

from attrs import evolve, frozen

from streamclient.cli.lease_views import known_ids
from streamclient.cli.terminal.commands import EXIT_DONE, shown_until_ended
from streamclient.cli.terminal.layout import cut, fold, one_line, shortener
from streamclient.cli.terminal.output import has_rich, print_json, print_json_line, table_text, width_of
from streamclient.cli.top_tables import SHARD_COLUMNS, WELL, WORKER_COLUMNS, causes, shard_rows, worker_rows
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.facts import FleetFacts
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, cost_line, headline, overview, overview_document
from streamclient.operate.site import Site, text_of
from streamclient.operate.verdict import FleetVerdict, trouble_lines, verdict

STREAM_SECONDS = 30.0
"""Seconds between listings of the shards: they change when partitions split, which is rare while a person watches."""

HEADS_PER_REFRESH = 20
"""The number of shards whose next unread record is looked up per refresh, in turn. Each costs one small read, and a
second one if the shard's checkpoint is the oldest record."""

SHORTEST_INTERVAL_SECONDS = 0.2

SPARE_LINES = 2
"""The lines of a screen that stay free: for the number of shards that are left out, and for the cursor."""

VERDICT_SHARE, WORKER_SHARE = 3, 4
"""A third of a screen's lines is for the verdict, a quarter for workers: else none would be left for a shard."""

SENTENCE_LINES = 3
"""The most lines of the verdict's sentence on such a screen; the cause stands whole below the shard."""

HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
"""To the first line; erase to the end of a line, and to the end of the screen: a screen replaces the one before without
flickering."""

WHY_INDENT = "  "
"""Before the cause of a shard, which stands below it."""


class FleetWatch:
    """The reader of the facts for one screen after another, with few requests."""

    def __init__(self, site: Site, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._collector = FleetReader(site, monotonic=monotonic)
        self._monotonic = monotonic
        self._facts: FleetFacts | None = None
        self._listed_at = 0.0
        self.verdict: FleetVerdict | None = None
        """The verdict of the last reading, also of one that failed; ``None`` before the first."""

    def next(self) -> Overview:
        """Return the next screen.

        Raises:
            StreamClientError: a read failed; the next call tries again.
        """
        before = self._facts
        facts = self._read(before)
        if facts.unreadable:
            self.verdict = verdict(facts, (), self.verdict)
            readable(facts)
        self._facts = self._with_heads(facts)
        view = overview(self._facts, before, self.verdict)
        self.verdict = view.verdict
        return view

    def _read(self, before: FleetFacts | None) -> FleetFacts:
        """Return the facts; a read that failed is among them."""
        if before is None or self._monotonic() - self._listed_at > STREAM_SECONDS:
            facts = self._collector.collect()
            if not facts.unreadable:
                self._listed_at = self._monotonic()
            return facts
        try:
            return self._collector.refreshed(before)
        except StreamClientError as error:
            problem, code = self._collector.site.problem_of(error)
            return evolve(before, problem=problem, problem_code=code)

    def _with_heads(self, facts: FleetFacts) -> FleetFacts:
        if facts.stream.stream_id is None:
            return facts
        checkpoints = {key: lease.checkpoint for key, lease in facts.leases.items() if not lease.is_finished}
        reader = self._collector.head_reader(facts.stream.stream_id)
        return evolve(facts, heads=reader.read_some(checkpoints, HEADS_PER_REFRESH))


def show_top(site: Site, arguments: argparse.Namespace) -> int:
    """Show screens until interrupted, or one screen with ``--once``; return the exit code."""
    if not arguments.interval >= SHORTEST_INTERVAL_SECONDS:
        raise ConfigurationError(f"--interval must be at least {SHORTEST_INTERVAL_SECONDS} s, not {arguments.interval}")
    watch = FleetWatch(site)
    if arguments.once:
        view = watch.next()
        if arguments.json:
            print_json(overview_document(view))
        else:
            print(plain_screen(view, width_of(sys.stdout)))
        return EXIT_DONE
    screens = _screens(watch, f"table {site.data_table}, status table {site.status_table}", arguments.interval)
    with shown_until_ended():
        _show_each(screens, as_json=arguments.json)
    return EXIT_DONE


@frozen
class FailedScreen:
    """A refresh that failed."""

    text: str
    """The reason, and what to do."""
    verdict: FleetVerdict | None

    @property
    def document(self) -> Document:
        """The refresh as a document."""
        return {"problem": self.text, "verdict": self.verdict}


def _show_each(screens: Iterator[Overview | FailedScreen], *, as_json: bool) -> None:
    if as_json:
        for screen in screens:
            print_json_line(screen.document if isinstance(screen, FailedScreen) else overview_document(screen))
    elif not sys.stdout.isatty():
        for screen in screens:
            print(_text_of(screen, None, None), end="\n\n", flush=True)
    elif has_rich():
        _show_rich(screens)
    else:
        _show_plain(screens)


def _text_of(screen: Overview | FailedScreen, width: int | None, height: int | None) -> str:
    return fold(screen.text, width) if isinstance(screen, FailedScreen) else plain_screen(screen, width, height)


def _show_plain(screens: Iterator[Overview | FailedScreen]) -> None:
    """Show each screen in the place of the one before, on a terminal that knows how; else after it."""
    is_simple = os.environ.get("TERM", "dumb") == "dumb"
    for number, screen in enumerate(screens):
        text = _text_of(screen, width_of(sys.stdout), shutil.get_terminal_size().lines)
        if is_simple:
            print(text, end="\n\n", flush=True)
            continue
        begin = HOME if number else f"{HOME}{REST_OF_SCREEN}"
        print(begin + text.replace("\n", f"{REST_OF_LINE}\n"), end=f"{REST_OF_LINE}\n{REST_OF_SCREEN}", flush=True)


def _screens(watch: FleetWatch, subject: str, interval_seconds: float) -> Iterator[Overview | FailedScreen]:
    """Yield screens without end, of which a ``FailedScreen`` says that the facts could not be read.

    Raises:
        ConfigurationError: a name or key is wrong, so no screen would ever come; raised before the first screen only.
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
    """Return one screen as text: without a width nothing is cut, without a height nothing is left out.

    The verdict comes first. A shard that does not move has its cause below it, in as many lines as that takes. With a
    height there is at least one shard, and lines say how many workers and shards are left out.
    """
    short = shortener(known_ids(view.facts), width)
    cells = [[short(cell) for cell in row] for row in shard_rows(view)]
    above = f"{_heading(view, width, height, short)}\n\n{_worker_table(view, width, height)}\n"
    head, *rows = table_text(SHARD_COLUMNS, cells, width).split("\n")
    whys = [fold(WHY_INDENT + one_line(short(cause)), width).split("\n") if cause else [] for cause in causes(view)]
    blocks = [[row, *why] for row, why in zip(rows, whys, strict=False)]
    below = rows[len(blocks) :]  # the columns without room
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
    """Return the table of workers; with a height only some of them, first those that are not well."""
    rows = worker_rows(view)
    most = len(rows) if height is None else max(1, height // WORKER_SHARE)
    if len(rows) <= most:
        return table_text(WORKER_COLUMNS, rows, width)
    rows.sort(key=lambda cells: cells[-1] == WELL)
    return f"{table_text(WORKER_COLUMNS, rows[:most], width)}\n({len(rows) - most} more: --json shows them)"


def _show_rich(screens: Iterator[Overview | FailedScreen]) -> None:
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False) as live:
        for screen in screens:
            size = shutil.get_terminal_size()
            text = _text_of(screen, size.columns, size.lines)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
