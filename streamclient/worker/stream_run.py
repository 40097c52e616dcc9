"""One stream of a worker, from the look-up of its tables until its last lease is handed over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from streamclient.base import checks, logs
from streamclient.base.backoff import doubling_millis
from streamclient.base.outages import OutageLog
from streamclient.base.pools import start_thread
from streamclient.base.reasons import WorkerHealth, described
from streamclient.config import ClientConfig, StreamConfig
from streamclient.core import events
from streamclient.core.costs import Cost
from streamclient.core.holdings import Holdings
from streamclient.errors import ConfigurationError, DependencyException, is_foreseen
from streamclient.interfaces import ILeaseManager, IMetrics
from streamclient.metrics.labelled import NO_METRICS, labelled
from streamclient.metrics.metric_table import UNHEALTHY
from streamclient.model import ShardStatus, TrimmedRange
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.consumer_parts import ConsumerParts, ordered_store
from streamclient.worker.coordinator import Coordinator
from streamclient.worker.cost_tally import CostTally
from streamclient.worker.handing_over import ProcessorMaker, ReceiverFactory, is_thread_of
from streamclient.worker.health import CallWatchdog
from streamclient.worker.instruments import Instruments
from streamclient.worker.lease.lease_store import (
    LeaseStore,
    WorkerDirectory,
    as_lease_store,
    as_order_notes,
    as_worker_directory,
    calls_verbs,
)
from streamclient.worker.owner_loop import OwnerLoop, drive
from streamclient.worker.read_calls import OwnerReads
from streamclient.worker.running import wait_awake
from streamclient.worker.runtime import SharedParts
from streamclient.worker.service_calls import ServiceCalls
from streamclient.worker.statuses import PublishedInfo, StreamFacts
from streamclient.worker.usercode import UserCode

_log = logs.logger(__name__)
_outages = OutageLog(_log)

Result = TypeVar("Result")

SHORTEST_PAUSE_MILLIS = 200
LONGEST_PAUSE_MILLIS = 20_000
"""The longest pause between two attempts of a call with which a worker starts. During an outage of the service, the
worker repeats the call until it succeeds."""


class StoppedEarly(Exception):  # not an error, because the program asked for the stop
    """The worker was stopped before it had begun to read the stream."""


class Persistence:
    """The repetition of the calls with which a worker starts, and the worker's health during the start.

    ``do`` repeats a call until it succeeds, until it fails for good, or until the worker is stopped.
    """

    def __init__(
        self,
        stop: threading.Event,
        wait: Callable[[threading.Event, float], bool],
        monotonic: Callable[[], float],
        limit_millis: int,
    ) -> None:
        """Begin without an action. The worker is unhealthy if one action does not succeed within ``limit_millis``."""
        self._stop = stop
        self._wait = wait
        self._monotonic = monotonic
        self._limit_seconds = limit_millis / 1_000
        self.what: str = ""
        """The action that is under way or has failed, in words; empty before the first action and after each
        success."""
        self._problem: Callable[[], Exception | None] = lambda: None
        self._watchdog = CallWatchdog("no call to the service was made", monotonic())

    @property
    def health(self) -> WorkerHealth:
        """The health during the start: unhealthy if the present action has been tried for longer than the limit.

        Before the first action, the limit counts from the creation of this object. Usable from any thread.
        """
        now, problem = self._monotonic(), self._problem()
        if problem is not None:
            self._watchdog.failed(problem, now)
        trouble = self._watchdog.trouble(now, self._limit_seconds)
        return WorkerHealth(is_healthy=not trouble, reason=trouble)

    def do(
        self, what: str, action: Callable[[], Result], problem: Callable[[], Exception | None] = lambda: None
    ) -> Result:
        """Repeat ``action`` until it succeeds, and return its result. ``what`` is the name of the action in logs.

        While ``action`` runs, ``problem`` returns the error that delays it, or ``None``. Any thread may call
        ``problem``.

        Raises:
            StoppedEarly: ``stop`` was set.
            DependencyException: the service refused for a reason that a retry cannot change, such as wrong credentials.
        """
        failures = 0
        self.what, self._problem = what, problem
        self._watchdog = CallWatchdog(f"{what} has not succeeded", self._monotonic())
        while not self._stop.is_set():
            try:
                result = action()
            except DependencyException as error:
                if not error.retriable:
                    raise
                failures += 1
                self._watchdog.failed(error, self._monotonic())
                pause = doubling_millis(failures, SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS) / 1_000
                kind = (what, error.kind, error.code)
                _outages.log(logging.WARNING, kind, "%s failed, next attempt in %.1f s: %s", what, pause, error)
                self._wait(self._stop, pause)
            else:
                if not self._stop.is_set():
                    self.what = ""
                    return result
        raise StoppedEarly(what)

    def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` between two attempts of a call.

        While ``do`` repeats an action of the start, a stop ends the wait. Later calls, such as reads of the status
        table during the shutdown, are retried in spite of the stop, so it does not end their waits.

        Raises:
            StoppedEarly: ``stop`` was set during an action.
        """
        if not self.what:
            self._wait(threading.Event(), seconds)
        elif self._wait(self._stop, seconds):
            raise StoppedEarly(self.what)


