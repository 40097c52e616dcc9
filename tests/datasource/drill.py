"""A streaming query through restarts, some of them ``kill -9``, while shards split and merge; then compared.

``python -m tests.datasource.drill --restarts 50`` runs it, ``--cluster`` on a standalone cluster of a master and two
workers whose executors are processes of their own and have nothing of this package but what the driver ships,
``--tunnel`` reads a tunnel in place of the stream.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import venv
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field
from tablestore import Row

from streamclient.destinations.rows.change_rows import ADDED, COMMIT, added_types, records_of
from streamclient.records import StreamRecord
from streamclient.server import LocalTablestore
from streamclient.spark.java import find_java
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tunnel import TunnelClient, TunnelType
from tests.drill_kit import merge, open_shards, options, split
from tests.patience import NOT_STARTED, until
from tests.stage import IGNORE, STREAM, make_table

ROOT = Path(__file__).resolve().parents[2]

CONF = {
    # Half of a short driver's time goes into compiling what runs once.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

RECORDS = 60
"""Written before and after each change of the shards: several batches."""

QUERY_PROCESS = Path(__file__).with_name("query_process.py")

STREAM_OPTIONS = {"maxOffsetsPerTrigger": "40", "maxRecordsPerPartition": "15"}

CLUSTER_CONF = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}


def frame_options(local: LocalTablestore, table: str) -> dict[str, str]:
    """Those of a frame that reads or writes a table."""
    return {
        "endpoint": local.endpoint,
        "instance": local.instance,
        "table": table,
        "accessKeyId": local.access_key_id,
        "accessKeySecret": local.access_key_secret,
    }


@define(eq=False)
class Source:
    """A table whose stream is read, with a writer that puts, updates and deletes, and shards that come and go."""

    local: LocalTablestore
    seed: int
    dice: random.Random = field(init=False)
    client: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dice, self.client = random.Random(self.seed), self.local.client()
        for name, stream in (("changes", STREAM), ("copy", None)):
            make_table(self.client, name, [("pk", "INTEGER")], stream=stream, max_version=2)

    def tunnel(self) -> dict[str, str]:
        """The options that read a tunnel of the table's changes, of which a batch has whole pages."""
        tunnel_id = TunnelClient(self.client).create_tunnel("changes", "spark", TunnelType.STREAM)
        return {"tunnelId": tunnel_id, "maxOffsetsPerTrigger": "40"}

    def write(self, count: int) -> None:
        for _ in range(count):
            key = [("pk", self.dice.randrange(200))]
            value = self.dice.choice([self.dice.randrange(1_000), "text", self.dice.random(), bytearray(b"\0\xff")])
            what = self.dice.random()
            if what < 0.5:
                self.client.put_row("changes", Row(key, [("v", value), ("n", self.dice.randrange(9))]), IGNORE)
            elif what < 0.85:
                self.client.update_row("changes", Row(key, {"put": [("v", value)], "delete_all": ["n"]}), IGNORE)
            else:
                self.client.delete_row("changes", Row(key), IGNORE)

    def reshard(self) -> None:
        shards = len(open_shards(self.local, "changes"))
        is_merge = shards > 2 or (shards == 2 and self.dice.random() < 0.5)
        (merge if is_merge else split)(self.local, "changes", self.dice.random())

    def records(self) -> list[StreamRecord]:
        """Every change, read without Spark."""
        streams = TablestoreStreamApi(self.client)
        found: list[StreamRecord] = []
        stream_id = streams.list_stream("changes")[0].stream_id
        ids = {shard.shard_id for shard in streams.describe_stream(stream_id).shards}
        for shard_id in sorted(ids):
            iterator: str | None = streams.get_shard_iterator(stream_id, shard_id)
            while iterator is not None:
                page = streams.get_stream_record(iterator)
                found += page.records
                after = page.next_position.text
                iterator = None if page.next_position.is_shard_end or after == iterator else after
        return found


def schema_text() -> str:
    """The columns that the query declares; ``v`` holds what its type does not fit, and ``n`` too."""
    from pyspark.sql.pandas.types import from_arrow_schema

    names = [name for name in ADDED if name != COMMIT]
    columns = pa.schema([("pk", pa.int64()), ("v", pa.int64()), *((name, added_types()[name]) for name in names)])
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in from_arrow_schema(columns))


def written_by_spark(out: Path) -> list[StreamRecord]:
    """The records in the files that the sink's log names; others are of batches that did not finish."""
    named = set()
    for path in sorted((out / "changes" / "_spark_metadata").glob("[0-9]*")):
        for line in path.read_text().splitlines()[1:]:
            named.add(json.loads(line)["path"].removeprefix("file://"))
    return [record for path in sorted(named) for record in records_in(path)]


