"""Parked records come back in order per key, and are forgotten once a processor has checkpointed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve

from streamclient.cli.main import main
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IParkingStore,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ParkedRecord, ShutdownReason
from streamclient.records import SequenceInfo
from streamclient.server import LocalTablestore
from streamclient.worker.parking import (
    FileParkingStore,
    MemoryParkingStore,
    TableParkingStore,
    parking_replay,
    replay_parked,
)
from streamclient.worker.parking.parked_documents import document_of
from streamclient.worker.parking.parked_frames import frame_of, key_text, parse_key, record_id, record_of
from streamclient.worker.parking.parking_replay import replay_records
from tests.patience import FOREVER_SECONDS
from tests.placed_records import make_record


def parked(key: str, number: int, *, shard: str = "s", generation: int = 1, stream: str = "orders_1") -> ParkedRecord:
    record = make_record(key, number, amount=number)
    identifier = record_id(record)
    return ParkedRecord(identifier, stream, shard, record, "i0", number, generation, "ValueError: no", "trace\n", 4, 7)


class Recording(IRecordProcessor):
    """Writes down what it is told; fails for some numbers; checkpoints where it is told to."""

    told: list[Any]

    def __init__(self, told: list[Any], failing: set[int], checkpoints: str = "batch") -> None:
        self.told, self.failing, self.checkpoints = told, failing, checkpoints

    def initialize(self, initialization_input: InitializationInput) -> None:
        info = initialization_input.shard_info
        self.told.append(("initialize", info.shard_id, info.epoch))

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        (record,) = process_records_input.records
        self.told.append(("process", record.sequence_info.timestamp_micros))
        if record.sequence_info.timestamp_micros in self.failing:
            raise ValueError("still no")
        if self.checkpoints == "batch":
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self.told.append(("shutdown", shutdown_input.shutdown_reason))
        if self.checkpoints == "shutdown":
            shutdown_input.checkpointer.checkpoint()


def store_with(*records: ParkedRecord) -> MemoryParkingStore:
    store = MemoryParkingStore()
    store.park(records)
    return store


def places(store: MemoryParkingStore) -> list[int]:
    return [each.record.sequence_info.timestamp_micros for each in store.parked()]


def test_records_of_a_key_come_one_by_one_in_order_and_are_forgotten() -> None:
    store = store_with(parked("b", 3), parked("a", 1), parked("a", 4))
    told: list[Any] = []
    report = replay_parked(store, lambda: Recording(told, set()))

    assert (report.replayed, report.left) == (3, ())
    assert told == [
        ("initialize", "s", 0),
        ("process", 1),
        ("process", 4),
        ("shutdown", ShutdownReason.PROCESS_DONE),
        ("initialize", "s", 0),
        ("process", 3),
        ("shutdown", ShutdownReason.PROCESS_DONE),
    ]
    assert places(store) == []


def test_a_key_goes_from_its_first_shard_to_the_children() -> None:
    """By generation, whatever the clocks of the two shards said."""
    store = store_with(parked("a", 1, shard="child", generation=2), parked("a", 9, shard="parent"))
    told: list[Any] = []
    replay_parked(store, lambda: Recording(told, set()))

    assert [entry for entry in told if entry[0] != "shutdown"] == [
        ("initialize", "parent", 0),
        ("process", 9),
        ("initialize", "child", 0),
        ("process", 1),
    ]


def test_the_first_failure_of_a_key_ends_that_key_and_no_other() -> None:
    store = store_with(parked("a", 1), parked("a", 2), parked("a", 3), parked("b", 4))
    told: list[Any] = []
    report = replay_parked(store, lambda: Recording(told, {2}))

    assert report.replayed == 2
    assert [str(left) for left in report.left] == ['[["id", "a"]]: 2 records left: ValueError: still no']
    assert ("process", 3) not in told
    assert told[3] == ("shutdown", ShutdownReason.PROCESS_RESTART)
    assert places(store) == [2, 3]


def test_what_a_processor_checkpoints_at_the_end_is_forgotten_then() -> None:
    """As for one that collects records before it writes them."""
    store = store_with(parked("a", 1), parked("a", 2))
    assert replay_parked(store, lambda: Recording([], set(), "shutdown")).replayed == 2
    assert places(store) == []


def test_a_checkpoint_after_a_failure_never_covers_the_record_that_failed() -> None:
    store = store_with(parked("a", 1), parked("a", 2), parked("a", 3))
    assert replay_parked(store, lambda: Recording([], {2}, "shutdown")).replayed == 1
    assert places(store) == [2, 3]


def test_what_is_never_checkpointed_stays_parked_and_is_named() -> None:
    """A checkpoint means here what it means in a worker."""
    store = store_with(parked("a", 1))
    report = replay_parked(store, lambda: Recording([], set(), "never"))

    assert "the processor did not checkpoint the record" in str(report.left[0])
    assert places(store) == [1]


def test_a_factory_or_a_processor_that_cannot_start_leaves_the_key() -> None:
    def fail() -> IRecordProcessor:
        raise OSError("no database")

    class Closed(Recording):
        def shutdown(self, shutdown_input: ShutdownInput) -> None:
            raise OSError("cannot close")

    assert replay_parked(store_with(parked("a", 1)), fail).left[0].error == "OSError: no database"
    store = store_with(parked("a", 1))
    report = replay_parked(store, lambda: Closed([], set()))
    assert (report.replayed, report.left[0].error, places(store)) == (1, "OSError: cannot close", [])
    with pytest.raises(ConfigurationError, match="processor_factory must be an IRecordProcessorFactory"):
        replay_parked(store, 5)  # type: ignore[arg-type]


def test_only_some_keys_or_one_stream_may_be_replayed() -> None:
    store = store_with(parked("a", 1), parked("b", 2), parked("c", 3, stream="orders_2"))

    assert replay_parked(store, lambda: Recording([], set()), stream_id="orders_2").replayed == 1
    assert replay_parked(store, lambda: Recording([], set()), keys=[(("id", "b"),)]).replayed == 1
    assert places(store) == [1]


def test_the_positions_of_a_replay_may_be_stored_by_name_and_in_two_phases() -> None:
    store = store_with(parked("a", 1), parked("a", 2))
    seen: list[str] = []

    class Careful(Recording):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            checkpointer = process_records_input.checkpointer
            seen.append(checkpointer.largest_permitted_checkpoint_value)
            with pytest.raises(ConfigurationError):
                checkpointer.checkpoint("elsewhere")
            prepared = checkpointer.prepare_checkpoint(None, b"x")
            assert (prepared.pending.records, len(places(store))) == (1, 3 - len(seen))
            prepared.checkpoint()

    assert replay_parked(store, lambda: Careful([], set())).replayed == 2
    assert seen == [parked("a", 1).record_id, parked("a", 2).record_id]


def test_a_processor_that_marks_itself_ends_its_key() -> None:
    class Marking(Recording):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            process_records_input.shutdown_marker.mark_for_process_restart()

    assert "marked itself" in replay_parked(store_with(parked("a", 1)), lambda: Marking([], set())).left[0].error


# --- during a replay --------------------------------------------------------------------------------------------------


class Meanwhile(Recording):
    """Does something with the store while the first record is processed."""

    acts: ClassVar[list[Callable[[], object]]] = []

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if self.acts:
            self.acts.pop()()
        super().process_records(process_records_input)


@pytest.mark.parametrize("kind", ["memory", "files", "table"])
def test_a_replay_leaves_out_what_was_discarded_meanwhile(kind: str, local: LocalTablestore, tmp_path: Path) -> None:
    """Later keys, and later records of the key that is under way."""
    store: IParkingStore = MemoryParkingStore()
    if kind != "memory":
        store = FileParkingStore(tmp_path) if kind == "files" else TableParkingStore(local.client(), "parked")
    gone = [parked("a", 2), parked("b", 4), parked("c", 5)]
    store.park([parked("a", 1), parked("a", 3), parked("c", 6), *gone])
    Meanwhile.acts = [lambda: store.remove(gone)]
    told: list[Any] = []
    report = replay_parked(store, lambda: Meanwhile(told, set()))

    assert (report.replayed, report.left) == (3, ())
    assert [entry for entry in told if entry[0] != "shutdown"] == [
        ("initialize", "s", 0),
        ("process", 1),
        ("process", 3),
        ("initialize", "s", 0),
        ("process", 6),
    ]


def test_a_replay_leaves_out_what_another_replay_has_finished() -> None:
    store = store_with(parked("a", 1), parked("a", 2), parked("b", 3), parked("b", 4))
    told: list[Any] = []
    Meanwhile.acts = [lambda: replay_parked(store, lambda: Recording(told, set()))]
    report = replay_parked(store, lambda: Meanwhile(told, set()))

    assert sorted(entry for entry in told if entry[0] == "process") == [
        ("process", number) for number in (1, 1, 2, 3, 4)
    ]
    assert report.left == ()


def test_records_that_are_gone_are_not_told_as_left() -> None:
    store = store_with(parked("a", 1), parked("a", 2), parked("a", 3), parked("a", 4))
    Meanwhile.acts = [lambda: store.remove([parked("a", 2)])]
    report = replay_parked(store, lambda: Meanwhile([], {3}))

    assert (report.replayed, [left.records for left in report.left]) == (1, [2])


class Counting(IParkingStore):
    """A store of a user, which has only what it must have, and counts how often all of it is read."""

    def __init__(self, *records: ParkedRecord) -> None:
        self.records, self.reads = list(records), 0

    def park(self, records: Sequence[ParkedRecord]) -> None:
        self.records += records

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        self.reads += 1
        return list(self.records)

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        self.records = [each for each in self.records if each not in records]


class Alike:
    """The same without the base class."""

    park, parked, remove = Counting.park, Counting.parked, Counting.remove
    __init__ = Counting.__init__


@pytest.mark.parametrize(("kind", "reads"), [(Counting, 2), (Alike, 1)])
def test_a_store_that_reads_all_records_for_an_answer_is_asked_seldom(
    kind: Callable[..., Any], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking_replay, "_LEAST_SECONDS", FOREVER_SECONDS)
    store = kind(*(parked(f"k{number:02}", number) for number in range(1, 21)))
    report = replay_parked(store, lambda: Recording([], set()))

    assert (report.replayed, report.left, store.records) == (20, (), [])
    assert store.reads == reads


def test_what_was_discarded_from_such_a_store_is_left_out_by_its_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_replay, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(parking_replay, "_PAUSES_PER_ANSWER", 0)
    store = Counting(parked("a", 1), parked("b", 2), parked("c", 3))
    Meanwhile.acts = [lambda: store.remove([parked("b", 2)])]

    assert replay_parked(store, lambda: Meanwhile([], set())).replayed == 2


def test_a_store_that_cannot_tell_what_is_parked_leaves_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(parked("a", 1))

    def fail(records: object) -> list[ParkedRecord]:
        raise OSError("no route to the store")

    monkeypatch.setattr(store, "still_parked", fail)
    told: list[Any] = []

    assert replay_parked(store, lambda: Recording(told, set())).left[0].error == "OSError: no route to the store"
    assert (told, places(store)) == ([], [1])


class Exiting(Recording):
    """Ends the program for the first key, as ``sys.exit`` does."""

    error: ClassVar[BaseException] = SystemExit(0)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if process_records_input.records[0].key["id"] == "a":
            raise self.error
        super().process_records(process_records_input)


class ExitingNow(Exiting):
    """Ends the program as soon as it is made."""

    def __init__(self, *given: Any) -> None:
        raise SystemExit("no settings")


@pytest.mark.parametrize("kind", [Exiting, ExitingNow])
def test_a_processor_that_ends_the_program_has_failed_as_in_a_worker(kind: type[Recording]) -> None:
    store = store_with(parked("a", 1), parked("b", 2))
    report = replay_parked(store, lambda: kind([], set()) if len(places(store)) == 2 else Exiting([], set()))

    assert "SystemExit: " in report.left[0].error
    assert (report.replayed + len(report.left), places(store)[0]) == (2, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_ends_the_replay(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM raises ``SystemExit(143)`` in the main thread, where a worker or a loop may be."""
    monkeypatch.setattr(Exiting, "error", error)
    store = store_with(parked("a", 1), parked("b", 2))
    with pytest.raises(type(error)):
        replay_parked(store, lambda: Exiting([], set()))

    assert places(store) == [1, 2]


