"""``run --processes``: real processes against real HTTP, some of them killed; and decisions on a clock of the test."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamclient.cli.run_child import ProcessFailure, packed, unpacked
from streamclient.cli.run_fleet import START_SECONDS, STEADY_SECONDS, Supervisor, WorkerSlot
from streamclient.cli.run_supervision import Log, SupervisedWorker, end_all
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.server import LocalTablestore
from streamclient.worker.lease import LeaseManager
from tests.interrupts import handled_by_python
from tests.operate.operate_scene import TABLE, Scene, run_cli
from tests.patience import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]

PROCESSOR = """
import atexit, os, signal, sys, threading, time
from pathlib import Path
from streamclient import IRecordProcessor, ShutdownReason

HERE = Path(__file__).parent
NAME = sys.argv[2] if len(sys.argv) == 3 else "alone"
{extra}
atexit.register(lambda: (HERE / f"left-{{NAME}}-{{os.getpid()}}").touch())

class Show(IRecordProcessor):
    def initialize(self, given):
        print(f"at work: {{os.getpid()}}")

    def process_records(self, given):
        for record in given.records:
            print("key", dict(record.primary_key)["id"], dict((c.name, c.value) for c in record.columns)["n"])
        given.checkpointer.checkpoint()

    def shutdown(self, given):
        {shutdown}
        if given.shutdown_reason is ShutdownReason.TERMINATE:
            given.checkpointer.checkpoint()
