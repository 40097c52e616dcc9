"""The benchmarks run and yield their rows; how fast is for ``make bench`` to say."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from measured import lines_of, target_of

from benchmarks.__main__ import GROUPS, main
from benchmarks.report import (
    BYTES,
    HEADING,
    LATENCY,
    REQUESTS,
    ROWS,
    Line,
    aimed,
    aims_beside,
    as_json,
    at_least,
    at_most,
    beside,
    compare,
    interleaved,
    parts_of,
    ratio_of_at_least,
    regressions,
    table,
)
from benchmarks.settings import QUICK
from benchmarks.stage import Stage
from streamclient.records import NATIVE
from streamclient.server.operations import OPERATIONS


@pytest.mark.slow
def test_server_rows_are_measured(stage: Stage) -> None:
    assert len(lines_of(stage, "server")) == 3


@pytest.mark.slow
def test_request_rows_are_measured_for_each_operation_and_for_memory(stage: Stage) -> None:
    lines = lines_of(stage, "requests")

    assert [line.name.partition(",")[0] for line in lines[1:5]] == [
        "PutRow",
        "BatchWriteRow",
        "GetRange",
        "GetStreamRecord",
    ]
    assert all(target_of(line).startswith("at most") for line in lines[1:])
    assert lines[5].unit == "MB"


@pytest.mark.slow
def test_cost_rows_are_measured_for_each_operation_storage_and_kind_of_shards(stage: Stage) -> None:
    names = [line.name for line in lines_of(stage, "costs")]

    for operation in OPERATIONS:
        assert [name.removesuffix(", each of them") for name in names if name.startswith(f"{operation},")] == [
            f"{operation}, {storage}, 10 {kind} shards"
            for storage in ("memory", "SQLite")
            for kind in ("open", "closed")
        ]


@pytest.mark.slow
@pytest.mark.long
def test_decode_rows_are_measured_for_each_shape(stage: Stage) -> None:
    """Each shape has the SDK's Python decoder and ours, those in C where they load, and Java or why it is not here."""
    names = [line.name for line in lines_of(stage, "decode")]
    compiled = 0 if NATIVE is None else 4

    assert sum("SDK, its decoder in Python" in name for name in names) == 4
    assert sum("streamclient in Python" in name for name in names) == 4
    assert sum(name.endswith("compiled codec, records") for name in names) == compiled
    assert sum(name.endswith("each cell looked at") for name in names) == compiled
    assert sum(name.endswith("kept without their page") for name in names) == compiled
    assert sum("Java SDK, its decoder" in name for name in names) == 4
    assert sum("limit: " in name for name in names) == 8
    assert sum(name.endswith("Arrow") for name in names) == compiled
    assert sum(name.endswith(("one thread", "two threads")) for name in names) == compiled // 2


@pytest.mark.slow
def test_destination_rows_are_measured_for_each_shape_both_ways(stage: Stage) -> None:
    lines = lines_of(stage, "destinations")

    assert [line.ratio for line in lines[::2]] == [1.0] * 4
    assert [line.name.split(" of ")[1] for line in lines] == ["records", "columns"] * 4


@pytest.mark.slow
def test_lake_rows_are_measured_for_each_destination_by_its_number_of_shards(stage: Stage) -> None:
    lines = lines_of(stage, "lake")
    places = ("Delta Lake", "Iceberg", "PostgreSQL")

    assert [(*parts_of(line.name), line.unit) for line in lines] == [
        (place, shards, unit)
        for place, units in [*((place, (ROWS, LATENCY, BYTES)) for place in places), ("Delta Lake", (REQUESTS,))]
        for unit in units
        for shards in (1, 100)
    ]
    assert [line.name for line in lines if target_of(line) == "at most 50 ms per commit"] == ["Delta Lake: 100 shards"]
    for one, hundred in zip(lines[::2], lines[1::2], strict=True):
        if one.unit == BYTES:
            assert hundred.figure > one.figure  # each shard has an entry in the log
    assert all("PUT 2.0" in line.detail for line in lines if line.unit == REQUESTS)  # rows, and the log's entry


@pytest.mark.slow
@pytest.mark.long
def test_worker_rows_are_measured_for_shards_and_page_sizes(stage: Stage) -> None:
    """Whatever the processor does with a batch, by the wall and by the client's own processor time; Java beside it."""
    lines = lines_of(stage, "worker")
    names = [line.name for line in lines]

    for what in ("looked at by nobody", "each cell looked at", "by column"):
        assert sum(name.endswith(what) for name in names) == 8
    if any("not here" in name for name in names):
        assert sum("Java stream client: not here: no Java" in name for name in names) == 2
    else:
        assert sum(name.endswith("Java stream client") for name in names) == 8
        assert sum(target_of(line).endswith("x Java stream client") for line in lines) == 16
        assert sum(name.endswith("Java stream client with the MD5 of answers") for name in names) == 8
        assert sum("x Java stream client with the MD5 of answers" in line.detail for line in lines) == 8
    assert sum(name.endswith("without the MD5 of pages") for name in names) == 8
    by_role = [line.detail for line in lines if "CPU s" in line.unit and "Java stream client" not in line.name]
    assert all(re.search(r"fetch \d+%", detail) and re.search(r"owner \d+%", detail) for detail in by_role)


