"""Operators' orders about records in the row: given to the consumer, noted in the audit, removed."""

from __future__ import annotations

import pytest
from attrs import evolve
from holdings_driver import Driver, only, row, writes

from streamclient.core import events, leases
from streamclient.core.events import Answered, GiveOrders, NoteOrder, OrderOver
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.model import RecordOrder

LATER = 10**15
ORDER = RecordOrder("o1", "ann", "bad data", 1, LATER, ("0003", "0005"))
OTHER = RecordOrder("o2", "bob", "", 2, LATER, ("0007",), "parked")


def order(driver: Driver, *orders: RecordOrder) -> list[events.Command]:
    """An operator writes orders, and the worker scans."""
    assert driver.land(leases.set_orders(driver.table["a"], orders)) is WriteOutcome.ACCEPTED
    return driver.scan_later()


def obeyed(driver: Driver, which: RecordOrder = ORDER, taken: int = 2) -> list[events.Command]:
    """The consumer has obeyed an order."""
    return driver.settle(driver.send(OrderOver("a", driver.holdings.held["a"].identifier, which, taken)))


def noted(driver: Driver, which: RecordOrder = ORDER, error: Exception | None = None) -> list[events.Command]:
    """The note of its end is answered."""
    note = NoteOrder("a", which, "me", "", 1)
    return driver.settle(driver.send(Answered(note, error=error)))


def test_an_order_reaches_the_consumer_within_a_scan_and_moves_no_counter(driver: Driver) -> None:
    counter = driver.table["a"].counter
    commands = order(driver, ORDER)

    assert [command.orders for command in only(commands, GiveOrders)] == [(ORDER,)]
    assert driver.table["a"].counter == counter
    assert only(driver.scan_later(), GiveOrders) == []


def test_a_consumer_starts_with_the_orders_of_the_row() -> None:
    driver = Driver(row("a", checkpoint="i1", orders=(ORDER,)))

    assert [start.orders for start in only(driver.hold(), events.StartConsumer)] == [(ORDER,)]
    assert only(driver.scan_later(), GiveOrders) == []


def test_an_obeyed_order_is_noted_and_then_leaves_the_row(driver: Driver) -> None:
    order(driver, ORDER)
    (note,) = only(obeyed(driver), NoteOrder)
    assert (note.who, note.outcome) == ("me", "skipped 2 records")
    assert driver.table["a"].orders == (ORDER,)

    commands = noted(driver)
    assert [write.kind for write in writes(commands)] == [WriteKind.END_ORDERS]
    assert driver.table["a"].orders == ()
    assert driver.table["a"].checkpoint == "i1"
    assert [command.orders for command in only(commands, GiveOrders)] == [()]


def test_of_two_obeyed_orders_only_the_one_whose_end_is_noted_leaves_the_row(driver: Driver) -> None:
    order(driver, ORDER, OTHER)
    obeyed(driver)
    obeyed(driver, OTHER, taken=1)
    noted(driver)
    assert driver.table["a"].orders == (OTHER,)

    noted(driver, OTHER)
    assert driver.table["a"].orders == ()


def test_an_order_whose_end_cannot_be_noted_stays_and_is_noted_at_the_next_heartbeat(driver: Driver) -> None:
    order(driver, ORDER)
    (first,) = only(obeyed(driver), NoteOrder)
    commands = noted(driver, error=TimeoutError("busy"))
    assert driver.table["a"].orders == (ORDER,)
    again = [*only(commands, NoteOrder), *only(driver.renew_later(), NoteOrder)]

    assert again[0] == first, "the same audit row is written again"
    noted(driver)
    assert driver.table["a"].orders == ()


def test_an_order_that_came_meanwhile_is_not_removed_with_the_one_before_it(driver: Driver) -> None:
    """Two writers of one column: the owner's write is refused, and repeated on the row as it is."""
    order(driver, ORDER)
    obeyed(driver)
    assert driver.land(leases.set_orders(driver.table["a"], (ORDER, OTHER))) is WriteOutcome.ACCEPTED
    noted(driver)
    driver.renew_later()

    assert driver.table["a"].orders == (OTHER,)