@cache
def records_in(path: str) -> list[StreamRecord]:
    """The records in a file, none of which Spark changes: each look of a drill reads new files only."""
    table = pq.read_table(path)
    if not table.num_rows:
        return []
    stamps = table.column("_timestamp").cast(pa.timestamp("us", tz="UTC"))
    whole = table.set_column(table.column_names.index("_timestamp"), "_timestamp", stamps)
    return list(records_of(whole.append_column(COMMIT, pa.nulls(table.num_rows, pa.int64()))))


def canonical(record: StreamRecord) -> str:
    """A record as text, with its cells in the order of their names, which is all the order that a row keeps."""
    cells = sorted(record.columns, key=lambda cell: (cell.name, str(cell.operation), cell.timestamp_millis or 0))
    return repr((record.record_type, record.primary_key, cells, record.sequence_info))


@define(eq=False)
class Driver:
    """A Spark driver in a process of its own, with its Java and its Python workers in its process group."""

    given: dict[str, Any]
    environment: dict[str, str]
    program: Path = QUERY_PROCESS
    python: str = sys.executable
    lines: list[str] = field(factory=list)
    process: subprocess.Popen[str] = field(init=False)

    def use(self, python: str) -> None:
        """Take the package that another Python has installed, from the next start on."""
        self.python, self.environment = python, environment_for(python, has_package=False)

    def start(self) -> None:
        self.lines = []
        program = [self.python, str(self.program), json.dumps(self.given)]
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if os.environ.get("DRILL_QUIET", "1") == "1" else None,
            text=True,
            env=self.environment,
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        with stream:
            for line in stream:
                self.lines.append(line)

    def count(self, beginning: str) -> int:
        return sum(line.startswith(beginning) for line in self.lines)

    def wait(self, beginning: str, count: int = 1) -> None:
        def is_there() -> bool:
            if self.count(beginning) >= count:
                return True
            failed = [line for line in self.lines if line.startswith("failed ")]
            if failed or self.process.poll() is not None:
                raise AssertionError(f"the driver ended: {''.join(failed or self.lines[-40:])}")
            return False

        until(is_there, lambda: f"{beginning!r} {count} times in {''.join(self.lines[-40:])}")

    def ask(self, what: str, answer: str) -> None:
        """Tell it to do something, and wait until it says that it did."""
        answers = self.count(answer)
        self.tell(what)
        self.wait(answer, answers + 1)

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """The whole group at once, as when a machine dies; one that has ended by itself is only done with."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close()

    def _close(self) -> None:
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


@contextmanager
def cluster(environment: dict[str, str]) -> Iterator[str]:
    """A master and two workers of the Spark that drivers use, each a process of its own; gives the master's address."""
    import pyspark

    home = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    scratch = Path(tempfile.mkdtemp(prefix="cluster-"))
    started: list[subprocess.Popen[bytes]] = []
    log = scratch / "Master.log"
    settings = environment | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}

    def run(name: str, words: str, kind: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *words.split()]
        with (scratch / f"{name}.log").open("wb") as out:
            started.append(
                subprocess.Popen(command, stdout=out, stderr=out, env=settings, cwd=scratch, start_new_session=True)
            )

    def address() -> str:
        words = [word for word in log.read_text().split() if word.startswith("spark://")]
        return words[0].rstrip(".,") if words else ""

    try:
        run("Master", "--host 127.0.0.1 --port 0 --webui-port 0", "Master")
        until(lambda: bool(address()), log.read_text)
        for name in ("one", "two"):
            words = f"--host 127.0.0.1 --webui-port 0 --cores 1 --memory 1g --work-dir {scratch / name} {address()}"
            run(name, words, "Worker")
        until(lambda: log.read_text().count("Registering worker") >= 2, log.read_text)
        yield address()
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def package_zip(directory: Path) -> Path:
    """The package alone, as ``addPyFile`` ships it."""
    path = directory / "streamclient.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((ROOT / "streamclient").rglob("*.py")):
            archive.write(file, file.relative_to(ROOT))
    return path


