"""The judge of lease rows sees writes that must not have been accepted, and accepts what the protocol allows."""

from __future__ import annotations

from typing import Any

import pytest
from tablestore import NoRetryPolicy

from streamclient.core import leases
from streamclient.model import CheckpointPosition, Lease
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.testing.journal import LeaseJournal, LeaseWriting, judge_leases, recoveries
from streamclient.wire.schema import OperationType
from streamclient.worker.lease import LeaseManager

REFUSED = "OTSConditionCheckFail"


def put(caller: str, counter: int = 0, owner: str = "", **columns: Any) -> LeaseWriting:
    cells = {"LeaseCounter": counter, "LeaseOwner": owner, "LeaseStealer": "", **columns}
    return LeaseWriting(0, caller, "s", OperationType.PUT, cells)


def update(caller: str, code: str = "", *, at: int = 0, **columns: Any) -> LeaseWriting:
    return LeaseWriting(at, caller, "s", OperationType.UPDATE, columns, code)


def take(caller: str, counter: int = 1, *, owner: str = "", at: int = 0) -> LeaseWriting:
    return update(caller, at=at, LeaseCounter=counter, LeaseOwner=owner or caller, LeaseStealer="")


def hand_over(caller: str, counter: int, receiver: str, *, at: int = 0) -> LeaseWriting:
    return update(caller, at=at, LeaseCounter=counter, LeaseOwner=receiver, LeaseStealer=receiver)


def worker_of(caller: str) -> str:
    return caller.partition("#")[0]


def test_ordinary_life_of_a_lease_is_clean() -> None:
    history = judge_leases(
        [
            put("b"),
            take("a"),
            update("a", LeaseCounter=2),
            update("b", LeaseStealer="b"),
            update("a", LeaseCounter=3, Checkpoint="x"),
            hand_over("a", 4, "b"),
            take("b", 5),
            update("b", LeaseCounter=6),
        ]
    )

    assert (history.fenced_writes, history.refused_writes, history.moves) == ([], [], 1)
    assert [writing.caller for writing in history.takes] == ["a", "b"]
    assert history.holders == {"s": "b"}


@pytest.mark.parametrize(
    "late", [update("a", LeaseCounter=3), update("a", LeaseCounter=3, Checkpoint="x")], ids=["heartbeat", "checkpoint"]
)
def test_accepted_write_of_a_worker_that_lost_the_lease_is_found(late: LeaseWriting) -> None:
    history = judge_leases([put("a"), take("a"), take("b", 2), late])

    assert len(history.fenced_writes) == 1
    assert "by a, accepted" in history.fenced_writes[0]
    assert "held by b" in history.fenced_writes[0]


@pytest.mark.parametrize("late", [take("a", 2), hand_over("a", 2, "c")], ids=["take", "hand-over"])
def test_accepted_change_of_ownership_by_somebody_who_did_not_know_the_row_is_found(late: LeaseWriting) -> None:
    history = judge_leases([put("a"), take("a"), take("b", 2), late])

    assert len(history.fenced_writes) == 1
    assert "the counter was 2" in history.fenced_writes[0]


def test_write_after_the_own_hand_over_is_found() -> None:
    history = judge_leases([put("a"), take("a"), hand_over("a", 2, "b"), update("a", LeaseCounter=3, Checkpoint="x")])

    assert len(history.fenced_writes) == 1


def test_refused_write_of_a_worker_that_lost_the_lease_is_counted() -> None:
    writings = [put("a"), take("a"), take("b", 2), update("a", REFUSED, LeaseCounter=3, Checkpoint="x")]
    history = judge_leases(writings)

    assert (history.fenced_writes, len(history.refused_writes)) == ([], 1)