def test_records_of_two_fleets_are_not_replayed_together() -> None:
    store = MemoryParkingStore()
    store.park([parked("a", 1), parked("b", 2, stream="orders_2")])
    mixed = [evolve(parked("a", number), fleet=fleet) for number, fleet in ((3, "status_a"), (4, "status_b"))]
    with pytest.raises(ConfigurationError, match="status tables 'status_a' and 'status_b': replay the records of each"):
        replay_records(store, lambda: Recording([], set()), [*store.parked(), *mixed])

    assert replay_records(store, lambda: Recording([], set()), [*store.parked(), mixed[0]]).replayed == 2
    store.park(mixed[:1])
    assert replay_parked(store, lambda: Recording([], set()), fleet="status_b").replayed == 0
    assert replay_parked(store, lambda: Recording([], set()), fleet="status_a").replayed == 1


# --- frames -----------------------------------------------------------------------------------------------------------


def test_ids_sort_as_records_and_tell_different_records_apart() -> None:
    records = [make_record("a", number) for number in (0, 9, 10, 2**62)]
    ids = [record_id(record) for record in records]

    assert ids == sorted(ids)
    assert record_id(make_record("a", 9)) == ids[1]
    assert record_id(make_record("b", 9)) != ids[1]


def test_frames_hold_exactly_one_record() -> None:
    record = make_record("a", 5, amount=1.5)

    assert record_of(frame_of(record)) == record
    with pytest.raises(StreamClientException, match="holds 2 records, expected exactly 1"):
        record_of(frame_of(record) * 2)


