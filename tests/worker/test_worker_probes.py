"""What probes are told of a worker, over HTTP, in each part of its life, with the extra ``prometheus`` and without."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamclient import (
    Backoff,
    ClientConfig,
    FailurePolicy,
    HealthServer,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.metrics import PrometheusMetrics
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import ReadRetry, TablestoreStreamApi
from streamclient.worker import Runtime
from streamclient.worker.running import STUCK_SECONDS
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import NO_PAGES, ask, probed, reason
from tests.simulation.scene import Journal
from tests.worker.stage import Stage, make_table, put

QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 100,
}
SOON_UNHEALTHY: dict[str, Any] = {"max_duration_before_last_successful_renew_or_take_lease": 300}


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        make_table(local.client())
        yield local


def worker_of(
    local: LocalTablestore, *, table: str = "orders", handler: Any = None, runtime: Runtime | None = None, **config: Any
) -> Worker:
    client = local.client()
    stream = StreamConfig(client=client, data_table_name=table, status_table_name="status")
    api = TablestoreStreamApi(client, retry=ReadRetry(retries=0))
    given = ClientConfig(**{**QUICK, **config})
    return Worker("w1", given, stream, handler or Journal().make, stream_api=api, runtime=runtime)


def is_reading(worker: Worker) -> bool:
    return any(status.has_consumer for status in worker.shard_statuses().values())


# --- the parts of a life ----------------------------------------------------------------------------------------------


@contextmanager
def not_begun(local: LocalTablestore) -> Iterator[Worker]:
    yield worker_of(local)


@contextmanager
def well(local: LocalTablestore) -> Iterator[Worker]:
    with worker_of(local) as worker:
        until(lambda: is_reading(worker))
        yield worker


@contextmanager
def service_out(local: LocalTablestore) -> Iterator[Worker]:
    with worker_of(local, **SOON_UNHEALTHY) as worker:
        until(lambda: is_reading(worker))
        local.add_fault(FaultRule("*", Fail("OTSServerBusy")))
        until(lambda: "OTSServerBusy" in worker.health.reason, lambda: worker.health)
        yield worker
        local.clear_faults()


@contextmanager
def service_out_from_the_start(local: LocalTablestore) -> Iterator[Worker]:
    """A rollout in an outage goes on."""
    local.add_fault(FaultRule("*", Fail("OTSServerBusy")))
    with worker_of(local, **SOON_UNHEALTHY) as worker:
        until(lambda: "OTSServerBusy" in worker.health.reason, lambda: worker.health)
        assert not worker.has_begun
        yield worker
        local.clear_faults()


@contextmanager
def stopping(local: LocalTablestore) -> Iterator[Worker]:
    began, go = threading.Event(), threading.Event()

    def hold(batch: Any) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    put(local.client(), "1")
    with worker_of(local, handler=hold) as worker:
        try:
            assert worker.wait(PATIENCE_SECONDS, until=began.is_set)
            worker.shutdown(wait=False)
            yield worker
        finally:
            go.set()


@contextmanager
def ended(local: LocalTablestore) -> Iterator[Worker]:
    with worker_of(local) as worker:
        until(lambda: is_reading(worker))
    yield worker


@contextmanager
def failed(local: LocalTablestore) -> Iterator[Worker]:
    worker = worker_of(local, table="nothing")
    with pytest.raises(WorkerFailedError):
        worker.run()
    yield worker


@contextmanager
def frozen(local: LocalTablestore) -> Iterator[Worker]:
    """The owner thread hangs, and its time goes on."""
    ahead, entered, go = [0.0], threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        go.wait(PATIENCE_SECONDS)

    with worker_of(local, runtime=Runtime(monotonic=lambda: time.monotonic() + ahead[0])) as worker:
        until(lambda: is_reading(worker))
        (loop,) = worker._owner_loops().values()
        try:
            assert loop.post(hang)
            assert entered.wait(PATIENCE_SECONDS)
            ahead[0] = STUCK_SECONDS + 1
            yield worker
        finally:
            go.set()
        until(lambda: worker.liveness.is_healthy, lambda: worker.liveness)


Life = Callable[[LocalTablestore], AbstractContextManager[Worker]]

LIVES: dict[Life, tuple[tuple[int, int, int], tuple[str, str, str]]] = {
    not_begun: ((200, 503, 503), ("", "not begun", "not begun")),
    well: ((200, 200, 200), ("", "", "")),
    service_out: ((200, 200, 503), ("", "", "OTSServerBusy")),
    service_out_from_the_start: ((200, 200, 503), ("", "", "OTSServerBusy")),
    stopping: ((200, 503, 200), ("", "stopping", "")),
    ended: ((200, 503, 503), ("", "ended", "ended")),
    failed: ((200, 503, 503), ("", "'nothing' has no stream", "'nothing' has no stream")),
    frozen: ((503, 200, 200), ("the owner thread of orders has made no turn for 1", "", "")),
}
"""What ``/live``, ``/ready`` and ``/health`` answer, and what stands in their reasons."""


def with_metrics(worker: Worker) -> HealthServer:
    return PrometheusMetrics(CollectorRegistry()).serve(0, worker=worker)


def without_metrics(worker: Worker) -> HealthServer:
    return worker.serve_health(0)


@pytest.mark.slow
@pytest.mark.parametrize("serve", [with_metrics, without_metrics])
@pytest.mark.parametrize("life", LIVES)
def test_every_path_in_every_part_of_a_worker_s_life(
    local: LocalTablestore, life: Life, serve: Callable[[Worker], HealthServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses, reasons = LIVES[life]
    if serve is without_metrics:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
    has_page = 200 if serve is with_metrics else 404
    with life(local) as worker, serve(worker) as server:
        assert probed(server.port) == statuses
        for path, expected in zip(("/live", "/ready", "/health"), reasons, strict=True):
            assert expected in reason(server.port, path)
            full, head = ask(server.port, path), ask(server.port, path, "HEAD")
            assert (head.status, head.body) == (full.status, b"")
            assert {name for name, _ in head.head} == {name for name, _ in full.head}
        for path in ("/metrics", "/"):
            assert ask(server.port, path).status == ask(server.port, path, "HEAD").status == has_page
        if has_page == 200:
            assert ask(server.port, "/").body == b"/live\n/ready\n/health\n/metrics\n"
        assert {ask(server.port, path).status for path in NO_PAGES} == {404}


@pytest.mark.slow
def test_one_server_sees_the_whole_life(local: LocalTablestore) -> None:
    worker = worker_of(local)
    with worker.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        with worker:
            until(lambda: is_reading(worker))
            assert probed(server.port) == (200, 200, 200)
        assert probed(server.port) == (200, 503, 503)
        assert worker.worker_status is WorkerStatus.SHUTDOWN


def test_one_of_several_streams_that_failed_makes_a_worker_unready(local: LocalTablestore) -> None:
    """A rollout of a version that names a wrong table stops."""
    client = local.client()
    streams = [
        StreamConfig(client=client, data_table_name=table, status_table_name=f"{table}_status")
        for table in ("orders", "nothing")
    ]
    worker = Worker("w1", ClientConfig(**QUICK), streams, Journal().make)

    def work() -> None:
        with worker, worker.serve_health(0) as server:
            until(lambda: "nothing" in worker.exceptions and is_reading(worker))
            assert worker.worker_status is WorkerStatus.RUNNING
            assert probed(server.port) == (200, 503, 503)
            assert reason(server.port, "/ready").startswith("stream nothing: ended: ConfigurationError: ")

    with pytest.raises(WorkerFailedError):
        work()


# --- shards whose processors fail -------------------------------------------------------------------------------------

BAD = ValueError("no such database")


def fail_in(world: Stage, *shard_ids: str, **config: Any) -> Any:
    for shard_id in shard_ids:
        world.write(shard_id, 3)
    worker = world.worker("w1", **config)
    world.refuse(BAD)
    world.until(lambda: len(worker.worker.health.failing_shards) == min(3, len(shard_ids)), 200)
    return worker.worker


def test_a_shard_whose_processor_fails_again_and_again_is_told_and_does_not_count() -> None:
    world = Stage("a")
    worker = fail_in(world, "a")
    first = worker.health
    world.advance(300)
    health = worker.health

    assert (health.is_healthy, health.reason, health.more_failing_shards) == (True, "", 0)
    (shard,) = health.failing_shards.values()
    assert shard.reason.startswith("processor failed ")
    assert "ValueError: no such database" in shard.reason
    assert shard.since_micros == first.failing_shards["a"].since_micros, "it has not got through meanwhile"
    world.journal.on_process = world.journal.checkpoint_batch
    world.until(lambda: not worker.health.failing_shards, 200)


def test_a_failing_shard_counts_after_the_time_that_the_setting_says() -> None:
    world = Stage("a")
    worker = fail_in(world, "a", unhealthy_after_failing_millis=120_000)

    assert worker.health.is_healthy
    world.until(lambda: not worker.health.is_healthy, 200)
    assert worker.health.reason.startswith("shard a has failed for 12")
    assert "ValueError: no such database" in worker.health.reason
    world.journal.on_process = world.journal.checkpoint_batch
    world.until(lambda: worker.health.is_healthy, 200)


def test_a_few_failing_shards_are_named_and_the_others_counted() -> None:
    world = Stage("a", "b", "c", "d", "e")
    worker = fail_in(world, "a", "b", "c", "d", "e", unhealthy_after_failing_millis=1_000)
    world.until(lambda: worker.health.more_failing_shards == 2, 200)
    world.until(lambda: worker.health.reason.endswith("; and 2 more shards"), 200)

    assert len(worker.health.failing_shards) == 3


def test_failing_shards_of_several_streams_are_told_with_the_names_of_their_streams(local: LocalTablestore) -> None:
    client = local.client()
    streams = [
        StreamConfig(client=client, data_table_name="orders", status_table_name=f"{name}_status", name=name)
        for name in ("bills", "ships")
    ]

    def fail(batch: Any) -> None:
        raise BAD

    put(client, "1")
    again = Backoff(restart_backoff_min_millis=20, restart_backoff_max_millis=100)
    quick = {**QUICK, **SOON_UNHEALTHY, "backoff": again}
    with Worker("w1", ClientConfig(**quick), streams, fail) as worker, worker.serve_health(0) as server:
        until(lambda: len(worker.health.failing_shards) == 2, lambda: worker.health)
        told = ask(server.port, "/health").document["failing_shards"]

    assert {key.split("/")[0] for key in told} == {"bills", "ships"}
    assert all(shard["since"].endswith("Z") and "ValueError" in shard["reason"] for shard in told.values())


def test_a_shard_that_the_failure_policy_stopped_is_told() -> None:
    world = Stage("a")
    policy = FailurePolicy(retries=0, then="STOP_SHARD")  # type: ignore[arg-type]
    worker = fail_in(world, "a", failure_policy=policy)

    assert worker.health.failing_shards["a"].reason.startswith("stopped by failure_policy at record ")
