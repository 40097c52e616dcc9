"""Puts the parts of a running worker together, and takes them apart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor

from attrs import frozen

from streamclient.config import ClientConfig, StreamConfig
from streamclient.core.events import Event
from streamclient.core.holdings import Holdings
from streamclient.interfaces import IRecordProcessor
from streamclient.lease.store import LeaseStore
from streamclient.stream.api import StreamApi
from streamclient.worker.consumer_state import Surroundings
from streamclient.worker.coordinator import Coordinator
from streamclient.worker.loop import OwnerLoop
from streamclient.worker.pools import DaemonPool
from streamclient.worker.runtime import Runtime
from streamclient.worker.scheduling import Schedule
from streamclient.worker.service import ServiceCalls
from streamclient.worker.usercode import UserCode

_log = logging.getLogger(__name__)

FETCH_THREADS = 32
"""Reads under way at once. A thread exists only while others are busy; at 10 ms per read this is 3,200 reads a second,
far more than one process can decode."""

USER_THREADS = 256
"""Threads of the default executor. One exists only while all others are inside user code, so this is reached only if so
many processors block at once; further shards then wait for their turn."""

JOIN_SECONDS = 1.0
"""How long a worker that has ended waits for its own idle threads. Those inside a call that hangs are left: they are
daemons and keep no process alive."""


@frozen(kw_only=True)
class Ingredients:
    """What a worker was given, resolved."""

    worker_identifier: str
    stream_id: str
    client_config: ClientConfig
    stream_config: StreamConfig
    store: LeaseStore
    stream_api: StreamApi
    make_processor: Callable[[], IRecordProcessor]
    executor: Executor | None
    runtime: Runtime


class Machinery:
    """A coordinator with its threads."""

    def __init__(self, given: Ingredients) -> None:
        runtime, name = given.runtime, given.worker_identifier
        self._given = given
        self.loop = OwnerLoop(runtime.monotonic)
        self._status_pool = runtime.make_pool(f"{name}-status", given.client_config.renew_thread_pool_size)
        self._fetch_pool = runtime.make_pool(f"{name}-fetch", FETCH_THREADS)
        self._own_executor = None if given.executor else runtime.make_pool(f"{name}-processor", USER_THREADS)
        executor = given.executor or self._own_executor
        assert executor is not None
        self.user_code = UserCode(executor, self.loop, given.client_config.slow_processor_warning_millis)
        self.coordinator = Coordinator(
            holdings=_holdings(given),
            loop=self.loop,
            make_service=self._service,
            make_surroundings=self._surroundings,
            shutdown_timeout_millis=given.client_config.shutdown_timeout_millis,
        )

    def run(self) -> None:
        """Run until stopped; raise what made it fail. ``KeyboardInterrupt`` stops it in order, a second one at once."""
        schedule = self._given.runtime.start_schedule([each.job() for each in self.coordinator.recurring])
        try:
            problem = self._drive()
        finally:
            self._take_apart(schedule)
        if problem is not None:
            raise problem

    def _drive(self) -> BaseException | None:
        coordinator = self.coordinator
        problem: BaseException | None = None
        while not coordinator.is_finished:
            try:
                coordinator.step()
            except KeyboardInterrupt as interrupt:
                if isinstance(problem, KeyboardInterrupt):
                    raise
                problem = problem or interrupt
                coordinator.request_stop()
            except Exception as error:
                if isinstance(problem, Exception):
                    raise
                _log.error("worker %s fails: %s", self._given.worker_identifier, error, exc_info=error)
                problem = error
                coordinator.fail()
        return problem

    def _take_apart(self, schedule: Schedule) -> None:
        self.coordinator.close()
        schedule.stop()
        pools = [self._status_pool, self._fetch_pool, *([self._own_executor] if self._own_executor else [])]
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            if isinstance(pool, DaemonPool):
                pool.join(JOIN_SECONDS)

    def _service(self, emit: Callable[[Event], None]) -> ServiceCalls:
        given = self._given
        return ServiceCalls(
            stream_id=given.stream_id,
            store=given.store,
            stream_api=given.stream_api,
            loop=self.loop,
            status_pool=self._status_pool,
            fetch_pool=self._fetch_pool,
            emit=emit,
        )

    def _surroundings(self, coordinator: Coordinator) -> Surroundings:
        given = self._given
        return Surroundings(
            loop=self.loop,
            user_code=self.user_code,
            fetch_pool=self._fetch_pool,
            stream_api=given.stream_api,
            make_processor=given.make_processor,
            config=given.client_config,
            max_records=given.stream_config.max_records,
            dice=given.runtime.dice,
            wait=given.runtime.wait,
            send_checkpoint=coordinator.send_checkpoint,
            ended=coordinator.consumer_ended,
        )


def _holdings(given: Ingredients) -> Holdings:
    runtime = given.runtime
    return Holdings(
        given.worker_identifier,
        given.stream_id,
        given.client_config,
        given.stream_config.initial_position,
        runtime.dice,
        new_identifier=runtime.new_identifier,
        wall_start_micros=runtime.wall_micros(),
    )
