"""The two ways in which a replication reads its source: by a tunnel, or by the change stream with leases."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import define, evolve, field
from tablestore import OTSClient

from streamclient.base import logs
from streamclient.base.processes import OwnName, process_space, process_state, unique_name
from streamclient.base.reasons import WorkerHealth, counted
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.copied_stream import CopiedStream
from streamclient.copying.copy_trouble import health_of
from streamclient.copying.replication_end import EndingTunnelClient
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_progress import CHANGES, FULL_DATA, Snapshot
from streamclient.copying.replication_settings import Settings
from streamclient.copying.source_table import SourceTable
from streamclient.core.shard_tree import ShardTree
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import DependencyException, StreamClientError
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard, ShardStatus
from streamclient.tunnel import (
    ChannelInfo,
    ChannelStatus,
    ChannelType,
    TunnelClient,
    TunnelDescription,
    TunnelExistsError,
    TunnelInfo,
    TunnelServerUnavailableError,
    TunnelStage,
    TunnelType,
    TunnelWorker,
    TunnelWorkerConfig,
)
from streamclient.worker import Worker
from streamclient.worker.lease import LeaseManager

_log = logs.logger(__name__)

HEARTBEAT_SECONDS = 5
HEARTBEAT_TIMEOUT_SECONDS = 30
"""The time-out, in seconds, of a replication's session at the Tunnel Service. It is shorter than the default, so that a
replication that died on another machine does not hold its channels for minutes."""

CREATE_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The pauses, in seconds, between attempts to create a tunnel while the service is unavailable. The attempts end after
about half a minute, as in the Go client."""

_CLIENT_ID = re.compile(r"replicate-([0-9a-f]{12})-.*-(\d+)-[0-9a-f]{8}(?![0-9a-f])")
"""The pattern of a replication's client id. Its groups are a namespace of process ids, and the id of the process in it.
If the operating system does not name the namespace, the client id does not match. A dead session then ends only by its
time-out."""

_CLIENT_CONFIG = ClientConfig(deliver_empty_batches=True, worker_idle_time_millis=100)
"""The settings of a replication's worker. The worker also delivers empty batches, so that the progress of an idle
source moves on. Each empty batch causes a checkpoint, so this worker reads less often than other workers."""

_AFTER_LOSS = (
    "the replication cannot copy these changes any more: begin again, with another status table and an empty "
    "destination, or let the shard go on without them by `streamclient leases rewind SHARD --to oldest --pause`"
)


@define(eq=False)
class Source(ABC):
    """The source of a replication, and the worker that reads it."""

    client: OTSClient
    settings: Settings
    processors: ReplicationProcessors
    was_made: bool = field(init=False, default=False)
    """Whether ``prepare`` has made the tunnel or the plan of the copy, so that the copy begins with this run."""
    worker: Worker | TunnelWorker | None = field(init=False, default=None)

    @abstractmethod
    def prepare(self) -> str:
        """Find or create the tunnel, stream and tables that the source needs; return a sentence for users."""

    @abstractmethod
    def start(self) -> None:
        """Start the worker that reads the source, and return immediately."""

    @abstractmethod
    def state(self) -> Snapshot:
        """Return the progress as the tunnel or the leases of the source store it. This may need calls of the service.

        The snapshot has no counts of rows, because the writer counts them.
        """

    @property
    def exception(self) -> BaseException | None:
        """The error with which the worker has ended; ``None`` if it runs or has ended without an error."""
        worker = self.worker  # another thread may change it
        return None if worker is None else worker.exception

    @property
    def health(self) -> WorkerHealth:
        """The health of the worker that reads the source; healthy before the worker starts."""
        worker = self.worker  # another thread may change it
        return WorkerHealth(is_healthy=True) if worker is None else worker.work_health

    def stop(self) -> None:
        """Let the worker finish its running batches, store their checkpoints, and end.

        The next run continues from these checkpoints.
        """
        if self.worker is not None:
            self.worker.shutdown()


