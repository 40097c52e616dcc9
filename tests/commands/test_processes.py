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
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamclient.cli.main import make_parser
from streamclient.cli.run_fleet import STEADY_SECONDS, PassedOutput, Supervisor, WorkerSlot, after_name, worker_slots
from streamclient.cli.run_settings import RunSettings
from streamclient.cli.terminal.commands import CommandFailed
from streamclient.server import LocalTablestore
from streamclient.worker.lease import LeaseManager
from tests.commands.command_process import ROOT, TABLES, CommandProcess
from tests.interrupts import handled_by_python
from tests.operate.operate_scene import TABLE, Scene, run_cli
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import ask

PROCESSOR = """
import atexit, os, signal, sys, threading, time
from pathlib import Path
from streamclient import IRecordProcessor, ShutdownReason

HERE = Path(__file__).parent
NAME = sys.argv[-sys.argv[::-1].index("--worker")] if "--worker" in sys.argv else "w"
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


class Run(CommandProcess):
    """``streamclient run`` of a processor that is written as two programs say."""

    def __init__(self, folder: Path, endpoint: str, *words: str, extra: str = "", shutdown: str = "pass") -> None:
        write_processor(folder, extra=extra, shutdown=shutdown)
        name = ("--worker", "w", "--lease-duration", "3")
        super().__init__(folder, endpoint, "run", "show:Show", *TABLES, *name, *words)

    def numbers(self, name: str = "") -> list[int]:
        """What was printed of records, by one worker or all."""
        found = [re.fullmatch(r"(\S+) \| key \S+ (\d+)\n", line) for line in [*self.out]]
        return [int(each[2]) for each in found if each is not None and name in ("", each[1])]

    def pids(self, name: str) -> list[int]:
        """Processes of a worker that got a shard, the latest one last."""
        found = [re.fullmatch(rf"{name} \| at work: (\d+)\n", line) for line in [*self.out]]
        return list(dict.fromkeys(int(each[1]) for each in found if each is not None))

    def ports(self) -> dict[str, int]:
        """Where each worker says that its metrics are."""
        found = [
            re.fullmatch(r"(?:(\S+) \| )?metrics: http:\S+?:(\d+)/metrics, probes: /live /ready /health\n", line)
            for line in [*self.err]
        ]
        return {each[1] or "w": int(each[2]) for each in found if each is not None}

    def told(self, name: str, path: str) -> str:
        """What a worker's own endpoint says, also where that is trouble."""
        return ask(self.ports()[name], f"/{path}").body.decode()

    def health(self, name: str) -> Any:
        return json.loads(self.told(name, "health"))

    def processed(self, name: str) -> float:
        """Records, as a worker's own endpoint has them."""
        families = text_string_to_metric_families(self.told(name, "metrics"))
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["worker"] for sample in samples} <= {name}, "an endpoint tells of its own worker alone"
        return sum(each.value for each in samples if each.name == "streamclient_records_processed_total")


