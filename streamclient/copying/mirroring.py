"""A mirror: a table copied into a destination, then kept equal to it."""

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
"""The suffix that makes the history's address or name from the mirror's."""


@checks.explains_names
class Mirror(Probed):
    """Copies a table into a destination, and keeps it equal to the table at a position that it records.

    Any number of processes may run the same mirror. They share the work by leases in the status table, and take over
    the work of those that end. Each change is merged once, whichever process dies.

    Args:
        client: a client for the table, its stream and the status table.
        table: the table to mirror; it needs a stream.
        status_table: the table for the leases, which is created; each mirror needs its own.
        to: the mirror: a destination with a key, or the address of a Delta table.
        history: a second destination for the changes themselves, given from the first start on.
        worker_name: unique among the processes of the mirror.
        client_config: settings of the worker.
        limits: bounds at which changes are merged.
        piece_mebibytes: about the size of one piece of the copy.

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
                "both hold the same commits, so they need the same one"
            )
        if history is not None and _is_same_table(history, self._destination):
            raise ConfigurationError(_HISTORY_IS_MIRROR)
        self._history = history
        self._worker_name = worker_name or OwnName("mirror")
        self._config = client_config if client_config is not None else ClientConfig()
        self._limits = limits if limits is not None else MergeLimits()
        self._piece_mebibytes = piece_mebibytes
        # Checked here, before anything is called.
        self._stream_config = StreamConfig(client=client, data_table_name=table, status_table_name=status_table)
        self._copy: MirrorCopy | None = None
        self._worker: Worker | None = None
        self._writer: MirrorWriter | None = None
        self._error: BaseException | None = None
        self._has_begun = self._has_ended = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Copy the rows that are not copied, then merge changes, until ``shutdown``.

        While changes are followed, the run waits until trouble with service or destination is over. While the table is
        copied, such trouble ends the run, and the next run goes on.

        Raises:
            ConfigurationError: the table cannot be mirrored, or the destination is not a mirror of this table.
            StreamClientException: the copy took longer than the stream keeps changes, or the table has another stream
                than when it was copied.
            WorkerFailedError: the stream cannot be read any more.
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
        self._source.stream_of(self._copy.plan)  # again, as the copy takes long
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
                raise  # otherwise it was shut down just before it ran

    def _require_new_or_own(self, stream: StreamSummary) -> None:
        columns = self._destination.columns()
        if columns is not None and OPERATION in columns.names:
            raise ConfigurationError(
                "the destination is a table of changes: a mirror needs one of its own, and its changes go to `history`"
            )
        if self._destination.last_commits([COPY])[COPY] is not None:
            return
        # A mirror that was killed as it began leaves a table with neither commits nor rows.
        if columns is not None and len(columns) > 0 and _is_used(self._destination):
            raise ConfigurationError(
                f"the destination has a table already, but no mirror of application {self._destination.application!r}: "
                "name another one, or the application that made it"
            )
        self._require_unmerged(stream)

    def _require_unmerged(self, stream: StreamSummary) -> None:
        """Refuse to begin anew if leases show merged changes: the mirror may only be out of sight for a moment."""
        client, status_table = self._stream_config.client, self._stream_config.status_table_name
        if status_table not in client.list_table():
            return
        leases = LeaseManager(client, status_table, stream.stream_id, self._config).list_leases()
        if any(lease.progress is not None and lease.progress.records for lease in leases):
            raise StreamClientException(
                f"the destination has nothing of this mirror, but the leases in {status_table!r} say that changes were "
                "merged: the mirror was moved or removed, or is out of sight; bring it back, or begin a new mirror, "
                "with another status table"
            )

    def _require_own_history(self, history: Destination) -> None:
        """Refuse a history that is neither new nor begins with the plan of this mirror."""
        plan = history.last_commits([COPY])[COPY]
        if plan is None and not _is_used(history):
            return
        # Another process may have begun both meanwhile, the mirror first.
        plan = plan or history.last_commits([COPY])[COPY]
        last = self._destination.last_commits([COPY])[COPY]
        if plan is None or last is None or plan.digest != last.digest:
            raise ConfigurationError(
                "history has a table already, but not the changes of this mirror: name another one, as each mirror has "
                "a history of its own, from its first start on"
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
                    f"history lacks what the mirror has of {name}: it is kept from the first start of a mirror on, "
                    "without a gap; begin a new mirror with it, or leave it out"
                )

    def shutdown(self, wait: bool = True) -> None:
        """End the run: merge waiting changes, and hand the leases over.

        May be called from any thread. The next run goes on from there.
        """
        with self._lock:
            self._stop.set()
            worker = self._worker
        if worker is not None:
            worker.shutdown(wait)

    @property
    def history(self) -> Destination | None:
        """The second destination, which holds the changes."""
        return self._history

    @property
    def is_copied(self) -> bool:
        """Whether every row is copied, and this process has begun to merge changes."""
        return self._worker is not None

    @property
    def copied_rows(self) -> int:
        """Rows that this process has copied."""
        return 0 if self._copy is None else self._copy.rows

    @property
    def work_health(self) -> WorkerHealth:
        """The health of the mirror: whether it copies, or merges the changes of every shard that this process has.

        May be read from any thread; ``health`` says the same while the mirror runs. The mirror is unhealthy after the
        run has failed, while calls to the service fail, and while a shard stands still because its changes were lost to
        retention. Then only a new mirror can be equal to the table. The mirror is also unhealthy when the changes of a
        shard could not be merged for longer than the limit for all calls,
        ``ClientConfig.max_duration_before_last_successful_renew_or_take_lease``: shorter trouble is waited out. The
        reason names the shard, the time and the error.
        """
        if self._error is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {self._error}")
        if self._worker is None:
            return WorkerHealth(is_healthy=True)
        statuses = self._worker.shard_statuses()
        limit_seconds = self._config.max_duration_before_last_successful_renew_or_take_lease / 1_000
        loss = "" if self._writer is None else self._writer.loss
        unmerged = self._unmerged_because(statuses, limit_seconds)
        return health_of(self._worker.work_health, statuses.values(), unmerged, loss)

    @property
    def liveness(self) -> WorkerHealth:
        """Whether the thread that decides is not stuck; see ``Worker.liveness``. May be read from any thread."""
        worker = self._worker
        return WorkerHealth(is_healthy=True) if worker is None else worker.liveness

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(
            has_begun=self._has_begun,
            is_stopping=self._stop.is_set(),
            has_ended=self._has_ended,
            has_failed=isinstance(self._error, Exception),  # others, such as KeyboardInterrupt, end it in order
        )

    @property
    def trouble(self) -> str:
        """The reason why changes cannot be merged at present; empty while they can be merged.

        If the trouble lasts, ``health`` reports it. May be read from any thread.

        Raises:
            StreamClientException: the worker did not answer.
        """
        return "" if self._worker is None else self._unmerged_because(self._worker.shard_statuses(), 0.0)

    def _unmerged_because(self, shard_ids: Iterable[str], limit_seconds: float) -> str:
        writer = self._writer
        return "" if writer is None else writer.unmerged.trouble(shard_ids, writer.clock(), limit_seconds)

    @property
    def lag_seconds(self) -> float | None:
        """The age, in seconds, of the oldest change that may not be merged, of the shards that this process has.

        0.0 when all changes were merged; ``None`` while nothing is known. May be read from any thread.

        Raises:
            StreamClientException: the worker did not answer.
        """
        if self._worker is None or self._writer is None:
            return None
        statuses, unmerged, now = self._worker.shard_statuses(), self._writer.unmerged, now_micros()
        # The worker's own lag counts from its read position; changes that wait to be merged are older.
        lags = [(shard.lag_seconds, unmerged.lag_seconds(shard_id, now)) for shard_id, shard in statuses.items()]
        return max((lag for both in lags for lag in both if lag is not None), default=None)

    @property
    def worker(self) -> Worker | None:
        """The worker that reads the stream, for its statuses; ``None`` while the table is copied."""
        return self._worker

    def position(self) -> Mapping[str, str]:
        """Return for each shard the position up to which the mirror has its changes.

        May be called from any thread. While the copy is under way, and until the changes since its beginning are
        merged, rows may be newer than this position.

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
        """Compare table and mirror, row by row, at the mirror's position. May be called from any thread.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
            StreamClientException: the table is not copied yet, has another stream than when it was copied, or its
                stream does not have the changes since the mirror's position any more.
        """
        rule = self._source.rule()
        handle = self._destination.another()
        try:
            handle.key_by(stored_keys(rule))
            return compare(self._source, handle)
        finally:
            handle.close()


_HISTORY_IS_MIRROR = "history is where the mirror is: the changes need a table of their own"


def _is_used(destination: Destination) -> bool:
    is_committed = any(entry.commits or entry.damage for entry in destination.log())
    return is_committed or any(table.num_rows for table in destination.rows())


def _is_same_table(history: Destination, mirror: Destination) -> bool:
    """Return whether both are one table, as far as their settings show before anything is called."""
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
    """Mirror a table in this thread, until it is interrupted; arguments and errors as in ``Mirror``."""
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
