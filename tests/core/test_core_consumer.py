"""The machine of one shard's consumer by itself: events in, commands out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from streamclient.base.position import Position
from streamclient.base.reasons import Cause, Raised, Reason
from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ConsumerCommand, Told
from streamclient.core.consumer.machine import _BEGINNINGS, ConsumerMachine
from streamclient.core.consumer.pauses import MOST_EAGER_READS
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, StartConsumer
from streamclient.model import OnFailure, ParkedRecord, PendingCheckpoint, Progress, ShardInfo, ShutdownReason
from streamclient.tablestore import RecordPage
from streamclient.worker.parking import MemoryParkingStore
from tests.placed_records import make_record

PAGE = RecordPage([make_record("k1", 1), make_record("k2", 2)], Position("i2"), may_more_record=True, body_bytes=20)
LAST = RecordPage([make_record("k3", 3)], Position.SHARD_END)


class Driven:
    """A machine, and what it said last."""

    def __init__(
        self,
        *,
        start: str = "i0",
        moves_when_idle: bool = False,
        pending: PendingCheckpoint | None = None,
        **config: Any,
    ) -> None:
        self.machine = ConsumerMachine(
            StartConsumer(ShardInfo("s", "stream", frozenset(), "t1"), start, pending),
            ClientConfig(**config),
            random.Random(1),
            record_id=lambda record: str(record.key),
            key_text=str,
            moves_when_idle=moves_when_idle,
        )
        self.said: Sequence[ConsumerCommand] = ()

    def hear(self, *heard: consumer_events.ConsumerEvent) -> list[str]:
        """Let events happen; the names of the commands that followed from the last one."""
        for event in heard:
            self.said = self.machine.handle(event, 100.0)
        return [type(command).__name__ for command in self.said]

    def read(self, page: RecordPage) -> list[str]:
        return self.hear(consumer_events.PageRead(self.machine.visit, page, 100.0))


@pytest.fixture
def driven() -> Driven:
    """It reads its first page."""
    driven = Driven()
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    return driven


def test_every_phase_begins_with_one_piece_of_work() -> None:
    assert set(_BEGINNINGS) == set(Phase)


def test_a_shard_is_read_to_its_end() -> None:
    driven = Driven()

    assert driven.hear(consumer_events.Began()) == ["NewProcessor", "Initialize"]
    assert driven.hear(consumer_events.CallReturned(value=True)) == ["Read"]
    assert driven.read(PAGE) == ["ReadAhead", "Permit", "ProcessRecords"]
    assert driven.hear(consumer_events.CallReturned()) == ["Tell", "PageDone", "Read"]
    assert driven.said[-1] == consumer_events.Read(driven.machine.visit, Position("i2"))
    assert driven.read(LAST) == ["ConfirmEnd"]
    assert driven.hear(consumer_events.EndJudged(driven.machine.visit, is_shown=True)) == [
        "ReadAhead",
        "Permit",
        "ProcessRecords",
    ]
    assert driven.hear(consumer_events.CallReturned())[-2:] == ["DropReading", "ShutDown"]
    assert driven.said[-1] == consumer_events.ShutDown(ShutdownReason.TERMINATE)
    driven.hear(
        consumer_events.CheckpointAsked(), consumer_events.CheckpointAnswered(CheckpointOutcome.STORED, "SHARD_END")
    )
    assert driven.hear(consumer_events.CallReturned()) == ["CloseCheckpoints", "Ended"]
    assert driven.said[-1] == consumer_events.Ended(ConsumerEnd.SHARD_END)


def test_nothing_is_read_ahead_after_a_page_that_a_pause_follows(driven: Driven) -> None:
    """It would be old when it is taken, and what comes during the pause would wait for one more."""
    driven.read(PAGE)
    driven.hear(consumer_events.CallReturned())
    driven.read(RecordPage([], Position("i3"), may_more_record=False))
    driven.hear(consumer_events.TimeCame(driven.machine.visit))

    assert driven.read(RecordPage([make_record("k3", 3)], Position("i4"))) == ["Permit", "ProcessRecords"]
    assert driven.hear(consumer_events.CallReturned())[-1] == "Wait"


def test_a_stop_is_obeyed_by_one_whose_processor_could_not_be_made_meanwhile() -> None:
    """It would try to make processors until the worker gives up waiting for it."""
    driven = Driven()
    driven.hear(consumer_events.Began(), consumer_events.StopAsked(ShutdownReason.STOLEN))

    assert driven.hear(consumer_events.CallReturned(Raised.of(OSError("no destination")), value=False))[-1] == "Ended"
    assert driven.said[-1] == consumer_events.Ended(ConsumerEnd.STOPPED)


@pytest.mark.parametrize(
    "late",
    [consumer_events.PageRead, consumer_events.ReadFailed, consumer_events.FirstLeftFound, consumer_events.TimeCame],
)
def test_what_answers_an_earlier_visit_means_nothing(driven: Driven, late: Any) -> None:
    """Of a read that was dropped, or a pause that a stop ended."""
    visit = driven.machine.visit
    driven.hear(consumer_events.StopAsked(ShutdownReason.STOLEN))
    answer = {
        consumer_events.PageRead: (PAGE, 100.0),
        consumer_events.ReadFailed: (Raised.of(OSError()),),
        consumer_events.FirstLeftFound: (None,),
    }

    assert driven.hear(late(visit, *answer.get(late, ()))) == []
    assert driven.machine.phase is Phase.CLOSING


def test_only_the_pause_of_a_shard_without_news_may_end_a_little_sooner(driven: Driven) -> None:
    """Pauses after failures are as long as they were said to be."""
    driven.read(RecordPage([], Position("i1"), may_more_record=False))
    (idle,) = [command for command in driven.said if isinstance(command, consumer_events.Wait)]
    driven.hear(consumer_events.TimeCame(driven.machine.visit))
    driven.hear(consumer_events.ReadFailed(driven.machine.visit, Raised.of(ConnectionError("reset"))))
    (failed,) = [command for command in driven.said if isinstance(command, consumer_events.Wait)]

    assert idle.is_idle
    assert not failed.is_idle


def test_after_a_small_page_it_pauses_while_reads_at_once_find_nothing(driven: Driven) -> None:
    """It goes on at the page's end, and does not say that it has caught up: the service hints at more."""
    small = RecordPage([make_record("k3", 3)], Position("i3"), may_more_record=True, body_bytes=20)
    driven.read(PAGE)
    assert driven.hear(consumer_events.CallReturned())[-1] == "Read"
    driven.read(RecordPage([], Position("i2"), may_more_record=False))
    driven.hear(consumer_events.TimeCame(driven.machine.visit))

    driven.read(small)
    assert driven.hear(consumer_events.CallReturned()) == ["Tell", "PageDone", "Wait"]
    (wait,) = [command for command in driven.said if isinstance(command, consumer_events.Wait)]
    assert wait.is_idle
    assert 0.0 < wait.seconds <= 0.015
    assert driven.hear(consumer_events.TimeCame(driven.machine.visit)) == ["Read"]
    assert driven.said[-1] == consumer_events.Read(driven.machine.visit, Position("i3"))


