"""The resources that the processors of all shards share: threads, a limit of pending bytes, and failed records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from streamclient.base.pools import DaemonPool, start_thread
from streamclient.base.processes import Birthplace
from streamclient.model import ShardInfo
from streamclient.records import SequenceInfo
from streamclient.worker.keyed.keyed_settings import KeyedSettings
from streamclient.worker.keyed.pending_records import PendingBytes

LOOKS_PER_WARNING = 4
"""The number of searches for slow records within the time after which a record counts as slow."""

MOST_FAILED = 10_000
"""The largest number of failed shards that are remembered, far more than a worker holds. The limit is needed because a
shard that this worker has lost may never be removed."""


class FailedShards:
    """The shards with a record that was given up. They finish each batch before the next batch begins. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[tuple[str, str], SequenceInfo] = {}

    def failed(self, shard: ShardInfo, at: SequenceInfo) -> None:
        """Note that the record of ``shard`` at the position ``at`` was given up."""
        with self._lock:
            self._failed[shard.stream_id, shard.shard_id] = at
            if len(self._failed) > MOST_FAILED:
                del self._failed[next(iter(self._failed))]

    def failed_at(self, shard: ShardInfo) -> SequenceInfo | None:
        """Return the position of the failed record that ``shard`` has not yet passed; otherwise ``None``."""
        return self._failed.get((shard.stream_id, shard.shard_id))

    def passed(self, shard: ShardInfo) -> None:
        """Note that ``shard`` has passed its failed record, or that another worker reads it."""
        with self._lock:
            self._failed.pop((shard.stream_id, shard.shard_id), None)


class LanePool(FailedShards):
    """The threads and limits that the processors of one factory share. Thread-safe.

    The threads exist as long as processors exist: the last processor that leaves ends the threads.
    """

    def __init__(self, settings: KeyedSettings) -> None:
        super().__init__()
        self.settings = settings
        self.pending: PendingBytes = PendingBytes(settings.most_pending_bytes)
        self._birthplace = Birthplace()
        self._members: set[Callable[[], object]] = set()
        self._closing_time = threading.Event()
        self._pool: DaemonPool | None = None

    def enter(self, look_around: Callable[[], object]) -> None:
        """Add a processor. The pool calls ``look_around`` regularly, to find slow records, and positions to store.

        Raises:
            NoThreadError: the system refused a thread; the processor was not added.
        """
        self._birthplace.require("the KeyedProcessorFactory")
        with self._lock:
            if self._pool is None:
                closing_time = threading.Event()
                start_thread(partial(self._watch, closing_time), "keyed-watch")
                self._pool, self._closing_time = DaemonPool("keyed", self.settings.threads), closing_time
            self._members.add(look_around)

    def leave(self, look_around: Callable[[], object]) -> None:
        """Remove a processor that has no work left. The last processor that leaves ends the threads."""
        with self._lock:
            self._members.discard(look_around)
            if not self._members and self._pool is not None:
                self._closing_time.set()
                self._pool.shutdown(wait=False)
                self._pool = None

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is a thread of the pool."""
        pool = self._pool
        return pool is not None and pool.is_inside

    def submit(self, call: Callable[[], None]) -> None:
        """Run ``call`` in a thread of the pool; only between ``enter`` and ``leave``.

        Raises:
            NoThreadError: the pool has no thread, and the system refused one. Never raised in a thread of the pool.
        """
        pool = self._pool
        assert pool is not None, "a processor must enter the pool before it submits work"
        pool.start(call)

    def _watch(self, closing_time: threading.Event) -> None:
        while not closing_time.wait(self.settings.slow_record_warning_millis / LOOKS_PER_WARNING / 1_000):
            pool = self._pool
            if pool is not None and pool.is_short:
                pool.grow()
            for look_around in tuple(self._members):
                look_around()
