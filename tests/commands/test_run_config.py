"""``run --config`` against real HTTP: policy, parking, metrics and two processes of a file, some of them killed."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamclient.server import LocalTablestore
from streamclient.worker.parking import TableParkingStore
from tests.commands.command_process import CommandProcess
from tests.operate.operate_scene import Scene
from tests.patience import until

MODULE = """
import os, sys
from streamclient import IRecordProcessor
from streamclient.metrics import MemoryMetrics

metrics = MemoryMetrics()

class Show(IRecordProcessor):
    def initialize(self, given):
        print(f"at work: {os.getpid()}", flush=True)

    def process_records(self, given):
        for record in given.records:
            if record.get("n") == 13:
                raise ValueError("thirteen\\nis not taken")
        for record in given.records:
            print("n", record["n"], flush=True)
        given.checkpointer.checkpoint()
"""

MEASURED = """
    def shutdown(self, given):
        print("measured", any(metrics.snapshot()), flush=True)
"""

FILE = """
[run]
factory = "show:Show"
worker = "w"
processes = 2

[stream]
data_table_name = "orders"
status_table_name = "st"

[client]
lease_duration_millis = 3_000
renewer_interval_millis = 900
taker_interval_millis = 900

[failure]
then = "park"
retries = 1
first_pause_millis = 10

[parking]
table = "parked"

[serve]
port = 0

[log]
level = "info"
format = "json"
"""


class ConfiguredRun(CommandProcess):
    """``run --config`` with JSON on both streams."""

    def __init__(
        self, folder: Path, local: LocalTablestore, *words: str, text: str = FILE, module: str = MODULE
    ) -> None:
        (folder / "show.py").write_text(module)
        (folder / "run.toml").write_text(text)
        super().__init__(folder, local.endpoint, "run", "--config", "run.toml", *words)

    def told(self) -> list[dict[str, Any]]:
        """Every line so far, which must be JSON."""
        return [json.loads(line) for line in [*self.out, *self.err]]

    def numbers(self) -> set[int]:
        found = [re.fullmatch(r"n (\d+)", str(each["message"])) for each in self.told()]
        return {int(each[1]) for each in found if each is not None}

    def pids(self, worker: str) -> list[int]:
        texts = [str(each["message"]) for each in self.told() if each.get("worker") == worker]
        return list(dict.fromkeys(int(text.split()[-1]) for text in texts if text.startswith("at work: ")))


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    """Four open shards."""
    scene = Scene(local)
    scene.write(40)
    for shard in scene.split():
        scene.split(shard)
    return scene


@pytest.fixture
def store(scene: Scene) -> TableParkingStore:
    return TableParkingStore(scene.client, "parked")


@pytest.mark.slow
def test_each_of_two_processes_is_killed_and_nothing_is_lost(
    scene: Scene, tmp_path: Path, store: TableParkingStore
) -> None:
    with closing(ConfiguredRun(tmp_path, scene.local)) as run:
        until(lambda: bool(run.pids("w-1") and run.pids("w-2")), lambda: run.err)
        (tmp_path / "run.toml").write_text("[broken")  # a process that starts again has the file of the first start
        for round_, worker in enumerate(("w-1", "w-2"), 1):
            os.kill(run.pids(worker)[-1], signal.SIGKILL)
            scene.write(40, start=40 * round_)
            until(lambda: len(run.pids(worker)) == 2, lambda: run.err)  # noqa: B023
        expected = {*range(120)}
        parked = lambda: {record.record["n"] for record in store.parked()}  # noqa: E731
        until(lambda: expected <= run.numbers() | parked(), lambda: expected - run.numbers() - parked())
        run.process.terminate()
        ended = run.ended()
        told = run.told()

    assert ended == 143, run.err
    assert 13 in parked() - run.numbers()
    served = {each["worker"] for each in told if str(each["message"]).startswith("metrics: http://127.0.0.1:")}
    assert served == {"w-1", "w-2"}
    restarts = [each for each in told if "starts again" in each["message"]]
    assert [each["message"].split()[0] for each in restarts] == ["w-1", "w-2"]
    starts = [each for each in told if "starting at" in each["message"]]
    assert {each["worker"] for each in starts} == {"w-1", "w-2"}
    assert all(each["message"].startswith(f"shard {each['shard']}: ") for each in starts)


@pytest.mark.slow
def test_refusal_of_all_processes_ends_the_run_with_one_sentence_in_json(scene: Scene, tmp_path: Path) -> None:
    with closing(ConfiguredRun(tmp_path, scene.local, "--data-table", "nothing")) as run:
        ended = run.ended()
        told = run.told()

    assert ended == 1, run.err
    assert told[-1]["level"] == "error"
    assert re.fullmatch(
        r"streamclient run: worker w-\d ends reading nothing: data table 'nothing' has no stream.*", told[-1]["message"]
    )


@pytest.mark.slow
def test_one_worker_of_a_file_measures_with_the_object_that_it_names(scene: Scene, tmp_path: Path) -> None:
    text = FILE.replace("processes = 2\n", "").replace("[serve]\nport = 0\n", "")
    text = text.replace("[client]\n", '[client]\nmetrics = "show:metrics"\n')
    with closing(ConfiguredRun(tmp_path, scene.local, text=text, module=MODULE + MEASURED)) as run:
        until(lambda: "n 39\n" in run.out, lambda: run.err)
        run.process.terminate()
        assert run.ended() == 143

    assert "measured True\n" in run.out
    assert {json.loads(line)["worker"] for line in run.err} == {"w"}
