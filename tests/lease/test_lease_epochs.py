"""Epochs in the status table, over real HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient.errors import DependencyException, ErrorKind
from streamclient.model import Lease
from streamclient.server import Fail, FailRows, FaultRule, LocalTablestore, LoseAnswer
from streamclient.tablestore.row_batches import ROWS_PER_READ
from streamclient.worker.lease.lease_epochs import DRAWS_AT_MOST
from streamclient.worker.lease.lease_manager import LeaseManager
from tests.patience import PATIENCE_SECONDS

TABLE = "status"
STREAM = "stream-1"
THREADS = 3

ANY_STATE = Condition(RowExistenceExpectation.IGNORE)


@pytest.fixture
def server() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        yield local


@pytest.fixture
def client(server: LocalTablestore) -> OTSClient:
    return server.client()


@pytest.fixture
def manager(client: OTSClient) -> LeaseManager:
    made = LeaseManager(client, TABLE, STREAM)
    assert made.create_lease_table_if_not_exists()
    return made


def key(lease_key: str) -> list[tuple[str, str]]:
    return [("StreamId", STREAM), ("StatusType", "ShardEpoch"), ("StatusValue", lease_key)]


def stored(client: OTSClient, lease_key: str) -> Any:
    _, row, _ = client.get_row(TABLE, key(lease_key), max_version=1)
    return {name: value for name, value, _ in row.attribute_columns or ()} if row else None


def requests(server: LocalTablestore, operation: str) -> int:
    return sum(count.requests for count in server.requests() if count.operation == operation)


def test_an_epoch_is_one_more_than_the_last_and_stands_in_a_row_of_its_own(
    manager: LeaseManager, client: OTSClient
) -> None:
    assert [manager.draw_epoch("s1"), manager.draw_epoch("s1"), manager.draw_epoch("s2")] == [1, 2, 1]
    assert stored(client, "s1") == {"Epoch": 2}
    assert manager.list_leases() == []


def test_epochs_outlive_the_lease_and_end_only_when_they_are_forgotten(
    manager: LeaseManager, client: OTSClient
) -> None:
    lease = Lease("s1", STREAM)
    manager.create_lease(lease)
    manager.draw_epoch("s1")
    manager.delete_lease(lease)
    assert manager.draw_epoch("s1") == 2
    manager.forget_epochs(["s1", "never drawn"])

    assert stored(client, "s1") is None


def test_a_hundred_epochs_cost_two_requests(server: LocalTablestore, manager: LeaseManager) -> None:
    keys = [f"s{number:03}" for number in range(ROWS_PER_READ + 1)]
    manager.draw_epoch(keys[0])
    before = [requests(server, name) for name in ("BatchGetRow", "BatchWriteRow")]

    assert list(manager.draw_epochs(keys)) == [2] + [1] * ROWS_PER_READ
    assert [requests(server, name) for name in ("BatchGetRow", "BatchWriteRow")] == [2 + number for number in before]


def test_no_two_draws_give_one_number(client: OTSClient, manager: LeaseManager) -> None:
    barrier = Barrier(THREADS)

    def draw(number: int) -> list[int]:
        own, drawn = LeaseManager(client, TABLE, STREAM), []
        barrier.wait(PATIENCE_SECONDS)
        while len(drawn) < 10:
            (answer,) = own.draw_epochs(["s1"])
            if isinstance(answer, int):  # else the others were faster four times in a row
                drawn.append(answer)
        return drawn

    with ThreadPoolExecutor(THREADS) as pool:
        drawn = list(pool.map(draw, range(THREADS)))

    assert sorted(number for numbers in drawn for number in numbers) == list(range(1, 10 * THREADS + 1))
    assert all(numbers == sorted(numbers) for numbers in drawn)


def test_a_number_whose_answer_was_lost_is_never_given_again(server: LocalTablestore, manager: LeaseManager) -> None:
    server.add_fault(FaultRule("BatchWriteRow", LoseAnswer(), times=1))
    with pytest.raises(DependencyException) as caught:
        manager.draw_epoch("s1")

    assert caught.value.kind is ErrorKind.AMBIGUOUS
    assert manager.draw_epoch("s1") == 2


def test_a_failure_of_one_row_leaves_the_others_their_numbers(server: LocalTablestore, manager: LeaseManager) -> None:
    server.add_fault(FaultRule("BatchWriteRow", FailRows(rows=(1,)), times=1))
    first, second, third = manager.draw_epochs(["s1", "s2", "s3"])

    assert (first, third) == (1, 1)
    assert isinstance(second, DependencyException)
    assert second.kind is ErrorKind.THROTTLED


@pytest.mark.parametrize("operation", ["BatchGetRow", "BatchWriteRow"])
def test_a_failed_request_answers_every_key_and_is_not_repeated(
    server: LocalTablestore, manager: LeaseManager, operation: str
) -> None:
    server.add_fault(FaultRule(operation, Fail("OTSServerBusy"), times=1))

    assert [type(answer) for answer in manager.draw_epochs(["s1", "s2"])] == [DependencyException] * 2
    assert manager.draw_epochs(["s1"]) == [1]


@pytest.mark.parametrize("cell", ["7", True, 0, -1, 1.5, None])
def test_a_row_that_holds_no_number_is_an_error_that_says_what_to_do(
    manager: LeaseManager, client: OTSClient, cell: Any
) -> None:
    """Counting on from nothing would give numbers that destinations have seen already."""
    columns = [("Epoch", cell)] if cell is not None else [("Other", 1)]
    client.put_row(TABLE, Row(key("s1"), columns), ANY_STATE)
    with pytest.raises(
        DependencyException, match="set it to a number above every epoch that its shard ever had"
    ) as error:
        manager.draw_epoch("s1")

    assert error.value.kind is ErrorKind.PERMANENT


def test_a_draw_that_others_overtake_again_and_again_fails(
    manager: LeaseManager, client: OTSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LeaseManager(client, TABLE, STREAM)
    read, reads = type(manager._epochs)._read, []

    def read_and_be_overtaken(epochs: Any, keys: Any) -> Any:
        last = read(epochs, keys)
        if epochs is manager._epochs:
            reads.append(keys)
            other.draw_epoch("s1")
        return last

    monkeypatch.setattr(type(manager._epochs), "_read", read_and_be_overtaken)
    with pytest.raises(DependencyException, match="other workers drew every epoch of shard s1"):
        manager.draw_epoch("s1")

    assert len(reads) == DRAWS_AT_MOST


def test_a_row_that_could_not_be_forgotten_is_logged(
    server: LocalTablestore, manager: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.draw_epoch("s1")
    server.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), times=1))
    with caplog.at_level(logging.WARNING):
        manager.forget_epochs(["s1"])

    assert "the epoch row of shard s1, which left the stream, stays" in caplog.text