"""


TABLES = ("--data-table", TABLE, "--status-table", "st")
NAME = ("--worker", "w", "--lease-duration", "3")


class Run:
    """``streamclient run`` in a process; what it prints is gathered as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self.threads = [
            threading.Thread(target=into.extend, args=(source,), daemon=True)
            for source, into in ((process.stdout, self.out), (process.stderr, self.err))
        ]
        for thread in self.threads:
            thread.start()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
        for source in (self.process.stdout, self.process.stderr):
            assert source is not None
            source.close()
        return code

    def numbers(self, name: str = "") -> list[int]:
        """What was printed of records, by one worker or all."""
        found = [re.fullmatch(r"(\S+) \| key \S+ (\d+)\n", line) for line in [*self.out]]
        return [int(each[2]) for each in found if each is not None and name in ("", each[1])]

    def pids(self, name: str) -> list[int]:
        """Processes of a worker that got a shard, the latest one last."""
        found = [re.fullmatch(rf"{name} \| at work: (\d+)\n", line) for line in [*self.out]]
        return list(dict.fromkeys(int(each[1]) for each in found if each is not None))

    @property
    def port(self) -> int:
        until(lambda: any("metrics: http" in line for line in [*self.err]), lambda: self.err)
        (line,) = [line for line in [*self.err] if "metrics: http" in line]
        return int(re.findall(r":(\d+)/metrics", line)[0])

    def health(self) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metrics(self) -> dict[str, dict[str, float]]:
        """Sums by metric and worker."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                of_worker = found.setdefault(sample.name, {})
                worker = sample.labels["worker"]
                of_worker[worker] = of_worker.get(worker, 0.0) + sample.value
        return found


def write_processor(folder: Path, *, extra: str = "", shutdown: str = "pass") -> None:
    (folder / "show.py").write_text(PROCESSOR.format(extra=extra, shutdown=shutdown))


@contextmanager
def running(folder: Path, endpoint: str, *words: str) -> Iterator[Run]:
    process = subprocess.Popen(
        [sys.executable, "-m", "streamclient.cli.main", "run", "show:Show", *TABLES, *NAME, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TABLESTORE_ENDPOINT": endpoint},
    )
    run = Run(process)
    try:
        yield run
    finally:
        process.kill()
        run.ended()


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    """Four open shards."""
    scene = Scene(local)
    scene.write(40)
    for shard in scene.split():
        scene.split(shard)
    return scene


def owners(scene: Scene) -> set[str]:
    """Of leases that are not finished."""
    leases = LeaseManager(scene.client, "st", scene.stream_id).list_leases()
    return {lease.owner for lease in leases if lease.checkpoint != "SHARD_END"}


def both_at_work(run: Run, scene: Scene) -> None:
    """Each of two processes holds open shards, and has shown its number."""
    until(lambda: bool(run.pids("w-1") and run.pids("w-2")), lambda: run.err)
    until(lambda: owners(scene) == {"w-1", "w-2"}, lambda: owners(scene))


def processed_by(run: Run) -> dict[str, float]:
    """Records by worker, as the one endpoint has them."""
    return run.metrics().get("streamclient_records_processed_total", {})


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_processes_share_the_shards_and_a_signal_ends_all_in_order(
    scene: Scene, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write_processor(tmp_path)
    words = ["--processes", "2", "--log", "info", "--metrics-port", "0"]
    with handled_by_python(), running(tmp_path, scene.local.endpoint, *words) as run:
        both_at_work(run, scene)
        children = [run.pids(name)[-1] for name in ("w-1", "w-2")]
        scene.write(40, start=40)
        until(lambda: {*range(80)} <= {*run.numbers()}, lambda: run.out)
        until(lambda: run.health()[0] == 200, run.health)
        until(lambda: sum(processed_by(run).values()) >= 80, lambda: processed_by(run))  # counted when the call is over
        processed = processed_by(run)
        run.process.send_signal(number)
        ended = run.ended()
    leases = LeaseManager(scene.client, "st", scene.stream_id).list_leases()

    assert ended == code, run.err
    assert run.numbers("w-1"), "each process read some"
    assert run.numbers("w-2"), "each process read some"
    assert {*processed} == {"w-1", "w-2"}, "one endpoint has the figures of all"
    assert {path.name for path in tmp_path.glob("left-*")} == {
        f"left-w-{index}-{pid}" for index, pid in enumerate(children, 1)
    }, "each process came to its end"
    for name in ("w-1", "w-2"):
        assert any(re.fullmatch(rf"{name} \| .* INFO worker {name} has ended\n", line) for line in run.err)
    assert all(re.match(r"(w-[12] \| |workers w-1 to w-2 read|metrics: )", line) for line in run.err), run.err
    assert all(re.fullmatch(r"w-[12] \| (key key-\d\d \d+|at work: \d+)\n", line) for line in run.out), run.out
    ends = {shard.shard_id: shard for shard in scene.local.shards(TABLE)}
    assert {lease.lease_key for lease in leases} == {*ends}


@pytest.mark.slow
def test_process_that_is_killed_is_started_again_and_nothing_is_lost(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path)
    with running(tmp_path, scene.local.endpoint, "--processes", "2", "--metrics-port", "0") as run:
        both_at_work(run, scene)
        (first,) = run.pids("w-1")
        assert os.getpgid(first) == first != os.getpgid(run.process.pid), "Ctrl-C in a terminal reaches only the parent"
        os.kill(first, signal.SIGKILL)
        scene.write(40, start=40)
        until(lambda: len(run.pids("w-1")) == 2, lambda: run.out)
        scene.write(40, start=80)
        until(lambda: {*range(120)} <= {*run.numbers()}, lambda: run.out)
        until(lambda: run.health()[0] == 200, run.health)
        run.process.terminate()
        assert run.ended() == 143

    (said,) = [line for line in run.err if "starts again" in line]
    assert re.fullmatch(r"w-1 ended and starts again in \d\.\d s: it was killed by SIGKILL\n", said)


@pytest.mark.slow
def test_processes_end_in_order_when_their_parent_is_killed(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path)
    with running(tmp_path, scene.local.endpoint, "--processes", "2") as run:
        both_at_work(run, scene)
        children = {f"left-{name}-{run.pids(name)[-1]}" for name in ("w-1", "w-2")}
        run.process.kill()
        until(lambda: {path.name for path in tmp_path.glob("left-*")} == children)
        run.ended()  # the output is closed: they are gone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--access-key-secret", "wrong"], 1, r"worker w-\d ends reading orders: looking up .*OTSAuthFailed.*"),
        (["--data-table", "nothing"], 1, r"worker w-\d ends reading nothing: data table 'nothing' has no stream.*"),
        (["--lease-duration", "-1"], 2, r"the lease duration must be a number of seconds above 0, not -1.0"),
    ],
    ids=["wrong key", "no such table", "wrong setting"],
)
def test_what_no_process_can_work_with_ends_the_run_with_one_sentence(
    scene: Scene, tmp_path: Path, words: list[str], code: int, sentence: str
) -> None:
    write_processor(tmp_path)
    with running(tmp_path, scene.local.endpoint, "--processes", "3", *words) as run:
        ended = run.ended()

    own = [line for line in run.err if not line.startswith("w-")]
    assert ended == code, run.err
    assert len(own) == 2, "where it reads, and the sentence"
    assert re.fullmatch(f"streamclient run: {sentence}\n", own[1]), own


@pytest.mark.slow
def test_fault_of_user_code_that_no_process_survives_ends_the_run(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path, extra='raise RuntimeError("no licence")')
    with running(tmp_path, scene.local.endpoint, "--processes", "2") as run:
        ended = run.ended()

    assert (ended, run.err[-1]) == (1, "streamclient run: RuntimeError: no licence\n")
    assert any(re.fullmatch(r"w-[12] \| Traceback .*\n", line) for line in run.err)


@pytest.mark.slow
def test_process_that_keeps_dying_makes_the_run_unhealthy_with_its_last_error(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path, extra='if NAME == "w-2": os._exit(7)')
    with running(tmp_path, scene.local.endpoint, "--processes", "2", "--metrics-port", "0") as run:
        until(lambda: {*range(40)} <= {*run.numbers("w-1")}, lambda: run.err)
        until(lambda: sum("starts again" in line for line in [*run.err]) >= 2, lambda: run.err)
        until(lambda: "w-1" not in run.health()[1]["reason"], run.health)
        code, told = run.health()
        unhealthy = run.metrics()["streamclient_unhealthy"]
        run.process.terminate()
        ended = run.ended()

    assert (code, told["is_healthy"]) == (503, False)
    assert re.fullmatch(r"w-2: .*it ended with exit code 7", told["reason"])
    assert unhealthy == {"w-1": 0.0, "w-2": 1.0}
    assert ended == 143


@pytest.mark.slow
def test_second_ctrl_c_does_not_wait_for_user_code(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path, shutdown='if (HERE / "stay").exists(): print("stays"); threading.Event().wait()')
    with running(tmp_path, scene.local.endpoint, "--processes", "2") as run:
        both_at_work(run, scene)
        (tmp_path / "stay").touch()  # not before: balancing ends processors, too
        run.process.send_signal(signal.SIGINT)
        until(lambda: any(line.endswith("stays\n") for line in [*run.out]))
        run.process.send_signal(signal.SIGINT)
        ended = run.ended()

    assert ended == 130
    assert any(re.fullmatch(r"w-[12] is killed: a second Ctrl-C came; its leases expire\n", line) for line in run.err)


@pytest.mark.slow
def test_one_worker_has_the_same_endpoint(scene: Scene, tmp_path: Path) -> None:
    write_processor(tmp_path)
    with running(tmp_path, scene.local.endpoint, "--metrics-port", "0") as run:
        until(lambda: run.metrics().get("streamclient_records_processed_total", {}).get("w", 0) >= 40, run.metrics)
        assert run.health() == (200, {"is_healthy": True, "reason": ""})
        run.process.terminate()
        assert run.ended() == 143


# --- decisions --------------------------------------------------------------------------------------------------------


def test_pauses_between_starts_double_until_a_process_is_steady() -> None:
    place, dice = WorkerSlot("w-1"), random.Random(0)
    pauses = [place.ended("gone", None, 0.0, dice) for _ in range(8)]

    assert 0.5 <= pauses[0] <= 1.0
    assert pauses[-1] > 30.0 >= pauses[4]
    place.process = begun_process()
    place.seen(100.0)
    place.seen(100.0 + STEADY_SECONDS)
    assert place.ended("gone", None, 200.0, dice) <= 1.0


def test_process_that_was_let_in_once_after_it_died_is_healthy_and_one_that_dies_again_is_not() -> None:
    place, dice = WorkerSlot("w-1"), random.Random(0)
    assert place.health(0.0) == (False, "is starting")
    for is_healthy in (True, False):
        place.ended("it was killed by SIGKILL", None, 0.0, dice)
        assert place.health(0.0) == (False, "is not running: it was killed by SIGKILL")
        place.process = begun_process()
        assert not place.health(0.0)[0], "it has not been let in again"
        place.seen(1.0)
        assert place.health(1.0)[0] is is_healthy
    place.seen(1.0 + STEADY_SECONDS)
    assert place.health(1.0) == (True, "")


def test_process_that_says_nothing_is_unhealthy() -> None:
    place = WorkerSlot("w-1", begun_process())

    assert place.health(10.0) == (True, "")
    assert place.health(31.0) == (False, "has said nothing for 31 s")


def test_refusal_is_forgotten_once_a_later_process_was_let_in() -> None:
    place = WorkerSlot("w-1")
    place.ended("wrong key", ProcessFailure("wrong key", 1, is_refusal=True), 0.0, random.Random(0))
    assert place.refusal is not None
    place.process = begun_process()
    place.seen(1.0)
    assert place.refusal is None


def begun_process() -> SupervisedWorker:
    class Begun:
        has_started = has_begun = True
        heard_at = 0.0
        health = (True, "")

    return cast(SupervisedWorker, Begun())


def test_process_that_hangs_in_its_start_is_killed_and_started_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is the test's: only the first process hangs, and only until the limit has passed on it."""
    hang = 'if not (HERE / "hung").exists(): (HERE / "hung").touch(); signal.sigwait([signal.SIGUSR1])'
    write_processor(tmp_path, extra=hang)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    now, log = [0.0], Log(io.BytesIO(), io.BytesIO())
    given: dict[str, Any] = {
        "factory": "show:Show",
        "data_table": TABLE,
        "status_table": "st",
        "endpoint": scene.local.endpoint,
    }
    given = {**given, "beginning": "oldest", "lease_duration": 3.0, "metrics_port": None, "log": "warning"}
    given = {**given, "command": "streamclient run"}

    def start(name: str, wake: Callable[[], None]) -> SupervisedWorker:
        return SupervisedWorker(name, {**given, "worker": name}, log, wake)

    supervisor = Supervisor(["w-1"], start, log, monotonic=lambda: now[0])
    try:
        supervisor.step()
        (first,) = supervisor.processes()
        until((tmp_path / "hung").exists)
        now[0] = START_SECONDS
        supervisor.step()
        assert supervisor.processes() == [first], "it still has time"
        now[0] = START_SECONDS + 1
        supervisor.step()
        assert not first.is_running
        assert supervisor.health() == (False, f"w-1: is not running: it did not start within {START_SECONDS:.0f} s")
        now[0] += 2
        supervisor.step()
        (second,) = supervisor.processes()
        until(lambda: second.has_begun)
        assert second.is_running
    finally:
        end_all(supervisor.processes(), log, lambda: False)


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_lines_of_many_processes_are_not_torn() -> None:
    printed = io.BytesIO()
    log, threads = Log(printed, printed), []
    for index in range(4):
        source, sink = os.pipe()
        threads.append(log.follow(f"w-{index}", os.fdopen(source, "rb"), printed))
        writer = threading.Thread(target=write_in_pieces, args=(sink, index))
        writer.start()
        threads.append(writer)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    lines = printed.getvalue().decode().splitlines()
    assert len(lines) == 4 * 201
    for index in range(4):
        own = [line.removeprefix(f"w-{index} | ") for line in lines if line.startswith(f"w-{index} | ")]
        assert own == [f"{number} {'x' * 50}" for number in range(200)] + ["no end"]


