"""Every place of the package that starts a thread, and what follows when the system refuses it."""

from __future__ import annotations

import argparse
import ast
import io
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import streamclient
from streamclient import Backoff, ClientConfig, KeyedProcessorFactory, MemoryLeaseManager, StreamConfig, Worker
from streamclient.base import cron
from streamclient.base.cron import CronSchedule
from streamclient.base.interrupts import RaisedBySignal
from streamclient.base.pools import DaemonPool
from streamclient.cli.run_fleet import become_one_of_processes
from streamclient.cli.terminal.commands import EXIT_UNUSABLE, run_command
from streamclient.cli.terminal.output import shown_meanwhile
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.errors import NoThreadError, WorkerFailedError
from streamclient.metrics.prometheus import PrometheusMetrics
from streamclient.server import LocalTablestore
from streamclient.spark.processor.committer import Committer
from streamclient.spark.processor.jobs import CancellableJobs
from streamclient.spark.processor.spark_config import SparkConfig
from streamclient.spark.source.prefetch import PagesAhead
from streamclient.testing.fakes import FakeStream
from streamclient.tunnel import TunnelClient, TunnelDaemon, TunnelWorker
from tests.interrupts import handled_by_python
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record
from tests.process.refusals import REFUSAL, refused

PACKAGE = Path(streamclient.__file__).parent
STARTERS = {"Thread", "ThreadPoolExecutor", "start_thread", "start_new_thread", "DaemonPool", "BackgroundScheduler"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# --- what is started by the program: it is told, nothing has begun, and the same works later ------------------------


def worker() -> Worker:
    stream = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    return Worker("w", ClientConfig(), stream, lambda: None, None, MemoryLeaseManager(), stream_api=FakeStream())  # type: ignore[arg-type,return-value]


def the_worker_of_a_block(_: Path) -> None:
    made = worker()
    try:
        with made:
            raise AssertionError("it runs")
    finally:
        assert made.wait(PATIENCE_SECONDS)
        assert made.shutdown()


def one_of_several_streams(_: Path) -> None:
    worker().run()


def tunnel_worker() -> TunnelWorker:
    local = LocalTablestore()
    with local:
        return TunnelWorker("tunnel", TunnelClient(local.client()), lambda records: None)


def a_tunnel_worker(_: Path) -> None:
    made = tunnel_worker()
    with pytest.raises(WorkerFailedError) as failed:
        made.run()
    assert not made.health.is_healthy
    with pytest.raises(WorkerFailedError):
        made.wait(PATIENCE_SECONDS)
    raise failed.value.errors["tunnel"]


def a_tunnel_daemon(_: Path) -> None:
    with LocalTablestore() as local:
        daemon = TunnelDaemon("tunnel", TunnelClient(local.client()), lambda records: None)
        try:
            with daemon:
                raise AssertionError("it runs")
        finally:
            assert daemon.wait(PATIENCE_SECONDS)


def a_server(folder: Path) -> None:
    port = free_port()
    try:
        LocalTablestore(port=port, data_dir=folder).start()
    except NoThreadError:
        with refused(lambda name: False), socket.create_server(("127.0.0.1", port)):
            raise


def metrics_over_http(_: Path) -> None:
    from prometheus_client import CollectorRegistry  # an extra

    port = free_port()
    try:
        PrometheusMetrics(CollectorRegistry()).serve(port)
    except NoThreadError:
        with socket.create_server(("127.0.0.1", port)):
            raise


def a_schedule(_: Path) -> None:
    schedule = CronSchedule("test")
    try:
        schedule.start()
    finally:
        assert schedule.stop(PATIENCE_SECONDS)


def a_mirror(_: Path) -> None:
    writer = MirrorWriter(None, None, None)  # type: ignore[arg-type]
    try:
        writer.start()
    finally:
        writer.close()


def a_committer(_: Path) -> None:
    committer = Committer(SparkConfig(), lambda pieces, jobs: None)  # type: ignore[arg-type,return-value]
    try:
        committer.register(SimpleNamespace())  # type: ignore[arg-type]
    finally:
        assert committer._shares == []
        committer.close()


def one_of_several_processes(_: Path) -> None:
    before = sys.stdout, sys.stderr
    try:
        become_one_of_processes(argparse.Namespace())
    finally:
        sys.stdout, sys.stderr = before


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("w-run", the_worker_of_a_block),
        ("w-owner-orders", one_of_several_streams),
        ("tunnel-tunnel", a_tunnel_worker),
        ("tunnel-daemon", a_tunnel_daemon),
        ("local-tablestore-", a_server),
        ("health-", metrics_over_http),
        ("APScheduler", a_schedule),
        ("streamclient-mirror", a_mirror),
        ("streamclient-spark-committer", a_committer),
        ("parent", one_of_several_processes),
    ],
)
def test_a_start_without_a_thread_is_an_error_with_its_name_and_leaves_nothing(
    name: str, start: Callable[[Path], None], tmp_path: Path
) -> None:
    with refused(lambda given: given.startswith(name), 1), pytest.raises(NoThreadError) as raised:
        start(tmp_path)

    assert f": {REFUSAL}; raise the limit of threads" in str(raised.value)


