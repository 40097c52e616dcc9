"""What the official clients' tests ask of consuming, asked of our worker on the local server."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tablestore import Row
from tunnel_scene import TABLE, Log, Scene, program, quick, running

from streamclient import WorkerFailedError, WorkerStatus
from streamclient.core.consumer import reading_pace
from streamclient.core.consumer.reading_pace import ShardPace
from streamclient.errors import ConfigurationError
from streamclient.records import SequenceInfo, StreamRecord
from streamclient.server import Fail, FaultRule
from streamclient.tunnel import (
    Channel,
    ChannelStatus,
    TunnelClient,
    TunnelDaemon,
    TunnelExpiredError,
    TunnelPermissionDeniedError,
    TunnelStage,
    TunnelType,
    TunnelWorker,
    TunnelWorkerConfig,
)
from streamclient.tunnel.tunnel_coordinator import TunnelCoordinator
from tests.interrupts import interrupted_after
from tests.patience import PATIENCE_SECONDS, until


class Batches:
    """The sizes of the batches that a callback was given, and their records."""

    def __init__(self) -> None:
        self.log = Log()
        self.sizes: list[int] = []

    def __call__(self, records: Sequence[StreamRecord]) -> None:
        self.sizes.append(len(records))
        self.log(records)


@pytest.mark.slow
def test_rows_without_attributes_come_once_from_several_channels(scene: Scene) -> None:
    table, count = "keys_only", 5_000
    scene.create_table(table, split_points=[1_000, 2_000, 3_000])
    scene.put_rows(table, [Row([("id", number)], []) for number in range(count)])
    tunnel_id = scene.tunnels.create_tunnel(table, "t", TunnelType.BASE_DATA)
    assert len(scene.tunnels.describe_tunnel(table, "t").channels) == 4
    log = Log()
    with scene.worker(tunnel_id, log):
        until(lambda: scene.tunnels.describe_tunnel(table, "t").info.stage is TunnelStage.PROCESS_STREAM)

    assert sorted(int(record.key["id"]) for record in log.records) == list(range(count))
    assert all(record.columns == () for record in log.records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1_000, 1_000, 500]),
        ({"read_max_times_per_round": 2}, [2_000, 500]),
        ({"read_max_times_per_round": 10}, [2_500]),
        ({"read_max_times_per_round": 10, "read_max_bytes_per_round": 1}, [1_000, 1_000, 500]),
    ],
)
def test_pages_are_joined_up_to_the_limits_of_a_round(
    scene: Scene, tunnel_id: str, settings: dict[str, Any], expected: list[int]
) -> None:
    scene.put(*range(2_500))  # the local server's pages have 1,000 changes
    batches = Batches()
    with scene.worker(tunnel_id, batches, **settings):
        until(lambda: batches.log.values() == scene.written)

    assert batches.sizes == expected


class Held:
    """A callback that holds its first call until it is let go."""

    def __init__(self) -> None:
        self.log = Log()
        self.calls = 0
        self.entered, self.let_go = threading.Event(), threading.Event()

    def __call__(self, records: Sequence[StreamRecord]) -> None:
        self.calls += 1
        self.entered.set()
        assert self.let_go.wait(PATIENCE_SECONDS)
        self.log(records)


@pytest.mark.slow
def test_calls_of_one_channel_never_overlap(scene: Scene, tunnel_id: str) -> None:
    held = Held()
    with scene.worker(tunnel_id, held) as worker:
        scene.put(1)
        assert held.entered.wait(PATIENCE_SECONDS)
        scene.put(2, 3)
        until(lambda: [each.user_code_seconds > 0.3 for each in worker.channel_statuses().values()] == [True])
        assert held.calls == 1
        held.let_go.set()
        until(lambda: held.log.values() == scene.written)


class HeardClient(TunnelClient):
    """Keeps what heartbeats were answered."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.heard: list[Sequence[Channel]] = []

    def heartbeat(self, tunnel_id: str, client_id: str, channels: Iterable[Channel], **how: Any) -> Sequence[Channel]:
        answer = super().heartbeat(tunnel_id, client_id, channels, **how)
        self.heard.append(answer)
        return answer

    def count(self, status: ChannelStatus) -> int:
        return sum(any(channel.status is status for channel in answer) for answer in self.heard)


