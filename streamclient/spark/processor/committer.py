"""The thread that commits the batches of all shards of a worker, and the memory that these shards share.

There is one thread, because one job with many small shards is much cheaper than many jobs, and because one thread keeps
the batches of each shard in order. It runs while there are processors, and ends by itself after the last one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import counted
from streamclient.errors import FencedException, StreamClientException
from streamclient.records import SequenceInfo
from streamclient.spark.processor.batch import Outcome, Piece
from streamclient.spark.processor.buffer import BufferedPage
from streamclient.spark.processor.jobs import CancellableJobs
from streamclient.spark.processor.shard_share import MOST_SHARDS, ShardShare
from streamclient.spark.processor.spark_config import SparkConfig

_log = logs.logger(__name__)

_COMPANION_AGE = 0.5
"""The share of ``max_age_millis`` after which a shard joins a job that runs anyway. The shard would be due during or
soon after that job, and a file of half the size is cheaper than another job."""

_PAGES_MAX = 4_000
"""The largest number of reads of one shard that may wait, however small they are. Twice as many, waiting and in flight,
stay well below the positions that a worker remembers as permitted checkpoints (10,000)."""

CLOSED = "the SparkRecordProcessorFactory was closed: stop its workers first, and make another one for other workers"

_LOOK_SECONDS = 0.25
"""The interval, in seconds, at which a waiting thread checks for lost leases, its own and those of the present commit.
No other thread may notice for minutes, because all of the worker's threads for user code may be waiting here."""


