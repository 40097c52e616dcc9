"""Stuck situations produced by real workers over real HTTP; what only they know comes from what they publish."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from operate_scene import STATUS, TABLE, Scene
from stuck_page import check, is_now, is_told
from stuck_workers import (
    LEASE_SECONDS,
    BadKey,
    BadRecord,
    Blocked,
    Done,
    Misleading,
    NoCheckpoint,
    NoDatabase,
    NoEnd,
    Slow,
    Steady,
    blocked,
    working,
)

from streamclient import CallLimits, FailurePolicy, InitializationInput, IParkingStore, IRecordProcessor, OnFailure
from streamclient.base.position import Position
from streamclient.core import leases as rule
from streamclient.core.worker_info import WorkerInfo
from streamclient.errors import WorkerFailedError
from streamclient.model import Shard
from streamclient.operate.collection import FleetReader
from streamclient.server import Fail, FaultRule, http_service
from streamclient.tablestore.stream_api import RecordPage, StreamDescription
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.worker.lease.lease_rows import key_of
from streamclient.worker.lease.worker_directory import INFO, WORKER_STATUS_TYPE
from streamclient.worker.parking import MemoryParkingStore
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def says(scene: Scene, words: str, shard_id: str | None = None) -> None:
    """Wait until the first line has these words."""
    until(lambda: words in scene.explain(shard_id), words)


def becomes(scene: Scene, name: str, shard_id: str | None = None) -> str:
    """Wait until a situation has come about; its first line stands on the page."""
    key = shard_id or scene.shard
    try:
        until(lambda: is_now(scene, name, key))
    except AssertionError as error:
        raise AssertionError(f"{name} did not come about: {scene.explain(key)}") from error
    return key


class BrokenParking(IParkingStore):
    def park(self, records: Any) -> None:
        raise OSError("disk full")

    def parked(self, stream_id: str | None = None) -> Iterator[Any]:
        return iter(())

    def remove(self, records: Any) -> None:
        pass


def policy(then: OnFailure, **more: Any) -> FailurePolicy:
    """Make a policy by which the first failure of a record decides."""
    return FailurePolicy(retries=0, first_pause_millis=0, then=then, **more)


STUCK: dict[str, tuple[Callable[[], IRecordProcessor], FailurePolicy | None]] = {
    "caught-up": (Steady, None),
    "processor-fails": (NoDatabase, None),
    "no-checkpoint": (NoCheckpoint, None),
    "record-fails": (BadRecord, policy(OnFailure.STOP_SHARD)),
    "too-many-parked": (
        BadRecord,
        policy(OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=0.1, share_window_records=10),
    ),
    "parking-fails": (BadRecord, policy(OnFailure.PARK, parking=BrokenParking())),
    "left-by-processor": (Done, None),
}


@pytest.mark.parametrize("situation", STUCK)
def test_a_shard_is_as_its_processor_behaves(quick: Scene, situation: str) -> None:
    make, failure_policy = STUCK[situation]
    quick.write(3)
    with working(quick, make, **{} if failure_policy is None else {"failure_policy": failure_policy}):
        check(quick, situation)


def test_reading(quick: Scene) -> None:
    """Of 400 batches, which take longer than the looks at them."""
    quick.write(400)
    with working(quick, lambda: Slow(0.05), max_records=1):
        becomes(quick, "reading")
        until(lambda: quick.lease().progress is not None, "progress is stored")
        check(quick, "reading", observe=0.5)


def test_a_processor_whose_error_speaks_of_something_else_still_fails(quick: Scene) -> None:
    quick.write(3)
    with working(quick, Misleading):
        says(quick, "next start in")
        told = quick.run("explain", quick.shard, "--observe", "0", "--json").document["shards"][0]

    assert told["situation"] == "processor-fails"
    assert Misleading.text in told["first_line"]


def test_user_code_that_runs_long(quick: Scene) -> None:
    with blocked(quick):
        check(quick, "user-code-runs")


def test_the_end_of_a_shard_is_not_checkpointed(quick: Scene) -> None:
    quick.write(40)
    parent = quick.shard
    quick.split()
    with working(quick, NoEnd):
        says(quick, "next start in", parent)
        check(quick, "end-not-stored", parent)


def test_an_executor_with_too_few_threads(quick: Scene) -> None:
    quick.write(40)
    first, second = quick.split()
    quick.put_lease(quick.shard, checkpoint="SHARD_END")
    quick.write(40)
    go = threading.Event()
    with ThreadPoolExecutor(1) as executor, working(quick, lambda: Blocked(go), executor=executor):
        try:
            until(lambda: any(is_now(quick, "waits-for-thread", key) for key in (first, second)), "one of them waits")
            waiting = next(key for key in (first, second) if is_now(quick, "waits-for-thread", key))
            check(quick, "waits-for-thread", waiting)
        finally:
            go.set()


def test_a_processor_that_is_done_and_does_not_return(quick: Scene) -> None:
    go = threading.Event()
    quick.write(3)
    with working(quick, lambda: Done(go)):
        try:
            says(quick, "shutdown has been running")
            check(quick, "owner-says")
        finally:
            go.set()


def test_a_call_that_is_given_up(quick: Scene) -> None:
    with blocked(quick, limits=CallLimits(slow_processor_warning_millis=300, user_code_limit_millis=800)):
        check(quick, "given-up")


def test_a_rewind_under_a_call_that_runs(quick: Scene) -> None:
    """As if somebody wrote the row without the guard: the old call has to return first."""
    with blocked(quick):
        shard = becomes(quick, "user-code-runs")
        for _ in range(20):
            if quick.manager.write_many([rule.rewind(quick.lease(), quick.iterator(after=1))])[0].error is None:
                break
        becomes(quick, "old-processor-runs", shard)
        check(quick, "old-processor-runs")


# --- pauses --------------------------------------------------------------------------------------------------------


def test_a_shard_that_an_operator_paused(quick: Scene) -> None:
    quick.write(3)
    with working(quick, Steady):
        shard = becomes(quick, "caught-up")
        ran = quick.run("leases", "pause", shard, "--reason", "maintenance", "--for", "2h")
        assert ran.code == 0, ran
        check(quick, "paused")


def test_a_pause_that_waits_for_a_call(quick: Scene) -> None:
    with blocked(quick):
        shard = becomes(quick, "user-code-runs")
        quick.run("leases", "pause", shard, "--reason", "maintenance", "--no-wait")
        says(quick, "process_records has been running")
        check(quick, "pause-pending")


def test_a_worker_paused_by_its_own_program(quick: Scene) -> None:
    quick.write(3)
    with working(quick, Steady) as worker:
        becomes(quick, "caught-up")
        worker.pause(reason="weekly report")
        check(quick, "paused-by-program")


def test_a_lease_that_is_asked_for_and_not_handed_over(quick: Scene) -> None:
    with blocked(quick):
        shard = becomes(quick, "user-code-runs")
        with working(quick, Steady, name="w2"):
            until(lambda: len(quick.manager.list_workers()) == 2, "the other worker is there")
            ran = quick.run("leases", "move", shard, "--to", "w2")
            assert ran.code == 0 or "has asked for it already" in ran.out, ran
            says(quick, "process_records has been running")
            assert "asked for it" in check(quick, "not-handed-over")


def test_two_processes_of_one_name(quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one starts while the rows are being read twice."""
    quick.write(3)
    with ExitStack() as stack:
        stack.enter_context(working(quick, Steady))
        shard = becomes(quick, "caught-up")

        def start_another(_: FleetReader, seconds: float) -> None:
            (before,) = quick.manager.list_workers()
            stack.enter_context(working(quick, Steady))
            until(lambda: [row.nonce for row in quick.manager.list_workers()] != [before.nonce], "it registers")

        monkeypatch.setattr(FleetReader, "_pause", start_another)
        check(quick, "name-contested", shard, observe=1.0)


