"""The time of imports, of a worker's start up to its first record, and of a local server's start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial

from attrs import evolve
from tablestore import OTSClient

from benchmarks.report import Line, Round, at_most, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from benchmarks.workers import LONGEST_ROUND_SECONDS
from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)

IMPORTS = {
    "import of the SDK alone": "import tablestore",
    "import of Worker, and of the SDK": "import tablestore; from streamclient import Worker",
    "the same, and all that a worker loads when it is made": (
        "import tablestore; from streamclient import Worker; import streamclient.worker.stream_run, "
        "streamclient.tablestore.stream_operations, streamclient.worker.lease.lease_manager"
    ),
}

MOST_TIMES_THE_SDK = 1.3
"""The largest accepted time of the package's import, as a multiple of the SDK's import. Imports that happen later count
for a worker's start."""

MOST_MILLIS = 1_000.0
"""The largest accepted time from a worker's start to its first record, in milliseconds."""


MOST_MILLIS_TO_FIRST_LINE = 500.0
"""The largest accepted time from a local server's start to the line with its address, in milliseconds."""


class FirstRecord(IRecordProcessor):
    """A processor that sets an event at the first record. It stores no checkpoint, so the next worker gets it, too."""

    def __init__(self, came: threading.Event) -> None:
        self._came = came

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Do nothing."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Set the event if there is a record."""
        self._came.set()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing."""


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the processor time of imports in new processes, and the wall time of a server's and a worker's start."""
    with tempfile.TemporaryDirectory() as compiled:
        imports: dict[str, Round] = {
            name: partial(_import_millis, compiled, program) for name, program in IMPORTS.items()
        }
        # Warmed up, because the first import compiles the modules.
        times = interleaved(settings.rounds, imports, is_warmed_up=settings.is_warmed_up)
        servers: dict[str, Round] = {"first line of a local server": partial(_first_line_millis, compiled)}
        lines = interleaved(settings.rounds, servers, is_warmed_up=settings.is_warmed_up)
    alone, worker, made = compare("start", "ms of CPU", times)
    told = evolve(worker, aims=(at_most(worker.ratio, MOST_TIMES_THE_SDK, "x the SDK alone"),))
    table = stage.table(1, settings.stream_records)
    starts: dict[str, Round] = {
        "first record of a worker, its status table there": partial(_first_record_millis, stage.client(), table)
    }
    # Warmed up, because the first worker creates the status table.
    waits = interleaved(settings.slow_rounds, starts, is_warmed_up=settings.is_warmed_up)
    return [
        alone,
        told,
        made,
        *compare("start", "ms", lines, aims=lambda _, millis: [at_most(millis, MOST_MILLIS_TO_FIRST_LINE, "ms")]),
        *compare("start", "ms", waits, aims=lambda _, millis: [at_most(millis, MOST_MILLIS, "ms")]),
    ]


def _import_millis(compiled: str, program: str) -> float:
    question = f"import time; begun = time.process_time(); {program}; print((time.process_time() - begun) * 1000)"
    answer = subprocess.run(
        [sys.executable, "-c", question], capture_output=True, text=True, check=True, env=_with_compiled(compiled)
    )
    return float(answer.stdout.split()[-1])


def _first_line_millis(compiled: str) -> float:
    command = [sys.executable, "-m", "streamclient.cli.main", "server", "--port", "0"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_with_compiled(compiled)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        millis = (time.perf_counter() - begun) * 1_000
        process.terminate()
    if not line.startswith("listening on "):
        raise RuntimeError(f"the server printed {line!r}, expected 'listening on ...'")
    return millis


def _with_compiled(directory: str) -> dict[str, str]:
    """Return an environment with its own directory for compiled modules, because only some may be compiled already."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPYCACHEPREFIX": directory}


def _first_record_millis(client: OTSClient, table: FilledTable) -> float:
    came = threading.Event()
    stream = StreamConfig(client=client, data_table_name=table.name, status_table_name=f"{table.name}_start")
    begun = time.perf_counter()
    with Worker("worker-start", ClientConfig(), stream, lambda: FirstRecord(came)):
        if not came.wait(LONGEST_ROUND_SECONDS):
            raise RuntimeError(f"no record of {table.name} came")
        return (time.perf_counter() - begun) * 1_000
