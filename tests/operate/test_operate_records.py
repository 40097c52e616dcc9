"""``leases park`` and ``leases skip --record``, with real workers over HTTP: what they write, refuse and cause."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from operate_scene import STATUS, TABLE, Owner, Ran, Scene, run_cli
from orders_process import NEVER_STORES
from stuck_page import is_now
from stuck_workers import Steady, working

from streamclient import FailurePolicy, FileParkingStore, KeyedProcessorFactory, OnFailure, TableParkingStore
from streamclient.cli.options import operator_name
from streamclient.core import leases as rule
from streamclient.core.worker_info import WorkerInfo
from streamclient.errors import DependencyException, ErrorKind
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import RecordOrder
from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.worker.lease import lease_manager
from streamclient.worker.lease.audit_rows import put_note
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.parking.parked_frames import record_id
from tests.patience import until

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
STOP = FailurePolicy(retries=0, first_pause_millis=0, then=OnFailure.STOP_SHARD)


class Strict(Steady):
    """Refuses batches with a bad number; keeps the numbers of the others in ``seen``."""

    def __init__(self, bad: set[int], seen: list[int]) -> None:
        self._bad, self._seen = bad, seen

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        numbers = [int(record["n"]) for record in process_records_input.records]  # type: ignore[arg-type]
        if self._bad.intersection(numbers):
            raise ValueError("bad record")
        self._seen += numbers
        super().process_records(process_records_input)


def ids(scene: Scene) -> list[str]:
    """The ids of the shard's records, oldest first: record ``n`` is number ``n``."""
    return [record_id(record) for record in scene.streams.get_stream_record(scene.iterator()).records]


def halts(scene: Scene) -> str:
    """Wait until the shard has stopped at a record; its id."""
    seen: list[str] = []

    def stopped() -> bool:
        """In one look: the next one may see the shard go on."""
        told = scene.run("explain", scene.shard, "--observe", "0", "--json").document["shards"][0]
        seen[:] = [line for line in told["evidence"] if line.startswith("stopped at record: ")]
        return bool(told["situation"] == "record-fails")

    until(stopped, "it stops")
    (line,) = seen
    return line.removeprefix("stopped at record: ")


def take_out(scene: Scene, action: str, *words: str, shard: str = "") -> Ran:
    return scene.run("leases", action, shard or scene.shard, "--reason", "bad data", *words)


def goes_on(scene: Scene, seen: list[int], *numbers: int) -> None:
    """Wait until these records were processed and no order stands any more."""
    until(lambda: {*numbers} <= {*seen}, lambda: seen)
    until(lambda: scene.lease().orders == (), lambda: scene.lease().orders)


def outcomes(scene: Scene) -> list[tuple[str, str, str]]:
    """Who did what, with which outcome, newest first."""
    return [(each["who"], each["command"].split()[0], each["outcome"]) for each in scene.audit()]


# --- from a halt -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "table"])
def test_a_shard_goes_on_once_the_record_at_which_it_stopped_is_parked(quick: Scene, tmp_path: Path, kind: str) -> None:
    seen: list[int] = []
    name = str(tmp_path / "parked") if kind == "directory" else "parked_orders"
    quick.write(6)
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP):
        record = halts(quick)
        assert record == ids(quick)[2]
        checkpoint = quick.lease().checkpoint
        done = take_out(quick, "park", f"--parking-{kind}", name, "--yes")
        assert (done.code, done.err) == (0, ""), done
        goes_on(quick, seen, 0, 1, 3, 4, 5)

    assert 2 not in seen
    assert checkpoint == "TRIM_HORIZON" != quick.lease().checkpoint
    store = FileParkingStore(name) if kind == "directory" else TableParkingStore(quick.client, name)
    (parked,) = store.parked()
    assert (parked.record_id, parked.shard_id, parked.attempts) == (record, quick.shard, 0)
    assert parked.fleet == STATUS
    assert parked.error == f"parked by order of {operator_name()}: bad data"
    end, command = quick.audit()
    assert (end["who"], end["command"], end["outcome"]) == ("w1", "end of park", "parked one record")
    assert (command["who"], command["outcome"]) == (operator_name(), "done")
    assert command["command"] == f"park {quick.shard} --parking-{kind} {name} --yes"
    assert end["change"] == command["change"]
    assert command["after"]["orders"][0]["record_ids"] == [record]