# --- stream and service --------------------------------------------------------------------------------------------


def test_reads_that_are_refused(quick: Scene) -> None:
    quick.write(3)
    quick.local.add_fault(FaultRule(operation="GetStreamRecord", action=Fail("OTSNoPermissionAccess")))
    with working(quick, Steady):
        says(quick, "next attempt in")
        check(quick, "reading-fails")


def cut(page: RecordPage, asked: str) -> RecordPage:
    return evolve(page, records=page.records[:1], next_position=Position.SHARD_END)


def repeated(page: RecordPage, asked: str) -> RecordPage:
    return evolve(page, next_position=Position(asked))


def disturb(monkeypatch: pytest.MonkeyPatch, change: Callable[[RecordPage, str], RecordPage]) -> None:
    """Have pages with records changed on their way, for workers and commands."""
    read = TablestoreStreamApi.get_stream_record

    def get_stream_record(self: TablestoreStreamApi, iterator: str, limit: int | None = None) -> RecordPage:
        page = read(self, iterator, limit)
        return change(page, iterator) if page.records else page

    monkeypatch.setattr(TablestoreStreamApi, "get_stream_record", get_stream_record)


def test_an_end_that_the_list_of_shards_does_not_show_until_it_is_accepted(
    quick: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick.write(3)
    disturb(monkeypatch, cut)
    with working(quick, Steady):
        check(quick, "end-not-shown")
        refused = quick.run("leases", "accept-end", quick.shard, "--reason", "it was closed")
        assert (refused.code, "add --yes" in refused.err) == (2, True)
        assert "would be written" in quick.run("leases", "accept-end", quick.shard, "--dry-run").out
        assert "SHARD_END" not in quick.lease().checkpoint
        done = quick.run("leases", "accept-end", quick.shard, "--yes", "--reason", "it was closed")
        assert done.code == 0, done
        until(lambda: quick.lease().is_finished, "the worker believes it")
        again = quick.run("leases", "accept-end", quick.shard, "--yes")
        assert (again.code, "its end is stored" in again.out) == (1, True)
    audit = quick.run("leases", "audit").out
    assert "accept-end" in audit
    assert "it was closed" in audit


def test_an_end_that_is_shown_or_that_the_service_does_not_tell_is_not_accepted(quick: Scene) -> None:
    quick.write(3)
    quick.put_lease(quick.shard)
    is_open = quick.run("leases", "accept-end", quick.shard, "--yes")
    assert "the service does not say that it has ended" in is_open.out
    parent = quick.shard
    children = quick.split()
    is_shown = quick.run("leases", "accept-end", parent, "--yes")

    assert (is_open.code, is_shown.code) == (1, 1)
    assert "its end is shown: its children are" in is_shown.out
    assert all(child in is_shown.out for child in children)


def test_a_service_that_makes_no_progress(quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning of a shard no position tells; what was read before does then."""
    quick.write(3)
    quick.put_lease(quick.shard, checkpoint=quick.iterator(after=1))
    disturb(monkeypatch, repeated)
    with working(quick, Steady):
        check(quick, "no-progress")


def test_shards_that_are_each_others_parents(quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    quick.write(3)
    low, high = quick.split()
    describe = TablestoreStreamApi.describe_stream

    def describe_stream(self: TablestoreStreamApi, stream_id: str) -> StreamDescription:
        found = describe(self, stream_id)
        turned = {low: Shard(low, high), high: Shard(high, low)}
        return evolve(found, shards=tuple(turned.get(shard.shard_id, shard) for shard in found.shards))

    monkeypatch.setattr(TablestoreStreamApi, "describe_stream", describe_stream)
    with working(quick, Steady):
        becomes(quick, "parent-circle", low)
        check(quick, "parent-circle", high)


def test_a_position_that_was_trimmed(quick: Scene) -> None:
    quick.write(5)
    quick.put_lease(quick.shard, checkpoint=quick.iterator(after=1))
    quick.local.trim(TABLE, keep_last=1)
    with working(quick, Steady):
        until(lambda: "accept_loss" in quick.explain() or "up to before" in quick.explain(), "the worker says it")
        check(quick, "position-trimmed")


def test_an_epoch_that_cannot_be_drawn(quick: Scene) -> None:
    """Single rows cannot be read when the lease is handed to the worker."""
    quick.write(3)
    quick.put_lease(quick.shard, "java-1")
    with working(quick, Steady):
        until(lambda: bool(quick.manager.list_workers()), "the worker has registered")
        quick.local.add_fault(FaultRule(operation="BatchGetRow", table=STATUS, action=Fail("OTSServerBusy")))
        quick.send(rule.transfer(quick.lease(), "w1"))
        says(quick, "OTSServerBusy")
        check(quick, "waits-for-table")
        quick.local.clear_faults()


def test_a_worker_that_is_unwell(quick: Scene) -> None:
    """A scan fails, heartbeats do not. Beside a worker without session row no other scan comes before it is due."""
    quick.write(3)
    parent = quick.shard
    shard, other = quick.split()
    quick.put_lease(parent, "java-1", checkpoint="SHARD_END")
    quick.put_lease(other, "java-1", parents=[parent])
    config = {
        "max_duration_before_last_successful_renew_or_take_lease": 500,
        "taker_interval_millis": FOREVER_MILLIS,
        "lease_duration_millis": 3 * FOREVER_MILLIS,
        "sync_shard_interval_millis": FOREVER_MILLIS,
    }
    with working(quick, Steady, **config):
        becomes(quick, "caught-up", shard)
        fault = quick.local.add_fault(FaultRule(operation="GetRange", table=STATUS, action=Fail("OTSServerBusy")))
        quick.manager.wake(["w1"])
        until(lambda: "OTSServerBusy" in published(quick, "w1").trouble, "it says that it is unwell")
        quick.local.remove_fault(fault)
        check(quick, "owner-unwell", shard)


def published(scene: Scene, name: str) -> WorkerInfo:
    """What a worker tells, read without a scan."""
    _, row, _ = scene.client.get_row(STATUS, key_of(scene.stream_id, name, WORKER_STATUS_TYPE), max_version=1)
    cells = {} if row is None else {each[0]: each[1] for each in row.attribute_columns}
    return WorkerInfo.from_json(cells.get(INFO, ""))


# --- processes -----------------------------------------------------------------------------------------------------


def start_process(scene: Scene, fleet: Fleet, name: str) -> WorkerProcess:
    local = scene.local
    words = [local.endpoint, local.access_key_id, local.access_key_secret, local.instance, TABLE, STATUS, name]
    return fleet.start(name, [str(HERE / "worker_process.py"), *words], {"PYTHONPATH": f"{HERE.parents[1]}"})


def test_a_process_that_is_stopped_and_then_killed(quick: Scene, tmp_path: Path) -> None:
    """SIGSTOP, then ``kill -9``, on this machine: named at once, then until the lease expires, then for good."""
    quick.write(3)
    with Fleet(tmp_path) as fleet:
        process = start_process(quick, fleet, "w1")
        shard = becomes(quick, "caught-up")
        pid = published(quick, "w1").pid
        os.kill(pid, signal.SIGSTOP)
        check(quick, "owner-frozen")
        process.kill()
        line = quick.explain()
        assert "whose process is gone" in line or "has a dead owner" in line
        becomes(quick, "owner-dead-alone", shard)
        check(quick, "owner-dead-alone")


def test_a_key_that_is_refused_for_a_while_ends_no_running_worker(quick: Scene) -> None:
    """As the advice says: its leases run out meanwhile, and it takes leases again once the service admits it."""
    quick.write(3)
    with working(quick, Steady) as worker:
        shard = becomes(quick, "caught-up")
        before = quick.lease(shard)
        fault = quick.local.add_fault(FaultRule(operation="*", action=Fail("OTSAuthFailed")))
        until(lambda: not worker.shard_statuses(), "its leases have run out")
        quick.local.remove_fault(fault)
        becomes(quick, "caught-up", shard)

        assert quick.lease(shard).counter > before.counter
        assert not worker.wait(0), "it goes on"


def test_a_worker_that_is_refused_at_its_start_ends(quick: Scene) -> None:
    quick.local.add_fault(FaultRule(operation="*", action=Fail("OTSAuthFailed")))
    with pytest.raises(WorkerFailedError, match="OTSAuthFailed"), working(quick, Steady) as worker:
        worker.wait(PATIENCE_SECONDS)


def test_a_worker_names_a_wrong_clock_and_goes_on_once_it_is_right(
    quick: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick.write(3)
    named = "this machine's clock is wrong"
    real_time = http_service.real_time
    with working(quick, Steady, max_duration_before_last_successful_renew_or_take_lease=500) as worker:
        shard = becomes(quick, "caught-up")
        with monkeypatch.context() as moved:
            moved.setattr(http_service, "real_time", lambda: real_time() + timedelta(minutes=20))
            until(lambda: named in worker.health.reason, lambda: worker.health)
            with pytest.raises(WorkerFailedError, match=named), working(quick, Steady, name="w2") as other:
                other.wait(PATIENCE_SECONDS)
        becomes(quick, "caught-up", shard)
        assert not worker.wait(0), "it goes on"


def test_records_that_were_parked(quick: Scene) -> None:
    """Told by the fleet's commands, and of the shard; the number is there as soon as the first heartbeat after it."""
    quick.write(3)
    parks = policy(OnFailure.PARK, parking=MemoryParkingStore())
    with working(quick, lambda: BadKey("key-00"), failure_policy=parks):
        until(lambda: published(quick, "w1").parked == 1, "it publishes the number")
        becomes(quick, "caught-up")
        told = quick.run("explain", "--json", "--observe", "0").document["verdict"]
        (trouble,) = told["troubles"]
        texts = [quick.run(*words).out for words in (["explain"], ["top", "--once"], ["leases", "report"])]
        of_shard = quick.run("explain", quick.shard, "--observe", "0").out

    assert is_told(trouble, "records-parked")
    assert trouble["advice"] in texts[0]
    assert told["is_well"]
    assert all("1 record was parked since its worker started (worker w1: 1)" in text for text in texts)
    assert "parked: 1 since worker w1 started; `streamclient parked list` names the parked records" in of_shard


def test_a_shard_whose_last_record_was_parked_has_nothing_left_to_read(quick: Scene) -> None:
    """Its processor stores every position itself, so no checkpoint is stored after it until the next record comes."""

    class Strict(BadKey):
        def initialize(self, initialization_input: InitializationInput) -> None:
            initialization_input.checkpointer.store_only_requests()

    quick.write(2)
    parks = policy(OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0)
    with working(quick, lambda: Strict("key-02"), failure_policy=parks):
        becomes(quick, "caught-up")
        quick.write(1, start=2)
        until(lambda: published(quick, "w1").set_aside == (quick.shard,), "it says that the record is set aside")
        until(lambda: lease_of(quick)["checkpoint_seconds"] > LEASE_SECONDS, "its checkpoint stands still")
        line = check(quick, "caught-up")
        told = quick.run("explain", "--json", "--observe", "0").document["verdict"]
        lag = lease_of(quick)["lag_seconds"]
        quick.write(1, start=3)
        until(lambda: published(quick, "w1").set_aside == (), "a checkpoint after it is stored")

    assert line.endswith("; the records after its checkpoint are parked or skipped.")
    assert told["is_well"], told
    assert lag == 0.0


def lease_of(scene: Scene) -> Any:
    (lease,) = scene.run("leases", "list", "--json").document["leases"]
    return lease


def test_leases_are_judged_by_the_duration_that_workers_publish(quick: Scene) -> None:
    quick.write(3)
    with working(quick, Steady):
        becomes(quick, "caught-up")
        document = quick.run("leases", "list", "--json").document

    assert document["lease_duration_seconds"] == LEASE_SECONDS
