"""A Delta table with some commits, and files and entries of it that look old."""

from __future__ import annotations

import os
import re
from pathlib import Path

from streamclient.destinations import Commit, DeltaDestination
from streamclient.testing.contracts.destination_contract import change, store

TABLE_COMMITS = 10


def filled(path: Path, **options: object) -> tuple[DeltaDestination, Commit]:
    destination = DeltaDestination(str(path), **options)  # type: ignore[arg-type]
    last: Commit | None = None
    for number in range(TABLE_COMMITS):
        last = store(destination, last, [change(number)])
    assert last is not None
    return destination, last


DAY_MILLIS = 24 * 3600 * 1000


def age(table: Path, days: int) -> None:
    """Let files and removals look as old as this, as the clock cannot be turned."""

    def earlier(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) - days * DAY_MILLIS}"

    for path in table.rglob("*"):
        if path.suffix == ".json":
            path.write_text(re.sub(r'("deletionTimestamp":)(\d+)', earlier, path.read_text()))
        past = path.stat().st_mtime - days * DAY_MILLIS / 1000
        os.utime(path, (past, past))
