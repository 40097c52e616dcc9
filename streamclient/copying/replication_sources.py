"""Where a replication reads: a tunnel, or the change stream with leases. Both answer the same few questions."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Protocol

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.base.processes import OwnName, process_space, process_state, unique_name
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_settings import Settings
from streamclient.copying.table_copy import FullCopy
from streamclient.core.shard_tree import ShardTree
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import DependencyException, StreamClientError, StreamClientException, WorkerFailedError
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard, WorkerStatus
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tunnel import (
    ChannelStatus,
    ChannelType,
    TunnelClient,
    TunnelDescription,
    TunnelInfo,
    TunnelStage,
    TunnelType,
    TunnelWorker,
    TunnelWorkerConfig,
)
from streamclient.worker import Worker
from streamclient.worker.health import WorkerHealth
from streamclient.worker.lease import LeaseManager

_log = logs.logger(__name__)

HEARTBEAT_SECONDS = 5
HEARTBEAT_TIMEOUT_SECONDS = 30
"""Shorter than the defaults: a replication on another machine that died should not hold its channels for minutes."""

_CLIENT_ID = re.compile(r"replicate-([0-9a-f]{12})-.*-(\d+)-[0-9a-f]{8}(?![0-9a-f])")
"""How the id of a replication's session begins where the system says what process ids count in: that, then
``unique_name``. A session whose id does not begin so ends by its time-out alone."""

_CLIENT_CONFIG = ClientConfig(deliver_empty_batches=True)
"""Empty batches are delivered for their position, so that an idle source's progress moves on."""


@frozen(kw_only=True)
class SourceState:
    """How far the source was read."""

    is_full: bool
    """Whether full data is still being read."""
    channels_done: int = 0
    channels_total: int = 0
    created_micros: int = 0
    consumed_micros: int = 0
    is_past: bool = False
    """Whether everything up to the end time was read, if there is one."""


class Source(Protocol):
    """A running source."""

    def start(self) -> None:
        """Begin to read; returns at once."""

    def state(self) -> SourceState:
        """How far it is; may call the service."""

    @property
    def exception(self) -> BaseException | None:
        """What ended it, if it ended by itself."""

    @property
    def health(self) -> WorkerHealth:
        """Whether it gets through to the service."""

    def stop(self) -> None:
        """Finish running batches, store their positions, and end."""


@define(eq=False)
class TunnelSource:
    """Full data and increments through the Tunnel Service; progress is kept there."""

    client: OTSClient
    settings: Settings
    processors: ReplicationProcessors
    tunnels: TunnelClient = field(init=False)
    was_made: bool = field(init=False, default=False)
    info: TunnelInfo | None = field(init=False, default=None)
    _worker: TunnelWorker | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.tunnels = TunnelClient(self.client)

    def prepare(self) -> str:
        """Find the tunnel of that name, or make it; says which."""
        table, name = self.settings.reader.table_name, self.settings.tunnel_name
        found = [info for info in self.tunnels.list_tunnel(table) if info.tunnel_name == name]
        if not found:
            self.tunnels.create_tunnel(table, name, TunnelType.BASE_AND_STREAM)
            self.was_made = True
        self.info = self.tunnels.describe_tunnel(table, name).info
        what = "made" if self.was_made else "going on with"
        return f"{what} tunnel {name!r} ({self.info.tunnel_type.value}, {self.info.tunnel_id})"

    def start(self) -> None:
        """Begin to read, in the run that made the tunnel too."""
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
        self._worker = TunnelWorker(self.info.tunnel_id, self.tunnels, self.processors, config)
        self._worker.connect_and_working()

    def _end_dead_sessions(self, tunnel_id: str) -> None:
        """Free the channels of replications that were killed, where that is certain; others end by their time-out."""
        described = self.tunnels.describe_tunnel(self.settings.reader.table_name, self.settings.tunnel_name)
        for client_id in {channel.client_id for channel in described.channels}:
            if _is_dead(client_id):
                _log.info("ending the session %s of a replication that was killed", client_id)
                self.tunnels.shutdown(tunnel_id, client_id)

    def state(self) -> SourceState:
        """How far the tunnel is."""
        described = self.tunnels.describe_tunnel(self.settings.reader.table_name, self.settings.tunnel_name)
        is_full = described.info.stage is not TunnelStage.PROCESS_STREAM
        kind = ChannelType.BASE_DATA if is_full else ChannelType.STREAM
        channels = [channel for channel in described.channels if channel.channel_type is kind]
        return SourceState(
            is_full=is_full,
            channels_done=sum(channel.status is ChannelStatus.TERMINATED for channel in channels),
            channels_total=len(channels),
            created_micros=described.info.create_time_micros,
            consumed_micros=described.consume_point_micros,
            is_past=not is_full and _is_past(described, self.settings.end_time_micros),
        )

    @property
    def exception(self) -> BaseException | None:
        """What ended the worker."""
        return None if self._worker is None else self._worker.exception

    @property
    def health(self) -> WorkerHealth:
        """That of the worker."""
        return WorkerHealth(is_healthy=True) if self._worker is None else self._worker.health

    def stop(self) -> None:
        """End the worker; the tunnel stays, and the next run goes on."""
        if self._worker is not None:
            self._worker.shutdown()


