"""One shard processed key by key: order, checkpoints, failures, bounds, ends. Real threads, no worker."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.errors import (
    ApplicationException,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    ShutdownException,
)
from streamclient.interfaces import (
    InitializationInput,
    IPreparedCheckpoint,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.keyed import KeyedProcessorFactory
from streamclient.worker.keyed.keyed_processor import KeyedProcessor
from streamclient.worker.keyed.pending_records import record_bytes
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record


class Checkpointer(IRecordProcessorCheckpointer):
    """Writes down what is stored; raises what a test puts into ``errors`` first."""

    def __init__(self) -> None:
        self.permitted = "TRIM_HORIZON"
        self.stored: list[str] = []
        self.errors: list[Exception] = []

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.stored.append(self.permitted if checkpoint_value is None else checkpoint_value)

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        raise AssertionError("not used")

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        return self.permitted


class Marker(IShutdownMarker):
    def __init__(self) -> None:
        self.restarts = threading.Semaphore(0)

    def mark_for_process_done(self) -> None:
        raise AssertionError("not used")

    def mark_for_process_restart(self) -> None:
        self.restarts.release()


class Shard:
    """What a worker does with one processor."""

    def __init__(self, factory: KeyedProcessorFactory, shard_id: str = "a") -> None:
        self.factory = factory
        self.checkpointer = Checkpointer()
        self.marker = Marker()
        self.info = ShardInfo(shard_id, "stream", frozenset(), "tenancy")
        self.processor: IRecordProcessor = factory.create_processor()
        self.processor.initialize(InitializationInput(self.info, "TRIM_HORIZON", self.checkpointer, self.marker))

    def deliver(self, position: str, *records: StreamRecord) -> None:
        self.checkpointer.permitted = position
        self.processor.process_records(ProcessRecordsInput(records, self.checkpointer, self.marker))

    def shut_down(self, reason: ShutdownReason) -> None:
        self.processor.shutdown(ShutdownInput(reason, self.checkpointer))


class Work:
    """A ``process_record`` whose keys a test can hold up and make fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.attempts: Counter[str] = Counter()
        self.failing: dict[str, int] = {}
        self.gates: dict[str, threading.Event] = {}
        self.begun: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def __call__(self, record: StreamRecord) -> None:
        name = f"{record.key['id']}{record.sequence_info.timestamp_micros}"
        self.attempts[name] += 1
        self.begun[name].set()
        if name in self.gates:
            assert self.gates[name].wait(PATIENCE_SECONDS)
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            raise ValueError(f"cannot digest {name}")
        self.done.append(name)

    def hold(self, name: str) -> threading.Event:
        self.gates[name] = threading.Event()
        return self.gates[name]


def rec(name: str) -> StreamRecord:
    """``a7`` is a change of row ``a`` at time 7."""
    return make_record(name[0], int(name[1:]))


def recs(*names: str) -> list[StreamRecord]:
    return [rec(name) for name in names]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not any(thread.name.startswith("keyed") for thread in threading.enumerate()))


