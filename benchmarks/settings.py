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
    written_rows: int
    """Rows written and read per round of each operation."""
    kept_rows: int
    """Rows, and as many records, whose memory is measured."""
    decoded_pages: int
    """Pages decoded per round; enough for clocks that count processor time in steps of some milliseconds."""
    fast_times: int
    """How many times more of them for what is fast: rounds of a millisecond would be lost in the clock's steps."""
    java_warm_seconds: float
    """How long Java decodes each page unmeasured."""
    stream_records: int
    """Records in the stream that workers read; a multiple of all page and batch sizes."""
    worker_records: int
    """Records that whole workers read: enough for their start and end to weigh little; a multiple as well."""
    frame_batches: tuple[int, ...]
    """Records per batch on the way into Parquet."""
    source_pages: int
    """Pages of 1,000 records that the streaming source reads from memory."""
    source_sinks: tuple[str, ...]
    """Where it writes them: into nothing, into files."""
    lease_counts: tuple[int, ...]
    lease_window_seconds: float
    """How long requests to the status table are counted: a whole number of heartbeats."""
    first_minutes_seconds: float
    """How long what idle shards cost is measured at first."""
    silence_seconds: float
    """How long they have been idle when it is measured again."""
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
    mirror_rows: int
    """Rows of the Delta table that changes are merged into."""
    folded_changes: int
    """Changes that are folded, of few columns and of a thousand; an even number."""
    commit_pages: int
    """Pages of 1,000 records in one commit."""
    commit_shards: tuple[int, ...]
    """How many shards one commit has."""
    committed_rows: int
    """Rows of a commit whose rate is measured, over all of its shards."""
    store_commits: int
    """Commits whose requests to an object store are counted: as many as are between two summaries of Delta's log."""


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
    source_pages=900,
    source_sinks=("noop", "parquet"),
    lease_counts=(100, 1_000),
    lease_window_seconds=30.0,
    first_minutes_seconds=120.0,
    silence_seconds=600.0,
    keyed_records=1_000,
    polling_seconds=180.0,
    shard_counts=(10, 100, 1_000),
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
    source_pages=9,
    source_sinks=("noop",),
    lease_counts=(10,),
    lease_window_seconds=6.0,
    first_minutes_seconds=8.0,
    silence_seconds=8.0,
    keyed_records=100,
    polling_seconds=3.0,
    shard_counts=(3, 10),
    calls=3,
    death_rounds=1,
    mirror_rows=2_000,
    folded_changes=40,
    commit_pages=1,
    commit_shards=(1, 100),
    committed_rows=200,
    store_commits=2,
)
