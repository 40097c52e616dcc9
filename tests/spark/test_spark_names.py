"""Column names of any kind through Spark."""

from __future__ import annotations

from typing import Any

import pytest
from spark_helpers import Run, StoredShard, change, put_cell, update

from streamclient.destinations.rows.column_names import original_name
from streamclient.spark import BatchContext, SparkRecordProcessorFactory, fold_changes
from streamclient.spark.processor.arrow import quoted
from tests.column_names import ODD_NAMES, VALUES

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_columns_of_any_name_reach_a_sink_and_are_folded(spark: Any) -> None:
    cells = [put_cell(name, value) for name, value in VALUES.items()]
    newer = put_cell(ODD_NAMES[0], "new", 2)
    shard = StoredShard("s1", [change(1, 1, *cells), update(2, 1, newer)])
    found: list[dict[str, Any]] = []

    def sink(frame: Any, context: BatchContext) -> None:
        names = [column.name for column in context.columns if not column.is_key]
        (row,) = fold_changes(frame, context.primary_key).select(*map(quoted, names)).collect()
        found.append(dict(zip(map(original_name, names), row, strict=True)))

    with SparkRecordProcessorFactory(sink, session=spark) as factory:
        run = Run(factory, shard)
        run.read(2)
        run.stop()

    assert found == [{**VALUES, ODD_NAMES[0]: "new"}]
