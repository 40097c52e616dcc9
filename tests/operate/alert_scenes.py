"""Each fault of the page on alerts, played by real workers over real HTTP, with the expositions that they show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from alert_samples import MEASURED_SECONDS, SAMPLE_SECONDS, Phase, Shot, let_time_pass, scraped, shot
from attrs import evolve
from operate_scene import STATUS, TABLE, Scene
from prometheus_client import CollectorRegistry, generate_latest
from stuck_workers import (
    QUICK,
    BadRecord,
    Blocked,
    Done,
    NoCheckpoint,
    NoDatabase,
    NoEnd,
    Slow,
    Steady,
    working,
)
from test_operate_stuck_workers import HERE, BrokenParking, becomes, cut, disturb, policy, repeated

from streamclient import (
    Backoff,
    CallLimits,
    ClientConfig,
    IRecordProcessor,
    OnFailure,
    ProcessRecordsInput,
    StreamConfig,
    Worker,
)
from streamclient.core import leases as rule
from streamclient.metrics import PrometheusMetrics
from streamclient.metrics import metric_table as t
from streamclient.model import Metric, Shard
from streamclient.server import Fail, FaultRule
from streamclient.tablestore import StreamSpecification
from streamclient.tablestore.stream_api import StreamDescription
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.testing.fleet import Fleet
from streamclient.worker import coordinator
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.runtime import Runtime
from tests.patience import FOREVER_MILLIS, until

BEFORE_MINUTES = 60
"""How long all is well, where a fault comes later."""

FAULT_MINUTES = 6 * 60
"""How long a fault lasts: longer than any rule waits."""

STEADY_SECONDS = 3.0
"""How long calls that fail are measured: they are repeated after growing pauses."""

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for a process that is stopped."""

AGAIN = Backoff(restart_backoff_min_millis=50, restart_backoff_max_millis=100)
"""Starts that follow each other so soon that a moment shows how they go on."""

UNWELL: dict[str, Any] = {
    "max_duration_before_last_successful_renew_or_take_lease": 500,
}
"""Calls that fail for half a second make these workers unhealthy."""

SOON_LOST: dict[str, Any] = {**UNWELL, "lease_duration_millis": 1_500}
"""The same, and their leases are lost soon."""