@pytest.mark.slow
def test_channel_that_shall_be_let_go_gets_no_further_call_and_keeps_what_was_done(scene: Scene) -> None:
    client = scene.tunnels = HeardClient(scene.ots)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    held = Held()
    with scene.worker(tunnel_id, held, enable_closing_channel_detect=False):
        scene.put(1)
        assert held.entered.wait(PATIENCE_SECONDS)
        scene.put(2)
        (channel,) = scene.tunnels.describe_tunnel(TABLE, "t").channels
        scene.tunnels.schedule(tunnel_id, [(channel.channel_id, ChannelStatus.CLOSING)])
        # The second answer is to a heartbeat that was sent after the first one had been taken in.
        until(lambda: client.count(ChannelStatus.CLOSING) >= 2)
        held.let_go.set()
        until(lambda: client.heard[-1] == ())
        assert [record.key["id"] for record in held.log.records] == [1]

        scene.tunnels.schedule(tunnel_id, [(channel.channel_id, "OPEN")])
        until(lambda: held.log.values() == scene.written)
    assert [record.key["id"] for record in held.log.records] == [1, 2]


@pytest.mark.slow
def test_pauses_of_an_idle_channel_grow_up_to_the_longest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    decide = ShardPace.interval

    def interval(pace: ShardPace, now: float) -> float:
        pauses.append(decide(pace, now))
        return pauses[-1]

    monkeypatch.setattr(ShardPace, "interval", interval)
    monkeypatch.setattr(reading_pace, "ALIVE_SECONDS", 0.1)
    with scene.worker(scene.tunnel(TunnelType.STREAM), Log(), max_retry_interval_millis=300):
        until(lambda: 0.3 in pauses)

    assert pauses == sorted(pauses)
    assert pauses[0] < 0.3 == pauses[-1], "it began with shorter ones"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ((0, 1, 1), (0, 1, 2)),
        ((0, 1, 9), (0, 2, 0)),
        ((0, 9, 9), (1, 0, 0)),
        ((1, 1, 2**31), (1, 2, 0)),
        ((0, 0, 0), (0, 0, 1)),
        ((2, 2**40, 0), (10, 1, 0)),
    ],
)
def test_sequences_order_by_epoch_then_time_then_row(earlier: tuple[int, ...], later: tuple[int, ...]) -> None:
    assert SequenceInfo(*earlier) < SequenceInfo(*later)
    assert SequenceInfo(*earlier) == SequenceInfo(*earlier)


@pytest.mark.slow
def test_client_and_settings_are_used_again_for_another_tunnel(scene: Scene) -> None:
    config = TunnelWorkerConfig(heartbeat_interval_seconds=1, heartbeat_timeout_seconds=10, client_config=quick())
    scene.put(*range(100))
    for name in ("first", "second"):
        tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM, name)
        log = Log()
        with TunnelWorker(tunnel_id, scene.tunnels, log, config) as worker:
            until(
                lambda name=name: (  # type: ignore[misc]  # a default that mypy cannot infer
                    scene.tunnels.describe_tunnel(TABLE, name).info.stage is TunnelStage.PROCESS_STREAM
                )
            )
        assert worker.worker_status is WorkerStatus.SHUTDOWN
        assert log.values() == scene.written
        scene.tunnels.delete_tunnel(TABLE, name)
    assert scene.tunnels.list_tunnel(TABLE) == ()


@pytest.mark.slow
def test_workers_share_threads_of_the_users_own_which_stay_his(scene: Scene) -> None:
    logs = [Log(), Log()]
    with ThreadPoolExecutor(2) as reading, ThreadPoolExecutor(2) as processing:
        shared = {"read_records_executor": reading, "process_records_executor": processing}
        workers = [
            scene.worker(scene.tunnel(TunnelType.STREAM, f"t{place}"), log, **shared) for place, log in enumerate(logs)
        ]
        with workers[0], workers[1]:
            scene.put(*range(20))
            until(lambda: all(log.values() == scene.written for log in logs))
        assert reading.submit(int).result() == processing.submit(int).result() == 0


