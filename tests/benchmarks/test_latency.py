"""Latency is measured beside the Java client where that is at hand; the simulated hour is the same each time."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from benchmarks import latency, mixed_hour
from benchmarks.following import Follower
from benchmarks.java import RoundsProcess
from benchmarks.latency import CPU, FLOOR, GROUP, HOUR, JAVA, LOW, P50, P99, QUICK, READS, RECORDS, REQUESTS, Traffic
from benchmarks.mixed_hour import FixedPause, WorkerPauses, arrivals_of_the_hour, first_waits, play
from benchmarks.report import Line, from_json
from benchmarks.stage import Stage
from streamclient import ClientConfig, ConfigurationError

FEW = Traffic(200, 4)


@pytest.mark.slow
def test_latency_and_its_price_are_measured_for_each_consumer(stage: Stage) -> None:
    lines = latency.measure(stage, evolve(QUICK, traffics=(FEW,)))
    figures = {(line.name, line.unit): line.figure for line in lines}
    names = dict.fromkeys(latency.parts_of(line.name) for line in lines)
    consumers = [consumer.name for consumer in latency.consumers()]

    assert list(names) == [*itertools.product(("200/s over 4 shards",), consumers), FLOOR_NAME]
    assert consumers[-3:] == ["worker", "worker, low latency", "tunnel worker"]
    for name in {line.name for line in lines} - {FLOOR}:
        assert figures[name, RECORDS] == 100  # those that warm up are not counted
        assert 0 < figures[name, P50] <= figures[name, P99]
        assert figures[name, READS] > 0
        assert figures[name, CPU] > 0
    assert figures[FLOOR, RECORDS] == QUICK.floor_records
    # A put and a read one after the other take less than a consumer that must look at the right moment.
    assert figures[FLOOR, P50] < figures[f"{FEW}: worker", P99]
    targets = [(line.name, line.unit, aim.target) for line in lines for aim in line.aims]
    assert targets == [
        (f"200/s over 4 shards: {name}", unit, f"at most {most} x Java stream client")
        for name, most in (("worker", "1"), (LOW, "0.5"))
        for unit in (P50, P99)
        if JAVA in consumers
    ]
    assert latency._aims(Traffic(200, 2), "worker", P50, 1.0) == ()


FLOOR_NAME = latency.parts_of(FLOOR)


BUSY_SECONDS = 0.5
BUSY = f"import time\nwhile time.process_time() < {BUSY_SECONDS}:\n    pass\nprint(flush=True)\ninput()"
PARENT = f"""
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", {BUSY!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    for line in sys.stdin:
        child.stdout.readline()
        print("{{}}", flush=True)