@pytest.mark.parametrize("key", [(("id", "Zoë"), ("n", -5), ("b", b"\x00\xff")), (("id", ""),)])
def test_keys_are_text_and_back(key: Any) -> None:
    assert parse_key(key_text(key)) == key


@pytest.mark.parametrize(
    "text", ["", "5", "[5]", '[["id"]]', '[["id", true]]', '[["id", {"base64": "?"}]]', '[[1, "x"]]']
)
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(ValueError, match="is not a primary key, expected"):
        parse_key(text)


# --- the command ------------------------------------------------------------------------------------------------------


class NamedFactory(IRecordProcessorFactory):
    """Found by the command under its name."""

    failing: ClassVar[set[int]] = set()

    def create_processor(self) -> IRecordProcessor:
        return Recording([], self.failing)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    FileParkingStore(tmp_path).park([parked("a", 1), parked("a", 2), parked("b", 3, shard="t")])
    return tmp_path


Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], directory: Path) -> Say:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(["parked", arguments[0], "--directory", str(directory), *arguments[1:]])
        found = capsys.readouterr()
        return code, found.out + found.err

    return run


def test_listing_names_each_record_with_its_error(say: Say) -> None:
    code, text = say("list")

    assert code == 0
    assert text.splitlines()[0].split() == ["RECORD", "WRITTEN", "CHANGE", "KEY", "ERROR"]
    assert text.splitlines()[1] == (
        f'{parked("a", 1).record_id}  1970-01-01T00:00:00.000Z  PUT     [["id", "a"]]  ValueError: no'
    )
    assert text.splitlines()[-1] == "3 records parked"
    assert say("list", "--shard", "t", "--key", '[["id", "b"]]')[1].endswith("1 record parked\n")


