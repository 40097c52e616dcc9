"""What a worker measures, on virtual time: each figure says what happened, and ends when it no longer holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_worker_storm import Storm

from streamclient import CallLimits
from streamclient.base.reasons import BEFORE_READING, Cause, Reason, ReasonKind
from streamclient.config import FailurePolicy
from streamclient.core import events, leases
from streamclient.core.held import Acquisition, HeldLease
from streamclient.errors import CodecError, DependencyException, ErrorKind
from streamclient.interfaces import IMetrics, ProcessRecordsInput
from streamclient.metrics import METRICS, MemoryMetrics, labelled
from streamclient.metrics import metric_table as t
from streamclient.model import Lease, Metric, OnFailure, ShardState
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.instruments import LINGER_SECONDS, SAMPLE_SECONDS, Instruments, WorkerSample
from streamclient.worker.lease import MemoryLeaseManager
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.statuses import StreamFacts, lease_status
from tests.placed_records import make_record
from tests.simulation.scene import FaultyLeases, RecordingProcessor
from tests.worker.stage import Stage

W1 = {"stream": "orders", "worker": "w1"}
W2 = {"stream": "orders", "worker": "w2"}


class MeasuredWorld(Stage):
    """A world whose workers are measured."""

    def __init__(self, *shard_ids: str, seed: int = 1, **config: Any) -> None:
        self.metrics = MemoryMetrics()
        super().__init__(*shard_ids, seed=seed, metrics=self.metrics, **config)

    def caught_up(self, *shard_ids: str) -> None:
        """Let everything be processed."""

        def is_idle() -> bool:
            lags = [self.metrics.value(t.LAG_SECONDS, shard=shard_id) for shard_id in shard_ids]
            return all(lag == 0.0 for lag in lags)

        self.simulation.until(is_idle)

    def by(self, metric: Metric, label: str, **labels: str) -> dict[str, float]:
        """Values of one metric by one label."""
        return {
            series.labels[label]: series.value
            for series in self.metrics.snapshot(metric)
            if labels.items() <= series.labels.items()
        }


@pytest.fixture
def world() -> MeasuredWorld:
    return MeasuredWorld("a")


@pytest.fixture(autouse=True)
def _nothing_is_refused(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No call with a metric that the table lacks, or with other labels: the store refuses those, and that is logged."""
    yield
    assert [record.message for record in caplog.records if "figures are missing" in record.message] == []


# --- records and user code -------------------------------------------------------------------------------------------


def test_records_batches_and_the_length_of_calls_are_measured() -> None:
    world = MeasuredWorld("a", "b")
    world.write("a", 5)
    world.write("b", 2)
    world.dawdle(3.0)
    world.worker()
    world.caught_up("a", "b")

    assert world.by(t.RECORDS_PROCESSED, "shard") == {"a": 5, "b": 2}
    assert world.by(t.BATCHES, "outcome") == {"accepted": 2}
    assert world.by(t.USER_CODE_SECONDS, "call") == {"initialize": 0, "process_records": pytest.approx(6.0)}
    assert world.metrics.value(t.USER_CODE_SECONDS, call="process_records") == 2


def test_failures_retries_and_restarts_are_counted_by_call() -> None:
    world = MeasuredWorld(failure_policy=FailurePolicy(retries=2, first_pause_millis=10))
    world.write("a", 1)
    world.refuse(ValueError("not yet"), times=4)
    world.worker()
    world.caught_up("a")

    # Three calls by the first processor, two of them retries; the second one fails once and is retried once.
    assert world.by(t.USER_CODE_FAILURES, "call") == {"process_records": 4}
    assert world.by(t.BATCHES, "outcome") == {"failed": 4, "accepted": 1}
    assert (world.metrics.value(t.REDELIVERIES), world.metrics.value(t.RESTARTS)) == (3, 1)


