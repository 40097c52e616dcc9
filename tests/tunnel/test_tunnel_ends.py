"""A tunnel worker that cannot work says so; how worker, daemon and replication end by themselves and by SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tunnel_scene import TABLE, Scene, quick

from streamclient import WorkerFailedError, WorkerStatus
from streamclient.model import ShardState
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tunnel import TunnelDaemon, TunnelError, TunnelType, TunnelWorkerConfig
from streamclient.tunnel.coordinator import TunnelCoordinator
from tests.patience import PATIENCE_SECONDS, until

LIMIT = {"max_duration_before_last_successful_renew_or_take_lease": 200}
ROOT = Path(__file__).parents[2]


def accept(records: Any) -> None:
    pass


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "code", "what"),
    [
        ("connect", "OTSAuthFailed", "no heartbeat of a session was answered for "),
        ("heartbeat", "OTSTunnelServerUnavailable", "no heartbeat of a session was answered for "),
        ("getcheckpoint", "OTSNoPermissionAccess", "no checkpoint of a channel was read for "),
        ("readrecords", "OTSNoPermissionAccess", "no read of the stream succeeded for "),
    ],
)
def test_tunnel_worker_that_does_not_get_through_is_unhealthy_until_it_does(
    scene: Scene, verb: str, code: str, what: str
) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail(code)))
    with scene.worker(tunnel_id, accept, client_config=quick(**LIMIT)) as worker:
        assert worker.health.is_healthy
        until(lambda: what in worker.health.reason and code in worker.health.reason)
        assert worker.worker_status is WorkerStatus.RUNNING
        scene.local.clear_faults()
        until(lambda: worker.health.is_healthy)


@pytest.mark.slow
def test_read_that_the_client_repeats_for_minutes_by_itself_makes_the_worker_unhealthy_meanwhile(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.local.add_fault(FaultRule("tunnel/readrecords", Fail("OTSTunnelServerUnavailable")))
    with scene.worker(tunnel_id, accept, client_config=quick(**LIMIT)) as worker:
        until(lambda: "no read of the stream succeeded for " in worker.health.reason)
        scene.local.clear_faults()
        until(lambda: worker.health.is_healthy)


@pytest.mark.slow
def test_daemon_is_as_healthy_as_its_worker(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.local.add_fault(FaultRule("tunnel/connect", Fail("OTSAuthFailed")))
    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10, client_config=quick(**LIMIT)
    )
    with TunnelDaemon(tunnel_id, scene.tunnels, accept, config) as daemon:
        until(lambda: "OTSAuthFailed" in daemon.health.reason)
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


# --- ends -------------------------------------------------------------------------------------------------------------


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

    with pytest.raises(TunnelError):
        work()


# --- programs ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from tablestore import OTSClient
from streamclient.tunnel import IChannelProcessor, TunnelDaemon, TunnelWorker, TunnelWorkerConfig

class Processor(IChannelProcessor):
    def process(self, records_input):
        print("reading", flush=True)

    def shutdown(self):
        print("the processor was shut down", flush=True)

tunnel_id, *address = sys.argv[1:]
client = OTSClient(*address, logger_name="tests.silent")
config = TunnelWorkerConfig(checkpoint_interval_millis=3_600_000)
{run}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "TunnelWorker(tunnel_id, client, Processor(), config).run()",
        "with TunnelWorker(tunnel_id, client, Processor(), config) as worker: worker.wait()",
        "TunnelDaemon(tunnel_id, client, Processor(), config).run()",
    ],
    ids=["worker", "block", "daemon"],
)
def test_sigterm_ends_a_program_in_order_with_143(scene: Scene, run: str) -> None:
    """The session has five minutes: what is free at once was let go in order."""
    tunnel_id, local = scene.tunnel(TunnelType.STREAM), scene.local
    scene.put(1)
    command = [sys.executable, "-c", PROGRAM.format(run=run), tunnel_id]
    command += [local.endpoint, local.access_key_id, local.access_key_secret, local.instance]
    code, output, errors = terminated(command, "reading\n")

    assert (code, output) == (143, "the processor was shut down\n"), errors
    (channel,) = scene.tunnels.describe_tunnel(TABLE, "t").channels
    assert channel.client_id == ""
    assert channel.record_count == 1, "the last checkpoint was stored"


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
        command = [sys.executable, "-m", "streamclient.cli", "replicate", str(settings), "--poll-seconds", "0.2"]
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