def test_other_refusals_are_not_counted() -> None:
    """Of the holder, whose row was marked; of one that never had it; of a take that came second; for load."""
    writings = [
        put("a"),
        take("a"),
        take("b", 2),
        update("b", REFUSED, LeaseCounter=3),
        update("c", REFUSED, LeaseStealer="c"),
        update("a", REFUSED, LeaseCounter=3, LeaseOwner="a", LeaseStealer=""),
        update("a", "OTSServerBusy", LeaseCounter=3),
    ]

    assert judge_leases(writings).refused_writes == []


def test_lease_may_be_handed_on_by_whoever_knows_the_row() -> None:
    """It was handed to a worker that stops, or its owner died: safe, as it is for a take."""
    assert judge_leases([put("a"), take("a"), hand_over("a", 2, "b"), hand_over("b", 3, "c")]).fenced_writes == []
    assert judge_leases([put("a"), take("a"), hand_over("b", 2, "c"), take("c", 3)]).fenced_writes == []


def test_later_process_of_a_name_inherits_and_an_earlier_one_does_not() -> None:
    begin = [put("a#1"), take("a#1", owner="a")]
    heir = update("a#2", LeaseCounter=2)

    assert judge_leases([*begin, heir], worker_of=worker_of).fenced_writes == []
    assert len(judge_leases([*begin, heir]).fenced_writes) == 1
    late = update("a#1", LeaseCounter=3)

    assert len(judge_leases([*begin, heir, late], worker_of=worker_of).fenced_writes) == 1


def test_recovery_is_measured_from_the_loss_to_the_next_take() -> None:
    writings = [
        take("a", at=1_000_000_000),
        update("a", at=2_000_000_000, LeaseCounter=2),
        update("b", at=4_000_000_000, LeaseStealer="b"),
        take("b", 3, at=5_500_000_000),
        take("c", 4, at=6_000_000_000),
    ]

    assert recoveries(writings, "a", 3_000_000_000) == {"s": 2.5}
    assert recoveries(writings, "b", 3_000_000_000) == {}


def test_lease_that_was_given_away_or_ended_before_the_loss_needs_no_recovery() -> None:
    given = [take("a", at=1), hand_over("a", 2, "b", at=2), take("b", 3, at=9)]
    ended = [
        take("a", at=1),
        update("a", at=2, LeaseCounter=2, Checkpoint=CheckpointPosition.SHARD_END),
        take("b", at=9),
    ]

    assert recoveries(given, "a", 5) == {}
    assert recoveries(ended, "a", 5) == {}


def test_journal_tells_what_the_server_did_and_for_whom(local: LocalTablestore) -> None:
    """Over HTTP: a zombie's checkpoint is refused, a throttled write is no refusal, other tables are left out."""
    journal = LeaseJournal("status")
    local.observe(journal)
    first, second = (
        LeaseManager(local.client(sts_token=name, retry_policy=NoRetryPolicy()), "status", "stream")
        for name in ("one#1", "two#1")
    )
    first.create_lease_table_if_not_exists()
    row = Lease("s", "stream")
    first.create_lease(row)
    taken = leases.take(row, "one")
    for manager, write in ((first, taken), (second, leases.take(taken.result or row, "two"))):
        manager.write_many([write])
    local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), times=1))
    for _ in range(2):
        first.write_many([leases.checkpoint(taken.result or row, "x")])
    second.delete_lease(row)

    codes = [(one.caller, one.operation.name, one.error_code) for one in journal.writings]
    assert codes == [
        ("one#1", "PUT", ""),
        ("one#1", "UPDATE", ""),
        ("two#1", "UPDATE", ""),
        ("one#1", "UPDATE", "OTSServerBusy"),
        ("one#1", "UPDATE", REFUSED),
        ("two#1", "DELETE", REFUSED),
    ]
    assert journal.writings[-2].columns == {"LeaseCounter": 2, "Checkpoint": "x"}
    history = judge_leases(journal.writings, worker_of=worker_of)
    assert (history.fenced_writes, len(history.refused_writes), history.holders) == ([], 1, {"s": "two#1"})