class WatchedCondition(threading.Condition):
    """Looks at the lanes each time that their lock is released."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036  # passed on
        self._look()
        super().__exit__(*error)


# --- order and checkpoints --------------------------------------------------------------------------------------------


def test_a_slow_key_holds_up_neither_other_keys_nor_the_next_batch_but_the_checkpoint(work: Work) -> None:
    gate = work.hold("a1")
    shard = Shard(KeyedProcessorFactory(work))
    shard.deliver("p1", *recs("a1", "b2"))
    shard.deliver("p2", *recs("a3", "c4"))
    until(lambda: sorted(work.done) == ["b2", "c4"])
    assert shard.checkpointer.stored == []
    gate.set()
    until(lambda: shard.checkpointer.stored[-1:] == ["p2"])

    assert work.done[-2:] == ["a1", "a3"]
    shard.shut_down(ShutdownReason.STOLEN)


def test_the_key_may_be_something_else_than_the_primary_key(work: Work) -> None:
    gate = work.hold("a1")
    shard = Shard(KeyedProcessorFactory(work, key=lambda record: "everything"))
    shard.deliver("p1", *recs("a1", "b2"))
    assert work.begun["a1"].wait(PATIENCE_SECONDS)
    assert not work.begun["b2"].wait(0.05)
    gate.set()
    until(lambda: work.done == ["a1", "b2"])
    shard.shut_down(ShutdownReason.STOLEN)


def test_checkpoints_keep_their_distance_while_records_are_pending() -> None:
    now = [0.0]
    work = Work()
    gate = work.hold("a9")
    shard = Shard(KeyedProcessorFactory(work, checkpoint_interval_millis=1_000, monotonic=lambda: now[0]))
    shard.deliver("p0", rec("b0"))
    until(lambda: shard.checkpointer.stored == ["p0"])
    shard.deliver("p1", rec("b1"), rec("b2"))
    until(lambda: shard.checkpointer.stored == ["p0", "p1"])
    shard.deliver("p2", rec("b3"))
    until(lambda: shard.checkpointer.stored[-1] == "p2")
    count = len(shard.checkpointer.stored)
    last = work.hold("b5")
    shard.deliver("p3", rec("b4"), rec("b5"))
    shard.deliver("p4", rec("a9"))
    last.set()
    until(lambda: "b5" in work.done)
    assert len(shard.checkpointer.stored) == count
    now[0] = 2.0
    shard.deliver("p5", rec("c6"))
    until(lambda: shard.checkpointer.stored[-1] == "p3")
    gate.set()
    until(lambda: shard.checkpointer.stored[-1] == "p5")
    shard.shut_down(ShutdownReason.STOLEN)


def test_a_checkpoint_that_has_become_due_is_stored_while_one_record_takes_long() -> None:
    now = [1.0]
    work = Work()
    first, long = work.hold("b1"), work.hold("a2")
    factory = KeyedProcessorFactory(work, slow_record_warning_millis=20, monotonic=lambda: now[0])
    shard = Shard(factory)
    shard.deliver("p1", rec("b1"))
    shard.deliver("p2", rec("a2"))
    first.set()
    until(lambda: factory.pending_bytes == record_bytes(rec("a2")))
    now[0] += 2.0
    until(lambda: shard.checkpointer.stored == ["p1"])

    long.set()
    shard.shut_down(ShutdownReason.STOLEN)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_record_that_raises_is_tried_again_in_place_while_other_keys_go_on(work: Work) -> None:
    work.failing = {"a1": 2}
    shard = Shard(KeyedProcessorFactory(work, retries=2, first_pause_millis=1))
    shard.deliver("p1", *recs("a1", "b2", "a3"))
    until(lambda: shard.checkpointer.stored == ["p1"])

    assert work.attempts == {"a1": 3, "b2": 1, "a3": 1}
    assert work.done.index("a1") < work.done.index("a3")
    shard.shut_down(ShutdownReason.STOLEN)


def test_a_record_given_up_asks_for_a_restart_and_nothing_behind_it_is_stored(work: Work) -> None:
    work.failing = {"b2": 99}
    shard = Shard(KeyedProcessorFactory(work, retries=0))
    shard.deliver("p1", *recs("a1"))
    until(lambda: shard.checkpointer.stored == ["p1"])
    shard.deliver("p2", *recs("b2", "c3"))
    assert shard.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
    shard.deliver("p3", *recs("d4"))
    shard.shut_down(ShutdownReason.PROCESS_RESTART)

    assert shard.checkpointer.stored == ["p1"]
    assert "d4" not in work.attempts


def test_after_a_restart_the_batch_that_holds_the_record_raises_itself(work: Work) -> None:
    """So the worker's failure policy retries, bisects and parks the right records, and no innocent ones."""
    work.failing = {"b2": 99}
    factory = KeyedProcessorFactory(work, retries=0)
    first = Shard(factory)
    first.deliver("p1", *recs("a1"))
    first.deliver("p2", *recs("b2", "c3"))
    assert first.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
    first.shut_down(ShutdownReason.PROCESS_RESTART)
    second = Shard(factory)
    second.deliver("p1", *recs("a1"))
    with pytest.raises(ApplicationException, match=r"record \{id='b'\} at 1/2/0: ValueError: cannot digest b2"):
        second.deliver("p2", *recs("b2", "c3"))
    with pytest.raises(ApplicationException, match="cannot digest b2"):
        second.deliver("p1", *recs("b2"))
    second.deliver("p2", *recs("c3"))
    gate = work.hold("d4")
    second.deliver("p3", *recs("d4"))
    gate.set()
    until(lambda: second.checkpointer.stored[-1] == "p3")

    assert not second.marker.restarts.acquire(blocking=False)
    second.shut_down(ShutdownReason.STOLEN)


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.ZOMBIE])
def test_a_shard_that_is_given_away_while_it_fails_is_forgotten(work: Work, reason: ShutdownReason) -> None:
    work.failing = {"a1": 99}
    factory = KeyedProcessorFactory(work, retries=0)
    shard = Shard(factory)
    shard.deliver("p1", *recs("a1"))
    assert shard.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
    assert factory._lane_pool.failed_at(shard.info) is not None
    shard.shut_down(reason)

    assert factory._lane_pool.failed_at(shard.info) is None


