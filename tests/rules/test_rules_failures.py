"""Rules about trouble: bad records, lost data, bad networks, slow processors. It stays where it is, and visible."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from rules_scene import SHORT_LEASE_MILLIS, STATUS, TABLE, Scene, Writer, gate, is_well
from tablestore import Row

from streamclient import (
    CallLimits,
    IRetryStrategy,
    ProcessRecordsInput,
    RetryableAction,
    ShardState,
    ShutdownReason,
    TrimmedDataPolicy,
)
from streamclient.server.fault_rules import Cut, Fail, FaultAction, FaultRule
from streamclient.worker.lease.lease_rows import key_of
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


class Again(IRetryStrategy):
    """Has a failed batch delivered again to the same processor, without end."""

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        return True

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        return 20


# --- user code that fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [None, Again()], ids=["restart", "redelivery"])
def test_a_failing_processor_stops_only_its_own_shard(scene: Scene, strategy: IRetryStrategy | None) -> None:
    """Its batch comes again until it is accepted; nothing is skipped; lease, worker and other shards live on."""
    bad, good = scene.split(scene.root, "m")
    is_poisoned = True

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        if is_poisoned and any(record.key["id"] == "a-poison" for record in given.records):
            raise ValueError("cannot digest this")
        given.checkpointer.checkpoint()

    scene.diary.on_process = process
    with scene.worker(max_records=2, task_retry_strategy=strategy) as worker:
        scene.write("a1", "a2", "a-poison", "a3", "a4")
        scene.until(lambda: scene.diary.delivered(bad).count("a-poison") >= 3)
        scene.write("z1", "z2", "z3")
        scene.until(lambda: scene.diary.accepted(good) == ["z1", "z2", "z3"])
        assert is_well(worker)
        assert scene.diary.accepted(bad)[:2] == ["a1", "a2"]
        assert "a4" not in scene.diary.delivered(bad)
        assert scene.lease(bad).owner == "w1"
        scene.until(lambda: "cannot digest this" in worker.shard_statuses()[bad].reason)

        is_poisoned = False
        scene.until(lambda: "a4" in scene.diary.accepted(bad))

    assert list(dict.fromkeys(scene.diary.accepted(bad))) == ["a1", "a2", "a-poison", "a3", "a4"]
    assert len(scene.diary.starts(good)) == 1
    assert ShutdownReason.ZOMBIE not in scene.diary.shutdowns()


@pytest.mark.parametrize("strategy", [None, Again()], ids=["restart", "redelivery"])
def test_no_checkpoint_ever_covers_a_batch_that_failed(scene: Scene, strategy: IRetryStrategy | None) -> None:
    """The very first batch fails once; whoever retries repeats that batch, and does not read the next one."""
    failures: list[list[str]] = []

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        if not failures:
            failures.append([str(record.key["id"]) for record in given.records])
            raise ValueError("only once")
        given.checkpointer.checkpoint()

    scene.diary.on_process = process
    written = [f"a{number:02}" for number in range(15)]
    scene.write(*written)
    with scene.worker(max_records=5, task_retry_strategy=strategy):
        scene.until(lambda: len(scene.diary.accepted()) >= 15)

    assert failures == [written[:5]]
    assert scene.diary.accepted() == written
    assert scene.diary.batches()[:2] == [written[:5], written[:5]]


def test_a_processor_that_cannot_end_is_asked_once(scene: Scene) -> None:
    """A ``shutdown`` that raises is logged; the same processor never hears it again, and the worker lives."""
    left, right = scene.split(scene.root, "m")

    def shut_down(writer: Writer, given: object) -> None:
        raise ValueError("will not stop")

    scene.diary.on_shutdown = shut_down
    scene.diary.on_process = lambda writer, given: given.checkpointer.checkpoint()
    with scene.worker() as worker:
        scene.until(lambda: scene.diary.shutdowns(scene.root).count(ShutdownReason.TERMINATE) >= 2)
        assert is_well(worker)
        assert len(scene.diary.shutdowns(scene.root)) <= len(scene.diary.starts(scene.root))
        assert not scene.diary.starts(left)
        assert not scene.diary.starts(right)


# --- lost data --------------------------------------------------------------------------------------------------------


def trimmed_shard(scene: Scene) -> tuple[str, str]:
    """Two shards; the first one's stored position, behind a1 and a2, is past retention, and so are a3 and a4."""
    bad, good = scene.split(scene.root, "m")
    with scene.worker():
        scene.write("a1", "a2")
        scene.until(lambda: scene.diary.accepted(bad) == ["a1", "a2"])
    scene.write("a3", "a4", "a5")
    scene.local.trim(TABLE, shard_id=bad, keep_last=1)
    return bad, good