def write_processor(folder: Path, *, extra: str = "", shutdown: str = "pass") -> None:
    (folder / "show.py").write_text(PROCESSOR.format(extra=extra, shutdown=shutdown))


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


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_processes_share_the_shards_and_a_signal_ends_all_in_order(
    scene: Scene, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    words = ["--processes", "2", "--log", "info", "--metrics-port", "0"]
    with handled_by_python(), closing(Run(tmp_path, scene.local.endpoint, *words)) as run:
        both_at_work(run, scene)
        children = [run.pids(name)[-1] for name in ("w-1", "w-2")]
        scene.write(40, start=40)
        until(lambda: {*range(80)} <= {*run.numbers()}, lambda: run.out)
        # Counted when the call is over.
        until(lambda: sum(map(run.processed, ("w-1", "w-2"))) >= 80, run.ports)
        until(lambda: all(run.health(name)["is_healthy"] for name in ("w-1", "w-2")), run.ports)
        run.process.send_signal(number)
        ended = run.ended()
    leases = LeaseManager(scene.client, "st", scene.stream_id).list_leases()

    assert ended == code, run.err
    assert run.numbers("w-1"), "each process read some"
    assert run.numbers("w-2"), "each process read some"
    assert {path.name for path in tmp_path.glob("left-*")} == {
        f"left-w-{index}-{pid}" for index, pid in enumerate(children, 1)
    }, "each process came to its end"
    for name in ("w-1", "w-2"):
        assert any(re.fullmatch(rf"{name} \| .* INFO worker {name} has ended\n", line) for line in run.err)
    assert all(re.match(r"(w-[12] \| |workers w-1 to w-2 read)", line) for line in run.err), run.err
    assert all(re.fullmatch(r"w-[12] \| (key key-\d\d \d+|at work: \d+)\n", line) for line in run.out), run.out
    ends = {shard.shard_id: shard for shard in scene.local.shards(TABLE)}
    assert {lease.lease_key for lease in leases} == {*ends}


@pytest.mark.slow
def test_process_that_is_killed_is_started_again_and_nothing_is_lost(scene: Scene, tmp_path: Path) -> None:
    with closing(Run(tmp_path, scene.local.endpoint, "--processes", "2")) as run:
        both_at_work(run, scene)
        (first,) = run.pids("w-1")
        assert os.getpgid(first) == first != os.getpgid(run.process.pid), "Ctrl-C in a terminal reaches only the parent"
        os.kill(first, signal.SIGKILL)
        scene.write(40, start=40)
        until(lambda: len(run.pids("w-1")) == 2, lambda: run.out)
        scene.write(40, start=80)
        until(lambda: {*range(120)} <= {*run.numbers()}, lambda: run.out)
        run.process.terminate()
        assert run.ended() == 143

    (said,) = [line for line in run.err if "starts again" in line]
    assert re.fullmatch(r"w-1 ended and starts again in \d\.\d s: it was killed by SIGKILL\n", said)


@pytest.mark.slow
def test_processes_end_in_order_when_their_parent_is_killed(scene: Scene, tmp_path: Path) -> None:
    with closing(Run(tmp_path, scene.local.endpoint, "--processes", "2")) as run:
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
    with closing(Run(tmp_path, scene.local.endpoint, "--processes", "3", *words)) as run:
        ended = run.ended()

    own = [line for line in run.err if not line.startswith("w-")]
    assert ended == code, run.err
    assert len(own) == (2 if code == 1 else 1), "where it reads, unless no process was started, and the sentence"
    assert re.fullmatch(f"streamclient run: {sentence}\n", own[-1]), own


@pytest.mark.slow
def test_fault_of_user_code_that_no_process_survives_ends_the_run(scene: Scene, tmp_path: Path) -> None:
    with closing(
        Run(tmp_path, scene.local.endpoint, "--processes", "2", extra='raise RuntimeError("no licence")')
    ) as run:
        ended = run.ended()

    assert (ended, run.err[-1]) == (1, "streamclient run: RuntimeError: no licence\n")
    assert any(re.fullmatch(r"w-[12] \| Traceback .*\n", line) for line in run.err)


@pytest.mark.slow
def test_process_that_keeps_dying_leaves_the_others_at_work(scene: Scene, tmp_path: Path) -> None:
    with closing(Run(tmp_path, scene.local.endpoint, "--processes", "2", extra='if NAME == "w-2": os._exit(7)')) as run:
        until(lambda: {*range(40)} <= {*run.numbers("w-1")}, lambda: run.err)
        until(lambda: sum("starts again" in line for line in [*run.err]) >= 2, lambda: run.err)
        run.process.terminate()
        ended = run.ended()

    (said, *_) = [line for line in run.err if "starts again" in line]
    assert re.fullmatch(r"w-2 ended and starts again in \d\.\d s: it ended with exit code 7\n", said)
    assert ended == 143


@pytest.mark.slow
def test_second_ctrl_c_does_not_wait_for_user_code(scene: Scene, tmp_path: Path) -> None:
    stays = 'if (HERE / "stay").exists(): print("stays"); threading.Event().wait()'
    with closing(Run(tmp_path, scene.local.endpoint, "--processes", "2", shutdown=stays)) as run:
        both_at_work(run, scene)
        (tmp_path / "stay").touch()  # not before: balancing ends processors, too
        run.process.send_signal(signal.SIGINT)
        until(lambda: any(line.endswith("stays\n") for line in [*run.out]))
        run.process.send_signal(signal.SIGINT)
        ended = run.ended()

    assert ended == 130
    assert any(re.fullmatch(r"w-[12] is killed: a second Ctrl-C came; its leases expire\n", line) for line in run.err)


@pytest.mark.slow
def test_one_worker_has_an_endpoint(scene: Scene, tmp_path: Path) -> None:
    with closing(Run(tmp_path, scene.local.endpoint, "--metrics-port", "0")) as run:
        until(lambda: bool(run.ports()), lambda: run.err)
        until(lambda: run.processed("w") >= 40, lambda: run.err)
        well = {"is_healthy": True, "reason": ""}
        for path, more in (("live", {}), ("ready", {}), ("health", {"failing_shards": {}, "more_failing_shards": 0})):
            until(lambda: json.loads(run.told("w", path)) == {**well, **more}, lambda: run.told("w", path))  # noqa: B023
        run.process.terminate()
        assert run.ended() == 143


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_one_worker_in_order(scene: Scene, tmp_path: Path, number: signal.Signals, code: int) -> None:
    with handled_by_python(), closing(Run(tmp_path, scene.local.endpoint, "--log", "info")) as run:
        until(lambda: any(line.startswith("at work: ") for line in [*run.out]), lambda: run.err)
        run.process.send_signal(number)
        ended = run.ended()

    assert ended == code, run.err
    assert any(line.endswith(" INFO worker w has ended\n") for line in run.err)
    assert [path.name for path in tmp_path.glob("left-*")] == [f"left-w-{run.process.pid}"], "it came to its end"


# --- decisions --------------------------------------------------------------------------------------------------------


def slot_of(*command: str, name: str = "w-1") -> WorkerSlot:
    return WorkerSlot(name, command, os.environ)


def test_pauses_between_starts_double_until_a_process_is_steady() -> None:
    slot, dice = slot_of(), random.Random(0)
    pauses = [slot.note_end(-9, "", 0.0, dice) for _ in range(8)]

    assert 0.5 <= pauses[0] <= 1.0
    assert pauses[-1] > 30.0 >= pauses[4]
    assert slot.note_end(-9, "", STEADY_SECONDS, dice) <= 1.0


def test_only_processes_that_end_by_themselves_before_they_are_steady_have_failed() -> None:
    slot, dice = slot_of(), random.Random(0)
    for code, at, has_failed in ((1, 0.0, True), (-9, 0.0, False), (143, 0.0, False), (1, STEADY_SECONDS, False)):
        slot.note_end(code, "wrong key", at, dice)
        assert (slot.failure is not None) is has_failed, (code, at)


def test_a_process_that_was_steady_keeps_the_run_alive_while_all_others_fail() -> None:
    now = [0.0]
    sleeping = slot_of(sys.executable, "-c", "import sys; sys.stdin.read()")
    failing = slot_of(sys.executable, "-c", "raise SystemExit('no licence')", name="w-2")
    supervisor = Supervisor([sleeping, failing], lambda: now[0])
    try:
        sleeping.note_end(1, "in use", 0.0, random.Random(0))
        now[0] = sleeping.due_at
        supervisor.step()
        now[0] += STEADY_SECONDS - 1
        until(lambda: not failing.is_running)
        with pytest.raises(CommandFailed, match="in use"):
            supervisor.step()
        now[0] += 1
        supervisor.step()
    finally:
        supervisor.came.append(signal.SIGTERM)
        supervisor.run()
    assert failing.failure is not None
    assert str(failing.failure) == "no licence"


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_output_is_passed_on_in_whole_lines_after_the_name() -> None:
    printed = io.BytesIO()
    source, sink = os.pipe()
    output = PassedOutput(os.fdopen(source, "rb", 0), printed, after_name("w-1"))
    passed = []
    for piece in (b"one\ntw", b"o", b"\n" + b"x" * 10, b"\xff"):
        os.write(sink, piece)
        passed.append(output.pass_on())
    assert printed.getvalue() == b"w-1 | one\nw-1 | two\n"
    assert output.pass_on(), "there is nothing, but there may be"
    os.close(sink)
    assert not output.pass_on()
    output.close()

    assert passed == [True] * 4
    assert printed.getvalue().splitlines()[2:] == [b"w-1 | xxxxxxxxxx\xff"]
    assert output.last_line == b"xxxxxxxxxx\xff"


def test_threads_of_a_process_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    program = (
        "import threading, time\n"
        "from streamclient.cli.run_fleet import WholeLines\n"
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


def test_metrics_without_the_library_are_refused_with_the_command_that_brings_it(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_processor(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    ran = run_cli("run", "show:Show", *TABLES, "--endpoint", local.endpoint, "--metrics-port", "0")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith('pip install ".[prometheus]"\n')


def test_no_processes_are_refused() -> None:
    ran = run_cli("run", "show:Show", *TABLES, "--processes", "0")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "streamclient run: --processes must be a whole number above 0, not 0\n"


def test_secret_from_a_pipe_is_read_once_for_all_processes_and_each_has_a_port(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("of a pipe\n",))
    writer.start()
    words = ["run", "show:Show", "--processes", "2", "--worker", "w", "--metrics-port", "9100"]
    words += ["--access-key-secret-file", str(pipe)]
    given = make_parser(["run"]).parse_args(words)
    slots = worker_slots(words, RunSettings.read(given, {}))
    writer.join(PATIENCE_SECONDS)

    assert [slot.command[-4:] for slot in slots] == [
        ["--worker", "w-1", "--metrics-port", "9100"],
        ["--worker", "w-2", "--metrics-port", "9101"],
    ]
    assert all(slot.environment["TABLESTORE_ACCESS_KEY_SECRET"] == "of a pipe" for slot in slots)
    assert not any("of a pipe" in " ".join(slot.command) for slot in slots)
