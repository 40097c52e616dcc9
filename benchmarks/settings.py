"""The sizes of a run: large enough for steady medians in some minutes, or just enough to test that everything runs."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Settings:
    """The sizes of one run of all benchmarks."""

    rounds: int
    """The number of measured rounds of each candidate. It is odd, so that the median is a measured figure."""
    is_warmed_up: bool
    """Whether each candidate runs once unmeasured before its rounds."""
    slow_rounds: int
    """The number of measured rounds of candidates whose round takes seconds."""
    pages: int
    """The number of pages that each connection reads in a round, when only the server is measured."""
    written_rows: int
    """The number of rows that each operation writes or reads in a round."""
    kept_rows: int
    """The number of rows, and of records, whose memory is measured."""
    decoded_pages: int
    """The number of pages decoded in a round. They suffice for clocks with steps of a few milliseconds."""
    fast_times: int
    """The factor by which fast candidates decode more pages, because a short round is below the clock's step."""
    java_warm_seconds: float
    """The seconds for which Java decodes each page unmeasured."""
    stream_records: int
    """The number of records in the stream that workers read. It is a multiple of all page and batch sizes."""
    worker_records: int
    """The number of records that whole workers read: enough to make start and end unimportant. It is a multiple of all
    page sizes, too."""
    frame_batches: tuple[int, ...]
    """The numbers of records in a batch that is written to Parquet."""
    source_pages: int
    """The number of pages of 1,000 records that the streaming source reads from memory."""
    source_sinks: tuple[str, ...]
    """The sinks of the streaming source: one that stores nothing, and files."""
    lease_counts: tuple[int, ...]
    """The numbers of leases of workers whose requests to the status table are counted."""
    lease_window_seconds: float
    """The seconds for which these requests are counted: a whole number of heartbeats."""
    first_minutes_seconds: float
    """The seconds for which the cost of idle shards is measured the first time."""
    silence_seconds: float
    """The seconds for which shards are idle before their cost is measured the second time."""
    keyed_records: int
    """The number of records that are processed one by one, and by several keys at the same time."""
    polling_seconds: float
    """The seconds for which reads of idle shards are counted."""
    shard_counts: tuple[int, ...]
    """The numbers of shards, and of channels, for which the cost of each operation is measured."""
    loop_shards: int
    """The number of shards that one event loop reads."""
    loop_records: int
    """The number of records in all of these shards."""
    calls: int
    """The number of calls of one operation, whose median is the figure."""
    death_rounds: int
    """The number of rounds that end a tunnel worker's process. Each round takes some seconds."""
    mirror_rows: int
    """The number of rows in the Delta table into which changes are merged."""
    folded_changes: int
    """The number of changes that are folded, with few columns and with a thousand. It is even."""
    commit_pages: int
    """The number of pages of 1,000 records in one commit."""
    commit_shards: tuple[int, ...]
    """The numbers of shards in one commit."""
    committed_rows: int
    """The number of rows of all shards together in a commit whose rate is measured."""
    store_commits: int
    """The number of commits whose requests to an object store are counted, as between two summaries of Delta's log."""


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
    loop_records=240_000,
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