def python_of_a_node(directory: Path) -> str:
    """A Python with everything that this one has but the package: what is no link there is a directory of modules."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    # Of a directory that is named so, no further file of this kind is read, and it is such a one that leads to ROOT.
    (site / "others.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return str(directory / "bin" / "python")


def environment_for(python: str = sys.executable, *, has_package: bool = True) -> dict[str, str]:
    """That of a driver, or of a cluster to which the package is shipped: then nothing else leads to it.

    A driver needs the package itself: Spark gives its planner none of the shipped files.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = kept | {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    return made | {"PYTHONPATH": str(ROOT)} if has_package else made


@define(eq=False)
class Drill:
    """A source, a driver whose query copies its stream, and how often that driver has begun again."""

    source: Source
    driver: Driver
    out: Path
    is_killed: Callable[[int], bool] = lambda number: number % 2 == 1
    """Whether the restart of a number is a ``kill -9``."""
    kills: int = 0

    def restart(self, number: int) -> str:
        """One restart while there is something to read, and shards are split and merged; which kind it was."""
        self.source.write(RECORDS)
        self.source.reshard()
        self.source.write(RECORDS)
        self.driver.wait("batch ", self.driver.count("batch ") + self.source.dice.randrange(1, 4))
        return self.kill() if self.is_killed(number) else self.begin_again()

    def kill(self) -> str:
        threading.Event().wait(self.source.dice.random())  # at any moment of a batch
        self.driver.kill()
        self.kills += 1
        self.driver.start()
        self.driver.wait("started")
        return "kill -9"

    def begin_again(self) -> str:
        self.driver.ask("restart", "started")
        return "in order"

    def compare(self) -> int:
        """Wait until everything is written, and compare it; the number of changes.

        Raises:
            AssertionError: a change is missing, there twice, or another one; the message names some.
        """
        expected = Counter(map(canonical, self.source.records()))
        until(
            lambda: self.driver.wait("started") is None and len(written_by_spark(self.out)) >= expected.total(),
            lambda: f"{expected.total()} changes, {len(written_by_spark(self.out))} written",
        )
        self.driver.ask("stop", "stopped")
        found = Counter(map(canonical, written_by_spark(self.out)))
        missing, more = expected - found, found - expected
        assert not missing, f"missing: {list(missing)[:5]}"
        assert not more, f"too many: {list(more)[:5]}"
        return expected.total()


@contextmanager
def drill(
    seed: int, *, on_cluster: bool, by_tunnel: bool = False, is_found: bool = False, installed: str = ""
) -> Iterator[Drill]:
    """A drill whose driver runs. Spark finds the source by its name, or else the driver registers it.

    `installed` is a Python that has the package installed, from which its driver and executors take it.
    """
    with ExitStack() as stack:
        local = stack.enter_context(LocalTablestore())
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="drill-"))
        python, master = sys.executable, "local[2]"
        if on_cluster:
            python = python_of_a_node(Path(scratch) / "python")
            master = stack.enter_context(cluster(environment_for(python, has_package=False)))
        source, out = Source(local, seed), Path(scratch)
        given = {
            "master": master,
            "conf": CONF | (CLUSTER_CONF if on_cluster else {}),
            "zip": str(package_zip(out)) if on_cluster else "",
            "options": frame_options(local, "changes") | (source.tunnel() if by_tunnel else STREAM_OPTIONS),
            "copy": frame_options(local, "copy"),
            "schema": schema_text(),
            "out": scratch,
            "not_started": NOT_STARTED,
            "is_found": is_found,
        }
        # Executors get what the driver ships; its own planner, a process beside it, looks at its environment alone.
        environment = environment_for(python)
        if is_found:  # Spark looks for sources only where it has the archive of its own Python
            environment.pop("SPARK_HOME", None)
        driver = Driver(given, environment)
        if installed:
            driver.use(installed)
        source.write(RECORDS)
        driver.start()
        try:
            driver.wait("started")
            yield Drill(source, driver, out)
        finally:
            driver.kill()


def run_drill(restarts: int, seed: int, *, on_cluster: bool, by_tunnel: bool) -> str:
    """Restart so often, in turn in order and by ``kill -9``, then compare; returns what was compared."""
    with drill(seed, on_cluster=on_cluster, by_tunnel=by_tunnel) as made:
        for number in range(restarts):
            print(f"restart {number + 1} of {restarts}: {made.restart(number)}")
        changes, shards = made.compare(), len(made.source.local.shards("changes"))
        return f"{changes} changes of {shards} shards, {restarts} restarts, {made.kills} of them kill -9: equal"


def main() -> None:
    given = options(restarts=50, seed=1, cluster=False, tunnel=False)
    print(run_drill(given.restarts, given.seed, on_cluster=given.cluster, by_tunnel=given.tunnel))


if __name__ == "__main__":
    main()
