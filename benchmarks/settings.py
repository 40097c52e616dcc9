"""The sizes of a run: enough for steady medians in a few minutes, or just enough to see that everything runs."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Settings:
    """Sizes of one run."""

    rounds: int
    """Measured rounds of each candidate: an odd number, so that the median is a measured figure."""
    is_warmed_up: bool
    """Whether each candidate runs once unmeasured before its rounds."""
    slow_rounds: int
    """Measured rounds of candidates whose round takes seconds."""
    pages: int
    """Pages read per round from the server alone."""
    written_rows: int
    """Rows written and read per round of each operation."""
    kept_rows: int
    """Rows, and as many records, whose memory is measured."""
    decoded_pages: int
    """Pages decoded per round: enough for clocks that count processor time in steps of a few milliseconds."""
    fast_times: int
    """The factor for fast candidates, which decode more pages: a round of a millisecond is below the clock's step."""
    java_warm_seconds: float
    """The time for which Java decodes each page unmeasured."""
    stream_records: int
    """Records in the stream that workers read; a multiple of all page and batch sizes."""
    worker_records: int
    """Records that whole workers read, as many that start and end weigh little; a multiple of the sizes as well."""
    frame_batches: tuple[int, ...]
    """Records per batch on the way into Parquet."""
    source_pages: int
    """Pages of 1,000 records that the streaming source reads from memory."""
    source_sinks: tuple[str, ...]
    """The sinks of the streaming source: one that stores nothing, and files."""
    lease_counts: tuple[int, ...]
    """Leases of a worker whose requests to the status table are counted."""
    lease_window_seconds: float
    """The time for which these requests are counted: a whole number of heartbeats."""
    first_minutes_seconds: float
    """The time for which the cost of idle shards is first measured."""
    silence_seconds: float
    """The time that shards are idle before their cost is measured again."""
    keyed_records: int
    """Records that are processed one by one and key by key."""
    polling_seconds: float
    """The time for which reads of idle shards are counted."""
    shard_counts: tuple[int, ...]
    """Numbers of shards, and of channels, for which the cost of each operation is measured."""
    loop_shards: int
    """Shards that one event loop reads."""
    loop_records: int
    """Records in these shards."""
    calls: int
    """Calls of one operation, whose median is taken."""
    death_rounds: int
    """Rounds that end a tunnel worker's process; each takes some seconds."""
    mirror_rows: int
    """Rows of the Delta table into which changes are merged."""
    folded_changes: int
    """Changes that are folded, with few columns and with a thousand; an even number."""
    commit_pages: int
    """Pages of 1,000 records in one commit."""
    commit_shards: tuple[int, ...]
    """Numbers of shards in one commit."""
    committed_rows: int
    """Rows in a commit whose rate is measured, those of all its shards together."""
    store_commits: int
    """Commits whose requests to an object store are counted: the commits between two summaries of Delta's log."""


FULL = Settings(
    rounds=7,
    is_warmed_up=True,
    slow_rounds=3,
    pages=100,
    written_rows=20_000,
    kept_rows=1_000_000,
    decoded_pages=3,
    fast_times=50,
    java_warm_seconds=30.0,
    stream_records=20_000,
    worker_records=100_000,
    frame_batches=(2_000, 10_000),
    source_pages=600,
    source_sinks=("noop", "parquet"),
    lease_counts=(100, 1_000),
    lease_window_seconds=30.0,
    first_minutes_seconds=120.0,
    silence_seconds=600.0,
    keyed_records=1_000,
    polling_seconds=180.0,
    shard_counts=(10, 100, 1_000),
    loop_shards=300,
    loop_records=60_000,
    calls=200,
    death_rounds=7,
    mirror_rows=1_000_000,
    folded_changes=2_000,
    commit_pages=20,
    commit_shards=(1, 10, 100, 400),
    committed_rows=20_000,
    store_commits=20,
)

QUICK = Settings(
    rounds=1,
    is_warmed_up=False,
    slow_rounds=1,
    pages=2,
    written_rows=1_000,
    kept_rows=20_000,
    decoded_pages=1,
    fast_times=5,
    java_warm_seconds=0.0,
    stream_records=2_000,
    worker_records=2_000,
    frame_batches=(1_000,),
    source_pages=6,
    source_sinks=("noop",),
    lease_counts=(10,),
    lease_window_seconds=6.0,
    first_minutes_seconds=8.0,
    silence_seconds=8.0,
    keyed_records=100,
    polling_seconds=3.0,
    shard_counts=(3, 10),
    loop_shards=12,
    loop_records=2_400,
    calls=3,
    death_rounds=1,
    mirror_rows=2_000,
    folded_changes=40,
    commit_pages=1,
    commit_shards=(1, 100),
    committed_rows=200,
    store_commits=2,
)
