"""Faults of the page on alerts that lie in the stream, the status table or the service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from alert_play import BEFORE_MINUTES, FAULT_MINUTES, SOON_LOST, STEADY_SECONDS, UNWELL, Play, grows, shows
from attrs import evolve
from operate_scene import STATUS, TABLE, Scene
from stuck_workers import Steady
from test_operate_stuck_workers import becomes, cut, disturb, repeated

from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.core import leases as rule
from streamclient.metrics import PrometheusMetrics
from streamclient.metrics import metric_table as t
from streamclient.model import Metric, Shard
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import StreamSpecification
from streamclient.tablestore.stream_api import StreamDescription
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tunnel import TunnelType, TunnelWorker, TunnelWorkerConfig
from streamclient.tunnel.log_watch import Suspicion
from streamclient.worker.runtime import Runtime
from tests.patience import until
from tests.tunnel.tunnel_scene import Log, quick
from tests.tunnel.tunnel_scene import Scene as TunnelScene


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
    with play.working(Steady, metrics, **UNWELL):
        until(lambda: bool(scene.manager.list_workers()), "the worker has registered")
        scene.local.add_fault(FaultRule("BatchGetRow", Fail("OTSServerBusy"), table=STATUS))
        scene.send(rule.transfer(scene.lease(), "w1"))
        shows(metrics, t.SHARDS, 1, cause="epoch")
        shows(metrics, t.UNHEALTHY, 1)
        play.take()
        scene.local.clear_faults()


def tunnel_losses_suspected(play: Play) -> None:
    """A worker whose clock is ahead, as the server's is: what nobody read in the meantime was past the retention."""
    metrics, hours = play.metrics(), 25
    with LocalTablestore(tunnels_skip_lost_log=True) as local:
        scene, log = TunnelScene(local), Log()
        tunnel_id = scene.tunnel(TunnelType.STREAM)
        scene.put(1)
        with scene.worker(tunnel_id, log):
            until(lambda: len(log.records) == 1, "the first record")
        scene.put(2)
        local.advance_clock(hours * 3_600)
        scene.put(3)
        config = TunnelWorkerConfig(heartbeat_interval_seconds=1, client_config=quick(metrics=metrics))
        later = Runtime(wall_micros=lambda: now_micros() + hours * MICROS_PER_HOUR)
        worker = TunnelWorker(tunnel_id, scene.tunnels, log, config, runtime=later)
        with worker, play.probing(worker):
            for suspicion in Suspicion:
                shows(metrics, t.SUSPECTED_LOSSES, 1, cause=suspicion.value)
            until(lambda: len(log.records) == 2, "the record that is left")
            play.take()


def channel_given_up(play: Play) -> None:
    """A worker that the service gives a channel, and not the channel's checkpoint."""
    metrics = play.metrics()
    with LocalTablestore() as local:
        scene = TunnelScene(local)
        tunnel_id = scene.tunnel(TunnelType.STREAM)
        local.add_fault(FaultRule("tunnel/getcheckpoint", Fail("OTSParameterInvalid", "channel not exist")))
        worker = scene.worker(tunnel_id, Log(), client_config=quick(metrics=metrics, **UNWELL))
        with worker, play.probing(worker):
            shows(metrics, t.SHARDS, 1, cause="channel_given_up")
            shows(metrics, t.UNHEALTHY, 1)
            play.take()
