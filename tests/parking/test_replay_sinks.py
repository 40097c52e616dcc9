"""A replay into each ready sink and sample: the row is there once, or it is refused by name and stays parked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import frozen

from samples import console, exactly_once_files, metrics, parked_records, print_changes, several_workers
from samples import test_my_processor as my_processor
from samples.fenced_sink import FencedSink, Storing, make_table
from streamclient import ClientConfig, FailurePolicy, InitializationInput, OnFailure, StreamConfig, Worker
from streamclient.cli.main import main
from streamclient.copying.mirror_processors import MirrorProcessors
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import FencedException
from streamclient.interfaces import IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import ParkedRecord, ShardInfo, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.server import LocalTablestore
from streamclient.spark import SparkRecordProcessorFactory
from streamclient.testing.deliveries import DeliveryRecorder, read_deliveries
from streamclient.tunnel.channel_processors import record_processor_maker
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.keyed import KeyedProcessorFactory
from streamclient.worker.parking import FileParkingStore, MemoryParkingStore, replay_parked
from streamclient.worker.parking.parked_frames import record_id
from tests.mirror.test_mirror import RULE, state_of
from tests.placed_records import make_record
from tests.spark.spark_helpers import Checkpointer, Marker, StoredShard

SHARD = "shard-1"
NO_SOURCE = cast(SourceTable, None)
"""The source of a replication whose records delete no single version, so that no row is read from it."""


def numbers(records: Sequence[StreamRecord]) -> list[int]:
    return [record.sequence_info.timestamp_micros for record in records]


def parked(number: int) -> ParkedRecord:
    record = make_record(str(number), number, amount=float(number), number=number)
    return ParkedRecord(record_id(record), "orders_1", SHARD, record, "i0", 1, 1, "ValueError: no", "", 4, 7)


def deliver(factory: RecordProcessorFactory, *numbers: int, epoch: int = 3) -> None:
    """What a worker does with a shard, as far as its records are not parked."""
    stored = StoredShard(SHARD)
    checkpointer, marker = Checkpointer(stored), Marker()
    processor = getattr(factory, "create_processor", factory)()
    info = ShardInfo(SHARD, "orders_1", frozenset(), f"{SHARD}-{epoch}", epoch)
    processor.initialize(InitializationInput(info, "TRIM_HORIZON", checkpointer, marker))
    checkpointer.permitted = f"after {numbers[-1]}"
    records = tuple(make_record(str(number), number, amount=float(number), number=number) for number in numbers)
    processor.process_records(ProcessRecordsInput(records, checkpointer, marker))
    processor.shutdown(ShutdownInput(ShutdownReason.TERMINATE, checkpointer))


class Sink:
    """Notes the numbers of records that it was given."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def write(self, changes: Any, is_lost: Any) -> None:
        self.found += [int(str(change.key[0][1])) for change in changes]

    def process(self, records: Sequence[StreamRecord]) -> None:
        self.found += numbers(records)

    def store(self, record: StreamRecord) -> None:
        self.found.append(record.sequence_info.timestamp_micros)


@frozen
class Case:
    """A way to make processors, and to see what their sink has, in any order."""

    make: RecordProcessorFactory
    has: Callable[[], list[int]]
    refusal: str = ""
    """What a replay is told, if it is refused."""
    close: Callable[[], None] = lambda: None


def fenced(path: Path) -> Case:
    sink = FencedSink(path / "fenced.sqlite")

    def has() -> list[int]:
        with closing(sqlite3.connect(path / "fenced.sqlite")) as connection:
            return [int(place.split("/")[1]) for (place,) in connection.execute("SELECT position FROM changes")]

    return Case(lambda: Storing(sink), has, close=sink.close)


def files(path: Path) -> Case:
    return Case(lambda: exactly_once_files.FileSink(path, 0), lambda: exactly_once_files.written(path))


def totals(path: Path) -> Case:
    found = parked_records.Totals()
    return Case(lambda: parked_records.Adding(found, parked_records.strict), lambda: list(found.amounts))


