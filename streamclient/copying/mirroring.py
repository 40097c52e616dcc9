"""A mirror: a copy of a table in a destination, and the processes that keep the copy equal to the table."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from streamclient.base import checks
from streamclient.base.probes import Lifecycle, Probed
from streamclient.base.processes import OwnName
from streamclient.base.reasons import WorkerHealth
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.copy_trouble import health_of
from streamclient.copying.mirror_comparison import Comparison, compare, is_own
from streamclient.copying.mirror_copy import MirrorCopy
from streamclient.copying.mirror_listing import ShardWatch
from streamclient.copying.mirror_processors import MirrorProcessors
from streamclient.copying.mirror_shards import MergeLimits
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.copying.source_table import COPY, PIECE_MEBIBYTES, CopyPlan, SourceTable
from streamclient.destinations.commit import Destination, MergingDestination, last_of
from streamclient.destinations.delta.delta_destination import DeltaDestination
from streamclient.destinations.folding.fold import stored_keys
from streamclient.destinations.rows.change_rows import OPERATION, READ_AT
from streamclient.errors import ConfigurationError, StreamClientException, WorkerFailedError
from streamclient.model import InitialPosition
from streamclient.tablestore.stream_api import StreamSummary
from streamclient.worker import Worker
from streamclient.worker.lease.lease_manager import LeaseManager

if TYPE_CHECKING:
    from tablestore import OTSClient

HISTORY_SUFFIX = "_changes"
"""The suffix that turns a mirror's address or table name into the address or table name of its history."""


_AFTER_LOSS = (
    "the mirror cannot get these changes any more: begin a new mirror, with another destination and status table"
)


