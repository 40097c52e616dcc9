"""Puts the parts of a running worker together, and takes them apart."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from attrs import frozen

from streamclient.config import ClientConfig, StreamConfig
from streamclient.core.events import Event
from streamclient.core.holdings import Holdings
from streamclient.interfaces import IMetrics, IRecordProcessor
from streamclient.lease.store import LeaseStore, WorkerDirectory
from streamclient.pools import DaemonPool
from streamclient.stream.api import StreamApi
from streamclient.worker.consumer_parts import ConsumerParts
from streamclient.worker.coordinator import Coordinator
from streamclient.worker.instruments import Instruments
from streamclient.worker.loop import OwnerLoop, drive
from streamclient.worker.prefetch import PrefetchBudget
from streamclient.worker.published_info import PublishedInfo
from streamclient.worker.reads import ReadQueue
from streamclient.worker.runtime import Runtime
from streamclient.worker.scheduling import SharedSchedule
from streamclient.worker.service import ServiceCalls
from streamclient.worker.stream_facts import StreamFacts
from streamclient.worker.usercode import UserCode

FETCH_THREADS = 128
"""Reads under way at once: with up to so many shards, none waits for another's read, however long that takes. A thread
exists only while all others are reading."""

USER_THREADS = 256
"""Threads of the default executor. One exists only while all others are inside user code, so this is reached only if so
many processors block at once; further shards then wait for their turn."""

JOIN_SECONDS = 1.0
"""How long a worker that has ended waits for its own idle threads. Those inside a call that hangs are left: they are
daemons and keep no process alive."""


class SharedParts:
    """What all streams of a worker share: threads, the schedule, and the bytes that may be read ahead."""

    def __init__(
        self, worker_identifier: str, client_config: ClientConfig, executor: Executor | None, runtime: Runtime
    ) -> None:
        self.client_config = client_config
        self.runtime = runtime
        self.status_pool = runtime.make_pool(f"{worker_identifier}-status", client_config.renew_thread_pool_size)
        self.renew_pool = runtime.make_pool(f"{worker_identifier}-renew", client_config.renew_thread_pool_size)
        self.fetch_pool = runtime.make_pool(f"{worker_identifier}-fetch", FETCH_THREADS)
        self.reads = ReadQueue(self.fetch_pool)
        self.executor = executor or runtime.make_pool(f"{worker_identifier}-processor", USER_THREADS)
        self.prefetch = PrefetchBudget(client_config.prefetch_total_bytes)
        self.schedule = SharedSchedule(runtime.start_schedule)
        self._own_pools = [self.status_pool, self.renew_pool, self.fetch_pool, *([] if executor else [self.executor])]

    def close(self) -> None:
        """Stop the schedule and every thread that is not inside a call that hangs."""
        self.schedule.stop()
        for pool in self._own_pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._own_pools:
            if isinstance(pool, DaemonPool):
                pool.join(JOIN_SECONDS)


@frozen(kw_only=True)
class StreamInputs:
    """What one stream of a worker was given, resolved."""

    worker_identifier: str
    stream_id: str
    stream_config: StreamConfig
    store: LeaseStore
    directory: WorkerDirectory | None
    """The worker rows of the store, if it keeps any."""
    stream_api: StreamApi
    make_processor: Callable[[], IRecordProcessor]
    metrics: IMetrics
    """With the labels of the stream and the worker."""


class StreamParts:
    """A coordinator with its inbox, on the threads that it shares with those of other streams."""

    def __init__(self, given: StreamInputs, shared: SharedParts) -> None:
        config = shared.client_config
        self._given = given
        self.shared = shared
        self.loop = OwnerLoop(shared.runtime.monotonic)
        self.user_code = UserCode(shared.executor, self.loop)
        published = PublishedInfo(config.lease_duration_millis, shared.runtime.wall_micros())
        holdings = _holdings(given, shared, published.text)
        self.instruments = Instruments(given.metrics, given.worker_identifier, holdings.held, self.loop.now)
        self.coordinator = Coordinator(
            holdings=holdings,
            instruments=self.instruments,
            published=published,
            loop=self.loop,
            make_service=self._service,
            make_consumer_parts=self._consumer_parts,
            shutdown_timeout_millis=config.shutdown_timeout_millis,
        )

    def run(self, failed: Callable[[Exception], None]) -> None:
        """Own the state in this thread until stopped; ``failed`` is called here at once with what makes it fail."""
        self.shared.schedule.join([each.job() for each in self.coordinator.recurring])
        try:
            drive(self.coordinator, failed)
        finally:
            self.coordinator.close()

    def _service(self, emit: Callable[[Event], None]) -> ServiceCalls:
        given = self._given
        return ServiceCalls(
            stream_id=given.stream_id,
            store=given.store,
            directory=given.directory,
            stream_api=given.stream_api,
            loop=self.loop,
            status_pool=self.shared.status_pool,
            renew_pool=self.shared.renew_pool,
            fetch_pool=self.shared.fetch_pool,
            emit=emit,
            wall_micros=self.shared.runtime.wall_micros,
        )

    def _consumer_parts(self, coordinator: Coordinator) -> ConsumerParts:
        given, shared = self._given, self.shared
        return ConsumerParts(
            loop=self.loop,
            user_code=self.user_code,
            fetch_pool=shared.fetch_pool,
            reads=shared.reads,
            prefetch=shared.prefetch,
            stream_api=given.stream_api,
            make_processor=given.make_processor,
            config=shared.client_config,
            table_name=given.stream_config.data_table_name,
            max_records=given.stream_config.max_records,
            dice=shared.runtime.dice,
            facts=StreamFacts(shared.runtime.wall_micros, shared.client_config.max_idle_poll_interval_millis),
            wall_micros=shared.runtime.wall_micros,
            wait=shared.runtime.wait,
            send_checkpoint=coordinator.send_checkpoint,
            ended=coordinator.consumer_ended,
            stalled=coordinator.consumer_stalled,
            instruments=self.instruments,
        )


def _holdings(given: StreamInputs, shared: SharedParts, info: str) -> Holdings:
    runtime = shared.runtime
    return Holdings(
        given.worker_identifier,
        given.stream_id,
        shared.client_config,
        given.stream_config.initial_position,
        runtime.dice,
        new_identifier=runtime.new_identifier,
        wall_start_micros=runtime.wall_micros(),
        has_worker_rows=given.directory is not None,
        info=info,
    )
