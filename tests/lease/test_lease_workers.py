"""Worker rows in a status table: what is sent, and rows that nobody can read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient.core import membership
from streamclient.core.membership import WorkerRow
from streamclient.errors import DependencyException
from streamclient.model import Lease
from streamclient.server import LocalTablestore
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.lease.lease_rows import key_of
from streamclient.worker.lease.worker_directory import MOST_REPORTED, WORKER_STATUS_TYPE, WorkerRows

ROW = WorkerRow("w1", "stream", nonce="n1", beat=5, wake=3, info="text", balance_by="bytes")
WHOLE = {"Nonce": "n1", "Beat": 5, "State": "running", "Wake": 3}


@pytest.fixture(scope="module")
def client() -> Iterator[OTSClient]:
    with LocalTablestore() as local:
        yield local.client()


@pytest.fixture
def manager(client: OTSClient, request: pytest.FixtureRequest) -> LeaseManager:
    manager = LeaseManager(client, "status", request.node.name)
    manager.create_lease_table_if_not_exists()
    return manager


def put(client: OTSClient, stream_id: str, name: str, cells: dict[str, Any]) -> None:
    key = key_of(stream_id, name, WORKER_STATUS_TYPE)
    client.put_row("status", Row(key, list(cells.items())), Condition(RowExistenceExpectation.IGNORE))


def columns(item: Any) -> dict[str, list[str]]:
    cells = item.row.attribute_columns
    return {verb: [cell[0] for cell in cells[verb]] for verb in cells}


def test_each_write_stores_only_what_it_changes() -> None:
    rows = WorkerRows(None, "status", "stream")  # type: ignore[arg-type]
    again = membership.register(ROW, WorkerRow("w1", "stream", nonce="n2", beat=1))

    assert columns(rows.item(membership.beat(ROW))) == {"PUT": ["Beat", "State"]}
    assert columns(rows.item(membership.beat(ROW, info="new"))) == {"PUT": ["Beat", "State", "Info"]}
    assert columns(rows.item(membership.kill(ROW))) == {"PUT": ["State"]}
    assert columns(rows.item(again)) == {"PUT": ["Nonce", "Beat", "State", "BalanceBy", "Info"]}
    created = {"Nonce": "n1", "Beat": 6, "State": "running", "Wake": 3, "BalanceBy": "bytes", "Info": "text"}
    assert dict(rows.item(membership.restore(ROW)).row.attribute_columns) == created


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"Nonce": None}, "column Nonce of worker row w2 holds None, which is not of type str; delete the row"),
        ({"Beat": "5"}, "column Beat of worker row w2 holds '5', which is not of type int; delete the row"),
        ({"Wake": True}, "column Wake of worker row w2 holds True, which is not of type int; delete the row"),
        (
            {"Format": 2},
            (
                "worker row w2: the worker row has format 2, and this version of streamclient reads format 1: use the "
                "version that wrote it, or a later one"
            ),
        ),
        (
            {"State": "asleep"},
            (
                "column State of worker row w2 holds 'asleep', which is not one of running, leaving, killed; delete "
                "the row"
            ),
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_and_named_once(
    *,
    manager: LeaseManager,
    client: OTSClient,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, Any],
    problem: str,
) -> None:
    stream_id = request.node.name
    cells = {name: value for name, value in {**WHOLE, **wrong}.items() if value is not None}
    put(client, stream_id, "w2", cells)
    put(client, stream_id, "w1", WHOLE)
    with caplog.at_level(logging.WARNING, "streamclient"):
        listed = [list(manager.list_workers()) for _ in range(2)]
        read = list(manager.read_workers(["w1", "w2"]))

    assert listed == [read, read]
    assert [row.worker_id for row in read] == ["w1"]
    assert [record.getMessage() for record in caplog.records] == [
        f"a row of status table status is left out: {problem}"
    ]


def test_rows_that_cannot_be_read_are_remembered_up_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    rows = WorkerRows(None, "status", "stream")  # type: ignore[arg-type]
    broken = [Row(key_of("stream", f"w{number}", WORKER_STATUS_TYPE), []) for number in range(MOST_REPORTED + 1)]
    assert not any(map(rows._parsed, broken))
    caplog.clear()
    rows._parsed(broken[-1])
    assert caplog.messages == []
    rows._parsed(broken[0])

    (text,) = caplog.messages
    assert "worker row w0 holds None" in text


@pytest.mark.slow
def test_scans_of_leases_do_not_see_workers(manager: LeaseManager, request: pytest.FixtureRequest) -> None:
    """Nor do those of Java workers, which read the same range."""
    stream_id = request.node.name
    lease = Lease("s1", stream_id)
    manager.create_lease(lease)
    manager.write_many([membership.register(None, WorkerRow("a", stream_id, nonce="n", beat=1))])

    assert list(manager.list_leases()) == [lease]
    assert [row.worker_id for row in manager.list_workers()] == ["a"]


@pytest.mark.slow
def test_failing_reads_and_wakes_raise_the_packages_errors() -> None:
    with LocalTablestore() as local:
        manager = LeaseManager(local.client(), "absent", "stream")
        with pytest.raises(DependencyException, match="OTSObjectNotExist"):
            manager.read_workers(["w1"])
        with pytest.raises(DependencyException, match="OTSObjectNotExist"):
            manager.list_workers()
        with pytest.raises(DependencyException, match="OTSObjectNotExist"):
            manager.wake(["w1"])
