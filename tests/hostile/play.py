"""Plays one case of the table, from an empty server to the verdict."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import unwrap
from pathlib import Path

import certifi
import pytest
import tablestore
from attrs import define, evolve

from streamclient.copying import replication_sources, source_table
from streamclient.spark.source import partition_reading, planner, tunnel_planner
from streamclient.tablestore import following
from streamclient.tablestore import stream_operations as tablestore_api
from streamclient.tunnel import TunnelClient
from streamclient.worker.lease import LeaseManager
from tests.hostile.cases import LOOK_SECONDS, Outcome, Watch, listening
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

QUIET_SECONDS = 0.1
"""Between two settings of modules that wait for seconds, where nothing can be learnt from the wait."""

_STATE_ONLY = (REPLICATE, TUNNEL_REPLICATE, MIRROR)
"""Judged by the rows that they have made, which repeats do not change."""

_LOGS_COUNT = (REPLICATE, TUNNEL_REPLICATE, TAIL, SOURCE, TUNNEL_SOURCE)
"""Consumers without health: their errors and lines are where they name trouble."""


@contextmanager
def _quick_settings() -> Iterator[None]:
    """Short time-outs where users have no setting, the tests' certificate as one that is trusted, and crashes noted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tablestore.OTSClient.__mro__[1], "DEFAULT_SOCKET_TIMEOUT", CLIENT_SECONDS)
        patch.setattr(replication_sources, "LeaseManager", partial(LeaseManager, client_config=QUICK))
        patch.setattr(replication_sources, "_CLIENT_CONFIG", evolve(QUICK, deliver_empty_batches=True))
        for module in (tablestore_api, source_table, partition_reading):
            patch.setattr(module, "ReadRetry", QuickRetry)
        for name in ("retry", "data_retry"):
            patch.setitem(unwrap(TunnelClient.__init__).__kwdefaults__, name, QuickRetry())
        patch.setattr(replication_sources, "HEARTBEAT_SECONDS", 1)
        patch.setattr(replication_sources, "HEARTBEAT_TIMEOUT_SECONDS", 5)
        patch.setattr(tunnel_planner, "ReadRetry", QuickRetry)
        partition_reading._repeater.cache_clear()
        for module in (planner, following):
            patch.setattr(module, "LIST_SECONDS", QUIET_SECONDS)
        patch.setattr(following, "IDLE_SECONDS", LOOK_SECONDS)
        patch.setattr(certifi, "where", lambda: str(CERTIFICATE))
        yield
    partition_reading._repeater.cache_clear()


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
        stack.enter_context(listening(journal))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        scene = Scene(stack.enter_context(SmallPages()))
        proxy = stack.enter_context(HostileProxy(scene.local, fault, has_tls=case.connection.scheme == TLS))
        kind = CONSUMER_CLASSES[case.consumer.name]
        consumer = kind(scene, proxy.endpoint, case.connection, journal, directory)
        consumer.prepare()
        scene.write_history()
        watch = Watch(journal, patience, lambda: consumer.trouble)
        run = _Run(case, scene, consumer, fault, watch)
        consumer.start()
        try:
            if run.follow() and consumer.stores_place and consumer.stop():
                run.follow_again()
        finally:
            has_ended = consumer.stop()
        findings = [*watch.findings, *proxy.swallowed, *(f"the proxy itself: {error!r}" for error in proxy.failures)]
        if not has_ended:
            findings.append("hang: the consumer does not stop")
        findings += _verdict(case, scene, consumer, journal)
    return Outcome(case, findings, watch.named, 0 if fault is None else fault.played, time.monotonic() - started)


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
    _watch: Watch

    def follow(self) -> bool:
        """From the start until it is even; whether it is."""
        consumer, fault, scene = self._consumer, self._fault, self._scene
        self._watch.until(lambda: consumer.is_ready or self._is_named(), "")
        scene.go_on()
        if fault is not None:
            self._let_it_play(fault)
            if not fault.played:
                self._watch.findings.append("the fault was never met")
            fault.end()
        scene.write()
        if not self._watch.until(lambda: consumer.is_even, "stall"):
            return False
        scene.write()  # so that what comes twice has time to come
        is_even = self._watch.until(lambda: consumer.is_even, "stall")
        return is_even and self._watch.until(lambda: not consumer.trouble, "trouble is named although it is over")

    def follow_again(self) -> None:
        """Another life, from the place that is stored: it must be the right one."""
        self._scene.write()
        self._watch.journal.note(Act.SAID, text="started again")
        self._consumer.start()
        self._watch.until(lambda: self._consumer.is_even, "stall of the next life")

    def _let_it_play(self, fault: Fault) -> None:
        if self._case.lasting is Lasting.UNTIL_NAMED:
            self._watch.until(self._is_named, "not named where people look")
        else:
            self._watch.until(lambda: fault.is_over or self._consumer.is_even, "stall")

    def _is_named(self) -> bool:
        """Whether trouble is told where people look for it, since the fault began."""
        watch, journal = self._watch, self._watch.journal
        if self._fault is None or not self._fault.played:
            return False
        if not watch.named:
            texts = journal.texts(Act.ENDED)
            if self._case.consumer in _LOGS_COUNT:
                texts += journal.texts(Act.SAID)
            watch.named = self._consumer.trouble or next(iter(texts), "")
            if watch.named:
                journal.note(Act.SAID, text=watch.named)
        return bool(watch.named)
