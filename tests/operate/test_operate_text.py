"""Clocks and process states as people and machines write them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.processes import process_space
from streamclient.core.costs import Cost
from streamclient.core.worker_info import LONGEST_REASON, MOST_SHARDS, ShardTrouble, WorkerInfo
from streamclient.operate.facts import Process
from streamclient.operate.local_processes import process_of
from streamclient.operate.service_clock import ServiceClock
from tests.patience import PATIENCE_SECONDS, until

NOON = 1_767_268_800_000_000


def test_the_clock_follows_the_dates_of_answers() -> None:
    wall = [1_000_000]
    clock = ServiceClock(lambda: wall[0])
    assert clock.now_micros() == 1_000_000
    clock.note_date("2026-01-01T12:00:00.000Z")
    wall[0] += 5_000_000

    assert clock.now_micros() == NOON + 5_000_000


def test_the_clock_knows_how_wrong_the_machine_is() -> None:
    clock = ServiceClock(lambda: NOON - 1_200_000_000)
    assert clock.offset_seconds == 0.0
    clock.note_date("2026-01-01T12:00:00.000Z")

    assert clock.offset_seconds == 1_200.0


def test_a_stamp_is_a_lower_bound_and_nonsense_is_ignored() -> None:
    clock = ServiceClock(lambda: 0)
    clock.note_date("yesterday")
    clock.note_stamp(77)
    clock.note_stamp(33)

    assert clock.now_micros() == 77


# --- what a worker tells -------------------------------------------------------------------------------------------


def test_what_a_worker_tells_comes_back_cut_to_its_bounds() -> None:
    trouble = ShardTrouble("x" * (LONGEST_REASON + 9), "reading")
    shards = {f"s{number:03}": trouble for number in range(MOST_SHARDS + 9)}
    told = WorkerInfo(
        host="h",
        pid=3,
        space="0a",
        version="1",
        started_micros=5,
        trouble="t",
        pace="p" * (LONGEST_REASON + 9),
        cost=Cost(seconds=60.5, stream_requests=3, status_table_write_units=2),
        shards=shards,
        left=("b", "a"),
        parked=9_000,
        parked_of={f"s{number:03}": 1 + number for number in range(MOST_SHARDS + 9)},
        set_aside=tuple(f"s{number:03}" for number in range(MOST_SHARDS + 9)),
    )
    read = WorkerInfo.from_json(told.to_json())

    assert (read.host, read.pid, read.space, read.trouble, read.left) == ("h", 3, "0a", "t", ("b", "a"))
    assert read.pace == "p" * LONGEST_REASON
    assert read.cost == told.cost
    assert len(read.shards) == MOST_SHARDS
    assert read.unnamed == 9, "the rest is counted"
    assert (read.parked, len(read.parked_of), read.parked_of["s208"]) == (9_000, MOST_SHARDS, 209)
    assert "s008" not in read.parked_of, "those with the fewest are left out"
    assert read.set_aside == told.set_aside[:MOST_SHARDS]
    assert {(len(each.reason), each.kind) for each in read.shards.values()} == {(LONGEST_REASON, "reading")}
    assert len(told.to_json()) < 120_000


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(str)))
def test_any_text_in_its_place_is_read_as_nothing(text: str) -> None:
    assert WorkerInfo.from_json(text) == WorkerInfo()


def test_members_of_another_type_are_left_out() -> None:
    read = WorkerInfo.from_json(
        '{"host": 3, "pid": true, "shards": [], "left": {}, "new": 1, "version": "2", "parked_of": [], "parked": "1"}'
    )
    assert read == WorkerInfo(version="2")
    cost = Cost(seconds=60, stream_requests=3).to_document()
    for wrong in ({**cost, "seconds": 0}, {**cost, "stream_requests": "3"}, {**cost, "stream_requests": -3}, {}, []):
        assert WorkerInfo.from_json(json.dumps({"cost": wrong})).cost is None, wrong


def test_a_process_elsewhere_is_not_judged() -> None:
    host, here = socket.gethostname(), process_space()

    assert process_of(WorkerInfo(host=host, pid=os.getpid())) is Process.ELSEWHERE, "it does not say"
    assert process_of(WorkerInfo(host=host, pid=0, space=here)) is Process.ELSEWHERE
    assert process_of(WorkerInfo(host=host, pid=os.getpid(), space="0" * 12)) is Process.ELSEWHERE, "a container"


@pytest.mark.skipif(not process_space(), reason="only Linux says what process ids count in")
def test_a_process_of_this_machine_is_running_stopped_or_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    info = WorkerInfo(host="any", pid=child.pid, space=process_space())
    try:
        assert process_of(info) is Process.RUNNING
        child.send_signal(signal.SIGSTOP)
        until(lambda: process_of(info) is Process.STOPPED)
    finally:
        child.kill()
        child.wait(PATIENCE_SECONDS)

    assert process_of(info) is Process.GONE
