"""Reads of idle shards share threads and turns of the owner, and none waits for one that hangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.position import Position
from streamclient.base.reasons import Raised
from streamclient.core.consumer.reading_pace import EARLIEST_SHARE
from streamclient.tablestore.stream_api import RecordPage
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import SMALLEST_STEP_SECONDS
from streamclient.worker.fetcher import DataFetcher, ShardSource
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.read_calls import FAIR_TURN, PATIENT_SECONDS, OwnerReads, PrefetchBudget, ReadQueue
from tests.placed_records import make_record
from tests.worker.stage import Clock, ManualPool, Stage


class WakeCountingLoop(OwnerLoop):
    """Counts what wakes its owner, or would."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.wakes = 0

    def _ring(self) -> None:
        self.wakes += 1
        super()._ring()


# --- the queue --------------------------------------------------------------------------------------------------------


def test_patient_reads_are_done_by_one_thread_one_after_the_other() -> None:
    pool, done = ManualPool(), list[int]()
    queue = ReadQueue(pool)
    for number in range(5):
        queue.submit(0.0, partial(done.append, number), 10.0)

    assert len(pool.tasks) == 1
    pool.run_one()
    assert done == list(range(5))
    assert not queue.hurry(100.0)
    queue.submit(0.0, partial(done.append, 5), 10.0)
    assert len(pool.tasks) == 1, "nobody is at work any more, so somebody has to be sent for"


def test_a_read_that_the_pool_refuses_is_forgotten_and_disturbs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, done = ManualPool(), list[str]()
    queue = ReadQueue(pool)
    queue.submit(0.0, partial(done.append, "first"))
    queue.submit(0.0, partial(done.append, "patient"), 10.0)
    monkeypatch.setattr(pool, "submit", lambda task: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        queue.submit(0.0, partial(done.append, "refused"))
    assert queue.hurry(20.0)
    monkeypatch.undo()

    assert queue.hurry(20.0)
    assert len(pool.tasks) == 2
    pool.run_all()
    assert sorted(done) == ["first", "patient"]
    assert not queue.hurry(20.0)


def test_a_patient_read_goes_to_a_thread_at_work_and_another_one_to_a_thread_of_its_own() -> None:
    pool, done = ManualPool(), list[str]()
    queue = ReadQueue(pool)

    def read() -> None:
        queue.submit(1.0, partial(done.append, "patient"), 10.0)
        queue.submit(0.0, partial(done.append, "urgent"))
        assert len(pool.tasks) == 1
        done.append("first")

    queue.submit(0.0, read)
    pool.run_one()
    assert done == ["first", "urgent"], "the most urgent one first, and the other is left to who is coming"
    pool.run_one()
    assert done == ["first", "urgent", "patient"]
    assert pool.tasks == []


def test_behind_a_read_that_hangs_more_and_more_threads_are_sent_for() -> None:
    """As many as are at work already; never more than reads wait, and none before the reads were patient."""
    pool = ManualPool()
    queue = ReadQueue(pool)
    sent: list[int] = []

    def hang() -> None:
        if len(sent) == 0:
            assert queue.hurry(9.9)
            assert pool.tasks == []
        assert queue.hurry(10.0)
        sent.append(len(pool.tasks))
        pool.run_all()

    for _ in range(9):
        queue.submit(0.0, hang, 10.0)
    pool.run_one()

    assert sent[:4] == [1, 2, 4, 5], "then a thread comes for each that waits"
    assert not queue.hurry(100.0)


def test_a_read_that_raises_does_not_count_as_one_under_way() -> None:
    pool = ManualPool()
    queue = ReadQueue(pool)

    def fail() -> None:
        raise KeyboardInterrupt

    queue.submit(0.0, fail)
    with pytest.raises(KeyboardInterrupt):
        pool.run_one()
    assert not queue.hurry(0.0)
    queue.submit(0.0, lambda: None, 10.0)
    assert len(pool.tasks) == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.booleans(), st.floats(0, 9)),
            st.tuples(st.just("run"), st.just(False), st.just(0.0)),
            st.tuples(st.just("hurry"), st.just(False), st.floats(0, 20)),
        ),
        max_size=60,
    )
)
def test_each_read_is_done_once_whatever_the_order_of_things(steps: list[tuple[str, bool, float]]) -> None:
    pool, done, submitted = ManualPool(), list[int](), 0
    queue = ReadQueue(pool)
    for what, is_patient, value in steps:
        if what == "submit":
            queue.submit(value, partial(done.append, submitted), 10.0 if is_patient else None)
            submitted += 1
        elif what == "hurry":
            queue.hurry(value)
        elif pool.tasks:
            pool.run_one()
        assert bool(pool.tasks) == queue.has_waiting, "somebody comes for what waits, and nobody for nothing"
        assert len(pool.tasks) <= submitted - len(done)
    pool.run_all()

    assert sorted(done) == list(range(submitted))


def test_the_order_of_loss_is_kept_in_little_room_however_many_take_the_fair_turn() -> None:
    pool = ManualPool()
    queue = ReadQueue(pool)
    for number in range(1_000):
        queue.submit(-float(number), lambda: None)
        if number >= 10:
            pool.run_one()

    assert len(queue._by_loss) <= 2 * 10 + FAIR_TURN


# --- the owner --------------------------------------------------------------------------------------------------------