@pytest.mark.slow
def test_flow_rows_are_measured_with_and_without(stage: Stage) -> None:
    names = [line.name for line in lines_of(stage, "flow")]

    assert sum("nothing read ahead" in name for name in names) == 3
    assert sum("key by key" in name for name in names) == 2


@pytest.mark.slow
def test_polling_rows_are_measured_for_rhythms_and_settings(stage: Stage) -> None:
    lines = GROUPS["polling"](stage, QUICK)

    *rhythms, _, read = lines
    assert [line.ratio for line in rhythms[::3]] == [1.0] * 4
    assert all("waited" in line.detail for line in rhythms[-3:])
    assert target_of(read) == "at most 0.1 x the first"


@pytest.mark.slow
@pytest.mark.long
def test_lease_rows_stand_beside_what_is_calculated(stage: Stage) -> None:
    measured, calculated, *idle = lines_of(stage, "leases")

    assert "BatchWriteRow" in measured.detail
    assert "calculated" in calculated.name
    # Ten leases: ten heartbeats a minute each, two scans per heartbeat, six shard syncs with a scan.
    assert calculated.figure == 10 * 10 + 2 * 10 + 6
    assert [line.name.rpartition(", ")[2] for line in idle] == ["at first", "in the first minutes", "later"]
    assert [target_of(line) for line in idle] == ["", "at most 15 % of a core", "at most 5 % of a core"]


@pytest.mark.slow
@pytest.mark.long
def test_memory_of_idle_shards_is_that_of_new_processes(stage: Stage) -> None:
    (line,) = lines_of(stage, "memory")

    assert (line.name, target_of(line)) == ("memory of 10 idle shards of one worker", "at most 200 MB")
    assert re.search(r"one shard, its process included, has [1-9]\d MB", line.detail)


@pytest.mark.slow
def test_replication_rows_are_measured_for_one_channel_and_for_several(stage: Stage) -> None:
    assert [line.unit for line in lines_of(stage, "replication")] == ["rows/s"] * 3


@pytest.mark.slow
def test_start_rows_say_what_must_be_reached(stage: Stage) -> None:
    sdk, worker, _, server, first = lines_of(stage, "start")

    assert worker.ratio == pytest.approx(worker.figure / sdk.figure)
    assert [target_of(line) for line in (worker, server, first)] == [
        "at most 1.3 x the SDK alone",
        "at most 500 ms",
        "at most 1,000 ms",
    ]


@pytest.mark.slow
def test_metrics_rows_are_measured_with_and_without(stage: Stage) -> None:
    lines = lines_of(stage, "metrics")

    assert [line.ratio for line in lines if line.name.endswith("no metrics")] == [1.0] * 4
    assert len(lines) == 14


@pytest.mark.slow
@pytest.mark.long
def test_tunnel_rows_stand_beside_a_plain_loop_and_a_shutdown(stage: Stage) -> None:
    lines = lines_of(stage, "tunnel")
    names = [line.name for line in lines]

    assert [line.ratio for line in lines if "read loop" in line.name or "shut down" in line.name] == [1.0] * 5
    assert sum(name.endswith("TunnelWorker") for name in names) == 4
    assert sum("max_channel_parallel=1" in name for name in names) == 2
    _, killed, calculated = lines[-3:]
    # Killed right after a heartbeat: the time-out must pass first, less one interval since the last one. How soon after
    # a worker that was shut down others go on, a busy machine decides.
    assert killed.figure > (4 - 1) * 1_000
    assert calculated.figure == (300 + 30) * 1_000


def test_each_candidate_is_compared_with_the_first_in_the_same_round() -> None:
    """A slow moment halves all rates of a round; the ratio does not see it."""
    one, two = iter([0.0, 100.0, 50.0, 80.0]), iter([0.0, 200.0, 100.0, 160.0])
    rates = interleaved(3, {"one": lambda: next(one), "two": lambda: next(two)})

    assert compare("group", "things/s", rates) == [
        Line("group", "one", 80.0, "things/s", 1.0),
        Line("group", "two", 160.0, "things/s", 2.0),
    ]


def test_each_round_begins_with_another_candidate_after_each_ran_once_unmeasured() -> None:
    ran: list[str] = []

    def run(name: str) -> float:
        ran.append(name)
        return 1.0

    interleaved(3, {name: partial(run, name) for name in "abc"})

    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"


def test_a_target_stands_beside_its_figure_and_has_one() -> None:
    lines = [Line("group", "one", 1.0, "s", 1.0, "more"), Line("group", "two", 2.0, "s", 2.0)]

    one, two = aimed(lines, {"one": ratio_of_at_least(2.0)})
    assert str(one) == "| group | one | 1 s | 1.00 | more; 1 x the first (target: at least 2, missed) |"
    assert two == lines[1]
    with pytest.raises(ValueError, match=r"no line for the targets of \['three'\]"):
        aimed(lines, {"three": ratio_of_at_least(2.0)})