def test_a_record_that_was_parked_by_order_can_be_replayed(quick: Scene, tmp_path: Path) -> None:
    seen: list[int] = []
    quick.write(4)
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP):
        halts(quick)
        assert take_out(quick, "park", "--parking-directory", str(tmp_path), "--yes").code == 0
        goes_on(quick, seen, 0, 1, 3)
    words = ["--directory", str(tmp_path), "--processor", "stuck_workers:Steady"]
    replayed = run_cli("parked", "replay", *words)

    assert replayed.out.splitlines()[-1] == "1 record replayed, 0 left", replayed
    assert not list(FileParkingStore(tmp_path).parked())


def test_a_record_is_dropped_and_so_is_the_next_one_at_which_the_shard_stops(quick: Scene) -> None:
    """Both are in one page: the order for the first one holds until the page is stored."""
    seen: list[int] = []
    quick.write(6)
    with working(quick, lambda: Strict({1, 4}, seen), failure_policy=STOP):
        for number in (1, 4):
            until(lambda number=number: halts(quick) == ids(quick)[number], number)  # type: ignore[misc]
            assert take_out(quick, "skip", "--record", ids(quick)[number], "--yes").code == 0
        goes_on(quick, seen, 0, 2, 3, 5)

    assert not {1, 4} & {*seen}
    assert [each for each in outcomes(quick) if each[0] == "w1"] == [("w1", "end", "skipped one record")] * 2


def test_the_next_records_are_counted_from_the_halt_on_and_listed_first(quick: Scene) -> None:
    seen: list[int] = []
    quick.write(8)
    with working(quick, lambda: Strict({2, 3, 4}, seen), failure_policy=STOP):
        halts(quick)
        dry = take_out(quick, "skip", "--records", "3")
        assert (dry.code, "add --yes" in dry.err) == (0, True)
        assert [name for name in ids(quick) if name in dry.out] == ids(quick)[2:5]
        assert '[["id", "key-02"]]' in dry.out
        assert take_out(quick, "skip", "--records", "3", "--yes").code == 0
        goes_on(quick, seen, 0, 1, 5, 6, 7)

    assert not {2, 3, 4} & {*seen}


def test_a_dry_run_writes_nothing_with_or_without_its_option(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard)
    before = scene.cells()
    words = ["--record", ids(scene)[1], "--parking-table", "parked_orders"]
    for more in ([], ["--dry-run"], ["--dry-run", "--yes"]):
        ran = take_out(scene, "park", *words, *more)
        assert (ran.code, ran.out.splitlines()[-1]) == (0, "dry run: nothing was written"), ran
        assert "one record parked in table parked_orders: would be written" in ran.out

    assert scene.cells() == before
    assert "parked_orders" not in scene.client.list_table()


# --- any processor, any policy ---------------------------------------------------------------------------------------


def keyed(bad: set[int], seen: list[int]) -> Any:
    def process(record: Any) -> None:
        if record["n"] in bad:
            raise ValueError("bad record")
        seen.append(record["n"])

    return KeyedProcessorFactory(process, retries=0, checkpoint_interval_millis=10)


def handler(bad: set[int], seen: list[int]) -> Any:
    def handle(batch: Any) -> None:
        if any(record["n"] in bad for record in batch):
            raise ValueError("bad record")
        seen.extend(record["n"] for record in batch)

    return handle


def coroutine(bad: set[int], seen: list[int]) -> Any:
    handle = handler(bad, seen)

    async def handle_in_loop(batch: Any) -> None:
        handle(batch)

    return handle_in_loop