def test_a_trimmed_position_is_reported_and_stops_only_its_shard(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """No crash loop, no silent skip; the lease stays held, so that no other worker meets the position."""
    bad, good = trimmed_shard(scene)
    with scene.worker() as worker:
        scene.until(lambda: bad in worker.shard_statuses() and "lost" in worker.shard_statuses()[bad].reason)
        scene.write("z1")
        scene.until(lambda: scene.diary.accepted(good) == ["z1"])
        assert is_well(worker)
        assert "RESTART_AT_OLDEST" in worker.shard_statuses()[bad].reason
        assert scene.lease(bad).owner == "w1"
        assert scene.diary.delivered(bad) == ["a1", "a2"]

    losses = [record for record in caplog.records if "past the stream's retention and lost" in record.getMessage()]
    assert [record.levelno for record in losses] == [logging.ERROR]


def test_a_trimmed_position_restarts_at_the_oldest_record_only_if_told_to(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    bad, _ = trimmed_shard(scene)
    with scene.working(trimmed_data_policy=TrimmedDataPolicy.RESTART_AT_OLDEST):
        scene.until(lambda: scene.diary.accepted(bad) == ["a1", "a2", "a5"])

    assert "past the stream's retention and lost" in caplog.text


# --- bad networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation", ["ListStream", "DescribeStream", "GetShardIterator", "GetStreamRecord", "GetRange", "BatchWriteRow"]
)
@pytest.mark.parametrize(
    "action", [Cut(), Fail("OTSServerBusy"), Fail("OTSInternalServerError")], ids=["cut", "busy", "internal"]
)
def test_no_passing_error_of_any_call_ends_the_worker(scene: Scene, operation: str, action: FaultAction) -> None:
    """Cut connections and a busy service, at the start and in the middle of work, in each call that a worker makes."""
    scene.write("a1")
    scene.local.add_fault(FaultRule(operation, action, times=2))
    with scene.working(is_impatient=True):
        scene.until(lambda: scene.diary.accepted(scene.root) == ["a1"])
        scene.local.add_fault(FaultRule(operation, action, times=2))
        scene.write("a2")
        children = scene.split(scene.root, "m")
        scene.write("a3", "z1")
        scene.until(lambda: sum(len(scene.diary.accepted(child)) for child in children) == 2)

    assert sorted(scene.diary.accepted()) == ["a1", "a2", "a3", "z1"]


def test_a_table_that_is_away_for_longer_than_a_lease_is_waited_out(scene: Scene) -> None:
    """Reading stops when the lease is over, the worker says that it is unhealthy, and all resumes by itself."""
    config = {
        "lease_duration_millis": SHORT_LEASE_MILLIS,
        "max_duration_before_last_successful_renew_or_take_lease": 1_000,
    }
    scene.write("a1")
    with scene.working(is_impatient=True, **config, limits=CallLimits(slow_processor_warning_millis=400)) as worker:
        scene.until(lambda: scene.diary.accepted() == ["a1"])
        scene.local.add_fault(FaultRule("*", Cut(), table=STATUS))
        scene.until(lambda: scene.diary.shutdowns() == [ShutdownReason.ZOMBIE])
        scene.write("a2")
        scene.until(lambda: not worker.health.is_healthy)
        assert worker.shard_statuses() == {}
        assert is_well(worker)
        assert scene.diary.delivered() == ["a1"]

        scene.local.clear_faults()
        scene.until(lambda: scene.diary.accepted() == ["a1", "a2"])
        scene.until(lambda: worker.health.is_healthy)


def test_health_is_judged_by_answers_and_not_by_attempts(scene: Scene) -> None:
    """Scans succeed, heartbeats are sent all the time, and not one is accepted."""
    config = {"lease_duration_millis": SHORT_LEASE_MILLIS, "limits": CallLimits(slow_processor_warning_millis=400)}
    with scene.worker(**config, max_duration_before_last_successful_renew_or_take_lease=1_000) as worker:
        scene.until(lambda: bool(scene.diary.starts()))
        scene.local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), table=STATUS))
        scene.until(lambda: "no lease write was answered for" in worker.health.reason)
        scene.local.clear_faults()
        scene.until(lambda: worker.health.is_healthy)