def write_in_pieces(sink: int, index: int) -> None:
    for number in range(200):
        for piece in (f"{number} ", "x" * 50, "\n"):
            os.write(sink, piece.encode())
    os.write(sink, b"no end")
    os.close(sink)


def test_threads_of_a_process_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    program = (
        "import threading, time\n"
        "from streamclient.cli.run_child import WholeLines\n"
        "lines = WholeLines(1)\n"
        "meet = threading.Barrier(2)\n"
        "def show(name):\n"
        "    for _ in range(100):\n"
        "        lines.write(name); meet.wait(); lines.write(name); lines.flush(); meet.wait(); lines.write('\\n')\n"
        "threads = [threading.Thread(target=show, args=(name,)) for name in 'ab']\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert sorted(done.stdout.splitlines()) == ["aa"] * 100 + ["bb"] * 100


def test_series_are_the_same_on_the_other_side_of_the_pipe() -> None:
    memory = MemoryMetrics()
    memory.increment(metric_table.RECORDS_PROCESSED, 3, stream="orders", worker="w-1", shard="a")
    memory.set(metric_table.LAG_SECONDS, 1.5, stream="orders", worker="w-1", shard="a")
    memory.observe(metric_table.SCAN_SECONDS, 0.02, stream="orders", worker="w-1")

    assert tuple(unpacked(json.loads(json.dumps(packed(memory.snapshot()))))) == memory.snapshot()


def test_metrics_without_the_library_are_refused_with_the_command_that_brings_it(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    words = ["run", "show:Show", "--data-table", "t", "--status-table", "st", "--endpoint", local.endpoint]
    ran = run_cli(*words, "--processes", "2", "--metrics-port", "0")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith('pip install ".[prometheus]"\n')


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--processes", "0"], "--processes must be a number above 0, not 0"),
        (["--processes", "2", "--metrics-port", "70000"], "cannot serve metrics on 127.0.0.1 port 70000"),
    ],
)
def test_what_cannot_work_is_told_before_a_process_starts(words: list[str], reason: str) -> None:
    ran = run_cli("run", "show:Show", "--data-table", "t", "--status-table", "st", *words)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"streamclient run: {reason}")


def test_secret_from_a_pipe_is_read_once_for_all_processes(tmp_path: Path) -> None:
    from argparse import Namespace

    from streamclient.cli.run_fleet import given_arguments

    pipe, plain = tmp_path / "pipe", tmp_path / "plain"
    os.mkfifo(pipe)
    plain.write_text("of a file\n")
    writer = threading.Thread(target=pipe.write_text, args=("of a pipe\n",))
    writer.start()
    read = given_arguments(Namespace(access_key_secret_file=str(pipe), run=print))
    writer.join(PATIENCE_SECONDS)

    assert read["access_key_secret"] == "of a pipe"
    assert "run" not in read
    assert "access_key_secret" not in given_arguments(Namespace(access_key_secret_file=str(plain)))