@define(eq=False)
class TunnelSource(Source):
    """Reads full data and then changes by a tunnel. The Tunnel Service stores the progress."""

    wait: Callable[[float], object] = time.sleep
    """A function that waits for the given seconds. It is called between attempts to create the tunnel."""
    tunnels: TunnelClient = field(init=False)
    info: TunnelInfo | None = field(init=False, default=None)
    worker: TunnelWorker | None = field(init=False, default=None)
    _tag: str = field(init=False, factory=lambda: f"replicate-{process_space() or 'anywhere'}-{unique_name()}")
    """The beginning of the ids of this run's sessions."""

    def __attrs_post_init__(self) -> None:
        self.tunnels = EndingTunnelClient(self.client, self.settings.end_time_micros, self.processors.ends)

    def prepare(self) -> str:
        """Find the tunnel with the name in the settings, or create it."""
        table, name = self.settings.reader.table_name, self.settings.tunnel_name
        if all(info.tunnel_name != name for info in self.tunnels.list_tunnel(table)):
            self.was_made = self._make_tunnel(table, name)
        self.info = self._described().info
        what = "made" if self.was_made else "going on with"
        return f"{what} tunnel {name!r} ({self.info.tunnel_type.value}, {self.info.tunnel_id})"

    def start(self) -> None:
        """Start a tunnel worker. Call ``prepare`` first, if the caller has not."""
        if self.info is None:
            self.prepare()
        assert self.info is not None
        self._end_dead_sessions(self.info.tunnel_id)
        config = TunnelWorkerConfig(
            heartbeat_interval_seconds=HEARTBEAT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
            client_tag=self._tag,
            client_config=_CLIENT_CONFIG,
        )
        self.worker = TunnelWorker(self.info.tunnel_id, self.tunnels, self.processors, config)
        self.worker.connect_and_working()

    def _make_tunnel(self, table: str, name: str) -> bool:
        """Create the tunnel; return whether this attempt of this process created it.

        The service may create the tunnel and yet report a transient error. In this case, the next attempt finds the
        tunnel, and the result is ``False``.
        """
        pauses = iter(CREATE_PAUSES_SECONDS)
        while True:
            try:
                self.tunnels.create_tunnel(table, name, TunnelType.BASE_AND_STREAM)
            except TunnelExistsError:  # another process, or an attempt that seemed to fail, has made it
                return False
            except TunnelServerUnavailableError as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                _log.warning(
                    "the tunnel %s of table %s was not made; trying again in %g s: %s", name, table, pause, error
                )
                self.wait(pause)
            else:
                return True

    def _described(self) -> TunnelDescription:
        return self.tunnels.describe_tunnel(self.settings.reader.table_name, self.settings.tunnel_name)

    def _end_dead_sessions(self, tunnel_id: str) -> None:
        """End the sessions of replications that have certainly ended, so that their channels become free.

        In a case of doubt, the session ends by its time-out.
        """
        for client_id in {channel.client_id for channel in self._described().channels}:
            if _is_dead(client_id):
                _log.info("ending the session %s of a replication that was killed", client_id)
                self.tunnels.shutdown(tunnel_id, client_id)

    def state(self) -> Snapshot:
        """Return the progress that the Tunnel Service describes. This needs calls of the service.

        The service does not know of each channel that it is copied up to the end time (see ``replication_end``). So
        this method also counts the channels that this process has copied. If other processes hold the rest, it lets
        them have this process's channels, or begins to read again, until each process has met the end time in all
        channels itself.
        """
        described, end = self._described(), self.settings.end_time_micros
        is_full = described.info.stage is not TunnelStage.PROCESS_STREAM
        kind = ChannelType.BASE_DATA if is_full else ChannelType.STREAM
        channels = [channel for channel in described.channels if channel.channel_type is kind]
        is_past = not is_full and self._is_past(described)
        if end is not None and not is_full and not is_past:
            self._take_turns([channel for channel in channels if channel.status not in _WITHOUT_READER])
        return Snapshot(
            stage=FULL_DATA if is_full else CHANGES,
            channels_done=sum(channel.status is ChannelStatus.TERMINATED for channel in channels),
            channels_total=len(channels),
            created_micros=described.info.create_time_micros,
            consumed_micros=max(described.consume_point_micros, end or 0 if is_past else 0),
            is_past=is_past,
        )

    def _is_past(self, described: TunnelDescription) -> bool:
        """Return whether the tunnel was read past the end time, as the service and this process know.

        A channel that waits for another one counts if one of its ancestors is unfinished: all its changes are later
        than the position in the ancestor.
        """
        end, copied = self.settings.end_time_micros, self.processors.ends.copied
        stream = [channel for channel in described.channels if channel.channel_type is ChannelType.STREAM]
        waiting = {channel.channel_id for channel in stream if channel.status is ChannelStatus.WAIT}
        if waiting and end is not None and _is_past(described, end, copied | waiting):
            table = self.processors.source
            tree = ShardTree.of(table.describe_stream(table.stream().stream_id).shards)
            begun = {channel.channel_id for channel in stream if channel.status not in _WITHOUT_READER}
            copied |= {each for each in waiting if not begun.isdisjoint(tree.ancestors(each))}
        return _is_past(described, end, copied)

    def _take_turns(self, channels: Sequence[ChannelInfo]) -> None:
        """Stop reading if other processes must read this process's channels; read again if no process reads the rest.

        A process that has copied all its channels cannot show this to the others. The others copy these channels again,
        which changes no row. The process whose id is the first among the holders of ``channels`` keeps its channels. So
        it gets all of them, and completes its run. Then the next one does.
        """
        left = [channel for channel in channels if not self._has_copied(channel)]
        if self.worker is None:
            if not any(channel.client_id for channel in left):
                self.start()
            return
        holders = {channel.client_id for channel in channels if channel.client_id}
        own = {holder for holder in holders if holder.startswith(self._tag)}
        is_done = left and all(channel.client_id and channel.client_id not in own for channel in left)
        if own and is_done and min(holders) not in own and self.worker.shutdown():
            self.worker = None

    def _has_copied(self, channel: ChannelInfo) -> bool:
        end = self.settings.end_time_micros
        is_past = end is not None and channel.consume_point_micros > end
        return is_past or channel.channel_id in self.processors.ends.copied


