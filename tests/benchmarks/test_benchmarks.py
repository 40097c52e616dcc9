"""The benchmarks run and yield their rows; how fast is for ``make bench`` to say."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import run
from benchmarks.report import HEADING, Line, compare, interleaved, table
from benchmarks.settings import QUICK
from streamclient.records import NATIVE


def lines_of(group: str) -> list[Line]:
    lines = run([group], QUICK)

    assert all(line.group == group and line.figure > 0 and line.ratio > 0 for line in lines), lines
    return lines


@pytest.mark.slow
def test_server_rows_are_measured() -> None:
    assert len(lines_of("server")) == 3


@pytest.mark.slow
def test_cost_rows_are_measured_for_each_operation_storage_and_kind_of_shards() -> None:
    names = [line.name for line in lines_of("costs")]

    for operation in ("PutRow", "GetStreamRecord", "DescribeStream", "tunnel/heartbeat", "tunnel/checkpoint"):
        assert [name for name in names if name.startswith(f"{operation},")] == [
            f"{operation}, {storage}, 10 {kind} shards"
            for storage in ("memory", "SQLite")
            for kind in ("open", "closed")
        ]


@pytest.mark.slow
def test_decode_rows_are_measured_for_each_shape() -> None:
    """Each shape has the SDK's Python decoder and ours; those in C where they load."""
    names = [line.name for line in lines_of("decode")]
    compiled = 0 if NATIVE is None else 4

    assert sum("SDK, its decoder in Python" in name for name in names) == 4
    assert sum("streamclient in Python" in name for name in names) == 4
    assert sum(name.endswith("compiled codec, records") for name in names) == compiled
    assert sum(name.endswith("each cell looked at") for name in names) == compiled
    assert sum(name.endswith("Arrow") for name in names) == compiled
    assert sum(name.endswith(("one thread", "two threads")) for name in names) == compiled // 2


@pytest.mark.slow
def test_destination_rows_are_measured_for_each_shape_both_ways() -> None:
    lines = lines_of("destinations")

    assert [line.ratio for line in lines[::2]] == [1.0] * 4
    assert [line.name.split(" of ")[1] for line in lines] == ["records", "columns"] * 4


@pytest.mark.slow
def test_worker_rows_are_measured_for_shards_and_page_sizes() -> None:
    assert len(lines_of("worker")) == 4


@pytest.mark.slow
def test_flow_rows_are_measured_with_and_without() -> None:
    names = [line.name for line in lines_of("flow")]

    assert sum("nothing read ahead" in name for name in names) == 3
    assert sum("key by key" in name for name in names) == 2


@pytest.mark.slow
def test_polling_rows_are_measured_for_rhythms_and_settings() -> None:
    lines = run(["polling"], QUICK)

    assert [line.ratio for line in lines[::3]] == [1.0] * 4
    assert all("waited" in line.detail for line in lines[-3:])


@pytest.mark.slow
def test_lease_rows_stand_beside_what_is_calculated() -> None:
    measured, calculated = lines_of("leases")

    assert "BatchWriteRow" in measured.detail
    assert "calculated" in calculated.name
    # Ten leases: ten heartbeats a minute each, two scans per heartbeat, six shard syncs with a scan.
    assert calculated.figure == 10 * 10 + 2 * 10 + 6


@pytest.mark.slow
def test_metrics_rows_are_measured_with_and_without() -> None:
    lines = lines_of("metrics")

    assert [line.ratio for line in lines if line.name.endswith("no metrics")] == [1.0] * 4
    assert len(lines) == 14


@pytest.mark.slow
def test_tunnel_rows_stand_beside_a_plain_loop_and_a_shutdown() -> None:
    lines = lines_of("tunnel")
    names = [line.name for line in lines]

    assert [line.ratio for line in lines if "read loop" in line.name or "shut down" in line.name] == [1.0] * 5
    assert sum(name.endswith("TunnelWorker") for name in names) == 4
    assert sum("max_channel_parallel=1" in name for name in names) == 2
    shut_down, killed, calculated = lines[-3:]
    # Killed right after a heartbeat: the time-out must pass first, less one interval since the last one.
    assert killed.figure > (4 - 1) * 1_000 > shut_down.figure
    assert calculated.figure == (300 + 30) * 1_000


@pytest.mark.slow
@pytest.mark.spark
def test_parquet_rows_are_measured_with_and_without_arrow() -> None:
    names = [line.name for line in lines_of("parquet")]

    assert len(names) == 6
    assert sum("without Arrow" in name for name in names) == 4


def test_each_candidate_is_compared_with_the_first_in_the_same_round() -> None:
    """A slow moment halves all rates of a round; the ratio does not see it."""
    one, two = iter([0.0, 100.0, 50.0, 80.0]), iter([0.0, 200.0, 100.0, 160.0])
    rates = interleaved(3, {"one": lambda: next(one), "two": lambda: next(two)})

    assert compare("group", "things/s", rates) == [
        Line("group", "one", 80.0, "things/s", 1.0),
        Line("group", "two", 160.0, "things/s", 2.0),
    ]


def test_table_has_one_row_per_line() -> None:
    text = table([Line("group", "name", 1234.5, "things/s", 0.5, "more")])

    assert text == f"{HEADING}\n| group | name | 1,234 things/s | 0.50 | more |"
