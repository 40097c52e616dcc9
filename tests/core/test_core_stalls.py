"""A consumer that hangs does not keep its shard."""

from __future__ import annotations

from holdings_driver import Driver, answers, only, reader, row, writes

from streamclient.core import events
from streamclient.core.events import Severity
from streamclient.core.write_rules import WriteKind
from streamclient.model import ShutdownReason


def stall(driver: Driver, key: str = "a") -> list[events.Command]:
    identifier = driver.holdings.held[key].identifier
    return driver.send(events.ConsumerStalled(key, identifier, "process_records has been running for 601 s"))


def let_run_out(driver: Driver) -> list[events.Command]:
    """Renew and scan as ever until the stalled lease is lost."""
    commands = []
    while "a" in driver.holdings.held:
        driver.now = min(driver.holdings.next_deadline(driver.now) or 0, driver.now + 6)
        driver.others_renew()
        commands += driver.settle(driver.renew())
        commands += driver.settle(driver.send(events.Tick()))
        commands += driver.settle(driver.scan())
    return commands


def test_a_stalled_lease_is_reported_not_renewed_and_its_consumer_is_told_when_it_is_lost(driver: Driver) -> None:
    valid_until = driver.holdings.held["a"].valid_until
    commands = stall(driver)
    (report,) = [report for report in only(commands, events.Report) if report.severity is Severity.ERROR]
    assert "its consumer stalled" in report.text
    assert "process_records has been running for 601 s" in report.text
    assert "process_records has been running for 601 s" in driver.said("a")

    commands = let_run_out(driver)
    assert driver.now == valid_until
    assert not [write for write in writes(commands) if write.lease_key == "a"]
    assert only(commands, events.StopConsumer) == [events.StopConsumer("a", "t1", ShutdownReason.ZOMBIE)]


def test_a_checkpoint_of_a_stalled_consumer_is_stored_and_does_not_prolong_its_lease(driver: Driver) -> None:
    valid_until = driver.holdings.held["a"].valid_until
    stall(driver)
    driver.now += 10

    assert answers(driver.settle(driver.checkpoint("a", "i2"))) == [(1, "stored")]
    assert driver.holdings.held["a"].valid_until == valid_until


def test_a_stalled_consumer_that_comes_back_in_time_gives_its_lease_to_another_worker_at_once() -> None:
    driver = reader(row("b", "other", 5))
    assert [stop.reason for stop in only(stall(driver), events.StopConsumer)] == [ShutdownReason.STOLEN]
    driver.settle(driver.stopped("a"))

    assert driver.table["a"].owner == driver.table["a"].stealer == "other"


def test_a_stalled_lease_that_nobody_takes_is_handed_on_once_it_has_expired() -> None:
    """The others have as many leases as they should, so they would leave it."""
    driver = reader(row("b", "me", 3), row("c", "other", 5), row("d", "other", 5))
    stall(driver)
    let_run_out(driver)
    moved_at = driver.now
    while driver.table["a"].owner == "me":
        assert driver.now < moved_at + 20
        driver.now += 3
        driver.others_renew()
        driver.settle(driver.renew())
        driver.settle(driver.scan())

    assert driver.table["a"].is_handed_over
    assert driver.table["a"].owner == "other"


def test_a_stalled_lease_is_not_taken_back_for_a_lease_duration_while_another_worker_lives() -> None:
    driver = reader(row("c", "other", 5))
    stall(driver)
    let_run_out(driver)
    lost_at = driver.now
    driver.stopped("a", identifier="t1")
    taken_at = None
    while taken_at is None:
        driver.others_renew()
        takes = [write for write in writes(driver.scan()) if write.kind is WriteKind.TAKE]
        if takes:
            taken_at = driver.now
        driver.now += 3

    assert taken_at >= lost_at + 20


def test_a_stalled_lease_is_taken_back_when_its_consumer_has_gone_and_nobody_else_lives(driver: Driver) -> None:
    stall(driver)
    let_run_out(driver)
    assert writes(driver.scan()) == []
    driver.stopped("a", identifier="t1")

    assert [start.checkpoint for start in only(driver.hold(), events.StartConsumer)] == ["i1"]


def test_the_stall_of_a_consumer_that_is_gone_means_nothing(driver: Driver) -> None:
    assert driver.send(events.ConsumerStalled("a", "t99", "late")) == []
    driver.stopped("a")
    assert not driver.holdings.held["a"].stall
