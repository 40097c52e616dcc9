"""The cost of reading an idle shard, and the time until a worker finds a new record, for different laws of pauses."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from attrs import field, frozen
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from benchmarks.report import Line, Round, aimed, compare, interleaved, progress, ratio_of_at_most
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import make_table
from streamclient import (
    ClientConfig,
    InitializationInput,
    InitialPosition,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    TablestoreStreamApi,
    Worker,
)

GAPS_SECONDS = (None, 10.0, 1.0, 0.2)
"""The mean times between two records, which arrive as a Poisson process; ``None`` for a shard without records."""

CONFIGS = {
    "adaptive": ClientConfig(),
    "every second": ClientConfig(worker_idle_time_millis=1_000, max_idle_poll_interval_millis=1_000),
    "every 20 ms": ClientConfig(worker_idle_time_millis=20, max_idle_poll_interval_millis=20),
}
"""The laws of pauses between reads: by the traffic (the default), a fixed second, and the Java client's pause."""

START_SECONDS = 30.0
"""The time-out, in seconds, for a worker to begin to read. It usually takes a second or two."""

CALLS = 200
"""The number of calls in one round. They take some tens of milliseconds, which is many times the step of the clock."""

IDLE_READ = "read of a shard without records"

MOST_OF_SDK = 0.1
"""The largest accepted processor time of a read without records, as a share of a small call through the SDK."""

_READ_TABLE = "polling_reads"
_SECONDS_PER_MINUTE = 60


@frozen
class Trial:
    """A table, the settings of its worker, and the times at which records were written and found."""

    name: str
    gap_seconds: float | None
    config: ClientConfig
    is_reading: threading.Event = field(factory=threading.Event)
    written: dict[int, float] = field(factory=dict)
    delays: list[float] = field(factory=list)

    @property
    def table(self) -> str:
        """The name of the trial's table. Each trial has a table of its own, so that its requests are counted apart."""
        gap = "none" if self.gap_seconds is None else f"{self.gap_seconds * 1_000:.0f}"
        return f"polling_{self.name.replace(' ', '_')}_{gap}"

    def write(self, client: OTSClient, until: float) -> None:
        """Write rows at random moments until ``until``, a time of the monotonic clock."""
        dice, pause = random.Random(1), threading.Event()
        number = 0
        while self.gap_seconds is not None:
            seconds = dice.expovariate(1 / self.gap_seconds)
            if time.monotonic() + seconds > until:
                return
            pause.wait(seconds)
            number += 1
            row = Row([("customer", "c"), ("order_id", number)], [("amount", 1.0)])
            self.written[number] = time.monotonic()
            client.put_row(self.table, row, Condition(RowExistenceExpectation.IGNORE))


class Finder(IRecordProcessor):
    """A processor that stores the delay of each record in its trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Tell the trial that reading begins."""
        self._trial.is_reading.set()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Store the delays, which include the write of the record and the read that found it."""
        now = time.monotonic()
        for record in process_records_input.records:
            self._trial.delays.append(now - self._trial.written[int(record.key["order_id"])])
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing."""


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure all trials at the same time, because each of them needs hardly any processor time."""
    trials = [Trial(name, gap, config) for gap in GAPS_SECONDS for name, config in CONFIGS.items()]
    with ExitStack() as running:
        for trial in trials:
            progress(f"starting a worker for {trial.table}")
            running.enter_context(_worker(stage, trial))
        for trial in trials:
            if not trial.is_reading.wait(START_SECONDS):
                raise RuntimeError(f"the worker of {trial.table} did not begin to read")
        progress(f"writing and counting for {settings.polling_seconds:.0f} s")
        stage.reset_requests()
        until = time.monotonic() + settings.polling_seconds
        writers = [threading.Thread(target=trial.write, args=(stage.client(), until), daemon=True) for trial in trials]
        for writer in writers:
            writer.start()
        threading.Event().wait(settings.polling_seconds)
        requests = [stage.requests(trial.table).get("GetStreamRecord", 0) for trial in trials]
        for writer in writers:
            writer.join()
    factor = _SECONDS_PER_MINUTE / settings.polling_seconds
    rhythms = [line for gap in GAPS_SECONDS for line in _lines(gap, trials, requests, factor)]
    return [*rhythms, *_one_read(stage, settings)]


def _one_read(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the processor time of a read without records, and of a small call through the SDK for comparison."""
    client = stage.client()
    streams = TablestoreStreamApi(client)
    stream_id = make_table(client, _READ_TABLE, 1)
    iterator = streams.get_shard_iterator(stream_id, streams.describe_stream(stream_id).shards[0].shard_id)
    key = [("customer", "absent"), ("order_id", 0)]
    rounds: dict[str, Round] = {
        "GetRow of no row, through the SDK": lambda: _cost(lambda: client.get_row(_READ_TABLE, key, max_version=1)),
        IDLE_READ: lambda: _cost(lambda: streams.get_stream_record(iterator)),
    }
    lines = compare("polling", "µs of CPU per call", interleaved(settings.rounds, rounds, is_warmed_up=True))
    return aimed(lines, {IDLE_READ: ratio_of_at_most(MOST_OF_SDK)})


def _cost(call: Callable[[], object]) -> float:
    before = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - before) / CALLS * 1e6


def _worker(stage: Stage, trial: Trial) -> Worker:
    client = stage.client()
    make_table(client, trial.table, 1)
    stream = StreamConfig(
        client=client,
        data_table_name=trial.table,
        status_table_name=f"{trial.table}_status",
        initial_position=InitialPosition.oldest(),
    )
    return Worker(f"worker-{trial.table}", trial.config, stream, lambda: Finder(trial))


def _lines(gap: float | None, trials: Sequence[Trial], requests: Sequence[int], factor: float) -> list[Line]:
    found = [(trial, count * factor) for trial, count in zip(trials, requests, strict=True) if trial.gap_seconds == gap]
    base = found[0][1]
    rhythm = "no records" if gap is None else f"a record every {gap:g} s at random"
    return [
        Line("polling", f"1 shard, {rhythm}, read {trial.name}", rate, "reads/min", rate / max(base, 1), _delay(trial))
        for trial, rate in found
    ]


def _delay(trial: Trial) -> str:
    if len(trial.delays) < 2:
        return ""
    median, p99 = statistics.median(trial.delays), statistics.quantiles(trial.delays, n=100, method="inclusive")[-1]
    return f"records waited {median * 1_000:.0f} ms (median), {p99 * 1_000:.0f} ms (p99); {len(trial.delays)} of them"
