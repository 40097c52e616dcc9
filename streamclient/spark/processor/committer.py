"""The thread that commits the batches of all shards of a worker, and the memory limit that these shards share.

One Spark job for many small shards is much cheaper than one job for each shard, so a single thread commits all shards.
It also keeps the batches of each shard in order. The thread starts with the first processor, and ends after the last.
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
"""The share of ``max_age_millis`` that a shard's records must have waited to join the commit of another shard. Records
that join early make smaller files. But after this time their own commit would be due soon, and the further Spark job
for it costs more than smaller files."""

_PAGES_MAX = 4_000
"""The largest number of pages of one shard that may wait, however small they are. A batch that is being committed may
have as many pages again. A worker accepts a checkpoint only at one of the last 10,000 positions that it has handed out
for the shard. The limit keeps both numbers together below 10,000."""

CLOSED = "the SparkRecordProcessorFactory was closed: stop its workers first, and make another one for other workers"

_LOOK_SECONDS = 0.25
"""The interval, in seconds, at which a thread that waits for the committer checks whether leases are lost: the lease of
its own shard, and the leases of the shards in the running commit. The waiting threads must check, because all threads
for user code may wait for minutes, and no other thread would check."""


class Committer:
    """Collects the pages of many shards, and commits their batches when these are due. Thread-safe."""

    def __init__(
        self,
        config: SparkConfig,
        commit: Callable[[Sequence[Piece], CancellableJobs], Outcome],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a committer that commits each batch by ``commit``.

        ``commit`` must run its Spark jobs by the given ``CancellableJobs``. The committer cancels these jobs when the
        leases of all shards of the batch are lost.
        """
        self._config = config
        self._commit = commit
        self._clock = clock
        self._birthplace = Birthplace()
        self._changed = threading.Condition()
        self._shares: list[ShardShare] = []
        self._thread: threading.Thread | None = None
        self._under_way: Sequence[ShardShare] = ()
        """The shards of the batch that is being committed."""
        self._jobs = CancellableJobs()
        """The Spark jobs of the batch that is being committed."""
        self._buffered_bytes = 0
        self._waiting_for_room = 0
        self._is_closed = False
        self._suspects: dict[str, SequenceInfo] = {}
        """The shards whose last batch failed, each with the sequence of the last record in that batch.

        Until a commit reaches this sequence, each ``process_records`` of the shard waits until its records are
        committed. If their commit fails, the same call raises the error, and the worker counts the failure. Without
        this wait, a later call without records might raise the error, and the worker would not count the failure."""

    @property
    def buffered_bytes(self) -> int:
        """The memory of all records that wait or are being written, in bytes."""
        with self._changed:
            return self._buffered_bytes

    def register(self, share: ShardShare) -> None:
        """Add the shard that ``share`` describes; start the committing thread if it does not run."""
        self._birthplace.require("the SparkRecordProcessorFactory")
        with self._changed:
            self._refuse_if_closed()
            if self._thread is None:
                self._thread = start_thread(self._run, "streamclient-spark-committer")
            self._shares.append(share)

    def offer(self, share: ShardShare, page: BufferedPage) -> None:
        """Add ``page`` to the shard's buffer once there is memory for it; raise the error of a batch that has failed.

        If a batch of the shard's previous processor failed, wait until ``page`` is committed. This rule ends when all
        records of the failed batch are committed.
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
        """Wait until all waiting records of the shard are committed, or the commit has failed.

        If the shard's lease is lost meanwhile, the call returns immediately.
        """
        with self._changed:
            try:
                self._await_commit(share, "its last batch")
            except StreamClientException:
                self._abandon(share)
                raise

    def abandon(self, share: ShardShare) -> None:
        """Drop the waiting records of a shard whose lease is lost.

        If a batch is being committed and the leases of all its shards are lost, the committer cancels the batch.
        Otherwise the batch goes on, but this shard is not checkpointed, and ``BatchContext.lost_shards`` names it.
        """
        with self._changed:
            self._abandon(share)
        self._cancel_in_vain()

    def leave(self, share: ShardShare) -> None:
        """Remove the shard that ``share`` describes, and drop its waiting records."""
        with self._changed:
            if share in self._shares:
                self._shares.remove(share)
            self._buffered_bytes -= share.buffer.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Let the committing thread end, and wait until it has committed its current batch.

        The thread drops all records that are not in this batch. Further calls raise an error.
        """
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
            return True  # a prepared batch must be complete before it can be committed and its memory released
        if len(share.buffer.pages) >= _PAGES_MAX:
            return False
        # Leave out the memory of incomplete prepared batches. Their other pages come with further calls of
        # ``process_records``, and all threads for such calls may wait here for memory.
        taken = self._buffered_bytes - sum(
            waiting.buffer.size_bytes for waiting in self._shares if waiting.buffer.is_incomplete
        )
        # Accept a page larger than the limit when no other page waits. Otherwise its shard would never go on.
        return taken == 0 or taken + page.size_bytes <= self._config.max_buffered_bytes

    def _wait_for_room(self, share: ShardShare, page: BufferedPage) -> None:
        # While a thread waits for room, all buffered records are due, because only a commit makes room.
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
        """Cancel the running commit if the leases of all its shards are lost.

        Call this without holding the lock, because it calls Spark.
        """
        with self._changed:
            # Take the jobs while the lock is held, because another batch may begin before they are cancelled below.
            jobs, is_in_vain = self._jobs, bool(self._under_way) and all(share.is_in_vain for share in self._under_way)
        if is_in_vain:
            jobs.cancel()

    # The methods below run in the committing thread.

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
            # Call the worker without the lock. This call tells the worker of the error, even without further records.
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
            # An unexpected error, because `commit` returns its failures. Without this branch, the thread would end, and
            # all shards would hang.
            _log.exception("committing a batch of %s failed", counted(len(pieces), "shard"))
            return {piece.share: StreamClientException(f"committing failed: {error!r}") for piece in pieces}

    def _settle(self, piece: Piece, outcome: Outcome) -> None:
        share, shard_id = piece.share, piece.share.shard_info.shard_id
        share.in_flight = None
        self._buffered_bytes -= piece.cut.size_bytes
        if share.is_in_vain:
            self._abandon(share)  # the lease is lost, so only the shard's next owner needs the outcome
            return
        error, until = outcome.get(share), self._suspects.get(shard_id)
        last = piece.cut.last
        if error is None:
            if until is not None and last is not None and last >= until:
                del self._suspects[shard_id]
            return
        share.error = error
        self._buffered_bytes -= share.buffer.clear()
        # Commit the next batches of this shard alone, so that a poison record in them does not fail other shards. A
        # fenced shard has no next batch on this worker.
        is_fenced = isinstance(error, FencedException)
        if last is not None and not is_fenced and (until is not None or len(self._suspects) < MOST_SHARDS):
            self._suspects[shard_id] = last if until is None else max(until, last)
