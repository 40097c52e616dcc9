"""Epochs in the status table, over real HTTP."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from status_table import STREAM, TABLE, put_row, requests, stored_cells
from tablestore import OTSClient

from streamclient.errors import DependencyException, ErrorKind
from streamclient.model import Lease
from streamclient.server import Fail, FailRows, FaultRule, LocalTablestore, LoseAnswer
from streamclient.tablestore.row_batches import ROWS_PER_READ
from streamclient.worker.lease.lease_epochs import DRAWS_AT_MOST
from streamclient.worker.lease.lease_manager import LeaseManager
from tests.patience import PATIENCE_SECONDS

THREADS = 3


def test_an_epoch_is_one_more_than_the_last_and_stands_in_a_row_of_its_own(
    manager: LeaseManager, client: OTSClient
) -> None:
    assert [manager.draw_epoch("s1"), manager.draw_epoch("s1"), manager.draw_epoch("s2")] == [1, 2, 1]
    assert stored_cells(client, "s1", "ShardEpoch") == {"Epoch": 2}
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

    assert stored_cells(client, "s1", "ShardEpoch") == {}


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
    put_row(client, {"Other": 1} if cell is None else {"Epoch": cell}, status_type="ShardEpoch")
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
    with pytest.raises(DependencyException, match="no epoch for shard s1: another worker was always faster"):
        manager.draw_epoch("s1")

    assert len(reads) == DRAWS_AT_MOST


def test_a_row_that_could_not_be_forgotten_is_logged(
    server: LocalTablestore, manager: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.draw_epoch("s1")
    server.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), times=1))
    with caplog.at_level(logging.WARNING):
        manager.forget_epochs(["s1"])

    assert "the epoch row of shard s1, which has left the stream, was not deleted" in caplog.text
