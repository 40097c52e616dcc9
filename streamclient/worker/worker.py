"""The public ``Worker``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from types import TracebackType
from typing import Any

from streamclient.config import ClientConfig, StreamConfig
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import ILeaseManager, IRecordProcessor, RecordProcessorFactory
from streamclient.lease.store import as_lease_store
from streamclient.model import ShardStatus, WorkerStatus
from streamclient.stream.api import StreamApi
from streamclient.worker.assembly import Ingredients, Machinery
from streamclient.worker.health import WorkerHealth
from streamclient.worker.runtime import Runtime
from streamclient.worker.startup import Persistence, StoppedEarly, find_stream_id, prepare_lease_table

_log = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 5.0
"""What ``shutdown`` allows beyond the time-out of the configuration: for closing threads, and for a call of the
start-up that is still under way."""

STATUS_SECONDS = 10.0
"""The owner thread answers in milliseconds; more than this means a process that gets no processor time."""


class Worker:
    """Consumes the stream of one table, sharing its shards with all workers on the same status table.

    ``run()`` blocks in the calling thread until ``shutdown()``; or use the worker as a context manager, which runs it
    in a thread. A worker runs once. Making one calls nobody: the stream and the status table are looked up by ``run``.

    Args:
        worker_identifier: name of this worker; unique among all that run at the same time, in every language.
        client_config: how to behave.
        stream_config: what to read.
        record_processor_factory: makes one processor per shard; an ``IRecordProcessorFactory`` or any callable.
        executor: runs all user code. It needs threads of its own; with few of them shards take turns, but nothing gets
            stuck. Without one, the worker makes threads as needed. An executor that is given is not shut down.
        lease_manager: keeps the leases; by default in the status table.
        stream_api: reads the stream; by default over the client of ``stream_config``.
        runtime: clocks and threads, for tests.

    Raises:
        ConfigurationError: an argument cannot work; nothing has happened yet.
    """

    def __init__(  # noqa: PLR0917  # in the order of the Java client's constructor
        self,
        worker_identifier: str,
        client_config: ClientConfig,
        stream_config: StreamConfig,
        record_processor_factory: RecordProcessorFactory,
        executor: Executor | None = None,
        lease_manager: ILeaseManager | None = None,
        *,
        stream_api: StreamApi | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        _check("worker_identifier", worker_identifier, str)
        if not worker_identifier:
            raise ConfigurationError("worker_identifier must be a non-empty string, not ''")
        _check("client_config", client_config, ClientConfig)
        _check("stream_config", stream_config, StreamConfig)
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise ConfigurationError(f"executor must be a concurrent.futures.Executor or None, not {executor!r}")
        if lease_manager is not None and not callable(getattr(lease_manager, "list_leases", None)):
            raise ConfigurationError(f"lease_manager must be an ILeaseManager or None, not {lease_manager!r}")
        self._identifier = worker_identifier
        self._client_config = client_config
        self._stream_config = stream_config
        self._make_processor = _processor_maker(record_processor_factory)
        self._executor = executor
        self._lease_manager = lease_manager
        self._stream_api = stream_api
        self._runtime = runtime or Runtime()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._run_thread: int | None = None
        self._thread: threading.Thread | None = None
        self._machinery: Machinery | None = None
        self._exception: BaseException | None = None

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until ``shutdown()``; then return.

        Trouble with the service is waited out, however long. Returns early, with ``worker_status`` ERROR and the error
        in ``exception``, if a setting or permission is wrong, or this package has a fault. ``KeyboardInterrupt`` in
        this thread shuts the worker down in order and is raised again afterwards.

        Raises:
            StreamClientException: the worker was run or shut down before; that does not disturb a run under way.
        """
        self._begin()
        try:
            self._run()
        except StoppedEarly:
            _log.info("worker %s was stopped before it began", self._identifier)
        except Exception as error:
            self._exception = error
            _log.error("worker %s ends: %s", self._identifier, error, exc_info=error)
        finally:
            self._ended.set()
            _log.info("worker %s has ended", self._identifier)

    def shutdown(self, wait: bool = True) -> bool:
        """Stop: finish running calls, call every processor's ``shutdown``, hand the leases over. Any thread.

        Takes at most ``shutdown_timeout_millis``; what still runs then is left behind, its leases expire. Calling it
        again does no harm. From this worker's own threads, user code included, it never waits.

        Returns:
            Whether the worker has ended.
        """
        with self._lock:
            self._stop.set()
            if self._run_thread is None:
                self._ended.set()
            machinery = self._machinery
        if machinery is not None:
            machinery.coordinator.request_stop()
        if wait and not self._is_own_thread(machinery):
            self._ended.wait(self._client_config.shutdown_timeout_millis / 1_000 + SHUTDOWN_GRACE_SECONDS)
        return self._ended.is_set()

    def __enter__(self) -> Worker:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name=f"{self._identifier}-owner", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down."""
        if self.shutdown() and self._thread is not None:
            self._thread.join(SHUTDOWN_GRACE_SECONDS)

    # --- looking in ----------------------------------------------------------------------------------------------

    @property
    def worker_identifier(self) -> str:
        """The name that was given."""
        return self._identifier

    @property
    def worker_status(self) -> WorkerStatus:
        """ERROR once it failed; RUNNING from ``run()`` until that returns; SHUTDOWN afterwards. Any thread."""
        if self._exception is not None:
            return WorkerStatus.ERROR
        if self._ended.is_set():
            return WorkerStatus.SHUTDOWN
        return WorkerStatus.NOT_RUNNING if self._run_thread is None else WorkerStatus.RUNNING

    @property
    def exception(self) -> BaseException | None:
        """What made the worker fail, if anything did."""
        return self._exception

    @property
    def health(self) -> WorkerHealth:
        """Whether scans and heartbeats get through. An unhealthy worker goes on trying. Any thread."""
        machinery = self._machinery
        return WorkerHealth(is_healthy=True) if machinery is None else machinery.coordinator.health

    def shard_statuses(self) -> Mapping[str, ShardStatus]:
        """Every held shard by id, with the named reason where it does not move; after the end, as it was last.

        A shard whose lease is lost stays named until its processor has returned. Any thread.
        """
        machinery = self._machinery
        if machinery is None:
            return {}
        answered = threading.Event()
        found: dict[str, ShardStatus] = {}

        def reply(statuses: Mapping[str, ShardStatus]) -> None:
            found.update(statuses)
            answered.set()

        machinery.coordinator.shard_statuses(reply)
        while not self._runtime.wait(answered, STATUS_SECONDS):
            if not self._ended.is_set():
                raise StreamClientException(f"worker {self._identifier} did not answer within {STATUS_SECONDS:.0f} s")
            machinery.coordinator.shard_statuses(reply)
        return found

    def __repr__(self) -> str:
        return f"<Worker {self._identifier} of {self._stream_config.data_table_name}, {self.worker_status.value}>"

    # --- inside --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._lock:
            if self._run_thread is not None or self._stop.is_set():
                raise StreamClientException(
                    f"worker {self._identifier} is {self.worker_status.value} and runs only once; make a new Worker"
                )
            self._run_thread = threading.get_ident()

    def _run(self) -> None:
        machinery = self.prepare()
        if self._stop.is_set():
            machinery.coordinator.request_stop()
        machinery.run()

    def prepare(self) -> Machinery:
        """Look up stream and status table, and put the parts together; a step of ``run``."""
        persistence = Persistence(self._stop, self._runtime.wait)
        stream_api = self._stream_api or _default_stream_api(self._stream_config.client, self._stop)
        table_name = self._stream_config.data_table_name
        stream_id = persistence.do("looking up the stream", lambda: find_stream_id(stream_api, table_name))
        manager = self._lease_manager or _default_lease_manager(self._stream_config, stream_id, self._client_config)
        prepare_lease_table(manager, persistence)
        machinery = Machinery(
            Ingredients(
                worker_identifier=self._identifier,
                stream_id=stream_id,
                client_config=self._client_config,
                stream_config=self._stream_config,
                store=as_lease_store(manager),
                stream_api=stream_api,
                make_processor=self._make_processor,
                executor=self._executor,
                runtime=self._runtime,
            )
        )
        with self._lock:
            self._machinery = machinery
        _log.info("worker %s consumes stream %s", self._identifier, stream_id)
        return machinery

    def _is_own_thread(self, machinery: Machinery | None) -> bool:
        is_owner = self._run_thread == threading.get_ident()
        return is_owner or (machinery is not None and machinery.user_code.is_inside())


def _check(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise ConfigurationError(f"{name} must be a {expected.__name__}, not {value!r}")


def _processor_maker(factory: object) -> Callable[[], IRecordProcessor]:
    maker = getattr(factory, "create_processor", factory)
    is_class_of_factories = isinstance(factory, type) and hasattr(factory, "create_processor")
    if not callable(maker) or is_class_of_factories:
        raise ConfigurationError(
            f"record_processor_factory must be an IRecordProcessorFactory or a callable that makes a processor, "
            f"not {factory!r}"
        )
    return maker


# The SDK takes a third of a second to import; a worker on other stores does without it.


def _default_stream_api(client: Any, stop: threading.Event) -> StreamApi:
    from streamclient.stream.tablestore import TablestoreStreamApi  # noqa: PLC0415

    return TablestoreStreamApi(client, stop=stop)


def _default_lease_manager(config: StreamConfig, stream_id: str, client_config: ClientConfig) -> ILeaseManager:
    from streamclient.lease.manager import LeaseManager  # noqa: PLC0415

    return LeaseManager(config.client, config.status_table_name, stream_id, client_config)
