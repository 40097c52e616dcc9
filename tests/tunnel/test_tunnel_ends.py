"""A tunnel worker that cannot work says so; how worker, daemon and replication end by themselves and by SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tunnel_scene import TABLE, Scene, program, quick

from streamclient import (
    InitializationInput,
    IRecordProcessor,
    KeyedProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.aio import AsyncBatch, AsyncRecordProcessor
from streamclient.core.tunnel import tunnel_events
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.model import ShardState
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tunnel import TunnelDaemon, TunnelType, TunnelWorker, TunnelWorkerConfig
from streamclient.tunnel.tunnel_calls import ChannelSlot, Stored, TunnelCalls
from streamclient.tunnel.tunnel_coordinator import TunnelCoordinator
from streamclient.worker.owner_loop import OwnerLoop
from tests.at_once import AtOnce
from tests.patience import FOREVER_MILLIS, FOREVER_SECONDS, PATIENCE_SECONDS, until

LIMIT = {"max_duration_before_last_successful_renew_or_take_lease": 200}
ROOT = Path(__file__).parents[2]


def accept(records: Any) -> None:
    pass


# --- health -----------------------------------------------------------------------------------------------------------


CALLS = {
    "connect": "no heartbeat of a session was answered for ",
    "heartbeat": "no heartbeat of a session was answered for ",
    "getcheckpoint": "no checkpoint of it was read: ",
    "readrecords": "no read of the stream succeeded for ",
    "checkpoint": "no checkpoint was stored for ",
}
"""What health says of each call that fails."""

LATER_CALLS = tuple(CALLS)[1:]
"""Calls of a worker that has connected."""

WRONG_KEY, NO_PERMISSION = KEYS = ("OTSAuthFailed", "OTSNoPermissionAccess")
"""A wrong key, and one that may not."""


def is_stored(scene: Scene) -> bool:
    """Whether the one change was processed and its checkpoint stored, so that each kind of call has succeeded."""
    return [channel.record_count for channel in scene.tunnels.describe_tunnel(TABLE, "t").channels] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("code", KEYS)
@pytest.mark.parametrize("verb", CALLS)
def test_tunnel_worker_that_does_not_get_through_any_more_is_unhealthy_until_it_does(
    scene: Scene, verb: str, code: str
) -> None:
    tunnel_id, again = scene.tunnel(TunnelType.STREAM), FaultRule("tunnel/heartbeat", Fail("OTSResourceGone"), times=1)
    scene.put(1)
    with scene.worker(tunnel_id, accept, client_config=quick(**LIMIT), heartbeat_timeout_seconds=4) as worker:
        until(lambda: is_stored(scene))
        scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail(code)))
        if verb in ("connect", "getcheckpoint"):  # which a session does but once
            scene.local.add_fault(again)
        until(lambda: CALLS[verb] in worker.health.reason and code in worker.health.reason)
        assert worker.worker_status is WorkerStatus.RUNNING
        scene.local.clear_faults()
        until(lambda: worker.health.is_healthy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "code"),
    [
        ("connect", "OTSTunnelServerUnavailable"),
        ("readrecords", "OTSTunnelServerUnavailable"),
        *((verb, WRONG_KEY) for verb in LATER_CALLS),
    ],
)
def test_tunnel_worker_that_meets_an_outage_at_its_start_is_unhealthy_until_it_is_over(
    scene: Scene, tunnel_id: str, verb: str, code: str
) -> None:
    """Also one in which the client repeats the call for minutes by itself.

    A key with which the worker could connect is good, and may be so again.
    """
    scene.put(1)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail(code)))
    with scene.worker(tunnel_id, accept, client_config=quick(**LIMIT)) as worker:
        assert worker.health.is_healthy
        until(lambda: CALLS[verb] in worker.health.reason)
        assert worker.worker_status is WorkerStatus.RUNNING
        scene.local.clear_faults()
        until(lambda: worker.health.is_healthy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("connect", "connecting failed"),
        ("heartbeat", "heartbeat failed"),
        ("getcheckpoint", "no checkpoint of"),
    ],
)
def test_an_outage_is_told_once_a_minute_however_often_it_is_met(
    scene: Scene, verb: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamclient.base.outages.REPEAT_SECONDS", FOREVER_SECONDS)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail("OTSUnheardOf")))
    with scene.worker(tunnel_id, accept):
        until(lambda: scene.local.faults()[0].struck >= 3)
    told = [record for record in caplog.records if says in record.getMessage() and record.levelno >= logging.WARNING]
    assert len(told) == 1


@pytest.mark.slow
def test_daemon_is_as_healthy_as_its_worker(scene: Scene, tunnel_id: str) -> None:
    scene.local.add_fault(FaultRule("tunnel/connect", Fail("OTSTunnelServerUnavailable")))
    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10, client_config=quick(**LIMIT)
    )
    with TunnelDaemon(tunnel_id, scene.tunnels, accept, config) as daemon:
        until(lambda: "OTSTunnelServerUnavailable" in daemon.health.reason)
        scene.local.clear_faults()
        until(lambda: daemon.health.is_healthy)


@pytest.mark.slow
def test_daemon_whose_workers_fail_one_after_the_other_is_unhealthy(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new worker has just begun and knows of no trouble."""
    monkeypatch.setattr(TunnelCoordinator, "step", lambda *_: 1 // 0)
    with TunnelDaemon(scene.tunnel(TunnelType.STREAM), scene.tunnels, accept) as daemon:
        until(lambda: daemon.health.reason.startswith("its last worker ended: ZeroDivisionError"))


@pytest.mark.slow
def test_health_and_lag_of_channels_are_measured_while_the_worker_runs(scene: Scene) -> None:
    metrics = MemoryMetrics()
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(1)
    with scene.worker(tunnel_id, accept, client_config=quick(**LIMIT, metrics=metrics), client_tag="w") as worker:
        until(lambda: [series.value for series in metrics.snapshot(metric_table.LAG_SECONDS)] == [0.0])
        (lag,) = metrics.snapshot(metric_table.LAG_SECONDS)
        assert lag.labels == {"stream": tunnel_id, "worker": "w", "shard": next(iter(worker.channel_statuses()))}
        until(lambda: metrics.value(metric_table.UNHEALTHY) == 0.0)
        scene.local.add_fault(FaultRule("tunnel/heartbeat", Fail("OTSTunnelServerUnavailable")))
        until(lambda: metrics.value(metric_table.UNHEALTHY) == 1.0)

    assert metrics.snapshot(metric_table.LAG_SECONDS) == ()


class DoneAtOnce(IRecordProcessor):
    """Wants no channel."""

    made = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        type(self).made += 1
        initialization_input.shutdown_marker.mark_for_process_done()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Is never reached."""

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Has nothing to do."""


@pytest.mark.slow
def test_channel_that_was_declined_is_not_remembered_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamclient.tunnel.tunnel_coordinator.DECLINED_REMEMBERED_SECONDS", 0.0, raising=False)
    with scene.worker(scene.tunnel(TunnelType.STREAM), DoneAtOnce, client_config=quick(**LIMIT)):
        until(lambda: DoneAtOnce.made > 1)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "code"),
    [("connect", WRONG_KEY), *((verb, code) for verb in CALLS for code in (NO_PERMISSION, "OTSPermissionDenied"))],
)
def test_tunnel_worker_that_never_may_call_ends_with_the_reason_and_lets_its_channels_go(
    scene: Scene, tunnel_id: str, verb: str, code: str
) -> None:
    scene.put(1)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail(code)))
    worker = scene.worker(tunnel_id, accept)
    with pytest.raises(WorkerFailedError, match=rf"^tunnel worker of {tunnel_id} ends: {code}: "), worker:
        worker.wait(PATIENCE_SECONDS)

    assert (worker.worker_status, worker.is_refused) == (WorkerStatus.ERROR, True)
    assert {channel.client_id for channel in scene.tunnels.describe_tunnel(TABLE, "t").channels} <= {""}