@checks.explains_names
class Mirror(Probed):
    """Copies a table into a destination, and then merges the table's changes into the copy.

    The mirror equals the table at a position in the stream, which the destination stores with the rows. Any number of
    processes may run the same mirror. They share the work by leases in the status table, and take over the work of a
    process that ends. Each change is merged exactly once, even if processes die.

    Args:
        client: a client of the SDK for the table, its stream and the status table.
        table: the table to mirror. It must have a stream.
        status_table: the table for the leases. It is created if it is missing. Each mirror needs its own status table.
        to: the destination of the mirrored rows, or the address of a Delta table for them.
        history: a second destination, which stores the changes themselves. Give it from the mirror's first start on.
        worker_name: the name of this process, unique among the processes of the mirror.
        client_config: settings of the worker that reads the stream.
        limits: the limits at which changes are merged.
        piece_mebibytes: the approximate size of the pieces in which the table is copied.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        client: OTSClient,
        table: str,
        status_table: str,
        to: MergingDestination | str,
        *,
        history: Destination | None = None,
        worker_name: str | None = None,
        client_config: ClientConfig | None = None,
        limits: MergeLimits | None = None,
        piece_mebibytes: int = PIECE_MEBIBYTES,
    ) -> None:
        checks.client.require("client", client)
        checks.identifier.require("table", table)
        checks.identifier.require("status_table", status_table)
        checks.optional(checks.identifier).require("worker_name", worker_name)
        checks.optional(checks.instance(ClientConfig)).require("client_config", client_config)
        checks.optional(checks.instance(MergeLimits)).require("limits", limits)
        checks.positive.require("piece_mebibytes", piece_mebibytes)
        self._stop = threading.Event()
        self._source = SourceTable(client, table, self._stop)
        self._destination = DeltaDestination(to) if isinstance(to, str) else to
        checks.implementation(MergingDestination).require("to", self._destination)
        checks.optional(checks.implementation(Destination)).require("history", history)
        if history is not None and history.application != self._destination.application:
            raise ConfigurationError(
                f"history has the application {history.application!r}, the mirror {self._destination.application!r}: "
                "both hold the same commits, so they need the same application"
            )
        if history is not None and _is_same_table(history, self._destination):
            raise ConfigurationError(_HISTORY_IS_MIRROR)
        self._history = history
        self._worker_name = worker_name or OwnName("mirror")
        self._config = client_config if client_config is not None else ClientConfig()
        self._limits = limits if limits is not None else MergeLimits()
        self._piece_mebibytes = piece_mebibytes
        # ``StreamConfig`` checks its settings here, before any call of the service.
        self._stream_config = StreamConfig(client=client, data_table_name=table, status_table_name=status_table)
        self._copy: MirrorCopy | None = None
        self._worker: Worker | None = None
        self._writer: MirrorWriter | None = None
        self._error: BaseException | None = None
        self._has_begun = self._has_ended = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Copy the rows that are not copied yet, then merge changes until ``shutdown``.

        If the service or the destination fails during the copy, this method raises the error, and the next run
        continues the copy. If one of them fails after the copy, this method waits until both work again.

        Raises:
            ConfigurationError: the table cannot be mirrored, or the destination is not a mirror of this table.
            StreamClientException: the copy took longer than the stream keeps changes, or the table's stream was
                replaced after the copy began.
            WorkerFailedError: the worker cannot read the stream any more.
            StreamClientError: the service or the destination failed while the table was copied.
        """
        self._has_begun = True
        try:
            self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._has_ended = True

    def _run(self) -> None:
        rule = self._source.rule()
        stream = self._source.stream()
        destination = self._destination
        destination.key_by(stored_keys(rule))
        destination.probe()
        self._require_new_or_own(stream)
        if self._history is not None:
            self._history.probe()
            self._require_own_history(self._history)
        self._copy = MirrorCopy(self._source, destination, rule, self._stop, self._piece_mebibytes, self._history)
        self._copy.prepare()
        self._require_whole_history(stream, self._copy.plan)
        self._copy.begin_history()
        self._copy.run(sum(str(self._worker_name).encode()))
        if self._stop.is_set():
            return
        self._source.stream_of(self._copy.plan)  # raises if the stream was replaced during the long copy
        watch = ShardWatch(self._source, destination, self._copy.plan)
        watch.look()
        writer = self._writer = MirrorWriter(self._source, destination, rule, self._history, self._limits, watch)
        writer.start()
        try:
            self._follow(writer, InitialPosition.at(self._copy.plan.start_micros))
        finally:
            writer.close()

    def _follow(self, writer: MirrorWriter, start: InitialPosition) -> None:
        config = evolve(self._stream_config, initial_position=start)
        worker = Worker(str(self._worker_name), self._config, config, MirrorProcessors(writer))
        with self._lock:
            self._worker = worker
            if self._stop.is_set():
                return
        try:
            worker.run()
        except WorkerFailedError:
            raise
        except StreamClientException:
            if not self._stop.is_set():
                raise  # if `_stop` is set, `shutdown` was called just before `worker.run`

    def _require_new_or_own(self, stream: StreamSummary) -> None:
        columns = self._destination.columns()
        if columns is not None and OPERATION in columns.names:
            raise ConfigurationError(
                "the destination is a table of changes: name another table for the rows, and use `history` for changes"
            )
        if self._destination.last_commits([COPY])[COPY] is not None:
            return
        # A mirror that was killed at its start may have left a table without commits and rows.
        if columns is not None and len(columns) > 0 and _is_used(self._destination):
            raise ConfigurationError(
                f"the destination has a table already, but no mirror of application {self._destination.application!r}: "
                "name another destination, or the application that made the table"
            )
        self._require_unmerged(stream)

    def _require_unmerged(self, stream: StreamSummary) -> None:
        """Refuse to begin a new mirror if leases in the status table show that an earlier mirror has merged changes.

        The earlier mirror may still exist, in a destination that cannot be reached now.
        """
        client, status_table = self._stream_config.client, self._stream_config.status_table_name
        if status_table not in client.list_table():
            return
        leases = LeaseManager(client, status_table, stream.stream_id, self._config).list_leases()
        if any(lease.progress is not None and lease.progress.records for lease in leases):
            raise StreamClientException(
                f"the destination has nothing of this mirror, but the leases in {status_table!r} say that changes were "
                "merged: the mirror was moved or removed, or cannot be reached; bring it back, or begin a new mirror, "
                "with another status table"
            )

    def _require_own_history(self, history: Destination) -> None:
        """Refuse a history that is not empty and does not store the plan of this mirror's copy.

        The first commit of a history stores the plan of the copy (``CopyPlan``): the start of the copy, and the keys
        that divide the table into pieces.
        """
        plan = history.last_commits([COPY])[COPY]
        if plan is None and not _is_used(history):
            return
        # Another process may have begun the mirror and its history since ``plan`` was read. So read it again.
        plan = plan or history.last_commits([COPY])[COPY]
        last = self._destination.last_commits([COPY])[COPY]
        if plan is None or last is None or plan.digest != last.digest:
            raise ConfigurationError(
                "history has a table already, but not the changes of this mirror: name another table, because each "
                "mirror needs a history of its own from its first start on"
            )

    def _require_whole_history(self, stream: StreamSummary, plan: CopyPlan) -> None:
        """Refuse a history that lacks a commit of the mirror."""
        if self._history is None:
            return
        columns = self._history.columns()
        if columns is not None and READ_AT in columns.names:
            raise ConfigurationError(_HISTORY_IS_MIRROR)
        shards = [shard.shard_id for shard in self._source.api.describe_stream(stream.stream_id).shards]
        names = [*plan.pieces, *shards]
        lasts, remembered = self._destination.last_commits(names), self._history.last_commits(names)
        for name, last in lasts.items():
            commit = remembered[name]
            if last is not None and (commit is None or commit.number < last.number):
                raise ConfigurationError(
                    f"history lacks commits of {name} that the mirror has: a history must be kept from the first start "
                    "of a mirror on, without a gap; begin a new mirror with a history, or leave the history out"
                )

    def shutdown(self, wait: bool = True) -> None:
        """End the run: merge waiting changes, and hand the leases over to other processes.

        The next run continues from the last merged change. Any thread may call this method.
        """
        with self._lock:
            self._stop.set()
            worker = self._worker
        if worker is not None:
            worker.shutdown(wait)

    @property
    def history(self) -> Destination | None:
        """The destination that stores the changes; ``None`` if no history is kept."""
        return self._history

    @property
    def is_copied(self) -> bool:
        """Whether all rows are copied, and this process has begun to follow the changes."""
        return self._worker is not None

    @property
    def copied_rows(self) -> int:
        """The number of rows that this mirror object has copied."""
        return 0 if self._copy is None else self._copy.rows

    @property
    def work_health(self) -> WorkerHealth:
        """Whether this process of the mirror copies rows, or merges the changes of all shards that it has.

        The mirror is unhealthy after the run has failed, while calls of the service fail, and if a shard has lost
        changes to retention. After such a loss, only a new mirror can be equal to the table. The mirror is also
        unhealthy if the changes of a shard could not be merged for longer than
        ``ClientConfig.max_duration_before_last_successful_renew_or_take_lease``. The reason names the shard, the time
        and the error.

        Any thread may read this property. ``health`` has the same value while the mirror runs.
        """
        if self._error is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {self._error}")
        if self._worker is None:
            return WorkerHealth(is_healthy=True)
        statuses = self._worker.shard_statuses()
        limit_seconds = self._config.max_duration_before_last_successful_renew_or_take_lease / 1_000
        loss = "" if self._writer is None else self._writer.loss
        unmerged = self._unmerged_because(statuses, limit_seconds)
        return health_of(self._worker.work_health, statuses.values(), unmerged, loss, remedy=_AFTER_LOSS)

    @property
    def liveness(self) -> WorkerHealth:
        """Whether the worker's owner thread makes progress; see ``Worker.liveness``. Usable from any thread."""
        worker = self._worker
        return WorkerHealth(is_healthy=True) if worker is None else worker.liveness

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(
            has_begun=self._has_begun,
            is_stopping=self._stop.is_set(),
            has_ended=self._has_ended,
            has_failed=isinstance(self._error, Exception),  # a KeyboardInterrupt does not count as a failure
        )

    @property
    def trouble(self) -> str:
        """The reason why changes cannot be merged at the moment; empty while merges work.

        If the failures last, ``health`` reports them, too. Any thread may read this property.

        Raises:
            StreamClientException: the worker did not answer.
        """
        return "" if self._worker is None else self._unmerged_because(self._worker.shard_statuses(), 0.0)

    def _unmerged_because(self, shard_ids: Iterable[str], limit_seconds: float) -> str:
        writer = self._writer
        return "" if writer is None else writer.unmerged.trouble(shard_ids, writer.clock(), limit_seconds)

    @property
    def lag_seconds(self) -> float | None:
        """The age, in seconds, of the oldest change in this process's shards that is perhaps not merged yet.

        The value is 0.0 if all changes are merged, and ``None`` while the age is unknown. Usable from any thread.

        Raises:
            StreamClientException: the worker did not answer.
        """
        if self._worker is None or self._writer is None:
            return None
        statuses, unmerged, now = self._worker.shard_statuses(), self._writer.unmerged, now_micros()
        # The worker measures the lag after the position that it has read. Changes that wait to be merged are older.
        lags = [(shard.lag_seconds, unmerged.lag_seconds(shard_id, now)) for shard_id, shard in statuses.items()]
        return max((lag for both in lags for lag in both if lag is not None), default=None)

    @property
    def worker(self) -> Worker | None:
        """The worker that reads the stream; ``None`` until the table is copied. Use it to read statuses only."""
        return self._worker

    def position(self) -> Mapping[str, str]:
        """Return for each shard the position up to which the mirror has merged changes. The keys are shard ids.

        During the copy, and until all changes since the start of the copy are merged, rows of the mirror may be newer
        than this position. Any thread may call this method.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
        """
        handle = self._destination.another()
        try:
            lasts = last_of(handle.log(), handle.application)
        finally:
            handle.close()
        if COPY in lasts:
            self._source.require_table_of(CopyPlan.from_text(lasts[COPY].end))
        return {shard: last.end for shard, last in lasts.items() if not is_own(shard)}

    def verify(self) -> Comparison:
        """Compare the table with the mirror, row by row, at the mirror's position. Any thread may call this method.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
            StreamClientException: the table is not copied completely yet, or its stream was replaced after the copy,
                or its stream no longer has all changes after the mirror's position.
        """
        rule = self._source.rule()
        handle = self._destination.another()
        try:
            handle.key_by(stored_keys(rule))
            return compare(self._source, handle)
        finally:
            handle.close()


