"""The sources of a replication: a tunnel, or the change stream with leases and the copy of the table before it."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from attrs import define, evolve, field
from tablestore import OTSClient

from streamclient.base import logs
from streamclient.base.processes import OwnName, process_space, process_state, unique_name
from streamclient.base.reasons import WorkerHealth, counted
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.copied_stream import CopiedStream
from streamclient.copying.copy_trouble import health_of
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_progress import CHANGES, FULL_DATA, Snapshot
from streamclient.copying.replication_settings import Settings
from streamclient.copying.source_table import SourceTable
from streamclient.core.shard_tree import ShardTree
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import DependencyException, StreamClientError
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard, ShardStatus
from streamclient.tunnel import (
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
"""The time-out of a session, in seconds. It is shorter than the default, because a replication that died on another
machine should not hold its channels for minutes."""

CREATE_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The pauses between attempts to make a tunnel while the service is unavailable, about half a minute in all: as long as
the Go client repeats calls."""

_CLIENT_ID = re.compile(r"replicate-([0-9a-f]{12})-.*-(\d+)-[0-9a-f]{8}(?![0-9a-f])")
"""The beginning of the id of a replication's session, if the system names the space of process ids. That space and
``unique_name`` follow. A session with another id ends by its time-out alone."""

_CLIENT_CONFIG = ClientConfig(deliver_empty_batches=True, worker_idle_time_millis=100)
"""The worker's settings. Empty batches are delivered for their position, so that an idle source's progress moves on.
Each of them is a checkpoint, so reads are fewer than in other workers."""


