"""The columns and cells of the tables that ``streamclient top`` shows."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.base.times import duration
from streamclient.cli.terminal.layout import Column
from streamclient.operate.groups import LAG_CLASSES, Groups, health, stands_still
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, ShardLine, rate

WORKER_COLUMNS = (
    Column("WORKER", least=8),
    Column("STATE", drop=2),
    Column("LEASES", drop=3),
    Column("UNFINISHED", drop=4),
    Column("RECORDS/S", drop=1),
    Column("HEALTH", least=12),
)
SHARD_COLUMNS = (
    Column("SHARD"),
    Column("OWNER", drop=2, least=8),
    Column("STATE", least=10),
    Column("LAG"),
    Column("RECORDS/S", drop=3),
    Column("TIME TO LOSS"),
)


GROUP_COLUMNS = (
    Column("WORKER", least=8),
    Column("SHARDS"),
    Column("MOVING", drop=1),
    *(
        Column(words.removeprefix("up to ").replace("over ", ">").upper(), drop=len(LAG_CLASSES) + 1 - number)
        for number, words in enumerate(LAG_CLASSES)
    ),
    Column("HEALTH", least=12),
)
"""The columns of the table that counts each worker's shards by classes of lag. On a narrow terminal the columns of the
shortest lags are dropped first."""


def group_rows(found: Groups) -> list[tuple[str, ...]]:
    """Return a row of cells for each worker, in the order of ``GROUP_COLUMNS``."""
    return [
        (
            group["id"] or "-",
            str(group["shards"]),
            str(group["moving"]),
            *map(str, group["counts"]),
            group["health"] or "no owner",
        )
        for group in found["workers"]
    ]


def worker_rows(view: Overview) -> list[tuple[str, ...]]:
    """Return a row of cells for each worker, in the order of ``WORKER_COLUMNS``."""
    return [
        (
            worker["worker"],
            _worker_state(worker),
            str(worker["leases"]),
            str(worker["unfinished"]),
            rate(worker["records_per_second"]),
            health(worker),
        )
        for worker in view.workers
    ]


def _worker_state(worker: Document) -> str:
    session = worker["session"]
    if session is None or worker["life"] != "living":
        return str(worker["life"])
    return str(session["process"] if stands_still(session) else session["state"])


def shard_rows(lines: Sequence[ShardLine]) -> list[tuple[str, ...]]:
    """Return a row of cells for each shard, in the order of ``SHARD_COLUMNS``."""
    return [
        (
            line.shard_id,
            line.owner or "-",
            line.explanation.situation.name,
            _bound("at most ", line) + _seconds(line.lag_seconds),
            rate(line.records_per_second),
            _bound("at least ", line) + _seconds(line.seconds_to_loss),
        )
        for line in lines
    ]


def _bound(words: str, line: ShardLine) -> str:
    return words if line.is_lag_bound else ""


def causes(lines: Sequence[ShardLine]) -> list[str]:
    """Return the cause for which each shard makes no progress; an empty text for a shard that makes progress."""
    return ["" if line.explanation.situation.moves else line.explanation.cause for line in lines]


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)
