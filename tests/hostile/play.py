"""Plays one case of the table, from an empty server to the verdict."""

from __future__ import annotations

import logging
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any

import certifi
import pytest
import tablestore
from attrs import define, evolve, field, frozen

from streamclient.copying import mirror_source as mirrored
from streamclient.copying import replication_sources, table_copy
from streamclient.errors import StreamClientError
from streamclient.spark.source import partition_reading, planner, tunnel_planner
from streamclient.tablestore import following
from streamclient.tablestore import stream_operations as tablestore_api
from streamclient.tunnel import TunnelClient
from streamclient.worker.lease import LeaseManager
from tests.hostile.consumers import CONSUMER_CLASSES, QUICK, Consumer, QuickRetry
from tests.hostile.judge import Act, Journal, judge
from tests.hostile.proxy import CERTIFICATE, CLIENT_SECONDS, Fault, HostileProxy
from tests.hostile.scene import TABLE, Scene, SmallPages
from tests.hostile.table import (
    MIRROR,
    REPLICATE,
    SOURCE,
    TAIL,
    TLS,
    TUNNEL_REPLICATE,
    TUNNEL_SOURCE,
    Case,
    Lasting,
    may_end,
)
from tests.patience import PATIENCE_SECONDS

LOOK_SECONDS = 0.02
QUIET_SECONDS = 0.1
"""Between two settings of modules that wait for seconds, where nothing can be learnt from the wait."""

_STATE_ONLY = (REPLICATE, TUNNEL_REPLICATE, MIRROR)
"""Judged by the rows that they have made, which repeats do not change."""

_LOGS_COUNT = (REPLICATE, TUNNEL_REPLICATE, TAIL, SOURCE, TUNNEL_SOURCE)
"""Consumers without health: their errors and lines are where they name trouble."""


@frozen
class Outcome:
    """What one case showed."""

    case: Case
    findings: list[str]
    named: str
    """The first trouble that was named while the fault lasted."""
    played: int
    seconds: float
    counts: dict[str, int] = field(factory=dict, repr=False)
    """Requests by operation and table."""

    def __str__(self) -> str:
        verdict = "ok" if not self.findings else "FAILED " + "; ".join(self.findings)
        named = f", named: {self.named[:160]!r}" if self.named else ""
        return f"{self.case}: {verdict} (played {self.played}{named}, {self.seconds:.1f} s)"


@contextmanager
def _quick_settings() -> Iterator[None]:
    """Short time-outs where users have no setting, the tests' certificate as one that is trusted, and crashes noted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tablestore.OTSClient.__mro__[1], "DEFAULT_SOCKET_TIMEOUT", CLIENT_SECONDS)
        patch.setattr(replication_sources, "LeaseManager", partial(LeaseManager, client_config=QUICK))
        patch.setattr(replication_sources, "_CLIENT_CONFIG", evolve(QUICK, deliver_empty_batches=True))
        for module in (tablestore_api, table_copy, mirrored, partition_reading):
            patch.setattr(module, "ReadRetry", QuickRetry)
        for name in ("retry", "data_retry"):
            patch.setitem(unwrap(TunnelClient.__init__).__kwdefaults__, name, QuickRetry())
        patch.setattr(replication_sources, "HEARTBEAT_SECONDS", 1)
        patch.setattr(replication_sources, "HEARTBEAT_TIMEOUT_SECONDS", 5)
        patch.setattr(tunnel_planner, "ReadRetry", QuickRetry)
        partition_reading._repeater.cache_clear()
        for module in (planner, following):
            patch.setattr(module, "LIST_SECONDS", QUIET_SECONDS)
            patch.setattr(module, "IDLE_SECONDS", LOOK_SECONDS)
        patch.setattr(certifi, "where", lambda: str(CERTIFICATE))
        yield
    partition_reading._repeater.cache_clear()


class _Ear(logging.Handler):
    """Hears what the package says, and that something of it crashed."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, StreamClientError):
            self._journal.note(Act.CRASHED, text=f"{record.getMessage()} ({error!r})")
        else:
            self._journal.note(Act.SAID, text=record.getMessage())


@contextmanager
def _listening(journal: Journal) -> Iterator[None]:
    logger, ear, before = logging.getLogger("streamclient"), _Ear(journal), threading.excepthook
    propagates = logger.propagate

    def crashed(arguments: Any) -> None:
        journal.note(Act.CRASHED, text=f"thread {arguments.thread}: {arguments.exc_value!r}")

    logger.addHandler(ear)
    logger.propagate = False
    threading.excepthook = crashed
    try:
        yield
    finally:
        threading.excepthook = before
        logger.propagate = propagates
        logger.removeHandler(ear)


