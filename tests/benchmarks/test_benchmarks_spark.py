"""The benchmarks that take the Spark that runs yield their rows; compiling each tiny job took most of their time."""

from __future__ import annotations

import pytest
from measured import lines_of, target_of

from benchmarks.stage import Stage
from tests.patience import with_planners

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.long
def test_parquet_rows_are_measured_with_and_without_arrow(stage: Stage, spark: object) -> None:
    *lines, copied, memory, loose, server = lines_of(stage, "parquet")
    names = [line.name for line in lines]

    assert len(names) == 8
    assert copied.ratio == 1.0
    assert [target_of(memory), target_of(server)] == ["at least 3 x the first", "at least 0.7 x the first"]
    assert "loose records" in loose.name
    assert sum("without Arrow" in name for name in names) == 4


@pytest.mark.long
def test_source_rows_are_measured_beside_spark(stage: Stage, spark: object) -> None:
    """Into nothing; what Spark reads beside it, the source has written into files."""
    lines = with_planners(lambda: lines_of(stage, "source"))

    firsts, aimed = (0, 4, 6, 10, 12, 14), {1: 0.8, 2: 0.8, 5: 0.8, 7: 0.8, 8: 0.8, 11: 0.8, 13: 0.7, 15: 1}
    assert [lines[place].ratio for place in firsts] == [1.0] * 6
    assert {place: target_of(lines[place]) for place in aimed} == {
        place: f"at least {least} x the first" for place, least in aimed.items()
    }
    assert all(bool(line.aims) == (place in aimed) for place, line in enumerate(lines))
    whose = ["in two partitions", "batches made before", "in two tasks", "of two shards"]
    assert [line.name.rpartition(", ")[2] for line in lines[2:6]] == whose
    assert all(line.detail.endswith("in the first batch of a query") for line in lines)


@pytest.mark.long
def test_mirror_rows_are_measured_for_few_and_many_columns_and_for_a_merge(stage: Stage, spark: object) -> None:
    lines = lines_of(stage, "mirror")

    assert [line.name.split(" ")[0] for line in lines] == [*["folding"] * 2, *["fold_changes"] * 2, "merging"]
    tenth = "at least 0.1 x the first"
    assert [target_of(line) for line in lines] == ["", tenth, "", tenth, "at most 1 s per merge"]
