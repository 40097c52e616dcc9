"""Errors that do not behave, raised by user code and what stands in for the service: they cost what any error does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streamclient.base.position import Position
from streamclient.base.reasons import MOST_TRACEBACK_CHARACTERS, Raised, described
from streamclient.config import FailurePolicy, Prefetch
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerWrite
from streamclient.core.write_rules import WriteKind
from streamclient.errors import MOST_ERROR_CHARACTERS, ConfigurationError, DependencyException, TrimmedDataException
from streamclient.interfaces import IRetryStrategy
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.model import OnFailure, ParkedKey, TrimmedDataPolicy
from streamclient.tablestore import RecordPage
from streamclient.tablestore.stream_api import StreamDescription, StreamStatus
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer
from streamclient.worker.parking import FileParkingStore, MemoryParkingStore
from tests.placed_records import make_record
from tests.simulation.scene import FaultyLeases
from tests.worker.stage import Stage


class Rude(DependencyException):
    """Has no text and no code, cannot be told from others, and remembers whether the owner asked it for its words."""

    asked: ClassVar[list[bool]] = []
    workers: ClassVar[list[SimulatedWorker]] = []

    def __str__(self) -> str:
        self._note()
        raise AttributeError("detail")

    @property
    def code(self) -> Any:
        self._note()
        return []

    @code.setter
    def code(self, value: object) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            raise ValueError("it is nobody's business")
        return super().__getattribute__(name)

    def _note(self) -> None:
        self.asked.extend(worker.coordinator.loop.is_inside for worker in self.workers)


def rude(*_: object, **__: object) -> Any:
    raise Rude("never seen")


class RudeStrategy(IRetryStrategy):
    """Raises instead of an answer."""

    should_retry = backoff_millis = rude


class RudeStore(MemoryParkingStore):
    """Raises for a while."""

    left = 3

    def parked_keys(self, stream_id: str) -> Any:
        return self._late() or super().parked_keys(stream_id)

    def park(self, records: Any) -> None:
        self._late()
        super().park(records)

    def _late(self) -> None:
        if self.left:
            self.left -= 1
            rude()


def _initialize(world: Stage) -> None:
    world.journal.on_initialize = _in_shard_a(rude, lambda *_: None)


def _process(world: Stage) -> None:
    world.journal.on_process = _in_shard_a(rude, world.journal.checkpoint_batch)


def _shutdown(world: Stage) -> None:
    world.stream.close("a")
    world.journal.on_process = _in_shard_a(lambda *_: None, world.journal.checkpoint_batch)
    world.journal.on_shutdown = _in_shard_a(rude, world.journal.checkpoint_end)


def _read(world: Stage) -> None:
    world.stream.fail_reads("a", *[Rude("never seen")] * 20)


def _strategy(world: Stage) -> None:
    _process(world)
    world.config["task_retry_strategy"] = RudeStrategy()


def _store(world: Stage) -> None:
    _process(world)
    world.config["failure_policy"] = FailurePolicy(
        then=OnFailure.PARK, parking=RudeStore(), retries=0, first_pause_millis=100
    )


def _in_shard_a(bad: Callable[..., None], good: Callable[..., None]) -> Any:
    return lambda processor, given: (bad if processor.shard_id == "a" else good)(processor, given)


@pytest.mark.parametrize(
    ("misbehave", "says"),
    [
        (_initialize, "processor failed {}: initialize: Rude, whose text cannot be told: it raises AttributeError"),
        (_process, "processor failed {}: process_records: Rude, whose text cannot be told: it raises AttributeError"),
        (_shutdown, "SHARD_END (shutdown raised Rude, whose text cannot be told: it raises AttributeError)"),
        (_read, "reading failed {}: Rude, whose text cannot be told: it raises AttributeError"),
        (_strategy, "the retry strategy failed, so the ordinary pause is taken: Rude, whose text cannot be told: it"),
        (_store, "the parking store failed {}: asking for parked keys: Rude, whose text cannot be told: it raises"),
    ],
)
def test_an_error_without_words_costs_its_shard_alone_and_is_asked_nothing_by_the_owner(
    misbehave: Callable[[Stage], None], says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = Stage("a", "b")
    world.stream.append("a", make_record("a0", 0))
    misbehave(world)
    worker = world.worker()
    monkeypatch.setattr(Rude, "asked", [])
    monkeypatch.setattr(Rude, "workers", [worker])
    told: set[str] = set()
    with caplog.at_level(logging.DEBUG):
        for number in range(300):
            world.advance(0.1)
            told.add(worker.statuses()["a"].reason)
            if number % 100 == 0:
                world.stream.append("b", make_record(f"b{number}", number))

    assert worker.error is None
    assert world.journal.accepted["b"] == ["b0", "b100", "b200"]
    assert any(says.format("once") in reason or says.format("2 times") in reason for reason in told)
    assert Rude.asked
    assert not any(Rude.asked)


class EncodedLeases(MemoryLeaseManager):
    """Takes what a table takes: texts that UTF-8 has bytes for."""

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        for write in writes:
            if isinstance(write, WorkerWrite) and write.result is not None:
                write.result.info.encode()
        return super().write_many(writes)


@pytest.mark.parametrize("where", ["exception", "pause"])
def test_a_text_that_utf8_has_no_bytes_for_costs_no_lease(where: str) -> None:
    """A file name of another encoding, for example, as ``os.listdir`` gives it."""
    world = Stage("a", "b")
    world.stream.append("a", make_record("a0", 0))
    leases = EncodedLeases(world.stream.stream_id)
    worker = world.worker(lease_manager=leases)
    if where == "exception":
        world.journal.on_process = _in_shard_a(_open_file, world.journal.checkpoint_batch)
    else:
        worker.worker.pause("a", reason="as caf\udce9.txt says")
    for number in range(10):
        world.advance(20)
        world.stream.append("b", make_record(f"b{number}", number))
    world.advance(10)

    assert world.journal.shutdowns("b") == []
    assert len(world.journal.accepted["b"]) == 10
    assert "caf\\udce9.txt" in worker.statuses()["a"].reason
    (row,) = leases.list_workers(with_info=True)
    assert "caf" in row.info


def test_a_record_that_failed_with_such_a_text_is_parked(tmp_path: Path) -> None:
    store = FileParkingStore(tmp_path)
    world = Stage("a", failure_policy=FailurePolicy(then=OnFailure.PARK, parking=store, retries=0))
    world.stream.append("a", make_record("a0", 0), make_record("a1", 1))
    world.journal.on_process = _open_file
    world.worker()
    world.until(lambda: len(list(store.parked())) == 2, 60)

    assert {parked.error for parked in store.parked()} == {"OSError: no such file: caf\\udce9.txt"}
    assert all("caf\\udce9.txt" in parked.traceback for parked in store.parked())


def _open_file(*_: object) -> None:
    raise OSError("no such file: caf\udce9.txt")


def test_an_error_is_told_within_bounds_and_whole() -> None:
    raised = Raised.of(ValueError("x" * 1_000_000))

    assert raised.text == described(raised.error)
    assert raised.text.startswith("ValueError: xxx")
    assert "characters left out" in raised.text
    assert len(raised.text) <= MOST_ERROR_CHARACTERS
    assert len(raised.traceback) <= MOST_TRACEBACK_CHARACTERS
    assert Raised.of(SystemExit(3)).text == "SystemExit: 3"
    assert Raised.of(DependencyException("busy", code="OTSServerBusy")).code == "OTSServerBusy"
    assert Raised.of(KeyError("k")).is_a(LookupError)


def test_a_failure_is_logged_with_its_traceback(world: Stage, caplog: pytest.LogCaptureFixture) -> None:
    world.stream.append("a", make_record("a0", 0))
    world.journal.on_process = _open_file
    world.worker()
    world.until(lambda: bool(world.journal.shutdowns("a")), 60)
    line = next(record for record in caplog.records if record.levelname == "ERROR")

    assert line.getMessage() == ("shard a: process_records (failure 1 in a row): OSError: no such file: caf\\udce9.txt")
    assert (line.filename, line.funcName) == ("shard_consumer.py", "_log_line")
    assert line.exc_info is not None
    assert line.exc_info[0] is OSError
    assert 'raise OSError("no such file' in caplog.text
    caplog.text.encode()


def test_a_reason_that_is_no_text_is_refused(world: Stage) -> None:
    with pytest.raises(ConfigurationError, match="reason must be a string, not 5"):
        world.worker().worker.pause(reason=5)  # type: ignore[arg-type]


# --- what elsewhere ends a program or a task --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("prefetch_bytes", [0, 1_000_000])
def test_a_read_that_raises_what_elsewhere_ends_a_program_is_read_again(
    error: BaseException, prefetch_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The shard would wait for the page without end."""
    metrics = MemoryMetrics()
    world = Stage("a", metrics=metrics, prefetch=Prefetch(prefetch_bytes=prefetch_bytes))
    world.stream.append("a", *(make_record(f"a{number}", number) for number in range(3)))
    world.stream.fail_reads("a", error)  # type: ignore[arg-type]
    world.worker(max_records=1)
    with caplog.at_level(logging.WARNING):
        world.until(lambda: world.journal.accepted["a"] == ["a0", "a1", "a2"], 60)

    name = type(error).__name__
    assert f"shard a: reading failed once: StreamClientException: the call raised {name}" in caplog.text
    counted = {series.labels["result"]: series.value for series in metrics.snapshot(metric_table.READS)}
    assert counted["other"] == 1