@pytest.mark.slow
def test_permission_that_is_denied_for_checkpoints_later_ends_a_worker(scene: Scene, tunnel_id: str) -> None:
    scene.put(1)

    def deny() -> bool:
        if not scene.local.faults() and is_stored(scene):
            scene.local.add_fault(FaultRule("tunnel/checkpoint", Fail("OTSPermissionDenied")))
        return False

    with pytest.raises(WorkerFailedError, match="OTSPermissionDenied"), scene.worker(tunnel_id, accept) as worker:
        worker.wait(PATIENCE_SECONDS, until=deny)


def failing_once(function: Callable[..., None]) -> Callable[..., None]:
    """A second fault would end the worker at once, whatever it still waits for."""
    faults = [ZeroDivisionError("a fault of the package")]

    def failing(*given: object) -> None:
        if faults:
            raise faults.pop()
        function(*given)

    return failing


@pytest.mark.slow
def test_fault_of_the_package_is_told_at_once_although_a_callback_holds_up_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = threading.Event(), threading.Event()

    def hang(records: Any) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(1)
    worker = scene.worker(tunnel_id, hang)

    def work() -> None:
        with worker:
            assert worker.wait(PATIENCE_SECONDS, until=began.is_set)
            monkeypatch.setattr(TunnelCoordinator, "_watch", failing_once(TunnelCoordinator._watch))
            until(lambda: worker.exception is not None)
            assert worker.worker_status is WorkerStatus.ERROR
            assert worker.health.reason.startswith("ended: ZeroDivisionError")
            (status,) = worker.channel_statuses().values()
            assert status.state is ShardState.SHUTTING_DOWN
            assert status.reason.startswith("its worker failed: ZeroDivisionError")
            go.set()

    with pytest.raises(WorkerFailedError, match="ends: ZeroDivisionError"):
        work()


