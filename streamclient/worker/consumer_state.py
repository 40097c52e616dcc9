"""What a shard's consumer remembers, and the few moves that all its phases share. Owner thread only."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor

from attrs import frozen

from streamclient.config import ClientConfig
from streamclient.core.events import ConsumerEnd, StartConsumer
from streamclient.core.lifecycle import PUBLIC_STATES, Outcome, Phase, next_phase
from streamclient.interfaces import IRecordProcessor
from streamclient.model import ShardInfo, ShardStatus, ShutdownReason
from streamclient.stream.api import RecordPage, StreamApi
from streamclient.worker.backoff import ConsumerBackoff
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.fetcher import DataFetcher
from streamclient.worker.loop import OwnerLoop, Timer
from streamclient.worker.session import ProcessorSession
from streamclient.worker.usercode import UserCall, UserCode

_log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Surroundings:
    """What every consumer of a worker shares."""

    loop: OwnerLoop
    user_code: UserCode
    fetch_pool: Executor
    stream_api: StreamApi
    make_processor: Callable[[], IRecordProcessor]
    config: ClientConfig
    max_records: int
    dice: random.Random
    wait: Callable[[threading.Event, float], bool]
    send_checkpoint: Callable[[ShardInfo, CheckpointTicket, float], bool]
    ended: Callable[[ShardInfo, ConsumerEnd], None]


class ConsumerState:
    """Fields, status and moves of one tenancy."""

    def __init__(self, start: StartConsumer, around: Surroundings) -> None:
        self.shard_info = start.shard_info
        self.shard_id = start.shard_info.shard_id
        self._around = around
        self._phase = Phase.BACKING_OFF
        self._visit = 0
        self._stored = start.checkpoint
        self._session: ProcessorSession | None = None
        self._fetcher: DataFetcher | None = None
        self._batch: RecordPage | None = None
        self._call: UserCall | None = None
        self._timer: Timer | None = None
        self._stop: ShutdownReason | None = None
        self._closing: ShutdownReason | None = None
        self._close_error = ""
        self._parked_because = ""
        self._open_requests = 0
        self._backoff = ConsumerBackoff(around.config, around.dice)
        self._reason = ""
        self._resume_at: float | None = None

    def status(self, now: float) -> ShardStatus:
        """What it is doing."""
        running = 0.0 if self._call is None else self._call.running_seconds(now)
        return ShardStatus(
            shard_id=self.shard_id,
            state=PUBLIC_STATES[self._phase],
            checkpoint=self._stored,
            reason=self._present_reason(now),
            failures=self._backoff.failures,
            user_code_seconds=running,
        )

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone and only user code that still runs keeps this consumer."""
        return self._stop is ShutdownReason.ZOMBIE

    def __repr__(self) -> str:
        return f"<consumer of {self.shard_id}, {self._phase.value}, stop={self._stop and self._stop.value}>"

    # --- tools ---------------------------------------------------------------------------------------------------

    @property
    def _the_session(self) -> ProcessorSession:
        if self._session is None:
            raise ValueError(f"{self!r} has no processor")
        return self._session

    @property
    def _the_fetcher(self) -> DataFetcher:
        if self._fetcher is None:
            raise ValueError(f"{self!r} has not started reading")
        return self._fetcher

    def _move(self, outcome: Outcome) -> None:
        """Change the phase; answers and timers of the visit that ends are ignored from now on."""
        self._phase = next_phase(self._phase, outcome)
        self._visit += 1
        self._resume_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self._resume_at = self._around.loop.now() + seconds
        self._timer = self._around.loop.call_later(seconds, then)

    def _run_user_code(
        self, name: str, function: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def finished(error: BaseException | None) -> None:
            self._call = None
            done(error)

        self._call = self._around.user_code.run(name, self.shard_id, function, finished)

    def _report_failure(self, name: str, error: BaseException) -> None:
        """Name the failure in the status and the log; after the lease is lost it is expected and quiet."""
        count = self._backoff.failures
        self._reason = f"processor failed {times(count)}: {name}: {described(error)}"
        level = logging.INFO if self.is_lost else logging.ERROR
        _log.log(level, "shard %s: %s raised (failure %s in a row)", self.shard_id, name, count, exc_info=error)

    def _present_reason(self, now: float) -> str:
        delay = "" if self._call is None else self._call.delay_reason(now)
        parts = ["the lease is lost" if self.is_lost else "", self._reason, delay]
        if self._reason and self._resume_at is not None:
            what = "start" if self._phase is Phase.BACKING_OFF else "attempt"
            parts.append(f"next {what} in {max(0.0, self._resume_at - now):.1f} s")
        return "; ".join(part for part in parts if part)


def times(count: int) -> str:
    """Once, or n times."""
    return "once" if count == 1 else f"{count} times"


def described(error: BaseException) -> str:
    """Type and text of an error, for statuses and logs."""
    return f"{type(error).__name__}: {error}"