@pytest.mark.parametrize("make", [keyed, handler, coroutine], ids=lambda make: make.__name__)
def test_whatever_handles_records_never_gets_those_that_an_order_names(
    quick: Scene, make: Callable[[set[int], list[int]], Any]
) -> None:
    seen: list[int] = []
    quick.write(6)
    with working(quick, make({2}, seen), failure_policy=STOP):
        halts(quick)
        assert take_out(quick, "skip", "--record", ids(quick)[2], "--yes").code == 0
        until(lambda: {0, 1, 3, 4, 5} <= {*seen}, lambda: seen)

    assert 2 not in seen


def test_a_worker_with_a_parking_store_parks_there_and_its_later_changes_follow(quick: Scene, tmp_path: Path) -> None:
    """The share of parked records has stopped the shard; the order is the operator's decision about one of them."""
    seen: list[int] = []
    store = MemoryParkingStore()
    policy = FailurePolicy(
        retries=0, then=OnFailure.PARK, parking=store, most_parked_share=0.1, share_window_records=10
    )
    quick.write(6)
    with working(quick, lambda: Strict({1, 3}, seen), failure_policy=policy):
        until(lambda: is_now(quick, "too-many-parked", quick.shard), "it stops")
        assert take_out(quick, "park", "--parking-directory", str(tmp_path), "--yes").code == 0
        goes_on(quick, seen, 0, 2, 4, 5)

    assert [parked.record_id for parked in store.parked()] == [ids(quick)[1], ids(quick)[3]]
    assert not list(FileParkingStore(tmp_path).parked())


def test_an_order_ends_the_pause_of_a_processor_that_starts_again_and_again(quick: Scene) -> None:
    """The pause between two starts is a minute here; the shard goes on without it."""
    seen: list[int] = []
    quick.write(4)
    with working(quick, lambda: Strict({1}, seen)):
        until(lambda: is_now(quick, "processor-fails", quick.shard), "it fails")
        assert take_out(quick, "skip", "--record", ids(quick)[1], "--yes").code == 0
        goes_on(quick, seen, 0, 2, 3)


def test_a_paused_shard_obeys_once_it_is_resumed(quick: Scene) -> None:
    seen: list[int] = []
    quick.write(4)
    with working(quick, lambda: Strict({1}, seen), failure_policy=STOP):
        halts(quick)
        assert quick.run("leases", "pause", quick.shard, "--reason", "a look").code == 0
        ran = take_out(quick, "skip", "--record", ids(quick)[1], "--yes")
        assert (ran.code, "the shard is paused by" in ran.out) == (0, True), ran
        assert quick.lease().orders
        assert quick.run("leases", "resume", quick.shard).code == 0
        goes_on(quick, seen, 0, 2, 3)


# --- refused ---------------------------------------------------------------------------------------------------------


def refused(scene: Scene, *words: str, action: str = "skip", shard: str = "") -> str:
    """The reason of a refusal, which has written nothing."""
    before = scene.cells(but=("Worker", "LeaseKey"))
    ran = take_out(scene, action, *words, "--yes", shard=shard)
    assert ran.code == 1, ran
    assert scene.cells(but=("Worker", "LeaseKey")) == before, "not even an audit row"
    return str(ran.out.splitlines()[0])


def test_ids_that_name_no_record_of_the_shard_are_refused(scene: Scene) -> None:
    scene.write(4)
    scene.put_lease(scene.shard, checkpoint=scene.iterator(after=2))
    first, other = ids(scene)[0], ids(scene)[3][:-1] + "x"
    wrong = take_out(scene, "skip", "--record", "record-7", "--yes")

    assert (wrong.code, "is not the id of a record" in wrong.err) == (2, True), wrong
    assert "is not the id of a record" in take_out(scene, "skip", "--record", other, "--yes").err
    absent = ids(scene)[3][:-12] + "0123456789ab"
    assert f"it has no record {absent}" in refused(scene, "--record", absent)
    assert f"record {first} was passed" in refused(scene, "--record", first)
    assert "only 2 records follow, and 3 were named" in refused(scene, "--records", "3")
    assert scene.audit() == []


