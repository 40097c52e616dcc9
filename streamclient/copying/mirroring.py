"""A mirror from its first row to its end: copied, then kept equal."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from streamclient.base import checks, logs
from streamclient.base.processes import OwnName
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.mirror_comparison import Comparison, compare
from streamclient.copying.mirror_listing import ShardWatch
from streamclient.copying.mirror_processors import MirrorProcessors
from streamclient.copying.mirror_shards import MergeLimits
from streamclient.copying.mirror_source import COPY, CopyPlan, SourceTable, TableCopy
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.destinations.commit import Destination, MergingDestination, last_of
from streamclient.destinations.delta.delta_destination import DeltaDestination
from streamclient.destinations.folding.fold import stored_keys
from streamclient.destinations.rows.change_rows import OPERATION, READ_AT
from streamclient.errors import ConfigurationError, StreamClientException, WorkerFailedError
from streamclient.model import InitialPosition
from streamclient.tablestore.stream_api import StreamSummary
from streamclient.worker import Worker
from streamclient.worker.health import WorkerHealth
from streamclient.worker.lease.lease_manager import LeaseManager

if TYPE_CHECKING:
    from tablestore import OTSClient

_log = logs.logger(__name__)

HISTORY_SUFFIX = "_changes"
"""Added to the address or name of the mirror, it is that of its history."""


@checks.explains_names
class Mirror:
    """Takes a table into a destination, and keeps it equal to the table at a position that it tells.

    Any number of processes may run the same mirror: they share the work by leases in the status table, and one takes
    over what another one leaves. Whatever dies, each change is merged once.

    Args:
        client: for the table, its stream and the status table.
        table: what is mirrored; it needs a stream.
        status_table: keeps the leases; one per mirror. It is created.
        to: where the mirror is: a destination with a key, or the address of a Delta table.
        history: where the changes themselves go, besides: a destination of its own, given from the first start on.
        worker_name: unique among the processes of the mirror.
        client_config: how the worker behaves.
        limits: when changes are merged.
        piece_mebibytes: about so much of the table is one piece of the copy.

    Raises:
        ConfigurationError: an argument cannot work.
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
        piece_mebibytes: int = 100,
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
        if history is not None and _is_same_place(history, self._destination):
            raise ConfigurationError("history is where the mirror is: the changes need a table of their own")
        self._history = history
        self._worker_name = worker_name or OwnName("mirror")
        self._config = client_config if client_config is not None else ClientConfig()
        self._limits = limits if limits is not None else MergeLimits()
        self._piece_mebibytes = piece_mebibytes
        # Checked here already, before anything is called.
        self._stream_config = StreamConfig(client=client, data_table_name=table, status_table_name=status_table)
        self._copy: TableCopy | None = None
        self._worker: Worker | None = None
        self._writer: MirrorWriter | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Copy what is not copied, then merge changes, until ``shutdown``.

        Trouble with service and destination is waited out while the changes are followed; while the table is copied it
        ends the run, and the next one goes on.

        Raises:
            ConfigurationError: table and destination cannot be a mirror, or the destination is that of another table.
            StreamClientException: the copy took longer than the stream keeps changes, or the table has another stream
                than when it was copied.
            WorkerFailedError: the stream cannot be read any more.
            StreamClientError: the service or the destination failed while the table was copied.
        """
        try:
            self._run()
        except BaseException as error:
            self._error = error
            raise

    def _run(self) -> None:
        rule = self._source.rule()
        stream = self._source.stream()
        destination = self._destination
        destination.key_by(stored_keys(rule))
        destination.probe()
        self._check_destination(stream)
        if self._history is not None:
            self._history.probe()
            self._check_history_is_own(self._history)
        self._copy = TableCopy(self._source, destination, rule, self._stop, self._piece_mebibytes, self._history)
        self._copy.prepare()
        self._check_history(stream, self._copy.plan)
        self._copy.begin_history()
        self._copy.run(sum(str(self._worker_name).encode()))
        if self._stop.is_set():
            return
        self._source.stream_of(self._copy.plan)  # again, as the copy may have taken long
        watch = ShardWatch(self._source, destination, self._copy.plan)
        watch.look()
        writer = self._writer = MirrorWriter(self._source, destination, rule, self._history, self._limits, watch)
        writer.start()
        try:
            self._follow(writer)
        finally:
            writer.close()

    def _follow(self, writer: MirrorWriter) -> None:
        assert self._copy is not None  # run has made it
        config = StreamConfig(
            client=self._stream_config.client,
            data_table_name=self._stream_config.data_table_name,
            status_table_name=self._stream_config.status_table_name,
            initial_position=InitialPosition.at(self._copy.plan.start_micros),
        )
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
                raise  # else it was told to stop in the moment before it ran

    def _check_destination(self, stream: StreamSummary) -> None:
        columns = self._destination.columns()
        if columns is not None and OPERATION in columns.names:
            raise ConfigurationError(
                "the destination is a table of changes: a mirror needs one of its own, and its changes go to `history`"
            )
        lasts = self._destination.last_commits([COPY])
        # A table with neither commits nor rows is what is left of a mirror that was killed as it began.
        if columns is not None and len(columns) > 0 and lasts[COPY] is None and _is_used(self._destination):
            raise ConfigurationError(
                f"the destination has a table already, but no mirror of application {self._destination.application!r}: "
                "name another one, or the application that made it"
            )
        if lasts[COPY] is None:
            self._check_is_new(stream)

    def _check_is_new(self, stream: StreamSummary) -> None:
        """Refuse to begin anew where leases say that a mirror went on: it may only be out of sight for a moment."""
        client, status_table = self._stream_config.client, self._stream_config.status_table_name
        if status_table not in client.list_table():
            return
        leases = LeaseManager(client, status_table, stream.stream_id, self._config).list_leases()
        if any(lease.progress is not None and lease.progress.records for lease in leases):
            raise StreamClientException(
                f"the destination has nothing of this mirror, but the leases in {status_table!r} say that changes were "
                "merged: it was moved or removed, or is out of sight; bring it back, or begin a new mirror with "
                "another status table"
            )

    def _check_history_is_own(self, history: Destination) -> None:
        """It is new, or begins with the plan of this very mirror: the copy goes on with what it has."""
        known = history.last_commits([COPY])[COPY]
        if known is None and not _is_used(history):
            return
        # Another process may have begun both meanwhile, the mirror first.
        known = known or history.last_commits([COPY])[COPY]
        last = self._destination.last_commits([COPY])[COPY]
        if known is None or last is None or known.digest != last.digest:
            raise ConfigurationError(
                "history has a table already, but not the changes of this mirror: name another one, as each mirror has "
                "a history of its own, from its first start on"
            )

    def _check_history(self, stream: StreamSummary, plan: CopyPlan) -> None:
        """It has every commit that the mirror has, and perhaps one more."""
        if self._history is None:
            return
        columns = self._history.columns()
        if columns is not None and READ_AT in columns.names:
            raise ConfigurationError("history is where the mirror is: the changes need a table of their own")
        shards = [shard.shard_id for shard in self._source.api.describe_stream(stream.stream_id).shards]
        names = [*plan.pieces, *shards]
        lasts, known = self._destination.last_commits(names), self._history.last_commits(names)
        for name, last in lasts.items():
            at = known[name]
            if last is not None and (at is None or at.number < last.number):
                raise ConfigurationError(
                    f"history lacks what the mirror has of {name}: it is kept from the first start of a mirror on, "
                    "without a gap; begin a new mirror with it, or leave it out"
                )

    def shutdown(self, wait: bool = True) -> None:
        """End: merge what waits, hand the leases over. Any thread; the next run goes on."""
        with self._lock:
            self._stop.set()
            worker = self._worker
        if worker is not None:
            worker.shutdown(wait)

    @property
    def history(self) -> Destination | None:
        """Where the changes go, besides."""
        return self._history

    @property
    def is_copied(self) -> bool:
        """Whether this process has begun to merge changes, as every row is copied."""
        return self._worker is not None

    @property
    def copied_rows(self) -> int:
        """Rows that this process has copied."""
        return 0 if self._copy is None else self._copy.rows

    @property
    def health(self) -> WorkerHealth:
        """Whether it copies, or merges the changes of every shard that this process has. Any thread.

        Unhealthy once the run has failed, while calls to the service do not get through, while a shard stands still
        because changes of it were lost to retention (then only a new mirror can be equal to the table), and once the
        changes of a shard could not be merged for longer than
        ``ClientConfig.max_duration_before_last_successful_renew_or_take_lease``, which is what other calls may fail
        for: shorter trouble is waited out. The reason says of which shard, for how long, and with what error.
        """
        if self._error is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {self._error}")
        if self._worker is None:
            return WorkerHealth(is_healthy=True)
        statuses = self._worker.shard_statuses()
        lost = next((one for one in statuses.values() if one.lost is not None), None)
        limit_seconds = self._config.max_duration_before_last_successful_renew_or_take_lease / 1_000
        found = (
            self._worker.health.reason,
            "" if lost is None else f"shard {lost.shard_id}: {lost.reason}",
            self._unmerged_because(statuses, limit_seconds),
            "" if self._writer is None else self._writer.loss,
        )
        reasons = [reason for reason in found if reason]
        return WorkerHealth(not reasons, "; ".join(reasons))

    @property
    def trouble(self) -> str:
        """Why changes cannot be merged just now; empty while they are. ``health`` tells of it if it lasts. Any thread.

        Raises:
            StreamClientException: the worker did not answer.
        """
        return "" if self._worker is None else self._unmerged_because(self._worker.shard_statuses(), 0.0)

    def _unmerged_because(self, shard_ids: Iterable[str], limit_seconds: float) -> str:
        writer = self._writer
        return "" if writer is None else writer.unmerged.trouble(shard_ids, writer.clock(), limit_seconds)

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest change that may not be merged, of the shards that this process has. Any thread.

        0.0 when all that there is was merged; ``None`` while nothing is known.

        Raises:
            StreamClientException: the worker did not answer.
        """
        if self._worker is None or self._writer is None:
            return None
        statuses, unmerged, now = self._worker.shard_statuses(), self._writer.unmerged, now_micros()
        # The worker's own lag ends where it has read: what waits behind that to be merged is older.
        lags = [(one.lag_seconds, unmerged.lag_seconds(shard_id, now)) for shard_id, one in statuses.items()]
        return max((lag for both in lags for lag in both if lag is not None), default=None)

    @property
    def worker(self) -> Worker | None:
        """What reads the stream, for its statuses; ``None`` while the table is copied."""
        return self._worker

    def position(self) -> Mapping[str, str]:
        """Where the mirror is: for each shard the position up to which it has the changes. Any thread.

        While the copy is under way, and until the changes since its beginning are merged, rows may be ahead of it.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
        """
        handle = self._destination.another()
        try:
            lasts = last_of(handle.log(), handle.application)
        finally:
            handle.close()
        if COPY in lasts:
            self._source.check_table(CopyPlan.from_text(lasts[COPY].end))
        return {shard: last.end for shard, last in lasts.items() if not shard.startswith((COPY, "expiry"))}

    def verify(self) -> Comparison:
        """Compare table and mirror, row by row, at the mirror's position; see ``mirror.verify.compare``. Any thread."""
        rule = self._source.rule()
        handle = self._destination.another()
        try:
            handle.key_by(stored_keys(rule))
            return compare(self._source, handle)
        finally:
            handle.close()


def _is_used(destination: Destination) -> bool:
    is_committed = any(entry.commits or entry.damage for entry in destination.log())
    return is_committed or any(table.num_rows for table in destination.rows())


def _is_same_place(one: Destination, other: Destination) -> bool:
    """As far as it shows before anything is called."""
    if isinstance(one, DeltaDestination) and isinstance(other, DeltaDestination):
        left, right = (
            (at.bucket, os.path.realpath(at.path) if at.scheme == "file" else at.path)
            for at in (one.location, other.location)
        )
        return left == right
    return one is other


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
    piece_mebibytes: int = 100,
) -> None:
    """Mirror a table in this thread, until it is interrupted; arguments and errors are those of ``Mirror``."""
    made = Mirror(
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
        made.run()
    finally:
        made.shutdown()