# --- what runs already: it goes on --------------------------------------------------------------------------------


def keyed_records(names: str) -> None:
    done: list[str] = []
    stream = FakeStream()
    stream.append("shard-1", *(make_record(f"key-{number % 7}", number) for number in range(100)))
    factory = KeyedProcessorFactory(lambda record: done.append(str(record.sequence_info)), threads=3)
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=10)
    quick = ClientConfig(
        taker_interval_millis=100, sync_shard_interval_millis=100, backoff=Backoff(restart_backoff_min_millis=10)
    )
    made = Worker("w", quick, config, factory, None, MemoryLeaseManager(), stream_api=stream)
    with refused(lambda name: name.startswith(names), 3) as refusals, made:
        assert made.wait(PATIENCE_SECONDS, until=lambda: len(done) >= 100)
        assert refusals.names
    assert (len(done), len(set(done))) == (100, 100)


def a_job_by_the_clock() -> None:
    schedule, ran = CronSchedule("test"), threading.Event()
    schedule.add("report", "* * * * *", ran.set)
    schedule.start()
    try:
        with refused(lambda name: name.startswith("test-cron"), 1) as refusals:
            schedule.scheduler.modify_job("report", next_run_time=cron.datetime.now(cron.timezone.utc))
            until(lambda: bool(refusals.names))
            schedule.scheduler.modify_job("report", next_run_time=cron.datetime.now(cron.timezone.utc))
            assert ran.wait(PATIENCE_SECONDS)
    finally:
        schedule.stop()


def jobs_of_spark() -> None:
    ended = threading.Semaphore(0)
    jobs = CancellableJobs()
    jobs._end_jobs = ended.release
    with refused(lambda name: name == "streamclient-spark-cancel", 1):
        jobs.cancel()
        jobs.cancel()
        for _ in range(3):
            assert ended.acquire(timeout=PATIENCE_SECONDS)
    jobs._is_over.set()


def pages_read_ahead() -> None:
    asked: list[str] = []
    pool = DaemonPool("ahead", 2)
    ahead = PagesAhead(lambda shard, at, size: asked.append(shard), pool)  # type: ignore[arg-type,func-returns-value]
    with refused(lambda name: name.startswith("ahead-")):
        ahead.start({"a": "1", "b": "2"}, {"a": [1], "b": [1]})
        ahead.page("a", "1", 1)
        ahead.page("b", "2", 1)
    assert asked == ["a", "b"]


def a_line_of_progress() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    before, sys.stderr = sys.stderr, Terminal()
    try:
        with refused(lambda name: name == "progress"), shown_meanwhile("working"):
            pass
    finally:
        sys.stderr = before


def a_signal_that_was_swallowed() -> None:
    """Its thread is a bare one, without a name."""
    handler = RaisedBySignal(signal.SIGUSR1, partial(SystemExit, 3), once=True)
    refusals = iter([True, True])
    original = streamclient.base.interrupts._thread.start_new_thread

    def start(*arguments: Any) -> Any:
        if next(refusals, False):
            raise RuntimeError(REFUSAL)
        return original(*arguments)

    streamclient.base.interrupts._thread = SimpleNamespace(start_new_thread=start)  # type: ignore[assignment]
    try:
        handler.install()
        swallowed(signal.SIGUSR1)
        with pytest.raises(SystemExit):
            until(lambda: False)
    finally:
        handler.remove()
        streamclient.base.interrupts._thread = sys.modules["_thread"]


