"""Each fault of the page on alerts, played by real workers over real HTTP; those of the service are beside this."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import alert_service_scenes as service
from alert_play import AGAIN, BEFORE_MINUTES, FAULT_MINUTES, Play, grows, shows
from operate_scene import STATUS, TABLE, Scene
from stuck_workers import QUICK, BadRecord, Blocked, Done, NoCheckpoint, NoDatabase, NoEnd, Slow, Steady
from test_operate_stuck_workers import HERE, BrokenParking, becomes, policy

from streamclient import (
    CallLimits,
    ClientConfig,
    IRecordProcessor,
    OnFailure,
    ProcessRecordsInput,
    StreamConfig,
    Worker,
)
from streamclient.core import leases as rule
from streamclient.metrics import metric_table as t
from streamclient.server import Fail, FaultRule
from streamclient.testing.fleet import Fleet
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.runtime import Runtime
from tests.patience import FOREVER_MILLIS, until

# --- nothing is wrong ------------------------------------------------------------------------------------------------


def caught_up(play: Play) -> None:
    play.scene.write(3)
    with play.working(Steady):
        becomes(play.scene, "caught-up")
        play.take()


def reading(play: Play) -> None:
    metrics = play.metrics()
    with play.writing(), play.working(lambda: Slow(0.01), metrics):
        grows(metrics, t.RECORDS_PROCESSED)
        play.take()


# --- the processor ---------------------------------------------------------------------------------------------------


def stuck(situation: str, make: Callable[[], IRecordProcessor], **config: Any) -> Callable[[Play], None]:
    """A worker whose processor behaves like this."""

    def play_it(play: Play) -> None:
        play.scene.write(3)
        with play.working(make, **{"backoff": AGAIN, **config}):
            becomes(play.scene, situation)
            play.take()

    return play_it


def processor_fails(play: Play) -> None:
    metrics = play.metrics()
    play.scene.write(3)
    with play.working(NoDatabase, metrics, backoff=AGAIN):
        grows(metrics, t.USER_CODE_FAILURES)
        play.take()


def too_many_parked(play: Play) -> None:
    park = policy(OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=0.1, share_window_records=10)
    with play.working(BadRecord, failure_policy=park):
        becomes(play.scene, "caught-up")
        play.take(BEFORE_MINUTES)
        play.scene.write(3)
        becomes(play.scene, "too-many-parked")
        play.take()


def no_checkpoint(play: Play) -> None:
    metrics = play.metrics()
    with play.writing(), play.working(NoCheckpoint, metrics):
        grows(metrics, t.RECORDS_PROCESSED)
        play.take()


def left_by_processor(play: Play) -> None:
    metrics = play.metrics()
    play.scene.write(3)
    with play.working(Done, metrics):
        becomes(play.scene, "left-by-processor")
        shows(metrics, t.UNOWNED_SHARDS, 1)
        play.take()


def user_code_runs(play: Play) -> None:
    with play.blocked():
        becomes(play.scene, "user-code-runs")
        play.take()


def end_not_stored(play: Play) -> None:
    metrics = play.metrics()
    play.scene.write(40)
    play.scene.split()
    with play.working(NoEnd, metrics, backoff=AGAIN):
        grows(metrics, t.USER_CODE_FAILURES, call="end_not_stored")
        play.take()


def waits_for_thread(play: Play) -> None:
    scene, go = play.scene, threading.Event()
    parent = scene.shard
    scene.write(40)
    scene.split()
    scene.put_lease(parent, checkpoint="SHARD_END")
    scene.write(40)
    metrics = play.metrics()
    with ThreadPoolExecutor(1) as executor, play.working(lambda: Blocked(go), metrics, executor=executor):
        try:
            shows(metrics, t.SHARDS, 1, cause="call_queued")
            shows(metrics, t.SHARDS, 1, cause="call_runs")
            play.take()
        finally:
            go.set()


def owner_says(play: Play) -> None:
    go = threading.Event()
    play.scene.write(3)
    with play.working(lambda: Done(go)):
        try:
            becomes(play.scene, "owner-says")
            play.take()
        finally:
            go.set()


def given_up(play: Play) -> None:
    """The call has run for a while when it exceeds its limit; then its lease is lost, and nobody reads the shard."""
    metrics = play.metrics()
    limits = CallLimits(slow_processor_warning_millis=300, user_code_limit_millis=10_000)
    with play.blocked(metrics=metrics, limits=limits):
        shows(metrics, t.SHARDS, 1, cause="call_runs")
        play.take(5)
        shows(metrics, t.STALLS, 1)
        becomes(play.scene, "given-up")
        shows(metrics, t.LEASE_MOVES, 1, move="lost")
        play.take()


def old_processor_runs(play: Play) -> None:
    with play.blocked():
        shard = becomes(play.scene, "user-code-runs")
        until(lambda: rewound(play.scene))
        becomes(play.scene, "old-processor-runs", shard)
        play.take()


def rewound(scene: Scene) -> bool:
    (answer,) = scene.manager.write_many([rule.rewind(scene.lease(), scene.iterator(after=1))])
    return answer.error is None


class BadKey(Steady):
    """Fails at one record."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if any(record.key["id"] == "key-07" for record in process_records_input.records):
            raise ValueError("key-07")
        super().process_records(process_records_input)


