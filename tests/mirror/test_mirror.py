"""A mirror in one process, over a real server, against real destinations."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from deltalake import write_deltalake
from deltalake.schema import Field, PrimitiveType
from tablestore import (
    Row,
)

from streamclient import Backoff
from streamclient.copying import MergeLimits, Mirror
from streamclient.copying.mirror_copy import MirrorCopy, require_changes_since
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable, now_micros
from streamclient.destinations import Commit, DeltaDestination, FencedCommit, records_of
from streamclient.destinations.delta import delta_rows
from streamclient.destinations.delta.maintenance import clean
from streamclient.destinations.folding.fold import empty_rows, stored_keys
from streamclient.destinations.folding.row_changes import TableRule, cells_of
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException, UnfitValueError
from streamclient.interfaces import InitializationInput
from streamclient.model import PendingCheckpoint, ShardInfo, WorkerStatus
from streamclient.records import ColumnType, RecordType
from streamclient.server import LocalTablestore
from streamclient.server.server_clock import Clock
from streamclient.tablestore.ranges import TableScan
from streamclient.testing.contracts.destination_contract import batch, change, store, stored_numbers
from streamclient.worker import Worker
from tests.mirror.mirroring import IGNORE, LIMITS, QUICK, caught_up, make_table, put, running
from tests.patience import PATIENCE_SECONDS, until
from tests.spark.spark_helpers import Checkpointer, Marker, StoredShard

DAY_SECONDS = 86_400


def test_the_state_and_its_history_are_both_there(local: LocalTablestore, tmp_path: Path) -> None:
    client = local.client()
    make_table(client, max_version=2)
    put(client, 1, ("a", 1), ("A", "upper"))
    put(client, 2, ("a", "text"))
    history = DeltaDestination(str(tmp_path / "history"))
    mirror = Mirror(
        client, "orders", "status", str(tmp_path / "state"), history=history, client_config=QUICK, limits=LIMITS
    )
    with running(mirror):
        put(client, 1, ("a", 2.5), ("late column", bytearray(b"\0")))
        client.update_row("orders", Row([("id", 1)], {"PUT": [("a", 3)]}), IGNORE)
        client.delete_row("orders", Row([("id", 2)]), IGNORE)
        put(client, 3)
        caught_up(mirror)
        found = mirror.verify()

    assert (found.rows, found.count, found.changed) == (2, 0, 0)
    assert list(found.position.values()) == list(mirror.position().values())
    changes = [record for table in history.rows() for record in records_of(table)]
    written = [[cell.value for cell in record.columns if cell.name == "a"] for record in changes]
    assert [2.5] in written
    assert [3] in written


def test_what_differs_is_named_and_what_changed_behind_the_position_is_left_out(
    local: LocalTablestore, tmp_path: Path
) -> None:
    client = local.client()
    make_table(client)
    for number in range(4):
        put(client, number, ("a", number), ("b", "same"))
    mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
    state = DeltaDestination(str(tmp_path / "state"))
    handle = state.handle()
    handle.update(new_values={"a": 77}, predicate="id = 1")
    handle.delete("id = 2")
    put(client, 3, ("a", "changed behind the position"))
    found = mirror.verify()

    said = [str(one) for one in found.differences]
    assert len(said) == 2
    assert said[0].startswith("row (1) column 'a': table 1@")
    assert ", mirror 77@" in said[0]
    assert said[1] == "row (2) is missing in the mirror"
    assert (found.pending, found.changed, found.rows) == (1, 1, 3)
    assert "the table has 1 change after that position, left out: 1 row" in str(found)


class SetClock(Clock):
    """Shows what it is told."""

    shift_micros = 0

    def now_micros(self) -> int:
        return super().now_micros() + self.shift_micros


@pytest.mark.parametrize("way", ["overwritten", "merged"])
def test_columns_that_others_add_stop_no_change_and_are_no_difference(
    way: str, local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a type that Tablestore lacks, also where the source writes a column of that name, or a row is read again."""
    if way == "merged":
        monkeypatch.setattr(delta_rows, "OVERWRITTEN_BYTES_MAX", 0)
    client = local.client()
    make_table(client)
    for number in range(5):
        put(client, number, ("a", number), ("b", "same"))
    state, history = (DeltaDestination(str(tmp_path / name)) for name in ("state", "history"))
    mirror = Mirror(client, "orders", "status", state, history=history, client_config=QUICK, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
        for handle in (state.another().handle(), history.another().handle()):
            handle.alter.add_columns(
                [Field("checked_on", PrimitiveType("date")), Field("rank", PrimitiveType("integer"))]
            )
            handle.update({"checked_on": "cast('2026-01-01' as date)"})
        twice = state.another().handle()
        write_deltalake(twice, twice.to_pyarrow_table(filters=[("id", "=", 0)]), mode="append")
        client.update_row("orders", Row([("id", 0)], {"PUT": [("checked_on", 0.5), ("new", 0)]}), IGNORE)
        client.update_row("orders", Row([("id", 1)], {"PUT": [("a", 11)]}), IGNORE)
        client.update_row("orders", Row([("id", 2)], {"DELETE_ALL": ["b"]}), IGNORE)
        client.update_row("orders", Row([("id", 3)], {"PUT": [("checked_on", "today"), ("Rank", 5)]}), IGNORE)
        caught_up(mirror)
        found = mirror.verify()
        client.update_row("orders", Row([("id", 3)], {"PUT": [("checked_on", 1)], "DELETE_ALL": ["a"]}), IGNORE)
        caught_up(mirror)

    assert (found.rows, found.differences) == (5, [])
    assert mirror.verify().is_equal
    rows = {row["id"]: row for table in state.another().rows() for row in table.to_pylist()}
    assert rows[4]["checked_on"].isoformat() == "2026-01-01"
    assert dict(rows[0]["_unfit"]) == {"checked_on": {"type": "DOUBLE", "value": "0.5"}}
    assert dict(rows[3]["_unfit"]) == {"checked_on": {"type": "INTEGER", "value": "1"}}
    assert verify(history.another(), with_rows=True).is_whole


def test_what_the_table_lets_expire_goes_from_the_mirror_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    with LocalTablestore(clock=clock) as local:
        client = local.client()
        make_table(client, time_to_live=2 * DAY_SECONDS, max_time_deviation=10 * DAY_SECONDS)
        now = clock.now_micros() // 1_000
        old = now - int(1.9 * DAY_SECONDS) * 1_000
        put(client, 1, ("a", 1, old))
        put(client, 2, ("a", 1, old), ("b", 2, now))
        mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
        with running(mirror):
            client.update_row("orders", Row([("id", 1)], {"PUT": [("c", 3, old)]}), IGNORE)
            caught_up(mirror)
            assert mirror.verify().rows == 2
            # Half a day later, for both the server and the mirror.
            clock.shift_micros = DAY_SECONDS // 2 * 1_000_000
            for module in ("mirror_writer", "mirror_comparison", "mirror_copy", "source_table"):
                monkeypatch.setattr(f"streamclient.copying.{module}.now_micros", clock.now_micros)
            place = DeltaDestination(str(tmp_path / "state"))
            until(lambda: sum(table.num_rows for table in place.rows()) == 1, "the end of the expired row")
            (row,) = [row for table in place.rows() for row in table.to_pylist()]
            found = mirror.verify()

    assert (row["id"], row["a"], row["b"]) == (2, None, 2)
    assert (found.rows, found.count) == (1, 0)


def test_what_expires_while_both_are_compared_is_no_difference(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = local.client()
    make_table(client, time_to_live=2 * DAY_SECONDS, max_time_deviation=10 * DAY_SECONDS)
    now = now_micros()
    put(client, 1, ("a", 1, now // 1_000 - int(1.9 * DAY_SECONDS) * 1_000))
    mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
    times = iter([now])  # the mirror's row is read; the table's, long after
    monkeypatch.setattr(
        "streamclient.copying.mirror_comparison.now_micros", lambda: next(times, now + DAY_SECONDS * 1_000_000)
    )

    assert mirror.verify().differences == []


def test_a_mirror_that_was_killed_as_it_began_begins_again(local: LocalTablestore, tmp_path: Path) -> None:
    class Dies(DeltaDestination):
        """Where it has made its table, and not yet stored anything."""

        def _append(self, *given: Any) -> None:
            raise KeyboardInterrupt

    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    with pytest.raises(KeyboardInterrupt):
        Mirror(client, "orders", "status", Dies(str(tmp_path / "state"))).run()
    mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)

    assert (mirror.verify().rows, mirror.verify().count) == (1, 0)


def test_a_table_that_is_used_by_others_is_not_made_a_mirror(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client)
    rows, committed = MemoryPlace(), MemoryPlace()
    store(MemoryDestination(rows), None, [change(1)], shard="s", end="e")
    store(MemoryDestination(committed), None, [], shard="s", end="e")
    for place in (rows, committed):
        with pytest.raises(ConfigurationError, match="a table"):
            Mirror(client, "orders", "status", MemoryDestination(place)).run()


def test_a_mirror_that_is_stopped_in_the_moment_before_it_follows_ends(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = local.client()
    make_table(client)
    mirror = Mirror(client, "orders", "status", MemoryDestination(), client_config=QUICK, limits=LIMITS)
    run = Worker.run

    def stopped(worker: Worker) -> None:
        mirror.shutdown()
        run(worker)

    monkeypatch.setattr(Worker, "run", stopped)
    mirror.run()

    assert mirror.worker is not None
    assert mirror.worker.worker_status is WorkerStatus.SHUTDOWN


def test_the_key_columns_keep_their_names_whatever_the_table_comes_to_declare() -> None:
    before, after = RULE, evolve(RULE, declared={**RULE.declared, "ID": ColumnType.STRING})

    assert stored_keys(after) == stored_keys(before) == ["id"]
    assert empty_rows(after).column_names[0] == "id"


def test_a_fence_that_names_no_shard_of_the_batch_stops_them_all() -> None:
    class Refuses(MemoryDestination):
        def merge(self, keys: Any, fold: Any, commits: Any) -> None:
            raise FencedCommit("somebody else is here", ())

    writer = MirrorWriter(None, state_of(Refuses), RULE)  # type: ignore[arg-type]
    shard = writer.begin(beginning("shard-1"))
    writer.offer(shard, [change(1)], "after 1")
    writer.start()
    with pytest.raises(FencedCommit):
        writer.flush(shard, is_end=False)
    writer.close()


def test_what_one_shard_holds_stops_no_other() -> None:
    class Refuses(MemoryDestination):
        def merge(self, keys: Any, fold: Any, commits: Any) -> None:
            if any(commit.shard == "shard-1" for commit in commits):
                raise UnfitValueError("nobody can store this")
            super().merge(keys, fold, commits)

    state = state_of(Refuses)
    times = [0.0]
    limits = MergeLimits(max_age_seconds=1)
    writer = MirrorWriter(None, state, RULE, None, limits, clock=lambda: times[-1])  # type: ignore[arg-type]
    shards = [writer.begin(beginning(f"shard-{number}")) for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        writer.offer(shard, [change(number)], "after 1")
    times.append(2.0)  # both are due, and merged in one step
    writer.start()
    writer.flush(shards[1], is_end=False)
    with pytest.raises(UnfitValueError):
        writer.flush(shards[0], is_end=False)
    writer.close()

    assert [line["id"] for table in state.rows() for line in table.to_pylist()] == [2]


def test_a_mirror_whose_changes_were_lost_or_that_failed_is_unhealthy_and_says_why(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client)
    place = MemoryPlace()

    def new() -> Mirror:
        return Mirror(client, "orders", "status", MemoryDestination(place), client_config=QUICK, limits=LIMITS)

    with running(new()) as mirror:
        put(client, 1)
        caught_up(mirror)
    for number in range(2, 5):
        put(client, number)
    local.trim("orders")
    (shard,) = local.shards("orders")
    with running(new()) as mirror:
        until(lambda: not mirror.health.is_healthy, "the loss")
        said = mirror.health.reason
    assert said.startswith(f"shard {shard.shard_id}: ")
    assert "lost" in said
    assert said.endswith("begin a new mirror, with another destination and status table")
    assert "accept_loss" not in said, "users of the command cannot call it"
    broken = Mirror(client, "nothing", "status", MemoryDestination())
    with pytest.raises(StreamClientError):
        broken.run()

    assert broken.health.reason.startswith("ended: ")


def test_a_mirror_goes_on_while_it_is_cleaned(local: LocalTablestore, tmp_path: Path) -> None:
    client = local.client()
    make_table(client)
    mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
    place = DeltaDestination(str(tmp_path / "state"))
    with running(mirror):
        for number in range(6):
            put(client, number % 2, ("a", number))
            caught_up(mirror)
            clean(place)

    assert (mirror.verify().rows, mirror.verify().count) == (2, 0)
    assert verify(place).is_whole


class DiesOnce(MemoryDestination):
    """Of two commits of copied rows the process dies at the second."""

    commits_of_rows = 0

    def commit(self, rows: Any, commits: Any) -> None:
        type(self).commits_of_rows += commits[0].shard != COPY
        if type(self).commits_of_rows == 2:
            raise KeyboardInterrupt
        super().commit(rows, commits)


@pytest.mark.parametrize("dies", ["history", "state"])
def test_the_history_begins_with_the_rows_that_were_copied_each_once(
    dies: str, local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the history has a piece, or behind that, before the mirror has it; the table changes meanwhile."""
    monkeypatch.setattr(SourceTable, "split_points", lambda self, size: [(3,)])
    monkeypatch.setattr(DiesOnce, "commits_of_rows", 0)
    client = local.client()
    make_table(client, max_version=2)
    for number in range(6):
        put(client, number, ("a", number), ("A", "x"))
    places = {"state": MemoryPlace(), "history": MemoryPlace()}
    first = {name: (DiesOnce if name == dies else MemoryDestination)(place) for name, place in places.items()}
    with pytest.raises(KeyboardInterrupt):
        copy_of(local, first["state"], first["history"]).run()
    for number in range(6):
        client.update_row("orders", Row([("id", number)], {"PUT": [("a", number + 0.5)]}), IGNORE)
    state, history = (MemoryDestination(places[name]) for name in ("state", "history"))
    copy = copy_of(local, state, history)
    copy.run()

    records = [record for table in history.rows() for record in records_of(table)]
    had: dict[Any, Any] = {record.key["id"]: {} for record in records}
    for record in records:
        for cell in record.columns:
            had[record.key["id"]].setdefault(cell.name, {})[cell.timestamp_millis] = cell.value
    shown = {row.key[0]: row.cells for table in state.rows() for row in cells_of(table, ["id"])}
    assert len(records) == 6
    assert {record.record_type for record in records} == {RecordType.PUT}
    assert {record.sequence_info.timestamp_micros for record in records} == {copy.plan.start_micros}
    assert shown == had, "the same rows, though the table has changed in between"
    assert copy.left == []
    assert history.last_commits([*copy.plan.pieces]) == state.last_commits([*copy.plan.pieces])


def test_a_history_that_lacks_what_the_mirror_has_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client)
    put(client, 1)
    place = MemoryPlace()
    with running(Mirror(client, "orders", "status", MemoryDestination(place), client_config=QUICK, limits=LIMITS)):
        pass
    late = Mirror(client, "orders", "status", MemoryDestination(place), history=MemoryDestination())
    with pytest.raises(ConfigurationError, match="history lacks commits of copy/0 that the mirror has"):
        late.run()


def copy_of(local: LocalTablestore, state: MemoryDestination, history: MemoryDestination | None = None) -> MirrorCopy:
    source = SourceTable(local.client(), "orders")
    state.key_by(["id"])
    made = MirrorCopy(source, state, source.rule(), threading.Event(), history=history)
    made.prepare()
    return made


def test_a_copy_goes_on_where_another_one_stopped_and_of_two_at_once_each_row_is_there_once(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SourceTable, "split_points", lambda self, size: [(3,), (7,)])
    read = TableScan.page
    monkeypatch.setattr(TableScan, "page", lambda self, start, end, limit: read(self, start, end, limit=1))
    monkeypatch.setattr("streamclient.copying.mirror_copy.COMMIT_PAGES", 1)
    client = local.client()
    make_table(client)
    for number in range(10):
        put(client, number, ("a", number))
    place = MemoryPlace()
    first, second = (copy_of(local, MemoryDestination(place)) for _ in range(2))
    assert first.plan == second.plan
    assert len(first.plan.pieces) == 3
    stops = MemoryDestination.commit

    def stopping(self: MemoryDestination, rows: Any, commits: Any) -> None:
        stops(self, rows, commits)
        first.stop.set()

    monkeypatch.setattr(MemoryDestination, "commit", stopping)
    first.run()
    monkeypatch.setattr(MemoryDestination, "commit", stops)
    assert first.rows == 1
    first.stop.clear()
    threads = [threading.Thread(target=one.run, args=(number,)) for number, one in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert first.left == []
    stored = [row["id"] for table in place.tables for row in table.to_pylist()]
    assert sorted(stored) == list(range(10))


def test_a_copy_that_took_longer_than_the_stream_keeps_changes_is_refused() -> None:
    hour = 3_600 * 1_000_000
    require_changes_since(CopyPlan(0), 23 * hour, 24)
    with pytest.raises(StreamClientException, match=r"the copy began 24\.0 h ago"):
        require_changes_since(CopyPlan(0), 24 * hour, 24)


def test_a_destination_that_cannot_be_a_mirror_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client, stream=False)
    with pytest.raises(ConfigurationError, match="has no stream"):
        Mirror(client, "orders", "status", MemoryDestination()).run()
    with pytest.raises(ConfigurationError, match="need the same application"):
        Mirror(client, "orders", "status", MemoryDestination(), history=MemoryDestination(application="other"))


def test_a_batch_that_an_earlier_owner_had_cut_is_finished_as_it_was_cut(local: LocalTablestore) -> None:
    """It died between its commit and its checkpoint, or between its promise and its commit."""
    client = local.client()
    make_table(client)
    put(client, 0, ("a", 0))
    place = MemoryPlace()
    lost: list[str] = []

    class Dies(MemoryDestination):
        def merge(self, keys: Any, fold: Any, commits: list[Commit]) -> None:  # type: ignore[override]
            if len(lost) % 2:
                super().merge(keys, fold, commits)
            if len(lost) < 6:
                lost.append(commits[0].shard)
                raise OSError("the process dies here")
            super().merge(keys, fold, commits)

    quick = evolve(QUICK, backoff=Backoff(restart_backoff_min_millis=10, restart_backoff_max_millis=10))
    mirror = Mirror(client, "orders", "status", Dies(place), client_config=quick, limits=LIMITS)
    with running(mirror):
        for number in range(1, 40):
            put(client, number % 5, ("a", number))
            if number % 13 == 0:
                caught_up(mirror)
        found = mirror.verify()

    assert len(lost) == 6
    assert (found.rows, found.count) == (5, 0)
    chains = [one for entry in place.entries for one in entry.commits if not one.shard.startswith(COPY)]
    assert [one.number for one in chains] == list(range(1, len(chains) + 1))


def test_a_column_that_is_new_in_two_shards_with_different_types_goes_into_the_history(
    local: LocalTablestore, tmp_path: Path
) -> None:
    client = local.client()
    make_table(client)
    for number in range(10):
        put(client, number, ("a", number))
    local.split("orders", at=5)
    limits = MergeLimits(max_age_seconds=1.0)
    state, history = MemoryDestination(), MemoryDestination()
    mirror = Mirror(client, "orders", "status", state, history=history, client_config=QUICK, limits=limits)
    with running(mirror):
        caught_up(mirror)
        put(client, 1, ("new", 1))
        put(client, 8, ("new", "text"))
        caught_up(mirror)

    assert any(sum(not one.shard.startswith(COPY) for one in entry.commits) > 1 for entry in history.place.entries)
    values = {str(cell.value) for table in history.rows() for one in records_of(table) for cell in one.columns}
    assert {"1", "text"} <= values


RULE = TableRule(("id",), declared={"id": ColumnType.INTEGER})


def state_of(kind: type[MemoryDestination] = MemoryDestination) -> MemoryDestination:
    """A mirror whose table is there, without rows."""
    state = kind()
    state.key_by(["id"])
    state.commit(empty_rows(RULE), [batch(None, [], shard=COPY)])
    return state


def beginning(name: str, checkpointer: type[Checkpointer] = Checkpointer, cut: Commit | None = None) -> Any:
    """A shard from its beginning on, with what an earlier owner had cut."""
    info = ShardInfo(name, "stream", frozenset(), f"{name}-2", 2)
    pending = None if cut is None else PendingCheckpoint(cut.end, cut.to_json().encode(), cut.count, cut.epoch)
    return InitializationInput(info, "TRIM_HORIZON", checkpointer(StoredShard(name)), Marker(), pending)


def test_what_the_history_has_of_an_earlier_owner_and_what_is_new_are_merged_in_one_step() -> None:
    """Its process died between the history and the mirror; of the other shards of the batch neither has anything."""
    state, history = state_of(), MemoryDestination()
    cut = store(history, None, [change(1, text="a")], shard="shard-1", end="after 1")
    times = [0.0]
    limits = MergeLimits(max_age_seconds=1)
    writer = MirrorWriter(None, state, RULE, history, limits, clock=lambda: times[-1])  # type: ignore[arg-type]
    shards = {"shard-1": writer.begin(beginning("shard-1", cut=cut)), "shard-2": writer.begin(beginning("shard-2"))}
    writer.offer(shards["shard-2"], [change(2, text="b")], "after 1")
    writer.offer(shards["shard-1"], [change(1, text="a")], cut.end)
    times.append(2.0)  # both are due
    writer.start()
    for shard in shards.values():
        writer.flush(shard, is_end=False)
    writer.close()

    assert writer.merges == 1
    assert stored_numbers(history) == [1, 2]
    assert sorted(line["id"] for table in state.rows() for line in table.to_pylist()) == [1, 2]
    assert {name: one.digest for name, one in state.last_commits(list(shards)).items() if one} == {
        name: one.digest for name, one in history.last_commits(list(shards)).items() if one
    }


def test_a_flush_waits_for_a_batch_that_is_finished_for_an_earlier_owner_and_raises_why_it_failed() -> None:
    is_merging, is_awaited = threading.Event(), threading.Event()

    class Fails(MemoryDestination):
        def merge(self, keys: Any, fold: Any, commits: Any) -> None:
            is_merging.set()
            is_awaited.wait(PATIENCE_SECONDS)
            raise OSError("no room")

    class Looks(Checkpointer):
        @property
        def is_closed(self) -> bool:
            """Asked by whoever waits, once the merge is under way."""
            if is_merging.is_set():
                is_awaited.set()
            return False

    writer = MirrorWriter(None, state_of(Fails), RULE)  # type: ignore[arg-type]
    shard = writer.begin(beginning("shard-1", Looks, batch(None, [change(1)], shard="shard-1", end="after 1")))
    writer.offer(shard, [change(1)], "after 1")
    writer.start()
    assert is_merging.wait(PATIENCE_SECONDS)
    with pytest.raises(OSError, match="no room"):
        writer.flush(shard, is_end=False)
    writer.close()