"""


@pytest.mark.slow
def test_the_processor_time_of_a_process_has_that_of_its_children() -> None:
    with closing(RoundsProcess([sys.executable, "-c", PARENT])) as process:
        process.run("wait")

        assert process.cpu_seconds() >= BUSY_SECONDS


def test_requests_are_reads_other_calls_and_the_puts_of_the_writer() -> None:
    counted = {"GetStreamRecord": 70, "PutRow": 12, "BatchWriteRow": 3, "tunnel/readrecords": 5, "tunnel/heartbeat": 1}

    assert latency.split(counted, puts=10) == (75, 6)


@pytest.mark.slow
def test_the_setting_for_low_latency_reaches_the_worker() -> None:
    words = {consumer.name: consumer.words("http://127.0.0.1:1", "table", 4) for consumer in latency.consumers()}

    assert words[LOW] == ("http://127.0.0.1:1", "table", 4, "worker", '{"worker_idle_time_millis": 5}')
    with pytest.raises(ConfigurationError, match="no_setting"):
        Follower().begin(*map(str, words[LOW][:4]), '{"no_setting": 1}')


def test_a_low_rate_is_measured_for_as_long_as_its_least_records_take() -> None:
    sizes = evolve(QUICK, seconds=40.0, least_records=120)

    assert [sizes.records(Traffic(rate, 4)) for rate in (1, 3, 10, 1_000)] == [120, 120, 400, 40_000]


def test_a_percentile_is_the_least_figure_that_so_many_do_not_exceed() -> None:
    nanos = [number * 1e6 for number in range(1, 201)]
    random.Random(1).shuffle(nanos)

    assert [latency._percentile(nanos, percent) for percent in (50, 99)] == [100.0, 198.0]
    assert latency._percentile([7e6], 99) == 7.0


# --- the simulated hour --------------------------------------------------------------------------------------------


@frozen
class Noted:
    """A law that notes what it is told, and pauses for a second."""

    told: list[tuple[int, int, float, float]] = field(factory=list)

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        self.told.append((shard, records, began, now))
        return 1.0


def arrivals(moments: Sequence[float], shards: Sequence[int], end: float) -> mixed_hour.Arrivals:
    return mixed_hour.Arrivals(moments, shards, end)


def test_a_read_returns_what_arrived_before_it_began_and_the_law_decides_on_the_next_one() -> None:
    law = Noted()
    read = mixed_hour.READ_SECONDS
    first, second = (1 + read), 2 * (1 + read)
    moments = [0.0, 0.5, first, first + 0.1, second + 0.1]

    course = play(law, arrivals(moments, [2, 2, 2, 2, 3], end=second))

    assert [told for told in law.told if told[0] == 2][:3] == [
        (2, 1, 0.0, read),
        (2, 2, first, first + read),  # what arrives at the moment of a read is in it
        (2, 1, second, second + read),
    ]
    assert course.waits == pytest.approx([read, first + read - 0.5, read, second + read - first - 0.1, 0.9 + 2 * read])
    assert course.requests == 2 * mixed_hour.SHARDS  # later reads finish, and do not count


def test_a_page_has_no_more_records_than_a_read_returns() -> None:
    law = Noted()
    count = mixed_hour.PAGE_RECORDS + 1

    play(law, arrivals([0.0] * count, [0] * count, end=1.0))

    assert [records for shard, records, _, _ in law.told if shard == 0] == [mixed_hour.PAGE_RECORDS, 1]


@pytest.mark.slow
def test_a_fixed_pause_looks_every_20_ms_whatever_comes() -> None:
    course = play(FixedPause(0.02), arrivals_of_the_hour())
    waits = sorted(course.waits)

    assert course.requests == pytest.approx(3_600 / 0.02 * mixed_hour.SHARDS, rel=1e-4)
    assert waits[0] >= 0.002
    assert waits[-1] <= 0.022 + 1e-6
    assert waits[len(waits) // 2] == pytest.approx(0.012, abs=0.001)
    assert FixedPause(0.02).pause_after(0, 0, 10.0, 10.05) == pytest.approx(0.01)  # a long read misses its turns


@pytest.mark.slow
def test_the_hour_has_its_parts_and_the_seed_decides_it() -> None:
    hour = arrivals_of_the_hour()
    per_minute = [sum(60 * minute <= at < 60 * (minute + 1) for at in hour.moments) for minute in range(60)]

    assert hour == arrivals_of_the_hour()
    assert hour.moments != arrivals_of_the_hour(2).moments
    assert list(hour.moments) == sorted(hour.moments)
    assert per_minute == [60] * 20 + [0] * 10 + [600] * 15 + [0] * 10 + [3_000] * 5
    assert set(hour.shards) == set(range(mixed_hour.SHARDS))


@pytest.mark.slow
def test_the_worker_reads_less_than_a_fixed_pause_and_two_plays_are_equal() -> None:
    one, two = (play(WorkerPauses(ClientConfig()), arrivals_of_the_hour()) for _ in range(2))

    assert one == two
    assert one.requests < 600_000, "a fixed pause of 20 ms makes 720,000"
    assert list(one.waits_by_part()) == ["trickle", "bursts", "steady"]
    assert sum(map(len, one.waits_by_part().values())) == len(one.waits)


@frozen
class SlowLater:
    """A law that reads often in the minute before a silence, and every five seconds after that."""

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        return 0.1 if began < 60 else 5.0


def test_the_first_record_after_a_silence_waits_as_long_as_the_law_pauses_then() -> None:
    waits = first_waits(SlowLater, trials=10)

    assert len(waits) == 10
    assert max(waits) > 2.5  # silences have lengths of their own, so that not all end at the same place in a pause
    assert all(0.002 <= wait <= 5.002 for wait in waits)


@pytest.mark.slow
@pytest.mark.long
def test_the_command_simulates_the_hour_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each pause, and each silence, takes seconds of processor time.
    monkeypatch.setattr(latency, "PAUSES_MILLIS", (20,))
    monkeypatch.setattr(mixed_hour, "first_waits", partial(first_waits, trials=2))
    latency.main(["--simulated", "--json", str(tmp_path / "hour.json")])

    lines = from_json((tmp_path / "hour.json").read_text())
    output = capsys.readouterr().out
    assert "| fixed pause | 20 ms | 720,0" in output
    assert f"| {latency.head_of(GROUP)} |" not in output
    assert {(line.group, latency.parts_of(line.name)[0]) for line in lines} == {
        (HOUR, "fixed pause"),
        (HOUR, "worker"),
    }
    default = f"worker: {ClientConfig().worker_idle_time_millis} ms"
    assert [(line.name, line.unit, aim.target) for line in lines for aim in line.aims] == [
        (default, REQUESTS, "at most 1 x Java stream client's pause"),
        (default, latency.FIRST, "at most 1,000 ms"),
    ]


def test_a_row_has_the_figures_of_its_name_in_the_order_of_the_head() -> None:
    lines = [
        Line(GROUP, "1/s over 4 shards: worker", 12.345, P50, 1.0),
        Line(GROUP, "1/s over 4 shards: worker", 123.4, P99, 1.0),
        Line(GROUP, "1/s over 4 shards: worker", 120.0, RECORDS, 1.0),
        Line(HOUR, "fixed pause: 20 ms", 720_000.0, REQUESTS, 1.0),
    ]

    assert latency.table(lines, GROUP).splitlines() == [
        f"| {latency.head_of(GROUP)} |",
        "|---|---|---|---|---|---|---|---|---|",
        "| 1/s over 4 shards | worker | 12.3 | 123 |  |  |  | 120 |  |",
    ]
    assert latency.rows_of(lines, HOUR) == ["fixed pause | 20 ms | 720,000 |  |  | "]