_HISTORY_IS_MIRROR = "history and mirror are the same table: the changes need a table of their own"


def _is_used(destination: Destination) -> bool:
    is_committed = any(entry.commits or entry.damage for entry in destination.log())
    return is_committed or any(table.num_rows for table in destination.rows())


def _is_same_table(history: Destination, mirror: Destination) -> bool:
    """Return whether both destinations are the same table, as far as their settings show."""
    if isinstance(history, DeltaDestination) and isinstance(mirror, DeltaDestination):
        left, right = (
            (at.bucket, os.path.realpath(at.path) if at.scheme == "file" else at.path)
            for at in (history.location, mirror.location)
        )
        return left == right
    return history is mirror


@checks.explains_names
def mirror(
    client: OTSClient,
    table: str,
    status_table: str,
    to: MergingDestination | str,
    *,
    history: Destination | None = None,
    worker_name: str | None = None,
    client_config: ClientConfig | None = None,
    limits: MergeLimits | None = None,
    piece_mebibytes: int = PIECE_MEBIBYTES,
) -> None:
    """Run a ``Mirror`` in this thread until an exception ends it, such as ``KeyboardInterrupt``.

    ``Mirror`` and ``Mirror.run`` describe the arguments and the errors.
    """
    running = Mirror(
        client,
        table,
        status_table,
        to,
        history=history,
        worker_name=worker_name,
        client_config=client_config,
        limits=limits,
        piece_mebibytes=piece_mebibytes,
    )
    try:
        running.run()
    finally:
        running.shutdown()
