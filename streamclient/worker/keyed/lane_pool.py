"""What the processors of all shards share: threads, the bound of what is pending, and which records failed."""

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
"""How often slow records are looked for within the time after which they are reported."""

MOST_FAILED = 10_000
"""Shards that are remembered as failed; a worker never holds as many. It may lose one before it has another processor
that could say so."""


class LanePool:
    """Shared by the processors of one factory. Thread-safe.

    The threads exist while there are processors: the last one that leaves ends them.
    """

    def __init__(self, settings: KeyedSettings) -> None:
        self.settings = settings
        self.pending = PendingBytes(settings.most_pending_bytes)
        self._birthplace = Birthplace()
        self._lock = threading.Lock()
        self._members: set[Callable[[], object]] = set()
        self._closing_time = threading.Event()
        self._pool: DaemonPool | None = None
        self._failed: dict[tuple[str, str], SequenceInfo] = {}

    def enter(self, look_around: Callable[[], object]) -> None:
        """One more processor works here; it is known by what is called now and then, to find what is slow or late.

        Raises:
            NoThreadError: the system refused a thread; the processor does not work here.
        """
        self._birthplace.require("the KeyedProcessorFactory")
        with self._lock:
            if self._pool is None:
                closing_time = threading.Event()
                start_thread(partial(self._watch, closing_time), "keyed-watch")
                self._pool, self._closing_time = DaemonPool("keyed", self.settings.threads), closing_time
            self._members.add(look_around)

    def leave(self, look_around: Callable[[], object]) -> None:
        """One processor is done, and nothing that it submitted is left."""
        with self._lock:
            self._members.discard(look_around)
            if not self._members and self._pool is not None:
                self._closing_time.set()
                self._pool.shutdown(wait=False)
                self._pool = None

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call in a thread of the pool; only between ``enter`` and ``leave``.

        Raises:
            NoThreadError: the pool has no thread, and the system refused one. Never in a thread of the pool.
        """
        pool = self._pool
        assert pool is not None, "a processor that has not entered submits work"
        pool.submit(call)

    def _watch(self, closing_time: threading.Event) -> None:
        while not closing_time.wait(self.settings.slow_record_warning_millis / LOOKS_PER_WARNING / 1_000):
            pool = self._pool
            if pool is not None and pool.is_short:
                pool.grow()
            for look_around in tuple(self._members):
                look_around()

    # --- which shards have to be careful ---------------------------------------------------------------------------

    def failed(self, shard: ShardInfo, at: SequenceInfo) -> None:
        """A record of this shard failed for good."""
        with self._lock:
            self._failed[shard.stream_id, shard.shard_id] = at
            if len(self._failed) > MOST_FAILED:
                del self._failed[next(iter(self._failed))]

    def failed_at(self, shard: ShardInfo) -> SequenceInfo | None:
        """The record of this shard that failed and was not passed since."""
        return self._failed.get((shard.stream_id, shard.shard_id))

    def passed(self, shard: ShardInfo) -> None:
        """The shard is past its failed record, or somebody else's business."""
        with self._lock:
            self._failed.pop((shard.stream_id, shard.shard_id), None)
