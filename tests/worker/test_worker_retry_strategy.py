"""A retry strategy of the user's is user code: it may be slow, raise or answer nonsense, and costs nobody a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from streamclient import IRetryStrategy, LeaseManager, RetryableAction, ShutdownReason
from streamclient.base.backoff import decision_of
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.model import ReasonKind
from streamclient.server import LocalTablestore
from streamclient.tablestore.stream_api import RecordPage
from streamclient.testing.fakes import FakeStream
from tests.patience import PATIENCE_SECONDS
from tests.placed_records import make_record
from tests.worker.stage import Scene, Stage, records

OUTAGE = DependencyException("no answer: timed out", kind=ErrorKind.TRANSIENT)


class Asked(IRetryStrategy):
    """Does as it is told, and remembers in which threads it was asked."""

    def __init__(self, should: Callable[[], bool] = lambda: True, millis: Callable[[], Any] = lambda: 20) -> None:
        self.should, self.millis = should, millis
        self.threads: set[str] = set()
        self.asked: list[tuple[str, int]] = []

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        self.threads.add(threading.current_thread().name)
        self.asked.append((str(error), retries))
        return self.should()

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        answer: int = self.millis()
        return answer


def fail(*_: object) -> Any:
    raise ValueError("no idea")


class Outage(FakeStream):
    """Fails each read while there is an outage."""

    is_down = True

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        if self.is_down:
            raise OUTAGE
        return super().get_stream_record(shard_iterator, limit)


# --- whose thread -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["reading", "processing"])
def test_a_slow_strategy_is_asked_in_the_executor_and_costs_no_lease(what: str) -> None:
    """Each answer takes longer than a lease lasts; the other shard is read meanwhile, and the leases stay."""
    scene, hurry = Scene("a", "b"), threading.Event()
    asking = threading.Event()

    def take_long() -> bool:
        asking.set()
        return not hurry.wait(PATIENCE_SECONDS) or True

    strategy = Asked(take_long)
    if what == "reading":
        stream = Outage("orders", ("a", "b"))
        stream.is_down = True
        scene.stream = stream
    else:
        scene.journal.on_process = fail
    scene.stream.append("a", *records(1))
    lease_millis = 1_500
    quick = {"lease_duration_millis": lease_millis, "renewer_interval_millis": 200, "taker_interval_millis": 100}
    with scene.worker(task_retry_strategy=strategy, **quick) as worker:
        assert asking.wait(PATIENCE_SECONDS)
        counters = {lease.lease_key: lease.counter for lease in scene.leases.list_leases()}
        moved = lambda: [lease.counter - counters[lease.lease_key] for lease in scene.leases.list_leases()]  # noqa: E731
        worker.wait(PATIENCE_SECONDS, until=lambda: min(moved()) >= 8)
        assert {lease.owner for lease in scene.leases.list_leases()} == {"w1"}
        assert worker.health.is_healthy or what == "reading"
        assert not hurry.is_set()
        assert min(moved()) >= 8, "heartbeats go on: several lease durations have passed"
        hurry.set()

    assert scene.journal.shutdowns("a") == [ShutdownReason.STOLEN]
    assert all("processor" in name for name in strategy.threads), strategy.threads


def test_a_stop_waits_for_a_strategy_that_is_being_asked_and_then_closes_the_processor() -> None:
    world, scene_stream = Stage("a"), Outage("orders", ("a",))
    world.stream = scene_stream
    asked: list[int] = []
    strategy = Asked(lambda: bool(asked.append(1)) or True, lambda: 3_600_000)
    worker = world.worker("w1", task_retry_strategy=strategy)
    world.until(lambda: bool(asked), 60)
    world.stop(worker)

    assert world.journal.shutdowns("a") == [ShutdownReason.STOLEN]
    assert worker.error is None


@pytest.mark.parametrize(
    ("what", "error", "failed"),
    [
        ("reading", "no answer: timed out", "reading failed once: DependencyException: no answer: timed out"),
        (
            "processing",
            "process_records of shard a raised ValueError: no idea",
            "processor failed once: process_records: ValueError: no idea",
        ),
    ],
)
def test_while_it_is_asked_the_status_says_so_and_nothing_of_another_attempt(
    world: Stage, what: str, error: str, failed: str
) -> None:
    if what == "reading":
        world.stream = Outage("orders", ("a",))
    world.journal.on_process = fail
    world.stream.append("a", make_record("k0", 0))
    nothing, asked = threading.Event(), list[int]()
    strategy = Asked(lambda: bool(asked.append(1)) or world.simulation.wait(nothing, 2.0) or True)
    worker = world.worker("w1", task_retry_strategy=strategy)
    world.until(lambda: bool(asked), 60)
    world.advance(1.0)

    assert strategy.asked == [(error, 0)]
    assert reason_of(worker) == f"{failed}; the retry strategy is being asked what follows"
    world.until(lambda: "attempt" in reason_of(worker), 60)
    assert "strategy" not in reason_of(worker)


# --- what it answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Asked(should=fail), "the retry strategy failed, so the ordinary pause is taken: ValueError: no idea"),
        (Asked(millis=fail), "the retry strategy failed, so the ordinary pause is taken: ValueError: no idea"),
        (Asked(millis=lambda: None), "ConfigurationError: backoff_millis must return 0 to 86400000 ms, not None"),
        (Asked(millis=lambda: -1), "ConfigurationError: backoff_millis must return 0 to 86400000 ms, not -1"),
        (Asked(millis=lambda: float("nan")), "backoff_millis must return 0 to 86400000 ms, not nan"),
    ],
    ids=["should_retry raises", "backoff_millis raises", "None", "negative", "not a number"],
)
def test_a_strategy_that_fails_is_named_and_ends_nothing(strategy: Asked, said: str) -> None:
    world, stream = Stage("a"), Outage("orders", ("a",))
    world.stream = stream
    worker = world.worker("w1", task_retry_strategy=strategy)
    world.until(lambda: said in reason_of(worker), 60)

    assert reason_of(worker).startswith("reading failed once: DependencyException: no answer: timed out; ")
    assert worker.statuses()["a"].reason_kind is ReasonKind.READING
    stream.is_down = False
    stream.append("a", make_record("k0", 0))
    world.until(lambda: world.journal.delivered("a") == ["k0"], 60)
    assert worker.error is None
    assert worker.reads == {"a"}


def reason_of(worker: Any) -> str:
    status = worker.statuses().get("a")
    return "" if status is None else str(status.reason)


def test_a_strategy_that_fails_over_a_failed_batch_leaves_it_to_the_failure_policy(world: Stage) -> None:
    world.refuse(ValueError("not yet"), times=1)
    world.stream.append("a", make_record("k0", 0))
    strategy = Asked(should=fail)
    worker = world.worker("w1", task_retry_strategy=strategy)
    world.until(lambda: world.journal.accepted["a"] == ["k0"], 60)

    assert strategy.asked == [("process_records of shard a raised ValueError: not yet", 0)]
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART], "no retries are configured"
    assert worker.error is None


def test_a_strategy_that_gives_reading_up_has_the_processor_replaced() -> None:
    world, stream = Stage("a"), Outage("orders", ("a",))
    world.stream = stream
    worker = world.worker("w1", task_retry_strategy=Asked(should=lambda: False))
    world.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART], 60)

    assert worker.error is None


@pytest.mark.parametrize("millis", [0, 12.5, 86_400_000])
def test_pause_of_a_strategy_is_taken_as_it_is(millis: float) -> None:
    assert decision_of(Asked(millis=lambda: millis), RetryableAction.TASK_PROCESS, OUTAGE, 3) == millis / 1_000


@pytest.mark.parametrize("millis", [True, "1", 86_400_001, float("inf")])
def test_pause_that_is_none_is_refused(millis: object) -> None:
    with pytest.raises(ConfigurationError, match="backoff_millis"):
        decision_of(Asked(millis=lambda: millis), RetryableAction.TASK_PROCESS, OUTAGE, 0)


def test_a_lease_managers_strategy_that_fails_is_logged_and_the_services_error_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from streamclient.server import Fail, FaultRule

    with LocalTablestore() as local:
        config = ClientConfig(lease_manager_retry_strategy=Asked(should=fail))
        manager = LeaseManager(local.client(), "status", "orders_1", config)
        manager.create_lease_table_if_not_exists()
        local.add_fault(FaultRule("GetRange", Fail("OTSServerBusy")))
        with pytest.raises(DependencyException, match="OTSServerBusy"):
            manager.list_leases()
    assert "the retry strategy failed, so" in caplog.text


def test_a_lease_managers_strategy_that_takes_long_holds_up_no_heartbeat_and_no_checkpoint() -> None:
    """All threads for reads of the status table are inside it. A lease whose checkpoint waited would not be renewed."""
    scene = Scene("a")
    go, began, old_list = threading.Event(), threading.Event(), scene.leases.list_leases

    def hang() -> Any:
        if threading.current_thread().name.startswith("w1-"):
            began.set()
            go.wait(2 * PATIENCE_SECONDS)
        return old_list()

    quick = {"lease_duration_millis": 6_000, "renewer_interval_millis": 200, "taker_interval_millis": 100}
    with scene.worker(renew_thread_pool_size=1, **quick) as worker:
        scene.until(lambda: "a" in scene.journal.by_shard)
        scene.leases.list_leases = hang  # type: ignore[method-assign]
        scene.leases.wake(["w1"])
        try:
            assert began.wait(PATIENCE_SECONDS)
            worker.pause("a")
            worker.resume("a")
            scene.until(lambda: scene.journal.shutdowns("a") == [ShutdownReason.PAUSED])
            (before,) = old_list()
            assert worker.wait(PATIENCE_SECONDS, until=lambda: old_list()[0].counter >= before.counter + 8)
            assert old_list()[0].owner == "w1"
        finally:
            go.set()
