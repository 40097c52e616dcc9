"""Workers that were told to make different things even: they say so, count until they agree, and come to rest."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve
from holdings_driver import only, row
from membership_driver import FleetDriver, session, started, texts

from streamclient.core import events
from streamclient.core.leases import WriteKind
from streamclient.core.worker_state import MOST_REPORTED
from streamclient.model import Lease, Progress, Shard

SAYS = "the fleet disagrees on balance_by"


class Member(FleetDriver):
    """One real worker of several over the same rows; its consumers stop when they are asked to."""

    def __init__(self, name: str, balance_by: str) -> None:
        super().__init__(name=name, balance_by=balance_by, taker_interval_millis=2_000, renewer_interval_millis=2_000)
        self.silent = {"a", "b", "c"}
        self.moves = 0

    def carry_out(self, command: events.Command, *, draws: bool = True) -> list[events.Command]:
        if isinstance(command, events.StopConsumer):
            return self.send(events.ConsumerStopped(command.lease_key, command.consumer_id, events.ConsumerEnd.STOPPED))
        if isinstance(command, events.WriteLease):
            self.moves += command.write.kind in (WriteKind.STEAL, WriteKind.TRANSFER)
        return super().carry_out(command, draws=draws)


def fleet(table: Iterable[Lease], **balance_by: str) -> list[Member]:
    members = [Member(name, what) for name, what in balance_by.items()]
    rows = {lease.lease_key: lease for lease in table}
    for member in members:
        member.table, member.workers = rows, members[0].workers
        member.epochs = members[0].epochs
        member.shards = tuple(Shard(key) for key in rows)
    return members


def live(members: list[Member], seconds: int, rates: dict[str, int] | None = None) -> int:
    """Let all of them run, second by second, while records are processed; how many leases moved."""
    before = sum(member.moves for member in members)
    for _ in range(seconds):
        for member in members:
            member.run(1.0)
            for key, rate in (rates or {}).items():
                lease = member.table[key]
                done = lease.progress.records if lease.progress else 0
                member.table[key] = evolve(lease, progress=Progress(done + rate, done + rate, 0))
    return sum(member.moves for member in members) - before


def owners(members: list[Member]) -> dict[str, int]:
    held = [lease.owner for lease in members[0].table.values()]
    return {name: held.count(name) for name in sorted(set(held))}


RATES = {"s1": 800, "s2": 300, "s3": 300, "s4": 300}


def test_workers_that_disagree_count_and_come_to_rest() -> None:
    """By load one lease weighs about as much as the three others; each side would undo what the other did, for ever."""
    members = fleet([row(f"s{n}") for n in range(1, 5)], a="records", b="count")
    live(members, 60, RATES)

    assert live(members, 600, RATES) == 0
    assert owners(members) == {"a": 2, "b": 2}
    for member in members:
        (said,) = [text for text in texts(member) if SAYS in text]
        assert said.endswith(": 'count' by b; 'records' by a"), "once, with names"


def test_workers_that_agree_make_loads_even() -> None:
    """The same fleet, told the same: otherwise the test above would show nothing."""
    members = fleet([row(f"s{n}") for n in range(1, 5)], a="records", b="records")
    live(members, 660, RATES)

    assert sorted(owners(members).values()) == [1, 3]
    assert not [text for member in members for text in texts(member) if SAYS in text]


def test_fleet_goes_by_load_again_when_the_one_that_counted_has_left() -> None:
    members = fleet([row(f"s{n}") for n in range(1, 5)], a="records", b="records", c="count")
    live(members, 200, RATES)
    members[2].settle(members[2].send(events.StopRequested()))
    live(members, 5, RATES)
    left = members[:2]
    live(left, 660, RATES)

    assert sorted(owners(left).values()) == [1, 3]


def test_a_disagreement_that_comes_back_is_told_again() -> None:
    driver = started(workers=[session("b", balance_by="bytes")])
    driver.run(20)
    driver.workers["b"] = session("b", nonce="b-2", balance_by="count")
    driver.run(20)
    driver.workers["b"] = session("b", nonce="b-3", balance_by="bytes")
    driver.run(20)

    assert len([text for text in texts(driver) if SAYS in text]) == 2


def test_a_worker_that_does_not_say_is_taken_to_agree() -> None:
    """One over a store of the user's own, which need not keep that."""
    driver = started(workers=["b"], balance_by="bytes")
    driver.run(20)
    assert not [text for text in texts(driver) if SAYS in text]