def test_a_call_that_no_thread_began_is_taken_back_and_its_position_with_it(driven: Driven) -> None:
    driven.read(PAGE)
    assert driven.hear(consumer_events.StopAsked(ShutdownReason.STOLEN)) == ["TakeBack"]
    assert driven.hear(consumer_events.CallTakenBack()) == ["Retract", "DropReading", "ShutDown"]


def test_a_stop_never_interrupts_a_call_and_is_obeyed_when_it_returned(driven: Driven) -> None:
    driven.read(PAGE)
    driven.hear(consumer_events.StopAsked(ShutdownReason.STOLEN))

    assert driven.hear(consumer_events.CallReturned()) == ["Tell", "PageDone", "DropReading", "ShutDown"]
    assert driven.said[-1] == consumer_events.ShutDown(ShutdownReason.STOLEN)


def test_a_mark_of_a_processor_that_was_replaced_means_nothing(driven: Driven) -> None:
    driven.read(PAGE)
    driven.hear(consumer_events.CallReturned(Raised.of(ValueError("no"))))
    driven.hear(consumer_events.CallReturned())  # shutdown
    driven.hear(consumer_events.TimeCame(driven.machine.visit), consumer_events.CallReturned(value=True))

    assert driven.hear(consumer_events.Marked(1, ShutdownReason.PROCESS_DONE)) == []
    assert driven.hear(consumer_events.Marked(2, ShutdownReason.PROCESS_DONE))[-1] == "ShutDown"


