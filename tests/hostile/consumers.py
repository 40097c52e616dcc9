"""The consumers of the table, each over a proxy: started, watched for what they say, started again where they end."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient import Backoff, CallLimits
from streamclient.base.reasons import ReasonKind
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying import MergeLimits, Mirror
from streamclient.copying.mirror_comparison import compare
from streamclient.copying.replication import Replication
from streamclient.copying.replication_settings import Endpoint, Settings, SourceKind
from streamclient.copying.source_table import SourceTable
from streamclient.destinations import DeltaDestination
from streamclient.destinations.commit import Destination, MergingDestination
from streamclient.errors import StreamClientError
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShardStatus, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.spark.source.offsets import StreamOffset
from streamclient.spark.source.partition_reading import RangeReader, StreamPages, StreamService
from streamclient.spark.source.planner import StreamPlanner
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.tunnel_planner import PlannedPages, TunnelPlanner, TunnelService
from streamclient.tablestore import ReadRetry, TablestoreStreamApi, with_integrity
from streamclient.tablestore.following import FollowedRecord, Interruption, LostRecords, StreamFollower
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig
from streamclient.worker import Worker
from tests.hostile.judge import Act, Journal
from tests.hostile.proxy import CLIENT_SECONDS
from tests.hostile.scene import COPIES, LEASES, MOST_ROUNDS, TABLE, Scene, column
from tests.hostile.table import (
    MIRROR,
    REPLICATE,
    SOURCE,
    TAIL,
    TUNNEL,
    TUNNEL_REPLICATE,
    TUNNEL_SOURCE,
    WORKER,
    Connection,
)
from tests.patience import PATIENCE_SECONDS

QUICK = ClientConfig(
    renewer_interval_millis=300,
    taker_interval_millis=300,
    sync_shard_interval_millis=300,
    max_idle_poll_interval_millis=100,
    backoff=Backoff(restart_backoff_min_millis=20, restart_backoff_max_millis=100),
    max_duration_before_last_successful_renew_or_take_lease=1_000,
    limits=CallLimits(checkpoint_timeout_millis=5_000),
    max_wait_table_ready_time_millis=2_000,
)
"""The lease is as long as ever: a machine that is busy does not lose it."""


@frozen(kw_only=True)
class QuickRetry(ReadRetry):
    """The patience of a read, where users can set it and where they cannot."""

    retries: int = 2
    shortest_pause_millis: int = 1
    longest_pause_millis: int = 10
    total_millis: int = 2_000


LIMITS = MergeLimits(max_age_seconds=0.05, expiry_seconds=0.1)
PAUSE_SECONDS = 0.02
TROUBLE = {ReasonKind.READING, ReasonKind.CHECKPOINT, ReasonKind.PROCESSOR, ReasonKind.DECISION}
"""Reasons of a shard that name trouble; others are told of healthy ones, too."""


def written_by(record: StreamRecord) -> tuple[int, int]:
    """Key and value of a record of the scene."""
    return int(record.key["id"]), int(record.columns[0].value)  # type: ignore[arg-type]  # the scene writes integers


class NotingProcessor(IRecordProcessor):
    """Notes each record, and that it is stored."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._life = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._life = f"{initialization_input.shard_info.shard_id}/{uuid.uuid4().hex[:6]}"
        self._journal.note(Act.BEGAN, self._life)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._journal.deliver(self._life, map(written_by, process_records_input.records))
        process_records_input.checkpointer.checkpoint()
        self._journal.note(Act.STORED, self._life)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


@frozen
class NotingProcessors(IRecordProcessorFactory):
    """Makes these."""

    journal: Journal

    def create_processor(self) -> NotingProcessor:
        return NotingProcessor(self.journal)


