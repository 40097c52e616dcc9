"""One stream of a worker, from looking it up until its last lease is handed over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from streamclient.config import ClientConfig, StreamConfig
from streamclient.core import events
from streamclient.errors import is_foreseen
from streamclient.interfaces import ILeaseManager, IMetrics, IRecordProcessor
from streamclient.lease.store import as_lease_store, as_worker_directory
from streamclient.metrics.labelled import labelled
from streamclient.model import ShardStatus, TrimmedRange
from streamclient.reasons import described
from streamclient.stream.api import StreamApi
from streamclient.worker.assembly import SharedParts, StreamInputs, StreamParts
from streamclient.worker.coordinator import Coordinator
from streamclient.worker.health import WorkerHealth
from streamclient.worker.running import wait_awake
from streamclient.worker.startup import Persistence, StoppedEarly, find_stream_id, prepare_lease_table

_log = logging.getLogger(__name__)


class StreamRun:
    """Reads one stream with the parts that all streams of a worker share. Runs once, in a thread of its own.

    What it fails of is kept in ``exception``: it is nobody else's failure.
    """

    def __init__(
        self,
        worker_identifier: str,
        stream_config: StreamConfig,
        make_processor: Callable[[], IRecordProcessor],
        lease_manager: ILeaseManager | None,
        stream_api: StreamApi | None,
    ) -> None:
        self.name = stream_config.name
        self.exception: BaseException | None = None
        """What it fails of, from the moment on at which that is known."""
        self.thread_id: int | None = None
        self._worker_identifier = worker_identifier
        self._config = stream_config
        self._make_processor = make_processor
        self._lease_manager = lease_manager
        self._stream_api = stream_api
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._persistence: Persistence | None = None
        self._parts: StreamParts | None = None
        self._early: list[events.Event] = []

    # --- the caller of Worker.run ---------------------------------------------------------------------------------

    def start(self, shared: SharedParts, stop: threading.Event) -> None:
        """Begin to run in a thread of its own."""
        name = f"{self._worker_identifier}-owner-{self.name}"
        self._thread = threading.Thread(target=self.run, args=(shared, stop), name=name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when it has ended, at once if it was never started.

        An event tells: once an interrupt has struck it, ``join`` may take a running thread for ended (Python 3.11).
        """
        if self._thread is not None and self._thread.ident is not None:
            wait_awake(self._ended)
            self._thread.join()

    # --- its own thread ------------------------------------------------------------------------------------------

    def run(self, shared: SharedParts, stop: threading.Event) -> None:
        """Consume until stopped; raises nothing."""
        self.thread_id = threading.get_ident()
        try:
            self.prepare(shared, stop).run(self._fail)
        except StoppedEarly:
            _log.info("worker %s was stopped before it began to read %s", self._worker_identifier, self.name)
        except Exception as error:
            self._fail(error)
        finally:
            self._ended.set()

    def _fail(self, error: Exception) -> None:
        """Remember the first error, and tell it at once: what runs yet may take the whole time-out to end."""
        if self.exception is None:
            self.exception = error
            _log.error("%s", self.sentence, exc_info=None if is_foreseen(error) else error)

    def prepare(self, shared: SharedParts, stop: threading.Event) -> StreamParts:
        """Look up stream and status table, and put the parts together; a step of ``run``."""
        config = shared.client_config
        limit = config.max_duration_before_last_successful_renew_or_take_lease
        persistence = Persistence(stop, shared.runtime.wait, shared.runtime.monotonic, limit)
        self._persistence = persistence
        metrics = labelled(config.metrics, stream=self.name, worker=self._worker_identifier)
        stream_api = self._stream_api or _default_stream_api(self._config.client, stop, metrics)
        table_name = self._config.data_table_name
        stream_id = persistence.do("looking up the stream", lambda: find_stream_id(stream_api, table_name))
        manager = self._lease_manager or _default_lease_manager(self._config, stream_id, config, metrics)
        prepare_lease_table(manager, persistence)
        parts = StreamParts(
            StreamInputs(
                worker_identifier=self._worker_identifier,
                stream_id=stream_id,
                stream_config=self._config,
                store=as_lease_store(manager),
                directory=as_worker_directory(manager),
                stream_api=stream_api,
                make_processor=self._make_processor,
                metrics=metrics,
            ),
            shared,
        )
        with self._lock:
            self._parts = parts
            for event in self._early:
                parts.coordinator.send(event)
            if stop.is_set():
                parts.coordinator.request_stop()
        _log.info("worker %s consumes stream %s", self._worker_identifier, stream_id)
        return parts

    # --- any thread ----------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator | None:
        """What decides; ``None`` before the stream and the status table were found."""
        return None if self._parts is None else self._parts.coordinator

    def send(self, event: events.Event) -> None:
        """Have an event handled; one that comes early waits until there is somebody to handle it."""
        with self._lock:
            if self._parts is None:
                self._early.append(event)
            else:
                self._parts.coordinator.send(event)

    def accept_loss(self, lease_key: str, reply: Callable[[TrimmedRange | None], None]) -> None:
        """Have ``reply`` called with what a shard gives up to go on; with ``None`` if it did not stop for a loss."""
        coordinator = self.coordinator
        if coordinator is None:
            reply(None)
        else:
            coordinator.accept_loss(lease_key, reply)

    def request_stop(self) -> None:
        """Begin to stop. Before there is anything to stop, the worker's stop event does it."""
        with self._lock:
            if self._parts is not None:
                self._parts.coordinator.request_stop()

    def shard_statuses(self, reply: Callable[[Mapping[str, ShardStatus]], None]) -> None:
        """Have ``reply`` called with every held shard; at once if there are none to ask for."""
        coordinator = self.coordinator
        if coordinator is None:
            reply({})
        else:
            coordinator.shard_statuses(reply)

    @property
    def sentence(self) -> str:
        """What it failed of, for people."""
        error = self.exception
        what = described(error) if error is not None and not is_foreseen(error) else error
        return f"worker {self._worker_identifier} ends reading {self.name}: {what}"

    @property
    def health(self) -> WorkerHealth:
        """Whether it reads at all, and whether scans and heartbeats get through."""
        coordinator, persistence = self.coordinator, self._persistence
        if self.exception is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {type(self.exception).__name__}: {self.exception}")
        if coordinator is not None:
            return coordinator.health
        return WorkerHealth(is_healthy=True) if persistence is None else persistence.health

    def is_own_thread(self) -> bool:
        """Whether the calling thread owns this stream's state, or is inside user code of it."""
        parts = self._parts
        is_owner = self.thread_id == threading.get_ident()
        return is_owner or (parts is not None and parts.user_code.is_inside())


# The SDK takes a third of a second to import; a worker on other stores does without it.


def _default_stream_api(client: Any, stop: threading.Event, metrics: IMetrics) -> StreamApi:
    from streamclient.stream.tablestore import TablestoreStreamApi  # noqa: PLC0415

    return TablestoreStreamApi(client, stop=stop, metrics=metrics)


def _default_lease_manager(
    config: StreamConfig, stream_id: str, client_config: ClientConfig, metrics: IMetrics
) -> ILeaseManager:
    from streamclient.lease.manager import LeaseManager  # noqa: PLC0415

    return LeaseManager(config.client, config.status_table_name, stream_id, client_config, metrics=metrics)