def test_of_shards_that_are_lost_between_two_processors_a_bounded_number_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamclient.worker.keyed.lane_pool.MOST_FAILED", 2)
    work = Work()
    work.failing = {"a1": 99}
    factory = KeyedProcessorFactory(work, retries=0)
    shards = [Shard(factory, shard_id) for shard_id in ("a", "b", "c")]
    for shard in shards:
        shard.deliver("p1", *recs("a1"))
        assert shard.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
        shard.shut_down(ShutdownReason.PROCESS_RESTART)

    place = rec("a1").sequence_info
    assert [factory._lane_pool.failed_at(shard.info) for shard in shards] == [None, place, place]


def test_a_repeated_batch_that_passes_counts_once_for_the_checkpoint(work: Work) -> None:
    work.failing = {"a1": 2}
    factory = KeyedProcessorFactory(work, retries=0)
    first = Shard(factory)
    first.deliver("p1", *recs("a1", "b2"))
    assert first.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
    first.shut_down(ShutdownReason.PROCESS_RESTART)
    second = Shard(factory)
    with pytest.raises(ApplicationException):
        second.deliver("p1", *recs("a1", "b2"))
    second.deliver("p1", *recs("a1", "b2"))

    until(lambda: second.checkpointer.stored == ["p1"])
    second.shut_down(ShutdownReason.STOLEN)


def test_a_key_that_cannot_be_told_fails_the_batch_before_anything_of_it_begins(work: Work) -> None:
    def key(record: StreamRecord) -> Any:
        raise KeyError("no such column")

    shard = Shard(KeyedProcessorFactory(work, key=key))
    with pytest.raises(KeyError):
        shard.deliver("p1", *recs("a1"))

    assert work.attempts == {}
    shard.shut_down(ShutdownReason.PROCESS_RESTART)
    assert shard.checkpointer.stored == []


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_process_records_waits_when_too_much_is_pending_and_each_shard_may_have_one_record(work: Work) -> None:
    gate = work.hold("a1")
    factory = KeyedProcessorFactory(work, most_pending_bytes=2 * record_bytes(rec("a1")))
    shard, other = Shard(factory), Shard(factory, "other")
    deliver = threading.Thread(target=shard.deliver, args=("p1", *recs("a1", "a2", "a3", "a4")))
    deliver.start()
    assert work.begun["a1"].wait(PATIENCE_SECONDS)
    until(lambda: factory.pending_bytes == 2 * record_bytes(rec("a1")))
    assert deliver.is_alive()
    other.deliver("q1", rec("z1"))
    until(lambda: other.checkpointer.stored == ["q1"])
    assert deliver.is_alive()
    gate.set()
    deliver.join(PATIENCE_SECONDS)
    until(lambda: shard.checkpointer.stored == ["p1"])

    assert factory.pending_bytes == 0
    for each in (shard, other):
        each.shut_down(ShutdownReason.STOLEN)