# --- pages without records ------------------------------------------------------------------------------------------


def told(driven: Driven) -> list[Told]:
    """What was told of the shard in answer to the last event."""
    return [command.what for command in driven.said if isinstance(command, consumer_events.Tell)]


@pytest.mark.parametrize("hint", [None, True, False])
def test_pages_that_skip_a_part_of_a_stream_never_count_as_caught_up(driven: Driven, hint: bool | None) -> None:
    """However many there are, and whatever they hint. The first page whose position stays does."""
    for number in range(1, 2 * MOST_EAGER_READS):
        driven.read(RecordPage([], Position(f"i{number}"), may_more_record=hint))
        assert told(driven) == [Told.MAY_FOLLOW]
        if driven.machine.phase is Phase.WAITING:
            driven.hear(consumer_events.TimeCame(driven.machine.visit))

    driven.read(RecordPage([], driven.machine.position, may_more_record=hint))
    assert told(driven) == [Told.CAUGHT_UP]


def test_the_oldest_position_is_no_iterator_that_could_stay() -> None:
    driven = Driven(start="TRIM_HORIZON")
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    driven.read(RecordPage([], Position("i1")))
    first = told(driven)
    driven.hear(consumer_events.TimeCame(driven.machine.visit))
    driven.read(RecordPage([], Position("i1")))

    assert (first, told(driven)) == ([Told.MAY_FOLLOW], [Told.CAUGHT_UP])


@pytest.mark.parametrize("hint", [None, False])
def test_a_channel_whose_token_moves_with_time_is_caught_up(hint: bool | None) -> None:
    driven = Driven(moves_when_idle=True)
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    driven.read(RecordPage([], Position("i1"), may_more_record=hint))

    assert told(driven) == [Told.CAUGHT_UP]


def test_the_hint_of_a_channel_is_believed_as_long_as_it_is_followed_at_once() -> None:
    driven = Driven(moves_when_idle=True)
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    for number in range(MOST_EAGER_READS):
        driven.read(RecordPage([], Position(f"i{number + 1}"), may_more_record=True))
        assert told(driven) == [Told.MAY_FOLLOW]
        driven.hear(consumer_events.TimeCame(driven.machine.visit))

    driven.read(RecordPage([], Position("i0"), may_more_record=True))
    assert told(driven) == [Told.CAUGHT_UP]


def test_an_empty_batch_that_fails_is_not_parked_but_given_to_a_new_processor() -> None:
    policy = FailurePolicy(retries=0, then=OnFailure.PARK, parking=MemoryParkingStore())
    driven = Driven(deliver_empty_batches=True, failure_policy=policy)
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    assert driven.read(RecordPage([], Position("i1")))[-1] == "AskParkedKeys"
    assert driven.hear(consumer_events.CallReturned(value=[]))[-1] == "ProcessRecords"

    assert driven.hear(consumer_events.CallReturned(Raised.of(OSError("flush"))))[-1] == "ShutDown"
    assert driven.said[-1] == consumer_events.ShutDown(ShutdownReason.PROCESS_RESTART)
    assert driven.hear(consumer_events.CallReturned())[-1] == "Wait"
    assert driven.hear(consumer_events.TimeCame(driven.machine.visit))[-2:] == ["NewProcessor", "Initialize"]


# --- pages that cannot be true ---------------------------------------------------------------------------------------


def test_an_end_is_believed_only_once_it_is_shown_and_moves_nothing_before(driven: Driven) -> None:
    assert driven.read(LAST) == ["ConfirmEnd"]
    refused = driven.hear(consumer_events.EndJudged(driven.machine.visit, is_shown=False, detail="no child"))
    assert refused == ["DropReading", "Wait"]
    assert driven.machine.phase is Phase.WAITING
    assert driven.machine.reason == Reason(Cause.END_NOT_SHOWN, detail="no child (once)")
    assert driven.hear(consumer_events.TimeCame(driven.machine.visit)) == ["Read"]
    assert driven.said[-1] == consumer_events.Read(driven.machine.visit, Position("i0"))
    driven.read(LAST)
    assert driven.hear(consumer_events.EndJudged(driven.machine.visit, is_shown=True)) == [
        "ReadAhead",
        "Permit",
        "ProcessRecords",
    ]
    assert driven.machine.reason is None