def find_stream_id(stream_api: StreamApi, data_table_name: str) -> str:
    """Return the id of the stream of the table ``data_table_name``.

    Raises:
        ConfigurationError: the table has no stream, or more than one.
    """
    streams = checks.done("list_stream", stream_api.list_stream(data_table_name))
    if not streams:
        raise ConfigurationError(
            f"data table {data_table_name!r} has no stream: check the name and the instance, or enable the stream by "
            "CreateTable or UpdateTable with a StreamSpecification"
        )
    if len(streams) > 1:
        names = ", ".join(sorted(stream.stream_id for stream in streams))
        raise ConfigurationError(f"data table {data_table_name!r} has {len(streams)} streams ({names}); expected one")
    return streams[0].stream_id


def prepare_lease_table(manager: ILeaseManager, persistence: Persistence) -> None:
    """Create the status table if it does not exist, and wait until the table answers reads."""
    problem = partial(_problem_of, manager)
    created = persistence.do("creating the status table", lambda: _create(manager), problem)
    if created:
        _log.info("created the status table of %r", manager)
    persistence.do("waiting for the status table", lambda: _be_ready(manager), problem)


def _create(manager: ILeaseManager) -> bool:
    return checks.done("create_lease_table_if_not_exists", manager.create_lease_table_if_not_exists())


def _be_ready(manager: ILeaseManager) -> None:
    if not checks.done("wait_until_lease_table_ready", manager.wait_until_lease_table_ready()):
        problem = _problem_of(manager)
        because = "" if problem is None else f": {problem}"
        raise DependencyException(f"the status table of {manager!r} does not answer reads yet{because}")


def _problem_of(manager: ILeaseManager) -> Exception | None:
    """Return the error that delays ``manager``, if the manager names one. Usable from any thread."""
    try:
        problem = getattr(manager, "table_problem", None)
    except Exception as error:
        _log.debug("%r cannot tell what holds it up: %s", manager, error)
        return None
    return problem if isinstance(problem, Exception) else None


