"""Every parking store keeps the contract; the file store also survives what happens to files."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.server import Fail, FaultRule, LocalTablestore, LoseAnswer
from streamclient.testing.contracts.parking_contract import CHECKS, check_parking_store, parked_record
from streamclient.worker.parking import FileParkingStore, MemoryParkingStore, TableParkingStore
from tests.patience import PATIENCE_SECONDS

CheckOne = Callable[[Callable[[], IParkingStore]], None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_store_in_memory_keeps_the_contract(check: CheckOne) -> None:
    store = MemoryParkingStore()
    check(lambda: store)
    assert repr(store) == "<MemoryParkingStore, 0 parked>"


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_store_in_files_keeps_the_contract(check: CheckOne, tmp_path: Path) -> None:
    check(lambda: FileParkingStore(tmp_path / "parked"))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_store_in_a_table_keeps_the_contract(check: CheckOne, local: LocalTablestore) -> None:
    check(lambda: TableParkingStore(local.client(), "parked"))


def test_a_store_that_forgets_is_found_out() -> None:
    """The contract can fail."""

    class Forgetful(MemoryParkingStore):
        def park(self, records: object) -> None:
            pass

    with pytest.raises(AssertionError):
        check_parking_store(Forgetful)


def test_a_store_of_a_user_needs_nothing_new() -> None:
    """It has the methods that an earlier version asked for, and knows nothing of fleets."""

    class Plain(IParkingStore):
        def __init__(self) -> None:
            self.store = MemoryParkingStore()

        def park(self, records: Sequence[ParkedRecord]) -> None:
            self.store.park([evolve(parked, fleet="") for parked in records])

        def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
            return self.store.parked(stream_id)

        def remove(self, records: Sequence[ParkedRecord]) -> None:
            self.store.remove(records)

    store = Plain()
    check_parking_store(lambda: store)


# --- fleets -----------------------------------------------------------------------------------------------------------

KINDS = ("memory", "files", "table")
REFUSAL = "another fleet, that of the status table 'status_a': give the fleet of the status table 'status_b' a store of"


@pytest.fixture(params=KINDS)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], IParkingStore]:
    if request.param == "files":
        return lambda: FileParkingStore(tmp_path / "parked")
    if request.param == "table":
        local = request.getfixturevalue("local")
        return lambda: TableParkingStore(local.client(), "parked")
    store = MemoryParkingStore()
    return lambda: store


def of_fleet(fleet: str, key: str, number: int, **more: str) -> ParkedRecord:
    return evolve(parked_record(key, number, **more), fleet=fleet)


def test_a_second_fleet_of_a_stream_is_refused_and_disturbs_nothing(make_store: Callable[[], IParkingStore]) -> None:
    first, second = of_fleet("status_a", "a", 1), of_fleet("status_a", "a", 2)
    store = make_store()
    store.park([first])
    for another in (of_fleet("status_b", "a", 1), of_fleet("status_b", "b", 3, shard="shard-2")):
        with pytest.raises(ConfigurationError, match=REFUSAL):
            make_store().park([another])
    make_store().park([second])

    assert list(store.parked()) == [first, second]
    assert {key.fleet for key in store.parked_keys("orders_1")} == {"status_a"}
    store.remove([first, second])
    store.park([another])
    assert list(store.parked()) == [another]


def test_fleets_of_different_streams_share_a_store_and_nameless_records_belong_to_all(
    make_store: Callable[[], IParkingStore],
) -> None:
    """An earlier version names no fleet."""
    records = [parked_record("a", 1), of_fleet("status_a", "a", 2), of_fleet("status_b", "a", 1, stream="orders_2")]
    for parked in records:
        make_store().park([parked])
    make_store().park([parked_record("b", 3)])

    assert list(make_store().parked()) == [*records[:2], parked_record("b", 3), records[2]]
    assert {(key.key[0][1], key.fleet) for key in make_store().parked_keys("orders_1")} == {
        ("a", ""),
        ("a", "status_a"),
        ("b", ""),
    }


class Raced:
    """Lets another fleet act at one moment of ``park``: when ``step`` has looked at the store, or before it looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: IParkingStore, step: str, *, is_before: bool) -> None:
        self.acts: list[Callable[[], None]] = []
        look = getattr(store, step)

        def raced(*given: Any) -> Any:
            if is_before and self.acts:
                self.acts.pop()()
            found = list(look(*given))
            if self.acts:
                self.acts.pop()()
            return found

        monkeypatch.setattr(store, step, raced)