def test_parked_records_are_counted_and_are_not_processed() -> None:
    policy = FailurePolicy(
        retries=0, then=OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0, first_pause_millis=1
    )
    world = MeasuredWorld(failure_policy=policy)
    world.write("a", 8)

    def refuse(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if any(record.key["id"] == "k3" for record in given.records):
            raise ValueError("k3")
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = refuse
    world.worker()
    world.caught_up("a")

    assert (world.metrics.value(t.RECORDS_PARKED), world.metrics.value(t.RECORDS_PROCESSED)) == (1, 7)
    assert world.metrics.value(t.USER_CODE_SECONDS, call="park") == 1
    assert world.metrics.value(t.REDELIVERIES) == world.metrics.value(t.BATCHES) - 1


def test_an_end_that_is_not_stored_counts_as_a_failure(world: MeasuredWorld) -> None:
    world.stream.close("a")
    world.journal.on_shutdown = lambda processor, given: None
    world.worker()
    world.advance(30)

    failures = world.metrics.value(t.USER_CODE_FAILURES, call="end_not_stored")
    assert failures is not None
    assert failures >= 2
    assert world.metrics.value(t.RESTARTS) in (failures, failures - 1)


# --- reading -------------------------------------------------------------------------------------------------------


def test_reads_are_counted_by_result(world: MeasuredWorld) -> None:
    world.write("a", 1)
    kinds = (ErrorKind.THROTTLED, ErrorKind.TRANSIENT, ErrorKind.AMBIGUOUS)
    errors = [DependencyException("no", kind=kind) for kind in kinds]
    world.stream.fail_reads("a", *errors, CodecError("truncated"), RuntimeError("a bug"))
    world.worker()
    world.caught_up("a")

    reads = world.by(t.READS, "result")
    assert reads.pop("empty") >= 1
    assert reads == {"throttled": 1, "transient": 1, "ambiguous": 1, "undecodable": 1, "other": 1, "records": 1}
    assert world.metrics.value(t.READ_SECONDS) == world.metrics.value(t.READS)


def test_a_read_behind_retention_counts_as_trimmed_and_waits_for_a_decision(world: MeasuredWorld) -> None:
    world.write("a", 2)
    world.worker()
    world.caught_up("a")
    world.simulation.pool("w1-fetch").is_frozen = True
    world.write("a", 2, start=2)
    world.stream.trim("a", 3)
    world.simulation.pool("w1-fetch").is_frozen = False
    world.until(lambda: world.metrics.value(t.SHARDS, reason="decision") == 1)

    assert world.metrics.value(t.READS, result="trimmed") == 1
    assert world.metrics.value(t.LEASES, state="waiting") == 1


def test_lag_and_time_to_loss_follow_the_statuses_and_are_zero_or_absent_when_caught_up(world: MeasuredWorld) -> None:
    worker = world.worker()
    world.caught_up("a")
    assert world.metrics.value(t.TIME_TO_LOSS_SECONDS) is None
    world.simulation.pool("w1-processor").is_frozen = True
    now_micros = 1_600_000_000_000_000 + int(world.simulation.now * 1_000_000)
    world.stream.append("a", make_record("late", now_micros))
    world.advance(30)
    status = worker.statuses()["a"]
    assert status.lag_seconds == pytest.approx(30, abs=SAMPLE_SECONDS)
    assert world.metrics.value(t.LAG_SECONDS) == pytest.approx(status.lag_seconds, abs=SAMPLE_SECONDS)
    assert world.metrics.value(t.TIME_TO_LOSS_SECONDS) == pytest.approx(24 * 3600 - 30, abs=SAMPLE_SECONDS + 1)

    world.simulation.pool("w1-processor").is_frozen = False
    world.caught_up("a")
    assert world.metrics.value(t.TIME_TO_LOSS_SECONDS) is None


def test_lag_and_time_to_loss_stay_known_while_no_read_succeeds_from_the_time_of_the_checkpoint(
    world: MeasuredWorld,
) -> None:
    now_micros = 1_600_000_000_000_000 + int(world.simulation.now * 1_000_000)
    world.stream.append("a", make_record("early", now_micros))
    first = world.worker("w1")
    world.caught_up("a")
    world.stop(first)
    refusal = DependencyException("no", kind=ErrorKind.TRANSIENT)
    world.stream.fail_reads("a", *[refusal] * 1_000)
    world.worker("w2")
    world.until(lambda: world.metrics.value(t.SHARDS, **W2, cause="reading_failed") == 1)
    world.advance(600)
    age = (1_600_000_000_000_000 + world.simulation.now * 1_000_000 - now_micros) / 1_000_000

    assert world.metrics.value(t.READS, **W2, result="records") is None
    assert world.metrics.value(t.LAG_SECONDS, **W2) == pytest.approx(age, abs=2 * SAMPLE_SECONDS)
    assert world.metrics.value(t.TIME_TO_LOSS_SECONDS, **W2) == pytest.approx(24 * 3600 - age, abs=2 * SAMPLE_SECONDS)


def test_a_clock_is_slow_by_as_much_as_records_are_newer(world: MeasuredWorld) -> None:
    worker = world.worker()
    world.caught_up("a")
    assert world.metrics.value(t.CLOCK_SLOW_SECONDS) == 0
    now_micros = 1_600_000_000_000_000 + int(world.simulation.now * 1_000_000)
    world.stream.append("a", make_record("from the future", now_micros + 90_000_000))
    world.until(lambda: world.metrics.value(t.RECORDS_PROCESSED) == 1)
    world.advance(2 * SAMPLE_SECONDS)

    slow = world.metrics.value(t.CLOCK_SLOW_SECONDS)
    assert slow is not None
    assert 80 < slow <= 90
    world.stop(worker)
    assert world.metrics.value(t.CLOCK_SLOW_SECONDS) is None


def test_bytes_read_ahead_are_shown_while_they_wait(world: MeasuredWorld) -> None:
    world.write("a", 30)
    hold = world.hang()
    world.worker(max_records=10)
    world.until(lambda: (world.metrics.value(t.PREFETCH_BUFFER_BYTES) or 0) > 0)
    hold.set()
    world.caught_up("a")

    assert world.metrics.value(t.PREFETCH_BUFFER_BYTES) == 0


# --- leases ----------------------------------------------------------------------------------------------------------


def test_leases_are_counted_as_they_are_taken_handed_over_and_left() -> None:
    world = MeasuredWorld("a", "b")
    first = world.worker("w1")
    world.caught_up("a", "b")
    second = world.worker("w2")
    world.until(lambda: world.metrics.value(t.LEASES, **W2, state="running") == 1)
    assert world.by(t.LEASE_MOVES, "move", **W1) == {"taken": 2, "handed_over": 1}
    assert world.by(t.LEASE_MOVES, "move", **W2) == {"taken": 1}

    first.stop()
    world.until(lambda: first.is_over and world.metrics.value(t.LEASES, **W2, state="running") == 2)
    world.stop(second)
    assert world.by(t.LEASE_MOVES, "move", **W1) == {"taken": 2, "handed_over": 2}
    assert world.by(t.LEASE_MOVES, "move", **W2) == {"taken": 2, "left": 2}


def test_a_lease_that_cannot_be_renewed_is_lost_and_the_worker_unhealthy(world: MeasuredWorld) -> None:
    leases = FaultyLeases(world.stream.stream_id)
    world.worker(lease_manager=leases)
    world.caught_up("a")
    assert world.metrics.value(t.UNHEALTHY) == 0
    leases.is_cut_off = True
    world.until(lambda: world.metrics.value(t.UNHEALTHY) == 1)
    assert world.by(t.LEASE_MOVES, "move") == {"taken": 1, "lost": 1}
    assert world.metrics.value(t.LEASE_WRITES, kind="renew", outcome="uncertain") >= 1
    assert world.metrics.value(t.LEASES, state="running") == 0

    leases.is_cut_off = False
    world.until(lambda: world.metrics.value(t.LEASES, state="running") == 1)
    world.until(lambda: world.metrics.value(t.UNHEALTHY) == 0)
    assert world.by(t.LEASE_MOVES, "move") == {"taken": 2, "lost": 1}


def test_a_finished_lease_that_is_given_away_is_told_from_a_handed_over_one() -> None:
    world = MeasuredWorld("a", "b", "c")
    world.stream.close("a")
    first = world.worker("w1")
    world.until(lambda: world.metrics.value(t.LEASES, **W1, state="finished") == 1)
    second = world.worker("w2")
    world.advance(60)
    world.stop(first)

    moves = world.by(t.LEASE_MOVES, "move", **W1)
    assert moves["handed_over"] + moves.get("given", 0) == moves["taken"]
    assert moves.get("given", 0) + (world.metrics.value(t.LEASE_MOVES, **W2, move="given") or 0) >= 1
    second.stop()


def test_the_lease_of_a_shard_that_left_the_stream_counts_as_deleted() -> None:
    world = MeasuredWorld("a", "b")
    world.worker()
    world.stream.close("a")
    world.until(lambda: world.metrics.value(t.LEASES, state="finished") == 1)
    world.stream.remove("a")
    world.until(lambda: world.leases.get_lease("a") is None)
    world.advance(SAMPLE_SECONDS)

    assert world.by(t.LEASE_MOVES, "move") == {"taken": 3, "deleted": 1}


def test_waiting_children_are_named_by_their_reason() -> None:
    world = MeasuredWorld("p")
    world.write("p", 1)
    hold = world.hang()
    world.stream.split("p", "c1", "c2")
    world.worker()
    world.until(lambda: world.metrics.value(t.SHARDS, reason="parents") == 2)
    assert world.by(t.LEASES, "state") == {"running": 1, "waiting": 2, "finished": 0}
    assert world.metrics.value(t.SHARDS, state="waiting_on_parent_shards", reason="parents") == 2

    hold.set()
    world.until(lambda: world.metrics.value(t.LEASES, state="running") == 2)
    assert world.by(t.LEASES, "state") == {"running": 2, "waiting": 0, "finished": 1}
    assert world.metrics.value(t.SHARDS, reason="parents") == 0
    assert world.metrics.value(t.SHARDS, reason="finished") == 1


def test_every_held_shard_is_counted_once_by_state_and_reason() -> None:
    world = MeasuredWorld("a", "b", "c")
    worker = world.worker()
    world.caught_up("a", "b", "c")
    worker.worker.pause("b", reason="maintenance")
    world.until(lambda: world.metrics.value(t.SHARDS, reason="paused") == 1)

    assert world.metrics.value(t.SHARDS) == world.metrics.value(t.LEASES) == len(worker.statuses()) == 3
    assert world.metrics.value(t.SHARDS, state="paused") == 1
    assert world.by(t.LEASES, "state") == {"running": 2, "waiting": 1, "finished": 0}


def test_shards_name_their_exact_cause_and_moving_ones_have_none(world: MeasuredWorld) -> None:
    world.write("a", 1)
    world.refuse(ValueError("no"))
    world.worker()
    world.until(lambda: world.metrics.value(t.SHARDS, reason="processor", cause="processor_failed") == 1)
    world.refuse(ValueError("no"), times=0)
    world.until(lambda: world.metrics.value(t.SHARDS, reason="none", cause="none") == 1)

    assert world.metrics.value(t.SHARDS, cause="processor_failed") == 0


def test_unfinished_shards_that_no_worker_holds_are_counted_by_every_worker() -> None:
    world = MeasuredWorld("a", "b", "c")
    world.stream.close("c")
    world.write("a", 1)

    def done(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        given.shutdown_marker.mark_for_process_done()

    world.journal.on_process = done
    worker = world.worker()
    world.until(lambda: world.metrics.value(t.LEASES, state="finished") == 1)
    assert world.metrics.value(t.UNOWNED_SHARDS) in (0, 1)
    world.until(lambda: world.metrics.value(t.UNOWNED_SHARDS) == 1)
    world.advance(60)

    assert world.metrics.value(t.UNOWNED_SHARDS) == 1
    world.stop(worker)
    assert world.metrics.value(t.UNOWNED_SHARDS) is None


def test_counters_of_rare_events_begin_at_zero(world: MeasuredWorld) -> None:
    """Prometheus sees no increase of a series that begins with its first event."""
    world.worker()
    world.caught_up("a")

    assert (world.metrics.value(t.RECORDS_PARKED), world.metrics.value(t.STALLS)) == (0, 0)


def test_the_gap_of_a_hand_over_ends_with_the_first_batch_or_an_empty_read() -> None:
    world = MeasuredWorld("a", "b")
    world.worker("w1")
    world.caught_up("a", "b")
    assert world.metrics.value(t.HAND_OVER_GAP_SECONDS) is None
    world.worker("w2")
    world.simulation.pool("w2-fetch").is_frozen = True
    world.until(lambda: world.metrics.value(t.LEASES, **W2, state="running") == 1)
    world.advance(4.0)
    world.simulation.pool("w2-fetch").is_frozen = False
    world.until(lambda: world.metrics.value(t.HAND_OVER_GAP_SECONDS) == 1)

    (series,) = world.metrics.snapshot(t.HAND_OVER_GAP_SECONDS)
    assert series.labels == W2
    assert 4.0 <= series.value <= 4.0 + 2 * SAMPLE_SECONDS


@pytest.mark.parametrize("cause", sorted(BEFORE_READING, key=lambda cause: cause.value))
def test_only_a_shard_that_waits_for_its_parents_has_no_gap_when_it_is_handed_over(cause: Cause) -> None:
    now = [1_000.0]
    metrics = MemoryMetrics()
    row = Lease("c1", "orders_1", owner="w1", stealer="w1", counter=5)
    held = HeldLease(row, "tenancy-1", 2_000.0, 6, 1_000.0, Acquisition(1), reason=Reason(cause))
    instruments = Instruments(labelled(metrics, **W1), "w1", {"c1": held}, lambda: now[0])
    instruments.handled(events.Answered(events.ReadRows(), events.Scan((row,))), [], now[0])
    status = lease_status(held, StreamFacts(lambda: 0), now[0])
    instruments.sample({"c1": status}, WorkerSample(ahead_bytes=0, clock_slow_seconds=0.0))
    now[0] += 300.0
    instruments.found_nothing("c1")

    is_parent = cause in (Cause.PARENT, Cause.PARENT_CIRCLE)
    assert metrics.value(t.HAND_OVER_GAP_SECONDS) == (None if is_parent else 1)
    assert (status.state is ShardState.WAITING_ON_PARENT_SHARDS) == is_parent
    assert (status.reason_kind is ReasonKind.PARENTS) == is_parent
    assert metrics.value(t.LEASES, state="waiting") == 1


def test_deletions_of_leases_that_were_never_held_leave_nothing_behind() -> None:
    """A leader deletes the leases of all shards that left the stream, whoever held them: for years."""
    mine, others = (Lease(key, "orders_1", owner=name) for key, name in (("mine", "w1"), ("others", "w2")))
    held = HeldLease(mine, "acquisition-1", 2_000.0, 6, 1_000.0, Acquisition(1))
    instruments = Instruments(labelled(MemoryMetrics(), **W1), "w1", {"mine": held}, lambda: 0.0)
    instruments.handled(events.SyncDue(), [events.WriteLease(leases.delete(lease)) for lease in (mine, others)], 0.0)

    assert set(instruments._ending_writes) == {"mine"}


class CountedStorm(Storm):
    """Compares what was counted with what is held, again and again."""

    def write(self) -> None:
        super().write()
        metrics = self.world.config["metrics"]
        for worker in self.world.simulation.workers:
            name = worker.worker.worker_identifier
            taken = metrics.value(t.LEASE_MOVES, worker=name, move="taken") or 0
            moves = metrics.value(t.LEASE_MOVES, worker=name) or 0
            assert taken - (moves - taken) == len(worker.coordinator._holdings.held)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_leases_taken_less_those_gone_are_those_held(seed: int) -> None:
    CountedStorm(seed, metrics=MemoryMetrics()).run()


def test_lease_writes_scans_and_epochs_are_counted(world: MeasuredWorld) -> None:
    world.write("a", 1)
    world.worker()
    world.caught_up("a")
    world.advance(60)

    writes = {
        (series.labels["kind"], series.labels["outcome"]): series.value
        for series in world.metrics.snapshot(t.LEASE_WRITES)
    }
    assert writes.pop(("renew", "accepted")) >= 8
    assert writes == {("create", "accepted"): 1, ("take", "accepted"): 1, ("checkpoint", "accepted"): 1}
    assert world.metrics.value(t.SCAN_SECONDS) >= 10
    assert world.by(t.EPOCH_DRAWS, "outcome") == {"drawn": 1}


def test_sessions_beat_and_a_worker_that_stands_still_is_killed_by_another() -> None:
    world = MeasuredWorld("a", "b")
    first = world.worker("w1")
    world.caught_up("a", "b")
    world.worker("w2")
    world.until(lambda: world.metrics.value(t.LEASES, **W2, state="running") == 1)
    first.kill()
    world.until(lambda: world.metrics.value(t.LEASES, **W2, state="running") == 2)

    writes = world.by(t.SESSION_WRITES, "kind", **W2, outcome="accepted")
    assert (writes["register"], writes["kill"]) == (1, 1)
    assert writes["beat"] >= 2
    assert world.metrics.value(t.WAKES, worker="w2") >= 1


def test_a_failed_draw_of_an_epoch_is_counted_as_failed(world: MeasuredWorld) -> None:
    class NoEpochsAtFirst(MemoryLeaseManager):
        failures = 2

        def draw_epochs(self, lease_keys: Any) -> Any:
            if self.failures:
                self.failures -= 1
                return [DependencyException("no")] * len(lease_keys)
            return super().draw_epochs(lease_keys)

    world.worker(lease_manager=NoEpochsAtFirst(world.stream.stream_id))
    world.caught_up("a")

    assert world.by(t.EPOCH_DRAWS, "outcome") == {"failed": 2, "drawn": 1}


def test_a_stalled_consumer_is_counted() -> None:
    world = MeasuredWorld("a", limits=CallLimits(user_code_limit_millis=40_000))
    world.write("a", 1)
    world.hang(500.0)
    world.worker()
    world.until(lambda: world.metrics.value(t.STALLS) == 1)
    assert world.metrics.value(t.SHARDS, reason="user_code") == 1 or world.metrics.value(t.SHARDS, reason="lease") == 1


def test_checkpoints_are_counted_by_kind_and_outcome_and_timed(world: MeasuredWorld) -> None:
    world.write("a", 1)

    def in_two_phases(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.pool("w1-status").is_frozen = True
        prepared = given.checkpointer.prepare_checkpoint(None, b"transaction 7")
        prepared.checkpoint()

    world.journal.on_process = in_two_phases
    world.worker()
    world.until(lambda: world.simulation.pool("w1-status").is_frozen)
    world.advance(2.0)
    world.simulation.pool("w1-status").is_frozen = False
    world.caught_up("a")

    outcomes = {
        (series.labels["kind"], series.labels["outcome"]): series.value
        for series in world.metrics.snapshot(t.CHECKPOINTS)
    }
    assert outcomes == {("prepare", "stored"): 1, ("checkpoint", "stored"): 1}
    (series,) = world.metrics.snapshot(t.CHECKPOINT_SECONDS)
    assert series.distribution is not None
    assert series.distribution.count == 2
    assert 2.0 <= series.value <= 3.0


def test_a_checkpoint_under_a_lost_lease_is_counted_as_such(world: MeasuredWorld) -> None:
    leases = FaultyLeases(world.stream.stream_id)
    world.write("a", 1)

    def cut_off(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        leases.is_cut_off = True
        given.checkpointer.checkpoint()

    world.journal.on_process = cut_off
    world.worker(lease_manager=leases, limits=CallLimits(checkpoint_timeout_millis=120_000))
    world.until(lambda: world.metrics.value(t.CHECKPOINTS) is not None)

    assert world.by(t.CHECKPOINTS, "outcome") == {"unknown": 1}


# --- series that end -------------------------------------------------------------------------------------------------


def shards_of(world: MeasuredWorld, metric: Metric, worker: str) -> set[str]:
    return set(world.by(metric, "shard", worker=worker))


def hand_one_over() -> tuple[MeasuredWorld, SimulatedWorker, str]:
    """Two workers share two shards that have records; which shard the first one gave up."""
    world = MeasuredWorld("a", "b")
    for shard_id in ("a", "b"):
        world.write(shard_id, 3)
    world.worker("w1")
    world.caught_up("a", "b")
    second = world.worker("w2")
    world.until(lambda: len(shards_of(world, t.LAG_SECONDS, "w2")) == 1)
    (moved,) = shards_of(world, t.LAG_SECONDS, "w2")
    return world, second, moved


def test_gauges_of_a_shard_end_at_once_when_it_leaves_and_its_counters_later() -> None:
    world, _, moved = hand_one_over()
    world.advance(2 * SAMPLE_SECONDS)
    assert moved not in shards_of(world, t.LAG_SECONDS, "w1")
    assert shards_of(world, t.RECORDS_PROCESSED, "w1") == {"a", "b"}

    world.advance(LINGER_SECONDS)
    assert shards_of(world, t.RECORDS_PROCESSED, "w1") == {"a", "b"} - {moved}
    assert shards_of(world, t.RECORDS_SIZE_BYTES, "w1") == {"a", "b"} - {moved}


def test_counters_of_a_shard_that_comes_back_in_time_go_on() -> None:
    world, second, moved = hand_one_over()
    world.advance(LINGER_SECONDS / 4)
    second.stop()
    world.until(lambda: world.metrics.value(t.LEASES, **W1, state="running") == 2)
    world.write(moved, 2, start=3)
    world.caught_up("a", "b")
    world.advance(2 * LINGER_SECONDS)

    assert world.metrics.value(t.RECORDS_PROCESSED, worker="w1", shard=moved) == 5


def test_a_worker_that_ended_shows_nothing_held_and_keeps_its_counters(world: MeasuredWorld) -> None:
    world.write("a", 3)
    worker = world.worker()
    world.caught_up("a")
    world.stop(worker)

    assert world.metrics.value(t.LAG_SECONDS) is None
    assert (world.metrics.value(t.LEASES), world.metrics.value(t.SHARDS)) == (0, 0)
    assert world.metrics.value(t.RECORDS_PROCESSED) == 3


def test_without_metrics_nothing_is_sampled() -> None:
    world = Stage("a")
    worker = world.worker()
    world.advance(10)

    assert not worker.coordinator._instruments.is_on


# --- the table -------------------------------------------------------------------------------------------------------


class Exact(IMetrics):
    """Writes down which metrics came with which labels."""

    def __init__(self) -> None:
        self.seen: dict[Metric, set[tuple[str, ...]]] = {}

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        self.seen.setdefault(metric, set()).add(tuple(sorted(labels)))

    set = observe = forget = increment


def play(metrics: IMetrics) -> None:
    """Everything that can be measured without a real service, in a few virtual minutes."""
    store = MemoryParkingStore()
    policy = FailurePolicy(retries=1, first_pause_millis=1, then=OnFailure.PARK, parking=store, most_parked_share=1.0)
    world = Stage("a", "b", metrics=metrics, failure_policy=policy, limits=CallLimits(user_code_limit_millis=30_000))
    now_micros = 1_600_000_000_000_000 + int(world.simulation.now * 1_000_000)
    for shard_id in ("a", "b"):
        world.stream.append(shard_id, *[make_record(f"k{number}", now_micros + number) for number in range(4)])

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        keys = {record.key["id"] for record in given.records}
        if "k2" in keys:
            raise ValueError("k2")
        if "hang" in keys:
            world.simulation.wait(threading.Event(), 200.0)
        world.journal.checkpoint_batch(processor, given)

    def initialize(processor: RecordingProcessor, given: Any) -> None:
        if len(world.journal.by_shard[processor.shard_id]) == 1:
            raise ValueError("not at the first time")

    world.journal.on_process, world.journal.on_initialize = process, initialize
    world.worker("w1")
    world.advance(60)
    world.worker("w2")
    world.advance(60)
    world.stream.append("a", make_record("hang", now_micros + 10))
    world.advance(120)
    for worker in world.simulation.workers:
        worker.stop()
    world.advance(60)


@pytest.mark.slow
def test_every_metric_is_emitted_with_exactly_its_labels() -> None:
    """Requests need something that sends some, which ``test_metrics_end_to_end`` and ``test_lease_metering`` have.

    Suspected losses are those of tunnels; ``test_tunnel_losses`` has them.
    """
    exact = Exact()
    play(exact)
    elsewhere = {
        t.STREAM_REQUESTS,
        t.STREAM_UNITS,
        t.STATUS_TABLE_REQUESTS,
        t.STATUS_TABLE_ROWS_READ,
        t.STATUS_TABLE_ROWS_WRITTEN,
        t.STATUS_TABLE_UNITS,
        t.SUSPECTED_LOSSES,
    }

    assert exact.seen == {metric: {tuple(sorted(metric.labels))} for metric in METRICS if metric not in elsewhere}
