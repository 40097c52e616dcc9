"""Spark finds the source by its name wherever the package is installed, and is never in the way of other sources."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.serializers import read_int

from streamclient.server import LocalTablestore
from streamclient.spark import find_java
from tests.datasource.drill import frame_options
from tests.installed import ROOT, Installed
from tests.patience import NOT_STARTED, PATIENCE_SECONDS

QUERY = """
import json, sys, warnings
from pyspark.sql import SparkSession

options = json.loads(sys.argv[1])
conf = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
rows = spark.read.format("tablestore").options(**options, layout="rows").load()
print(sorted(row["id"] for row in rows.collect()))
changes = spark.readStream.format("tablestore").options(**options, layout="changes").load()
query = changes.writeStream.format("memory").queryName("changes").trigger(availableNow=True).start()
query.awaitTermination()
print(spark.table("changes").count())
from streamclient.spark import TablestoreDataSource
spark.dataSource.register(TablestoreDataSource)  # still works
print(spark.read.format("tablestore").options(**options, layout="rows").load().count())
"""

LOOK_UP = """
import io, sys
sys.path[:0] = sys.argv[1:2]
from importlib import import_module
for name in sys.argv[2:]:
    module, _, part = name.partition(":")
    if part:
        delattr(import_module(module), part)
    else:
        sys.modules[module] = None
from pyspark.sql.worker.lookup_data_sources import _main
out = io.BytesIO()
_main(None, out)
sys.stdout.buffer.write(out.getvalue())
"""

IMPORT = """
import sys, pyspark.sql.datasource, pyspark.sql.streaming.datasource
before = set(sys.modules)
import pyspark_tablestore
print(pyspark_tablestore.DefaultSource.name())
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def looked_up(folder: Path, *missing: str) -> list[str]:
    """The names of the sources that Spark's own lookup finds in a Python with the package, and without these modules.

    After a colon stands the one name that a module does not have.
    """
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, str(ROOT), *missing], capture_output=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    stream = io.BytesIO(done.stdout)
    names = []
    for _ in range(read_int(stream)):
        names.append(stream.read(read_int(stream)).decode())
        stream.read(read_int(stream))
    assert stream.read() == b""
    return names


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_a_fresh_session_reads_streams_and_rows_by_the_name_alone(
    local: LocalTablestore, installed: Installed, tmp_path: Path
) -> None:
    from samples.streaming_source import make_tables

    make_tables(local.client())
    for number in range(3):
        local.put("orders", customer="c", order_id=number)
    (tmp_path / "query.py").write_text(QUERY.replace('row["id"]', 'row["order_id"]'))
    options = json.dumps(frame_options(local, "orders"))
    # Spark looks for sources only where it has the archive of its own Python, which SPARK_HOME of these tests lacks.
    command = f"env -u SPARK_HOME -u PYSPARK_PYTHON python query.py '{options}'"

    while True:
        try:
            printed = installed.run(command, tmp_path, logs=True, JAVA_HOME=str(find_java().home))
        except AssertionError as error:
            if NOT_STARTED not in str(error):
                raise
        else:
            break

    assert printed == "[0, 1, 2]\n3\n3\n"


def test_sparks_own_lookup_finds_the_source(tmp_path: Path) -> None:
    assert looked_up(tmp_path) == ["tablestore"]


OLD_SPARK = "pyspark.sql.streaming.datasource:SupportsTriggerAvailableNow"
"""What came with 4.2, and is not asked for by Spark's lookup itself."""


@pytest.mark.parametrize("missing", ["attrs", "attr", "streamclient.spark", OLD_SPARK])
def test_the_lookup_goes_on_without_what_the_source_needs(missing: str, tmp_path: Path) -> None:
    """Other sources of a session must not fail because this package is installed without its Spark parts."""
    assert looked_up(tmp_path, missing) == []


def test_the_lookup_needs_no_arrow(tmp_path: Path) -> None:
    assert looked_up(tmp_path, "pyarrow") == ["tablestore"]


def test_the_import_is_cheap(tmp_path: Path) -> None:
    """Every session pays for it, also those that use another source."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS, check=False
    )
    name, packages = done.stdout.splitlines()

    assert name == "tablestore"
    assert {"tablestore", "pyarrow", "pandas", "numpy", "aiohttp", "apscheduler"}.isdisjoint(packages.split()), packages


def test_the_wheel_holds_the_module(installed: Installed) -> None:
    (packages,) = installed.directory.glob("lib/python*/site-packages")

    assert (packages / "pyspark_tablestore.py").exists()
