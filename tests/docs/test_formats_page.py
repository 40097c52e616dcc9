"""The page of kept formats: its table is that of the code, and each format refuses the version after the known one."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tablestore import Row

from streamclient.base.kept_formats import FORMAT_COLUMN, FORMAT_MEMBER, KeptFormat
from streamclient.console.history_page import TITLE, page_file
from streamclient.copying.source_table import CopyPlan
from streamclient.core.worker_info import WorkerInfo
from streamclient.destinations.commit import Commit, LogEntry
from streamclient.destinations.delta.delta_log import entry_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import CodecError, ConfigurationError, StreamClientException
from streamclient.model import Lease, ParkedRecord, Pause, PendingCheckpoint, RecordOrder
from streamclient.operate.snapshots import load_snapshot
from streamclient.server.server_errors import DataDirectoryError
from streamclient.server.storage import open_storage
from streamclient.server.storage_sqlite import DATABASE_FILE
from streamclient.spark.processor.outputs import _prepared_commit
from streamclient.spark.source.offsets import StreamOffset
from streamclient.tablestore.ranges import key_from
from streamclient.testing.builders import put
from streamclient.testing.simulation import history_document
from streamclient.worker.lease.audit_rows import parse_audit_row
from streamclient.worker.lease.lease_epochs import _parsed as parse_epoch
from streamclient.worker.lease.lease_rows import UnreadableRow, parse_row
from streamclient.worker.lease.own_columns import format_orders, format_pause, parse_pause
from streamclient.worker.lease.worker_directory import parse_worker
from streamclient.worker.parking.parked_frames import parse_key
from streamclient.worker.parking.parking_files import FileParkingStore
from streamclient.worker.parking.parking_table import _columns, _parked
from tests.upgrade_drill.__main__ import PARTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([^|]+?) \| [^|]+ \| (\d+) \| ([^|]+?) \| `(\w+)` in `(streamclient/[\w/]+\.py)` \|$", PAGE, re.MULTILINE
)
KEY = [("StreamId", "stream"), ("StatusType", "LeaseKey"), ("StatusValue", "s1")]
LEASE = {"LeaseCounter": 7, "LeaseOwner": "a", "LeaseStealer": "", "Checkpoint": "token", "ParentShardIds": ""}
PARKED = ParkedRecord(
    record_id="0000000001-00000000000000000002-0000000003-0123456789ab",
    stream_id="stream",
    shard_id="s1",
    record=put(1, v=2),
    position="token",
    index=0,
    generation=0,
    error="ValueError: no",
    traceback="",
    attempts=1,
    parked_micros=5,
)
COMMIT = Commit.after(
    None, application="a", shard="s1", epoch=1, start="x", end="y", count=0, content=records_digest(())
)


def constants() -> dict[str, KeptFormat]:
    """Every constant of the package, by name and file."""
    found = {}
    for path in sorted((ROOT / "streamclient").rglob("*.py")):
        for name in re.findall(r"^(\w+)(?:: \w+)? = KeptFormat\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            place = path.relative_to(ROOT)
            module = import_module(".".join(place.with_suffix("").parts))
            found[f"{name} in {place.as_posix()}"] = getattr(module, name)
    return found


FORMATS: Mapping[str, KeptFormat] = {kept.name: kept for kept in constants().values()}


def row(cells: Mapping[str, object], key: Any = KEY) -> Row:
    return Row(list(key), [(name, value, 0) for name, value in cells.items()])


def later(name: str) -> int:
    return FORMATS[name].version + 1


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(StreamClientException) as raised:
        act()
    return str(raised.value)


def with_member(text: str, name: str) -> str:
    """A JSON object, or the first one of a list, that states the version after the known one."""
    plain = json.loads(text)
    (plain[0] if isinstance(plain, list) else plain)[FORMAT_MEMBER] = later(name)
    return json.dumps(plain)


# --- what a program says to the next version --------------------------------------------------------------------------


def of_lease(**cells: object) -> list[str]:
    parsed = parse_row(row({**LEASE, **cells}))
    assert isinstance(parsed, UnreadableRow)
    assert parsed.is_of_unknown_version
    assert parsed.missing_column is None
    return [parsed.problem]


def of_lease_row(place: Path) -> list[str]:
    stated = {FORMAT_COLUMN: later("the lease row")}
    remnant = parse_row(row({"LeaseCounter": 7, **stated}))
    assert isinstance(remnant, UnreadableRow)
    assert remnant.missing_column is None, "a create would replace it"
    return [*of_lease(**stated), remnant.problem]


def of_pause(place: Path) -> list[str]:
    return of_lease(Pause=with_member(format_pause(Pause("r1", "ann", "", None)), "the pause"))


def of_order(place: Path) -> list[str]:
    order = RecordOrder("o1", "ann", "", 1, 2, ("r3",), "parked")
    return of_lease(RecordOrders=with_member(format_orders((order,)), "the order about records"))


def of_epoch_row(place: Path) -> list[str]:
    return [str(parse_epoch("s1", row({"Epoch": 4, FORMAT_COLUMN: later("the epoch row")})))]


def of_worker_row(place: Path) -> list[str]:
    cells = {"Nonce": "n", "Beat": 1, "State": "running", "Wake": 0, FORMAT_COLUMN: later("the worker row")}
    return [str(parse_worker(row(cells)))]


def of_audit_row(place: Path) -> list[str]:
    key = [*KEY[:2], ("StatusValue", f"{7:016d}-change-{0:05d}")]
    record = parse_audit_row(row({"Who": "ann", "Outcome": "done", FORMAT_COLUMN: later("the audit row")}, key))
    assert record is not None
    assert (record.at_micros, record.change_id, record.who, record.command) == (7, "change", "", "")
    return [record.outcome]


def of_parked_record(place: Path) -> list[str]:
    store, stated = FileParkingStore(place), later("the parked record")
    store.park([PARKED])
    (file,) = place.rglob("*.jsonl")
    before = with_member(file.read_text(), "the parked record") + "\n"
    file.write_text(before)
    acts = (lambda: list(store.parked()), lambda: store.park([PARKED]), lambda: store.remove([PARKED]))
    told = [refused(act) for act in acts]
    assert all(f"{file}, line 1" in text for text in told)
    assert file.read_text() == before
    key = [("StreamId", "stream"), ("ShardId", "s1"), ("RecordId", PARKED.record_id)]
    return [*told, refused(lambda: _parked(row({**dict(_columns(PARKED)), FORMAT_COLUMN: stated}, key)))]


def of_offset(place: Path) -> list[str]:
    given = {**StreamOffset("stream").to_json(), FORMAT_MEMBER: later("the offset of the streaming source")}
    return [refused(lambda: StreamOffset.from_json(given))]


def of_commit(place: Path) -> list[str]:
    text = with_member(COMMIT.to_json(), "the commit")
    entry = f'{{"commits":[{text}]}}'
    delta = json.dumps({"commitInfo": {"streamclient": entry}}).encode()
    acts = (
        lambda: Commit.from_json(text),
        lambda: LogEntry.from_json("7", entry),
        lambda: entry_of("7", delta),
        lambda: _prepared_commit(PendingCheckpoint("y", text.encode(), 0, 1)),
    )
    return [refused(act) for act in acts]


def of_plan(place: Path) -> list[str]:
    return [refused(lambda: CopyPlan.from_text(with_member(CopyPlan(7).to_text(), "the plan of the copy")))]


def of_data_directory(place: Path) -> list[str]:
    open_storage(place).close()
    with closing(sqlite3.connect(place / DATABASE_FILE)) as database:
        database.execute(f"PRAGMA user_version = {later('the data directory')}")
    before = (place / DATABASE_FILE).read_bytes()
    with pytest.raises(DataDirectoryError) as raised:
        open_storage(place)
    assert (place / DATABASE_FILE).read_bytes() == before
    return [str(raised.value)]


def of_snapshot(place: Path) -> list[str]:
    file = place / "snapshot.json"
    file.write_text(json.dumps({FORMAT_MEMBER: f"streamclient-snapshot-{later('the snapshot')}"}))
    with pytest.raises(ConfigurationError) as raised:
        load_snapshot(file)
    return [str(raised.value)]


def of_history(place: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        page_file({FORMAT_MEMBER: f"streamclient-history-{later('the history')}", "seed": 1})
    return [str(raised.value)]


REFUSALS: Mapping[str, Callable[[Path], list[str]]] = {
    "the lease row": of_lease_row,
    "the pause": of_pause,
    "the order about records": of_order,
    "the epoch row": of_epoch_row,
    "the worker row": of_worker_row,
    "the audit row": of_audit_row,
    "the parked record": of_parked_record,
    "the offset of the streaming source": of_offset,
    "the commit": of_commit,
    "the plan of the copy": of_plan,
    "the data directory": of_data_directory,
    "the snapshot": of_snapshot,
    "the history": of_history,
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_version_after_the_known_one_is_refused_by_name(name: str, tmp_path: Path) -> None:
    told = REFUSALS[name](tmp_path)

    expected = (
        f"{name} has format {later(name)}, and this version of streamclient reads format {FORMATS[name].version}: use "
        "the version that wrote it, or a later one"
    )
    assert told
    assert [text for text in told if expected not in text] == []


def test_the_page_shows_such_a_refusal(tmp_path: Path) -> None:
    assert f"```text\n{of_lease_row(tmp_path)[0]}\n```" in PAGE


def test_the_table_is_that_of_the_code() -> None:
    listed = {f"{constant} in {path}": (name, int(version)) for name, version, _, constant, path in ROWS}

    assert listed == {place: (kept.name, kept.version) for place, kept in constants().items()}
    assert len(listed) == len(FORMATS) == 13
    assert [kept for kept in FORMATS.values() if kept.oldest != kept.version] == [], "no page names a range"


def test_each_format_says_on_the_page_what_an_earlier_program_does() -> None:
    section = PAGE.partition("## What an earlier program does")[2].partition("## ")[0]
    told = "; ".join(re.findall(r"^\| (the [^|]+?) \|", section, re.MULTILINE)).split("; ")

    assert told == [name for name, *_ in ROWS]


def test_each_part_of_the_drill_is_on_the_page_with_its_formats() -> None:
    section = PAGE.partition("| Part | Formats |")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| (the [^|]+) \|$", section, re.MULTILINE)
    parts = [part for names, _ in rows for part in re.findall(r"`([\w-]+)`", names)]
    played = {name for _, names in rows for name in names.split(", ")}

    assert parts == [*PARTS]
    assert {*FORMATS} - played == {"the order about records", "the history"}
    assert f"ONLY={parts[1]} " in PAGE


def test_titles_are_those_of_the_writers() -> None:
    titles = [stated.strip("`") for *_, stated, _, _ in ROWS if stated.startswith("`streamclient-")]

    assert titles == ["streamclient-snapshot-1", "streamclient-history-1"]
    assert history_document.FORMAT == TITLE


def test_data_of_version_1_state_no_number() -> None:
    """So they are as earlier versions, which stated none, have written them."""
    texts = [format_pause(Pause("r", "a", "", None)), format_orders((RecordOrder("o", "a", "", 1, 2, ("r",), "t"),))]
    texts += [COMMIT.to_json(), CopyPlan(7).to_text()]

    assert [text for text in texts if FORMAT_MEMBER in text] == []
    assert FORMAT_COLUMN not in dict(_columns(PARKED))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        (None, ""),
        (1, ""),
        (3, ""),
        (4, "the thing has format 4, and this version of streamclient reads formats 1 to 3: use the version that "),
        (0, "the thing states format 0, which is not a whole number above 0: repair or remove it"),
        (True, "the thing states format True, which is not a whole number above 0: repair or remove it"),
        ("2", "the thing states format '2', which is not a whole number above 0: repair or remove it"),
        (2.0, "the thing states format 2.0, which is not a whole number above 0: repair or remove it"),
    ],
)
def test_a_stated_version_is_a_number_that_is_known(stated: object, told: str) -> None:
    problem = KeptFormat("the thing", version=3).problem(stated)

    assert problem.startswith(told)
    assert bool(problem) is bool(told)


def test_a_version_that_is_read_no_more_needs_the_one_that_wrote_it() -> None:
    problem = KeptFormat("the thing", version=3, oldest=3).problem(2)

    assert problem.endswith("reads format 3: use the version that wrote it")


@pytest.mark.parametrize("given", [None, 7, "", "snapshot", "streamclient-report-1", "streamclient-snapshot-x"])
def test_another_document_is_not_taken_for_another_version(given: object) -> None:
    told = FORMATS["the snapshot"].problem_of_title(given, "streamclient-snapshot-1")

    assert told == "it does not say format 'streamclient-snapshot-1'"


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged_snapshot(place: Path) -> object:
    file = place / "snapshot.json"
    file.write_text(DEEP)
    return load_snapshot(file)


DEEP = "[" * 100_000
"""Arrays that are nested more deeply than Python reads them."""

DAMAGED: Mapping[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "the commit": (lambda place: Commit.from_json(DEEP), CodecError),
    "the plan of the copy": (lambda place: CopyPlan.from_text(DEEP), StreamClientException),
    "the position of a copy": (lambda place: key_from(DEEP), StreamClientException),
    "the key of a parked record": (lambda place: parse_key(DEEP), ValueError),
    "the pause": (lambda place: parse_pause(DEEP), ValueError),
    "the snapshot": (damaged_snapshot, ConfigurationError),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_text_that_is_nested_too_deeply_is_damage(name: str, tmp_path: Path) -> None:
    act, error = DAMAGED[name]

    with pytest.raises(error):
        act(tmp_path)


def test_what_may_be_damaged_is_read_in_spite_of_text_that_is_nested_too_deeply() -> None:
    entry = LogEntry.from_json("7", DEEP)
    delta = entry_of("7", b'{"txn":' + DEEP.encode())

    assert entry.damage == "entry 7 is unreadable: its arrays and objects are nested too deeply"
    assert delta is not None
    assert "nested too deeply" in delta.damage
    assert WorkerInfo.from_json(DEEP) == WorkerInfo()
    assert isinstance(parse_row(row({**LEASE, "Pause": DEEP})), Lease)


@pytest.mark.parametrize("text", ["7", "null", '[{"no": 1}]', '[{"hex": "zz"}]', '[{"hex": 7}]', "{"])
def test_a_position_of_a_copy_that_is_no_key_is_damage(text: str) -> None:
    with pytest.raises(StreamClientException, match="the stored position of the full copy is damaged"):
        key_from(text)
