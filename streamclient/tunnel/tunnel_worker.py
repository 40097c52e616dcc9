"""``TunnelWorker``, which consumes a tunnel together with other workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from attrs import evolve

from streamclient.base import checks, logs
from streamclient.base.pools import DaemonPool, start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import WorkerHealth, described
from streamclient.config import ClientConfig
from streamclient.core.consumer.reading_pace import WorkerPace
from streamclient.core.tunnel.channel_turns import Turns
from streamclient.core.tunnel.tunnel_events import Event
from streamclient.core.tunnel.tunnel_session import SessionSettings, TunnelSession
from streamclient.errors import NoThreadError, StreamClientError, StreamClientException, WorkerFailedError, is_foreseen
from streamclient.metrics.labelled import labelled
from streamclient.model import ShardStatus, WorkerStatus
from streamclient.tunnel.channel_processors import TunnelProcessor, record_processor_maker, stores_by_itself
from streamclient.tunnel.tunnel_calls import TunnelCalls
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_config import UNLIMITED, TunnelWorkerConfig
from streamclient.tunnel.tunnel_coordinator import TunnelCoordinator
from streamclient.tunnel.tunnel_pages import ChannelPages
from streamclient.worker.consumer_parts import ConsumerParts
from streamclient.worker.handing_over import ProcessorMaker, ReceiverFactory, is_thread_of
from streamclient.worker.instruments import Instruments
from streamclient.worker.owner_loop import OwnerLoop, drive
from streamclient.worker.read_calls import OwnerReads, PrefetchBudget, ReadQueue
from streamclient.worker.running import EndedBySigterm, Running, wait_awake
from streamclient.worker.runtime import USER_THREADS, Runtime
from streamclient.worker.statuses import StreamFacts
from streamclient.worker.usercode import UserCode

_log = logs.logger(__name__)

CALL_THREADS = 16
"""The largest number of simultaneous calls about channels: lookups of checkpoints, checkpoints, and the search for lost
records. Further such calls wait for a thread, while heartbeats go on."""

SESSION_THREADS = 2
"""The number of threads for the calls that begin, keep and end a session: at most one heartbeat and one other call are
under way."""

JOIN_SECONDS = 1.0
"""The seconds for which an ended worker waits for its own idle threads."""

SHUTDOWN_GRACE_SECONDS = 5.0
"""The seconds that ``shutdown`` allows for closing threads, in addition to the configured time-out."""

QUIET_BEATS = 2
"""The smallest number of heartbeat intervals without an answered heartbeat after which a worker is unhealthy."""

STATUS_SECONDS = 10.0
"""The longest time, in seconds, to wait for an answer of the owner thread. The thread answers in milliseconds, unless
the process gets no processor time."""


@checks.explains_names
class TunnelWorker(Running):
    """Consumes a tunnel. The service distributes the tunnel's channels among all workers that consume it.

    ``run()`` blocks until ``shutdown()``. ``connect_and_working()`` runs the worker in a thread and returns, like the
    Java worker's method of that name. Used as a context manager, the worker runs in a thread until the block ends, and
    ``wait()`` blocks until the worker has ended. A worker runs once.

    The worker always replaces a lost session by a new session. It ends early, with the error in ``exception``, if the
    service says that consuming cannot go on: the tunnel does not exist or is expired, or consuming is not permitted.

    Args:
        tunnel_id: the id that ``TunnelClient.create_tunnel`` returned.
        client: a ``TunnelClient``, or a ``tablestore.OTSClient`` to make one from.
        processor: a function of records, or of records and a channel id; an ``async def`` of one ``AsyncBatch``; an
            ``IChannelProcessor``, or a factory of channel processors; a factory of record processors, such as the Spark
            processor's factory; or an ``AsyncRecordProcessor`` class.
        config: the settings of the worker.
        table_name: the name of the tunnel's table, for ``ShardInfo.table_name`` and ``Batch.table``. The worker does
            not ask the service for the name.
        runtime: clocks and threads, for tests.

    Raises:
        ConfigurationError: an argument is invalid; nothing has happened yet.
    """

    def __init__(
        self,
        tunnel_id: str,
        client: Any,
        processor: TunnelProcessor,
        config: TunnelWorkerConfig | None = None,
        *,
        table_name: str = "",
        runtime: Runtime | None = None,
    ) -> None:
        checks.identifier.require("tunnel_id", tunnel_id)
        checks.any_text.require("table_name", table_name)
        checks.optional(checks.instance(TunnelWorkerConfig)).require("config", config)
        checks.optional(checks.instance(Runtime)).require("runtime", runtime)
        self._tunnel_id, self._table_name = tunnel_id, table_name
        self._client = client if isinstance(client, TunnelClient) else TunnelClient(client)
        self._config = config if config is not None else TunnelWorkerConfig()
        super().__init__(end_on_sigterm=self._config.client_config.end_on_sigterm)
        self._runtime = runtime or Runtime()
        self._make_processor = record_processor_maker(
            processor, self._config.checkpoint_interval_millis, self._runtime.monotonic
        )
        self._client_config = _client_config(self._config, stores_by_itself(processor))
        self._lock = threading.Lock()
        self._is_begun = False
        self.is_refused: bool = False
        """Whether the worker was refused: it ended because the service said that consuming cannot go on. After a fault,
        the value is false."""
        self._thread: threading.Thread | None = None
        self._parts: _TunnelParts | None = None
        self._exception: BaseException | None = None

    def run(self) -> None:
        """Consume until ``shutdown()``, or until the service says that consuming cannot go on.

        A ``KeyboardInterrupt`` in this thread shuts the worker down like ``shutdown``, and is raised again after that.
        A second interrupt ends the worker immediately. In a program's main thread, SIGTERM also shuts the worker down,
        and raises ``SystemExit(143)``. A second SIGTERM is ignored. SIGTERM has no such effect if
        ``ClientConfig.end_on_sigterm`` is off, or if the program handles the signal itself.

        Raises:
            WorkerFailedError: the service said that consuming cannot go on, or this package has a fault. The message is
                the text in the log.
            StreamClientException: the worker has already run, or was shut down.
        """
        with EndedBySigterm(self._ends_on_sigterm) as sigterm:
            self._check_that_it_is_new()
            try:
                self._start(daemon=True)
                wait_awake(self._ended)
            except BaseException:
                sigterm.defer()
                self.shutdown(wait=False)
                wait_awake(self._ended)
                raise
        self._raise_failure()

    def connect_and_working(self) -> None:
        """Run in a thread, and return immediately (Java: ``connectAndWorking``).

        When the program's main thread ends, with or without an exception, the worker shuts down as by ``shutdown``, and
        the interpreter waits for its end (Java: a shutdown hook). The session of a killed process ends by its time-out.

        Raises:
            WorkerFailedError: the system refused a thread.
            StreamClientException: the worker has already run, or was shut down.
        """
        self._check_that_it_is_new()
        self._start(daemon=False)

    def _check_that_it_is_new(self) -> None:
        self._require_here()
        with self._lock:
            if self._is_begun or self._stop.is_set():
                raise StreamClientException(
                    f"the tunnel worker is {self.worker_status.value} and runs only once; make a new one"
                )
            self._is_begun, self._birthplace = True, Birthplace()

    def _start(self, *, daemon: bool) -> None:
        """Start the worker's own thread, so that the caller's thread stays free for interrupts."""
        try:
            self._thread = start_thread(self._work, f"tunnel-{self._tunnel_id}", daemon=daemon)
        except NoThreadError as error:
            self._fail(error)
            self._ended.set()
            self._raise_failure()

    def _work(self) -> None:
        try:
            parts = _TunnelParts(
                self._tunnel_id,
                self._table_name,
                self._client,
                make_processor=self._make_processor,
                config=self._config,
                client_config=self._client_config,
                runtime=self._runtime,
            )
            with self._lock:
                self._parts = parts
                if self._stop.is_set():
                    parts.coordinator.request_stop()
            parts.run(self._has_program_ended, self._fail)
            if parts.coordinator.error is not None:
                self.is_refused = True
                self._fail(parts.coordinator.error)
        except BaseException as error:  # also SystemExit, which would end the thread silently
            self._fail(error)
        finally:
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        """If ``error`` is the first error, remember and log it now, because the worker's shutdown may take long."""
        if self._exception is None:
            self._exception = error
            _log.error("%s", self._sentence, exc_info=None if is_foreseen(error) else error, extra={logs.ENDS: True})

    @property
    def _sentence(self) -> str:
        error = self._exception
        what = described(error) if error is not None and not is_foreseen(error) else error
        return f"tunnel worker of {self._tunnel_id} ends: {what}"

    def _owner_loops(self) -> Mapping[str, OwnerLoop]:
        parts = self._parts
        return {} if parts is None else {self._tunnel_id: parts.loop}

    def _has_failed(self) -> bool:
        return self._exception is not None

    def _raise_failure(self) -> None:
        error = self._exception
        if error is not None:
            raise WorkerFailedError.of({self._tunnel_id: self._sentence}, {self._tunnel_id: error})

    def shutdown(self, wait: bool = True) -> bool:
        """Finish running calls, store last checkpoints and end the session. Return whether the worker has ended.

        Usable from any thread. The call waits for the worker's end, at most for
        ``client_config.shutdown_timeout_millis`` and a few seconds. It does not wait with ``wait=False``, or in the
        worker's own threads.
        """
        self._require_here()
        with self._lock:
            self._stop.set()
            parts = self._parts
            if not self._is_begun:
                self._ended.set()
        if parts is not None:
            parts.coordinator.request_stop()
        if wait and not self._is_own_thread(parts):
            limit = self._config.client_config.shutdown_timeout_millis / 1_000 + SHUTDOWN_GRACE_SECONDS
            wait_awake(self._ended, limit)
        return self._ended.is_set()

    def _begin_in_thread(self) -> None:
        self.connect_and_working()

    def _end_thread(self) -> None:
        if self.shutdown() and self._thread is not None:
            self._thread.join(SHUTDOWN_GRACE_SECONDS)

    @property
    def worker_status(self) -> WorkerStatus:
        """The status: NOT_RUNNING before the start, then RUNNING; after the end SHUTDOWN or, after an error, ERROR.

        Usable from any thread.
        """
        if self._exception is not None:
            return WorkerStatus.ERROR
        if self._ended.is_set():
            return WorkerStatus.SHUTDOWN
        return WorkerStatus.NOT_RUNNING if not self._is_begun else WorkerStatus.RUNNING

    def use_processors(self, make: ProcessorMaker, executor: Executor | None = None) -> None:
        """Replace the maker of all channels' processors and, if given, their executor. Only possible before ``run``.

        The new processors store their own progress, as record processors do.
        """
        self._make_processor = make
        self._config = evolve(self._config, process_records_executor=executor or self._config.process_records_executor)
        self._client_config = _client_config(self._config, True)

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the work; ``None`` if no error did."""
        return self._exception

    @property
    def work_health(self) -> WorkerHealth:
        """The health of the worker: whether its session lives and its channels are read. Usable from any thread.

        A worker is unhealthy if calls of one kind have not succeeded for longer than a limit, although they were
        needed. The kinds are the calls that begin and keep a session, reads, and the storing of checkpoints. The limit
        is ``ClientConfig.max_duration_before_last_successful_renew_or_take_lease``, but at least ``QUIET_BEATS``
        heartbeat intervals. A worker that never connects becomes unhealthy, too, and so does a worker of which a single
        channel is not read for longer than the limit. An unhealthy worker goes on trying; only a failed worker does
        not. The property ``health`` of a running worker has the same value.
        """
        self._require_here()
        error, parts = self._exception, self._parts
        if error is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {described(error)}")
        return WorkerHealth(is_healthy=True) if parts is None else parts.coordinator.health

    @property
    def has_connected(self) -> bool:
        """Whether the service ever gave the worker a session. Usable from any thread."""
        return self._parts is not None and self._parts.coordinator.has_connected

    def channel_statuses(self) -> Mapping[str, ShardStatus]:
        """Return the status of every channel that this worker reads or has given up, by id. Usable from any thread.

        If a channel makes no progress, its status names the reason.
        """
        self._require_here()
        parts = self._parts
        if parts is None:
            return {}
        answered = threading.Event()
        current: dict[str, ShardStatus] = {}

        def reply(statuses: Mapping[str, ShardStatus]) -> None:
            current.update(statuses)
            answered.set()

        parts.coordinator.channel_statuses(reply)
        if not self._runtime.wait(answered, STATUS_SECONDS):
            raise StreamClientException(f"the worker of {self._tunnel_id} did not answer in {STATUS_SECONDS:.0f} s")
        return current

    @staticmethod
    def _has_program_ended() -> bool:
        """Return whether the program's main thread has ended. The process may still wait for the worker's thread."""
        return not threading.main_thread().is_alive()

    def _is_own_thread(self, parts: _TunnelParts | None) -> bool:
        is_owner = threading.current_thread() is self._thread
        return is_owner or is_thread_of(self._make_processor) or (parts is not None and parts.is_own_thread())


class _TunnelParts:
    """The objects of one run: the coordinator, its threads, and its calls to the service."""

    def __init__(
        self,
        tunnel_id: str,
        table_name: str,
        client: TunnelClient,
        *,
        make_processor: ProcessorMaker,
        config: TunnelWorkerConfig,
        client_config: ClientConfig,
        runtime: Runtime,
    ) -> None:
        self._tunnel_id, self._table_name, self._client = tunnel_id, table_name, client
        self._config, self._runtime = config, runtime
        self._make_processor = make_processor
        self._client_config = client_config
        self.loop = OwnerLoop(runtime.monotonic)
        self._pools: list[Executor] = []
        self._session_pool = self._own_pool("session", SESSION_THREADS)
        self._call_pool = self._own_pool("calls", CALL_THREADS)
        self._fetch = config.read_records_executor or self._own_pool("fetch", client_config.read_threads)
        executor = config.process_records_executor or self._own_pool("processor", USER_THREADS)
        self.user_code = UserCode(executor, self.loop)
        metrics = labelled(client_config.metrics, stream=tunnel_id, worker=config.client_tag)
        self._instruments = Instruments(metrics, config.client_tag, {}, self.loop.now)
        settings = SessionSettings(
            heartbeat_interval=float(config.heartbeat_interval_seconds),
            heartbeat_timeout=float(config.heartbeat_timeout_seconds),
            detects_closing=config.enable_closing_channel_detect,
        )
        self.coordinator = TunnelCoordinator(
            tunnel_id=tunnel_id,
            session=TunnelSession(settings, runtime.dice, new_identifier=runtime.new_identifier),
            turns=Turns(None if config.max_channel_parallel == UNLIMITED else config.max_channel_parallel),
            loop=self.loop,
            make_calls=self._calls,
            make_consumer_parts=self._consumer_parts,
            make_pages=self._pages,
            shutdown_timeout_millis=self._client_config.shutdown_timeout_millis,
            health_limit_seconds=max(
                client_config.max_duration_before_last_successful_renew_or_take_lease / 1_000,
                QUIET_BEATS * config.heartbeat_interval_seconds,
            ),
        )

    def run(self, has_program_ended: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        """Run until a stop is requested or the program has ended. Call ``failed`` with a fault of this package."""

        def look() -> None:
            if has_program_ended():
                self.coordinator.request_stop()

        try:
            drive(self.coordinator, failed, look)
        finally:
            self.coordinator.close()
            self._close_pools()

    def is_own_thread(self) -> bool:
        """Return whether the calling thread runs user code or a call to the service. Usable from any thread."""
        is_for_calls = any(isinstance(pool, DaemonPool) and pool.is_inside for pool in self._pools)
        return is_for_calls or self.user_code.is_inside()

    def _own_pool(self, name: str, threads: int) -> Any:
        pool = self._runtime.make_pool(f"{self._tunnel_id}-{name}", threads)
        self._pools.append(pool)
        return pool

    def _close_pools(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            if isinstance(pool, DaemonPool):
                pool.join(JOIN_SECONDS)
        if isinstance(self._make_processor, ReceiverFactory):
            self._make_processor.close()

    def _calls(self, emit: Callable[[Event], None]) -> TunnelCalls:
        return TunnelCalls(
            client=self._client,
            tunnel_id=self._tunnel_id,
            timeout_seconds=self._config.heartbeat_timeout_seconds,
            client_tag=self._config.client_tag,
            loop=self.loop,
            session_pool=self._session_pool,
            pool=self._call_pool,
            emit=emit,
        )

    def _pages(
        self, client_id: str, channel_id: str, answered: Callable[[StreamClientError | None], None]
    ) -> ChannelPages:
        return ChannelPages(
            answered=answered,
            client=self._client,
            tunnel_id=self._tunnel_id,
            client_id=client_id,
            channel_id=channel_id,
            most_pages=self._config.read_max_times_per_round,
            most_bytes=self._config.read_max_bytes_per_round,
        )

    def _consumer_parts(self, coordinator: TunnelCoordinator) -> ConsumerParts:
        config, runtime = self._client_config, self._runtime
        return ConsumerParts(
            loop=self.loop,
            user_code=self.user_code,
            reads=OwnerReads(ReadQueue(self._fetch), self.loop),
            prefetch=PrefetchBudget(config.prefetch.prefetch_total_bytes),
            pace=WorkerPace(config).table(),
            stream_api=self._pages("", "", lambda _: None),
            make_processor=self._make_processor,
            config=config,
            table_name=self._table_name,
            max_records=1,
            dice=runtime.dice,
            instruments=self._instruments,
            facts=StreamFacts(runtime.wall_micros),
            wall_micros=runtime.wall_micros,
            wait=runtime.wait,
            send_checkpoint=coordinator.send_checkpoint,
            confirm_end=lambda shard, read_at: True,  # only a complete page has the token that means the end
            ended=coordinator.consumer_ended,
            stalled=coordinator.consumer_stalled,
            page_came=coordinator.page_came,
            moves_when_idle=True,
        )


def _client_config(config: TunnelWorkerConfig, stores_by_itself: bool) -> ClientConfig:
    """Return the settings of the consumers: ``client_config``, changed as the tunnel's configuration requires.

    If the worker stores progress, empty pages are delivered, too, because an idle channel's position moves on with the
    log. If the number of simultaneous channels is limited, no page is read ahead, because the limit also protects
    memory.
    """
    given = config.client_config
    limited = config.max_channel_parallel != UNLIMITED
    return evolve(
        given,
        deliver_empty_batches=given.deliver_empty_batches or not stores_by_itself,
        max_idle_poll_interval_millis=max(config.max_retry_interval_millis, given.worker_idle_time_millis),
        prefetch=evolve(given.prefetch, prefetch_bytes=0) if limited else given.prefetch,
    )
