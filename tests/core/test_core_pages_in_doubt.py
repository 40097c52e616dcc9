"""Pages in doubt, of the machine of one shard's consumer: nothing is lost, nothing comes twice, positions stay true."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import define, field

from streamclient.base.position import Position, ReadTrail
from streamclient.base.reasons import Cause, Raised
from streamclient.config import ClientConfig
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ConsumerCommand
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import StartConsumer
from streamclient.errors import DisorderError, TrimmedDataException
from streamclient.model import CheckpointPosition, PendingCheckpoint, ShardInfo
from streamclient.records import SequenceInfo, StreamRecord
from streamclient.tablestore import RecordPage
from tests.placed_records import make_record

PAGE_RECORDS = 3
TRIM_HORIZON = CheckpointPosition.TRIM_HORIZON


@define
class Pages:
    """Two shards, `a` and `b`, whose records alternate in time; iterators read ``<shard>@<number of the record>``."""

    size: int = 20

    def read(self, at: str) -> RecordPage:
        key, _, number = ("a@0" if at == TRIM_HORIZON else at).partition("@")
        start = int(number)
        end = min(start + PAGE_RECORDS, self.size)
        records = [make_record(f"{key}{index}", 10 * (index + 1) + (key == "b")) for index in range(start, end)]
        return RecordPage(records, Position(f"{key}@{max(start, end)}"), None, len(records))


Play = Callable[[Pages, str], RecordPage | Exception]


def elsewhere(start: int) -> Play:
    return lambda pages, at: pages.read(f"b@{start}")


def going_to(place: Callable[[str], str]) -> Play:
    def play(pages: Pages, at: str) -> RecordPage:
        page = pages.read(at)
        return RecordPage(page.records, Position(place(at)), None, page.body_bytes)

    return play


def partly_old(pages: Pages, at: str) -> RecordPage:
    number = max(0, int(at.partition("@")[2]) - 1) if at != TRIM_HORIZON else 0
    return pages.read(f"a@{number}")


PLAYS: dict[str, Play] = {
    "a page of another shard": elsewhere(0),
    "a later page of another shard": elsewhere(1),
    "the first page again": lambda pages, at: pages.read("a@0"),
    "a part of the last page again": partly_old,
    "a page that leads to the beginning": going_to(lambda at: "a@0"),
    "a page that leads to another shard": going_to(lambda at: "b@0"),
    "a page that stays": going_to(lambda at: at),
    "a page that stays, by another name": going_to(lambda at: "a@0" if at == TRIM_HORIZON else at),
    "records that do not rise": lambda pages, at: DisorderError("record 1 of a page of 2 stands before the one before"),
}


@define
class Run:
    """A machine that reads pages, some of which are played, until it has delivered all and found nothing more."""

    pages: Pages = field(factory=Pages)
    plays: Sequence[tuple[int, Play]] = ()
    """By the number of the read."""
    start: str = TRIM_HORIZON
    pending: PendingCheckpoint | None = None
    machine: ConsumerMachine = field(init=False)
    delivered: list[StreamRecord] = field(init=False, factory=list)
    batches: list[int] = field(init=False, factory=list)
    permitted: list[tuple[str, int]] = field(init=False, factory=list)
    """Each position that may be stored, and how many records were delivered before it."""
    reads: list[str] = field(init=False, factory=list)
    causes: list[Cause] = field(init=False, factory=list)
    pauses: list[float] = field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        info = ShardInfo("a", "stream", frozenset(), "t1")
        self.machine = ConsumerMachine(
            StartConsumer(info, self.start, pending=self.pending),
            ClientConfig(),
            random.Random(1),
            record_id=lambda record: str(record.key),
            key_text=str,
        )

    def until(self, is_over: Callable[[], bool], most: int = 200) -> None:
        todo: list[Any] = [consumer_events.Began()]
        for _ in range(most * 5):
            if is_over() or not todo:
                return
            for command in self.machine.handle(todo.pop(0), 100.0):
                todo += self._answers(command)
            if self.machine.reason is not None:
                self.causes.append(self.machine.reason.cause)
        raise AssertionError(f"it does not come to an end: {self.machine.reason}; {self.reads[-10:]}")

    def _answers(self, command: ConsumerCommand) -> list[Any]:
        match command:
            case consumer_events.Initialize():
                return [consumer_events.CallReturned(value=True)]
            case consumer_events.Read(visit, position):
                return [self._read(visit, position.text)]
            case consumer_events.ProcessRecords(records):
                self.delivered += records
                self.batches.append(len(records))
                return [consumer_events.CallReturned()]
            case consumer_events.Permit(position):
                self.permitted.append((position, len(self.delivered)))
            case consumer_events.Wait(visit, seconds):
                self.pauses.append(seconds)
                return [consumer_events.TimeCame(visit)]
            case consumer_events.FindFirstLeft(visit):
                raise AssertionError("nothing was lost")
        return []

    def _read(self, visit: int, at: str) -> Any:
        self.reads.append(at)
        found: RecordPage | Exception
        found = next((play(self.pages, at) for number, play in self.plays if number == len(self.reads)), Exception())
        if type(found) is Exception:
            found = self.pages.read(at)
        if isinstance(found, Exception):
            return consumer_events.ReadFailed(visit, Raised.of(found))
        return consumer_events.PageRead(visit, found, 0.0)

    @property
    def keys(self) -> list[str]:
        return [str(record.key["id"]) for record in self.delivered]


def all_of(run: Run) -> Callable[[], bool]:
    machine = run.machine
    return lambda: machine.position == Position("a@20") and machine.phase is Phase.WAITING and machine.reason is None


FIRST_READS = [
    (name, first)
    for name in PLAYS
    for first in (1, 2, 4, 7)
    if first > 1 or "page of another shard" not in name  # nothing tells that one from an honest first page
]


@pytest.mark.parametrize("start", [TRIM_HORIZON, "a@0"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("name", "first"), FIRST_READS)
def test_a_page_in_doubt_loses_nothing_and_delivers_nothing_twice(
    name: str, first: int, times: int, start: str
) -> None:
    run = Run(plays=[(first + number, PLAYS[name]) for number in range(times)], start=start)
    run.until(all_of(run))

    assert run.keys == [f"a{number}" for number in range(20)]
    assert set(run.causes) <= {Cause.NO_PROGRESS}
    assert run.machine.reason is None


@pytest.mark.parametrize("name", PLAYS)
def test_no_position_is_permitted_before_or_after_what_was_processed(name: str) -> None:
    """But one that a page named which was honest but for that: the next page corrects it."""
    run = Run(plays=[(4, PLAYS[name]), (6, PLAYS[name])])
    run.until(all_of(run))
    named = {"a@0", "b@0"} if "leads" in name else set()
    # A position is permitted as the last call with records before it begins.
    wrong = [text for text, count in run.permitted if text not in {f"a@{count}", f"a@{min(20, count + PAGE_RECORDS)}"}]

    assert set(wrong) <= named
    assert run.permitted[-1][0] == "a@20"


@pytest.mark.parametrize("name", PLAYS)
def test_a_batch_that_was_prepared_is_made_again_as_it_was(name: str) -> None:
    last = SequenceInfo(1, 80, 0)
    pending = PendingCheckpoint("a@8", b"", 8, 1, last)
    run = Run(plays=[(2, PLAYS[name]), (3, PLAYS[name]), (5, PLAYS[name])], pending=pending)
    run.until(all_of(run))

    assert run.keys == [f"a{number}" for number in range(20)]
    assert 8 in {sum(run.batches[:number]) for number in range(len(run.batches))}


def test_pauses_grow_while_the_service_goes_on_like_that_and_the_shard_is_named_until_it_ends() -> None:
    run = Run(plays=[(number, PLAYS["a page that leads to the beginning"]) for number in range(3, 33)])
    run.until(lambda: len(run.pauses) > 15)
    pauses = [pause for pause in run.pauses if pause]

    assert pauses == sorted(pauses, key=lambda pause: round(pause / 0.5) if pause < 10 else 100)
    assert pauses[-1] > 1.0
    assert run.machine.reason is not None
    assert run.keys == [f"a{number}" for number in range(len(run.delivered))]


def test_the_place_of_the_last_record_may_have_left_the_stream() -> None:
    """Then reading goes on where it was, and no loss is told."""

    def gone(pages: Pages, at: str) -> Exception:
        assert at == "a@3"
        return TrimmedDataException("past the retention")

    run = Run(plays=[(3, PLAYS["the first page again"]), (4, gone)])
    run.until(all_of(run))

    assert run.keys == [f"a{number}" for number in range(20)]
    assert run.reads[:5] == [TRIM_HORIZON, "a@3", "a@6", "a@3", "a@6"]


def test_an_end_in_doubt_is_not_asked_for() -> None:
    """A page of another shard that ended, all of whose records are old."""
    ended = RecordPage(Pages().read("b@0").records, Position.SHARD_END)
    run = Run(plays=[(3, lambda pages, at: ended)])
    run.until(all_of(run))

    assert run.keys == [f"a{number}" for number in range(20)]


def test_the_way_back_may_have_smaller_pages_and_ends_with_the_last_record_itself() -> None:
    trail = ReadTrail()
    places = [SequenceInfo(1, number, 0) for number in range(10)]
    trail.take("i0", places[4])

    def judge(asked: str, following: str, numbers: range) -> Any:
        return trail.judge(asked, following, len(numbers), lambda index: places[numbers[index]])

    assert judge("i5", "i9", range(2, 9)).why
    assert trail.turn("i5") == "i0"
    assert judge("i0", "i2", range(2)).is_way
    assert judge("i2", "i7", range(2, 7)).taken == 3
    assert not judge("i2", "i7", range(2, 7)).is_way
    assert judge("i2", "i7", range(0)).why, "there are records"
    assert judge("i2", "i9", range(5, 9)).why, "it does not have the last one"
    assert trail.turn("i2") == "i5", "perhaps that was right"
    assert not judge("i5", "i9", range(5, 9)).why
    assert trail.turn("i5") == "i0"


def test_full_data_has_no_way_back() -> None:
    trail = ReadTrail()
    row = SequenceInfo(0, 0, 0)
    trail.take("t0", row)

    assert not trail.judge("t1", "t2", 1, lambda index: row).why
    assert trail.turn("t1") == "t1"
