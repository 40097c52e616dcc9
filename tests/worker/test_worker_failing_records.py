"""Records that cannot be processed: retried, found, parked or stopped at, and never skipped. On virtual time."""

from __future__ import annotations

import itertools
import logging
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from streamclient.base.reasons import ReasonKind
from streamclient.config import FailurePolicy
from streamclient.core import events, leases
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, FencedException, ShutdownException
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import OnFailure, ParkedKey, ParkedRecord, RecordOrder, ShardState, ShutdownReason
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.parking.parked_frames import record_id
from tests.placed_records import make_record
from tests.simulation.scene import RecordingProcessor
from tests.worker.stage import Stage

UNREACHABLE = DependencyException("no route to the parking store", kind=ErrorKind.AMBIGUOUS)


class FlakyStore(MemoryParkingStore):
    """Raises instead of answering, so many times; writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.calls: list[str] = []

    def park(self, records: Sequence[ParkedRecord]) -> None:
        self.calls.append("park")
        self._fail()
        super().park(records)

    def parked_keys(self, stream_id: str) -> Iterable[ParkedKey]:
        self.calls.append("parked_keys")
        self._fail()
        return super().parked_keys(stream_id)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise UNREACHABLE

    @property
    def ids(self) -> list[str]:
        return [str(parked.record.key["id"]) for parked in self.parked()]


def named(*keys: str, start: int = 0) -> list[Any]:
    return [make_record(key, number) for number, key in enumerate(keys, start)]


class Refusing:
    """Raises while one of some keys is in a batch; accepts and checkpoints otherwise."""

    def __init__(self, world: Stage, *keys: str) -> None:
        self.world = world
        self.keys = set(keys)
        self.records: set[Any] = set()
        self.accepted: dict[str, list[Any]] = defaultdict(list)
        world.journal.on_process = self

    def __call__(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        found = self.keys & {str(record.key["id"]) for record in given.records}
        found |= {str(record.key["id"]) for record in self.records & {*given.records}}
        if found:
            raise ValueError(f"cannot digest {min(found)}")
        self.accepted[processor.shard_id] += given.records
        self.world.journal.checkpoint_batch(processor, given)


def parking_world(*shards: str, seed: int = 1, **policy: Any) -> tuple[Stage, FlakyStore]:
    store = FlakyStore()
    settings = {"retries": 0, "first_pause_millis": 100, **policy}
    chosen = FailurePolicy(then=OnFailure.PARK, parking=store, **settings)
    return Stage(*shards, seed=seed, failure_policy=chosen), store


@pytest.fixture
def parking() -> tuple[Stage, FlakyStore]:
    """One shard, ``a``, and the store of its records that fail once."""
    return parking_world("a")


@pytest.fixture
def world(parking: tuple[Stage, FlakyStore]) -> Stage:
    return parking[0]


@pytest.fixture
def store(parking: tuple[Stage, FlakyStore]) -> FlakyStore:
    return parking[1]


def batches(world: Stage, shard_id: str = "a") -> list[list[str]]:
    return [detail for what, detail in world.journal.by_shard[shard_id] if what == "process"]


def reached(world: Stage, count: int, shard_id: str = "a") -> None:
    world.until(lambda: len(world.journal.accepted[shard_id]) >= count, 300)


# --- retries ----------------------------------------------------------------------------------------------------------


def test_a_failed_batch_is_delivered_again_to_the_same_processor() -> None:
    """Pauses double; a passing failure costs nothing but time."""
    world = Stage("a", failure_policy=FailurePolicy(retries=3, first_pause_millis=1_000))
    world.write("a", 5)
    left, at = [2], list[float]()

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        at.append(world.simulation.now)
        if left[0]:
            left[0] -= 1
            raise ValueError("busy")
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    worker = world.worker()
    world.until(lambda: len(at) == 2, 30)
    world.advance(0.5)
    status = worker.statuses()["a"]
    assert status.reason == "processor failed 2 times: process_records: ValueError: busy; next attempt in 1.5 s"
    assert (status.state, status.reason_kind) == (ShardState.PROCESSING, ReasonKind.PROCESSOR)
    reached(world, 5)

    assert world.journal.shutdowns("a") == []
    assert [round(later - earlier) for earlier, later in itertools.pairwise(at)] == [1, 2]
    world.advance(0.1)
    assert worker.statuses()["a"].reason == ""


def test_a_policy_that_restarts_does_so_after_its_retries() -> None:
    world = Stage("a", failure_policy=FailurePolicy(retries=2, first_pause_millis=10))
    world.write("a", 4)
    refusing = Refusing(world, "k2")
    world.worker()
    world.until(lambda: len(world.journal.shutdowns("a")) == 2, 60)

    assert world.journal.delivered("a") == [f"k{number}" for number in range(4)] * 6
    refusing.keys.clear()
    reached(world, 4)


@pytest.mark.parametrize(
    "error", [FencedException("epoch 2 is over"), ShutdownException("the lease is lost")], ids=repr
)
def test_a_write_that_was_refused_to_its_owner_blames_no_record(error: Exception) -> None:
    """Neither tried again by the same processor, nor cut, nor parked: whoever has the lease begins anew."""
    world, store = parking_world("a", retries=5)
    world.write("a", 4)
    world.refuse(error)
    world.worker()
    world.until(lambda: len(world.journal.shutdowns("a")) == 2, 60)

    assert batches(world)[:2] == [["k0", "k1", "k2", "k3"]] * 2
    assert store.ids == []


def test_a_processor_that_marks_itself_is_replaced_and_nothing_is_blamed() -> None:
    """So says one that keeps records between batches: what failed need not be in this one."""
    world, store = parking_world("a", retries=5)
    world.write("a", 4)
    calls, at = list[int](), list[float]()

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        calls.append(len(given.records))
        at.append(world.simulation.now)
        if len(calls) == 1:
            given.shutdown_marker.mark_for_process_restart()
            raise ValueError("an earlier record")
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    world.worker()
    reached(world, 4)

    assert calls == [4, 4]
    assert store.ids == []
    assert 1.0 <= at[1] - at[0] < 1.5
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]


# --- parking ----------------------------------------------------------------------------------------------------------


def test_one_bad_record_is_found_parked_and_passed() -> None:
    """The other shard does not notice; the records before and behind it keep their order."""
    world, store = parking_world("a", "b", retries=1)
    world.write("a", 64)
    world.write("b", 10)
    refusing = Refusing(world, "k41")
    worker = world.worker()
    reached(world, 63)
    reached(world, 10, "b")

    assert [record.key["id"] for record in refusing.accepted["a"]] == [f"k{n}" for n in range(64) if n != 41]
    assert len(batches(world)) <= 1 + 2 * 6 + 2 * 1
    (parked,) = store.parked()
    assert parked.record == make_record("k41", 41)
    assert (parked.stream_id, parked.shard_id, parked.position) == (world.stream.stream_id, "a", "TRIM_HORIZON")
    assert (parked.index, parked.generation) == (41, 1)
    assert parked.error == "ValueError: cannot digest k41"
    assert 'raise ValueError(f"cannot digest' in parked.traceback
    assert parked.attempts >= 3
    world.advance(1)
    assert world.checkpoint("a") == "a@64"
    assert (worker.statuses()["a"].reason, worker.statuses()["a"].failures) == ("", 0)
    assert world.journal.shutdowns("a") == []


def test_a_page_of_bad_records_only_ends_without_a_call_that_passes(world: Stage, store: FlakyStore) -> None:
    world.write("a", 3)
    Refusing(world, "k0", "k1", "k2")
    worker = world.worker()
    world.until(lambda: store.ids == ["k0", "k1", "k2"], 60)
    world.write("a", 1, 3)
    reached(world, 1)
    world.advance(1)

    assert worker.statuses()["a"].failures == 0
    assert world.checkpoint("a") == "a@4"


def test_a_shard_that_ends_with_a_bad_record_ends(world: Stage, store: FlakyStore) -> None:
    world.write("a", 4)
    world.stream.close("a")
    Refusing(world, "k3")
    world.worker()
    world.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.TERMINATE], 60)
    world.advance(1)

    assert store.ids == ["k3"]
    assert world.checkpoint("a") == "SHARD_END"


def test_later_records_of_a_parked_key_are_parked_untried(world: Stage, store: FlakyStore) -> None:
    """A replay must not put an old change over a newer one. Other keys go on."""
    world.stream.append("a", *named("bad", "x", "bad", "y"))
    refusing = Refusing(world, "bad")
    world.worker()
    reached(world, 2)
    world.stream.append("a", *named("z", "bad", start=4))
    reached(world, 3)
    world.until(lambda: len(store.ids) == 3, 30)

    parked = list(store.parked())
    assert [each.attempts > 0 for each in parked] == [True, False, False]
    assert parked[2].error == "not tried: an earlier record of its key is parked"
    assert [record.key["id"] for record in refusing.accepted["a"]] == ["x", "y", "z"]
    assert not any("bad" in batch for batch in batches(world)[-1:])


def test_a_policy_may_let_later_records_of_a_key_pass() -> None:
    world, store = parking_world("a", park_rest_of_key=False)
    world.stream.append("a", make_record("k", 1, broken=1), make_record("k", 2))
    accepted: list[int] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if any(record.columns for record in given.records):
            raise ValueError("broken")
        accepted.extend(record.sequence_info.timestamp_micros for record in given.records)

    world.journal.on_process = process
    world.worker()
    world.until(lambda: accepted == [2], 60)

    assert len(store.ids) == 1


def test_a_key_that_was_replayed_is_delivered_again_within_a_second(world: Stage, store: FlakyStore) -> None:
    """The store is asked once more when a record of a parked key comes."""
    world.stream.append("a", *named("k"))
    refusing = Refusing(world, "k")
    world.worker()
    world.until(lambda: store.ids == ["k"], 60)
    world.advance(5)
    refusing.keys.clear()
    store.remove(list(store.parked()))
    world.stream.append("a", *named("k", start=1))
    reached(world, 1)

    assert store.ids == []


def test_the_store_is_asked_once_and_then_left_alone(world: Stage, store: FlakyStore) -> None:
    """Ordinary traffic costs no calls to the store."""
    world.worker(max_records=1)
    for number in range(5):
        world.write("a", 4, 4 * number)
        world.advance(3)

    assert len(world.journal.accepted["a"]) == 20
    assert store.calls == ["parked_keys"]


def test_keys_move_to_the_children_of_a_shard() -> None:
    """The store is asked by key and not by shard."""
    world, store = parking_world("parent")
    world.stream.append("parent", *named("bad", "x"))
    Refusing(world, "bad")
    world.worker()
    world.until(lambda: store.ids == ["bad"], 60)
    world.stream.split("parent", "left", "right")
    world.stream.append("left", *named("bad", "y", start=10))
    world.until(lambda: world.journal.accepted["left"] == ["y"], 120)

    assert [(each.shard_id, each.generation, each.attempts) for each in store.parked()] == [
        ("left", 2, 0),
        ("parent", 1, 2),
    ]
    assert not any("bad" in batch for batch in batches(world, "left"))


@pytest.mark.parametrize("is_ordered", [False, True])
def test_after_a_rewind_a_key_is_replayed_in_its_order(is_ordered: bool) -> None:
    """A record of a parent is before the parked records of its child, and does not wait for them."""
    world, store = parking_world("parent")
    world.stream.append("parent", *named("bad", "x", "bad"))
    refusing = Refusing(world)
    worker = world.worker()
    world.until(lambda: world.journal.accepted["parent"] == ["bad", "x", "bad"], 60)
    refusing.keys = {"bad"}
    world.stream.split("parent", "left", "right")
    world.stream.append("left", *named("bad", start=10))
    world.until(lambda: store.ids == ["bad"], 120)
    world.stop(worker)
    for shard_id, start in (("parent", "TRIM_HORIZON"), ("left", "TRIM_HORIZON")):
        (answer,) = world.leases.write_many([leases.rewind(world.lease(shard_id), start)])
        assert answer.outcome is WriteOutcome.ACCEPTED
    refusing.keys = set()
    second = make_record("bad", 2)
    if is_ordered:
        given = RecordOrder("r1", "ann", "", 1, 2**62, (record_id(second),), "parked")
        world.leases.write_many([leases.set_orders(world.lease("parent"), (given,))])
    else:
        refusing.records = {second}
    refusing.accepted.clear()
    world.worker("w2")
    world.until(lambda: len(store.ids) == 2 and world.is_finished("parent"), 120)
    parked = sorted(store.parked(), key=lambda each: (each.generation, each.record_id))

    assert [(each.shard_id, each.record.sequence_info.timestamp_micros) for each in parked] == [
        ("parent", 2),
        ("left", 10),
    ]
    assert refusing.accepted["parent"][0] == make_record("bad", 0)
    assert refusing.accepted["left"] == []


# --- fleets of one stream ---------------------------------------------------------------------------------------------


def test_a_fleet_does_not_take_the_parked_keys_of_another_fleet_for_its_own(world: Stage, store: FlakyStore) -> None:
    """The shard waits with the reason, and no change is lost."""
    world.write("a", 3)
    record = make_record("k1", 1)
    others = ParkedRecord(record_id(record), world.stream.stream_id, "a", record, "", 1, 1, "no", "", 1, 7, "status_a")
    store.park([others])
    worker = world.reader()
    world.until(lambda: "the parking store failed" in worker.statuses()["a"].reason, 60)
    reason = worker.statuses()["a"].reason
    assert "asking for parked keys: ConfigurationError: " in reason
    assert "'status_a': give the fleet of the status table 's' a store of its own" in reason
    assert world.journal.accepted["a"] == []
    store.remove([others])
    reached(world, 3)

    assert store.ids == []


def test_a_fleet_that_finds_another_one_when_it_parks_waits_and_says_so(world: Stage, store: FlakyStore) -> None:
    world.write("a", 3)
    record = make_record("k1", 1)
    others = ParkedRecord(record_id(record), world.stream.stream_id, "a", record, "", 1, 1, "no", "", 1, 7, "status_a")
    Refusing(world, "k1")
    ask = store.parked_keys
    store.parked_keys = lambda stream_id: [*ask(stream_id), *(store.park([others]) or ())]  # type: ignore[method-assign]
    worker = world.reader()
    world.until(lambda: "the parking store failed" in worker.statuses()["a"].reason, 60)

    assert "parking one record: ConfigurationError: " in worker.statuses()["a"].reason
    assert [each.fleet for each in store.parked()] == ["status_a"]
    store.parked_keys = ask  # type: ignore[method-assign]
    store.remove([others])
    reached(world, 2)
    world.until(lambda: [each.fleet for each in store.parked()] == ["s"], 60)


# --- order of safety --------------------------------------------------------------------------------------------------


def test_checkpoints_stand_only_between_pages_until_a_page_is_whole() -> None:
    """While a page is delivered in pieces, the permitted position is the one before it."""
    world, _ = parking_world("a")
    world.write("a", 8)
    permitted: list[tuple[list[str], str]] = []
    refusing = Refusing(world, "k2")

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        keys = [str(record.key["id"]) for record in given.records]
        permitted.append((keys, given.checkpointer.largest_permitted_checkpoint_value))
        refusing(processor, given)

    world.journal.on_process = process
    world.worker()
    reached(world, 7)

    assert permitted == [
        ([f"k{number}" for number in range(8)], "a@8"),
        (["k0", "k1", "k2", "k3"], "TRIM_HORIZON"),
        (["k0", "k1"], "TRIM_HORIZON"),
        (["k2"], "TRIM_HORIZON"),
        (["k3"], "TRIM_HORIZON"),
        (["k4", "k5", "k6", "k7"], "a@8"),
    ]


def test_a_failure_is_never_told_without_the_next_attempt() -> None:
    """While the batch waits to be delivered again, and while it is."""
    world = Stage("a", failure_policy=FailurePolicy(retries=9, first_pause_millis=3_000))
    world.write("a", 5)

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(threading.Event(), 2.0)
        raise ValueError("busy")

    world.journal.on_process = process
    told = reasons_of(world, "failed", 15)

    assert {shape(reason) for reason in told} == {
        "processor failed #: process_records: ValueError: busy; next attempt in # s",
        "processor failed #: process_records: ValueError: busy; the next attempt is under way",
    }


def test_a_failing_store_is_never_told_without_the_next_attempt(
    world: Stage, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.failures = 1_000_000
    world.write("a", 3)
    parked = store.parked_keys
    slow = lambda *given: world.simulation.wait(threading.Event(), 2.0) or parked(*given)  # noqa: E731
    monkeypatch.setattr(store, "parked_keys", slow)
    Refusing(world, "k1")
    told = reasons_of(world, "failed", 15)

    assert {shape(reason).rpartition("; ")[2] for reason in told} == {
        "next attempt in # s",
        "the next attempt is under way",
    }


def reasons_of(world: Stage, part: str, seconds: float) -> list[str]:
    """Every reason with these words that somebody hears who asks all the time."""
    worker = world.worker()
    told: list[str] = []
    for _ in range(round(seconds / 0.05)):
        world.advance(0.05)
        told += [status.reason for status in worker.statuses().values() if part in status.reason]
    return told


def shape(reason: str) -> str:
    return re.sub(r"once|\d+ times|\d+\.\d", "#", reason)


def test_a_failing_store_is_named_and_nothing_is_skipped_meanwhile(
    world: Stage, store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.failures = 2
    world.write("a", 3)
    Refusing(world, "k1")
    worker = world.worker()
    with caplog.at_level(logging.ERROR):
        world.until(lambda: len(store.calls) == 2, 30)
        world.advance(0.1)
    reason = worker.statuses()["a"].reason
    assert reason.startswith(
        "the parking store failed 2 times: asking for parked keys: DependencyException: no route to the parking store; "
        "next attempt in "
    )
    assert worker.statuses()["a"].reason_kind is ReasonKind.PARKING
    assert world.journal.delivered("a") == []
    assert "the parking store failed" in caplog.text

    world.until(lambda: world.journal.accepted["a"] == ["k0"], 60)
    store.failures = 3
    world.until(lambda: not store.failures, 60)
    world.advance(0.1)
    assert "parking one record: DependencyException" in worker.statuses()["a"].reason
    assert world.journal.accepted["a"] == ["k0"]
    reached(world, 2)
    assert store.ids == ["k1"]


def test_a_crash_behind_a_parked_record_parks_nothing_twice(world: Stage, store: FlakyStore) -> None:
    """The next worker knows the key, reads the page again, perhaps cut otherwise, and does not try the record."""
    world.write("a", 6)
    refusing = Refusing(world, "k3", "k5")
    first = world.worker("first", max_records=4)
    world.until(lambda: "k3" in store.ids, 60)
    first.kill()
    world.journal.by_shard.clear()
    second = world.worker("second", max_records=100)
    world.until(lambda: store.ids == ["k3", "k5"] and second.statuses()["a"].reason == "", 120)
    world.until(lambda: {"k0", "k1", "k2", "k4"} <= set(world.journal.accepted["a"]), 60)

    assert not any("k3" in batch for batch in batches(world))
    assert refusing.keys == {"k3", "k5"}


def test_a_record_before_the_parked_one_of_its_key_is_delivered_again_and_not_parked(
    world: Stage, store: FlakyStore
) -> None:
    """It was accepted, and comes again as no checkpoint covers it; parked, it would be replayed behind newer ones."""
    written = [make_record("k", number) for number in range(4)]
    world.stream.append("a", *written)
    accepted: list[int] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        places = [record.sequence_info.timestamp_micros for record in given.records]
        if 2 in places:
            raise ValueError("broken")
        accepted.extend(places)

    world.journal.on_process = process
    world.journal.on_shutdown = lambda processor, given: None
    first = world.worker("first", max_records=1)
    world.until(lambda: len(store.ids) == 2, 60)
    first.kill()
    world.worker("second")
    world.until(lambda: accepted == [0, 1, 0, 1], 120)
    world.advance(2)

    assert [parked.record.sequence_info.timestamp_micros for parked in store.parked()] == [2, 3]


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.ZOMBIE])
@pytest.mark.parametrize("moment", ["pause", "store"])
def test_a_request_to_stop_ends_a_page_in_pieces(reason: ShutdownReason, moment: str) -> None:
    """Between two pieces or after a call to the store; the rest of the page is read again by whoever comes next."""
    world, store = parking_world("a", retries=9 if moment == "pause" else 0)
    world.write("a", 8)
    Refusing(world, "k5")
    worker = world.worker()
    if moment == "store":
        world.until(lambda: store.calls == ["parked_keys"], 30)
        store.failures = 10_000
    world.until(lambda: "attempt" in worker.statuses().get("a", worker).__str__(), 60)
    (consumer,) = worker.coordinator._consumers.values()
    consumer.stop(reason)
    world.until(lambda: world.journal.shutdowns("a") != [], 30)

    assert world.journal.shutdowns("a") == [reason]
    assert "k6" not in world.journal.accepted["a"]
    assert world.checkpoint("a") == "TRIM_HORIZON"


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_policy_may_stop_the_shard_at_the_record() -> None:
    """The lease stays held, the status names key, place, position and error; a resumed shard tries again."""
    world = Stage("a", "b", failure_policy=FailurePolicy(retries=1, first_pause_millis=10, then=OnFailure.STOP_SHARD))
    world.write("a", 8)
    world.write("b", 2)
    refusing = Refusing(world, "k5")
    worker = world.worker()
    world.until(lambda: "stopped" in worker.statuses().get("a", worker).__str__(), 60)
    reached(world, 2, "b")
    world.advance(60)
    status = worker.statuses()["a"]
    assert status.reason == (
        'stopped by failure_policy at record [["id", "k5"]] (1/5/0), number 5 after position TRIM_HORIZON, after '
        "5 failed calls: ValueError: cannot digest k5; mend the cause, then restart the worker, or pause and resume "
        "the shard"
    )
    assert (status.state, status.reason_kind) == (ShardState.SHUTDOWN_COMPLETE, ReasonKind.DECISION)
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]
    assert (world.owner("a"), world.checkpoint("a")) == ("w1", "TRIM_HORIZON")

    refusing.keys.clear()
    world.journal.accepted.clear()
    resume(world, worker)
    reached(world, 8)


def test_one_failed_call_is_told_as_one() -> None:
    world = Stage("a", failure_policy=FailurePolicy(retries=0, then=OnFailure.STOP_SHARD))
    world.write("a", 1)
    Refusing(world, "k0")
    worker = world.worker()
    world.until(lambda: "stopped" in str(worker.statuses().get("a")), 60)

    assert "TRIM_HORIZON, after one failed call: ValueError: cannot digest k0; mend" in worker.statuses()["a"].reason


def resume(world: Stage, worker: SimulatedWorker) -> None:
    """Pause and resume, as ``Worker.pause`` and ``Worker.resume`` do."""
    worker.coordinator.send(events.PauseRequested("a", "mended"))
    world.until(lambda: worker.statuses()["a"].reason_kind is not ReasonKind.DECISION, 30)
    worker.coordinator.send(events.ResumeRequested("a"))


def test_too_many_parked_records_stop_the_shard(caplog: pytest.LogCaptureFixture) -> None:
    """Then it is not the records: here, everything fails."""
    world, store = parking_world("a", most_parked_share=0.05, share_window_records=100)
    world.write("a", 50)
    refusing = Refusing(world, *(f"k{number}" for number in range(50)))
    worker = world.worker()
    with caplog.at_level(logging.ERROR):
        world.until(lambda: worker.statuses().get("a") and len(world.journal.shutdowns("a")) == 1, 60)
        world.advance(30)
    assert store.ids == ["k0", "k1", "k2", "k3", "k4"]
    status = worker.statuses()["a"]
    assert status.reason.startswith(
        "stopped: 5 of its last 100 records are parked, and most_parked_share=0.05 allows 5; the next one would be "
        'record [["id", "k5"]] (1/5/0), number 5 after position TRIM_HORIZON: ValueError: cannot digest k5; find out'
    )
    assert status.state is ShardState.SHUTDOWN_COMPLETE
    assert any(status.reason in message for message in caplog.messages)
    assert world.checkpoint("a") == "TRIM_HORIZON"

    refusing.keys.clear()
    resume(world, worker)
    reached(world, 45)
    assert store.ids == ["k0", "k1", "k2", "k3", "k4"]


def test_a_hot_key_that_is_parked_stops_the_shard_rather_than_pour_itself_into_the_store() -> None:
    world, store = parking_world("a", most_parked_share=0.05, share_window_records=100)
    world.stream.append("a", *named(*["bad", "x"] * 10))
    Refusing(world, "bad")
    worker = world.worker(max_records=2)
    world.until(lambda: "stopped" in worker.statuses().get("a", worker).__str__(), 60)

    assert store.ids == ["bad"] * 5
    assert "not tried: an earlier record of its key is parked" in worker.statuses()["a"].reason


def in_order(found: Iterable[Any]) -> bool:
    places = [record.sequence_info.timestamp_micros for record in found]
    return places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_accepted_or_parked_in_order_per_key(seed: int) -> None:
    """Random bad records, keys that repeat, a store that fails, workers that die; nothing is lost or overtakes."""
    dice = random.Random(seed)
    world, store = parking_world("a", seed=seed, most_parked_share=1.0, retries=dice.randint(0, 2))
    written = [make_record(f"k{dice.randint(0, 15)}", number) for number in range(120)]
    broken = {number for number in range(120) if dice.random() < 0.06}
    accepted: list[Any] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if any(record.sequence_info.timestamp_micros in broken for record in given.records):
            raise ValueError("broken")
        accepted.extend(given.records)
        if dice.random() < 0.5:
            given.checkpointer.checkpoint()

    world.journal.on_process = process
    worker = world.worker("w0", max_records=dice.choice([3, 10, 50]))
    for number in range(0, 120, 20):
        world.stream.append("a", *written[number : number + 20])
        world.advance(dice.uniform(0.1, 3))
        store.failures += dice.choice([0, 0, 1, 2])
        if dice.random() < 0.3:
            worker.kill()
            worker = world.worker(f"w{number + 1}", max_records=dice.choice([3, 10, 50]))
    places = {record.sequence_info.timestamp_micros for record in written}

    def dealt_with() -> set[int]:
        return {record.sequence_info.timestamp_micros for record in [*accepted, *(p.record for p in store.parked())]}

    world.until(lambda: dealt_with() == places, 600)
    world.advance(30)
    parked = [each.record for each in store.parked()]
    assert broken <= {record.sequence_info.timestamp_micros for record in parked}
    for key in {record.primary_key for record in parked}:
        mine = [record for record in parked if record.primary_key == key]
        first = mine[0].sequence_info
        assert {record.sequence_info for record in written if record.primary_key == key} >= {first}
        later = [r for r in accepted if r.primary_key == key and r.sequence_info > first]
        assert later == []
    assert all(each.generation == 1 for each in store.parked())


# --- parked at the end of a quiet shard ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [("k7",), ("k6", "k7"), tuple(f"k{number}" for number in range(8))])
def test_records_that_were_parked_last_never_count_as_lost(bad: tuple[str, ...]) -> None:
    """The worker stores the position after them, because no batch comes that lets the processor do so."""
    world, store = parking_world("a", most_parked_share=1.0)
    world.write("a", 8)
    Refusing(world, *bad)
    first = world.worker("first")
    world.until(lambda: len(store.ids) == len(bad) and world.checkpoint("a") == "a@8", 300)
    first.kill()
    world.stream.trim("a", 8)
    second = world.worker("second")
    world.write("a", 1, start=8)
    world.until(lambda: world.checkpoint("a") == "a@9", 300)

    assert second.statuses()["a"].lost is None
    assert store.ids == list(bad)


def test_a_batch_that_the_processor_has_not_stored_is_never_passed() -> None:
    """The records before the parked one are accepted, and come again after a crash."""
    world, store = parking_world("a", most_parked_share=1.0)
    world.write("a", 4)

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if any(record.key["id"] == "k3" for record in given.records):
            raise ValueError("cannot digest k3")

    world.journal.on_process = process
    worker = world.worker()
    world.until(lambda: store.ids == ["k3"], 300)
    world.advance(60)

    assert worker.statuses()["a"].forecast == "caught up"
    assert world.checkpoint("a") == "TRIM_HORIZON"