def test_a_failure_ends_the_wait_for_room(work: Work) -> None:
    gate = work.hold("a1")
    work.failing = {"a1": 1}
    factory = KeyedProcessorFactory(work, retries=0, most_pending_bytes=1)
    shard = Shard(factory)
    deliver = threading.Thread(target=shard.deliver, args=("p1", *recs("a1", "a2", "a3")))
    deliver.start()
    assert work.begun["a1"].wait(PATIENCE_SECONDS)
    gate.set()
    deliver.join(PATIENCE_SECONDS)
    shard.shut_down(ShutdownReason.PROCESS_RESTART)

    assert factory.pending_bytes == 0
    assert sorted(work.attempts) == ["a1"]


def test_a_record_that_takes_long_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    """The shard moves on, so nothing else would tell why its checkpoint does not."""
    now = [0.0]
    work = Work()
    gate = work.hold("a1")
    shard = Shard(KeyedProcessorFactory(work, slow_record_warning_millis=20, monotonic=lambda: now[0]))
    shard.deliver("p1", *recs("a1", "b2"))
    until(lambda: work.done == ["b2"] and shard.factory.pending_bytes == record_bytes(rec("a1")))
    assert work.begun["a1"].wait(PATIENCE_SECONDS)

    def is_reported() -> bool:
        now[0] += 0.02  # each report waits for twice the time of the one before
        return "shard a: record {id='a'} at 1/1/0 has been under way for" in caplog.text and held in caplog.text

    held = "assert self.gates[name].wait"
    until(is_reported)
    assert "id='b'" not in caplog.text
    gate.set()
    shard.shut_down(ShutdownReason.STOLEN)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.PROCESS_DONE])
def test_a_hand_over_waits_for_what_runs_drops_what_waits_and_stores_the_watermark(
    work: Work, reason: ShutdownReason
) -> None:
    gate = work.hold("a3")
    factory = KeyedProcessorFactory(work, checkpoint_interval_millis=3_600_000)
    shard = Shard(factory)
    late = work.hold("b2")
    shard.deliver("p1", *recs("c1", "b2"))
    shard.deliver("p2", *recs("a3", "a4"))
    assert work.begun["a3"].wait(PATIENCE_SECONDS)
    assert work.begun["b2"].wait(PATIENCE_SECONDS)
    until(lambda: "c1" in work.done)
    end = threading.Thread(target=shard.shut_down, args=(reason,))
    end.start()
    until(lambda: factory.pending_bytes == record_bytes(rec("b2")) + record_bytes(rec("a3")))  # and no longer of a4
    assert end.is_alive()
    late.set()
    gate.set()
    end.join(PATIENCE_SECONDS)

    assert shard.checkpointer.stored == ["p1"]
    assert "a4" not in work.attempts


def test_the_end_of_a_shard_waits_for_everything_and_stores_it(work: Work) -> None:
    gate = work.hold("a1")
    shard = Shard(KeyedProcessorFactory(work))
    shard.deliver("p1", *recs("a1", "a2"))
    shard.checkpointer.permitted = "SHARD_END"
    end = threading.Thread(target=shard.shut_down, args=(ShutdownReason.TERMINATE,))
    end.start()
    gate.set()
    end.join(PATIENCE_SECONDS)

    assert shard.checkpointer.stored[-1] == "SHARD_END"
    assert work.done == ["a1", "a2"]


def test_the_end_of_a_shard_is_not_stored_over_a_failure(work: Work) -> None:
    gate = work.hold("a1")
    work.failing = {"a1": 9}
    shard = Shard(KeyedProcessorFactory(work, retries=0))
    shard.deliver("SHARD_END", *recs("a1", "a2"))
    gate.set()
    with pytest.raises(ApplicationException, match="cannot digest a1"):
        shard.shut_down(ShutdownReason.TERMINATE)

    assert shard.checkpointer.stored == []