def tally(path: Path) -> Case:
    found = several_workers.Tally(1000)
    return Case(lambda: several_workers.Counting("w", found), lambda: list(range(1, sum(found.by_worker.values()) + 1)))


def warehouse(path: Path) -> Case:
    found = my_processor.Warehouse()
    return Case(lambda: my_processor.PatientProcessor(found), lambda: [int(key) for key in found.rows])


def recorder(path: Path) -> Case:
    lines = (path / "lines").open("a", buffering=1)

    def has() -> list[int]:
        read = read_deliveries([path / "lines"])
        return [sequence.timestamp_micros for each in read for _, sequence in each.records]

    return Case(lambda: DeliveryRecorder("w", lines), has, close=lines.close)


def keyed(path: Path) -> Case:
    sink = Sink()
    return Case(KeyedProcessorFactory(sink.store, threads=2), lambda: sink.found)


def channel(path: Path) -> Case:
    sink = Sink()
    return Case(record_processor_maker(sink.process, 0), lambda: sink.found)


def replication(path: Path) -> Case:
    sink = Sink()
    return Case(ReplicationProcessors(cast(DestinationWriter, sink), NO_SOURCE), lambda: sink.found)


def ended_replication(path: Path) -> Case:
    sink = Sink()
    processors = ReplicationProcessors(cast(DestinationWriter, sink), NO_SOURCE, end_micros=1)
    return Case(processors, lambda: sink.found, "after the end time of the replication")


def destination(path: Path) -> Case:
    place = MemoryDestination()
    factory = SparkRecordProcessorFactory(place)

    def has() -> list[int]:
        return [line["id"] for table in place.place.tables for line in table.to_pylist()]

    return Case(factory, lambda: [int(key) for key in has()], "SparkRecordProcessor takes no replay", factory.close)


def mirror(path: Path) -> Case:
    state = state_of()
    writer = MirrorWriter(None, state, RULE)  # type: ignore[arg-type]
    writer.start()
    return Case(MirrorProcessors(writer), lambda: [1, 3], "MirrorProcessor takes no replay", writer.close)


CASES = [
    fenced,
    files,
    totals,
    tally,
    warehouse,
    recorder,
    keyed,
    channel,
    replication,
    ended_replication,
    destination,
    mirror,
]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    case: Case = request.param(tmp_path)
    yield case
    case.close()


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_replay_is_taken_or_refused_by_name(case: Case) -> None:
    if not isinstance(case.make, MirrorProcessors | ReplicationProcessors) or not case.refusal:
        deliver(case.make, 1, 3)
    before = sorted(case.has())
    store = MemoryParkingStore()
    store.park([parked(2)])
    report = replay_parked(store, case.make)

    if case.refusal:
        assert report.replayed == 0
        assert case.refusal in report.left[0].error
        assert len(list(store.parked())) == 1
        assert sorted(case.has()) == before
    else:
        assert (report.replayed, report.left, list(store.parked())) == (1, (), [])
        assert sorted(case.has()) == [1, 2, 3]


@pytest.mark.parametrize("case", [fenced, files, totals, warehouse], indirect=True)
def test_what_was_replayed_before_a_crash_is_stored_once_when_it_is_replayed_again(case: Case) -> None:
    """The sink had it, and the store still does."""
    deliver(case.make, 1, 3)
    for _ in range(2):
        store = MemoryParkingStore()
        store.park([parked(2)])
        assert replay_parked(store, case.make).replayed == 1

    assert sorted(case.has()) == [1, 2, 3]


@pytest.mark.parametrize(
    "make", [console.RecordProcessorFactory("w"), metrics.Checkpointing, print_changes.PrintChanges]
)
def test_samples_that_keep_nothing_take_a_replay(make: Any) -> None:
    store = MemoryParkingStore()
    store.park([parked(2)])
    assert replay_parked(store, make).replayed == 1


