"""The public ``Worker``.

Importing it loads what a program names to make one. What runs is loaded when a worker is made: it takes half of
the SDK's time, for which a program that only shows its usage, or checks its settings, need not wait.
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
from streamclient.base.reasons import described
from streamclient.config import ClientConfig, StreamConfig, processor_maker
from streamclient.errors import ConfigurationError, StreamClientException, WorkerFailedError
from streamclient.interfaces import ILeaseManager, RecordProcessorFactory
from streamclient.model import ShardStatus, TrimmedRange, WorkerStatus
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.running import EndedBySigterm, Running, wait_awake
from streamclient.worker.runtime import Runtime, SharedParts

if TYPE_CHECKING:
    from streamclient.core import events
    from streamclient.worker.coordinator import Coordinator
    from streamclient.worker.health import WorkerHealth
    from streamclient.worker.stream_run import StreamRun

_log = logs.logger(__name__)
_T = TypeVar("_T")

SHUTDOWN_GRACE_SECONDS = 5.0
"""What ``shutdown`` allows beyond the time-out of the configuration: for closing threads, and for a call of the
start-up that is still under way."""

LOOK_SECONDS = 1.0
"""How often the thread of ``run`` looks at streams that have not begun, to measure their health, and for a stop."""

STATUS_SECONDS = 10.0
"""The owner thread answers in milliseconds; more than this means a process that gets no processor time."""


@checks.explains_names
class Worker(Running):
    """Consumes the streams of one or more tables, sharing their shards with all workers on the same status tables.

    ``run()`` blocks in the calling thread until ``shutdown()``; or use the worker as a context manager, which runs it
    in a thread, and ``wait()`` meanwhile. A worker runs once. Making one calls nobody: streams and status tables are
    looked up by ``run``.

    Several streams share the threads, the executor and the limits of the worker, and nothing else: a stream that cannot
    be read does not disturb the others.

    Args:
        worker_identifier: name of this worker; unique among all that run at the same time, in every language.
        client_config: how to behave.
        stream_config: what to read; or several of these, each with another ``name``.
        record_processor_factory: makes one processor per shard; an ``IRecordProcessorFactory`` or any callable. May be
            ``None`` if each ``StreamConfig`` has its own.
        executor: runs all user code. It needs threads of its own; with few of them shards take turns, but nothing gets
            stuck. Its ``submit`` must return at once: the thread that renews the leases calls it, so one that waits for
            room loses them. Without one, the worker makes threads as needed. One that is given is not shut down.
        lease_manager: keeps the leases of the one stream; with several, each ``StreamConfig`` may have its own. By
            default leases are kept in the status table.
        stream_api: reads all streams; by default each over the client of its ``StreamConfig``.
        runtime: clocks and threads, for tests.

    Raises:
        ConfigurationError: an argument cannot work; nothing has happened yet.
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
        from streamclient.worker.stream_run import StreamRun  # noqa: PLC0415

        super().__init__(end_on_sigterm=client_config.end_on_sigterm)
        self._identifier = worker_identifier
        self._client_config = client_config
        self._streams = {
            config.name: StreamRun(
                worker_identifier,
                config,
                processor_maker(
                    "record_processor_factory", config.record_processor_factory or record_processor_factory
                ),
                config.lease_manager or lease_manager,
                stream_api,
            )
            for config in configs
        }
        self._executor = executor
        self._runtime = runtime or Runtime()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        """What ended it although no stream failed."""
        self._run_thread: int | None = None
        self._thread: threading.Thread | None = None

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until ``shutdown()``; then return.

        Trouble with the service is waited out, however long; ``health`` tells of it. A stream ends early, with its
        error in ``exceptions``, if a setting or permission is wrong, or this package has a fault; the others go on, and
        when none is left this raises.

        ``KeyboardInterrupt`` in this thread shuts the worker down in order and is raised again afterwards; a second one
        ends it at once. In a program's main thread SIGTERM does the same, with ``SystemExit(143)`` in its place and
        further ones ignored, unless ``ClientConfig.end_on_sigterm`` is off or the program handles that signal itself.

        Raises:
            WorkerFailedError: at least one stream failed; the message is what the log said.
            StreamClientException: the worker was run or shut down before; that does not disturb a run under way.
        """
        self._begin()
        with EndedBySigterm(self._client_config.end_on_sigterm) as sigterm:
            self._run_begun(sigterm)
        self._raise_failure()

    def shutdown(self, wait: bool = True) -> bool:
        """Stop: finish running calls, call every processor's ``shutdown``, hand the leases over. Any thread.

        Takes at most ``shutdown_timeout_millis``, also before it has begun to read; what still runs then is left
        behind, its leases expire. Calling it again does no harm. From this worker's own threads, user code included, it
        never waits.

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

    # --- holding still -------------------------------------------------------------------------------------------

    def pause(self, shard_id: str | None = None, *, reason: str = "no reason given") -> None:
        """Stop reading one shard, or everything, and keep the leases. Any thread; returns at once.

        A batch that is being processed is finished, the processor gets ``shutdown(PAUSED)``, and the shard's status
        says who paused it and why. Before ``run`` it means: start paused. A shard that is paused by id is named as in
        ``shard_statuses``.

        Raises:
            ConfigurationError: the reason is no string, or with several streams, the shard id does not begin with the
                name of one.
            StreamClientException: the worker has ended.
        """
        from streamclient.core.events import PauseRequested  # noqa: PLC0415

        checks.any_text.require("reason", reason)
        self._send(shard_id, lambda key: PauseRequested(key, reason))

    def resume(self, shard_id: str | None = None) -> None:
        """Undo ``pause`` with the same argument: read on from the stored checkpoint. Any thread; returns at once.

        An operator's pause in the lease's row stays. Errors as in ``pause``.
        """
        from streamclient.core.events import ResumeRequested  # noqa: PLC0415

        self._send(shard_id, ResumeRequested)

    def accept_loss(self, shard_id: str) -> TrimmedRange:
        """Let a shard that stopped because records were lost go on with the oldest record that is left. Any thread.

        Without it the shard stays stopped, on this worker and, found anew, on any other. The shard is named as in
        ``shard_statuses``, where ``lost`` says what there is to accept. Returns what is given up.

        Raises:
            ConfigurationError: with several streams, the shard id does not begin with the name of one.
            StreamClientException: the shard is not held here, or has not stopped for a loss.
        """
        stream, lease_key = self._place_of(shard_id)
        lost: TrimmedRange | None = self._answer_of(partial(stream.accept_loss, lease_key))
        if lost is None:
            raise StreamClientException(
                f"shard {shard_id} has no loss to accept on worker {self._identifier}: see shard_statuses()"
            )
        return lost

    def accept_end(self, shard_id: str) -> None:
        """Let a shard end whose end the stream's list of shards does not show. Any thread; returns at once.

        Accept it only if you know that the shard is closed: what is written to an open one from now on is never
        delivered. What the service still gives is delivered before, and ``SHARD_END`` is stored by the processor.

        Raises:
            ConfigurationError: with several streams, the shard id does not begin with the name of one.
            StreamClientException: the shard is not held here, or does not wait for its end.
        """
        stream, lease_key = self._place_of(shard_id)
        if not self._answer_of(partial(stream.accept_end, lease_key)):
            raise StreamClientException(
                f"shard {shard_id} does not wait for its end on worker {self._identifier}: see shard_statuses()"
            )

    # --- looking in ----------------------------------------------------------------------------------------------

    @property
    def worker_identifier(self) -> str:
        """The name that was given."""
        return self._identifier

    @property
    def worker_status(self) -> WorkerStatus:
        """RUNNING from ``run()`` on; ERROR as soon as no stream is left that has not failed; SHUTDOWN after the end.

        If some streams failed and others did not, it says RUNNING until the end and ERROR then. Any thread.
        """
        has_ended, failed = self._ended.is_set(), len(self.exceptions)
        if self._failure is not None or failed == len(self._streams) or (failed and has_ended):
            return WorkerStatus.ERROR
        if has_ended:
            return WorkerStatus.SHUTDOWN
        return WorkerStatus.NOT_RUNNING if self._run_thread is None else WorkerStatus.RUNNING

    @property
    def has_begun(self) -> bool:
        """Whether the service let it in: every stream and every status table was found and answers. Any thread."""
        return all(stream.coordinator is not None for stream in self._streams.values())

    @property
    def exception(self) -> BaseException | None:
        """What made it or a stream fail, if anything did; with several, ``exceptions`` says which. Any thread."""
        return self._failure or next(iter(self.exceptions.values()), None)

    @property
    def exceptions(self) -> Mapping[str, BaseException]:
        """What made streams fail, by the name of the stream. Any thread."""
        return {name: stream.exception for name, stream in self._streams.items() if stream.exception is not None}

    @property
    def health(self) -> WorkerHealth:
        """Whether every stream is read, and the calls for that succeed, each kind of them. Any thread.

        An unhealthy worker goes on trying; only a stream that failed does not come back.
        """
        self._require_here()
        judged = {name: stream.health for name, stream in self._streams.items()}
        if len(judged) == 1 and self._failure is None:
            return next(iter(judged.values()))
        from streamclient.worker.health import WorkerHealth  # noqa: PLC0415

        if self._failure is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {described(self._failure)}")
        reasons = [f"stream {name}: {health.reason}" for name, health in judged.items() if not health.is_healthy]
        return WorkerHealth(not reasons, "; ".join(reasons))

    def shard_statuses(self) -> Mapping[str, ShardStatus]:
        """Every held shard by id, with the named reason where it does not move; after the end, as it was last.

        With several streams the keys are ``<name of the stream>/<shard id>``. A shard whose lease is lost stays named
        until its processor has returned. Any thread.
        """
        self._require_here()
        found: dict[str, ShardStatus] = {}
        for name, stream in self._streams.items():
            prefix = "" if len(self._streams) == 1 else f"{name}/"
            found.update((prefix + shard_id, status) for shard_id, status in self._statuses_of(stream).items())
        return found

    def __repr__(self) -> str:
        return f"<Worker {self._identifier} of {', '.join(self._streams)}, {self.worker_status.value}>"

    # --- inside --------------------------------------------------------------------------------------------------

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

    def prepare(self) -> list[Coordinator]:
        """What ``run`` starts with, for a test that steps the owners itself: one for each stream, in order."""
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
        """What of ``run`` leaves an error of a stream where it is kept. ``sigterm`` for a thread that gets signals."""
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

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if errors := self.exceptions:
            raise WorkerFailedError.of({name: self._streams[name].sentence for name in errors}, errors)

    def _run_streams(self, shared: SharedParts, sigterm: EndedBySigterm | None) -> None:
        """Each in a thread of its own, so that this one is free for interrupts."""
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
        """Return when all have ended; once they are to stop, no later than that may take: a call of theirs may hang.

        One that has begun ends by itself when the time is up, so it gets a little longer.
        """
        stopped_at: float | None = None
        limit = self._client_config.shutdown_timeout_millis / 1_000
        for stream in self._streams.values():
            while not stream.wait(LOOK_SECONDS):
                for each in self._streams.values():
                    each.show_health()
                if not self._stop.is_set():
                    continue
                stopped_at = time.monotonic() if stopped_at is None else stopped_at
                grace = 0.0 if stream.coordinator is None else SHUTDOWN_GRACE_SECONDS
                if time.monotonic() - stopped_at >= limit + grace:
                    _log.error("worker %s gave up waiting for stream %s to end", self._identifier, stream.name)
                    break

    def _statuses_of(self, stream: StreamRun) -> Mapping[str, ShardStatus]:
        answered = threading.Event()
        found: dict[str, ShardStatus] = {}

        def reply(statuses: Mapping[str, ShardStatus]) -> None:
            found.update(statuses)
            answered.set()

        stream.shard_statuses(reply)
        if not self._runtime.wait(answered, STATUS_SECONDS):
            raise StreamClientException(f"worker {self._identifier} did not answer within {STATUS_SECONDS:.0f} s")
        return found

    def _answer_of(self, ask: Callable[[Callable[[_T], None]], None]) -> _T | None:
        """What the owner replies to a question; ``None`` if it does not within ``STATUS_SECONDS``."""
        self._require_here()
        answered = threading.Event()
        found: list[_T] = []

        def reply(answer: _T) -> None:
            found.append(answer)
            answered.set()

        ask(reply)
        self._runtime.wait(answered, STATUS_SECONDS)
        return found[0] if found else None

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
        """The stream of a shard that is named as in ``shard_statuses``, and the shard's own id."""
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
    """One or several settings, whose names tell them apart."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    configs = [given] if isinstance(given, StreamConfig) else list(several)
    if not configs or not all(isinstance(config, StreamConfig) for config in configs):
        raise ConfigurationError(f"stream_config must be a StreamConfig or a sequence of some, not {given!r}")
    names = [config.name for config in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"several StreamConfigs have the name {', '.join(twice)}; give each another name=")
    if len(configs) > 1 and lease_manager is not None:
        raise ConfigurationError(
            "lease_manager keeps the leases of one stream; with several, give each StreamConfig its own lease_manager="
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
