"""Reading ahead: the same pages as one by one, within a budget, and nothing left behind."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamclient import Backoff
from streamclient.base.position import Position
from streamclient.errors import DependencyException, ErrorKind, TrimmedDataException
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import ShutdownReason
from streamclient.tablestore.stream_api import RecordPage
from streamclient.testing.fakes import FakeStream
from streamclient.worker.fetcher import LEAST_RECORD_BYTES, DataFetcher, ShardSource
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.read_calls import Claim, OwnerReads, PrefetchBudget, ReadQueue
from tests.placed_records import make_record
from tests.simulation.scene import RecordingProcessor
from tests.worker.stage import ManualPool, Stage, records

TRANSIENT = DependencyException("connection reset", kind=ErrorKind.TRANSIENT)


class Desk:
    """One fetcher per shard on a loop and a pool that the test moves by hand."""

    def __init__(self, *shard_ids: str, limit: int = 10, ahead_bytes: int = 10**6, total_bytes: int = 10**6) -> None:
        self.stream = FakeStream("orders", shard_ids or ("a",))
        self.now = 0.0
        self.loop = OwnerLoop(lambda: self.now)
        self.pool = ManualPool()
        self.budget = PrefetchBudget(total_bytes)
        reads = OwnerReads(ReadQueue(self.pool), self.loop)
        self.fetchers = {
            name: DataFetcher(
                ShardSource(stream_api=self.stream, stream_id=self.stream.stream_id, shard_id=name, limit=limit),
                loop=self.loop,
                reads=reads,
                loss_micros=lambda: 0.0,
                budget=self.budget,
                most_ahead_bytes=ahead_bytes,
            )
            for name in shard_ids or ("a",)
        }
        self.answers: dict[str, list[Any]] = {name: [] for name in self.fetchers}
        self.positions = dict.fromkeys(self.fetchers, Position.TRIM_HORIZON)

    @property
    def fetcher(self) -> DataFetcher:
        return next(iter(self.fetchers.values()))

    def ask(self, name: str = "a") -> None:
        self.fetchers[name].fetch(self.positions[name], self.answers[name].append, self.answers[name].append)

    def turn(self) -> None:
        while self.loop.has_messages:
            self.loop.turn(0.0)

    def advance(self, page: RecordPage, name: str = "a") -> None:
        """Ask for what follows a page next time."""
        self.positions[name] = page.next_position

    def settle(self) -> None:
        """Let everything happen that can."""
        self.turn()
        while self.pool.tasks:
            self.pool.run_one()
            self.turn()

    def deliver(self, name: str = "a") -> RecordPage:
        """Ask for a page, have it, and let reading ahead begin behind it."""
        self.ask(name)
        self.settle()
        page = self.answers[name][-1]
        self.fetchers[name].read_ahead(page)
        return page


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- one shard --------------------------------------------------------------------------------------------------------


def test_pages_behind_the_one_being_processed_are_read_ahead_up_to_the_limit() -> None:
    desk = Desk(ahead_bytes=3 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", *records(100))
    page = desk.deliver()
    desk.settle()
    assert len(page.records) == 10
    assert desk.stream.reads == 1 + 3
    assert desk.fetcher.ahead_bytes == desk.budget.used_bytes == 3 * 10 * LEAST_RECORD_BYTES
    assert desk.positions["a"] == Position.TRIM_HORIZON
    desk.advance(page)
    desk.ask()

    assert [record.key["id"] for record in desk.answers["a"][-1].records] == [f"k{n}" for n in range(10, 20)]
    assert desk.positions["a"] == Position("a@10")


def test_a_page_larger_than_the_limit_is_read_ahead_alone() -> None:
    desk = Desk(ahead_bytes=1, total_bytes=1)
    desk.stream.append("a", *records(50))
    desk.deliver()
    desk.settle()

    assert desk.stream.reads == 2


def test_a_limit_of_zero_reads_nothing_ahead() -> None:
    desk = Desk(ahead_bytes=0)
    desk.stream.append("a", *records(50))
    desk.deliver()
    desk.settle()

    assert desk.stream.reads == 1


def test_a_read_ahead_under_way_answers_the_question_for_it(desk: Desk) -> None:
    desk.stream.append("a", *records(20))
    page = desk.deliver()
    desk.turn()
    assert len(desk.pool.tasks) == 1
    desk.advance(page)
    desk.ask()
    desk.turn()
    assert len(desk.pool.tasks) == 1
    desk.settle()

    assert [len(page.records) for page in desk.answers["a"]] == [10, 10]
    assert desk.budget.used_bytes == 0


def test_one_visit_to_the_pool_reads_several_pages_ahead_and_the_next_begins_when_half_is_free() -> None:
    desk = Desk(ahead_bytes=4 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", *records(200))
    page = desk.deliver()
    desk.turn()
    desk.pool.run_one()

    assert (desk.stream.reads, desk.pool.tasks) == (1 + 4, [])
    visits = []
    for _ in range(4):
        desk.advance(page)
        page = desk.deliver()
        desk.turn()
        visits.append(len(desk.pool.tasks))
        desk.pool.run_all()
        desk.turn()
    assert visits == [0, 1, 0, 1]
    assert [len(page.records) for page in desk.answers["a"]] == [10] * 5


def test_the_owner_is_woken_for_a_page_that_is_awaited_and_else_for_the_last_one_of_a_visit() -> None:
    desk = Desk(ahead_bytes=4 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", *records(50))
    desk.advance(desk.deliver())
    desk.turn()
    rung: list[int] = []
    loop, ring = desk.loop, desk.loop._ring
    loop._ring = lambda: (rung.append(desk.stream.reads), ring())[1]  # type: ignore[method-assign,func-returns-value]
    desk.pool.run_one()
    assert rung == [5]

    desk.stream.append("a", *records(50, 50))
    desk.fetcher.discard()
    desk.advance(desk.deliver())
    desk.turn()
    rung.clear()
    desk.ask()
    before = desk.stream.reads
    desk.pool.run_one()
    assert rung[0] == before + 1


def test_a_visit_ends_behind_a_page_that_is_larger_than_what_was_set_aside() -> None:
    """So the limit is exceeded by one such page, however many were to be read in a row."""
    desk = Desk(ahead_bytes=4 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", make_record("k0", 0))
    desk.ask()
    desk.settle()
    desk.stream.append("a", *records(100, 1))
    desk.advance(desk.answers["a"][-1])
    desk.fetcher._largest_bytes = LEAST_RECORD_BYTES
    desk.fetcher._is_catching_up = True
    desk.fetcher.read_ahead(desk.answers["a"][-1])
    desk.turn()
    desk.pool.run_one()

    assert desk.stream.reads == 2
    desk.settle()
    assert desk.fetcher.ahead_bytes <= 4 * 10 * LEAST_RECORD_BYTES


def test_a_visit_ends_when_nobody_wants_more_and_gives_all_its_bytes_back() -> None:
    desk = Desk(ahead_bytes=4 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", *records(100))
    desk.deliver()
    desk.turn()
    reading = desk.fetcher.reading
    assert reading is not None
    reads: list[int] = []
    source, read = desk.fetcher._source, desk.stream.get_stream_record

    def given_up(*args: Any) -> RecordPage:
        reads.append(len(reads))
        desk.fetcher.discard()
        return read(*args)

    source.stream_api.get_stream_record = given_up  # type: ignore[method-assign]
    desk.pool.run_one()
    desk.turn()

    assert (len(reads), reading.is_over, desk.budget.used_bytes, desk.fetcher.ahead_bytes) == (1, True, 0, 0)


def test_an_idle_shard_costs_no_reads_ahead(desk: Desk) -> None:
    """A record now and then: the page came after an empty answer, so nothing waits behind it."""
    desk.ask()
    desk.settle()
    for number in range(5):
        desk.advance(desk.answers["a"][-1])
        desk.stream.append("a", make_record(f"k{number}", number))
        page = desk.deliver()
        desk.settle()
        desk.advance(page)
        desk.ask()
        desk.settle()

    assert desk.stream.reads == 1 + 5 * 2


def test_an_empty_page_is_not_kept_but_the_end_of_a_shard_is(desk: Desk) -> None:
    desk.stream.append("a", *records(10))
    page = desk.deliver()
    desk.settle()
    assert (desk.stream.reads, desk.fetcher.ahead_bytes) == (2, 0)
    desk.stream.append("a", *records(10, 10))
    desk.advance(page)
    page = desk.deliver()
    assert len(page.records) == 10

    desk.stream.close("a")
    desk.advance(page)
    desk.settle()
    desk.ask()
    desk.settle()
    assert desk.answers["a"][-1].next_position.is_shard_end


def test_a_page_that_was_read_ahead_has_the_time_of_its_own_read(desk: Desk) -> None:
    desk.stream.append("a", *records(20))
    page = desk.deliver()
    assert desk.fetcher.read_at == 0.0
    desk.now = 1.0
    desk.settle()
    desk.now = 2.0
    desk.advance(page)
    desk.ask()
    assert (len(desk.answers["a"]), desk.fetcher.read_at) == (2, 1.0)
    desk.advance(desk.answers["a"][-1])
    desk.ask()
    desk.settle()

    assert (len(desk.answers["a"]), desk.fetcher.read_at) == (3, 2.0)


def test_a_failed_read_ahead_is_met_again_only_when_its_turn_comes(desk: Desk) -> None:
    desk.stream.append("a", *records(20))
    page = desk.deliver()
    desk.stream.fail_reads("a", TRANSIENT, TRANSIENT)
    desk.settle()
    assert (desk.stream.reads, desk.budget.used_bytes) == (2, 0)
    desk.advance(page)
    desk.ask()
    desk.settle()

    assert desk.answers["a"][-1].error is TRANSIENT


def test_what_was_read_before_a_trim_is_delivered_and_then_the_loss_is_met() -> None:
    desk = Desk(ahead_bytes=2 * 10 * LEAST_RECORD_BYTES)
    desk.stream.append("a", *records(100))
    page = desk.deliver()
    desk.settle()
    desk.stream.trim("a", 90)
    for _ in range(3):
        desk.advance(page)
        desk.ask()
        desk.settle()
        page = desk.answers["a"][-1]

    assert [len(answer.records) for answer in desk.answers["a"][:3]] == [10, 10, 10]
    assert page.is_a(TrimmedDataException)


def test_a_page_that_was_cut_is_followed_by_a_read_at_the_cut(desk: Desk) -> None:
    """A position other than the next one makes what was read ahead worthless."""
    desk.stream.append("a", *records(50))
    page = desk.deliver()
    desk.settle()
    desk.advance(RecordPage(page.records[:4], Position("a@4")))
    desk.ask()
    desk.settle()

    assert desk.answers["a"][-1].records[0].key["id"] == "k4"
    assert desk.budget.used_bytes == 0


# --- properties -------------------------------------------------------------------------------------------------------


NAMES = ("a", "b", "c")
ONE_PAGE_BYTES = 3 * LEAST_RECORD_BYTES


class ReadingAhead(RuleBasedStateMachine):
    """However reads, deliveries, failures, restarts and new records interleave, the pages are those of one by one."""

    @initialize(ahead_bytes=st.integers(1, 800), total_bytes=st.integers(1, 900))
    def open(self, ahead_bytes: int, total_bytes: int) -> None:
        self.desk = Desk(*NAMES, limit=3, ahead_bytes=ahead_bytes, total_bytes=total_bytes)
        self.total_bytes = total_bytes
        self.written = dict.fromkeys(NAMES, 0)
        self.accepted: dict[str, list[int]] = {name: [] for name in NAMES}
        self.present: dict[str, RecordPage | None] = dict.fromkeys(NAMES)
        self.asked: set[str] = set()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 8))
    def write(self, name: str, count: int) -> None:
        self.desk.stream.append(name, *records(count, self.written[name]))
        self.written[name] += count

    @rule(name=st.sampled_from(NAMES))
    def ask(self, name: str) -> None:
        if name not in self.asked and self.present[name] is None:
            self.asked.add(name)
            position, came = self.desk.positions[name], partial(self.came, name)
            self.desk.fetchers[name].fetch(position, came, lambda error: self.asked.discard(name))

    def came(self, name: str, page: RecordPage) -> None:
        self.asked.discard(name)
        self.present[name] = page
        self.desk.fetchers[name].read_ahead(page)

    @rule(name=st.sampled_from(NAMES))
    def accept(self, name: str) -> None:
        page = self.present[name]
        if page is not None:
            self.accepted[name] += [int(record.key["id"][1:]) for record in page.records]  # type: ignore[index]
            self.desk.advance(page, name)
            self.present[name] = None

    @rule(name=st.sampled_from(NAMES))
    def redeliver(self, name: str) -> None:
        page = self.present[name]
        if page is not None:
            self.desk.fetchers[name].read_ahead(page)

    @rule()
    def read(self) -> None:
        if self.desk.pool.tasks:
            self.desk.pool.run_one()

    @rule()
    def turn(self) -> None:
        self.desk.turn()

    @rule(name=st.sampled_from(NAMES))
    def fail(self, name: str) -> None:
        self.desk.stream.fail_reads(name, TRANSIENT)

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        self.desk.fetchers[name].discard()
        self.asked.discard(name)
        self.present[name] = None

    @invariant()
    def every_record_came_once_and_in_order(self) -> None:
        assert all(numbers == list(range(len(numbers))) for numbers in self.accepted.values())

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert self.desk.budget.used_bytes <= self.total_bytes + len(NAMES) * ONE_PAGE_BYTES

    def teardown(self) -> None:
        """Nothing is stuck: what is left is read, and every byte comes back."""
        self.desk.stream._failures.clear()
        for name in NAMES:
            self.restart(name)
            while len(self.accepted[name]) < self.written[name]:
                self.ask(name)
                self.desk.settle()
                self.accept(name)
            self.desk.fetchers[name].discard()
        self.desk.settle()
        assert self.desk.budget.used_bytes == 0


TestReadingAhead = ReadingAhead.TestCase
TestReadingAhead.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)


@given(st.lists(st.tuples(st.sampled_from(["claim", "settle", "release"]), st.integers(0, 50)), max_size=80))
def test_the_budget_never_loses_a_byte(steps: list[tuple[str, int]]) -> None:
    budget = PrefetchBudget(100)
    made: list[Claim] = []
    at_once: list[Claim] = []
    granted: list[Claim] = []
    for what, number in steps:
        if what == "claim":
            made.append(budget.claim(number, number, granted.append))
            at_once += [made[-1]] if made[-1].is_granted else []
        elif made:
            claim = made[number % len(made)]
            (claim.release if what == "release" else partial(claim.settle, number))()
        held = [claim for claim in made if claim.is_granted and not claim.is_over]
        assert budget.used_bytes == sum(claim.size_bytes for claim in held)
    for claim in made:
        claim.release()

    assert budget.used_bytes == 0
    told = at_once + granted
    assert set(told) == {claim for claim in made if claim.is_granted}
    assert len(told) == len(set(told))


def test_a_shard_that_waits_for_room_gets_it_before_one_that_asks_later() -> None:
    size = 10 * LEAST_RECORD_BYTES
    desk = Desk("a", "b", total_bytes=size)
    for name in ("a", "b"):
        desk.stream.append(name, *records(100))
        desk.deliver(name)
    desk.settle()
    assert (desk.fetchers["a"].ahead_bytes, desk.fetchers["b"].ahead_bytes) == (size, 0)
    desk.advance(desk.answers["a"][-1])
    desk.deliver("a")
    desk.settle()

    assert (desk.fetchers["a"].ahead_bytes, desk.fetchers["b"].ahead_bytes) == (0, size)


# --- in a worker ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_during_processing_never_covers_what_was_only_read_ahead(world: Stage) -> None:
    world.write("a", 30)
    seen: list[str] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(threading.Event(), 5.0)
        given.checkpointer.checkpoint()
        seen.append(world.checkpoint("a"))

    world.journal.on_process = process
    world.worker(max_records=10)
    world.until(lambda: len(seen) == 3, 60)

    assert seen == ["a@10", "a@20", "a@30"]
    assert world.journal.delivered("a") == [f"k{number}" for number in range(30)]


def test_the_next_page_is_there_when_a_batch_is_done(world: Stage) -> None:
    """While user code works, the page behind is read; so the reads are over long before the work is."""
    world.write("a", 30)
    reads_at_start: list[int] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(threading.Event(), 5.0)
        reads_at_start.append(world.stream.reads)

    world.journal.on_process = process
    world.worker(max_records=10)
    world.until(lambda: len(reads_at_start) == 1, 60)

    assert reads_at_start[0] >= 3


def test_a_failure_drops_what_was_read_ahead_and_starts_again_at_the_checkpoint() -> None:
    world = Stage("a", backoff=Backoff(restart_backoff_min_millis=100))
    world.write("a", 30)
    failures = iter([True])

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(threading.Event(), 1.0)
        if next(failures, False):
            raise ValueError("once")
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    worker = world.worker(max_records=10)
    world.until(lambda: len(world.journal.accepted["a"]) == 30, 60)

    assert world.journal.delivered("a") == [f"k{number}" for number in [*range(10), *range(30)]]
    world.advance(1)
    assert worker.coordinator._around.prefetch.used_bytes == 0


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.ZOMBIE])
def test_a_stop_and_a_lost_lease_give_everything_back(world: Stage, reason: ShutdownReason) -> None:
    world.write("a", 30)
    release = world.hang()
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=10)
    world.until(lambda: worker.coordinator._around.prefetch.used_bytes > 0, 60)
    (consumer,) = worker.coordinator._consumers.values()
    consumer.stop(reason)
    release.set()
    world.until(lambda: reason in world.journal.shutdowns("a"), 60)

    assert worker.coordinator._around.prefetch.used_bytes == 0


# --- the oldest record ------------------------------------------------------------------------------------------------


def test_a_search_for_the_oldest_record_is_a_read_under_way_until_its_answer_or_until_nobody_needs_it() -> None:
    desk, seen = Desk(), list[Any]()
    desk.stream.append("a", *records(3))
    desk.stream.trim("a", 2)
    desk.stream.before_read = lambda shard_id: seen.append(desk.fetcher.reading)
    answers = desk.answers["a"]
    for is_needed in (True, False):
        desk.now += 5.0
        desk.fetcher.find_first_left(answers.append, answers.append)
        search = desk.fetcher.reading
        assert search is not None
        desk.turn()
        assert (search.queued_at, search.started_at) == (desk.now, None)
        if not is_needed:
            desk.fetcher.discard()
        desk.now += 1.0
        desk.settle()
        assert (search.started_at, search.thread_id) == (desk.now, threading.get_ident())
        assert desk.fetcher.reading is None

    assert seen[0] is not None
    assert seen[1] is None
    assert [answer.place.timestamp_micros for answer in answers] == [2]


@pytest.mark.parametrize("answered", [None, ""])
def test_a_stream_api_that_gives_no_iterator_is_named_when_a_shard_is_read(
    answered: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    monkeypatch.setattr(desk.stream, "get_shard_iterator", lambda *given: answered)
    for ask in (desk.ask, lambda: desk.fetcher.find_first_left(desk.answers["a"].append, desk.answers["a"].append)):
        ask()
        desk.settle()

    says = f"get_shard_iterator answered {answered!r}; it must return an iterator, which is a non-empty string"
    assert [answer.text for answer in desk.answers["a"]] == [f"StreamClientException: {says}"] * 2
    assert desk.stream.reads == 0