_WITHOUT_READER = (ChannelStatus.WAIT, ChannelStatus.TERMINATED)
"""The states of a channel that no client may read."""


def _is_dead(client_id: str) -> bool:
    """Return whether the replication with the session ``client_id`` has certainly ended.

    The end is certain if ``client_id`` has this process's namespace of process ids, and no process has the process id.
    A host name could not replace the namespace. Containers may share the host name, but each counts its processes from
    1.
    """
    match = _CLIENT_ID.match(client_id)
    return match is not None and match[1] == process_space() and process_state(int(match[2])) is None


def _is_past(described: TunnelDescription, end_micros: int | None, copied: Collection[str] = ()) -> bool:
    """Return whether all channels of changes were read past the end time ``end_micros``.

    The channels in ``copied`` were, although their checkpoints do not show it. Finished channels do not count, because
    other channels follow them. If all listed channels are finished, the next channels are not listed yet, and the
    finished channels count. But if the tunnel itself has an end time, no further channels follow, and everything was
    read.
    """
    if described.info.tunnel_type is TunnelType.BASE_DATA:
        return True
    if end_micros is None:
        return False
    stream = [channel for channel in described.channels if channel.channel_type is ChannelType.STREAM]
    left = [channel for channel in stream if channel.status is not ChannelStatus.TERMINATED]
    if stream and not left and described.info.config is not None and described.info.config.end_micros is not None:
        return True
    return bool(stream) and all(
        channel.consume_point_micros > end_micros or channel.channel_id in copied for channel in left or stream
    )


def read_up_to(leases: Mapping[str, Lease], listing: Mapping[str, Shard], consumed: Mapping[str, int]) -> int | None:
    """Return the time up to which all changes of the stream were read, in microseconds; ``None`` if it is unknown.

    ``consumed`` has an entry for each shard with a lease: the time up to which the shard was read, or 0. ``listing``
    must be newer than ``leases``.

    The result is the earliest of the shards' times. All changes of a child shard are later than the changes of its
    parents. So the time of a child is at least the time of its finished parents, and a shard that waits for a parent
    does not count. A finished shard counts until one of its children is known, because every closed shard has a child.
    """
    tree = ShardTree.of(leases.values(), listing.values())
    finished = {key for key, lease in leases.items() if lease.is_finished}
    points = []
    for key, parents in tree.parents.items():
        is_over = key in finished and (key in tree.children or key not in listing)
        if not is_over and tree.may_begin(key, finished):
            points.append(max(consumed.get(each, 0) for each in {key, *(parents & finished)}))
    return min(points, default=None)