# --- what is remembered for long --------------------------------------------------------------------------------------


def test_what_is_remembered_of_shards_goes_with_them() -> None:
    """A stream that splits every day leaves nothing behind in a worker that lives for years."""
    driver = started()
    state = driver.holdings._state
    for number in range(50):
        key = f"s{number:03}"
        driver.table = {key: row(key)}
        driver.shards = (Shard(key),)
        driver.settle(driver.send(events.SyncDue()))
        driver.settle(driver.send(events.TakeDue()))
        identifier = state.held[key].identifier
        driver.settle(driver.send(events.ConsumerStopped(key, identifier, events.ConsumerEnd.DONE)))
        state.report_once(events.Severity.INFO, key, "test", "met")
        assert list(driver.holdings.left)[-1] == key
        driver.table = {}
        driver.run(60)

    assert len(state.released) <= 2
    assert len(state.reported) <= 5
    assert len(only(driver.log, events.StartConsumer)) == 50, "each was really read here"


def test_what_was_handed_on_unread_is_forgotten_a_lease_duration_later() -> None:
    """Each shard comes back from the other worker to the one whose processor is done with it."""
    driver = started(workers=["z"])
    driver.run(5)
    state, handed_on = driver.holdings._state, set[str]()
    for number in range(20):
        driver.table = {key: row(key) for key in (f"s{number:03}a", f"s{number:03}b")}
        driver.shards = tuple(map(Shard, driver.table))
        driver.settle(driver.send(events.SyncDue()))
        driver.run(8)
        ((key, held),) = driver.holdings.held.items()
        driver.settle(driver.send(events.ConsumerStopped(key, held.identifier, events.ConsumerEnd.DONE)))
        assert driver.table[key].owner == "z"
        driver.table[key] = evolve(driver.table[key], owner="me", counter=driver.table[key].counter + 1)
        driver.run(8)
        handed_on |= state.passed_on.keys()
        driver.table = {}
        driver.run(60)

    assert len(handed_on) >= 15
    assert len(state.passed_on) <= 2


def test_reports_are_remembered_up_to_a_bound() -> None:
    driver = FleetDriver()
    state = driver.holdings._state
    for number in range(MOST_REPORTED + 10):
        state.report_once(events.Severity.INFO, "s", f"kind {number}", "met")

    assert len(state.reported) == MOST_REPORTED
    assert ("s", f"kind {MOST_REPORTED + 9}") in state.reported


def test_consumers_of_one_acquisition_have_its_identifier_and_the_next_acquisition_another() -> None:
    driver = FleetDriver(row("s1"))
    driver.shards = (Shard("s1"),)
    driver.start()
    driver.run(5)
    held = driver.holdings.held["s1"]
    driver.settle(driver.send(events.PauseRequested("s1", "test")))
    driver.settle(driver.send(events.ConsumerStopped("s1", held.identifier, events.ConsumerEnd.STOPPED)))
    driver.settle(driver.send(events.ResumeRequested("s1")))
    first, second = only(driver.log, events.StartConsumer)
    assert first.shard_info.lease_identifier == second.shard_info.lease_identifier
    assert first.identifier != second.identifier, "answers to the one are never taken for answers to the other"

    driver.now += 60
    driver.settle(driver.send(events.Tick()))
    assert "s1" not in driver.holdings.held
    driver.settle(driver.send(events.ConsumerStopped("s1", second.identifier, events.ConsumerEnd.STOPPED)))
    driver.run(60)
    *_, third = only(driver.log, events.StartConsumer)
    assert third.shard_info.lease_identifier not in ("", first.shard_info.lease_identifier)