def break_row(scene: Scene, shard_id: str) -> None:
    """Five columns, but not the right five."""
    columns = [("LeaseCounter", 1), ("LeaseOwner", ""), ("LeaseStealer", ""), ("Checkpoint", "TRIM_HORIZON"), ("x", 1)]
    row = Row(key_of(scene.stream_id, shard_id), columns)
    scene.client.put_row(STATUS, row)


def test_a_malformed_row_stops_nobody(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Scans, marks, hand-overs, listings and new shards go on; the row is named, and left as it is."""
    left, right = scene.split(scene.root, "m")
    scene.share(left, right)
    break_row(scene, "broken")

    def is_moved() -> bool:
        """Asked for again if w1 has taken it back, as it does where w2 comes late."""
        lease = scene.lease(left)
        if lease.owner == "w1" and not lease.stealer:
            scene.leases.steal_lease(lease, "w2")
        return bool(scene.diary.starts(left, "w2"))

    with scene.working("w1"), scene.working("w2"):
        scene.until(lambda: len(scene.diary.starts()) == 2)
        scene.until(is_moved)
        children = scene.split(left, "b")
        scene.write("a1", "b1", "z1")
        scene.until(lambda: sorted(scene.diary.accepted()) == ["a1", "b1", "z1"])
        assert all(scene.diary.accepted(child) for child in children)

    assert "row broken of status table orders_status is left out: not a lease" in caplog.text
    _, row, _ = scene.client.get_row(STATUS, key_of(scene.stream_id, "broken"), max_version=1)
    assert len(row.attribute_columns) == 5


# --- slow user code ---------------------------------------------------------------------------------------------------


def test_a_hung_processor_is_named_and_delays_nothing_else(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Its status says which call, and for how long; its heartbeats and all other shards go on."""
    slow, quick = scene.split(scene.root, "m")
    with gate() as held:

        def process(writer: Writer, given: ProcessRecordsInput) -> None:
            if writer.shard_id == slow:
                held.hold()
            given.checkpointer.checkpoint()

        scene.diary.on_process = process
        with scene.worker(
            lease_duration_millis=SHORT_LEASE_MILLIS, limits=CallLimits(slow_processor_warning_millis=200)
        ) as worker:
            scene.until(lambda: bool(scene.diary.starts(slow)) and bool(scene.diary.starts(quick)))
            scene.write("a1")
            assert held.entered.wait(PATIENCE_SECONDS)
            counter = scene.lease(slow).counter
            scene.until(lambda: "process_records has been running for" in worker.shard_statuses()[slow].reason)
            scene.until(lambda: scene.lease(slow).counter > counter + 1)
            scene.write("z1")
            scene.until(lambda: scene.diary.accepted(quick) == ["z1"])
            status = worker.shard_statuses()[slow]
            assert status.user_code_seconds > 0.2
            assert status.state is ShardState.PROCESSING
            held.open()

    assert any("process_records has been" in record.getMessage() for record in caplog.records)


def test_an_executor_of_one_thread_ends_many_shards(scene: Scene) -> None:
    """Shards that end together, their last checkpoints and their waiting children get by on a single thread."""
    shards = [*scene.split(scene.root, "m")]
    shards = [*scene.split(shards[0], "f"), *scene.split(shards[1], "s")]
    scene.write("a1", "g1", "n1", "t1")
    with ThreadPoolExecutor(1) as executor, scene.worker(executor=executor) as worker:
        scene.until(lambda: len(scene.diary.accepted()) == 4)
        children = [child for shard, at in zip(shards, "bhpv", strict=True) for child in scene.split(shard, at)]
        written = ["a2", "c2", "g2", "i2", "n2", "q2", "t2", "w2"]
        scene.write(*written)
        scene.until(lambda: len(scene.diary.accepted()) == 12)
        assert is_well(worker)
        assert all(scene.lease(shard).is_finished for shard in shards)

    assert sorted(key for child in children for key in scene.diary.accepted(child)) == written