@define(eq=False)
class Consumer(ABC):
    """One consumer, run in a thread, and run again when it ends with an error."""

    scene: Scene
    endpoint: str
    connection: Connection
    journal: Journal
    directory: Path
    stop_asked: threading.Event = field(factory=threading.Event)
    runs: int = 0
    _thread: threading.Thread | None = None

    def prepare(self) -> None:  # noqa: B027  # most need nothing
        """What has to be there before the first record is written."""

    @property
    def most_runs(self) -> int:
        """A consumer that ends so often with an error does not go on."""
        return 200

    @property
    def stores_place(self) -> bool:
        """Whether a later life goes on where this one ends."""
        return True

    def start(self) -> None:
        """Run in a thread."""
        self.stop_asked.clear()
        self._thread = threading.Thread(target=self._work, name="hostile-consumer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self.stop_asked.is_set() and self.runs < self.most_runs:
            self.runs += 1
            try:
                self.run()
            except StreamClientError as error:
                self.journal.note(Act.ENDED, text=str(error))
                self.stop_asked.wait(PAUSE_SECONDS)
            except BaseException as error:
                self.journal.note(Act.CRASHED, text=repr(error))
                return

    @abstractmethod
    def run(self) -> None:
        """Consume until ``stop``, or an error."""

    def stop(self) -> bool:
        """End; whether it did."""
        self.stop_asked.set()
        self.let_go()
        assert self._thread is not None
        self._thread.join(PATIENCE_SECONDS / 10)
        return not self._thread.is_alive()

    def let_go(self) -> None:  # noqa: B027  # some look at ``stop_asked``
        """Have ``run`` return."""

    @property
    def is_ready(self) -> bool:
        """Whether it has begun, so that what is written now comes to one that is under way."""
        return self.journal.has_deliveries

    @property
    def trouble(self) -> str:
        """What it says just now that does not work; empty for nothing."""
        return ""

    @property
    def is_even(self) -> bool:
        """Whether it has all that was written."""
        return self.journal.has(self.scene.written)

    def problems(self) -> list[str]:
        """What is wrong at the end, beside deliveries."""
        return []

    def client(self) -> OTSClient:
        """For what is consumed."""
        local = self.scene.local
        made = OTSClient(
            self.endpoint,
            local.access_key_id,
            local.access_key_secret,
            local.instance,
            socket_timeout=CLIENT_SECONDS,
            logger_name="tests.hostile",
        )
        return with_integrity(made, self.connection.integrity)


def trouble_of(statuses: Sequence[ShardStatus]) -> str:
    """The first trouble of a shard."""
    found = (f"{one.shard_id}: {one.reason}" for one in statuses if one.reason_kind in TROUBLE)
    return next(found, "")


class WorkerConsumer(Consumer):
    """A worker on leases."""

    _worker: Worker | None = None

    def run(self) -> None:
        self.run_worker(NotingProcessors(self.journal))

    def run_worker(self, processors: IRecordProcessorFactory) -> None:
        """Run until ``let_go``."""
        config = StreamConfig(client=self.client(), data_table_name=TABLE, status_table_name=LEASES)
        self._worker = Worker("hostile", QUICK, config, processors)
        if not self.stop_asked.is_set():
            self._worker.run()

    def let_go(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()

    @property
    def trouble(self) -> str:
        worker = self._worker
        if worker is None:
            return ""
        return worker.health.reason or trouble_of(list(worker.shard_statuses().values()))


class TunnelConsumer(Consumer):
    """A tunnel worker."""

    _worker: TunnelWorker | None = None
    _tunnel_id = ""

    def prepare(self) -> None:
        self._tunnel_id = TunnelClient(self.scene.client).create_tunnel(TABLE, "t", TunnelType.STREAM)

    def run(self) -> None:
        config = TunnelWorkerConfig(
            heartbeat_interval_seconds=1,
            heartbeat_timeout_seconds=5,
            max_retry_interval_millis=100,
            checkpoint_interval_millis=50,
            client_config=QUICK,
        )
        tunnels = TunnelClient(self.client(), retry=QuickRetry(), data_retry=QuickRetry())
        self._worker = TunnelWorker(self._tunnel_id, tunnels, NotingProcessors(self.journal), config)
        if not self.stop_asked.is_set():
            self._worker.run()

    def let_go(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()

    @property
    def trouble(self) -> str:
        worker = self._worker
        if worker is None:
            return ""
        return worker.health.reason or trouble_of(list(worker.channel_statuses().values()))


class TailConsumer(Consumer):
    """Somebody who follows the stream; it begins anew with each run."""

    _interruption = ""

    @property
    def stores_place(self) -> bool:
        return False

    def run(self) -> None:
        api = TablestoreStreamApi(self.client(), retry=QuickRetry(), stop=self.stop_asked)
        life = f"tail {self.runs}"
        streams = api.list_stream(TABLE)
        if not streams:
            raise StreamClientError(f"table {TABLE} has no stream")
        for change in StreamFollower(api, streams[0].stream_id, stop=self.stop_asked).changes():
            match change:
                case FollowedRecord():
                    self._interruption = ""
                    self.journal.deliver(life, [written_by(change.record)])
                case Interruption():
                    self._interruption = str(change.error)
                    self.journal.note(Act.SAID, life, self._interruption)
                case LostRecords():
                    self.journal.note(Act.CRASHED, life, f"records of {change.shard_id} are told to be lost")

    @property
    def trouble(self) -> str:
        return self._interruption


class ReplicateConsumer(Consumer):
    """A replication into another table of the server, which is not reached through the proxy."""

    kind = SourceKind.STREAM
    _replication: Replication | None = None
    _shown = ""
    _said = ""

    def run(self) -> None:
        local = self.scene.local
        settings = Settings(
            reader=Endpoint(endpoint=self.endpoint, table_name=TABLE),
            writer=Endpoint(endpoint=local.endpoint, table_name=COPIES),
            source=self.kind,
            tunnel_name="t",
            status_table_name=LEASES,
        )
        made = Replication(settings, self._say, self._show, stop=self.stop_asked, poll_seconds=PAUSE_SECONDS)
        outcome = made.run()
        if outcome.error is not None:
            raise outcome.error

    def _say(self, text: str) -> None:
        if "not read" in text or "not known" in text:
            self._said = text
            self.journal.note(Act.SAID, text=text)

    def _show(self, line: str) -> None:
        self._shown, self._said = line, ""

    @property
    def is_ready(self) -> bool:
        return bool(self._shown) and "full data" not in self._shown

    @property
    def trouble(self) -> str:
        return self._said

    @property
    def is_even(self) -> bool:
        return not self.problems()

    def problems(self) -> list[str]:
        if COPIES not in self.scene.client.list_table():
            return ["the table is not replicated"]
        there, here = self.scene.rows(TABLE), self.scene.rows(COPIES)
        return [f"lost: row {key} is {here.get(key)}" for key, row in there.items() if here.get(key) != row]


class TunnelReplicateConsumer(ReplicateConsumer):
    """The same over a tunnel of full data and changes."""

    kind = SourceKind.TUNNEL


class MirrorConsumer(Consumer):
    """A mirror into a Delta table."""

    _mirror: Mirror | None = None

    def run(self) -> None:
        self.run_mirror(str(self.directory / "mirror"))

    def run_mirror(self, to: MergingDestination | str, history: Destination | None = None) -> None:
        """Run until ``let_go``."""
        named = {"worker_name": "hostile", "client_config": QUICK, "limits": LIMITS, "history": history}
        self._mirror = Mirror(self.client(), TABLE, LEASES, to, **named)
        if not self.stop_asked.is_set():
            self._mirror.run()

    def let_go(self) -> None:
        if self._mirror is not None:
            self._mirror.shutdown()

    @property
    def is_ready(self) -> bool:
        return self._mirror is not None and self._mirror.is_copied

    @property
    def trouble(self) -> str:
        mirror = self._mirror
        if mirror is None:
            return ""
        worker = mirror.worker
        statuses = [] if worker is None else list(worker.shard_statuses().values())
        return mirror.health.reason or trouble_of(statuses)

    @property
    def is_even(self) -> bool:
        return self.is_ready and not self.problems()

    def opened(self) -> MergingDestination:
        """The mirror, for a comparison."""
        return DeltaDestination(str(self.directory / "mirror"))

    def problems(self) -> list[str]:
        source = SourceTable(self.scene.client, TABLE, threading.Event())
        destination = self.opened()
        try:
            destination.key_by(["id"])
            found = compare(source, destination)
        except StreamClientError as error:
            return [f"the mirror cannot be compared: {error}"]
        finally:
            destination.close()
        pending = [f"lost: {found.pending} changes are not merged"] if found.pending else []
        return [*pending, *(f"lost: {difference}" for difference in found.differences[:5])]


class SourceConsumer(Consumer):
    """A streaming query as Spark drives it: batches that are planned, read, and committed or repeated."""

    _committed = StreamOffset()
    batch_records = 40

    def run(self) -> None:
        local = self.scene.local
        given = {
            "endpoint": self.endpoint,
            "instance": local.instance,
            "table": TABLE,
            "accessKeyId": local.access_key_id,
            "accessKeySecret": local.access_key_secret,
        }
        planner, pages = self.parts(given)
        columns = pa.schema([(name, pa.int64()) for name in ("id", *map(column, range(MOST_ROUNDS)))])
        reader = RangeReader(pages, columns)
        try:
            while not self.stop_asked.is_set():
                self._batch(planner, reader)
        finally:
            planner.close()

    def parts(self, given: dict[str, str]) -> tuple[StreamPlanner, Any]:
        """Planner and pages of a query with these options."""
        options = SourceOptions.read(given, {})
        service = StreamService(options.connection)
        return StreamPlanner(options, service.streams(), service.summary), StreamPages(service)

    def _batch(self, planner: StreamPlanner, reader: RangeReader) -> None:
        end = planner.latest(self._committed, self.batch_records, None)
        if end is self._committed:
            self.stop_asked.wait(PAUSE_SECONDS)
            return
        rows: list[dict[str, Any]] = []
        for part in planner.ranges(self._committed, end):
            for batch in reader.read(part):
                rows += batch.to_pylist()
        self.journal.deliver("query", [(row.pop("id"), next(filter(None, row.values()))) for row in rows])
        self._committed = StreamOffset.from_json(end.to_json())
        planner.committed(self._committed)


class TunnelSourceConsumer(SourceConsumer):
    """The same over a tunnel."""

    _tunnel_id = ""

    def prepare(self) -> None:
        self._tunnel_id = TunnelClient(self.scene.client).create_tunnel(TABLE, "t", TunnelType.STREAM)

    def parts(self, given: dict[str, str]) -> tuple[StreamPlanner, Any]:
        options = SourceOptions.read({**given, "tunnelId": self._tunnel_id}, {})
        service = TunnelService(options.connection, TABLE, self._tunnel_id)
        return TunnelPlanner.of(options, service), PlannedPages(service)


CONSUMER_CLASSES: dict[str, type[Consumer]] = {
    WORKER.name: WorkerConsumer,
    TUNNEL.name: TunnelConsumer,
    TAIL.name: TailConsumer,
    REPLICATE.name: ReplicateConsumer,
    MIRROR.name: MirrorConsumer,
    SOURCE.name: SourceConsumer,
    TUNNEL_REPLICATE.name: TunnelReplicateConsumer,
    TUNNEL_SOURCE.name: TunnelSourceConsumer,
}