def _is_dead(client_id: str) -> bool:
    """Whether a session is a replication's whose process id is one of those here, and nobody has it any more.

    The name of a host does not tell: containers share it, and each counts its processes from 1.
    """
    found = _CLIENT_ID.match(client_id)
    return found is not None and found[1] == process_space() and process_state(int(found[2])) is None


def _is_past(described: TunnelDescription, end_micros: int | None) -> bool:
    """Whether every channel of increments was consumed beyond the end time, save finished ones with others after them.

    If all of them are finished, those that follow are not listed yet, unless the tunnel itself has an end.
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
    """Up to when everything in the stream was read, in microseconds since 1970; ``None`` if no shard tells.

    ``consumed`` says how far each shard with a row is, 0 if nothing was read of it; ``listing`` is younger than
    ``leases``. Changes of a shard are later than those of its parents. So a shard is at least as far as its finished
    parents; one that waits for parents, with or without a row, does not count; and a finished one counts until
    something after it is known, as a closed shard always has some.
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
class StreamSource:
    """Full data by a scan, then the change stream with leases; progress is kept in a status table.

    The scan begins after the moment from which changes are read, so nothing falls in between; what changed during the
    scan comes twice, the second time in order.
    """

    client: OTSClient
    settings: Settings
    processors: ReplicationProcessors
    _copy: FullCopy = field(init=False)
    _worker: Worker | None = field(init=False, default=None)
    _error: BaseException | None = field(init=False, default=None)
    _thread: threading.Thread | None = field(init=False, default=None)
    _stop: threading.Event = field(init=False, factory=threading.Event)
    _leases: LeaseManager | None = field(init=False, default=None)
    _stream_id: str = field(init=False, default="")
    _worker_name: OwnName = field(init=False, factory=lambda: OwnName("replication"))
    _consumed_micros: int = field(init=False, default=0)
    """The latest point up to which everything was seen to be read; it stays read."""

    def __attrs_post_init__(self) -> None:
        table, status_table = self.settings.reader.table_name, self.settings.status_table_name
        self._copy = FullCopy(self.client, table, status_table, self.processors, self._stop)

    def prepare(self) -> str:
        """Find the stream and make the status table."""
        name = self.settings.reader.table_name
        streams = TablestoreStreamApi(self.client).list_stream(name)
        if not streams:
            raise StreamClientException(
                f"table {name!r} has no stream; enable it by UpdateTable with a StreamSpecification, or use a tunnel"
            )
        self._stream_id = streams[0].stream_id
        self._leases = LeaseManager(self.client, self.settings.status_table_name, self._stream_id)
        self._leases.create_lease_table_if_not_exists()
        if not self._leases.wait_until_lease_table_ready():
            problem = self._leases.table_problem
            because = "" if problem is None else f": {problem}"
            raise DependencyException(
                f"status table {self.settings.status_table_name!r} does not answer; begin again when it does{because}"
            )
        self._copy.load(self._stream_id)
        stage = "changes" if self._copy.is_done else f"full data after {self._copy.rows} rows"
        return f"reading the stream of {name!r} with leases in {self.settings.status_table_name!r}: {stage}"

    def start(self) -> None:
        """Scan in a thread, then read changes."""
        if self._leases is None:
            self.prepare()
        self._thread = start_thread(self._run, "replication")

    def _run(self) -> None:
        try:
            self._copy.run()
            if not self._stop.is_set():
                self._follow()
        except WorkerFailedError as failure:
            self._error = failure  # the worker has logged it
        except Exception as error:
            _log.error("replication of %s ends: %s", self.settings.reader.table_name, error)
            self._error = error

    def _follow(self) -> None:
        stream_config = StreamConfig(
            client=self.client,
            data_table_name=self.settings.reader.table_name,
            status_table_name=self.settings.status_table_name,
            initial_position=InitialPosition.at(self._copy.start_micros),
        )
        worker = Worker(str(self._worker_name), _CLIENT_CONFIG, stream_config, self.processors)
        self._worker = worker
        if not self._stop.is_set():
            worker.run()

    def state(self) -> SourceState:
        """How far scan and leases are."""
        is_full = not self._copy.is_done
        if self._leases is not None and not is_full:
            leases = {lease.lease_key: lease for lease in self._leases.list_leases()}
            api = TablestoreStreamApi(self.client)
            consumed = {key: self._consumed(lease, api) for key, lease in leases.items()}
            shards = api.describe_stream(self._stream_id).shards
            point = read_up_to(leases, {shard.shard_id: shard for shard in shards}, consumed)
            self._consumed_micros = max(self._consumed_micros, point or 0)
        end = self.settings.end_time_micros
        return SourceState(
            is_full=is_full,
            created_micros=self._copy.start_micros,
            consumed_micros=self._consumed_micros,
            is_past=end is not None and self._consumed_micros > end + CLOCKS_MARGIN_MICROS,
        )

    def _consumed(self, lease: Lease, api: TablestoreStreamApi) -> int:
        """Return how far a shard is read: to its newest record, or, if it is caught up, to the present."""
        newest = lease.progress.record_micros if lease.progress is not None else 0
        if lease.is_finished:
            return newest
        worker, now = self._worker, now_micros()
        status = None if worker is None else worker.shard_statuses().get(lease.lease_key)
        is_caught_up = (
            status.lag_seconds == 0 if status is not None else self._is_elsewhere_caught_up(lease, newest, api)
        )
        return max(newest, now) if is_caught_up else newest

    def _is_elsewhere_caught_up(self, lease: Lease, newest: int, api: TablestoreStreamApi) -> bool:
        """Whether a shard that another replication reads has nothing behind what is stored as done; asked if it counts.

        Idle, it would else be past no end time here, and this process never complete.
        """
        end = self.settings.end_time_micros
        if end is None or newest > end + CLOCKS_MARGIN_MICROS or lease.checkpoint == CheckpointPosition.TRIM_HORIZON:
            return False
        try:
            page = api.get_stream_record(lease.checkpoint, 1)
        except StreamClientError:  # for its owner to deal with
            return False
        # At an end it is not caught up: its owner stores that soon, and a page that was cut looks like one.
        return not (page.records or page.may_more_record or page.next_position.is_shard_end)

    @property
    def exception(self) -> BaseException | None:
        """What ended the scan or the worker."""
        if self._error is not None:
            return self._error
        return None if self._worker is None else self._worker.exception

    @property
    def health(self) -> WorkerHealth:
        """That of the worker; the scan tells its errors by itself."""
        return WorkerHealth(is_healthy=True) if self._worker is None else self._worker.health

    def stop(self) -> None:
        """End; the status table keeps how far it came."""
        self._stop.set()
        worker = self._worker
        if worker is not None and worker.worker_status is WorkerStatus.RUNNING:
            worker.shutdown()
        if self._thread is not None:
            self._thread.join()
