"""How much is measured: enough for steady medians in a few minutes, or just enough to see that everything runs."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Settings:
    """Sizes of one run."""

    rounds: int
    """Measured rounds of each candidate; an odd number, so that the median is a measured one."""
    is_warmed_up: bool
    """Whether each candidate runs once unmeasured before its rounds."""
    slow_rounds: int
    """The same where one round takes seconds."""
    pages: int
    """Pages read per round from the server alone."""
    decoded_pages: int
    """Pages decoded per round; enough for clocks that count processor time in steps of some milliseconds."""
    stream_records: int
    """Records in the stream that workers read; a multiple of all page and batch sizes."""
    frame_batches: tuple[int, ...]
    """Records per batch on the way into Parquet."""
    lease_counts: tuple[int, ...]
    lease_window_seconds: float
    """How long requests to the status table are counted: a whole number of heartbeats."""
    keyed_records: int
    """Records that are processed one by one and key by key."""
    polling_seconds: float
    """How long reads of idle shards are counted."""
    shard_counts: tuple[int, ...]
    """Shards and channels of which the cost of each operation is measured."""
    calls: int
    """Calls of one operation of which the median is taken."""
    death_rounds: int
    """How often a tunnel worker's process is ended; each time takes some seconds."""


FULL = Settings(
    rounds=7,
    is_warmed_up=True,
    slow_rounds=3,
    pages=100,
    decoded_pages=3,
    stream_records=20_000,
    frame_batches=(2_000, 10_000),
    lease_counts=(100, 1_000),
    lease_window_seconds=30.0,
    keyed_records=1_000,
    polling_seconds=180.0,
    shard_counts=(10, 100, 1_000),
    calls=200,
    death_rounds=7,
)

QUICK = Settings(
    rounds=1,
    is_warmed_up=False,
    slow_rounds=1,
    pages=2,
    decoded_pages=1,
    stream_records=2_000,
    frame_batches=(1_000,),
    lease_counts=(10,),
    lease_window_seconds=6.0,
    keyed_records=100,
    polling_seconds=3.0,
    shard_counts=(3, 10),
    calls=3,
    death_rounds=1,
)