@define(eq=False)
class Source(ABC):
    """A source, and the worker that reads it."""

    client: OTSClient
    settings: Settings
    processors: ReplicationProcessors
    worker: Worker | TunnelWorker | None = field(init=False, default=None)

    @abstractmethod
    def prepare(self) -> str:
        """Find or make what the source needs. Return in words what was found."""

    @abstractmethod
    def start(self) -> None:
        """Begin to read; return at once."""

    @abstractmethod
    def state(self) -> Snapshot:
        """Return how far the source was read; may call the service."""

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the worker, if it ended by itself."""
        return None if self.worker is None else self.worker.exception

    @property
    def health(self) -> WorkerHealth:
        """Whether the source is read."""
        return WorkerHealth(is_healthy=True) if self.worker is None else self.worker.work_health

    def stop(self) -> None:
        """Finish running batches, store their positions, and end. The next run goes on from there."""
        if self.worker is not None:
            self.worker.shutdown()


@define(eq=False)
class TunnelSource(Source):
    """Full data and increments through the Tunnel Service, which keeps the progress."""

    wait: Callable[[float], object] = time.sleep
    """Waits a pause, in seconds, between attempts to make the tunnel."""
    tunnels: TunnelClient = field(init=False)
    was_made: bool = field(init=False, default=False)
    info: TunnelInfo | None = field(init=False, default=None)
    worker: TunnelWorker | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.tunnels = TunnelClient(self.client)

    def prepare(self) -> str:
        """Find the tunnel of that name, or make it."""
        table, name = self.settings.reader.table_name, self.settings.tunnel_name
        if all(info.tunnel_name != name for info in self.tunnels.list_tunnel(table)):
            self.was_made = self._make_tunnel(table, name)
        self.info = self._described().info
        what = "made" if self.was_made else "going on with"
        return f"{what} tunnel {name!r} ({self.info.tunnel_type.value}, {self.info.tunnel_id})"

    def start(self) -> None:
        """Begin to read. This also works in the run that made the tunnel."""
        if self.info is None:
            self.prepare()
        assert self.info is not None
        self._end_dead_sessions(self.info.tunnel_id)
        config = TunnelWorkerConfig(
            heartbeat_interval_seconds=HEARTBEAT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
            client_tag=f"replicate-{process_space() or 'anywhere'}-{unique_name()}",
            client_config=_CLIENT_CONFIG,
        )
        self.worker = TunnelWorker(self.info.tunnel_id, self.tunnels, self.processors, config)
        self.worker.connect_and_working()

    def _make_tunnel(self, table: str, name: str) -> bool:
        """Make the tunnel, and return whether this process made it.

        The service meets passing troubles here, after which the tunnel may have been made: the next attempt finds it.
        """
        pauses = iter(CREATE_PAUSES_SECONDS)
        while True:
            try:
                self.tunnels.create_tunnel(table, name, TunnelType.BASE_AND_STREAM)
            except TunnelExistsError:  # an attempt of ours whose answer told nothing, or a quicker process
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
        """Free the channels of replications that were certainly killed. Other dead sessions end by their time-out."""
        for client_id in {channel.client_id for channel in self._described().channels}:
            if _is_dead(client_id):
                _log.info("ending the session %s of a replication that was killed", client_id)
                self.tunnels.shutdown(tunnel_id, client_id)

    def state(self) -> Snapshot:
        """Return how far the tunnel was read."""
        described = self._described()
        is_full = described.info.stage is not TunnelStage.PROCESS_STREAM
        kind = ChannelType.BASE_DATA if is_full else ChannelType.STREAM
        channels = [channel for channel in described.channels if channel.channel_type is kind]
        return Snapshot(
            stage=FULL_DATA if is_full else CHANGES,
            channels_done=sum(channel.status is ChannelStatus.TERMINATED for channel in channels),
            channels_total=len(channels),
            created_micros=described.info.create_time_micros,
            consumed_micros=described.consume_point_micros,
            is_past=not is_full and _is_past(described, self.settings.end_time_micros),
        )


def _is_dead(client_id: str) -> bool:
    """Return whether a session's replication has certainly ended.

    That is certain if its id is counted in this process's space and no process has it. The name of a host does not
    prove it: containers share it, and each counts its processes from 1.
    """
    match = _CLIENT_ID.match(client_id)
    return match is not None and match[1] == process_space() and process_state(int(match[2])) is None


def _is_past(described: TunnelDescription, end_micros: int | None) -> bool:
    """Return whether every channel of increments was read past the end time.

    Finished channels before others do not count. If all channels are finished, those that follow are not listed yet,
    unless the tunnel itself has an end.
    """
    if described.info.tunnel_type is TunnelType.BASE_DATA:
        return True
    if end_micros is None:
        return False
    stream = [channel for channel in described.channels if channel.channel_type is ChannelType.STREAM]
    left = [channel for channel in stream if channel.status is not ChannelStatus.TERMINATED]
    if stream and not left and described.info.config is not None and described.info.config.end_micros is not None:
        return True
    return bool(stream) and all(channel.consume_point_micros > end_micros for channel in left or stream)


def read_up_to(leases: Mapping[str, Lease], listing: Mapping[str, Shard], consumed: Mapping[str, int]) -> int | None:
    """Return the time up to which everything in the stream was read, in microseconds; ``None`` if no shard tells.

    ``consumed`` maps each shard with a row to the time up to which it was read, 0 if nothing was. ``listing`` is
    younger than ``leases``. A child's changes are later than its parents' changes. So a shard was read at least up to
    its finished parents. A shard that waits for parents does not count. A finished shard counts until a shard after it
    is known, because a closed shard always has one.
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
    """The pieces of the table, then its change stream, with leases in a status table, which keeps the progress."""

    worker: Worker | None = field(init=False, default=None)
    _table: SourceTable = field(init=False)
    _leases: LeaseManager | None = field(init=False, default=None)
    _stream: CopiedStream | None = field(init=False, default=None)
    _worker_name: OwnName = field(init=False, factory=lambda: OwnName("replication"))
    _consumed_micros: int = field(init=False, default=0)
    """The latest time up to which everything was seen to be read. It stays true later."""

    def __attrs_post_init__(self) -> None:
        self._table = SourceTable(self.client, self.settings.reader.table_name)

    def prepare(self) -> str:
        """Find the stream, make the status table, and plan the copy there."""
        settings, stream_id = self.settings, self._table.stream().stream_id
        leases = LeaseManager(self.client, settings.status_table_name, stream_id)
        leases.create_lease_table_if_not_exists()
        if not leases.wait_until_lease_table_ready():
            problem = leases.table_problem
            because = "" if problem is None else f": {problem}"
            raise DependencyException(
                f"status table {settings.status_table_name!r} does not answer; begin again when it does{because}"
            )
        self._stream = CopiedStream.of(self._table, settings.status_table_name, stream_id, settings.piece_mebibytes)
        self._leases = leases
        stage = self._stage(leases, self._stream)
        return f"reading the stream of {self._table.name!r} with leases in {settings.status_table_name!r}: {stage}"

    def _stage(self, leases: LeaseManager, stream: CopiedStream) -> str:
        try:
            pieces = [lease for lease in leases.list_leases() if lease.lease_key in stream.pieces]
        except DependencyException as error:  # the worker waits until that is over
            return f"progress is not known at the moment: {error}"
        rows = sum(lease.progress.records for lease in pieces if lease.progress is not None)
        is_full = sum(lease.is_finished for lease in pieces) < len(stream.pieces)
        return f"full data after {counted(rows, 'row')}" if is_full else "changes"

    def start(self) -> None:
        """Begin to read, in a thread of the worker."""
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
        self.worker.__enter__()  # ``stop`` ends it

    def state(self) -> Snapshot:
        """Return how far pieces and shards were read, by all processes."""
        assert self._leases is not None  # prepare has made both
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
        """The health: whether the source is read, and no changes are lost."""
        return health_of(super().health, self._statuses().values())

    def _consumed(self, lease: Lease, status: ShardStatus | None) -> int:
        """Return the time up to which a shard was read.

        It is the time of the newest record, or the present if the shard is caught up.
        """
        newest = lease.progress.record_micros if lease.progress is not None else 0
        if lease.is_finished:
            return newest
        now = now_micros()
        is_caught_up = status.lag_seconds == 0 if status is not None else self._is_elsewhere_caught_up(lease, newest)
        return max(newest, now) if is_caught_up else newest

    def _is_elsewhere_caught_up(self, lease: Lease, newest: int) -> bool:
        """Return whether a shard of another process has no record after its checkpoint.

        The service is asked only if that counts. Otherwise an idle shard would never be past an end time here, and this
        process would never be complete.
        """
        end = self.settings.end_time_micros
        if end is None or newest > end + CLOCKS_MARGIN_MICROS or lease.checkpoint == CheckpointPosition.TRIM_HORIZON:
            return False
        try:
            page = self._table.api.get_stream_record(lease.checkpoint, 1)
        except StreamClientError:  # for its owner to deal with
            return False
        # At an end it is not caught up: its owner stores that soon, and a page that was cut looks like one.
        return not (page.records or page.may_more_record or page.next_position.is_shard_end)

    def stop(self) -> None:
        """End reading; the status table keeps the progress."""
        self._table.stop.set()
        super().stop()