class Play:
    """A fault that is played: its tables, its workers, and what they show."""

    def __init__(self, scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = scene
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.phases: list[Phase] = []
        self._registries: dict[str, Callable[[], str]] = {}
        monkeypatch.setattr(coordinator, "SAMPLE_SECONDS", SAMPLE_SECONDS)

    def metrics(self, instance: str = "a") -> PrometheusMetrics:
        """Those of one more process."""
        registry = CollectorRegistry()
        self._registries[instance] = lambda: generate_latest(registry).decode()
        return PrometheusMetrics(registry)

    def scrape(self, instance: str, url: str) -> None:
        """Scrape a process at its endpoint from now on."""
        self._registries[instance] = lambda: scraped(url, SCRAPE_SECONDS)

    def shot(self) -> Shot:
        values: dict[str, float] = {}
        for instance, text in self._registries.items():
            values |= shot(text(), instance=instance).values
        return Shot(time.monotonic(), values)

    def take(self, minutes: int = FAULT_MINUTES, seconds: float = MEASURED_SECONDS) -> None:
        """Measure the present state for some seconds; it then lasts for all these minutes."""
        first = self.shot()
        let_time_pass(seconds)
        self.phases.append(Phase(minutes, first, self.shot()))

    @contextmanager
    def working(
        self, make: Callable[[], IRecordProcessor], metrics: PrometheusMetrics | None = None, **config: Any
    ) -> Iterator[Worker]:
        with working(self.scene, make, metrics=metrics or self.metrics(), **config) as worker:
            yield worker

    @contextmanager
    def blocked(self, **config: Any) -> Iterator[Worker]:
        """A worker inside a call, which is let go at the end."""
        go = threading.Event()
        self.scene.write(3)
        with self.working(lambda: Blocked(go), **config) as worker:
            try:
                yield worker
            finally:
                go.set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Records that keep coming."""
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.wait(0.02):
                self.scene.write(start=(number := number + 1))

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def grows(metrics: PrometheusMetrics, metric: Metric, by: int = 3, **labels: str) -> None:
    """Wait until a figure has grown by so many."""
    before = metrics.value(metric, **labels) or 0
    until(lambda: (metrics.value(metric, **labels) or 0) >= before + by, metric.name)


def shows(metrics: PrometheusMetrics, metric: Metric, value: float, **labels: str) -> None:
    """Wait until a figure is this."""
    until(lambda: metrics.value(metric, **labels) == value, f"{metric.name} {labels} {value}")


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
    limits = CallLimits(slow_processor_warning_millis=300, user_code_limit_millis=2_500)
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


# --- stream and service ----------------------------------------------------------------------------------------------


def faulty(
    befalls: Callable[[Scene], None], reached: Callable[[Play, PrometheusMetrics], None], **config: Any
) -> Callable[..., None]:
    """A worker that was well, and what befalls it then."""

    def play_it(play: Play, minutes: int = FAULT_MINUTES) -> None:
        metrics = play.metrics()
        play.scene.write(3)
        with play.working(Steady, metrics, **config):
            becomes(play.scene, "caught-up")
            play.take(BEFORE_MINUTES)
            befalls(play.scene)
            try:
                reached(play, metrics)
                play.take(minutes, STEADY_SECONDS)
            finally:
                with suppress(RuntimeError):  # it was stopped
                    play.scene.local.clear_faults()

    return play_it


def fails(operation: str, code: str, table: str | None = None, **often: Any) -> Callable[[Scene], None]:
    def add(scene: Scene) -> None:
        scene.local.add_fault(FaultRule(operation, Fail(code), table=table, **often))

    return add


def is_unhealthy(play: Play, metrics: PrometheusMetrics) -> None:
    shows(metrics, t.UNHEALTHY, 1)


def has_lost_all(play: Play, metrics: PrometheusMetrics) -> None:
    """The lease could not be renewed, so nothing is held, and the shard is free for any worker."""
    shows(metrics, t.LEASES, 0, state="running")
    shows(metrics, t.UNOWNED_SHARDS, 1)
    shows(metrics, t.UNHEALTHY, 1)


def is_reading_failing(play: Play, metrics: PrometheusMetrics) -> None:
    """The lag is told on: from the last read that found nothing more."""
    shows(metrics, t.SHARDS, 1, cause="reading_failed")
    shows(metrics, t.UNHEALTHY, 1)
    until(lambda: (metrics.value(t.LAG_SECONDS) or 0) > 0, "the lag grows")


def throttles(metric: Metric) -> Callable[[Play, PrometheusMetrics], None]:
    return lambda play, metrics: grows(metrics, metric, 5, result="throttled")


reading_fails = faulty(fails("GetStreamRecord", "OTSNoPermissionAccess"), is_reading_failing, **UNWELL)
scans_fail = faulty(fails("GetRange", "OTSServerBusy", STATUS), is_unhealthy, **UNWELL)
access_refused = faulty(fails("*", "OTSAuthFailed"), has_lost_all, **SOON_LOST)
throttled = faulty(fails("*", "OTSServerBusy", STATUS, probability=0.3), throttles(t.STATUS_TABLE_REQUESTS))
stream_throttled = faulty(fails("GetStreamRecord", "OTSServerBusy", probability=0.5), throttles(t.STREAM_REQUESTS))
no_status_table = faulty(lambda scene: scene.client.delete_table(STATUS), has_lost_all, **SOON_LOST)
unreachable = faulty(lambda scene: scene.local.stop(), has_lost_all, **SOON_LOST)


def switch(scene: Scene, *states: bool) -> None:
    for is_on in states:
        hours = 24 if is_on else None
        scene.streams.update_table(TABLE, stream=StreamSpecification(enable_stream=is_on, expiration_time_hours=hours))


stream_off = faulty(lambda scene: switch(scene, False), is_reading_failing, **UNWELL)
stream_replaced = faulty(lambda scene: switch(scene, False, True), is_reading_failing, **UNWELL)


def reading_fails_for_a_day(play: Play) -> None:
    reading_fails(play, 20 * 60)


def position_trimmed(play: Play) -> None:
    scene = play.scene
    scene.write(5)
    scene.put_lease(scene.shard, checkpoint=scene.iterator(after=1))
    scene.local.trim(TABLE, keep_last=1)
    metrics = play.metrics()
    with play.working(Steady, metrics):
        shows(metrics, t.SHARDS, 1, cause="loss")
        play.take()


def not_believed(play: Play, cause: str) -> None:
    metrics = play.metrics()
    play.scene.write(3)
    with play.working(Steady, metrics, **UNWELL):
        shows(metrics, t.SHARDS, 1, cause=cause)
        shows(metrics, t.UNHEALTHY, 1)
        play.take()


def end_not_shown(play: Play) -> None:
    disturb(play.monkeypatch, cut)
    not_believed(play, "end_not_shown")


def no_progress(play: Play) -> None:
    play.scene.write(3)
    play.scene.put_lease(play.scene.shard, checkpoint=play.scene.iterator(after=1))
    disturb(play.monkeypatch, repeated)
    not_believed(play, "no_progress")


def parent_circle(play: Play) -> None:
    scene, metrics = play.scene, play.metrics()
    scene.write(3)
    low, high = scene.split()
    describe = TablestoreStreamApi.describe_stream

    def describe_stream(self: TablestoreStreamApi, stream_id: str) -> StreamDescription:
        found = describe(self, stream_id)
        turned = {low: Shard(low, high), high: Shard(high, low)}
        return evolve(found, shards=tuple(turned.get(shard.shard_id, shard) for shard in found.shards))

    play.monkeypatch.setattr(TablestoreStreamApi, "describe_stream", describe_stream)
    with play.working(Steady, metrics, **UNWELL):
        shows(metrics, t.SHARDS, 1, cause="end_not_shown")  # of their parent
        shows(metrics, t.UNHEALTHY, 1)
        until(lambda: (metrics.value(t.LAG_SECONDS) or 0) > 0, "the lag grows")
        play.take()


def waits_for_table(play: Play) -> None:
    scene, metrics = play.scene, play.metrics()
    scene.write(3)
    scene.put_lease(scene.shard, "java-1")
    with play.working(Steady, metrics, max_duration_before_last_successful_renew_or_take_lease=500):
        until(lambda: bool(scene.manager.list_workers()), "the worker has registered")
        scene.local.add_fault(FaultRule("BatchGetRow", Fail("OTSServerBusy"), table=STATUS))
        scene.send(rule.transfer(scene.lease(), "w1"))
        shows(metrics, t.SHARDS, 1, cause="epoch")
        shows(metrics, t.UNHEALTHY, 1)
        play.take()
        scene.local.clear_faults()


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
        play.scrape("a", f"http://127.0.0.1:{port.read_text()}/metrics")
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
    with Worker("w1", ClientConfig(metrics=metrics, **QUICK), stream, Steady, runtime=slow):
        until(lambda: (metrics.value(t.CLOCK_SLOW_SECONDS) or 0) > 60, "it is slow")
        play.take()


def leases_lost(play: Play) -> None:
    """Once measured, and then as often as that goes on."""
    scene, metrics = play.scene, play.metrics()
    scene.write(3)
    with play.working(Steady, metrics, lease_duration_millis=1_500):
        for lost in (1, 2):
            shows(metrics, t.LAG_SECONDS, 0)
            first = play.shot()
            fault = scene.local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), table=STATUS))
            shows(metrics, t.LEASE_MOVES, lost, move="lost")
            shows(metrics, t.LEASES, 0, state="running")
            scene.local.remove_fault(fault)
            shows(metrics, t.LEASES, 1, state="running")
        shows(metrics, t.LAG_SECONDS, 0)
        play.phases.append(Phase(FAULT_MINUTES, first, play.shot()))


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


@contextmanager
def playing(scene: Scene, folder: Path) -> Iterator[Play]:
    with pytest.MonkeyPatch.context() as monkeypatch, ExitStack():
        yield Play(scene, folder, monkeypatch)


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
    "paused": paused,
    "pause-pending": pause_pending,
    "paused-by-program": paused_by_program,
    "not-handed-over": not_handed_over,
    "name-contested": name_contested,
    "reading-fails": reading_fails,
    "reading-fails-for-a-day": reading_fails_for_a_day,
    "owner-unwell": scans_fail,
    "access-refused": access_refused,
    "throttled": throttled,
    "stream-throttled": stream_throttled,
    "no-status-table": no_status_table,
    "stream-off": stream_off,
    "stream-replaced": stream_replaced,
    "unreachable": unreachable,
    "position-trimmed": position_trimmed,
    "end-not-shown": end_not_shown,
    "no-progress": no_progress,
    "parent-circle": parent_circle,
    "waits-for-table": waits_for_table,
    "owner-frozen": owner_frozen,
    "owner-dead-alone": owner_dead_alone,
    "clock-slow": clock_slow,
    "leases-lost": leases_lost,
    "cost-doubled": cost_doubled,
}
"""By the name in the page's table of faults."""