class StreamRun:
    """The run of one stream of a worker. It happens once, in a thread of its own.

    The error that ends the run is kept in ``exception``, and the other streams of the worker go on.
    """

    def __init__(
        self,
        worker_identifier: str,
        stream_config: StreamConfig,
        make_processor: ProcessorMaker,
        lease_manager: ILeaseManager | None,
        stream_api: StreamApi | None,
    ) -> None:
        self.name: str = stream_config.name
        self.config = stream_config
        """The settings of the stream, as the program gave them to the worker."""
        self.make_processor = make_processor
        """The maker of the processors or receivers of shards. It may be replaced only before the run."""
        self.exception: BaseException | None = None
        """The first error of this run, set immediately when it occurs; ``None`` without an error."""
        self.coordinator: Coordinator | None = None
        """The owner of the stream's state; ``None`` until the stream and the status table are found."""
        self.thread_id: int | None = None
        self._worker_identifier = worker_identifier
        self._lease_manager = lease_manager
        self._stream_api = stream_api
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._persistence: Persistence | None = None
        self._failed_at = ""
        self._metrics: IMetrics = NO_METRICS
        self._showing = threading.Lock()
        self._shared: SharedParts | None = None
        self._user_code: UserCode | None = None
        self._early: list[events.Event] = []

    # --- the caller of Worker.run ---------------------------------------------------------------------------------

    def start(self, shared: SharedParts, stop: threading.Event) -> None:
        """Start the run in a thread of its own."""
        name = f"{self._worker_identifier}-owner-{self.name}"
        self._thread = start_thread(partial(self.run, shared, stop), name)

    def wait(self, timeout: float) -> bool:
        """Wait until the run has ended, at most ``timeout`` seconds; return whether it has ended or was never started.

        The method waits for an event, because in Python 3.11 ``join`` may return too early after an interrupt.
        """
        if self._thread is None:
            return True
        if not wait_awake(self._ended, timeout):
            return False
        self._thread.join()
        return True

    def show_health(self) -> None:
        """Set the metric of the worker's health, unless the owner (``coordinator``) sets it.

        The owner sets the metric from its start until an error. Usable from any thread.
        """
        with self._showing:  # so that an older value never replaces a newer one
            if self.coordinator is None or self.exception is not None:
                self._metrics.set(UNHEALTHY, float(not self.health.is_healthy))

    # --- its own thread ------------------------------------------------------------------------------------------

    def run(self, shared: SharedParts, stop: threading.Event) -> None:
        """Consume the stream until the worker is stopped. Keep an error in ``exception`` instead of raising it."""
        self.thread_id = threading.get_ident()
        try:
            self._run(self.prepare(shared, stop))
        except StoppedEarly:
            _log.info("worker %s was stopped before it began to read %s", self._worker_identifier, self.name)
        except BaseException as error:
            # Even SystemExit, for example of a user's lease manager, ends only this stream.
            self._fail(error)
        finally:
            self.thread_id = None  # the system may give the id of an ended thread to a new thread
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        """Keep and log the first error immediately, because the shutdown after it may take the whole time-out."""
        if self.exception is None:
            if self._persistence is not None and not isinstance(error, ConfigurationError):
                self._failed_at = self._persistence.what
            self.exception = error
            _log.error("%s", self.sentence, exc_info=None if is_foreseen(error) else error, extra={logs.ENDS: True})
            self.show_health()

    def _run(self, coordinator: Coordinator) -> None:
        """Drive the owner in this thread until it is finished."""
        try:
            drive(coordinator, self._fail)
        finally:
            coordinator.close()

    def prepare(self, shared: SharedParts, stop: threading.Event) -> Coordinator:
        """Look up the stream and the status table, and make the coordinator. This is the first step of ``run``."""
        self._shared, config = shared, shared.client_config
        limit = config.max_duration_before_last_successful_renew_or_take_lease
        persistence = Persistence(stop, shared.runtime.wait, shared.runtime.monotonic, limit)
        self._persistence = persistence
        metrics = self._metrics = labelled(config.metrics, stream=self.name, worker=self._worker_identifier)
        self.show_health()
        counted = CostTally(metrics, shared.runtime.monotonic)
        stream_api = self._stream_api or _default_stream_api(self.config.client, stop, counted)
        table_name = self.config.data_table_name
        stream_id = persistence.do("looking up the stream", lambda: find_stream_id(stream_api, table_name))
        manager = self._lease_manager or _default_lease_manager(
            self.config, stream_id, config, persistence.sleep, counted
        )
        prepare_lease_table(manager, persistence)
        is_counted = self._stream_api is None and self._lease_manager is None
        costs = counted.total if is_counted else None
        coordinator = self._coordinator(shared, stream_id, manager, stream_api, metrics, costs=costs)
        with self._lock:
            self.coordinator = coordinator
            for event in self._early:
                coordinator.send(event)
            if stop.is_set():
                coordinator.request_stop()
        _log.info("worker %s consumes stream %s", self._worker_identifier, stream_id)
        return coordinator

    def _coordinator(
        self,
        shared: SharedParts,
        stream_id: str,
        manager: ILeaseManager,
        stream_api: StreamApi,
        metrics: IMetrics,
        *,
        costs: Callable[[], Cost] | None,
    ) -> Coordinator:
        """Make the owner, its calls to the service, and the parts that its consumers share."""
        config, runtime = shared.client_config, shared.runtime
        store, directory = as_lease_store(manager), as_worker_directory(manager)
        loop = OwnerLoop(runtime.monotonic)
        user_code = self._user_code = UserCode(shared.executor, loop)
        published = PublishedInfo(config.lease_duration_millis, runtime.wall_micros(), costs)
        holdings = self._holdings(shared, stream_id, store, directory, published.text)
        instruments = Instruments(metrics, self._worker_identifier, holdings.held, loop.now)

        make_service = partial(
            ServiceCalls,
            stream_id=stream_id,
            store=store,
            directory=directory,
            notes=as_order_notes(manager),
            stream_api=stream_api,
            loop=loop,
            scan_pool=shared.scan_pool,
            status_pool=shared.status_pool,
            renew_pool=shared.renew_pool,
            fetch_pool=shared.fetch_pool,
            wall_micros=runtime.wall_micros,
        )
        make_consumer_parts = partial(
            ConsumerParts,
            loop=loop,
            user_code=user_code,
            reads=OwnerReads(shared.reads, loop),
            prefetch=shared.prefetch,
            pace=shared.pace.table(),
            stream_api=stream_api,
            make_processor=self.make_processor,
            config=config,
            table_name=self.config.data_table_name,
            max_records=self.config.max_records,
            full_page_records=self.config.max_records,
            dice=runtime.dice,
            facts=StreamFacts(runtime.wall_micros),
            wall_micros=runtime.wall_micros,
            wait=runtime.wait,
            instruments=instruments,
            store_of=partial(ordered_store, self.config.client),
            fleet=self.config.status_table_name,
        )
        return Coordinator(
            holdings=holdings,
            instruments=instruments,
            published=published,
            loop=loop,
            make_service=make_service,
            make_consumer_parts=make_consumer_parts,
            shutdown_timeout_millis=config.shutdown_timeout_millis,
        )

    def _holdings(
        self, shared: SharedParts, stream_id: str, store: LeaseStore, directory: WorkerDirectory | None, info: str
    ) -> Holdings:
        runtime = shared.runtime
        return Holdings(
            self._worker_identifier,
            stream_id,
            shared.client_config,
            self.config.initial_position,
            runtime.dice,
            new_identifier=runtime.new_identifier,
            wall_start_micros=runtime.wall_micros(),
            has_worker_rows=directory is not None,
            sets_counters=directory is not None or not calls_verbs(store),
            info=info,
        )

    # --- any thread ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the factory of receivers, because no stream of the worker runs any more."""
        if isinstance(self.make_processor, ReceiverFactory):
            self.make_processor.close()

    def send(self, event: events.Event) -> None:
        """Send ``event`` to the owner. If the owner does not exist yet, keep the event until then."""
        with self._lock:
            if self.coordinator is None:
                self._early.append(event)
            else:
                self.coordinator.send(event)

    def accept_loss(self, lease_key: str, reply: Callable[[TrimmedRange | None], None]) -> None:
        """Let a shard that stopped because of lost records go on; see ``Coordinator.accept_loss``."""
        coordinator = self.coordinator
        if coordinator is None:
            reply(None)
        else:
            coordinator.accept_loss(lease_key, reply)

    def accept_end(self, lease_key: str, reply: Callable[[bool], None]) -> None:
        """Accept that a shard has ended although the list of shards does not show its end.

        See ``Coordinator.accept_end``.
        """
        coordinator = self.coordinator
        if coordinator is None:
            reply(False)
        else:
            coordinator.accept_end(lease_key, reply)

    def request_stop(self) -> None:
        """Ask the owner to stop. Before the owner exists, the worker's stop event ends the run."""
        with self._lock:
            if self.coordinator is not None:
                self.coordinator.request_stop()

    def shard_statuses(self, reply: Callable[[Mapping[str, ShardStatus]], None]) -> None:
        """Call ``reply`` with the status of every held shard. Before the owner exists, no shard is held."""
        coordinator = self.coordinator
        if coordinator is None:
            reply({})
        else:
            coordinator.shard_statuses(reply)

    @property
    def sentence(self) -> str:
        """The sentence that says in the log why this run has ended."""
        error = self.exception
        what = described(error) if error is not None and not is_foreseen(error) else error
        return f"worker {self._worker_identifier} ends reading {self.name}: {self._failed_call}{what}"

    @property
    def _failed_call(self) -> str:
        """The name of the failed action, as the beginning of a sentence, because not every error names the action."""
        return f"{self._failed_at} failed: " if self._failed_at else ""

    @property
    def health(self) -> WorkerHealth:
        """The health of the run: first of the calls of its start, later of its reads, scans and heartbeats."""
        coordinator, persistence = self.coordinator, self._persistence
        if self.exception is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {self._failed_call}{described(self.exception)}")
        if coordinator is not None:
            return coordinator.health
        return WorkerHealth(is_healthy=True) if persistence is None else persistence.health

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is a thread of the worker, or runs user code of this stream."""
        user_code, shared = self._user_code, self._shared
        is_owner = self.thread_id == threading.get_ident()
        is_inside = user_code is not None and user_code.is_inside()
        is_for_calls = shared is not None and shared.is_own_thread()
        return is_owner or is_inside or is_for_calls or is_thread_of(self.make_processor)


# These functions import the SDK, which takes a third of a second. A worker with its own stores does not need the SDK.


def _default_stream_api(client: Any, stop: threading.Event, metrics: IMetrics) -> StreamApi:
    from streamclient.tablestore.stream_operations import TablestoreStreamApi  # noqa: PLC0415

    return TablestoreStreamApi(client, stop=stop, metrics=metrics)


def _default_lease_manager(
    config: StreamConfig,
    stream_id: str,
    client_config: ClientConfig,
    sleep: Callable[[float], None],
    metrics: IMetrics,
) -> ILeaseManager:
    from streamclient.worker.lease.lease_manager import LeaseManager  # noqa: PLC0415

    return LeaseManager(config.client, config.status_table_name, stream_id, client_config, sleep=sleep, metrics=metrics)
