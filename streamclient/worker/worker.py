"""The public ``Worker``.

Importing this module loads only the names that a program needs to make a worker. The parts that run are loaded when a
worker is made. Loading them takes half of the SDK's import time. A program that only shows its usage or checks its
settings saves this time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from streamclient.base import checks, logs
from streamclient.base.pools import start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import WorkerHealth, described
from streamclient.config import ClientConfig, StreamConfig
from streamclient.errors import ConfigurationError, StreamClientException, WorkerFailedError
from streamclient.interfaces import ILeaseManager
from streamclient.model import ShardStatus, TrimmedRange, WorkerStatus
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.running import EndedBySigterm, Running, wait_awake
from streamclient.worker.runtime import Runtime, SharedParts

if TYPE_CHECKING:
    from streamclient.core import events
    from streamclient.worker.coordinator import Coordinator
    from streamclient.worker.handing_over import ProcessorMaker
    from streamclient.worker.owner_loop import OwnerLoop
    from streamclient.worker.stream_run import StreamRun

_log = logs.logger(__name__)
_T = TypeVar("_T")

SHUTDOWN_GRACE_SECONDS = 5.0
"""The time that ``shutdown`` allows beyond the configured time-out, for the end of threads, and for a start-up call
that is still under way."""

LOOK_SECONDS = 1.0
"""The interval at which the thread of ``run`` measures the health of streams that have not begun, and checks for a
stop."""

STATUS_SECONDS = 10.0
"""The longest wait for an answer of the owner thread. Usually the thread answers in milliseconds. A longer wait means
that the process gets no processor time."""


@checks.explains_names
class Worker(Running):
    """Consumes the streams of one or more tables, and shares their shards with all workers on the same status tables.

    ``run()`` blocks in the calling thread until ``shutdown()``. As a context manager, the worker runs in its own
    thread, and ``wait()`` waits for its end. A worker runs once. The constructor sends no request; ``run`` looks up
    streams and status tables.

    Several streams share only the threads, the executor and the limits of the worker. So a stream that cannot be read
    does not disturb the other streams.

    Args:
        worker_identifier: name of this worker; unique among all workers that run at the same time, in every language.
        client_config: settings of the worker.
        stream_config: settings of the stream to read, or a sequence of such settings, each with another ``name``.
        record_processor_factory: makes one processor per shard: an ``IRecordProcessorFactory``, a class, or a function
            without arguments. A handler may be given instead: a function of one ``Batch``, or an ``async def`` of one
            ``AsyncBatch``. When a handler returns, its batch is committed. A class is never a handler. Coroutines run
            in one event loop, in a separate thread. May be ``None`` if each ``StreamConfig`` names a factory.
        executor: runs all user code, in threads of its own. With few threads the shards take turns, but none gets
            stuck. ``submit`` must return immediately, because the thread that renews the leases calls it. By default
            the worker makes threads as needed. A given executor is not shut down.
        lease_manager: keeps the leases, if there is only one stream; with several streams, each ``StreamConfig`` may
            have its own. By default leases are kept in the status table.
        stream_api: reads all streams; by default each stream is read with the client of its ``StreamConfig``.
        runtime: clocks and threads, for tests.

    Raises:
        ConfigurationError: an argument is invalid; nothing was started.
    """

    def __init__(  # noqa: PLR0917  # in the order of the Java client's constructor
        self,
        worker_identifier: str,
        client_config: ClientConfig,
        stream_config: StreamConfig | Sequence[StreamConfig],
        record_processor_factory: RecordProcessorFactory | None = None,
        executor: Executor | None = None,
        lease_manager: ILeaseManager | None = None,
        *,
        stream_api: StreamApi | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        checks.identifier.require("worker_identifier", worker_identifier)
        checks.instance(ClientConfig).require("client_config", client_config)
        checks.optional(checks.executor).require("executor", executor)
        checks.optional(checks.implementation(ILeaseManager)).require("lease_manager", lease_manager)
        checks.optional(checks.implementation(StreamApi)).require("stream_api", stream_api)
        checks.optional(checks.instance(Runtime)).require("runtime", runtime)
        configs = _checked_streams(stream_config, lease_manager, stream_api)
        from streamclient.worker.handlers.handler_processor import processor_makers  # noqa: PLC0415
        from streamclient.worker.stream_run import StreamRun  # noqa: PLC0415

        super().__init__(end_on_sigterm=client_config.end_on_sigterm)
        self._identifier = worker_identifier
        self._client_config = client_config
        factories = [config.record_processor_factory or record_processor_factory for config in configs]
        makers = processor_makers("record_processor_factory", factories, worker_identifier)
        self._streams = {
            config.name: StreamRun(worker_identifier, config, make, config.lease_manager or lease_manager, stream_api)
            for config, make in zip(configs, makers, strict=True)
        }
        self._executor = executor
        self._runtime = runtime or Runtime()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        """The error that ended the worker, if it did not come from a stream."""
        self._run_thread: int | None = None
        self._thread: threading.Thread | None = None

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until ``shutdown()``; then return.

        The worker waits until an outage of the service is over, however long; ``health`` reports the outage. A stream
        ends early, with its error in ``exceptions``, if a setting or permission is wrong, or if this package has a
        fault. The other streams go on. When no stream is left, this method raises.

        The first ``KeyboardInterrupt`` in this thread shuts the worker down in order, and is raised again afterwards.
        The second ends the worker immediately. In a program's main thread, SIGTERM shuts the worker down in order, and
        ``SystemExit(143)`` is raised afterwards; a second SIGTERM is ignored. If ``ClientConfig.end_on_sigterm`` is
        off, or if the program handles SIGTERM itself, the worker does not react to it.

        Raises:
            WorkerFailedError: at least one stream failed; the message is the same as in the log.
            StreamClientException: the worker has already run, or was shut down. A run under way goes on.
        """
        self._begin()
        with EndedBySigterm(self._client_config.end_on_sigterm) as sigterm:
            self._run_begun(sigterm)
        self._raise_failure()

    def shutdown(self, wait: bool = True) -> bool:
        """Stop the worker: finish running calls, call every processor's ``shutdown``, and hand the leases over.

        Usable from any thread. The call takes at most ``shutdown_timeout_millis`` and 5 s more, even before the worker
        has begun to read. User code that runs for longer is abandoned, and its leases expire. A second call is
        harmless. In the worker's own threads, user code included, the call never waits.

        Returns:
            Whether the worker has ended.
        """
        self._require_here()
        with self._lock:
            self._stop.set()
            if self._run_thread is None:
                self._ended.set()
        for stream in self._streams.values():
            stream.request_stop()
        if wait and not self._is_own_thread():
            wait_awake(self._ended, self._client_config.shutdown_timeout_millis / 1_000 + SHUTDOWN_GRACE_SECONDS)
        return self._ended.is_set()

    # --- pauses, losses and ends ---------------------------------------------------------------------------------

    def pause(self, shard_id: str | None = None, *, reason: str = "no reason given") -> None:
        """Stop reading one shard, or all shards, and keep the leases. Usable from any thread.

        The call returns immediately. The worker finishes the present batch, calls ``shutdown(PAUSED)`` of the
        processor, and shows ``reason`` in the shard's status. If ``pause`` is called before ``run``, the worker starts
        paused. ``shard_id`` is a key of ``shard_statuses()``.

        Raises:
            ConfigurationError: the reason is not a string; or with several streams, the shard id does not begin with
                the name of a stream.
            StreamClientException: the worker has ended.
        """
        from streamclient.core.events import PauseRequested  # noqa: PLC0415

        checks.any_text.require("reason", reason)
        self._send(shard_id, lambda key: PauseRequested(key, reason))

    def resume(self, shard_id: str | None = None) -> None:
        """Undo ``pause`` for the same ``shard_id``: read on from the stored checkpoint. Usable from any thread.

        The call returns immediately. An operator's pause in the lease's row stays. Errors are the same as in ``pause``.
        """
        from streamclient.core.events import ResumeRequested  # noqa: PLC0415

        self._send(shard_id, ResumeRequested)

    def accept_loss(self, shard_id: str) -> TrimmedRange:
        """Let a shard that stopped because records were lost go on with the oldest record that is left.

        Usable from any thread. Without this call the shard stays stopped, on this worker and on any other worker that
        takes the lease. ``shard_id`` is a key of ``shard_statuses()``. Returns the accepted loss: the ``lost`` of the
        shard's status.

        Raises:
            ConfigurationError: with several streams, the shard id does not begin with the name of a stream.
            StreamClientException: this worker does not hold the shard, or the shard has not stopped for a loss. Or the
                worker did not answer within 10 s, and may still accept the loss.
        """
        stream, lease_key = self._place_of(shard_id)
        late = "; it may still accept the loss: see shard_statuses()"
        lost: TrimmedRange | None = self._answer_of(partial(stream.accept_loss, lease_key), late)
        if lost is None:
            raise StreamClientException(
                f"shard {shard_id} has no loss to accept on worker {self._identifier}: see shard_statuses()"
            )
        return lost

    def accept_end(self, shard_id: str) -> None:
        """Let a shard end although the stream's list of shards does not show its end.

        Usable from any thread; the call does not wait for the end. Accept the end only if you know that the shard is
        closed: later writes to an open shard would never be delivered. Records that the service still returns are
        delivered first. Then the processor stores ``SHARD_END``.

        Raises:
            ConfigurationError: with several streams, the shard id does not begin with the name of a stream.
            StreamClientException: this worker does not hold the shard, or the shard does not wait for its end. Or the
                worker did not answer within 10 s, and may still accept the end.
        """
        stream, lease_key = self._place_of(shard_id)
        late = "; it may still accept the end: see shard_statuses()"
        if not self._answer_of(partial(stream.accept_end, lease_key), late):
            raise StreamClientException(
                f"shard {shard_id} does not wait for its end on worker {self._identifier}: see shard_statuses()"
            )

    # --- state and health ----------------------------------------------------------------------------------------

    @property
    def worker_identifier(self) -> str:
        """The name of this worker, which is unique in its fleet."""
        return self._identifier

    @property
    def worker_status(self) -> WorkerStatus:
        """The state: RUNNING from ``run()`` on; ERROR as soon as all streams have failed; SHUTDOWN after the end.

        If only some streams have failed, the value is RUNNING until the end, and ERROR afterwards. Usable from any
        thread.
        """
        has_ended, failed = self._ended.is_set(), len(self.exceptions)
        if self._failure is not None or failed == len(self._streams) or (failed and has_ended):
            return WorkerStatus.ERROR
        if has_ended:
            return WorkerStatus.SHUTDOWN
        return WorkerStatus.NOT_RUNNING if self._run_thread is None else WorkerStatus.RUNNING

    @property
    def has_begun(self) -> bool:
        """Whether the worker has begun to consume: every stream and every status table was found and answers.

        Usable from any thread.
        """
        return all(stream.coordinator is not None for stream in self._streams.values())

    @property
    def exception(self) -> BaseException | None:
        """The first error of the worker or of a stream; ``None`` without an error. ``exceptions`` names the streams.

        Usable from any thread.
        """
        return self._failure or next(iter(self.exceptions.values()), None)

    @property
    def exceptions(self) -> Mapping[str, BaseException]:
        """The errors of failed streams. The keys are the names of the streams. Usable from any thread."""
        return {name: stream.exception for name, stream in self._streams.items() if stream.exception is not None}

    @property
    def work_health(self) -> WorkerHealth:
        """The health of the work: whether every stream is read and each kind of call succeeds.

        During a run, ``health`` has the same value. Usable from any thread. An unhealthy worker goes on trying; only a
        stream that has failed is not read again.
        """
        self._require_here()
        if self._failure is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {described(self._failure)}")
        from streamclient.worker.health import joined_health  # noqa: PLC0415

        return joined_health({name: stream.health for name, stream in self._streams.items()})

    def shard_statuses(self) -> Mapping[str, ShardStatus]:
        """Return the status of every held shard, by id; after the worker's end, the last known statuses.

        If a shard makes no progress, its status names the reason. A shard whose lease is lost is listed until its
        processor has returned. With several streams the keys are ``<stream>/<shard id>``. Usable from any thread.
        """
        self._require_here()
        statuses: dict[str, ShardStatus] = {}
        for name, stream in self._streams.items():
            prefix = "" if len(self._streams) == 1 else f"{name}/"
            of_stream = self._answer_of(stream.shard_statuses)
            statuses.update((prefix + shard_id, status) for shard_id, status in of_stream.items())
        return statuses

    def __repr__(self) -> str:
        return f"<Worker {self._identifier} of {', '.join(self._streams)}, {self.worker_status.value}>"

    # --- internal methods ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._require_here()
        with self._lock:
            if self._run_thread is not None or self._stop.is_set():
                raise StreamClientException(
                    f"worker {self._identifier} is {self.worker_status.value} and runs only once; make a new Worker"
                )
            self._run_thread = threading.get_ident()
            self._birthplace = Birthplace()

    def _make_shared(self) -> SharedParts:
        return SharedParts(self._identifier, self._client_config, self._executor, self._runtime)

    def use_processors(self, make: ProcessorMaker, executor: Executor | None = None) -> None:
        """Replace the maker of processors of all streams, and their executor if one is given; only before ``run``."""
        for stream in self._streams.values():
            stream.make_processor = make
        self._executor = executor or self._executor

    def prepare(self) -> list[Coordinator]:
        """Prepare a run for a test that calls ``step`` of each owner itself; return the owners, one per stream."""
        self._birthplace = Birthplace()
        shared = self._make_shared()
        return [stream.prepare(shared, self._stop) for stream in self._streams.values()]

    def _begin_in_thread(self) -> None:
        self._begin()
        try:
            self._thread = start_thread(self._run_in_thread, f"{self._identifier}-run")
        except Exception:
            self._ended.set()
            raise
        self._run_thread = self._thread.ident

    def _end_thread(self) -> None:
        if self.shutdown() and self._thread is not None and self._thread.ident is not None:
            self._thread.join(SHUTDOWN_GRACE_SECONDS)

    def _run_in_thread(self) -> None:
        try:
            self._run_begun()
        except BaseException as error:
            _log.error("worker %s ends: %s", self._identifier, described(error), exc_info=error)

    def _run_begun(self, sigterm: EndedBySigterm | None = None) -> None:
        """Run as ``run`` does, but do not raise the errors of streams.

        ``sigterm`` is given only in a thread that gets signals.
        """
        try:
            self._run_shared(self._make_shared(), sigterm)
        except BaseException as error:
            if sigterm is None or isinstance(error, Exception):
                self._failure = error
            raise
        finally:
            self._ended.set()
            _log.info("worker %s has ended", self._identifier)

    def _run_shared(self, shared: SharedParts, sigterm: EndedBySigterm | None) -> None:
        try:
            self._run_streams(shared, sigterm)
        finally:
            shared.close()
            for stream in self._streams.values():
                stream.close()

    def _owner_loops(self) -> Mapping[str, OwnerLoop]:
        owners = {name: stream.coordinator for name, stream in self._streams.items()}
        return {name: owner.loop for name, owner in owners.items() if owner is not None}

    def _has_failed(self) -> bool:
        return self.exception is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if errors := self.exceptions:
            raise WorkerFailedError.of({name: self._streams[name].sentence for name in errors}, errors)

    def _run_streams(self, shared: SharedParts, sigterm: EndedBySigterm | None) -> None:
        """Run each stream in a thread of its own, so that this thread is free for interrupts."""
        try:
            for stream in self._streams.values():
                stream.start(shared, self._stop)
            self._await_streams()
        except BaseException:
            if sigterm is not None:
                sigterm.defer()
            self.shutdown(wait=False)
            self._await_streams()
            raise

    def _await_streams(self) -> None:
        """Return when all streams have ended. After a stop, wait at most the time-out, because a call may hang.

        A stream that has begun ends itself at the time-out, so this method waits ``SHUTDOWN_GRACE_SECONDS`` longer.
        """
        stopped_at: float | None = None
        limit = self._client_config.shutdown_timeout_millis / 1_000
        for stream in self._streams.values():
            while not stream.wait(LOOK_SECONDS):
                for other in self._streams.values():
                    other.show_health()
                if not self._stop.is_set():
                    continue
                stopped_at = time.monotonic() if stopped_at is None else stopped_at
                grace = 0.0 if stream.coordinator is None else SHUTDOWN_GRACE_SECONDS
                if time.monotonic() - stopped_at >= limit + grace:
                    _log.error("worker %s gave up waiting for stream %s to end", self._identifier, stream.name)
                    break

    def _answer_of(self, ask: Callable[[Callable[[_T], None]], None], late: str = "") -> _T:
        """Call ``ask`` with a function for the reply, and return the reply.

        Raise if no reply comes within ``STATUS_SECONDS``. The end of the error's text is ``late``.
        """
        self._require_here()
        answered = threading.Event()
        answers: list[_T] = []

        def reply(answer: _T) -> None:
            answers.append(answer)
            answered.set()

        ask(reply)
        if not self._runtime.wait(answered, STATUS_SECONDS):
            text = f"worker {self._identifier} did not answer within {STATUS_SECONDS:.0f} s"
            raise StreamClientException(text + late)
        return answers[0]

    def _send(self, shard_id: str | None, make_event: Callable[[str | None], events.Event]) -> None:
        self._require_here()
        if self._ended.is_set():
            raise StreamClientException(f"worker {self._identifier} has ended")
        if shard_id is None:
            for stream in self._streams.values():
                stream.send(make_event(None))
        else:
            stream, lease_key = self._place_of(shard_id)
            stream.send(make_event(lease_key))

    def _place_of(self, shard_id: str) -> tuple[StreamRun, str]:
        """Return the stream and the plain shard id for ``shard_id``, which is a key of ``shard_statuses()``."""
        if len(self._streams) == 1:
            return next(iter(self._streams.values())), shard_id
        name, slash, lease_key = shard_id.partition("/")
        if not slash or name not in self._streams:
            raise ConfigurationError(
                f"shard_id must be '<name of the stream>/<shard id>' as in shard_statuses(), with a name of "
                f"{', '.join(self._streams)}, not {shard_id!r}"
            )
        return self._streams[name], lease_key

    def _is_own_thread(self) -> bool:
        is_runner = self._run_thread == threading.get_ident()
        return is_runner or any(stream.is_own_thread() for stream in self._streams.values())


def _checked_streams(given: object, lease_manager: object, stream_api: object) -> Sequence[StreamConfig]:
    """Return the settings of all streams; raise ``ConfigurationError`` if they contradict each other."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    configs = [given] if isinstance(given, StreamConfig) else list(several)
    if not configs or not all(isinstance(config, StreamConfig) for config in configs):
        raise ConfigurationError(f"stream_config must be a StreamConfig or a sequence of them, not {given!r}")
    names = [config.name for config in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"several StreamConfigs have the name {', '.join(twice)}; give each another name=")
    if len(configs) > 1 and lease_manager is not None:
        raise ConfigurationError(
            "lease_manager is for one stream; with several streams, give each StreamConfig its own lease_manager="
        )
    _check_tables(configs)
    for config in configs:
        if stream_api is None or (config.lease_manager or lease_manager) is None:
            checks.client.require(f"client of stream {config.name}", config.client)
    return configs


def _check_tables(configs: Sequence[StreamConfig]) -> None:
    status_tables = {config.status_table_name for config in configs}
    for config in configs:
        if config.data_table_name in status_tables:
            raise ConfigurationError(
                f"data_table_name={config.data_table_name!r} is the status table of another StreamConfig; leases need "
                "a table of their own"
            )