def records_parked(play: Play) -> None:
    metrics = play.metrics()
    park = policy(OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0)
    play.scene.write(3)
    with play.working(BadKey, metrics, failure_policy=park):
        becomes(play.scene, "caught-up")
        play.take(BEFORE_MINUTES)
        play.scene.write(1, start=7)
        shows(metrics, t.RECORDS_PARKED, 1)
        shows(metrics, t.LAG_SECONDS, 0)
        play.take()


def records_parked_at_once(play: Play) -> None:
    metrics = play.metrics()
    park = policy(OnFailure.PARK, parking=MemoryParkingStore(), most_parked_share=1.0)
    play.scene.write(8)
    with play.working(BadKey, metrics, failure_policy=park):
        shows(metrics, t.RECORDS_PARKED, 1)
        shows(metrics, t.LAG_SECONDS, 0)
        play.take()


# --- pauses, hand-overs, names ---------------------------------------------------------------------------------------


def paused(play: Play) -> None:
    play.scene.write(3)
    with play.working(Steady):
        shard = becomes(play.scene, "caught-up")
        play.take(BEFORE_MINUTES)
        assert play.scene.run("leases", "pause", shard, "--reason", "maintenance").code == 0
        becomes(play.scene, "paused")
        play.take()


def pause_pending(play: Play) -> None:
    with play.blocked():
        shard = becomes(play.scene, "user-code-runs")
        play.scene.run("leases", "pause", shard, "--reason", "maintenance", "--no-wait")
        becomes(play.scene, "pause-pending")
        play.take()


def paused_by_program(play: Play) -> None:
    play.scene.write(3)
    with play.working(Steady) as worker:
        becomes(play.scene, "caught-up")
        play.take(BEFORE_MINUTES)
        worker.pause(reason="weekly report")
        becomes(play.scene, "paused-by-program")
        play.take()


def not_handed_over(play: Play) -> None:
    scene = play.scene
    with play.blocked():
        shard = becomes(scene, "user-code-runs")
        with play.working(Steady, play.metrics("b"), name="w2"):
            until(lambda: len(scene.manager.list_workers()) == 2, "the other worker is there")
            scene.run("leases", "move", shard, "--to", "w2")
            becomes(scene, "not-handed-over", shard)
            play.take()


def name_contested(play: Play) -> None:
    scene, older = play.scene, play.metrics()
    scene.write(3)
    with play.working(Steady, older):
        becomes(scene, "caught-up")
        play.take(BEFORE_MINUTES)
        with play.working(Steady, play.metrics("b")):
            shows(older, t.UNHEALTHY, 1)
            play.take()


# --- processes, clocks, cost -----------------------------------------------------------------------------------------


def process(play: Play, end: Callable[[Any], None]) -> None:
    """A worker in a process of its own, which Prometheus scrapes."""
    scene, local, port = play.scene, play.scene.local, play.folder / "port"
    scene.write(3)
    words = [local.endpoint, local.access_key_id, local.access_key_secret, local.instance, TABLE, STATUS, "w1"]
    with Fleet(play.folder) as fleet:
        program = [f"{HERE / 'worker_process.py'}", *words, f"{port}"]
        worker = fleet.start("w1", program, {"PYTHONPATH": f"{HERE.parents[1]}"})
        until(port.exists, "it serves its metrics")
        play.scrape("a", int(port.read_text()))
        becomes(scene, "caught-up")
        play.take(BEFORE_MINUTES)
        end(worker)
        play.take()