def test_pauses_before_an_end_that_is_not_shown_grow_to_a_bound_and_end_when_it_is_shown_late(driven: Driven) -> None:
    pauses = []
    for _ in range(12):
        driven.read(LAST)
        asked = driven.machine.visit
        driven.hear(consumer_events.EndJudged(asked, is_shown=False))
        pauses += [command.seconds for command in driven.said if isinstance(command, consumer_events.Wait)]
        if len(pauses) < 12:
            driven.hear(consumer_events.TimeCame(driven.machine.visit))

    assert pauses[0] <= 0.1
    assert 10.0 <= max(pauses) <= 20.0
    assert driven.hear(consumer_events.EndJudged(asked, is_shown=True)) == ["Read"]


def test_what_is_said_of_an_end_after_a_stop_means_nothing(driven: Driven) -> None:
    driven.read(LAST)
    visit = driven.machine.visit
    driven.hear(consumer_events.StopAsked(ShutdownReason.STOLEN))

    assert driven.hear(consumer_events.EndJudged(visit, is_shown=True)) == []
    assert driven.machine.closing is ShutdownReason.STOLEN


def test_a_new_processor_begins_before_what_the_last_one_took(driven: Driven) -> None:
    driven.read(PAGE)
    driven.hear(consumer_events.CallReturned())
    driven.read(RecordPage([make_record("k3", 3)], Position("i3")))
    driven.hear(consumer_events.CallReturned(Raised.of(ValueError("no"))), consumer_events.CallReturned())
    driven.hear(consumer_events.TimeCame(driven.machine.visit), consumer_events.CallReturned(value=True))

    assert driven.read(PAGE) == ["ReadAhead", "Permit", "ProcessRecords"]


# --- records that were set aside at the end --------------------------------------------------------------------------

IDLE = RecordPage([], Position("i2"), may_more_record=False)
PARKED = ParkedRecord(
    record_id="k1",
    stream_id="stream",
    shard_id="s",
    record=make_record("k1", 1),
    position="i0",
    index=0,
    generation=1,
    error="bad",
    traceback="",
    attempts=1,
    parked_micros=1,
)


def parking(**start: Any) -> Driven:
    """It parks the last record of its shard, whose batch failed."""
    policy = FailurePolicy(retries=0, then=OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0)
    driven = Driven(failure_policy=policy, **start)
    driven.hear(consumer_events.Began(), consumer_events.CallReturned(value=True))
    driven.read(RecordPage([make_record("k1", 1)], Position("i2"), may_more_record=False))
    driven.hear(consumer_events.CallReturned(value=[]))
    assert driven.hear(consumer_events.CallReturned(Raised.of(OSError("bad"))))[-1] == "Park"
    return driven


def store(driven: Driven, outcome: CheckpointOutcome) -> None:
    driven.hear(
        consumer_events.CheckpointAsked(),
        consumer_events.CheckpointAnswered(outcome, "i2", Progress(record_micros=1, records=1, bytes=0)),
    )


def idle(driven: Driven) -> list[str]:
    driven.hear(consumer_events.TimeCame(driven.machine.visit))
    return driven.read(IDLE)


def test_the_position_after_parked_records_is_to_be_stored_until_it_is_stored() -> None:
    driven = parking()
    said = driven.hear(consumer_events.CallReturned(value=[PARKED]))
    assert said[-4:] == ["Permit", "Tell", "StoreSetAside", "Wait"]
    driven.hear(consumer_events.CheckpointAsked())
    assert "StoreSetAside" not in idle(driven), "the request is under way"
    driven.hear(consumer_events.CheckpointAnswered(CheckpointOutcome.UNKNOWN, "i2"))
    assert "StoreSetAside" in idle(driven)
    store(driven, CheckpointOutcome.STORED)
    assert "StoreSetAside" not in idle(driven)


def test_the_position_stays_before_a_batch_that_an_earlier_processor_prepared() -> None:
    """A new processor must find it, and find its batch as it was."""
    driven = parking(pending=PendingCheckpoint("i2", b"", 1, 1))
    driven.hear(consumer_events.CallReturned(value=[PARKED]))

    assert driven.read(IDLE) == ["Permit", "Tell", "Wait"]
    assert told(driven) == [Told.CAUGHT_UP]
