"""Several streams in one worker, over real HTTP."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    ConfigurationError,
    IRecordProcessor,
    MemoryLeaseManager,
    StreamClientException,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.interfaces import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.model import ShutdownReason
from streamclient.tablestore import TablestoreStreamApi
from tests.patience import until
from tests.worker.stage import make_table, put

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
"""Never called."""

QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 500,
    "sync_shard_interval_millis": 200,
    "max_idle_poll_interval_millis": 50,
}


class Tables:
    """Tables on a local server, and what their processors were told."""

    def __init__(self, local: LocalTablestore, *names: str) -> None:
        self.local = local
        self.client = local.client()
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.shutdowns: dict[str, list[ShutdownReason]] = defaultdict(list)
        for name in names:
            make_table(self.client, name, "INTEGER")

    def config(self, name: str, /, **changes: Any) -> StreamConfig:
        return StreamConfig(
            **{"client": self.local.client(), "data_table_name": name, "status_table_name": "status", **changes}
        )

    def worker(self, *streams: StreamConfig, **changes: Any) -> Worker:
        return Worker("w1", ClientConfig(**QUICK), streams, lambda: Noting(self), **changes)

    def write(self, name: str, *numbers: int) -> None:
        for number in numbers:
            put(self.client, number, name, n=1)

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: (dict(self.seen), dict(self.shutdowns)))


class Noting(IRecordProcessor):
    def __init__(self, tables: Tables, prefix: str = "") -> None:
        self.tables = tables
        self.prefix = prefix
        self.table = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.table = self.prefix + initialization_input.shard_info.table_name

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.tables.seen[self.table] += [int(record.key["id"]) for record in process_records_input.records]
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self.tables.shutdowns[self.table].append(shutdown_input.shutdown_reason)


@pytest.fixture
def tables(local: LocalTablestore) -> Tables:
    return Tables(local, "orders")


def test_two_tables_are_read_by_one_worker_and_one_factory(local: LocalTablestore) -> None:
    tables = Tables(local, "orders", "visits")
    tables.write("orders", 1, 2)
    tables.write("visits", 10)
    with tables.worker(tables.config("orders"), tables.config("visits")) as worker:
        tables.until(lambda: tables.seen == {"orders": [1, 2], "visits": [10]})
        keys = sorted(worker.shard_statuses())
        assert [key.split("/")[0] for key in keys] == ["orders", "visits"]
        assert worker.health.is_healthy
        assert worker.worker_status is WorkerStatus.RUNNING
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("w1-")}
        assert {"w1-owner-orders", "w1-owner-visits"} <= names
        assert repr(worker) == "<Worker w1 of orders, visits, RUNNING>"

    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert tables.shutdowns == {"orders": [ShutdownReason.STOLEN], "visits": [ShutdownReason.STOLEN]}
    assert sorted(worker.shard_statuses()) == []
    assert not any(thread.name.startswith("w1-") for thread in threading.enumerate())


def test_a_worker_at_rest_has_its_owner_and_threads_for_calls(tables: Tables) -> None:
    before = set(threading.enumerate())
    with Worker("w1", ClientConfig(**QUICK), tables.config("orders"), lambda: Noting(tables)) as worker:
        until(lambda: len(worker.shard_statuses()) == 1)
        names = {thread.name for thread in set(threading.enumerate()) - before}

    own = {name.removeprefix("w1-").rstrip("-0123456789") for name in names}
    assert {"run", "owner-orders", "scan", "status"} <= own <= {*KINDS_OF_THREADS, "run", "owner-orders"}
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


KINDS_OF_THREADS = {"scan", "status", "renew", "fetch", "processor"}
"""Of each there are as many as calls were under way at once in the last minute."""


def test_each_stream_may_have_a_factory_and_a_lease_manager_of_its_own(tables: Tables) -> None:
    """Also one table twice, under two names: two applications with progress of their own."""
    (summary,) = TablestoreStreamApi(tables.client).list_stream("orders")
    leases = MemoryLeaseManager(summary.stream_id)
    tables.write("orders", 1)
    first = tables.config(
        "orders", name="billing", lease_manager=leases, record_processor_factory=lambda: Noting(tables, "billing of ")
    )
    second = tables.config("orders", name="search", status_table_name="search_status")
    with tables.worker(first, second) as worker:
        tables.until(lambda: tables.seen == {"billing of orders": [1], "orders": [1]})
        assert sorted(key.split("/")[0] for key in worker.shard_statuses()) == ["billing", "search"]
        (lease,) = leases.list_leases()
        assert lease.owner == "w1"


def test_a_stream_that_cannot_be_found_is_named_and_does_not_stop_the_other(tables: Tables) -> None:
    worker = tables.worker(tables.config("missing"), tables.config("orders"))

    def work() -> None:
        with worker:
            tables.write("orders", 1)
            tables.until(lambda: tables.seen["orders"] == [1] and "missing" in worker.exceptions)
            assert worker.worker_status is WorkerStatus.RUNNING
            assert not worker.health.is_healthy
            assert worker.health.reason.startswith(
                "stream missing: ended: ConfigurationError: data table 'missing' has"
            )
            tables.write("orders", 2)
            tables.until(lambda: tables.seen["orders"] == [1, 2])

    with pytest.raises(WorkerFailedError, match=r"^worker w1 ends reading missing: data table 'missing' has no stream"):
        work()

    assert worker.worker_status is WorkerStatus.ERROR
    assert list(worker.exceptions) == ["missing"]
    assert worker.exception is worker.exceptions["missing"]
    assert tables.shutdowns["orders"] == [ShutdownReason.STOLEN]


def test_a_table_deleted_while_it_is_read_is_named_and_does_not_stop_the_other(local: LocalTablestore) -> None:
    tables = Tables(local, "orders", "visits")
    with tables.worker(tables.config("orders"), tables.config("visits")) as worker:
        tables.until(lambda: len(worker.shard_statuses()) == 2)
        tables.client.delete_table("visits")

        def reasons() -> dict[str, str]:
            return {key.split("/")[0]: status.reason for key, status in worker.shard_statuses().items()}

        tables.until(lambda: "reading failed" in reasons()["visits"])
        assert "OTSObjectNotExist" in reasons()["visits"]
        tables.write("orders", 1)
        tables.until(lambda: tables.seen["orders"] == [1])
        assert "failed" not in reasons()["orders"]


def test_when_every_stream_has_failed_run_raises_what_each_failed_of(local: LocalTablestore) -> None:
    tables = Tables(local)
    worker = tables.worker(tables.config("one"), tables.config("two"))
    with pytest.raises(
        WorkerFailedError, match=r"^worker w1 ends reading one: .*; worker w1 ends reading two: "
    ) as both:
        worker.run()
    assert both.value.errors == worker.exceptions

    assert worker.worker_status is WorkerStatus.ERROR
    assert sorted(worker.exceptions) == ["one", "two"]
    with pytest.raises(StreamClientException, match="has ended"):
        worker.pause()


@pytest.mark.parametrize(
    ("streams", "changes", "message"),
    [
        ([{}, {}], {}, "several StreamConfigs have the name orders; give each another name="),
        ([{"name": "a"}, {"name": "b"}], {"lease_manager": MemoryLeaseManager("s")}, "is for one stream; with several"),
        ([{}], {"record_processor_factory": None}, "record_processor_factory must be"),
        ([], {}, "stream_config must be a StreamConfig or a sequence of them, not ()"),
        ([{}], {"lease_manager": "table"}, "lease_manager must be an ILeaseManager or None, not 'table'"),
    ],
)
def test_wrong_sets_of_streams_are_named_before_anything_happens(
    streams: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    configs = tuple(
        StreamConfig(**{"client": CLIENT, "data_table_name": "orders", "status_table_name": "s", **stream})
        for stream in streams
    )
    given = {"record_processor_factory": lambda: None, **changes}
    with pytest.raises(ConfigurationError) as caught:
        Worker("w1", ClientConfig(), configs, **given)

    assert message in str(caught.value)


def test_a_name_has_no_slash() -> None:
    with pytest.raises(ConfigurationError, match="name must not contain '/'"):
        StreamConfig(client=None, data_table_name="orders", status_table_name="s", name="a/b")


def test_a_shard_of_several_streams_is_named_with_its_stream() -> None:
    configs = [
        StreamConfig(client=CLIENT, data_table_name=name, status_table_name="s") for name in ("orders", "visits")
    ]
    worker = Worker("w1", ClientConfig(), configs, lambda: None)  # type: ignore[arg-type,return-value]
    worker.pause("orders/shard-1", reason="maintenance")
    for wrong in ("shard-1", "other/shard-1"):
        with pytest.raises(ConfigurationError, match="must be '<name of the stream>/<shard id>'"):
            worker.pause(wrong)
    assert worker.shutdown()