def test_table_has_one_row_per_line() -> None:
    text = table([Line("group", "name", 1234.5, "things/s", 0.5, "more")])

    assert text == f"{HEADING}\n| group | name | 1,234 things/s | 0.50 | more |"


def test_a_ratio_stands_beside_what_it_has_to_reach() -> None:
    rates = {"ours": [6.0, 8.0, 9.0], "theirs": [2.0, 4.0, 3.0]}

    assert beside(rates, "ours", "theirs", called="Java") == "3.0 x Java"
    assert aims_beside(rates, "ours", "theirs", 3.5, called="Java") == [at_least(3.0, 3.5, "x Java")]
    assert beside(rates, "ours", "absent", called="Java") == ""
    assert aims_beside(rates, "ours", "absent", 3, called="Java") == []
    assert aims_beside(rates, "ours", "theirs", None, called="Java") == []
    assert [str(at_most(figure, 5, "%")) for figure in (5, 6)] == [
        "5 % (target: at most 5)",
        "6 % (target: at most 5, missed)",
    ]
    assert [str(at_least(figure, 5_000, "rows/s")) for figure in (5_000, 4_999)] == [
        "5,000 rows/s (target: at least 5,000)",
        "4,999 rows/s (target: at least 5,000, missed)",
    ]


def test_two_runs_differ_by_the_rows_that_got_worse_beyond_noise() -> None:
    before = [
        Line("decode", "SDK", 100.0, "rows/s", 1.0),
        Line("decode", "ours", 1_000.0, "rows/s", 10.0),
        Line("decode", "shaky", 1_000.0, "rows/s", 10.0, spread=0.5),
        Line("requests", "PutRow", 50.0, "ns of CPU per row", 1.0),
        Line("requests", "gone", 50.0, "ns of CPU per row", 1.0),
        Line("worker", "Java: not here", math.nan, "rows/s", math.nan),
    ]
    slower_machine = [
        evolve(line, figure=line.figure * (0.95 if line.is_rate else 1.05), ratio=line.ratio * 0.99) for line in before
    ]
    worse = [
        before[0],
        evolve(before[1], figure=800.0, ratio=8.0),
        evolve(before[2], figure=600.0, ratio=6.0),
        evolve(before[3], figure=60.0),
        before[5],
    ]

    assert regressions(before, before) == regressions(before, slower_machine) == []
    assert regressions(before, worse) == [
        "decode: ours: 1,000 to 800 rows/s, ratio 10.00 to 8.00",
        "requests: PutRow: 50 to 60 ns of CPU per row",
        "requests: gone: ns of CPU per row are not measured any more",
    ]


def test_where_a_whole_comparison_is_slower_its_first_row_is_named_only() -> None:
    """What is compared with it kept its ratio: the machine, or what both rest on, is slower."""
    before = [Line("g", "first", 100.0, "rows/s", 1.0), Line("g", "second", 300.0, "rows/s", 3.0)]
    after = [evolve(line, figure=line.figure / 2) for line in before]

    assert regressions(before, after) == ["g: first: 100 to 50 rows/s"]


def test_runs_are_compared_by_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "other.json"
    for path, figure in zip(files, (100.0, 50.0), strict=False):
        path.write_text(as_json("python -m benchmarks", [Line("g", "n", figure, "rows/s", 1.0)]))
    files[2].write_text("{}")

    outcomes = [exit_code(files[0], files[0]), exit_code(files[0], files[1]), exit_code(files[0], files[2])]

    output = capsys.readouterr()
    assert outcomes == [0, 1, 2]
    assert output.out == "nothing got worse by more than the rounds differ\ng: n: 100 to 50 rows/s\n"
    assert "expected a file written with --json" in output.err


def test_targets_of_several_runs_stand_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Arrow"
    runs = [
        [Line("decode", "no target", 5.0, "rows/s", 1.0)]
        + [Line("decode", name, ratio, unit, 1.0, aims=(at_least(ratio, 150, "x SDK"),)) for unit in units]
        for ratio, units in ((124.0, ("rows/s", "rows/CPU s")), (1_500.0, ("rows/s",)))
    ]
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, lines in zip(files, runs, strict=True):
        path.write_text(as_json("python -m benchmarks", lines))

    main(["--targets", *map(str, files)])

    assert capsys.readouterr().out.splitlines() == [
        "| what | how | in | target | run 1 | run 2 |",
        "|---|---|---|---|---:|---:|",
        "| decode | Arrow | rows/s | at least 150 x SDK | 124, missed | 1,500 |",
        "| decode | Arrow | rows/CPU s | at least 150 x SDK | 124, missed | not measured |",
    ]


def exit_code(*files: Path) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["--compare", *map(str, files)])
    return ended.value.code
