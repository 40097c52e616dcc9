"""What probes are told of a tunnel worker and of a daemon, over HTTP, in each part of their lives."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tunnel_scene import Scene, quick, running

from streamclient import WorkerFailedError
from streamclient.server import Fail, FaultRule
from streamclient.tunnel import TunnelDaemon, TunnelWorker, TunnelWorkerConfig
from streamclient.tunnel.tunnel_coordinator import TunnelCoordinator
from streamclient.worker.running import STUCK_SECONDS
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import ask, probed, reason

SOON_UNHEALTHY: dict[str, Any] = {"max_duration_before_last_successful_renew_or_take_lease": 200}


def accept(records: Any) -> None:
    pass


def config(**changes: Any) -> TunnelWorkerConfig:
    return TunnelWorkerConfig(
        heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10, client_config=quick(**changes)
    )


@pytest.mark.slow
def test_a_tunnel_worker_from_before_its_beginning_to_its_end(scene: Scene, tunnel_id: str) -> None:
    worker = TunnelWorker(tunnel_id, scene.tunnels, accept, config())
    with worker.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "not begun"
        with worker:
            until(lambda: worker.has_connected)
            assert probed(server.port) == (200, 200, 200)
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "ended"
        assert ask(server.port, "/metrics").status == 404


@pytest.mark.slow
def test_a_daemon_from_before_its_beginning_to_its_end(scene: Scene, tunnel_id: str) -> None:
    daemon = TunnelDaemon(tunnel_id, scene.tunnels, accept, config())
    with daemon.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        with running(daemon):
            until(lambda: daemon.health.is_healthy, lambda: daemon.health)
            assert probed(server.port) == (200, 200, 200)
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "ended"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_an_outage_changes_health_alone(scene: Scene, tunnel_id: str, kind: Callable[..., Any]) -> None:
    scene.local.add_fault(FaultRule("tunnel/connect", Fail("OTSTunnelServerUnavailable")))
    consumer = kind(tunnel_id, scene.tunnels, accept, config(**SOON_UNHEALTHY))
    with consumer, consumer.serve_health(0) as server:
        until(lambda: "OTSTunnelServerUnavailable" in consumer.health.reason)
        assert probed(server.port) == (200, 200, 503)
        scene.local.clear_faults()
        until(lambda: consumer.health.is_healthy)
        assert probed(server.port) == (200, 200, 200)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_a_stopping_consumer_is_not_ready(scene: Scene, tunnel_id: str, kind: Callable[..., Any]) -> None:
    began, go = threading.Event(), threading.Event()

    def hold(records: Any) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    scene.put(1)
    consumer = kind(tunnel_id, scene.tunnels, hold, config())
    stop = consumer.close if kind is TunnelDaemon else consumer.shutdown
    with consumer, consumer.serve_health(0) as server:
        assert consumer.wait(PATIENCE_SECONDS, until=began.is_set)
        stopping = threading.Thread(target=stop)
        stopping.start()
        try:
            until(lambda: consumer.is_stopping)
            assert probed(server.port)[:2] == (200, 503)
            assert reason(server.port, "/ready") == "stopping"
        finally:
            go.set()
            stopping.join(PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_a_consumer_that_failed_says_why(scene: Scene, kind: Callable[..., Any]) -> None:
    consumer = kind("no-such-tunnel", scene.tunnels, accept, config())
    with pytest.raises(WorkerFailedError):
        consumer.run()
    with consumer.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health")
        assert re.match("ended: .*OTSParameterInvalid", reason(server.port, "/health"))


@pytest.mark.slow
def test_a_daemon_between_two_workers_is_alive_and_ready_and_not_well(
    scene: Scene, tunnel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TunnelCoordinator, "step", lambda *_: 1 // 0)
    with TunnelDaemon(tunnel_id, scene.tunnels, accept) as daemon, daemon.serve_health(0) as server:
        until(lambda: "ZeroDivisionError" in daemon.health.reason)
        assert probed(server.port) == (200, 200, 503)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_a_stuck_owner_is_not_alive(
    scene: Scene, tunnel_id: str, kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        go.wait(PATIENCE_SECONDS)

    consumer = kind(tunnel_id, scene.tunnels, accept, config())
    with consumer, consumer.serve_health(0) as server:
        until(lambda: consumer.health.is_healthy and bool(consumer._owner_loops()))
        (loop,) = consumer._owner_loops().values()
        try:
            assert loop.post(hang)
            assert entered.wait(PATIENCE_SECONDS)
            now = loop.now
            monkeypatch.setattr(loop, "now", lambda: now() + STUCK_SECONDS + 1)
            assert ask(server.port, "/live").status == 503
            assert reason(server.port, "/live").startswith(f"the owner thread of {tunnel_id} has made no turn for 1")
            assert ask(server.port, "/ready").status == 200
        finally:
            go.set()
        until(lambda: ask(server.port, "/live").status == 200)


@pytest.mark.slow
def test_a_failing_channel_is_told(scene: Scene, tunnel_id: str) -> None:
    def refuse(records: Any) -> None:
        raise ValueError("no such database")

    scene.put(1)
    with (
        suppress(WorkerFailedError),
        TunnelWorker(tunnel_id, scene.tunnels, refuse, config(**SOON_UNHEALTHY)) as worker,
        worker.serve_health(0) as server,
    ):
        until(lambda: bool(worker.health.failing_shards), lambda: worker.health)
        (shard,) = ask(server.port, "/health").document["failing_shards"].values()

    assert "ValueError: no such database" in shard["reason"]
