"""``python -m tests.spark_classes FILE``: keeps the classes that Spark loads in a form that Java starts with.

Half of a short Spark's processor time is the loading of classes from jars, and tests start Spark many times. Java looks
at jars and its own version before it uses the file, so one that does not fit costs time, and changes nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

KEPT = Path(sys.prefix) / "spark-classes.jsa"
"""Where ``tools/setup-environment`` lets them be kept."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half of the rest goes into compiling what runs once and into the threads of a collector for large heaps."""

WITHOUT_WORDS = "-Xlog:disable -Xlog:all=error:stderr"
"""Else Java would warn of each class that it cannot keep, on the standard output of the program that it runs."""


def java_options() -> str:
    """Those of a Java that lives for a short Spark only, with kept classes where there are some."""
    return f"{SHORT_LIVED} {WITHOUT_WORDS} -XX:SharedArchiveFile={KEPT}" if KEPT.exists() else SHORT_LIVED


def keep(classes: Path) -> None:
    """Run what tests run, in a Java that writes its classes down when it ends."""
    import pyarrow

    from streamclient.datasource import TablestoreDataSource
    from streamclient.spark import local_session

    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} {WITHOUT_WORDS} -XX:ArchiveClassesAtExit={classes}"
    session = local_session("classes", **{"spark.sql.codegen.wholeStage": "false"})
    session.dataSource.register(TablestoreDataSource)
    frame = session.createDataFrame(pyarrow.table({"key": [1, 2, 3], "text": ["x", "y", "z"]}))
    with tempfile.TemporaryDirectory() as scratch:
        frame.write.parquet(f"{scratch}/rows")
        rows = session.read.parquet(f"{scratch}/rows")
        rows.groupBy("text").count().orderBy("text").toArrow()
        writer = session.readStream.schema(rows.schema).parquet(f"{scratch}/rows").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{scratch}/log").trigger(availableNow=True)
        writer.start(f"{scratch}/copy").awaitTermination()
    java = session.sparkContext._gateway.proc
    session.stop()
    java.stdin.close()  # it ends with its input
    java.wait()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
