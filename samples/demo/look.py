"""Look into a lake that the demo left: ``python -m samples.demo.look PATH``."""

from __future__ import annotations

import sys

from pyspark.sql import functions as f
from streamclient.spark import current_rows, local_session, read_changes


def main(path: str) -> None:
    """Show counts, some changes, and the rows that they lead to."""
    spark = local_session("look")
    changes = read_changes(spark, path)
    changes.groupBy("_operation").agg(f.count("*").alias("changes")).orderBy("_operation").show()
    shown = ("_sequence", "_operation", "customer", "order_id", "status", "amount", "_deleted_columns")
    changes.orderBy("_sequence").select(*shown).show(10, truncate=False)
    current_rows(spark, path).orderBy("customer", "order_id").drop("_sequence").show(10, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