def test_two_operators_do_not_remove_each_others_orders(driver: Driver) -> None:
    seen = driver.table["a"]
    assert driver.land(leases.set_orders(seen, (ORDER,))) is WriteOutcome.ACCEPTED
    assert driver.land(leases.set_orders(seen, (OTHER,))) is WriteOutcome.REFUSED


def test_an_older_scan_does_not_bring_a_removed_order_back(driver: Driver) -> None:
    order(driver, ORDER)
    before = driver.table["a"]
    obeyed(driver)
    driver.now += 6
    driver.send(events.TakeDue())
    driver.now += 1
    noted(driver)
    commands = driver.send(Answered(events.ReadRows(), events.Scan((before,))))

    assert only(commands, GiveOrders) == []
    assert driver.holdings.held["a"].lease.orders == ()


def test_an_order_ends_at_its_time_although_nobody_obeyed_it(driver: Driver) -> None:
    """Its records are past the retention by then."""
    soon = evolve(ORDER, until_micros=777 + 30_000_000)
    order(driver, soon)
    commands = [command for _ in range(5) for command in driver.renew_later()]
    (note,) = only(commands, NoteOrder)
    assert "its time was over" in note.outcome

    noted(driver, soon)
    assert driver.table["a"].orders == ()


def test_an_order_of_a_finished_shard_leaves_the_row(driver: Driver) -> None:
    order(driver, ORDER)
    assert only(driver.settle(driver.checkpoint("a", "SHARD_END")), NoteOrder) == [], "its consumer may still tell"
    commands = driver.settle(driver.stopped("a", events.ConsumerEnd.SHARD_END))
    assert [note.outcome for note in only(commands, NoteOrder)] == ["not obeyed by this worker: the shard is finished"]

    noted(driver)
    assert driver.table["a"].orders == ()


def test_an_order_survives_its_owner_and_a_restart_at_an_earlier_checkpoint(driver: Driver) -> None:
    """A rewind before its records: what was obeyed has to be obeyed again."""
    order(driver, ORDER)
    obeyed(driver)
    old = driver.holdings.held["a"].identifier
    assert driver.land(leases.rewind(driver.table["a"], "i0")) is WriteOutcome.ACCEPTED
    driver.renew_later()
    noted(driver)
    driver.renew_later()
    assert driver.table["a"].orders == (ORDER,)

    commands = driver.settle(driver.stopped("a", identifier=old))
    assert [start.orders for start in only(commands, events.StartConsumer)] == [(ORDER,)]


def test_what_a_consumer_says_that_was_replaced_means_nothing(driver: Driver) -> None:
    order(driver, ORDER)

    assert only(driver.settle(driver.send(OrderOver("a", "gone", ORDER, 2))), NoteOrder) == []


@pytest.mark.parametrize("taken", [0, 1])
def test_the_note_says_how_many_records_this_worker_took_out(driver: Driver, taken: int) -> None:
    order(driver, ORDER)
    (note,) = only(obeyed(driver, taken=taken), NoteOrder)

    assert note.outcome == f"skipped {taken} of 2 records; the others were passed before this worker read the shard"


def test_a_row_that_was_reset_gets_its_orders_back(driver: Driver) -> None:
    order(driver, ORDER)
    known = driver.holdings.held["a"].lease
    restored = leases.restore(row("a"), known)

    assert isinstance(restored, LeaseWrite)
    assert restored.result is not None
    assert restored.result.orders == (ORDER,)
    assert "orders" in restored.changes


# --- withdrawn by an operator ----------------------------------------------------------------------------------------


def withdraw(driver: Driver, *left: RecordOrder) -> list[events.Command]:
    """An operator removes orders from the row, and the worker scans."""
    return order(driver, *left)


def told_withdrawn(driver: Driver, taken: int) -> list[events.Command]:
    """The consumer tells that the order left the row before it was obeyed."""
    over = OrderOver("a", driver.holdings.held["a"].identifier, ORDER, taken, is_withdrawn=True)
    return driver.settle(driver.send(over))