def test_a_lost_lease_stores_nothing_and_begins_nothing_more(work: Work) -> None:
    gate = work.hold("a1")
    factory = KeyedProcessorFactory(work)
    shard = Shard(factory)
    shard.deliver("p1", *recs("a1", "a2"))
    assert work.begun["a1"].wait(PATIENCE_SECONDS)
    end = threading.Thread(target=shard.shut_down, args=(ShutdownReason.ZOMBIE,))
    end.start()
    until(lambda: factory.pending_bytes == record_bytes(rec("a1")))  # and no longer of a2
    gate.set()
    end.join(PATIENCE_SECONDS)

    assert shard.checkpointer.stored == []
    assert work.done == ["a1"]


def test_a_refused_checkpoint_ends_the_work(work: Work) -> None:
    gate = work.hold("b2")
    factory = KeyedProcessorFactory(work, checkpoint_interval_millis=0)
    shard = Shard(factory)
    shard.checkpointer.errors = [ShutdownException("the lease is lost")]
    shard.deliver("p1", rec("a1"))
    until(lambda: not shard.checkpointer.errors)
    shard.deliver("p2", *recs("b2", "b3"))
    until(lambda: factory.pending_bytes <= record_bytes(rec("b2")))
    gate.set()
    shard.shut_down(ShutdownReason.ZOMBIE)

    assert shard.checkpointer.stored == []
    assert "b3" not in work.attempts


