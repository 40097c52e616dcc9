"""``TunnelDaemon``, which consumes a tunnel until it is closed."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from streamclient.base import checks
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.pools import start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import WorkerHealth, described
from streamclient.errors import StreamClientException, WorkerFailedError
from streamclient.model import WorkerStatus
from streamclient.tunnel.channel_processors import TunnelProcessor
from streamclient.tunnel.tunnel_config import TunnelWorkerConfig
from streamclient.tunnel.tunnel_worker import SHUTDOWN_GRACE_SECONDS, TunnelWorker
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.running import EndedBySigterm, Running, wait_awake

SHORTEST_RESTART_MILLIS = 1_000
LONGEST_RESTART_MILLIS = 10_000
"""The longest pause of the daemon before it makes a new worker. The Go client waits a random time of up to ten
seconds."""


@checks.explains_names
class TunnelDaemon(Running):
    """Consumes a tunnel until it is closed (Go: ``TunnelDaemon``). It replaces a worker that ended by a fault.

    ``run()`` blocks until ``close()`` is called, or raises an error if the service says that consuming can never work.
    Used as a context manager, the daemon runs in a thread, and ``wait()`` blocks until the daemon has ended.
    """

    def __init__(
        self,
        tunnel_id: str,
        client: Any,
        processor: TunnelProcessor,
        config: TunnelWorkerConfig | None = None,
    ) -> None:
        """Make a daemon. The arguments, their order and the errors are the same as for ``TunnelWorker``."""
        self._make_worker = partial(TunnelWorker, tunnel_id, client, processor, config)
        self._lock = threading.Lock()
        self._worker = self._make_worker()  # wrong arguments raise an error here, not in ``run``
        super().__init__(end_on_sigterm=(config or TunnelWorkerConfig()).client_config.end_on_sigterm)
        self._dice = random.Random()
        self._failure: BaseException | None = None
        """The error that ended the daemon; ``None`` if no error did."""
        self._last_fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Consume until ``close()``. ``KeyboardInterrupt`` and SIGTERM are handled as in ``TunnelWorker.run``.

        Raises:
            WorkerFailedError: the tunnel does not exist or is expired, or consuming it is not permitted.
        """
        with EndedBySigterm(self._ends_on_sigterm):
            try:
                self._run_workers()
            except BaseException:
                self.close()
                raise
            finally:
                self._ended.set()
        self._raise_failure()

    def close(self) -> None:
        """Shut the present worker down, and make ``run`` return afterwards. Usable from any thread."""
        self._require_here()
        with self._lock:
            self._stop.set()
            worker = self._worker
        worker.shutdown()

    @property
    def work_health(self) -> WorkerHealth:
        """The health of the present worker.

        After a worker's fault, the daemon is unhealthy until the next worker has connected.
        """
        self._require_here()
        with self._lock:
            worker, fault, failure = self._worker, self._last_fault, self._failure
        if failure is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {described(worker.exception or failure)}")
        if fault is not None and not worker.has_connected:
            return WorkerHealth(is_healthy=False, reason=f"its last worker ended: {type(fault).__name__}: {fault}")
        return worker.work_health

    def _run_workers(self) -> None:
        self._require_here()
        self._birthplace = Birthplace()
        failures = 0
        while not self._stop.is_set():
            worker = self._next_worker()
            try:
                worker.run()
            except WorkerFailedError as failure:
                if worker.is_refused:
                    self._failure = failure
                    return
                failures += 1
                with self._lock:
                    self._last_fault = worker.exception
                pause = doubling_millis(failures, SHORTEST_RESTART_MILLIS, LONGEST_RESTART_MILLIS)
                wait_awake(self._stop, with_jitter(pause, self._dice) / 1_000)
            except StreamClientException:
                if not self._stop.is_set():
                    raise

    def _next_worker(self) -> TunnelWorker:
        with self._lock:
            if self._worker.worker_status is not WorkerStatus.NOT_RUNNING:
                self._worker = self._make_worker()
            return self._worker

    def _begin_in_thread(self) -> None:
        self._birthplace = Birthplace()
        try:
            self._thread = start_thread(self._run_until_closed, "tunnel-daemon")
        except Exception:
            self._ended.set()
            raise

    def _run_until_closed(self) -> None:
        try:
            self._run_workers()
        except BaseException as error:  # the thread that waits for the daemon's end raises the error
            self._failure = error
        finally:
            self._ended.set()

    def _end_thread(self) -> None:
        self.close()
        if self._thread is not None:
            self._thread.join(SHUTDOWN_GRACE_SECONDS)

    def _owner_loops(self) -> Mapping[str, OwnerLoop]:
        with self._lock:
            worker = self._worker
        return {} if worker.worker_status is not WorkerStatus.RUNNING else worker._owner_loops()

    def _has_failed(self) -> bool:
        return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