def test_showing_has_everything(say: Say) -> None:
    code, text = say("show", "--record", parked("b", 3).record_id)

    assert code == 0
    for part in ("orders_1", "position  i0, number 3", "4 failed calls", "ValueError: no", "    trace", "amount=3"):
        assert part in text


def test_every_listing_may_be_json(say: Say) -> None:
    documents = json.loads(say("list", "--json")[1])

    assert [(each["key"], each["attempts"]) for each in documents] == [
        ([["id", "a"]], 4),
        ([["id", "a"]], 4),
        ([["id", "b"]], 4),
    ]
    assert json.loads(say("show", "--json")[1]) == documents


def test_replaying_calls_the_named_factory(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{__name__}:NamedFactory"
    monkeypatch.setattr(NamedFactory, "failing", {2})
    assert say("replay", "--processor", name) == (
        1,
        '[["id", "a"]]: 1 record left: ValueError: still no\n2 records replayed, 1 left\n',
    )
    monkeypatch.setattr(NamedFactory, "failing", set())

    code, text = say("replay", "--processor", name, "--json")
    assert (code, json.loads(text)) == (0, {"replayed": 1, "left": []})
    assert say("list") == (0, "0 records parked\n")


@pytest.mark.parametrize(
    "name", ["nothing", "json", "json:", ":x", "no_such_module:x", f"{__name__}:nothing", "json:__name__"]
)
def test_a_factory_that_is_none_is_an_error(say: Say, name: str) -> None:
    code, text = say("replay", "--processor", name)
    assert code == 2
    assert "names no factory, expected module:factory" in text or "which makes no processors" in text
    assert "attribute ''" not in text, "Python's words for what was left out"
    assert "Empty module name" not in text


def test_a_module_that_ends_the_program_holds_no_factory(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_the_program.py").write_text("import sys\nsys.exit('no settings')\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, text = say("replay", "--processor", "ends_the_program:Factory")

    assert code == 2
    assert "importing ends_the_program ends the program with 'no settings'" in text


def test_discarding_must_be_told_what(say: Say) -> None:
    code, text = say("discard")
    options = "--key, --record, --shard, --cause, --fleet or --all"
    assert (code, text) == (2, f"streamclient parked discard: say which records to discard: {options}\n")
    assert say("discard", "--record", "nothing")[0] == 2
    assert say("discard", "--key", '[["id", "a"]]') == (0, "2 records discarded\n")

    assert json.loads(say("discard", "--all", "--json")[1]) == {"discarded": [parked("b", 3).record_id]}
    assert say("list")[1] == "0 records parked\n"


def test_a_directory_that_is_not_there_is_an_error_and_is_not_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["parked", "list", "--directory", str(tmp_path / "none")]) == 2
    assert "is not a directory of parked records" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_what_a_processor_prints_is_not_part_of_the_document(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "process_records", lambda self, given: print("printed by a processor"))
    code, text = say("replay", "--processor", f"{__name__}:NamedFactory", "--json")

    assert (code, json.loads(text.replace("printed by a processor\n", ""))["replayed"]) == (1, 0)
    assert text.startswith("{"), "what is printed goes to standard error"


class NamedExiting(IRecordProcessorFactory):
    def create_processor(self) -> IRecordProcessor:
        return Exiting([], set())


class NotMade(NamedExiting):
    def __init__(self) -> None:
        raise SystemExit(3)


def test_a_processor_that_ends_the_program_does_not_end_the_command(say: Say) -> None:
    assert say("replay", "--processor", f"{__name__}:NamedExiting") == (
        1,
        '[["id", "a"]]: 2 records left: SystemExit: 0\n1 record replayed, 2 left\n',
    )
    code, text = say("replay", "--processor", f"{__name__}:NotMade")
    assert (code, "NotMade' cannot be made: it ends the program with 3" in text) == (2, True)


def test_the_fleet_of_a_record_is_shown(say: Say, directory: Path) -> None:
    record = evolve(parked("d", 5, stream="orders_2"), fleet="orders_status")
    FileParkingStore(directory).park([record])

    assert "fleet     orders_status\n" in say("show", "--record", record.record_id)[1]
    assert [each["fleet"] for each in json.loads(say("list", "--json")[1])] == ["", "", "", "orders_status"]


def test_records_are_chosen_by_fleet(say: Say, directory: Path) -> None:
    """A replay begins with the records of a key that an earlier version parked."""
    lines = [document_of(evolve(parked(key, 7), record_id=key, fleet=key)) for key in ("x", "y")]
    path = FileParkingStore(directory)._files("orders_1")[0]
    with path.open("a") as file:
        file.writelines(json.dumps({"parked": line}) + "\n" for line in lines)
    named = json.loads(say("list", "--fleet", "x", "--json")[1])

    assert [(each["key"], each["fleet"]) for each in named] == [([["id", "x"]], "x")]
    code, text = say("replay", "--processor", f"{__name__}:NamedFactory")
    assert (code, "`streamclient parked replay --fleet STATUS-TABLE`" in text) == (2, True)
    assert say("replay", "--processor", f"{__name__}:NamedFactory", "--fleet", "x") == (
        0,
        "4 records replayed, 0 left\n",
    )
    assert say("discard", "--fleet", "y") == (0, "1 record discarded\n")


def test_a_file_that_cannot_be_read_is_named(say: Say, tmp_path: Path) -> None:
    file = next(path for path in tmp_path.rglob("*") if path.is_file())
    file.unlink()
    file.mkdir()

    assert say("list") == (2, f"streamclient parked list: cannot use {file}: Is a directory\n")


def test_a_shard_is_named_by_the_beginning_of_its_id(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = FileParkingStore(tmp_path)
    store.park([parked("a", 1, shard="s1"), parked("b", 2, shard="t2"), parked("c", 3, shard="t3")])

    def done(*words: str) -> tuple[int, str]:
        code = main(["parked", *words, "--directory", str(tmp_path)])
        return code, "".join(capsys.readouterr())

    listed = done("list", "--shard", "s", "--json")
    assert [each["shard_id"] for each in json.loads(listed[1])] == ["s1"]
    assert done("list", "--shard", "t") == (
        2,
        "streamclient parked list: shard 't' is ambiguous: t2, t3 begin with it; give more characters\n",
    )
    assert done("discard", "--shard", "t2") == (0, "1 record discarded\n")
    assert [each.shard_id for each in store.parked()] == ["s1", "t3"]


@pytest.mark.slow
def test_a_table_is_reached_as_options_or_environment_say(
    local: LocalTablestore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    TableParkingStore(local.client(), "parked").park([parked("a", 1)])
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint)
    assert main(["parked", "list", "--table", "parked"]) == 0
    assert capsys.readouterr().out.endswith("1 record parked\n")

    assert main(["parked", "list", "--table", "parked", "--access-key-secret", "wrong"]) == 2
    assert "streamclient parked list: " in capsys.readouterr().err


def test_a_record_of_a_worker_can_be_found_by_its_sequence() -> None:
    """Whoever knows a change knows its id."""
    record = make_record("a", 1_700_000_000_123_456)
    assert record_id(record).startswith("0000000001-00001700000000123456-0000000000-")
    assert record.sequence_info == SequenceInfo(1, 1_700_000_000_123_456, 0)