def test_a_checkpoint_without_an_answer_is_tried_again_though_no_record_comes(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    shard = Shard(KeyedProcessorFactory(work, slow_record_warning_millis=20))
    shard.checkpointer.errors = [DependencyException("no answer", kind=ErrorKind.AMBIGUOUS)]
    shard.deliver("abcdefghijklmnopqrstuvwxyz", rec("a1"))
    until(lambda: shard.checkpointer.stored == ["abcdefghijklmnopqrstuvwxyz"])

    assert "checkpoint iterator ...stuvwxyz is tried again later: no answer" in caplog.text
    shard.shut_down(ShutdownReason.STOLEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"process_record": None}, "process_record must be callable with one StreamRecord, not None"),
        ({"threads": 0}, "threads must be a whole number above 0, not 0"),
        ({"key": "id"}, "key must be callable with one StreamRecord, not 'id'"),
        ({"retries": True}, "retries must be a whole number of at least 0, not True"),
        ({"most_pending_bytes": 0}, "most_pending_bytes must be a whole number above 0, not 0"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KeyedProcessorFactory(**{"process_record": lambda record: None, **change})
    assert message in str(caught.value)


# --- everything at once -----------------------------------------------------------------------------------------------


class Judge:
    """A ``process_record`` that fails and dawdles by dice, and notices what must never happen."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lock = threading.Lock()
        self.under_way: set[str] = set()
        self.done: defaultdict[str, list[int]] = defaultdict(list)
        self.wrong: list[str] = []

    def __call__(self, record: StreamRecord) -> None:
        key, number = str(record.key["id"]), record.sequence_info.timestamp_micros
        with self.lock:
            if key in self.under_way:
                self.wrong.append(f"{key} twice at once")
            self.under_way.add(key)
            pause, fails = self.dice.random() * 0.0005, self.dice.random() < 0.03
        threading.Event().wait(pause)
        with self.lock:
            self.under_way.discard(key)
            if fails:
                raise ValueError("by dice")
            if self.done[key] and number > self.done[key][-1]:
                expected = [each for each in self.of(key) if each > self.done[key][-1]][:1]
                if expected != [number]:
                    self.wrong.append(f"{key}: {number} after {self.done[key][-1]}")
            self.done[key].append(number)

    @staticmethod
    def of(key: str) -> list[int]:
        return [number for number in range(60) if key_of(number) == key]


def key_of(number: int) -> str:
    return f"k{number * 7 % 5}"


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 8))
def test_whatever_fails_every_record_is_done_in_order_and_no_checkpoint_covers_one_that_is_not(
    seed: int, page: int, threads: int
) -> None:
    judge = Judge(seed)
    factory = KeyedProcessorFactory(judge, threads=threads, retries=0, checkpoint_interval_millis=0)
    stored = 0
    for _ in range(200):
        shard = Shard(factory)
        checked = shard.checkpointer.checkpoint

        def checkpoint(value: str | None = None, store: Callable[[str | None], None] = checked) -> None:
            place = int(value or "60")
            missing = [n for n in range(place) if n not in judge.done[key_of(n)]]
            if missing:
                judge.wrong.append(f"{place} stored without {missing}")
            store(value)

        shard.checkpointer.checkpoint = checkpoint  # type: ignore[method-assign]
        place = stored
        try:
            while place < 60 and not shard.marker.restarts.acquire(blocking=False):
                end = min(60, place + page)
                shard.deliver(str(end), *[make_record(key_of(n), n) for n in range(place, end)])
                place = end
            reason = ShutdownReason.TERMINATE if place == 60 else ShutdownReason.PROCESS_RESTART
        except ApplicationException:
            reason = ShutdownReason.PROCESS_RESTART
        with contextlib.suppress(ApplicationException):
            shard.shut_down(reason)
        stored = max([stored, *map(int, shard.checkpointer.stored)])
        if stored == 60:
            break

    assert judge.wrong == []
    assert stored == 60
    assert {key: sorted(set(numbers)) for key, numbers in judge.done.items()} == {
        key: judge.of(key) for key in judge.done
    }


def test_no_record_waits_any_more_once_a_record_is_given_up(work: Work) -> None:
    """Otherwise the next record of a key could begin although the one before it has failed at the same time."""
    shard = Shard(KeyedProcessorFactory(work, retries=0))
    assert isinstance(shard.processor, KeyedProcessor)
    lanes, waiting = shard.processor._lanes, []

    def look() -> None:
        order = lanes._order
        if order.is_halted:
            waiting.extend(item.record for lane in order._lanes.values() for item in list(lane.items)[1:])

    lanes._changed = WatchedCondition(look)
    work.failing = {"a1": 1, "b1": 1}
    gates = [work.hold("a1"), work.hold("b1")]
    shard.deliver("p1", *recs("a1", "b1", "a2", "b2"))
    assert all(work.begun[name].wait(PATIENCE_SECONDS) for name in ("a1", "b1"))
    for gate in gates:
        gate.set()
    assert shard.marker.restarts.acquire(timeout=PATIENCE_SECONDS)
    shard.shut_down(ShutdownReason.PROCESS_RESTART)

    assert (waiting, work.done) == ([], [])


def test_the_position_of_a_page_in_parts_is_stored_after_each_part(work: Work) -> None:
    """The parts have one position; a checkpoint after each of them says which parts are done."""
    shard = Shard(KeyedProcessorFactory(work))
    for name in ("a1", "b1"):
        shard.deliver("".join(["p", "0"]), rec(name))
        until(lambda name=name: shard.checkpointer.stored == ["p0"] * (1 if name == "a1" else 2))
    shard.shut_down(ShutdownReason.STOLEN)

    assert shard.checkpointer.stored == ["p0", "p0"]


def test_a_key_that_is_not_hashable_fails_the_batch_and_leaves_no_bytes_behind(work: Work) -> None:
    factory = KeyedProcessorFactory(work, key=lambda record: [] if record.key["id"] == "b" else record.key["id"])
    shard = Shard(factory)
    with pytest.raises(TypeError, match=r"key must return a hashable value, not \[\] for record \{id='b'\}"):
        shard.deliver("p2", *recs("a1", "b1"))
    assert (factory.pending_bytes, work.done) == (0, []), "the batch comes again as a whole"
    shard.deliver("p1", *recs("a1"))
    until(lambda: shard.checkpointer.stored == ["p1"])
    shard.shut_down(ShutdownReason.STOLEN)
