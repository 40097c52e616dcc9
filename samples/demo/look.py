"""Show a Delta table of the demo with Spark: ``python -m samples.demo.look PATH``."""

from __future__ import annotations

import sys

from streamclient.destinations import read_delta
from streamclient.spark import fold_changes, local_session

try:
    from pyspark.sql import functions as f

    from samples.demo.comparison import KEY
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[spark,delta]"  where streamclient was installed from')


def main(path: str) -> None:
    """Show the counts of changes, the first changes, and the first rows that result from all changes."""
    spark = local_session("look")
    changes = read_delta(spark, path)
    changes.groupBy("_operation").agg(f.count("*").alias("changes")).orderBy("_operation").show()
    shown = ("_timestamp", "_operation", *KEY, "status", "amount", "items", "total", "_deleted_columns")
    changes.orderBy("_epoch", "_timestamp", "_row_index").select(*shown).show(10, truncate=False)
    rows = fold_changes(changes.drop("total"), KEY)
    rows.orderBy(*KEY).drop("_unfit", "_epoch", "_timestamp", "_row_index").show(10, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