# --- answers that are none -------------------------------------------------------------------------------------------


class UnhashableKey(tuple[Any, ...]):
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "answer",
    [
        [None],
        None,
        [("a", "b")],
        [ParkedKey(UnhashableKey(), "a", "1", 1)],
        [ParkedKey((("id", "k"),), "a", None, 1)],  # type: ignore[arg-type]
    ],
)
def test_parked_keys_that_are_none_are_a_failure_of_the_store(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryParkingStore()
    monkeypatch.setattr(store, "parked_keys", lambda stream_id: answer)
    world = Stage("a", failure_policy=FailurePolicy(then=OnFailure.PARK, parking=store))
    world.stream.append("a", make_record("a0", 0))
    worker = world.worker()
    world.advance(5)

    assert worker.error is None
    reason = worker.statuses()["a"].reason
    assert "asking for parked keys: " in reason
    assert answer is None or "each of parked_keys must be a ParkedKey of a primary key, two ids and a" in reason
    monkeypatch.undo()
    world.until(lambda: world.journal.accepted["a"] == ["a0"], 60)


@pytest.mark.parametrize(
    "page",
    [
        None,
        RecordPage([], "a@1"),  # type: ignore[arg-type]
        RecordPage(None, Position("a@1")),  # type: ignore[arg-type]
        RecordPage([], Position("a@1"), body_bytes="9"),  # type: ignore[arg-type]
    ],
)
def test_a_page_that_is_none_is_a_read_that_failed(world: Stage, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stream.append("a", make_record("a0", 0))
    monkeypatch.setattr(world.stream, "get_stream_record", lambda iterator, limit: page)
    worker = world.worker()
    world.advance(5)

    assert worker.error is None
    assert "StreamClientException: get_stream_record answered " in worker.statuses()["a"].reason
    monkeypatch.undo()
    world.until(lambda: world.journal.accepted["a"] == ["a0"], 60)


@pytest.mark.parametrize(
    ("of", "method", "answer"),
    [
        ("leases", "list_leases", [None]),
        ("leases", "list_leases", ["a"]),
        ("leases", "get_lease", "a"),
        ("stream", "describe_stream", StreamDescription("s", "orders", 24, 0, StreamStatus.ACTIVE, (None,))),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_lease_and_no_stream_is_a_call_that_failed(
    world: Stage, of: str, method: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream.append("a", make_record("a0", 0))
    leases = FaultyLeases(world.stream.stream_id)
    worker = world.worker(lease_manager=leases)
    world.advance(0.5)
    monkeypatch.setattr(leases if of == "leases" else world.stream, method, lambda *_, **__: answer)
    leases.lose_answers_of = {WriteKind.RENEW}  # so that a row has to be read
    world.advance(120)

    assert worker.error is None
    monkeypatch.undo()
    world.stream.append("a", make_record("a1", 1))
    world.until(lambda: "a1" in world.journal.accepted["a"], 60)


def test_a_pool_that_takes_no_reads_is_a_read_that_failed(world: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the worker looks for what a loss left; what waits is read when the pool takes reads again."""
    world.stream.append("a", *(make_record(f"a{number}", number) for number in range(3)))
    worker = world.worker(max_records=1, trimmed_data_policy=TrimmedDataPolicy.RESTART_AT_OLDEST)
    world.until(lambda: len(world.journal.accepted["a"]) == 1, 60)
    pool, told = world.simulation.pool("w1-fetch"), set[str]()

    def refuse(*_: object) -> Any:
        raise RuntimeError("no thread")

    monkeypatch.setattr(pool, "submit", refuse)
    for _ in range(100):
        world.advance(0.1)
        told.add(worker.statuses()["a"].reason)
    assert worker.error is None
    assert any("reading failed 2 times: StreamClientException: the read executor" in reason for reason in told)
    assert any("refused a read: RuntimeError: no thread" in reason for reason in told)

    monkeypatch.undo()
    world.stream.fail_reads("a", TrimmedDataException("gone"))
    read_one, trimmed = pool.run_one, list[int]()

    def run_one() -> None:
        read_one()
        if not trimmed:
            trimmed.append(1)
            monkeypatch.setattr(pool, "submit", refuse)

    monkeypatch.setattr(pool, "run_one", run_one)
    world.until(lambda: bool(trimmed), 60)
    world.advance(5)
    assert worker.error is None
    assert "RuntimeError: no thread" in worker.statuses()["a"].reason
    monkeypatch.undo()
    world.until(lambda: world.journal.accepted["a"] == ["a0", "a1", "a2"], 60)
