"""What ``streamclient top`` does: read, show, wait, again."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Any

from attrs import evolve

from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.operate.collection import Collector
from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_views import readable
from streamclient.operate.overview import (
    SHARD_COLUMNS,
    WORKER_COLUMNS,
    Overview,
    headline,
    overview,
    overview_document,
    shard_rows,
    worker_rows,
)
from streamclient.operate.printing import has_rich, plain_table, print_json
from streamclient.operate.running import EXIT_DONE
from streamclient.operate.site import Site, text_of

STREAM_SECONDS = 30.0
"""Between listings of the shards: they change when partitions split, not while somebody watches."""

HEADS_PER_REFRESH = 20
"""Shards whose next unread record is looked up per refresh, in turn: one small read each, a second one for a shard that
stands at the oldest record."""

SHORTEST_INTERVAL_SECONDS = 0.2


class FleetWatch:
    """Reads the facts for one screen after the other, with few requests."""

    def __init__(self, site: Site, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._collector = Collector(site, monotonic=monotonic)
        self._monotonic = monotonic
        self._facts: FleetFacts | None = None
        self._listed_at = 0.0

    def next(self) -> Overview:
        """The next screen.

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
    """Show screens until interrupted, or one."""
    if not arguments.interval >= SHORTEST_INTERVAL_SECONDS:
        raise ConfigurationError(f"--interval must be at least {SHORTEST_INTERVAL_SECONDS} s, not {arguments.interval}")
    watch = FleetWatch(site)
    if arguments.once:
        view = watch.next()
        if arguments.json:
            print_json(overview_document(view))
        else:
            print(plain_screen(view))
        return EXIT_DONE
    screens = _screens(watch, f"table {site.data_table}, status table {site.status_table}", arguments.interval)
    with suppress(KeyboardInterrupt):
        _show_each(screens, as_json=arguments.json)
    return EXIT_DONE


def _show_each(screens: Iterator[Overview | str], *, as_json: bool) -> None:
    if as_json:
        for screen in screens:
            document = {"problem": screen} if isinstance(screen, str) else overview_document(screen)
            print(json.dumps(document, ensure_ascii=False), flush=True)
    elif sys.stdout.isatty() and has_rich():
        _show_rich(screens)
    else:
        for screen in screens:
            print(screen if isinstance(screen, str) else plain_screen(screen), end="\n\n", flush=True)


def _screens(watch: FleetWatch, what: str, interval_seconds: float) -> Iterator[Overview | str]:
    """Screens without end; a text where the facts could not be read."""
    pause = Event()
    while True:
        try:
            yield watch.next()
        except StreamClientError as error:
            yield f"{what}: cannot be read at the moment: {text_of(error)}"
        pause.wait(interval_seconds)


def plain_screen(view: Overview) -> str:
    """One screen as text; nothing is cut."""
    parts = [headline(view), plain_table(WORKER_COLUMNS, worker_rows(view))]
    parts.append(plain_table(SHARD_COLUMNS, shard_rows(view)))
    return "\n\n".join(parts)


def _show_rich(screens: Iterator[Overview | str]) -> None:
    from rich.live import Live  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen if isinstance(screen, str) else rich_screen(screen), refresh=True)


def rich_screen(view: Overview) -> Any:
    """One screen for ``rich``, as many shards as there are lines for."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        for column in columns:
            made.add_column(column, no_wrap=True, overflow="ellipsis")
        for row in rows:
            made.add_row(*(Text(cell) for cell in row))
        return made

    workers = worker_rows(view)
    lines_left = max(1, shutil.get_terminal_size().lines - len(workers) - 5)
    return Group(
        Text(headline(view), style="bold"),
        "",
        table(WORKER_COLUMNS, workers),
        "",
        table(SHARD_COLUMNS, shard_rows(view, lines_left)),
    )