@pytest.mark.parametrize("others", [of_fleet("status_a", "a", 1), of_fleet("status_a", "c", 5, shard="shard-2")])
@pytest.mark.parametrize("kind", ["files", "table"])
def test_of_two_fleets_that_park_at_once_one_is_refused(
    kind: str, others: ParkedRecord, local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find an empty store. The row or line of the other fleet does not pass for the own one."""

    def make() -> IParkingStore:
        return FileParkingStore(tmp_path) if kind == "files" else TableParkingStore(local.client(), "parked")

    mine, store = of_fleet("status_b", "a", 1), make()
    raced = Raced(monkeypatch, store, "parked" if kind == "files" else "parked_keys", is_before=False)
    raced.acts.append(lambda: make().park([others]))
    with pytest.raises(ConfigurationError, match=REFUSAL):
        store.park([mine])

    assert others in list(make().parked())


def test_a_row_of_another_fleet_that_is_removed_meanwhile_does_not_pass_for_the_own_one(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TableParkingStore(local.client(), "parked")
    store, mine, others = (
        TableParkingStore(local.client(), "parked"),
        of_fleet("status_b", "a", 1),
        of_fleet("status_a", "a", 1),
    )
    Raced(monkeypatch, store, "parked_keys", is_before=False).acts.append(lambda: other.park([others]))
    Raced(monkeypatch, store, "_fleets", is_before=True).acts.append(lambda: other.remove([others]))
    with pytest.raises(
        StreamClientException, match=r"was removed from TableParkingStore.'parked'. while it was parked"
    ):
        store.park([mine])
    store.park([mine])

    assert list(other.parked()) == [mine]


def test_a_record_that_was_removed_from_the_middle_of_its_key_is_found_out(
    make_store: Callable[[], IParkingStore],
) -> None:
    records = [evolve(parked_record("a", 1), record_id=f"r{number}") for number in range(3)]
    store = make_store()
    store.park(records)
    store.remove(records[1:2])

    assert list(store.still_parked(records)) == [records[0], records[2]]


# --- files ------------------------------------------------------------------------------------------------------------


def only_file(directory: Path) -> Path:
    (path,) = directory.rglob("*.jsonl")
    return path


def test_a_half_written_line_was_never_parked_and_does_not_disturb(tmp_path: Path) -> None:
    """As after a crash or on a full disk in the middle of a write."""
    first, second = parked_record("a", 1), parked_record("b", 2)
    store = FileParkingStore(tmp_path)
    store.park([first, second])
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:length])
        assert list(store.parked()) == [first]
    store.park([second])

    assert path.read_bytes() == whole


def test_a_line_of_somebody_else_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Skipping it could lose a record without a word."""
    store = FileParkingStore(tmp_path)
    store.park([parked_record("a", 1)])
    path = only_file(tmp_path)
    path.write_bytes(b'{"parked": {"frame": "AAAA"}}\n' + path.read_bytes())

    with pytest.raises(StreamClientException, match=r"shard-1\.jsonl, line 1: .*repair or remove the line"):
        list(store.parked())
    with pytest.raises(StreamClientException):
        store.park([parked_record("b", 2)])


def test_a_file_without_parked_records_is_empty(tmp_path: Path) -> None:
    """It does not grow for ever."""
    store = FileParkingStore(tmp_path)
    records = [parked_record("a", number) for number in range(3)]
    store.park(records)
    store.remove(records[:2])
    assert only_file(tmp_path).stat().st_size > 0
    store.remove(records[2:])

    assert only_file(tmp_path).stat().st_size == 0


def test_a_line_of_an_earlier_version_names_no_fleet(tmp_path: Path) -> None:
    store = FileParkingStore(tmp_path)
    store.park([of_fleet("status_a", "a", 1)])
    path = only_file(tmp_path)
    path.write_text(path.read_text().replace(', "fleet": "status_a"', ""))
    store.park([of_fleet("status_b", "b", 2)])

    assert list(store.parked()) == [parked_record("a", 1), of_fleet("status_b", "b", 2)]


def test_any_shard_id_is_a_file_name(tmp_path: Path) -> None:
    strange = parked_record("a", 1, stream="../x/..", shard="..")
    store = FileParkingStore(tmp_path / "parked")
    store.park([strange])

    assert list(store.parked("../x/..")) == [strange]
    assert [path.name for path in tmp_path.iterdir()] == ["parked"]


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be a directory of parked records"):
        FileParkingStore(tmp_path / "file")


def _park_some(directory: Path, worker: int, count: int) -> None:
    store = FileParkingStore(directory)
    for number in range(count):
        store.park([parked_record("a", worker * 1_000 + number), parked_record("a", number)])


@pytest.mark.slow
def test_processes_and_threads_may_share_a_directory(tmp_path: Path) -> None:
    """Nothing is lost, and what several of them park is there once."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_park_some, args=(tmp_path, worker, 20)) for worker in (1, 2)]
    threads = [threading.Thread(target=_park_some, args=(tmp_path, worker, 20)) for worker in (3, 4)]
    for each in (*processes, *threads):
        each.start()
    for each in (*processes, *threads):
        each.join(PATIENCE_SECONDS)

    places = [parked.record.sequence_info.timestamp_micros for parked in FileParkingStore(tmp_path).parked()]
    assert places == sorted([*range(20), *(worker * 1_000 + number for worker in (1, 2, 3, 4) for number in range(20))])


# --- table ------------------------------------------------------------------------------------------------------------


def test_a_table_is_made_only_when_it_is_needed(local: LocalTablestore) -> None:
    client = local.client()
    store = TableParkingStore(client, "parked")
    assert "parked" not in client.list_table()
    assert list(store.parked()) == []

    assert "parked" in client.list_table()


@pytest.mark.parametrize("action", [Fail("OTSServerBusy"), LoseAnswer()])
def test_a_write_without_answer_raises_and_is_simply_repeated(local: LocalTablestore, action: object) -> None:
    store = TableParkingStore(local.client(), "parked")
    records = [parked_record("a", 1)]
    assert list(store.parked()) == []
    local.add_fault(FaultRule("BatchWriteRow", action, times=1))  # type: ignore[arg-type]
    with pytest.raises(DependencyException):
        store.park(records)
    store.park(records)

    assert list(store.parked()) == records


def test_a_table_of_another_shape_is_refused(local: LocalTablestore) -> None:
    from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

    client = local.client()
    nothing = ReservedThroughput(CapacityUnit(0, 0))
    client.create_table(TableMeta("orders", [("id", "STRING")]), TableOptions(), nothing)
    key = [("StreamId", "STRING"), ("ShardId", "STRING"), ("RecordId", "STRING")]
    client.create_table(TableMeta("short", key), TableOptions(time_to_live=86_400), nothing)

    with pytest.raises(ConfigurationError, match="its primary key is"):
        TableParkingStore(client, "orders").park([parked_record("a", 1)])
    with pytest.raises(ConfigurationError, match="forgets rows after 86400 s"):
        TableParkingStore(client, "short").park([parked_record("a", 1)])
    for arguments in ((object(), "parked"), (client, "")):
        with pytest.raises(ConfigurationError):
            TableParkingStore(*arguments)


def test_a_row_of_somebody_else_is_an_error_that_names_it(local: LocalTablestore) -> None:
    from tablestore import Condition, Row, RowExistenceExpectation

    client = local.client()
    store = TableParkingStore(client, "parked")
    store.park([parked_record("a", 1)])
    key = [("StreamId", "s"), ("ShardId", "t"), ("RecordId", "u")]
    client.put_row("parked", Row(key, [("x", 1)]), Condition(RowExistenceExpectation.IGNORE))

    with pytest.raises(StreamClientException, match="row u of shard t is not a parked record"):
        list(store.parked())
