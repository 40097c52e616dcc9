"""The screens of ``streamclient top``: read, show, wait, again."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event

from attrs import evolve

from streamclient.cli.lease_views import known_ids
from streamclient.cli.terminal.commands import EXIT_DONE
from streamclient.cli.terminal.layout import fold, one_line, shortener
from streamclient.cli.terminal.output import has_rich, print_json, print_json_line, table_text, width_of
from streamclient.cli.top_tables import SHARD_COLUMNS, WORKER_COLUMNS, causes, shard_rows, worker_rows
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.facts import FleetFacts
from streamclient.operate.overview import Overview, cost_line, headline, overview, overview_document
from streamclient.operate.site import Site, text_of

STREAM_SECONDS = 30.0
"""Seconds between listings of the shards: they change when partitions split, which is rare while a person watches."""

HEADS_PER_REFRESH = 20
"""The number of shards whose next unread record is looked up per refresh, in turn. Each costs one small read, and a
second one if the shard's checkpoint is the oldest record."""

SHORTEST_INTERVAL_SECONDS = 0.2

SPARE_LINES = 2
"""The lines of a screen that stay free: for the number of shards that are left out, and for the cursor."""

WHY_INDENT = "  "
"""Before the cause of a shard, which stands below it."""


class FleetWatch:
    """The reader of the facts for one screen after another, with few requests."""

    def __init__(self, site: Site, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._collector = FleetReader(site, monotonic=monotonic)
        self._monotonic = monotonic
        self._facts: FleetFacts | None = None
        self._listed_at = 0.0

    def next(self) -> Overview:
        """Return the next screen.

        Raises:
            StreamClientError: a read failed; the next call tries again.
        """
        before = self._facts
        if before is None or self._monotonic() - self._listed_at > STREAM_SECONDS:
            facts = readable(self._collector.collect())
            self._listed_at = self._monotonic()
        else:
            facts = self._collector.refreshed(before)
        self._facts = self._with_heads(facts)
        return overview(self._facts, before)

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
    with suppress(KeyboardInterrupt):
        _show_each(screens, as_json=arguments.json)
    return EXIT_DONE


def _show_each(screens: Iterator[Overview | str], *, as_json: bool) -> None:
    if as_json:
        for screen in screens:
            document = {"problem": screen} if isinstance(screen, str) else overview_document(screen)
            print_json_line(document)
    elif sys.stdout.isatty() and has_rich():
        _show_rich(screens)
    else:
        for screen in screens:
            width = width_of(sys.stdout)
            height = shutil.get_terminal_size().lines if sys.stdout.isatty() else None
            text = fold(screen, width) if isinstance(screen, str) else plain_screen(screen, width, height)
            print(text, end="\n\n", flush=True)


def _screens(watch: FleetWatch, subject: str, interval_seconds: float) -> Iterator[Overview | str]:
    """Yield screens without end; yield a text instead of a screen if the facts could not be read.

    Raises:
        ConfigurationError: a name or key is wrong, so no screen would ever come; raised before the first screen only.
    """
    pause, has_begun = Event(), False
    while True:
        try:
            screen: Overview | str = watch.next()
        except StreamClientError as error:
            if isinstance(error, ConfigurationError) and not has_begun:
                raise
            screen = f"{subject}: cannot be read at the moment: {text_of(error)}"
        has_begun = True
        yield screen
        pause.wait(interval_seconds)


def plain_screen(view: Overview, width: int | None = None, height: int | None = None) -> str:
    """Return one screen as text: without a width nothing is cut, without a height nothing is left out.

    A shard that does not move has its cause below it, in as many lines as that takes. With a height there is at least
    one shard, and the last line says how many are left out.
    """
    short = shortener(known_ids(view.facts), width)
    cells = [[short(cell) for cell in row] for row in shard_rows(view)]
    above = f"{_heading(view, width)}\n\n{table_text(WORKER_COLUMNS, worker_rows(view), width)}\n"
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


def _heading(view: Overview, width: int | None) -> str:
    return "\n".join(fold(line, width) for line in (headline(view), cost_line(view)) if line)


def _show_rich(screens: Iterator[Overview | str]) -> None:
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False) as live:
        for screen in screens:
            size = shutil.get_terminal_size()
            text = fold(screen, size.columns) if isinstance(screen, str) else plain_screen(screen, *size)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
