"""Parked records by cause: which errors are one cause, and what the command says and selects by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamclient.base.reasons import common_words
from streamclient.cli import main
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ParkedRecord
from streamclient.worker.parking import FileParkingStore
from streamclient.worker.parking.parked_causes import cause_id, of_cause, of_keys_with_cause, parked_causes
from streamclient.worker.parking.parked_frames import record_id
from tests.placed_records import make_record

AMOUNT = "ValueError: amount must be a number, not 'twelve'"
BUSY = "DependencyException: OTSServerBusy: busy (request fcec4671-38ae-4ab8-b52b-514f91f1ebf3)"

LETTERS = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=1, max_size=8)
WORD = st.lists(LETTERS, min_size=1, max_size=2).map(lambda parts: "x" + "'".join(parts) + "x")
"""A word, perhaps with an apostrophe in it; the letters around it keep it from being "once" or "times"."""


def parked(key: str, number: int, error: str, *, shard: str = "shard-1", at: int = 0) -> ParkedRecord:
    record = make_record(key, number, amount=number)
    return ParkedRecord(record_id(record), "orders_1", shard, record, "i0", number, 1, error, "trace\n", 4, 7 + at)


VARIABLE = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False, min_value=0.001, max_value=1_000).map("{:.3f}".format),
    st.uuids().map(str),
    st.text(st.characters(codec="utf-8"), max_size=9).map(repr),
    st.integers(0, 2**64 - 1).map(hex),
    st.sampled_from(["once", "3 times", "0f" * 16, "DEADBEEF0123"]),
)
"""A part of an error that differs from record to record."""


@given(st.lists(WORD, min_size=2, max_size=6), st.data())
def test_errors_that_differ_in_numbers_ids_and_quotes_are_one_cause(words: list[str], data: st.DataObject) -> None:
    def error() -> str:
        return " ".join(part for word in words for part in (word, data.draw(VARIABLE)))

    assert cause_id(error()) == cause_id(error())


@given(st.lists(WORD, min_size=1, max_size=6), st.lists(WORD, min_size=1, max_size=6), VARIABLE)
def test_two_texts_are_two_causes(one: list[str], other: list[str], between: str) -> None:
    assume(one != other)

    assert cause_id(f" {between} ".join(one)) != cause_id(f" {between} ".join(other))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AMOUNT, "ValueError: amount must be a number, not #"),
        (BUSY, "DependencyException: OTSServerBusy: busy (request #)"),
        ("it can't read X and isn't Y", "it can't read X and isn't Y"),
        ("KeyError: 'it\\'s'", "KeyError: #"),
        ("<Order object at 0x7f3a2b1c>", "<Order object at #>"),
        ("digest 5d41402abc4b2a76 of a facade", "digest # of a facade"),
        ("value -5.25, part-2", "value #, part-#"),
        ("failed 3 times", "failed #"),
    ],
)
def test_the_words_of_a_cause_are_read_with_ease(error: str, expected: str) -> None:
    assert common_words(error) == expected


def test_causes_are_counted_and_the_most_frequent_comes_first() -> None:
    store = [
        parked("a", 1, AMOUNT, at=30),
        parked("b", 2, BUSY, at=20),
        parked("c", 3, AMOUNT.replace("twelve", "ten"), shard="shard-2", at=40),
    ]
    first, second = parked_causes(store)

    assert first == {
        "id": cause_id(AMOUNT),
        "cause": "ValueError: amount must be a number, not #",
        "records": 2,
        "shards": 2,
        "oldest_micros": 37,
        "newest_micros": 47,
        "error": AMOUNT.replace("twelve", "ten"),
    }
    assert (second["id"], second["records"]) == (cause_id(BUSY), 1)
    assert parked_causes([]) == []


def test_a_cause_selects_its_records_and_for_a_replay_all_records_of_their_keys() -> None:
    waits = parked("a", 4, "not tried: an earlier record of its key is parked")
    store = [parked("a", 1, AMOUNT), parked("b", 2, BUSY), waits]

    assert of_cause(store, cause_id(AMOUNT)) == store[:1]
    assert of_keys_with_cause(store, cause_id(AMOUNT)) == [store[0], waits]
    assert of_cause(store, "nothing") == []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with two records of one cause, one that waits for the first of them, and one of another cause."""
    same = "ValueError: amount must be a number, not '-'"
    FileParkingStore(tmp_path).park(
        [
            parked("a", 1, AMOUNT),
            parked("b", 2, same, at=1),
            parked("a", 4, "not tried: an earlier record of its key is parked", at=2),
            parked("c", 3, BUSY, at=3),
        ]
    )
    return tmp_path


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main.main(["parked", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_command_has_a_line_for_each_cause(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = say(capsys, "causes", "--directory", str(directory))
    lines = text.splitlines()

    assert code == 0
    assert lines[0].split("  ")[0] == "CAUSE"
    assert lines[1].split()[:3] == [cause_id(AMOUNT), "2", "1"]
    assert lines[1].endswith("ValueError: amount must be a number, not '-'"), "the error of the newest"
    assert lines[-1] == "4 records parked, 3 causes"
    document = json.loads(say(capsys, "causes", "--directory", str(directory), "--json")[1])
    assert document == {"causes": parked_causes(FileParkingStore(directory).parked())}


def test_the_other_actions_take_a_cause(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> str:
        return say(capsys, "list", "--directory", str(directory), *words)[1].splitlines()[-1]

    assert listed("--cause", cause_id(AMOUNT)[:6]) == "2 records parked"
    assert listed("--cause", cause_id(AMOUNT), "--key", '[["id", "c"]]') == "0 records parked"
    code, text = say(capsys, "list", "--directory", str(directory), "--cause", "nothing")
    assert (code, "no parked record has the cause nothing" in text) == (2, True)
    assert say(capsys, "discard", "--directory", str(directory), "--cause", cause_id(BUSY))[1] == "1 record discarded\n"
    assert listed() == "3 records parked"


class Processes(IRecordProcessorFactory):
    """Makes processors that process whatever they are given."""

    def create_processor(self) -> IRecordProcessor:
        return Processing()


class Processing(IRecordProcessor):
    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def test_a_replay_by_cause_takes_all_records_of_its_keys(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cause", cause_id(AMOUNT), "--processor", f"{__name__}:Processes", "--json"]
    code, text = say(capsys, "replay", "--directory", str(directory), *words)

    assert (code, json.loads(text)) == (0, {"replayed": 3, "left": []})
    assert [left.error for left in FileParkingStore(directory).parked()] == [BUSY]
