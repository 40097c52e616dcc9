"""Figures in the documentation that follow from the code, and not from a measurement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamclient import ClientConfig
from streamclient.core.consumer.reading_pace import WorkerPace

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0}


def rows_below(page: str, head: str) -> list[list[str]]:
    """Cells of the table that begins with this head."""
    lines = (DOCS / page).read_text().split(head, 1)[1].splitlines()[2:]
    rows = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def seconds(text: str) -> float:
    found = re.search(r"([\d.]+) (ms|s|min|h)\b", text)
    assert found is not None, text
    return float(found.group(1)) * SECONDS[found.group(2)]


def test_the_times_between_reads_are_those_of_the_page() -> None:
    rows = rows_below("flow.md", "| Silence of the table | Of the shard alone | Time from one read to the next |")

    for of_table, alone, interval in rows:
        silent = WorkerPace(ClientConfig()).table().shard()
        silent.nothing_came(0.0)
        assert silent.interval(seconds(of_table)) == pytest.approx(seconds(interval))
        table = WorkerPace(ClientConfig()).table()
        lonely, busy = table.shard(), table.shard()
        lonely.nothing_came(0.0)
        busy.records_came(seconds(alone))
        assert lonely.interval(seconds(alone)) == pytest.approx(seconds(interval))
    assert len(rows) == 5


def test_the_page_shows_the_defaults_of_prefetching() -> None:
    config = ClientConfig()
    rows = rows_below("flow.md", "| Setting of `ClientConfig.prefetch` |")
    shown = {setting.strip("`"): default for setting, default, _ in rows}

    assert shown == {
        "prefetch_bytes": f"{config.prefetch.prefetch_bytes >> 20} MiB",
        "prefetch_total_bytes": f"{config.prefetch.prefetch_total_bytes >> 20} MiB",
    }


def test_the_example_of_the_status_tables_budget_adds_up() -> None:
    """Ten workers with 900 leases, by the rows of the table above it; a test of workers counts those."""
    config = ClientConfig()
    looks = 60_000 / config.signal_interval_millis
    beats = 60_000 / config.renewer_interval_millis
    workers, leases = 10, 900
    text = (DOCS / "operations.md").read_text()

    requests = workers * (looks + beats) + 2 * 60_000 / config.taker_interval_millis
    text = text.replace("\u00d7", "x")
    assert f"make 10 x ({looks:.0f} + {beats:.0f}) + 20 = {requests:,.0f} requests" in text
    assert f"read {beats:.0f} x {leases + workers} rows of scans and 10 x {3 * looks:.0f} of" in text
