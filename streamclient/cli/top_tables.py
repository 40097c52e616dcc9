"""The tables of ``streamclient top``: columns, and their cells."""

from __future__ import annotations

from streamclient.base.times import duration
from streamclient.cli.terminal.layout import Column
from streamclient.operate.facts import Process
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, ShardLine, rate

WELL = "well"
"""The health of a worker that has no trouble."""

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


def worker_rows(view: Overview) -> list[tuple[str, ...]]:
    """Return the cells of each worker, in the order of ``WORKER_COLUMNS``."""
    return [
        (
            worker["worker"],
            _worker_state(worker),
            str(worker["leases"]),
            str(worker["unfinished"]),
            rate(worker["records_per_second"]),
            _health(worker),
        )
        for worker in view.workers
    ]


def _worker_state(worker: Document) -> str:
    session = worker["session"]
    if session is None or worker["life"] != "living":
        return str(worker["life"])
    return str(session["process"] if _stands_still(session) else session["state"])


def _stands_still(session: Document) -> bool:
    """Return whether this machine knows that the worker's process gets no processor time, or is gone."""
    return session["process"] in (Process.STOPPED.value, Process.GONE.value)


def _health(worker: Document) -> str:
    session = worker["session"]
    if session is None:
        return "no session row"
    if worker["life"] != "living" or _stands_still(session):
        return "unknown"  # what it said last may be over, or worse
    return session["trouble"] or WELL


def shard_rows(view: Overview) -> list[tuple[str, ...]]:
    """Return the cells of each shard, in the order of ``SHARD_COLUMNS``."""
    return [
        (
            line.shard_id,
            line.owner or "-",
            line.explanation.situation.name,
            _bound("at most ", line) + _seconds(line.lag_seconds),
            rate(line.records_per_second),
            _bound("at least ", line) + _seconds(line.seconds_to_loss),
        )
        for line in view.shards
    ]


def _bound(words: str, line: ShardLine) -> str:
    return words if line.is_lag_bound else ""


def causes(view: Overview) -> list[str]:
    """Return why each shard does not move; empty for one that moves."""
    return ["" if line.explanation.situation.moves else line.explanation.cause for line in view.shards]


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)
