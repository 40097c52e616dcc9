"""Plays one case of the table, from an empty server to the verdict."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import define, field

from tests.destinations.silent_proxy import SilentProxy
from tests.hostile.cases import Outcome, Watch, listening
from tests.hostile.judge import Act, Journal, judge
from tests.hostile.scene import Scene, SmallPages
from tests.hostile.table import CONNECTIONS
from tests.hostile_lake.consumers import LakeConsumer, consumer_of
from tests.hostile_lake.delta import DirectoryPlace, StorePlace, address
from tests.hostile_lake.iceberg import IcebergPlace
from tests.hostile_lake.places import Befalling, Database, Place, Servers
from tests.hostile_lake.postgres import PostgresPlace
from tests.hostile_lake.steps import Steps, TellingStore
from tests.hostile_lake.table import DIRECTORY, POSTGRES, STORE, Case, Lasting, Step, may_end
from tests.patience import PATIENCE_SECONDS


@contextmanager
def place_of(case: Case, servers: Servers, directory: Path, steps: Steps) -> Iterator[Place]:
    """The place of a case, empty."""
    with ExitStack() as stack:
        if case.place is DIRECTORY:
            yield DirectoryPlace(directory, steps)
        elif case.place is STORE:
            store = stack.enter_context(TellingStore())
            proxy = stack.enter_context(SilentProxy(address(store)))
            yield StorePlace(directory, steps, store, proxy)
        else:
            database = stack.enter_context(Database(servers.postgres))
            if case.place is POSTGRES:
                yield PostgresPlace(directory, steps, database)
            else:
                place = IcebergPlace(directory, steps, database)
                stack.callback(place.close)
                yield place


def play(case: Case, servers: Servers, *, patience: float = PATIENCE_SECONDS) -> Outcome:
    """One case; ``patience`` is how long each thing that must come is waited for, in seconds."""
    started, journal, steps = time.monotonic(), Journal(), Steps(case.step)
    with ExitStack() as stack:
        stack.enter_context(listening(journal))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        scene = Scene(stack.enter_context(SmallPages()))
        place = stack.enter_context(place_of(case, servers, directory, steps))
        endpoint = scene.local.endpoint
        consumer = consumer_of(case)(scene, endpoint, CONNECTIONS[0], journal, directory, place=place)
        scene.write_history(rounds=1)
        watch = Watch(journal, patience, lambda: consumer.trouble)
        run = _Run(case, scene, consumer, place, place.troubles[case.trouble.name], steps, watch)
        steps.begin = run.begin
        try:
            run.follow()
            run.end()
        finally:
            has_ended = consumer.stop()
        findings = list(watch.findings)
        if not has_ended:
            findings.append("hang: the consumer does not stop")
        elif case.step is not Step.END:
            findings += consumer.problems()
        findings += [f"hang: {text}" for text in journal.texts(Act.SAID) if "gave up waiting" in text]
        findings += judge({}, journal.events)
        ended = journal.texts(Act.ENDED)
        if ended and not may_end(case):
            findings.append(f"ended with an error, which the table does not allow: {ended[0][:200]}")
    return Outcome(case, findings, watch.named, int(run.has_begun), time.monotonic() - started)


@define(eq=False)
class _Run:
    """The steps of one case."""

    _case: Case
    _scene: Scene
    _consumer: LakeConsumer
    _place: Place
    _befalling: Befalling
    _steps: Steps
    _watch: Watch
    has_begun: bool = False
    _lock: threading.RLock = field(factory=threading.RLock)
    """Held while the trouble begins or ends."""
    _has_ended: bool = False
    _since: int = 0
    """Events of the journal before the trouble, or before the last restart."""

    def follow(self) -> None:
        """From the start until the consumer is even with the table, without trouble."""
        self._come_to_the_step()
        if self._case.step is Step.END:
            self._watch.until(self._is_proved, "not named by the proof")
            return
        self._watch.until(self._begins, "the step was never reached, or the trouble did not begin")
        self._scene.write()  # so that there is something to do meanwhile
        self._last()
        self._watch.until(self._ends, "the trouble does not end")
        for _ in range(2):  # so that changes that come twice have time to come
            self._scene.write()
            if not self._watch.until(lambda: self._consumer.is_even, "stall"):
                return
        self._watch.until(lambda: not self._consumer.trouble, "trouble is named although it is over")

    def _come_to_the_step(self) -> None:
        step, consumer = self._case.step, self._consumer
        if step is Step.START:
            self._begin_by_hand()
        consumer.start()
        self._scene.go_on()
        if step in (Step.IDLE, Step.RESTART, Step.END):
            self._watch.until(lambda: consumer.is_even, "stall before the trouble")
            if step is not Step.IDLE:
                consumer.stop()
            self._begin_by_hand()
            if step is Step.RESTART:
                consumer.start()

    def _begin_by_hand(self) -> None:
        self._steps.has_begun.set()
        self.begin()

    def _last(self) -> None:
        """Let the trouble last as long as the case says."""
        lasting = self._case.lasting
        if lasting is Lasting.UNTIL_EVEN:
            self._watch.until(lambda: self._consumer.is_even, "stall")
        elif lasting is not Lasting.MOMENT:
            self._watch.until(self._is_named, "not named where people look")
        if lasting is Lasting.OVER_A_RESTART:
            if not self._consumer.stop():
                self._watch.findings.append("hang: the consumer does not stop while it lasts")
            self._since, self._watch.named = len(self._watch.journal.events), ""
            self._consumer.start()
            self._watch.until(self._is_named, "not named where people look, after a restart")

    # --- the trouble ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """In the thread of the consumer, if it came to its step; one that would meet it there begins a little later."""
        with self._lock:
            if not self.has_begun:
                try:
                    self._befalling.begin()
                except self._place.passing:
                    return
                self.has_begun = True
            if self._case.lasting is Lasting.MOMENT:
                self._ends()

    def end(self) -> None:
        """More than once is no more than once."""
        with self._lock:
            if self.has_begun and not self._has_ended:
                self._befalling.end()
                self._has_ended = True

    def _begins(self) -> bool:
        if self._steps.has_begun.is_set() and not self.has_begun:
            self.begin()
        return self.has_begun

    def _ends(self) -> bool:
        try:
            self.end()
        except self._place.passing:
            return False
        return True

    # --- its name -------------------------------------------------------------------------------------------------

    def _is_named(self) -> bool:
        """Whether a word of the cause is told where people look for it, since the trouble began."""
        events = self._watch.journal.events[self._since :]
        texts = [self._consumer.trouble, *(event.text for event in events if event.act is Act.ENDED)]
        self._watch.named = next(filter(self._case.names, texts), "")
        return bool(self._watch.named)

    def _is_proved(self) -> bool:
        self._watch.named = next(filter(self._case.names, self._consumer.problems()), "")
        return bool(self._watch.named)