class Committer:
    """Collects the pages of many shards, and commits the batches that are due. Thread-safe."""

    def __init__(
        self,
        config: SparkConfig,
        commit: Callable[[Sequence[Piece], CancellableJobs], Outcome],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a committer. ``commit`` runs its jobs as ``CancellableJobs``, cancelled when all its shards are lost."""
        self._config = config
        self._commit = commit
        self._clock = clock
        self._birthplace = Birthplace()
        self._changed = threading.Condition()
        self._shares: list[ShardShare] = []
        self._thread: threading.Thread | None = None
        self._under_way: Sequence[ShardShare] = ()
        """Shards of the batch that is being committed."""
        self._jobs = CancellableJobs()
        """The Spark jobs of that batch."""
        self._buffered_bytes = 0
        self._waiting_for_room = 0
        self._is_closed = False
        self._suspects: dict[str, SequenceInfo] = {}
        """The shards whose last batch failed, each with the end of that batch. Until that position is passed, each page
        is committed within the call that brings it. So the call itself meets a failure, and the worker counts it; a
        failure of a processor without records would not be counted."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of memory of the records that wait or are being written."""
        with self._changed:
            return self._buffered_bytes

    def register(self, share: ShardShare) -> None:
        """Add a shard; start the thread unless it runs."""
        self._birthplace.require("the SparkRecordProcessorFactory")
        with self._changed:
            self._refuse_if_closed()
            if self._thread is None:
                self._thread = start_thread(self._run, "streamclient-spark-committer")
            self._shares.append(share)

    def offer(self, share: ShardShare, page: BufferedPage) -> None:
        """Add a page, once there is memory for it; raise the shard's failure as soon as there is one.

        After a failure of the shard, each call returns only when its page is committed, until the failed position is
        passed.
        """
        with self._changed:
            self._wait_for_room(share, page)
            share.raise_error()
            self._refuse_if_closed()
            if share.is_lost:
                return
            share.buffer.add(page)
            self._buffered_bytes += page.size_bytes
            self._changed.notify_all()
            if share.shard_info.shard_id in self._suspects:
                self._await_commit(share, "its batch")
                share.raise_error()

    def flush(self, share: ShardShare) -> None:
        """Commit all waiting records of the shard; return once they are committed, or raise the shard's failure.

        The call returns at once if the lease is lost meanwhile.
        """
        with self._changed:
            try:
                self._await_commit(share, "its last batch")
            except StreamClientException:
                self._abandon(share)
                raise

    def abandon(self, share: ShardShare) -> None:
        """Drop the waiting records of a shard whose lease is lost.

        A batch that is being committed is cancelled, unless it has other shards whose leases are held. Then this
        shard's part is not published, if the sink asks, and not checkpointed.
        """
        with self._changed:
            self._abandon(share)
        self._cancel_in_vain()

    def leave(self, share: ShardShare) -> None:
        """Remove a shard."""
        with self._changed:
            if share in self._shares:
                self._shares.remove(share)
            self._buffered_bytes -= share.buffer.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Drop waiting records, let the present batch finish, and refuse all further calls."""
        self._birthplace.require("the SparkRecordProcessorFactory")
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._config.max_wait_millis / 1000)

    def _await_commit(self, share: ShardShare, what: str) -> None:
        share.is_flushing = True
        self._changed.notify_all()
        try:
            self._wait_for(lambda: share.is_settled or share.is_lost or self._is_closed, share, what)
        finally:
            share.is_flushing = False
        if not share.is_ended and not share.is_settled:
            self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StreamClientException(CLOSED)

    def _has_room(self, share: ShardShare, page: BufferedPage) -> bool:
        if share.buffer.is_incomplete:
            return True  # nothing becomes free before the batch is complete; it had room before
        if len(share.buffer.pages) >= _PAGES_MAX:
            return False
        # The waiting part of a prepared batch becomes free only after further calls, which may need all threads of an
        # executor while these wait here.
        taken = self._buffered_bytes - sum(
            waiting.buffer.size_bytes for waiting in self._shares if waiting.buffer.is_incomplete
        )
        # A page larger than all room goes alone; refusing it would stop the shard for good.
        return taken == 0 or taken + page.size_bytes <= self._config.max_buffered_bytes

    def _wait_for_room(self, share: ShardShare, page: BufferedPage) -> None:
        # While a thread waits, all buffered records are due: only a commit makes room.
        self._waiting_for_room += 1
        self._changed.notify_all()
        try:
            self._wait_for(lambda: share.is_ended or self._is_closed or self._has_room(share, page), share, "room")
        finally:
            self._waiting_for_room -= 1

    def _wait_for(self, ready: Callable[[], bool], share: ShardShare, what: str) -> None:
        deadline = time.monotonic() + self._config.max_wait_millis / 1000
        while not self._changed.wait_for(ready, max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
            if share.is_in_vain:
                self._abandon(share)
            elif time.monotonic() >= deadline:
                raise StreamClientException(
                    f"shard {share.shard_info.shard_id} waited {self._config.max_wait_millis} ms for {what} "
                    "(SparkConfig.max_wait_millis): the sink does not keep up, or hangs"
                )
            self._changed.release()
            try:
                self._cancel_in_vain()
            finally:
                self._changed.acquire()

    def _abandon(self, share: ShardShare) -> None:
        share.is_lost = True
        self._buffered_bytes -= share.buffer.clear()
        self._changed.notify_all()

    def _cancel_in_vain(self) -> None:
        """Cancel a commit whose shards are all lost. Called without the lock, since it calls Spark."""
        with self._changed:
            # The jobs of this batch: when they are cancelled, another batch may be under way.
            jobs, is_in_vain = self._jobs, bool(self._under_way) and all(share.is_in_vain for share in self._under_way)
        if is_in_vain:
            jobs.cancel()

    # The committing thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                pieces = self._await_due()
                if pieces is None:
                    self._thread = None
                    return
                self._under_way = [piece.share for piece in pieces]
                jobs = self._jobs = CancellableJobs()
            outcome = self._commit_safely(pieces, jobs)
            with self._changed:
                self._under_way = ()
                for piece in pieces:
                    self._settle(piece, outcome)
                self._changed.notify_all()
            # Without the lock, since this calls the worker. A shard without new records would not learn it otherwise.
            for share in (piece.share for piece in pieces if piece.share.error is not None):
                share.marker.mark_for_process_restart()

    def _await_due(self) -> list[Piece] | None:
        while self._shares and not self._is_closed:
            now = self._clock()
            pieces = self._take_due(now)
            if pieces:
                return pieces
            dates = [at for at in map(self._due_at, self._shares) if at is not None]
            self._changed.wait(max(0.0, min(dates) - now) if dates else None)
        return None

    def _due_at(self, share: ShardShare) -> float | None:
        buffer = share.buffer
        if share.is_ended or share.in_flight is not None or not buffer.pages or buffer.is_incomplete:
            return None
        if share.is_flushing or self._waiting_for_room:
            return buffer.pages[0].arrived_at
        return buffer.due_at(self._config)

    def _take_due(self, now: float) -> list[Piece]:
        dates = [(at, share) for share in self._shares if (at := self._due_at(share)) is not None]
        first_at, first = min(dates, key=lambda date: date[0], default=(now + 1.0, None))
        if first is None or first_at > now:
            return []
        if first.shard_info.shard_id in self._suspects:
            return [self._cut(first)]
        soon = now + self._config.max_age_millis / 1000 * _COMPANION_AGE
        return [
            self._cut(share) for at, share in dates if at <= soon and share.shard_info.shard_id not in self._suspects
        ]

    def _cut(self, share: ShardShare) -> Piece:
        share.in_flight = share.buffer.cut(self._config)
        return Piece(share, share.in_flight)

    def _commit_safely(self, pieces: Sequence[Piece], jobs: CancellableJobs) -> Outcome:
        try:
            return self._commit(pieces, jobs)
        except Exception as error:
            # Unexpected, as commit returns its failures. Without this, the thread and all shards would hang.
            _log.exception("committing a batch of %s failed", counted(len(pieces), "shard"))
            return {piece.share: StreamClientException(f"committing failed: {error!r}") for piece in pieces}

    def _settle(self, piece: Piece, outcome: Outcome) -> None:
        share, shard_id = piece.share, piece.share.shard_info.shard_id
        share.in_flight = None
        self._buffered_bytes -= piece.cut.size_bytes
        if share.is_in_vain:
            self._abandon(share)  # its outcome concerns the next owner only
            return
        error, until = outcome.get(share), self._suspects.get(shard_id)
        last = piece.cut.last
        if error is None:
            if until is not None and last is not None and last >= until:
                del self._suspects[shard_id]
            return
        share.error = error
        self._buffered_bytes -= share.buffer.clear()
        # Its next batches go alone, so that a poison record of one shard does not stop the others repeatedly. A fenced
        # shard has no next batch here.
        is_fenced = isinstance(error, FencedException)
        if last is not None and not is_fenced and (until is not None or len(self._suspects) < MOST_SHARDS):
            self._suspects[shard_id] = last if until is None else max(until, last)