def test_shards_that_nobody_reads_any_more_are_refused(scene: Scene) -> None:
    scene.write(2)
    scene.put_lease(scene.shard, checkpoint="SHARD_END")

    assert "it is finished" in refused(scene, "--records", "1")
    assert "it has no lease row" in refused(scene, "--records", "1", shard="no-such-shard")


def test_without_an_id_the_owner_has_to_say_at_which_record_it_stopped(scene: Scene, tmp_path: Path) -> None:
    scene.write(2)
    scene.put_lease(scene.shard)

    reason = refused(scene, "--parking-directory", str(tmp_path), action="park")
    assert "name the record with --record ID" in reason


def test_under_a_java_owner_an_order_is_refused_with_what_to_do(scene: Scene) -> None:
    scene.write(2)
    scene.put_lease(scene.shard, "java-1")
    with Owner(scene, "java-1", scene.shard, obeys=False, has_session=False):
        reason = refused(scene, "--record", ids(scene)[1])
        scene.put_worker("w2", info=WorkerInfo(obeys_orders=True))
        other = refused(scene, "--record", ids(scene)[1])

    assert "its owner java-1 has no session row: it is a Java worker or an older one" in reason
    assert "start one that does" in reason
    assert "move the shard to one that does: w2" in other


def test_under_an_older_worker_an_order_is_refused(scene: Scene) -> None:
    scene.write(2)
    scene.put_lease(scene.shard, "w1")
    scene.put_worker("w1", info=WorkerInfo(version="0.9"))

    reason = refused(scene, "--record", ids(scene)[1])
    assert "its owner w1, of version 0.9, does not obey orders about records; update it, or start one" in reason


def test_a_free_shard_is_refused_if_no_living_worker_would_obey(scene: Scene) -> None:
    scene.write(2)
    scene.put_lease(scene.shard)
    scene.put_worker("w1", info=WorkerInfo(version="0.9"))
    assert "none of the living workers (w1) obeys orders" in refused(scene, "--record", ids(scene)[1])

    scene.put_worker("w2", info=WorkerInfo(obeys_orders=True))
    ran = take_out(scene, "skip", "--record", ids(scene)[1], "--yes")
    assert (ran.code, "worker w1 does not obey the order if it takes the shard" in ran.out) == (0, True), ran


def test_a_shard_that_its_own_program_paused_is_refused(quick: Scene) -> None:
    quick.write(2)
    with working(quick, Steady) as worker:
        until(lambda: is_now(quick, "caught-up", quick.shard), "it is read")
        worker.pause(reason="weekly report")
        until(lambda: is_now(quick, "paused-by-program", quick.shard), "it is paused")
        assert "its worker's own program paused it" in refused(quick, "--records", "1")


def test_a_row_has_room_for_a_limited_number_of_records(scene: Scene) -> None:
    scene.write(210)
    scene.put_lease(scene.shard)
    above = take_out(scene, "skip", "--records", "201", "--yes")
    assert (above.code, "--records 201 is above 200" in above.err) == (2, True), above
    none = take_out(scene, "skip", "--records", "0", "--yes")
    assert none.code == 2, none

    assert take_out(scene, "skip", "--records", "199", "--yes").code == 0
    assert "ordered that already" in refused(scene, "--records", "5")
    assert take_out(scene, "skip", "--record", ids(scene)[205], "--yes").code == 0
    assert "its row would name 201 records, and 200 is the most" in refused(scene, "--record", ids(scene)[206])


def test_two_orders_at_once_are_both_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator's order arrives between the plan and the write: the write is refused, and planned anew."""
    scene.write(3)
    scene.put_lease(scene.shard)
    first, second = ids(scene)[:2]
    other = RecordOrder("other", "bob", "", 1, 10**16, (second,))
    set_orders = rule.set_orders
    meddled = threading.Event()

    def meddle(seen: Any, orders: Any) -> Any:
        if not meddled.is_set():
            meddled.set()
            scene.send(set_orders(scene.lease(), (other,)))
        return set_orders(seen, orders)

    monkeypatch.setattr(rule, "set_orders", meddle)
    assert take_out(scene, "skip", "--record", first, "--yes").code == 0
    assert [order.record_ids for order in scene.lease().orders] == [(second,), (first,)]


