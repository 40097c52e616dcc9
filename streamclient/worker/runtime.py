"""The surroundings of a worker, replaceable in tests: clocks, waits, dice, names, and the threads of all streams."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor

from attrs import field, frozen

from streamclient.base.pools import DaemonPool
from streamclient.base.times import now_micros
from streamclient.config import ClientConfig
from streamclient.core.consumer.reading_pace import WorkerPace
from streamclient.worker.read_calls import PrefetchBudget, ReadQueue

USER_THREADS = 256
"""The largest number of threads of the default executor. A thread is made only while all others are inside user code,
so the limit is reached only if this many processors block at once; further shards then wait for their turn."""

JOIN_SECONDS = 1.0
"""The time for which a worker that has ended waits for its own idle threads. Threads inside a hanging call are left:
they are daemons and keep no process alive."""


def wait(event: threading.Event, seconds: float) -> bool:
    """Wait for an event; return whether it is set."""
    return event.wait(seconds)


def new_identifier() -> str:
    """Return a name that no other acquisition has."""
    return str(uuid.uuid4())


@frozen(kw_only=True)
class Runtime:
    """The surroundings of a worker: everything except decisions and calls to the service."""

    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds that never step; every age and deadline is measured by it."""
    wall_micros: Callable[[], int] = now_micros
    """Returns microseconds since 1970 by this machine's clock. It is never compared with the clock of another machine,
    except for the end of a pause, which an operator sets as a time."""
    wait: Callable[[threading.Event, float], bool] = wait
    """Waits for an answer in a user thread. A simulated runtime lets time pass here."""
    new_identifier: Callable[[], str] = new_identifier
    dice: random.Random = field(factory=random.Random)
    make_pool: Callable[[str, int], Executor] = DaemonPool
    """Makes a pool from a name and its largest number of threads."""


class Deadline:
    """One time limit shared by all steps of a longer action, so that their total time is bounded."""

    def __init__(self, monotonic: Callable[[], float], seconds: float) -> None:
        self._monotonic = monotonic
        self._at = monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds that are left, never below zero."""
        return max(0.0, self._at - self._monotonic())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._monotonic() >= self._at


class SharedParts:
    """The shared parts of a worker's streams: threads, the pace of reading, and the bytes for reading ahead."""

    def __init__(
        self, worker_identifier: str, client_config: ClientConfig, executor: Executor | None, runtime: Runtime
    ) -> None:
        self.client_config = client_config
        self.runtime = runtime
        self.scan_pool: Executor = runtime.make_pool(f"{worker_identifier}-scan", client_config.renew_thread_pool_size)
        self.status_pool: Executor = runtime.make_pool(
            f"{worker_identifier}-status", client_config.renew_thread_pool_size
        )
        self.renew_pool: Executor = runtime.make_pool(
            f"{worker_identifier}-renew", client_config.renew_thread_pool_size
        )
        self.fetch_pool: Executor = runtime.make_pool(f"{worker_identifier}-fetch", client_config.read_threads)
        self.reads: ReadQueue = ReadQueue(self.fetch_pool)
        self.pace: WorkerPace = WorkerPace(client_config)
        self.executor: Executor = executor or runtime.make_pool(f"{worker_identifier}-processor", USER_THREADS)
        self.prefetch: PrefetchBudget = PrefetchBudget(client_config.prefetch.prefetch_total_bytes)
        own_executor = [] if executor else [self.executor]
        self._own_pools = [self.scan_pool, self.status_pool, self.renew_pool, self.fetch_pool, *own_executor]

    def close(self) -> None:
        """Stop every thread that is not inside a hanging call."""
        for pool in self._own_pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._own_pools:
            if isinstance(pool, DaemonPool):
                pool.join(JOIN_SECONDS)