@define(eq=False)
class StreamSource(Source):
    """Reads pieces of the table, and then its change stream. The leases in a status table store the progress."""

    worker: Worker | None = field(init=False, default=None)
    _table: SourceTable = field(init=False)
    _leases: LeaseManager | None = field(init=False, default=None)
    _stream: CopiedStream | None = field(init=False, default=None)
    _worker_name: OwnName = field(init=False, factory=lambda: OwnName("replication"))
    _consumed_micros: int = field(init=False, default=0)
    """The time, in microseconds, up to which all changes were read. It never goes back."""

    def __attrs_post_init__(self) -> None:
        self._table = SourceTable(self.client, self.settings.reader.table_name)

    def prepare(self) -> str:
        """Find the stream, make the status table if it is missing, and read the plan of the copy (``CopyPlan``).

        If the status table has no plan of the copy, store a new one.

        Raises:
            ConfigurationError: the table has no stream.
            DependencyException: the service refused a call, or did not answer.
            StreamClientException: the table's stream was replaced since an earlier run.
        """
        settings, stream_id = self.settings, self._table.stream().stream_id
        leases = LeaseManager(self.client, settings.status_table_name, stream_id)
        leases.create_lease_table_if_not_exists()
        if not leases.wait_until_lease_table_ready():
            problem = leases.table_problem
            because = "" if problem is None else f": {problem}"
            raise DependencyException(
                f"status table {settings.status_table_name!r} does not answer; start again when it does{because}"
            )
        names, end = (settings.status_table_name, stream_id), settings.end_time_micros
        self._stream = CopiedStream.of(self._table, *names, settings.piece_mebibytes, end)
        self.was_made = self._stream.is_new
        self._leases = leases
        stage = self._stage(leases, self._stream)
        return f"reading the stream of {self._table.name!r} with leases in {settings.status_table_name!r}: {stage}"

    def _stage(self, leases: LeaseManager, stream: CopiedStream) -> str:
        try:
            pieces = [lease for lease in leases.list_leases() if lease.lease_key in stream.pieces]
        except DependencyException as error:  # this is not fatal, because the worker repeats its calls
            return f"progress is not known at the moment: {error}"
        rows = sum(lease.progress.records for lease in pieces if lease.progress is not None)
        is_full = sum(lease.is_finished for lease in pieces) < len(stream.pieces)
        return f"full data after {counted(rows, 'row')}" if is_full else "changes"

    def start(self) -> None:
        """Start a worker. Call ``prepare`` first, if the caller has not."""
        if self._stream is None:
            self.prepare()
        assert self._stream is not None
        config = StreamConfig(
            client=self.client,
            data_table_name=self._table.name,
            status_table_name=self.settings.status_table_name,
            initial_position=InitialPosition.at(self._stream.plan.start_micros),
        )
        name, client_config = str(self._worker_name), evolve(_CLIENT_CONFIG, end_on_sigterm=False)
        self.worker = Worker(name, client_config, config, self.processors, stream_api=self._stream)
        self.worker.__enter__()  # ``stop`` ends the worker

    def state(self) -> Snapshot:
        """Return the progress of all processes together, from the leases of pieces and shards."""
        assert self._leases is not None  # `prepare` has set `_leases` and `_stream`
        assert self._stream is not None
        leases = {lease.lease_key: lease for lease in self._leases.list_leases()}
        pieces = [leases.pop(name) for name in self._stream.pieces if name in leases]
        done, total = sum(lease.is_finished for lease in pieces), len(self._stream.pieces)
        is_full, end = done < total, self.settings.end_time_micros
        if not is_full:
            statuses = self._statuses()
            consumed = {key: self._consumed(lease, statuses.get(key)) for key, lease in leases.items()}
            shards = self._table.api.describe_stream(self._stream.plan.stream_id).shards
            point = read_up_to(leases, {shard.shard_id: shard for shard in shards}, consumed)
            self._consumed_micros = max(self._consumed_micros, point or 0)
        return Snapshot(
            stage=FULL_DATA if is_full else CHANGES,
            channels_done=done,
            channels_total=total,
            parts="pieces",
            created_micros=self._stream.plan.start_micros,
            consumed_micros=self._consumed_micros,
            is_past=end is not None and self._consumed_micros > end + CLOCKS_MARGIN_MICROS,
        )

    def _statuses(self) -> Mapping[str, ShardStatus]:
        return {} if self.worker is None else self.worker.shard_statuses()

    @property
    def health(self) -> WorkerHealth:
        """The health of the worker that reads the source; unhealthy also after a shard has lost changes."""
        return health_of(super().health, self._statuses().values(), remedy=_AFTER_LOSS)

    def _consumed(self, lease: Lease, status: ShardStatus | None) -> int:
        """Return the time, in microseconds, up to which a shard was read.

        If the shard is caught up, or copied up to the end time, this is the present. Otherwise it is the time of the
        newest record that was read.
        """
        newest = lease.progress.record_micros if lease.progress is not None else 0
        if lease.is_finished:
            return newest
        now = now_micros()
        is_caught_up = status.lag_seconds == 0 if status is not None else self._is_elsewhere_caught_up(lease, newest)
        return max(newest, now) if is_caught_up else newest

    def _is_elsewhere_caught_up(self, lease: Lease, newest: int) -> bool:
        """Return whether a shard that another process reads is known to have no wanted records after its checkpoint.

        Records after the end time are not wanted. The method reads from the shard, because otherwise this process would
        never learn that an idle shard is past the end time. If the settings have no end time, or ``newest`` is after
        the end time, the read is not needed, and the result is ``False``. ``newest`` is the time of the newest record
        that was read, in microseconds.
        """
        end = self.settings.end_time_micros
        if end is None or newest > end + CLOCKS_MARGIN_MICROS or lease.checkpoint == CheckpointPosition.TRIM_HORIZON:
            return False
        assert self._stream is not None  # `prepare` has set it
        try:
            page = self._stream.get_stream_record(lease.checkpoint, 1)
        except StreamClientError:  # the owner of the shard meets the same error and handles it
            return False
        # At the end of the shard, the position moves, and the result is False. A page that was cut looks like an end,
        # and the owner stores a real end. An empty page with another position skips a part of the shard.
        return not page.records and page.next_position.text == lease.checkpoint

    def stop(self) -> None:
        """Let the worker end. The next run continues from the progress in the status table."""
        self._table.stop.set()
        super().stop()
