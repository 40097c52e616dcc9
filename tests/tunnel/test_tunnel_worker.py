"""Tunnel workers on the local server: every kind of processor, several workers, failures, stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tunnel_scene import TABLE, Log, Scene, running

from streamclient import IRecordProcessor, WorkerFailedError, WorkerStatus
from streamclient.errors import ConfigurationError
from streamclient.interfaces import InitializationInput, IRecordProcessorFactory, ProcessRecordsInput, ShutdownInput
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.server import Fail, FaultRule, LoseAnswer
from streamclient.tunnel import (
    ChannelRecordsInput,
    IChannelProcessor,
    TunnelDaemon,
    TunnelParameterInvalidError,
    TunnelStage,
    TunnelType,
    TunnelWorker,
    TunnelWorkerConfig,
)
from tests.patience import PATIENCE_SECONDS, until


@pytest.mark.slow
def test_full_data_is_processed_and_the_tunnel_reaches_its_last_stage(scene: Scene) -> None:
    scene.put(*range(500))
    log = Log()
    with scene.worker(scene.tunnel(TunnelType.BASE_DATA), log):
        until(lambda: scene.stage() is TunnelStage.PROCESS_STREAM)

    assert log.values() == scene.written


@pytest.mark.slow
def test_changes_follow_the_full_data_and_keep_their_order(scene: Scene) -> None:
    scene.put(*range(50))
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    log = Log()
    with scene.worker(tunnel_id, log):
        until(lambda: len(log.values()) == 50)
        for _ in range(5):
            scene.put(*range(50))
        scene.local.split(TABLE, at=25)
        for _ in range(5):
            scene.put(*range(50))
        until(lambda: log.values() == scene.written)


@pytest.mark.slow
def test_next_worker_goes_on_where_a_stopped_one_stored_its_last_checkpoint(scene: Scene, tunnel_id: str) -> None:
    first, second = Log(), Log()
    scene.put(*range(20))
    with scene.worker(tunnel_id, first, checkpoint_interval_millis=3_600_000) as worker:
        until(lambda: len(first.records) == 20)
    assert worker.worker_status is WorkerStatus.SHUTDOWN
    scene.put(100)
    with scene.worker(tunnel_id, second):
        until(lambda: bool(second.records))

    assert [record.key["id"] for record in second.records] == [100]


@pytest.mark.slow
def test_workers_share_the_channels_and_a_stopped_one_leaves_them_to_the_others(scene: Scene) -> None:
    scene.put(*range(40))
    for place in (10, 20, 30):
        scene.local.split(TABLE, at=place)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    logs = [Log(), Log()]
    first = scene.worker(tunnel_id, logs[0])
    second = scene.worker(tunnel_id, logs[1])
    with first:
        until(lambda: len(first.channel_statuses()) == 4)
        with second:
            until(lambda: len(second.channel_statuses()) == 2, "an even share")
            scene.put(*range(40))
            until(lambda: sum(len(log.records) for log in logs) >= 40)
            assert all(log.records for log in logs)
        until(lambda: len(first.channel_statuses()) == 4)
        scene.put(*range(40))
        until(lambda: len({(r.key["id"], r.sequence_info) for log in logs for r in log.records}) == 80)


@pytest.mark.slow
def test_failing_callback_is_repeated_and_nothing_is_lost_or_reordered(scene: Scene, tunnel_id: str) -> None:
    log, failures = Log(), iter([True, True, False, True])

    def fail_sometimes(records: Sequence[StreamRecord]) -> None:
        if records and next(failures, False):
            raise RuntimeError("the destination is away")
        log(records)

    with scene.worker(tunnel_id, fail_sometimes):
        for _ in range(4):
            scene.put(*range(10))
        until(lambda: log.values() == scene.written)


class Recording(IRecordProcessor):
    """A record processor as lease workers run it: stores each batch, and the end."""

    def __init__(self, log: Log, reasons: list[ShutdownReason]) -> None:
        self.log = log
        self.reasons = reasons

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.log(process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self.reasons.append(shutdown_input.shutdown_reason)
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


class RecordingFactory(IRecordProcessorFactory):
    def __init__(self, log: Log) -> None:
        self.log = log
        self.reasons: list[ShutdownReason] = []

    def create_processor(self) -> IRecordProcessor:
        return Recording(self.log, self.reasons)


@pytest.mark.slow
def test_record_processor_of_lease_workers_runs_on_a_tunnel_unchanged(scene: Scene) -> None:
    scene.put(*range(10))
    factory = RecordingFactory(Log())
    with scene.worker(scene.tunnel(TunnelType.BASE_AND_STREAM), factory):
        until(lambda: scene.stage() is TunnelStage.PROCESS_STREAM)
        scene.put(*range(10))
        until(lambda: factory.log.values() == scene.written)

    assert factory.reasons == [ShutdownReason.TERMINATE, ShutdownReason.STOLEN]


class Counting(IChannelProcessor):
    def __init__(self) -> None:
        self.channels: set[str] = set()
        self.shutdowns = 0

    def process(self, records_input: ChannelRecordsInput) -> None:
        self.channels.add(records_input.channel_id)

    def shutdown(self) -> None:
        self.shutdowns += 1


@pytest.mark.slow
def test_channel_processor_hears_of_the_end_of_each_channel(scene: Scene) -> None:
    scene.put(1, 2)
    counting = Counting()
    with scene.worker(scene.tunnel(TunnelType.BASE_AND_STREAM), counting) as worker:
        until(lambda: scene.stage() is TunnelStage.PROCESS_STREAM and len(worker.channel_statuses()) == 1)
        scene.put(3)
        until(lambda: len(counting.channels) == 2)

    assert counting.shutdowns == 2


@pytest.mark.slow
def test_lost_session_is_begun_anew(scene: Scene, tunnel_id: str, log: Log) -> None:
    with scene.worker(tunnel_id, log):
        scene.put(1)
        until(lambda: bool(log.records))
        (channel,) = scene.tunnels.describe_tunnel(TABLE, "t").channels
        scene.tunnels.shutdown(tunnel_id, channel.client_id)
        scene.put(2)
        until(lambda: log.values() == scene.written)


@pytest.mark.slow
def test_passing_errors_of_every_call_are_waited_out(scene: Scene, tunnel_id: str, log: Log) -> None:
    for verb in ("connect", "heartbeat", "getcheckpoint", "readrecords", "checkpoint"):
        scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail("OTSTunnelServerUnavailable"), times=2))
        scene.local.add_fault(FaultRule(f"tunnel/{verb}", LoseAnswer(0.0), times=1, after=1))
    with scene.worker(tunnel_id, log):
        for _ in range(3):
            scene.put(1, 2)
        until(lambda: log.values() == scene.written)


@pytest.mark.slow
def test_missing_tunnel_ends_worker_and_daemon_with_a_name(scene: Scene) -> None:
    worker = scene.worker("no-such-tunnel", Log())
    with pytest.raises(WorkerFailedError, match=r"^tunnel worker of no-such-tunnel ends: OTSParameterInvalid"):
        worker.run()

    assert worker.worker_status is WorkerStatus.ERROR
    assert isinstance(worker.exception, TunnelParameterInvalidError)
    with pytest.raises(WorkerFailedError, match=r"^tunnel worker of no-such-tunnel ends: OTSParameterInvalid"):
        TunnelDaemon("no-such-tunnel", scene.tunnels, Log()).run()


@pytest.mark.slow
def test_deleted_tunnel_ends_its_workers(scene: Scene, tunnel_id: str) -> None:
    worker = scene.worker(tunnel_id, Log())

    def work_until_the_tunnel_is_gone() -> None:
        with worker:
            until(lambda: bool(worker.channel_statuses()))
            scene.tunnels.delete_tunnel(TABLE, "t")
            worker.wait(PATIENCE_SECONDS)

    with pytest.raises(WorkerFailedError):
        work_until_the_tunnel_is_gone()
    assert worker.worker_status is WorkerStatus.ERROR


@pytest.mark.slow
def test_daemon_runs_until_it_is_closed(scene: Scene, tunnel_id: str, log: Log) -> None:
    daemon = TunnelDaemon(
        tunnel_id, scene.tunnels, log, TunnelWorkerConfig(heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10)
    )
    with running(daemon):
        scene.put(1)
        until(lambda: bool(log.records))

    assert log.values() == scene.written


@pytest.mark.parametrize(
    "config",
    [
        {"heartbeat_interval_seconds": 0},
        {"heartbeat_interval_seconds": 30, "heartbeat_timeout_seconds": 30},
        {"client_tag": ""},
        {"max_channel_parallel": 0},
        {"read_max_times_per_round": 0},
        {"process_records_executor": 5},
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(config))):
        TunnelWorkerConfig(**config)


@pytest.mark.parametrize("processor", [5, None, dict, "callback"])
def test_what_cannot_process_records_is_refused(scene: Scene, processor: Any) -> None:
    with pytest.raises(ConfigurationError, match="processor must be"):
        TunnelWorker("t", scene.tunnels, processor)


@pytest.mark.slow
def test_consume_point_of_an_idle_tunnel_moves_on(scene: Scene) -> None:
    calls: list[int] = []
    with scene.worker(scene.tunnel(TunnelType.STREAM), lambda records: calls.append(len(records))):
        first = consume_point(scene)
        until(lambda: consume_point(scene) > first)

    assert 0 not in calls


def consume_point(scene: Scene) -> int:
    return scene.tunnels.describe_tunnel(TABLE, "t").consume_point_micros
