"""Operators' orders to take records out of a shard: what a consumer makes of them, and when one is obeyed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.base.position import Position
from streamclient.base.reasons import Cause, Raised
from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer import consumer_events as facts
from streamclient.core.consumer.consumer_positions import HandedOutPositions
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.page import failure_of
from streamclient.core.consumer.record_orders import RecordOrders
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, Severity, StartConsumer
from streamclient.model import CheckpointPosition, OnFailure, ParkedRecord, RecordOrder, ShardInfo, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.tablestore import RecordPage
from streamclient.worker.parking import MemoryParkingStore
from tests.placed_records import make_record

START = "p0"
BAD = Raised.of(ValueError("bad"))


def id_of(record: StreamRecord) -> str:
    return f"{record.sequence_info.timestamp_micros:04}"


def record(number: int) -> StreamRecord:
    return make_record(f"k{number}", number)


def order(*numbers: int, name: str = "o1", is_skip: bool = True) -> RecordOrder:
    ids = tuple(f"{number:04}" for number in numbers)
    return RecordOrder(name, "ann", "bad data", 1, 10**15, ids, "" if is_skip else "parked")


class Shard:
    """A machine with what a worker is around it: pages of a closed shard, a processor that fails for some records."""

    def __init__(
        self, size: int, page: int, *orders: RecordOrder, failing: Sequence[int] = (), stored: int = 0, **policy: Any
    ) -> None:
        self.size, self.page, self.failing = size, page, {*failing}
        policy = {"retries": 0, "first_pause_millis": 0, "then": OnFailure.STOP_SHARD, **policy}
        start = StartConsumer(ShardInfo("s", "stream", frozenset(), "t1"), f"p{stored}", orders=orders)
        config = ClientConfig(failure_policy=FailurePolicy(**policy))
        self.machine = ConsumerMachine(start, config, random.Random(1), record_id=id_of, key_text=str)
        self.is_open = False
        self.may_store: Callable[[], bool] = lambda: True
        self.given: list[int] = []
        """The numbers of all records that the processor was given."""
        self.accepted: list[int] = []
        self.parked: list[int] = []
        self.ended: list[tuple[str, int, str]] = []
        """Name and count of each order that ended, with the checkpoint at that time."""
        self.withdrawn: list[tuple[str, int]] = []
        """Name and count of each order that was withdrawn."""
        self.logged: list[str] = []
        self.end: ConsumerEnd | None = None
        self._waiting: list[facts.ConsumerEvent] = []
        self._positions = HandedOutPositions("s", START)

    def run(self, *heard: facts.ConsumerEvent) -> Shard:
        """Let events happen, and all that follows, until nothing is left to do."""
        self._waiting += heard or [facts.Began()]
        for _ in range(10_000):
            if not self._waiting:
                return self
            for command in self.machine.handle(self._waiting.pop(0), 100.0):
                self._carry_out(command)
        raise AssertionError(f"{self.machine!r} comes to no rest")

    def _carry_out(self, command: facts.ConsumerCommand) -> None:
        match command:
            case facts.NewProcessor():
                self._positions = HandedOutPositions("s", command.initial, command.progress)
            case facts.Initialize():
                self._waiting.append(facts.CallReturned(value=True))
            case facts.Read(visit, position):
                self._waiting.append(facts.PageRead(visit, self._read(position), 100.0))
            case facts.ConfirmEnd(visit):
                self._waiting.append(facts.EndJudged(visit, is_shown=True))
            case facts.Wait(visit, _, is_idle) if not is_idle:
                self._waiting.append(facts.TimeCame(visit))
            case facts.ProcessRecords(records):
                self._process([number_of(each) for each in records])
            case facts.Park():
                self._park(command)
            case facts.AskParkedKeys():
                self._waiting.append(facts.CallReturned(value=[]))
            case facts.ShutDown(reason):
                if reason is ShutdownReason.TERMINATE:
                    self.checkpoint()
                self._waiting.append(facts.CallReturned())
            case _:
                self._note(command)

    def _note(self, command: facts.ConsumerCommand) -> None:
        match command:
            case facts.Permit(position, progress, last):
                self._positions.permit(position, progress, last)
            case facts.Retract():
                self._positions.retract()
            case facts.OrderEnded(ended, taken, is_withdrawn=True):
                self.withdrawn.append((ended.request_id, taken))
            case facts.OrderEnded(ended, taken):
                self.ended.append((ended.request_id, taken, self.machine.stored))
            case facts.LogLine(Severity.WARNING, text):
                self.logged.append(text)
            case facts.Ended(end):
                self.end = end

    def _read(self, position: Position) -> RecordPage:
        start = 0 if not position.is_iterator else int(position.text[1:])
        end = min(start + self.page, self.size)
        is_end = end == self.size and not self.is_open
        records = [record(number) for number in range(start, end)]
        return RecordPage(records, Position.SHARD_END if is_end else Position(f"p{end}"), end < self.size, len(records))

    def _process(self, numbers: list[int]) -> None:
        self.given += numbers
        if self.failing & {*numbers}:
            self._waiting.append(facts.CallReturned(BAD))
            return
        self.accepted += numbers
        if self.may_store():
            self.checkpoint()
        self._waiting.append(facts.CallReturned())

    def checkpoint(self) -> None:
        """Store the position that the processor may store now."""
        stored = self._positions.resolve(None)
        self._positions.requested(stored)
        answer = facts.CheckpointAnswered(CheckpointOutcome.STORED, stored.text, stored.progress)
        self._waiting += [facts.CheckpointAsked(), answer]

    def _park(self, command: facts.Park) -> None:
        parked = [parked_record(command, number) for number in range(len(command.indices))]
        self.parked += [number_of(each.record) for each in parked]
        self._waiting.append(facts.CallReturned(value=parked))


def number_of(each: StreamRecord) -> int:
    return each.sequence_info.timestamp_micros


def parked_record(command: facts.Park, number: int) -> ParkedRecord:
    index, failure = command.indices[number], command.failure
    each = command.page.records[index]
    return ParkedRecord(id_of(each), "stream", "s", each, command.position, index, 1, failure.error, "", 0, 1)


def page_of(size: int) -> RecordPage:
    return RecordPage([record(number) for number in range(size)], Position(f"p{size}"), True, size)


def having_read(shard: Shard) -> tuple[ConsumerMachine, list[facts.ConsumerCommand]]:
    """The machine of a shard whose processor has begun and whose only page came, and what the page led to."""
    machine = shard.machine
    for event in (facts.Began(), facts.CallReturned(value=True)):
        machine.handle(event, 100.0)
    return machine, [*machine.handle(facts.PageRead(machine.visit, page_of(shard.size), 100.0), 100.0)]


# --- a page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_skip", [True, False])
def test_named_records_are_never_delivered_and_the_others_are(is_skip: bool) -> None:
    shard = Shard(10, 4, order(1, 6, is_skip=is_skip)).run()

    assert shard.accepted == [0, 2, 3, 4, 5, 7, 8, 9]
    assert shard.given == shard.accepted
    assert shard.parked == ([] if is_skip else [1, 6])
    assert shard.end is ConsumerEnd.SHARD_END


def test_a_page_of_named_records_alone_is_passed_without_a_call_and_its_end_may_be_stored() -> None:
    shard = Shard(6, 2, order(2, 3)).run()

    assert shard.accepted == [0, 1, 4, 5]
    assert shard.ended == [("o1", 2, "SHARD_END")]


def test_an_order_is_logged_once_with_all_that_it_names() -> None:
    shard = Shard(6, 2, order(1, 3, is_skip=False)).run()

    assert shard.logged == ["shard s: parks 2 records by order of ann: bad data: 0001, 0003"]


def test_of_two_orders_for_a_record_the_later_one_counts() -> None:
    """So a record can be dropped whose parking store does not work."""
    shard = Shard(3, 3, order(1, is_skip=False), order(1, name="o2")).run()

    assert (shard.parked, shard.accepted) == ([], [0, 2])


def test_several_orders_in_one_page_are_parked_one_after_the_other() -> None:
    shard = Shard(6, 6, order(1, 4, is_skip=False), order(2, name="o2", is_skip=False), order(3, name="o3")).run()

    assert shard.parked == [1, 4, 2]
    assert shard.accepted == [0, 5]


# --- halts, pauses and failures --------------------------------------------------------------------------------------


def test_a_halt_names_its_record_and_an_order_for_it_ends_the_halt() -> None:
    shard = Shard(10, 5, failing=[3]).run()
    assert shard.machine.phase is Phase.HALTED
    assert shard.machine.reason is not None
    assert shard.machine.reason.record_id == "0003"

    shard.run(facts.OrdersGiven((order(3, is_skip=False),)))
    assert shard.end is ConsumerEnd.SHARD_END
    assert shard.parked == [3]
    assert sorted({*shard.accepted}) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_an_order_for_another_record_does_not_end_a_halt() -> None:
    shard = Shard(10, 5, failing=[3]).run().run(facts.OrdersGiven((order(7),)))

    assert shard.machine.phase is Phase.HALTED


def test_a_second_halt_in_the_same_page_needs_a_second_order_and_the_first_one_still_holds() -> None:
    """Nothing of the page is stored before its last record: after the second halt, the first record comes again."""
    shard = Shard(6, 6, failing=[1, 4]).run()
    shard.run(facts.OrdersGiven((order(1),)))
    assert shard.machine.reason is not None
    assert shard.machine.reason.record_id == "0004"
    assert shard.ended == []

    shard.run(facts.OrdersGiven((order(1), order(4, name="o2"))))
    assert shard.end is ConsumerEnd.SHARD_END
    assert [name for name, _, _ in shard.ended] == ["o1", "o2"]


def test_a_batch_that_is_not_cut_names_no_single_record() -> None:
    shard = Shard(6, 6, failing=[1], bisect=False).run()
    assert shard.machine.reason is not None
    assert shard.machine.reason.record_id == ""

    assert shard.run(facts.OrdersGiven((order(1),))).end is ConsumerEnd.SHARD_END


def test_a_loss_is_not_decided_by_an_order() -> None:
    shard = Shard(6, 6, failing=[1]).run()
    shard.machine.lost = object()  # type: ignore[assignment]  # that there is one is enough

    shard.run(facts.OrdersGiven((order(1),)))
    assert shard.machine.phase is Phase.HALTED


def test_an_order_ends_the_pause_before_a_failing_record_is_tried_again() -> None:
    shard = Shard(6, 6, failing=[1], retries=5, first_pause_millis=1_000)
    machine, _ = having_read(shard)
    machine.handle(facts.CallReturned(BAD), 100.0)
    assert machine.phase is Phase.WAITING

    said = machine.handle(facts.OrdersGiven((order(1),)), 100.0)
    (call,) = [command for command in said if isinstance(command, facts.ProcessRecords)]
    assert [number_of(each) for each in call.records] == [0, 2, 3, 4, 5]


def test_an_order_that_comes_during_the_last_call_takes_the_record_out_instead_of_stopping() -> None:
    shard = Shard(1, 1, failing=[0])
    machine, _ = having_read(shard)
    machine.handle(facts.OrdersGiven((order(0),)), 100.0)

    machine.handle(facts.CallReturned(BAD), 100.0)
    assert machine.phase is Phase.READING


def test_an_order_starts_a_processor_that_waits_after_a_failure() -> None:
    shard = Shard(4, 4, then=OnFailure.RESTART, failing=[2])
    machine, _ = having_read(shard)
    for event in (facts.CallReturned(BAD), facts.CallReturned()):
        machine.handle(event, 100.0)
    assert machine.phase is Phase.BACKING_OFF

    machine.handle(facts.OrdersGiven((order(2),)), 100.0)
    assert machine.phase is Phase.STARTING


def test_an_order_whose_store_fails_is_replaced_by_one_that_drops_the_record() -> None:
    shard = Shard(3, 3, order(1, is_skip=False))
    machine, _ = having_read(shard)
    machine.handle(facts.CallReturned(Raised.of(OSError("no such directory"))), 100.0)
    assert machine.reason is not None
    assert machine.reason.cause is Cause.PARKING_FAILED

    said = machine.handle(facts.OrdersGiven((order(1, is_skip=False), order(1, name="o2"))), 100.0)
    (call,) = [command for command in said if isinstance(command, facts.ProcessRecords)]
    assert [number_of(each) for each in call.records] == [0, 2]


def test_parking_by_order_does_not_count_as_a_failure_of_records() -> None:
    """The share is the net under a destination that fails for everything."""
    policy = {"then": OnFailure.PARK, "parking": MemoryParkingStore(), "most_parked_share": 0.1}
    shard = Shard(20, 20, order(*range(10), is_skip=False), share_window_records=10, **policy).run()

    assert shard.parked == list(range(10))
    assert shard.end is ConsumerEnd.SHARD_END


def test_a_halt_for_too_many_parked_records_ends_with_the_count() -> None:
    """What was parked before the halt comes again, and follows its key untried: it must not stop the shard again."""
    policy = {"then": OnFailure.PARK, "parking": MemoryParkingStore(), "most_parked_share": 0.1}
    shard = Shard(6, 6, failing=[1, 3], share_window_records=10, **policy).run()
    assert shard.machine.reason is not None
    assert (shard.machine.reason.cause, shard.machine.reason.record_id) == (Cause.PARKED_SHARE, "0003")

    shard.run(facts.OrdersGiven((order(3, is_skip=False),)))
    assert shard.end is ConsumerEnd.SHARD_END
    assert shard.parked == [1, 3, 1]


# --- the end of an order ---------------------------------------------------------------------------------------------


def test_an_order_ends_with_the_checkpoint_after_its_records_and_not_before() -> None:
    shard = Shard(10, 2, order(2))
    stores = iter([False, False, False, True, True])
    shard.may_store = lambda: next(stores)
    shard.run()

    assert shard.ended == [("o1", 1, "p8")]


def test_an_order_for_records_before_the_checkpoint_ends_at_once() -> None:
    shard = Shard(10, 5, order(1), stored=5)
    shard.may_store = lambda: False
    shard.run()

    assert shard.ended[0] == ("o1", 0, "p5")


def test_an_order_ends_where_nothing_follows() -> None:
    """An idle shard whose checkpoint was stored by an owner that died before it could tell."""
    shard = Shard(5, 5, order(4), stored=5)
    shard.is_open = True
    shard.run()

    assert shard.ended == [("o1", 0, "p5")]


def test_an_order_whose_records_never_come_ends_with_the_records_after_them() -> None:
    """They left the stream, or never were in this shard."""
    shard = Shard(10, 2, evolve(order(3), record_ids=("0003x",)))

    assert shard.run().ended == [("o1", 0, "p4")]


def test_orders_that_leave_the_row_are_forgotten() -> None:
    shard = Shard(10, 5, failing=[3]).run()
    orders = RecordOrders([order(3)], id_of)

    assert orders.named_in([record(3)], range(1))
    assert orders.give(()) == ()
    assert not orders.named_in([record(3)], range(1))
    assert shard.machine.phase is Phase.HALTED


# --- an order is withdrawn -------------------------------------------------------------------------------------------


def test_an_order_that_is_withdrawn_before_its_records_came_takes_none_out() -> None:
    shard = Shard(8, 2, order(5, 6), failing=[3]).run()
    shard.run(facts.OrdersGiven(()))
    assert shard.withdrawn == [("o1", 0)]

    shard.run(facts.OrdersGiven((order(3, name="o2"),)))
    assert {*shard.accepted} == {0, 1, 2, 4, 5, 6, 7}
    assert [name for name, _, _ in shard.ended] == ["o2"]
    assert len(shard.withdrawn) == 1


def test_an_order_that_is_withdrawn_in_the_middle_tells_what_it_took_out_which_stays_so() -> None:
    shard = Shard(8, 2, order(1, 6), failing=[3]).run()
    shard.run(facts.OrdersGiven(()))
    assert shard.withdrawn == [("o1", 1)]

    shard.run(facts.OrdersGiven((order(3, name="o2"),)))
    assert {*shard.accepted} == {0, 2, 4, 5, 6, 7}


def test_after_an_order_was_withdrawn_a_reader_at_an_earlier_checkpoint_is_given_its_records() -> None:
    shard = Shard(4, 4, order(1), failing=[3]).run()
    assert 1 not in shard.given

    shard.run(facts.OrdersGiven((order(3, name="o2"),)))
    assert shard.withdrawn == [("o1", 1)]
    assert {*shard.accepted} == {0, 1, 2}


def test_an_order_that_ended_cannot_be_withdrawn() -> None:
    shard = Shard(6, 2, order(1), failing=[3]).run()
    assert [name for name, _, _ in shard.ended] == ["o1"]

    shard.run(facts.OrdersGiven(()))
    assert shard.withdrawn == []


def parking(order_of: RecordOrder) -> ConsumerMachine:
    """A machine of three records that is parking one of them by order."""
    machine, said = having_read(Shard(3, 3, order_of))
    assert [command.indices for command in said if isinstance(command, facts.Park)] == [[1]]
    return machine


def test_a_record_that_is_being_parked_while_its_order_is_withdrawn_counts_as_parked() -> None:
    withdrawn = order(1, is_skip=False)
    machine = parking(withdrawn)
    assert machine.handle(facts.OrdersGiven(()), 100.0) == []

    command = facts.Park(page_of(3), [1], None, Position(START), failure_of(withdrawn), withdrawn)
    said = machine.handle(facts.CallReturned(value=[parked_record(command, 0)]), 100.0)
    assert facts.OrderEnded(withdrawn, 1, is_withdrawn=True) in said
    (call,) = [command for command in said if isinstance(command, facts.ProcessRecords)]
    assert [number_of(each) for each in call.records] == [0, 2]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_record_whose_store_fails_is_delivered_once_its_order_is_withdrawn(is_late: bool) -> None:
    withdrawn = order(1, is_skip=False)
    machine = parking(withdrawn)
    events = [facts.OrdersGiven(()), facts.CallReturned(Raised.of(OSError("no such directory")))]
    said = [command for event in (events[::-1] if is_late else events) for command in machine.handle(event, 100.0)]
    if not is_late:
        said += machine.handle(facts.TimeCame(machine.visit), 100.0)

    assert facts.OrderEnded(withdrawn, 0, is_withdrawn=True) in said
    (call,) = [command for command in said if isinstance(command, facts.ProcessRecords)]
    assert [number_of(each) for each in call.records] == [0, 1, 2]


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 12),
    page=st.integers(1, 5),
    ordered=st.dictionaries(st.integers(0, 11), st.booleans(), max_size=5),
    failing=st.sets(st.integers(0, 11), max_size=3),
    data=st.data(),
)
def test_every_record_is_accepted_or_taken_out_by_an_order(
    size: int, page: int, ordered: dict[int, bool], failing: set[int], data: st.DataObject
) -> None:
    orders = [order(number, name=f"o{number}", is_skip=is_skip) for number, is_skip in ordered.items()]
    shard = Shard(size, page, *orders, failing=[*failing])
    shard.may_store = lambda: data.draw(st.booleans())
    shard.run()
    while shard.machine.phase is Phase.HALTED:
        assert shard.machine.reason is not None
        number = int(shard.machine.reason.record_id)
        ordered[number] = data.draw(st.booleans())
        orders.append(order(number, name=f"o{number}", is_skip=ordered[number]))
        shard.run(facts.OrdersGiven(tuple(orders)))

    left_out = {number for number in ordered if number < size}
    assert shard.end is ConsumerEnd.SHARD_END
    assert {*shard.accepted} == {*range(size)} - left_out
    assert {*shard.parked} == {number for number in left_out if not ordered[number]}
    assert not {*shard.given} & {number for number in left_out if number not in failing}
    assert sorted(name for name, _, _ in shard.ended) == sorted(each.request_id for each in orders)
    for name, _, stored in shard.ended:
        assert stored == CheckpointPosition.SHARD_END or int(stored[1:]) > int(name[1:]) or int(name[1:]) >= size


@given(
    numbers=st.sets(st.integers(0, 30), min_size=1),
    named=st.sets(st.integers(0, 30), max_size=8),
    data=st.data(),
)
def test_exactly_the_named_records_among_those_left_are_found(
    numbers: set[int], named: set[int], data: st.DataObject
) -> None:
    records = [record(number) for number in sorted(numbers)]
    left = sorted(data.draw(st.sets(st.sampled_from(range(len(records))))))
    orders = RecordOrders([order(*sorted(named))] if named else [], id_of)

    found = orders.named_in(records, left)
    assert set(found) == {index for index in left if number_of(records[index]) in named}