SKIPPED_ONE = (
    "withdrawn after this worker skipped 1 of 2 records; records after the stored checkpoint may still be delivered"
)


@pytest.mark.parametrize(("taken", "outcome"), [(0, "withdrawn before this worker skipped a record"), (1, SKIPPED_ONE)])
def test_a_withdrawn_order_leaves_the_consumer_and_the_audit_says_what_it_took_out(
    driver: Driver, taken: int, outcome: str
) -> None:
    order(driver, ORDER, OTHER)
    assert [command.orders for command in only(withdraw(driver, OTHER), GiveOrders)] == [(OTHER,)]
    commands = told_withdrawn(driver, taken)
    assert [(note.order, note.outcome) for note in only(commands, NoteOrder)] == [(ORDER, outcome)]

    assert writes(noted(driver)) == []
    assert driver.table["a"].orders == (OTHER,)
    assert only(driver.renew_later(), NoteOrder) == []


def test_the_note_of_a_withdrawn_order_that_fails_is_repeated_at_the_next_heartbeat(driver: Driver) -> None:
    order(driver, ORDER)
    withdraw(driver)
    (first,) = only(told_withdrawn(driver, 1), NoteOrder)
    commands = noted(driver, error=TimeoutError("busy"))

    assert [*only(commands, NoteOrder), *only(driver.renew_later(), NoteOrder)][0] == first


def test_an_order_that_is_withdrawn_while_its_end_is_being_noted_has_one_note(driver: Driver) -> None:
    order(driver, ORDER)
    (note,) = only(obeyed(driver), NoteOrder)
    commands = withdraw(driver)
    commands += noted(driver)
    commands += driver.renew_later()

    assert note.outcome == "skipped 2 records"
    assert only(commands, NoteOrder) == []
    assert [write.kind for write in writes(commands) if write.kind is WriteKind.END_ORDERS] == []
    assert driver.table["a"].orders == ()


def test_an_order_that_is_withdrawn_between_its_note_and_its_removal_is_gone_all_the_same(driver: Driver) -> None:
    """The write that removes it is refused, as the row has changed; what another operator ordered meanwhile stays."""
    order(driver, ORDER)
    obeyed(driver)
    assert driver.land(leases.set_orders(driver.table["a"], (OTHER,))) is WriteOutcome.ACCEPTED
    noted(driver)
    driver.renew_later()

    assert driver.table["a"].orders == (OTHER,)


def test_an_order_that_was_obeyed_when_the_worker_sees_that_it_is_withdrawn_is_noted_as_obeyed(driver: Driver) -> None:
    order(driver, ORDER)
    withdraw(driver)

    assert [note.outcome for note in only(obeyed(driver), NoteOrder)] == ["skipped 2 records"]


def test_an_order_that_left_the_row_at_its_time_was_not_withdrawn(driver: Driver) -> None:
    soon = evolve(ORDER, until_micros=777 + 30_000_000)
    order(driver, soon)
    for _ in range(5):
        driver.renew_later()
    noted(driver, soon)
    assert driver.table["a"].orders == ()
    over = OrderOver("a", driver.holdings.held["a"].identifier, soon, 0, is_withdrawn=True)

    assert only(driver.settle(driver.send(over)), NoteOrder) == []


def test_an_order_that_comes_back_into_the_row_stands_and_its_end_is_noted_anew(driver: Driver) -> None:
    """A Java worker that rewrites a row loses its orders, which come back with the row's content."""
    order(driver, ORDER)
    withdraw(driver)
    told_withdrawn(driver, 0)
    noted(driver)
    driver.renew_later()
    assert [command.orders for command in only(order(driver, ORDER), GiveOrders)] == [(ORDER,)]
    driver.renew_later()
    assert driver.table["a"].orders == (ORDER,)

    assert [note.outcome for note in only(obeyed(driver), NoteOrder)] == ["skipped 2 records"]
    noted(driver)
    assert driver.table["a"].orders == ()