# --- what ends and what does not -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["connect", "heartbeat", "readrecords"])
@pytest.mark.parametrize(
    ("code", "kind"), [("OTSPermissionDenied", TunnelPermissionDeniedError), ("OTSTunnelExpired", TunnelExpiredError)]
)
def test_what_cannot_pass_ends_worker_and_daemon(
    scene: Scene, tunnel_id: str, verb: str, code: str, kind: type[Exception]
) -> None:
    scene.put(1)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail(code)))
    worker = scene.worker(tunnel_id, Log())
    with pytest.raises(WorkerFailedError), worker:
        worker.wait(PATIENCE_SECONDS)
    assert isinstance(worker.exception, kind)

    daemon, ended = TunnelDaemon(tunnel_id, scene.tunnels, Log()), list[BaseException]()

    def run() -> None:
        try:
            daemon.run()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    daemon.close()
    assert [type(error) for error in ended] == [WorkerFailedError]
    assert code in str(ended[0])


@pytest.mark.slow
def test_what_may_pass_is_waited_out_at_the_beginning(scene: Scene, tunnel_id: str) -> None:
    """Codes after which the official workers connect again, too."""
    for code in ("OTSServerBusy", "OTSResourceGone"):
        scene.local.add_fault(FaultRule("tunnel/connect", Fail(code), times=1))
    log = Log()
    with scene.worker(tunnel_id, log):
        scene.put(1)
        until(lambda: log.values() == scene.written)


def test_daemon_tells_wrong_arguments_when_it_is_made(scene: Scene) -> None:
    with pytest.raises(ConfigurationError, match="tunnel_id"):
        TunnelDaemon("", scene.tunnels, Log())
    with pytest.raises(ConfigurationError, match="processor"):
        TunnelDaemon("t", scene.tunnels, 5)  # type: ignore[arg-type]  # on purpose


@pytest.mark.slow
def test_daemon_replaces_a_worker_that_failed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the worker itself: nothing that the service says has this effect."""
    step, failures = TunnelCoordinator.step, iter([RuntimeError("a fault")])

    def fail_once(self: TunnelCoordinator, longest_wait_seconds: float = 1.0) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        step(self, longest_wait_seconds)

    monkeypatch.setattr(TunnelCoordinator, "step", fail_once)
    log = Log()
    daemon = TunnelDaemon(scene.tunnel(TunnelType.STREAM), scene.tunnels, log)
    with running(daemon):
        scene.put(1)
        until(lambda: log.values() == scene.written)

    assert next(failures, None) is None


@pytest.mark.slow
def test_closed_daemon_ends_its_session(scene: Scene, tunnel_id: str) -> None:
    daemon = TunnelDaemon(tunnel_id, scene.tunnels, Log())
    with running(daemon):
        until(lambda: bool(scene.tunnels.describe_tunnel(TABLE, "t").channels[0].client_id))

    scene.let_go()
    daemon.run()  # returns at once


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("raise RuntimeError('the program fails')", 1), ("sys.exit(3)", 3), ("", 0)])
def test_program_that_ends_without_shutdown_leaves_nothing_behind(scene: Scene, end: str, code: int) -> None:
    """The session has five minutes: what is free at once was let go in order."""
    run = "worker = TunnelWorker(tunnel_id, client, Processor(), config)\nworker.connect_and_working()\ncame.wait()\n"
    command = program(scene, run + end)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)

    printed = "reading\nthe processor was shut down\n"
    assert (ended.returncode, ended.stdout) == (code, printed), ended.stderr
    assert scene.let_go() == 1, "the last checkpoint was stored"


@pytest.mark.slow
def test_an_interrupt_ends_the_session_before_it_is_raised_again(scene: Scene) -> None:
    """Ctrl-C in a program that just calls ``run()``."""
    tunnel_id, log = scene.tunnel(TunnelType.STREAM), Log()
    scene.put(1)
    worker = scene.worker(tunnel_id, log)
    with interrupted_after(lambda: until(lambda: bool(log.records), "a delivery")):
        worker.run()

    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert scene.let_go() == 1, "the last checkpoint was stored"