# --- owners that die -------------------------------------------------------------------------------------------------


def start_process(scene: Scene, fleet: Fleet, *words: str) -> WorkerProcess:
    local = scene.local
    connection = [local.endpoint, local.access_key_id, local.access_key_secret, local.instance, TABLE, STATUS]
    script = [str(HERE / "orders_process.py"), *connection, "w1", *words]
    return fleet.start("w1", script, {"PYTHONPATH": f"{HERE.parents[1]}"})


def test_an_owner_is_killed_before_it_obeys(quick: Scene, tmp_path: Path) -> None:
    """Killed at its halt; the order is given while the lease runs out, and the next owner never delivers the record."""
    seen: list[int] = []
    quick.write(4)
    with Fleet(tmp_path / "fleet") as fleet:
        process = start_process(quick, fleet)
        halts(quick)
        record = ids(quick)[2]
        process.kill()
        ran = take_out(quick, "park", "--record", record, "--parking-directory", str(tmp_path / "parked"), "--yes")
        assert ran.code == 0, ran
    with working(quick, lambda: Strict({2}, seen), name="w2", failure_policy=STOP):
        goes_on(quick, seen, 0, 1, 3)

    assert [parked.record_id for parked in FileParkingStore(tmp_path / "parked").parked()] == [record]
    assert outcomes(quick)[0] == ("w2", "end", "parked one record")


def test_an_owner_is_killed_after_it_parked_and_before_its_checkpoint(quick: Scene, tmp_path: Path) -> None:
    """The next owner takes the record out again, which the store has already."""
    seen: list[int] = []
    store = FileParkingStore(tmp_path / "parked")
    quick.write(4)
    with Fleet(tmp_path / "fleet") as fleet:
        process = start_process(quick, fleet, NEVER_STORES)
        halts(quick)
        assert take_out(quick, "park", "--parking-directory", str(tmp_path / "parked"), "--yes").code == 0
        until(lambda: bool(list(store.parked())), "it is parked")
        process.kill()
    assert quick.lease().checkpoint == "TRIM_HORIZON"
    assert quick.lease().orders
    with working(quick, lambda: Strict({2}, seen), name="w2", failure_policy=STOP):
        goes_on(quick, seen, 0, 1, 3)

    assert [parked.record_id for parked in store.parked()] == [ids(quick)[2]]


def test_an_owner_is_killed_after_its_checkpoint_and_before_the_order_left_the_row(quick: Scene) -> None:
    """As the row is then; the next owner finds nothing to read before the order's records."""
    seen: list[int] = []
    quick.write(4)
    quick.put_lease(quick.shard, "w0", checkpoint=quick.iterator(after=4), beat=60.0)
    order = RecordOrder("gone", "ann", "bad data", 1, 10**16, (ids(quick)[2],))
    quick.send(rule.set_orders(quick.lease(), (order,)))
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP):
        goes_on(quick, seen)

    text = "skipped 0 of one record; the others were passed before this worker read the shard"
    assert outcomes(quick) == [("w1", "end", text)]
    assert seen == []


def test_an_order_leaves_the_row_only_once_its_end_is_in_the_audit(
    quick: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tried: list[tuple[RecordOrder, ...]] = []
    may_note = threading.Event()

    def put(*words: Any) -> None:
        if not may_note.is_set():
            tried.append(quick.lease().orders)
            raise DependencyException("busy", kind=ErrorKind.TRANSIENT)
        put_note(*words)

    monkeypatch.setattr(lease_manager, "put_note", put)
    quick.write(4)
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP):
        halts(quick)
        assert take_out(quick, "skip", "--record", ids(quick)[2], "--yes").code == 0
        until(lambda: len(tried) > 2, "it is tried again with the heartbeats")
        may_note.set()
        goes_on(quick, seen, 0, 1, 3)

    assert all(tried)
    assert outcomes(quick)[0] == ("w1", "end", "skipped one record")