@pytest.mark.slow
def test_whoever_waits_for_a_daemon_is_woken_by_what_can_never_work(scene: Scene) -> None:
    def work() -> None:
        with TunnelDaemon("no-such-tunnel", scene.tunnels, accept) as daemon:
            daemon.wait(until=lambda: False)

    with pytest.raises(WorkerFailedError, match=r"^tunnel worker of no-such-tunnel ends: OTSParameterInvalid: "):
        work()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_a_refused_program_prints_one_sentence_and_no_error_behind_it(
    scene: Scene, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        kind("no-such-tunnel", scene.tunnels, accept).run()

    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Traceback") == 1
    assert printed.splitlines()[-1].startswith("streamclient.errors.WorkerFailedError: tunnel worker of no-such-tunnel")


class Exits(ThreadPoolExecutor):
    """Ends the thread that asks for another one."""

    def submit(self, *of: Any, **named: Any) -> Any:
        raise SystemExit(3)


@pytest.mark.slow
def test_an_exit_of_user_code_in_the_owners_thread_is_an_error_of_the_worker(scene: Scene) -> None:
    """A thread ends with it in silence, and the program with 0."""
    worker = scene.worker(scene.tunnel(TunnelType.STREAM), accept, process_records_executor=Exits(1))
    with pytest.raises(WorkerFailedError, match="SystemExit: 3"), worker:
        worker.wait(PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("error", [SystemExit(3), ArithmeticError()])
def test_what_ends_the_thread_of_a_daemon_is_raised_where_somebody_waits(
    scene: Scene, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(worker: TunnelWorker) -> None:
        raise error

    monkeypatch.setattr(TunnelWorker, "run", run)
    daemon = TunnelDaemon(scene.tunnel(TunnelType.STREAM), scene.tunnels, accept)
    with pytest.raises(type(error)), daemon:
        daemon.wait(PATIENCE_SECONDS)


class Leaves:
    """A client each of whose calls raises what elsewhere ends a program, as a credentials provider may."""

    def __getattr__(self, name: str) -> Any:
        def leave(*given: Any, **named: Any) -> Any:
            raise SystemExit(3)

        return leave


def test_each_call_that_raises_what_elsewhere_ends_a_program_is_answered_all_the_same() -> None:
    """In a pool's thread it ends nothing, and the session would wait for the answer without end."""
    loop, told = OwnerLoop(lambda: 0.0), list[Any]()
    calls = TunnelCalls(
        client=Leaves(),  # type: ignore[arg-type]
        tunnel_id="t",
        timeout_seconds=10,
        client_tag="",
        loop=loop,
        session_pool=AtOnce(),
        pool=AtOnce(),
        emit=told.append,
    )
    calls.connect()
    calls.heartbeat(tunnel_events.Heartbeat("c", ()))
    calls.find_checkpoint(tunnel_events.FindCheckpoint("c", "channel", "reader"), lambda _: True)
    calls.end_session(tunnel_events.EndSession("c"))
    calls.store(ChannelSlot("c", "channel", 1), "token", lambda stored, error: told.append((stored, error)))
    loop.turn(0.0)

    assert [type(event) for event in told[:4]] == [
        tunnel_events.ConnectFailed,
        tunnel_events.HeartbeatFailed,
        tunnel_events.CheckpointNotFound,
        tunnel_events.SessionEnded,
    ]
    stored, error = told[4]
    assert (stored, str(error)) == (Stored.UNKNOWN, "the call raised SystemExit: 3")


@pytest.mark.slow
def test_shutdown_from_the_thread_of_a_record_does_not_wait_for_itself(scene: Scene) -> None:
    """The end of the session waits for the record."""
    answers: list[bool] = []
    by_key = KeyedProcessorFactory(lambda record: answers.append(worker.shutdown()))
    worker = scene.worker(
        scene.tunnel(TunnelType.STREAM), by_key, client_config=quick(shutdown_timeout_millis=FOREVER_MILLIS)
    )
    scene.put(1)
    with worker:
        assert worker.wait(PATIENCE_SECONDS)

    assert (answers, scene.let_go()) == ([False], 1)


@pytest.mark.slow
def test_shutdown_from_a_task_that_no_batch_waits_for_does_not_block_the_loop(scene: Scene) -> None:
    made, go_on, answers = list[Any](), asyncio.Event(), list[bool]()

    class Stopping(AsyncRecordProcessor):
        async def initialize(self, initialization_input: InitializationInput) -> None:
            self.loop = asyncio.get_running_loop()
            self.task = self.loop.create_task(self.stop())
            made.append(self)

        async def process_records(self, batch: AsyncBatch) -> None:
            raise AssertionError("there are no records")

        async def stop(self) -> None:
            await go_on.wait()
            answers.append(worker.shutdown())

    worker = scene.worker(
        scene.tunnel(TunnelType.STREAM), Stopping, client_config=quick(shutdown_timeout_millis=FOREVER_MILLIS)
    )
    with worker:
        until(lambda: {status.state for status in worker.channel_statuses().values()} == {ShardState.PROCESSING})
        made[0].loop.call_soon_threadsafe(go_on.set)
        assert worker.wait(PATIENCE_SECONDS)

    assert (answers, scene.let_go()) == ([False], 0)


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "TunnelWorker(tunnel_id, client, Processor(), config).run()",
        "with TunnelWorker(tunnel_id, client, Processor(), config) as worker: worker.wait()",
        "TunnelDaemon(tunnel_id, client, Processor(), config).run()",
        "with TunnelDaemon(tunnel_id, client, Processor(), config) as daemon: daemon.wait()",
    ],
    ids=["worker", "block", "daemon", "block of a daemon"],
)
def test_sigterm_ends_a_program_in_order_with_143(scene: Scene, run: str) -> None:
    """The session has five minutes: what is free at once was let go in order."""
    code, output, errors = terminated(program(scene, run), "reading\n")
    assert (code, output) == (143, "the processor was shut down\n"), errors
    assert scene.let_go() == 1, "the last checkpoint was stored"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TunnelWorker", "TunnelDaemon"])
def test_a_handler_of_the_programs_own_stays_in_place(scene: Scene, kind: str) -> None:
    run = f"""
import signal
import threading
worker = {kind}(tunnel_id, client, Processor(), config)
end = worker.close if isinstance(worker, TunnelDaemon) else worker.shutdown

def own(*signal):
    print("asked to end", flush=True)
    threading.Thread(target=end).start()

signal.signal(signal.SIGTERM, own)
worker.run()
print(signal.getsignal(signal.SIGTERM) is own)
"""
    code, output, errors = terminated(program(scene, run), "reading\n")

    assert (code, output) == (0, "asked to end\nthe processor was shut down\nTrue\n"), errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TunnelWorker", "TunnelDaemon"])
def test_sigterm_is_left_to_the_system_by_a_worker_that_shall_not_end_on_it(scene: Scene, kind: str) -> None:
    run = f"""
from streamclient import ClientConfig
config = TunnelWorkerConfig(client_config=ClientConfig(end_on_sigterm=False))
{kind}(tunnel_id, client, Processor(), config).run()
"""
    code, output, errors = terminated(program(scene, run), "reading\n")

    assert (code, output) == (-signal.SIGTERM, ""), errors


def terminated(command: list[str], begins: str) -> tuple[int, str, str]:
    """Send SIGTERM once a line begins so; how the program ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(begins):
                    break
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, output, errors


@pytest.mark.slow
def test_sigterm_ends_a_replication_in_order_with_143(scene: Scene, tmp_path: Path) -> None:
    scene.put(1, 2, 3)
    with LocalTablestore() as destination:
        sides = {
            "ots-reader": {**side(scene.local), "tableName": TABLE, "tunnelName": "copy"},
            "ots-writer": {**side(destination), "tableName": "copy"},
        }
        settings = tmp_path / "copy.json"
        settings.write_text(json.dumps(sides))
        command = [sys.executable, "-m", "streamclient.cli.main", "replicate", str(settings), "--poll-seconds", "0.2"]
        code, output, errors = terminated(command, "made tunnel")

    assert code == 143, output + errors
    assert "replication stopped; run again to go on" in output
    channels = scene.tunnels.describe_tunnel(TABLE, "copy").channels
    assert {channel.client_id for channel in channels} <= {""}, "its session is over"


def side(local: LocalTablestore) -> dict[str, str]:
    return {
        "endpoint": local.endpoint,
        "accessId": local.access_key_id,
        "accessKey": local.access_key_secret,
        "instanceName": local.instance,
    }
