"""The clocks, waits, random numbers and threads of a worker. Tests and the simulator replace them."""

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
"""The largest number of threads of the default executor. A thread is made only while all other threads are inside user
code. So the limit is reached only if as many processors block at the same time. Further shards then wait for a
thread."""

JOIN_SECONDS = 1.0
"""The longest time for which a worker that has ended waits for the end of its threads. Threads inside a hanging call
may stay longer: they are daemons and keep no process alive."""


def wait(event: threading.Event, seconds: float) -> bool:
    """Wait for ``event``, at most ``seconds``; return whether the event is set."""
    return event.wait(seconds)


def new_identifier() -> str:
    """Return a new and unique name for an acquisition of a lease."""
    return str(uuid.uuid4())


@frozen(kw_only=True)
class Runtime:
    """The clocks, waits, random numbers and pools that a worker uses."""

    monotonic: Callable[[], float] = time.monotonic
    """A function that returns seconds of a clock that is never set. The worker measures every age and deadline by this
    clock."""
    wall_micros: Callable[[], int] = now_micros
    """A function that returns microseconds since 1970 by this machine's clock. The worker uses this clock only where it
    needs a time since 1970, for example at the end of a pause, which an operator sets as a time. No lease expires by
    this clock."""
    wait: Callable[[threading.Event, float], bool] = wait
    """A function that waits for an answer in a user thread. In a simulation, it lets the simulated time pass."""
    new_identifier: Callable[[], str] = new_identifier
    dice: random.Random = field(factory=random.Random)
    make_pool: Callable[[str, int], Executor] = DaemonPool
    """A function that makes a pool from a name and the largest number of its threads."""


class Deadline:
    """A time limit for all steps of a longer action together."""

    def __init__(self, monotonic: Callable[[], float], seconds: float) -> None:
        self._monotonic = monotonic
        self._at = monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline, never below zero."""
        return max(0.0, self._at - self._monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._monotonic() >= self._at


class SharedParts:
    """The resources that the streams of a worker share: threads, the pace of reading, and the memory for pages."""

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

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is one of these threads. Usable from any thread."""
        return any(isinstance(pool, DaemonPool) and pool.is_inside for pool in self._own_pools)

    def close(self) -> None:
        """Stop all threads, except threads inside a hanging call."""
        for pool in self._own_pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._own_pools:
            if isinstance(pool, DaemonPool):
                pool.join(JOIN_SECONDS)