def test_the_owner_looks_after_patient_reads_until_none_is_under_way() -> None:
    clock, pool, done = Clock(), ManualPool(), list[str]()
    loop = OwnerLoop(clock)
    reads = OwnerReads(ReadQueue(pool), loop)

    def hang() -> None:
        assert len(pool.tasks) == 0
        clock.now += PATIENT_SECONDS
        loop.turn(0.0)
        assert len(pool.tasks) == 1
        pool.run_one()
        assert done == ["the other"]

    reads.submit(0.0, hang, is_patient=True)
    reads.submit(1.0, partial(done.append, "the other"), is_patient=True)
    pool.run_one()
    assert loop.next_timer is not None
    clock.now += PATIENT_SECONDS
    loop.turn(0.0)
    assert loop.next_timer is None

    reads.submit(0.0, partial(done.append, "urgent"))
    assert loop.next_timer is None, "a read that has a thread of its own needs nobody to look after it"


class IdleShards:
    """Fetchers that ask patiently, on a loop and a pool that the test moves by hand."""

    def __init__(self, *names: str) -> None:
        self.clock, self.pool = Clock(), ManualPool()
        self.loop = WakeCountingLoop(self.clock)
        self.stream = FakeStream("orders", names)
        self.pages: list[RecordPage] = []
        self.errors: list[Raised] = []
        reads, budget = OwnerReads(ReadQueue(self.pool), self.loop), PrefetchBudget(10**6)
        self.fetchers = [
            DataFetcher(
                ShardSource(stream_api=self.stream, stream_id=self.stream.stream_id, shard_id=name, limit=10),
                loop=self.loop,
                reads=reads,
                loss_micros=lambda: 0.0,
                budget=budget,
                most_ahead_bytes=0,
            )
            for name in names
        ]

    def ask(self, *, is_patient: bool) -> None:
        """Have each shard read, up to the answers."""
        for fetcher in self.fetchers:
            fetcher.fetch(Position.TRIM_HORIZON, self.pages.append, self.errors.append, is_patient=is_patient)
        self.loop.turn(0.0)
        self.loop.wakes = 0
        self.pool.run_all()


def test_the_answers_of_idle_shards_wake_the_owner_once() -> None:
    shards = IdleShards("a", "b", "c")
    shards.ask(is_patient=True)

    assert shards.loop.wakes == 1
    shards.loop.turn(0.0)
    assert [len(page.records) for page in shards.pages] == [0, 0, 0]


def test_a_record_of_a_waking_shard_wakes_the_owner_at_once_and_so_does_an_error() -> None:
    shards = IdleShards("a", "b", "c")
    woken_behind: list[tuple[str, int]] = []
    shards.stream.before_read = lambda shard_id: woken_behind.append((shard_id, shards.loop.wakes))
    shards.stream.append("a", make_record("k", 1))
    shards.ask(is_patient=True)

    assert woken_behind == [("a", 0), ("b", 1), ("c", 1)]
    assert shards.loop.wakes == 2

    failing = IdleShards("a", "b")

    def fail(shard_id: str) -> None:
        raise ValueError(shard_id)

    failing.stream.before_read = fail
    failing.ask(is_patient=True)
    assert failing.loop.wakes == 2
    failing.loop.turn(0.0)
    assert [raised.text for raised in failing.errors] == ["ValueError: a", "ValueError: b"]


def test_reads_that_are_in_a_hurry_have_threads_and_wakes_of_their_own() -> None:
    shards = IdleShards("a", "b", "c")
    shards.ask(is_patient=False)
    assert shards.loop.wakes == 3


def test_idle_shards_are_read_together_and_none_later_than_its_pause() -> None:
    """However long the pause. On simulated time a read takes none, so a pause is what lies between two reads."""
    names = [f"shard-{number}" for number in range(40)]
    world = Stage(*names, worker_idle_time_millis=1_000, max_idle_poll_interval_millis=1_000)
    read_at: dict[str, list[float]] = {name: [] for name in names}
    world.stream.before_read = lambda shard_id: read_at[shard_id].append(world.simulation.now)
    dice, worker = random.Random(1), world.worker()
    world.until(lambda: worker.reads == set(names))
    for name in names:  # each has a rhythm of its own from now on
        world.advance(dice.random() / 10)
        world.stream.append(name, make_record("k", 1))
    world.advance(30.0)
    for moments in read_at.values():
        moments.clear()
    world.advance(10.0)

    gaps = [later - earlier for moments in read_at.values() for earlier, later in pairwise(moments)]
    assert max(gaps) <= 1.0 + SMALLEST_STEP_SECONDS
    assert min(gaps) >= EARLIEST_SHARE - SMALLEST_STEP_SECONDS
    meetings = {at * 32 for moments in read_at.values() for at in moments}
    assert all(meeting.is_integer() for meeting in meetings), "a thirty-second is within a twentieth of the pause"


def test_a_record_of_an_idle_shard_comes_within_its_pause() -> None:
    names = [f"shard-{number}" for number in range(10)]
    world = Stage(*names, worker_idle_time_millis=100)
    world.reader()
    world.advance(100.0)
    for number, name in enumerate(names):
        world.advance(0.37)
        written_at = world.simulation.now
        world.stream.append(name, make_record("k", number))
        world.until(lambda name=name: bool(world.journal.delivered(name)))  # type: ignore[misc]
        assert world.simulation.now - written_at <= 0.9 + SMALLEST_STEP_SECONDS
