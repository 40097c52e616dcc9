"""Column names of any kind in the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, change, put_cell, update

from streamclient.spark import FileSink, SparkRecordProcessorFactory, current_rows
from streamclient.spark.formats import quoted
from tests.column_names import ODD_NAMES, VALUES

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_columns_of_any_name_are_written_and_folded(spark: Any, tmp_path: Path) -> None:
    cells = [put_cell(name, value) for name, value in VALUES.items()]
    newer = put_cell(ODD_NAMES[0], "new", 2)
    shard = StoredShard("s1", [change(1, 1, *cells), update(2, 1, newer)])
    with SparkRecordProcessorFactory(FileSink(tmp_path), session=spark) as factory:
        run = Run(factory, shard)
        run.read(2)
        run.stop()

    (row,) = current_rows(spark, tmp_path).select(*map(quoted, ODD_NAMES)).collect()

    assert dict(zip(ODD_NAMES, row, strict=True)) == {**VALUES, ODD_NAMES[0]: "new"}