def test_a_replay_leaves_the_epoch_and_the_position_of_the_fenced_sink_alone(tmp_path: Path) -> None:
    """An earlier owner stays refused, and what was stored stays passed over; what comes again behind a replay, too."""
    sink = FencedSink(tmp_path / "sink.sqlite")
    deliver(lambda: Storing(sink), 1, 3, epoch=5)
    store = MemoryParkingStore()
    store.park([parked(2), parked(4)])

    assert replay_parked(store, lambda: Storing(sink)).replayed == 2
    with pytest.raises(FencedException):
        deliver(lambda: Storing(sink), 5, epoch=4)
    deliver(lambda: Storing(sink), 1, 2, 3, 4, 5, epoch=6)
    assert sink.count() == 5
    sink.close()


def test_a_worker_parks_into_the_fenced_sink_and_a_replay_makes_it_complete(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command, which ends with an error for as long as something is left."""
    make_table(client := local.client())
    sink, store = FencedSink(tmp_path / "sink.sqlite"), FileParkingStore(tmp_path / "parked")
    wrong = {"bob"}

    class Failing(Storing):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            if any(record.key["account"] in wrong for record in process_records_input.records):
                raise ValueError("no account of ours")
            super().process_records(process_records_input)

    monkeypatch.setattr(Named, "make", lambda: Failing(sink))
    policy = FailurePolicy(retries=0, then=OnFailure.PARK, parking=store)
    config = StreamConfig(client=client, data_table_name="payments", status_table_name="payments_status")
    with Worker("w", ClientConfig(failure_policy=policy), config, lambda: Failing(sink)) as worker:
        worker.wait(600, until=lambda: sink.count() == 2 and len(list(store.parked())) == 1)

    replay = ["parked", "replay", "--directory", str(tmp_path / "parked"), "--processor", f"{__name__}:Named"]
    assert main([*replay, "--json"]) == 1
    left = json.loads(capsys.readouterr().out)
    assert (left["replayed"], left["left"][0]["error"]) == (0, "ValueError: no account of ours")
    wrong.clear()
    assert main(replay) == 0
    assert capsys.readouterr().out == "1 record replayed, 0 left\n"
    assert (sink.count(), list(store.parked())) == (3, [])
    sink.close()


class Named:
    """Found by the command under its name."""

    make: Callable[[], IRecordProcessor] = console.RecordProcessorFactory("w").create_processor

    def create_processor(self) -> IRecordProcessor:
        return type(self).make()


class Wrong(IRecordProcessor):
    """Checkpoints first and fails then, or fails where it begins and where it ends."""

    def __init__(self, fails_in: str) -> None:
        self.fails_in = fails_in

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.is_replay = initialization_input.is_replay
        if self.fails_in == "initialize":
            raise ValueError("no replay")

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if self.fails_in == "two phases":
            process_records_input.checkpointer.prepare_checkpoint(None, b"").checkpoint()
        else:
            process_records_input.checkpointer.checkpoint()
        raise ValueError("no replay")

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if self.fails_in == "initialize":
            raise RuntimeError("initialize must be called first")
        shutdown_input.checkpointer.checkpoint()


@pytest.mark.parametrize("fails_in", ["process_records", "two phases", "initialize"])
def test_a_record_is_replayed_only_by_a_checkpoint_without_an_error(fails_in: str) -> None:
    """The error of the call that failed is the one that is told."""
    store = MemoryParkingStore()
    store.park([parked(2)])
    report = replay_parked(store, lambda: Wrong(fails_in))

    assert (report.replayed, report.left[0].error) == (0, "ValueError: no replay")
    assert len(list(store.parked())) == 1


def test_a_worker_is_no_replay() -> None:
    """A processor that looks has the answer from both."""
    info = ShardInfo(SHARD, "orders_1", frozenset(), "x")
    assert InitializationInput(info, "TRIM_HORIZON", Checkpointer(StoredShard(SHARD)), Marker()).is_replay is False
    seen: list[bool] = []

    class Noting(Wrong):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            seen.append(self.is_replay)

    store = MemoryParkingStore()
    store.park([parked(2)])
    replay_parked(store, lambda: Noting(""))
    assert seen == [True]