def play(case: Case, seed: int = 1, *, patience: float = PATIENCE_SECONDS) -> Outcome:
    """One case; ``patience`` is how long what must come is waited for."""
    started = time.monotonic()
    fault = Fault(
        case.place,
        case.answer,
        case.lasting.times,
        random.Random(f"{seed}/{case}"),
        is_data=lambda table: table == TABLE,
    )
    return _play(case, fault, started, patience)


def play_honest(case: Case, *, patience: float = PATIENCE_SECONDS) -> Outcome:
    """The same with honest answers only."""
    return _play(case, None, time.monotonic(), patience)


def _play(case: Case, fault: Fault | None, started: float, patience: float) -> Outcome:
    journal = Journal()
    with ExitStack() as stack:
        stack.enter_context(_quick_settings())
        stack.enter_context(_listening(journal))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        scene = Scene(stack.enter_context(SmallPages()))
        proxy = stack.enter_context(HostileProxy(scene.local, fault, has_tls=case.connection.scheme == TLS))
        kind = CONSUMER_CLASSES[case.consumer.name]
        consumer = kind(scene, proxy.endpoint, case.connection, journal, directory)
        consumer.prepare()
        scene.write_history()
        run = _Run(case, scene, consumer, fault, journal, patience)
        consumer.start()
        try:
            if run.follow() and consumer.stores_place and consumer.stop():
                run.follow_again()
        finally:
            has_ended = consumer.stop()
        findings = [*run.findings, *proxy.swallowed, *(f"the proxy itself: {error!r}" for error in proxy.failures)]
        if not has_ended:
            findings.append("hang: the consumer does not stop")
        findings += _verdict(case, scene, consumer, journal)
        counts = {" ".join(key).strip(): count for key, count in proxy.counts.items()}
    seconds = time.monotonic() - started
    return Outcome(case, findings, run.named, 0 if fault is None else fault.played, seconds, counts)


def _verdict(case: Case, scene: Scene, consumer: Consumer, journal: Journal) -> list[str]:
    events = journal.events
    if case.consumer in _STATE_ONLY:
        found = [*judge({}, [event for event in events if event.act is not Act.DELIVERED]), *consumer.problems()]
    else:
        found = [*judge(scene.written, events), *consumer.problems()]
    ended = journal.texts(Act.ENDED)
    if ended and not may_end(case):
        found.append(f"ended with an error, which the table does not allow: {ended[0][:200]}")
    return found


@define(eq=False)
class _Run:
    """The steps of one case."""

    _case: Case
    _scene: Scene
    _consumer: Consumer
    _fault: Fault | None
    _journal: Journal
    _patience: float
    findings: list[str] = field(factory=list)
    named: str = ""

    def follow(self) -> bool:
        """From the start until it is even; whether it is."""
        consumer, fault, scene = self._consumer, self._fault, self._scene
        self._until(lambda: consumer.is_ready or self._is_named(), "")
        scene.go_on()
        if fault is not None:
            self._let_it_play(fault)
            if not fault.played:
                self.findings.append("the fault was never met")
            fault.end()
        scene.write()
        if not self._until(lambda: consumer.is_even, "stall"):
            return False
        scene.write()  # so that what comes twice has time to come
        is_even = self._until(lambda: consumer.is_even, "stall")
        return is_even and self._until(lambda: not consumer.trouble, "trouble is named although it is over")

    def follow_again(self) -> None:
        """Another life, from the place that is stored: it must be the right one."""
        self._scene.write()
        self._journal.note(Act.SAID, text="started again")
        self._consumer.start()
        self._until(lambda: self._consumer.is_even, "stall of the next life")

    def _let_it_play(self, fault: Fault) -> None:
        if self._case.lasting is Lasting.UNTIL_NAMED:
            self._until(self._is_named, "not named where people look")
        else:
            self._until(lambda: fault.is_over or self._consumer.is_even, "stall")

    def _is_named(self) -> bool:
        """Whether trouble is told where people look for it, since the fault began."""
        if self._fault is None or not self._fault.played:
            return False
        if not self.named:
            texts = self._journal.texts(Act.ENDED)
            if self._case.consumer in _LOGS_COUNT:
                texts += self._journal.texts(Act.SAID)
            self.named = self._consumer.trouble or next(iter(texts), "")
            if self.named:
                self._journal.note(Act.SAID, text=self.named)
        return bool(self.named)

    def _until(self, condition: Callable[[], bool], otherwise: str) -> bool:
        """Whether it came in time; what did not is a finding."""
        pause, deadline = threading.Event(), time.monotonic() + self._patience
        while not condition():
            crashed = self._journal.texts(Act.CRASHED)
            if crashed or time.monotonic() > deadline:
                latest = self._journal.texts(Act.SAID, Act.ENDED)[-1:]
                said = self._consumer.trouble or self.named or next(iter(latest), "")
                if otherwise:
                    self.findings.append(f"{otherwise}: {said or 'and nothing is said'}")
                return False
            pause.wait(LOOK_SECONDS)
        return True