def swallowed(number: int) -> None:
    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Thing()


def a_daemon_whose_worker_gets_no_thread() -> None:
    with LocalTablestore() as local, refused(lambda name: name == "tunnel-t") as refusals:
        daemon = TunnelDaemon("t", TunnelClient(local.client()), lambda records: None)

        def give_threads_back() -> None:
            until(lambda: "no thread could be started for tunnel-t" in daemon.health.reason)
            refusals.stop()

        threading.Thread(target=give_threads_back).start()
        with pytest.raises(WorkerFailedError, match="OTSParameterInvalid"):
            daemon.run()


@pytest.mark.parametrize(
    "play",
    [
        partial(keyed_records, "keyed-watch"),
        partial(keyed_records, "keyed-1"),
        partial(keyed_records, "keyed-2"),
        partial(keyed_records, "keyed-"),
        a_job_by_the_clock,
        jobs_of_spark,
        pages_read_ahead,
        a_line_of_progress,
        handled_by_python()(a_signal_that_was_swallowed),
        a_daemon_whose_worker_gets_no_thread,
    ],
    ids=lambda play: play.args[0] if isinstance(play, partial) else play.__name__,
)
def test_what_runs_lives_through_a_refused_thread(play: Callable[[], None]) -> None:
    play()


def test_a_command_without_a_thread_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of the standard library's pools, of which commands make several."""

    def run(_: argparse.Namespace) -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(int).result()

    with refused(lambda name: name.startswith("ThreadPoolExecutor")):
        assert run_command(argparse.Namespace(command="leases", run=run)) == EXIT_UNUSABLE

    said = capsys.readouterr().err
    assert said.startswith(f"leases: no thread could be started for this command: {REFUSAL}; raise the limit")


OF_THE_TABLE = {
    "worker/worker.py": "w-run",
    "worker/stream_run.py": "w-owner-orders",
    "worker/runtime.py": "the pools of a worker, in the file beside",
    "tunnel/tunnel_worker.py": "tunnel-tunnel",
    "tunnel/tunnel_daemon.py": "tunnel-daemon",
    "server/http_server.py": "local-tablestore-",
    "base/cron.py": "APScheduler, and a job by the clock",
    "base/health_server.py": "health-",
    "copying/mirror_writer.py": "streamclient-mirror",
    "spark/processor/committer.py": "streamclient-spark-committer",
    "spark/processor/jobs.py": "jobs of Spark",
    "worker/keyed/lane_pool.py": "keyed-watch, keyed-",
    "loops/consumption.py": "the first turn of a loop raises, and its object is used up",
    "worker/handlers/event_loop.py": "w-asyncio: the start of a shard fails, and is tried again",
    "cli/run_fleet.py": "parent",
    "cli/terminal/output.py": "progress; a reader that has gone is noticed at the next write",
    "base/interrupts.py": "a signal that was swallowed",
    "base/pools.py": "each pool, in the file beside",
    "spark/source/planner.py": "a query fails with the sentence, and Spark starts it again",
    "spark/source/partition_reading.py": "a task fails, and Spark starts it again",
    "spark/processor/batch.py": "a batch fails, and its processors read it again",
    "destinations/catalog_calls.py": "a call of the destination fails, and is repeated",
    "destinations/delta/delta_log.py": "a call of the destination fails, and is repeated",
    "cli/terminal/copy_progress.py": "a command ends with a sentence",
    "console/listening.py": "the server goes on without a console, and says so",
    "console/fleets.py": "an answer with status 502 and the sentence",
    "operate/fleet_following.py": "the fleet is not read, which the log says, until the next viewer comes",
    "cli/lease_changes.py": "a command ends with a sentence",
    "operate/next_records.py": "a command ends with a sentence",
}
"""Each file that starts threads, with its row above or with what follows there."""


def test_every_file_that_starts_threads_is_in_the_table() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE).as_posix()
        if relative.startswith("testing/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name in STARTERS:
                    found.add(relative)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Name) and node.value.id in STARTERS:
                found.add(relative)

    assert found == set(OF_THE_TABLE)
