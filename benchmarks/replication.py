"""Rows per second of a replication: a table copied into another one of the same server, from its start to its end."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from streamclient.replicate.run import Replication
from streamclient.replicate.settings import Endpoint, SourceKind
from streamclient.replicate.settings import Settings as ReplicationSettings
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE

SHARDS = (1, 4)

POLL_SECONDS = 0.05
"""Between two looks at whether all is copied: what it adds to a round of seconds is lost in the noise."""

CLOCK_STEP_SECONDS = 1.1
"""An end time is a whole second that must be past, or the run would wait for it."""

_numbers = itertools.count()


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Full data and what was written meanwhile, by a tunnel, from one channel and from several."""
    rounds: dict[str, Round] = {}
    for shards in SHARDS:
        table = stage.table(shards, settings.stream_records)
        rounds[f"through a tunnel, {shards} channel{'s' * (shards > 1)}"] = partial(_rate, stage, table)
    threading.Event().wait(CLOCK_STEP_SECONDS)
    return compare(
        "replication", "rows/s", interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    )


def _rate(stage: Stage, table: FilledTable) -> float:
    """From the making of the destination to the end of the run, which must have copied each row."""
    number = next(_numbers)
    run = Replication(
        ReplicationSettings(
            reader=_side(stage, table.name),
            writer=_side(stage, f"{table.name}_copy_{number}"),
            source=SourceKind.TUNNEL,
            tunnel_name=f"copy_{number}",
            end_time_micros=int(time.time() - 1) * 1_000_000,
        ),
        say=lambda _: None,
        show=lambda _: None,
        poll_seconds=POLL_SECONDS,
    )
    ended = []
    seconds = seconds_of(lambda: ended.append(run.run()))
    if not ended[0].is_complete or ended[0].rows < table.records:
        raise RuntimeError(f"the replication of {table.records} rows ended with {ended[0]}")
    return table.records / seconds


def _side(stage: Stage, table: str) -> Endpoint:
    return Endpoint(stage.endpoint, DEFAULT_INSTANCE, table, DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET)