def owner_frozen(play: Play) -> None:
    process(play, lambda worker: worker.freeze())


def owner_dead_alone(play: Play) -> None:
    process(play, lambda worker: worker.kill())


def clock_slow(play: Play) -> None:
    metrics = play.metrics()
    client = play.scene.local.client()
    stream = StreamConfig(client=client, data_table_name=TABLE, status_table_name=STATUS)
    slow = Runtime(wall_micros=lambda: time.time_ns() // 1_000 - 120_000_000)
    play.scene.write(3)
    worker = Worker("w1", ClientConfig(metrics=metrics, **QUICK), stream, Steady, runtime=slow)
    with worker, play.probing(worker):
        until(lambda: (metrics.value(t.CLOCK_SLOW_SECONDS) or 0) > 60, "it is slow")
        play.take()


def leases_lost(play: Play) -> None:
    """Once measured, and then as often as that goes on."""
    scene, metrics = play.scene, play.metrics()
    scene.write(3)
    with play.working(Steady, metrics):
        for lost in (1, 2):
            shows(metrics, t.LAG_SECONDS, 0)
            first = play.shot()
            fault = scene.local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), table=STATUS))
            shows(metrics, t.LEASE_MOVES, lost, move="lost")
            shows(metrics, t.LEASES, 0, state="running")
            scene.local.remove_fault(fault)
            shows(metrics, t.LEASES, 1, state="running")
        shows(metrics, t.LAG_SECONDS, 0)
        play.end_phase(FAULT_MINUTES, first)


def cost_doubled(play: Play) -> None:
    """A day with the usual intervals, and then an hour or two with those of a test."""
    scene, metrics = play.scene, play.metrics()
    usual = {name: getattr(ClientConfig(), name) for name in QUICK if name.endswith("interval_millis")}
    scene.write(3)
    with play.working(Steady, metrics, **{**usual, "lease_duration_millis": FOREVER_MILLIS}):
        becomes(scene, "caught-up")
        play.take(26 * 60)
    with play.writing(), play.working(Steady, metrics):
        grows(metrics, t.RECORDS_PROCESSED)
        play.take(3 * 60)


SCENES: dict[str, Callable[[Play], None]] = {
    "caught-up": caught_up,
    "reading": reading,
    "processor-fails": processor_fails,
    "record-fails": stuck("record-fails", BadRecord, failure_policy=policy(OnFailure.STOP_SHARD)),
    "too-many-parked": too_many_parked,
    "parking-fails": stuck("parking-fails", BadRecord, failure_policy=policy(OnFailure.PARK, parking=BrokenParking())),
    "no-checkpoint": no_checkpoint,
    "left-by-processor": left_by_processor,
    "user-code-runs": user_code_runs,
    "end-not-stored": end_not_stored,
    "waits-for-thread": waits_for_thread,
    "owner-says": owner_says,
    "given-up": given_up,
    "old-processor-runs": old_processor_runs,
    "records-parked": records_parked,
    "records-parked-at-once": records_parked_at_once,
    "paused": paused,
    "pause-pending": pause_pending,
    "paused-by-program": paused_by_program,
    "not-handed-over": not_handed_over,
    "name-contested": name_contested,
    "reading-fails": service.reading_fails,
    "reading-fails-for-a-day": service.reading_fails_for_a_day,
    "owner-unwell": service.scans_fail,
    "access-refused": service.access_refused,
    "throttled": service.throttled,
    "stream-throttled": service.stream_throttled,
    "no-status-table": service.no_status_table,
    "stream-off": service.stream_off,
    "stream-replaced": service.stream_replaced,
    "unreachable": service.unreachable,
    "position-trimmed": service.position_trimmed,
    "end-not-shown": service.end_not_shown,
    "no-progress": service.no_progress,
    "parent-circle": service.parent_circle,
    "waits-for-table": service.waits_for_table,
    "tunnel-losses-suspected": service.tunnel_losses_suspected,
    "channel-given-up": service.channel_given_up,
    "owner-frozen": owner_frozen,
    "owner-dead-alone": owner_dead_alone,
    "clock-slow": clock_slow,
    "leases-lost": leases_lost,
    "cost-doubled": cost_doubled,
}
"""By the name in the page's table of faults."""
