"""Batches into destinations: what is prepared, stored and checkpointed, after crashes, fences and lost answers.

No Spark runs here: without a transform there is nothing for it to do, and the first test says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import Run, StoredShard, delete, put, update
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient import Backoff, ClientConfig, FailurePolicy, OnFailure, StreamConfig, Worker
from streamclient.destinations import Commit, DeltaDestination, FencedCommit, change_rows, records_of
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.destinations.proof.verification import verify
from streamclient.destinations.rows.change_rows import ADDED
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    FencedException,
    StreamClientException,
)
from streamclient.model import PendingCheckpoint, Progress, ShutdownReason, TableDefinition, TrimmedDataPolicy
from streamclient.records import ColumnType
from streamclient.server import LocalTablestore
from streamclient.spark import BatchContext, ShardRange, SparkConfig, SparkRecordProcessorFactory
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.patience import PATIENCE_SECONDS, until

ITERATOR = "abcdefghijklmnopqrstuvwxyz"
"""A position that nobody can read."""


def puts(count: int) -> list[Any]:
    return [put(number, number, v=number) for number in range(1, count + 1)]


class Faulty(MemoryDestination):
    """Does something before or after a commit is stored: raises, or lets somebody else go first."""

    before: Callable[[Sequence[Commit]], None] = staticmethod(lambda commits: None)
    after: Callable[[Sequence[Commit]], None] = staticmethod(lambda commits: None)

    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        before, self.before = self.before, staticmethod(lambda commits: None)
        before(commits)
        super().commit(rows, commits)
        after, self.after = self.after, staticmethod(lambda commits: None)
        after(commits)


def make(destination: Any, **limits: Any) -> SparkRecordProcessorFactory:
    return SparkRecordProcessorFactory(destination, config=SparkConfig(**{"max_age_millis": 3_600_000, **limits}))


def work(
    destination: Any, shard: StoredShard, epoch: int, *reads: int, last: ShutdownReason = ShutdownReason.STOLEN
) -> None:
    """One owner reads the shard on, in reads of these sizes, and commits them at its end."""
    with make(destination) as factory:
        run = Run(factory, shard, epoch)
        for read in reads:
            run.read(read)
        run.stop(last)


def keys_in(destination: Any) -> list[int]:
    return sorted(record.key["pk"] for table in destination.rows() for record in records_of(table))


def lose_the_answer(commits: Sequence[Commit]) -> None:
    raise DependencyException("no answer", kind=ErrorKind.AMBIGUOUS)


def test_without_a_transform_neither_spark_nor_java_is_touched(tmp_path: Path) -> None:
    """In a process of its own: whatever imports pyspark or starts a program fails."""
    program = (
        "import subprocess, sys\n"
        "sys.modules['pyspark'] = None\n"
        "subprocess.Popen = None\n"
        "from spark_helpers import Run, StoredShard, put\n"
        "from streamclient.spark import SparkRecordProcessorFactory\n"
        "with SparkRecordProcessorFactory(sys.argv[1]) as factory:\n"
        "    run = Run(factory, StoredShard('s1', [put(1, 1, v=1), put(2, 2, v='x')]))\n"
        "    run.read(2)\n"
        "    run.stop()\n"
    )
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}", str(tmp_path / "table")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    table = DeltaDestination(str(tmp_path / "table"))
    found = [record for rows in table.rows() for record in records_of(rows)]
    assert sorted((record.key["pk"], record.columns[0].value) for record in found) == [(1, 1), (2, "x")]


def test_records_come_back_as_they_went_in_and_the_chain_is_whole() -> None:
    records = [put(1, 1, a=1, b="x"), update(2, 1, a=2.5), put(3, 2, a=b"\0"), delete(4, 2)]
    destination, shard = MemoryDestination(), StoredShard("s1", records)
    work(destination, shard, 1, 1, 2)
    work(destination, shard, 2, 1, last=ShutdownReason.TERMINATE)

    assert [one for table in destination.rows() for one in records_of(table)] == records
    assert shard.checkpoints == ["after 3", "after 4", "SHARD_END"]
    proof = verify(destination, with_rows=True, checkpoints={"s1": "SHARD_END"})
    assert proof.is_whole, str(proof)


def test_all_shards_that_are_due_are_one_commit() -> None:
    destination = MemoryDestination()
    shards = [StoredShard(f"s{number}", puts(2)) for number in range(20)]
    with make(destination, max_records=2) as factory:
        runs = [Run(factory, shard) for shard in shards]
        with factory._committer._changed:  # the committing thread cannot run, so all become due together
            for run in runs:
                run.read(2)
        for run in runs:
            run.stop()

    assert [len(entry.commits) for entry in destination.log()] == [20]
    assert [shard.checkpoint for shard in shards] == ["after 2"] * 20


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
def test_answer_that_is_lost_is_looked_for(is_stored: bool) -> None:
    destination, shard = Faulty(), StoredShard("s1", puts(5))
    if is_stored:
        destination.after = lose_the_answer
        work(destination, shard, 1, 3)
    else:
        destination.before = lose_the_answer
        with pytest.raises(DependencyException):
            work(destination, shard, 1, 3)
        assert shard.pending is not None
        work(destination, shard, 1, 5)
    work(destination, shard, 1, 5)

    assert keys_in(destination) == [1, 2, 3, 4, 5]
    assert shard.checkpoint == "after 5"
    assert verify(destination, with_rows=True, checkpoints={"s1": "after 5"}).is_whole


def crash(value: str) -> None:
    raise DependencyException("crash", kind=ErrorKind.AMBIGUOUS)


def test_batch_that_is_in_and_not_checkpointed_is_completed_before_reading_begins() -> None:
    destination, shard = MemoryDestination(), StoredShard("s1", puts(5))
    shard.before_checkpoint = crash
    with pytest.raises(DependencyException):
        work(destination, shard, 1, 3)
    shard.before_checkpoint = lambda value: None
    with make(destination) as factory:
        run = Run(factory, shard, 2)
        assert shard.checkpoints == ["after 3"]
        run.read(9)
        run.stop()

    assert keys_in(destination) == [1, 2, 3, 4, 5]


def test_next_owner_finishes_the_very_batch_that_was_prepared_however_it_reads_it() -> None:
    """Its predecessor may still be about to store it: then both are the same commit, and one of them counts."""
    destination, shard = Faulty(), StoredShard("s1", puts(9))

    def freeze(commits: Sequence[Commit]) -> None:
        raise RuntimeError("frozen for good")

    frozen = Faulty(destination.place)
    frozen.before = freeze
    with pytest.raises(StreamClientException, match="frozen"):
        work(frozen, shard, 1, 6)
    prepared = shard.pending
    assert prepared is not None

    def zombie(commits: Sequence[Commit]) -> None:
        """The predecessor's commit arrives at last, right before its successor's."""
        late = Commit.from_json(prepared.state)
        MemoryDestination.commit(frozen, waiting_rows[0], [late])

    waiting_rows: list[Any] = []
    with make(destination, max_records=1) as factory:
        run = Run(factory, shard, 2)
        run.read(4)
        assert shard.checkpoints == [], "a part of what was prepared is not committed"
        waiting_rows.append(rows_of(destination, shard, 6))
        destination.before = zombie
        run.read(4)
        run.stop()
        assert shard.checkpoints == ["after 6"]
    work(destination, shard, 2, 9)

    assert [(one.count, one.epoch) for entry in destination.log() for one in entry.commits] == [(6, 1), (3, 2)]
    assert keys_in(destination) == list(range(1, 10))


def rows_of(destination: Any, shard: StoredShard, count: int) -> Any:
    return change_rows(shard.records[:count], shard=shard.shard_id, number=1, columns=destination.columns())


def test_part_of_a_prepared_batch_is_dropped_at_the_end_and_read_again() -> None:
    destination, shard = Faulty(), StoredShard("s1", puts(6))
    destination.before = lose_the_answer
    with pytest.raises(DependencyException):
        work(destination, shard, 1, 6)
    work(destination, shard, 2, 4)
    assert (keys_in(destination), shard.checkpoints) == ([], [])
    work(destination, shard, 3, 4, 2)

    assert keys_in(destination) == [1, 2, 3, 4, 5, 6]


def test_writer_that_was_overtaken_is_refused_and_its_neighbours_are_not() -> None:
    destination = Faulty()
    lost, held = StoredShard("lost", puts(2)), StoredShard("held", puts(2))
    late = StoredShard("lost", puts(2))

    def overtake(commits: Sequence[Commit]) -> None:
        assert len(commits) == 2
        work(MemoryDestination(destination.place), late, 5, 1)

    destination.before = overtake
    with make(destination) as factory:
        runs = [Run(factory, lost, 4), Run(factory, held, 4)]
        with factory._committer._changed:
            for run in runs:
                run.read(2)
                run.processor._share.is_flushing = True  # type: ignore[union-attr]
        with pytest.raises(FencedException, match="committed by epoch 5, this writer has epoch 4"):
            runs[0].stop()
        runs[1].stop()
        assert runs[0].marker.is_marked.is_set()
        with pytest.raises(FencedCommit, match="has lost the lease"):
            Run(factory, lost, 4)

    assert (lost.checkpoints, held.checkpoints) == ([], ["after 2"])
    assert [(one.shard, one.epoch) for entry in destination.log() for one in entry.commits] == [
        ("lost", 5),
        ("held", 4),
    ]


@pytest.mark.parametrize("names", [[], ["another shard"]], ids=["nobody", "somebody else"])
def test_refusal_that_names_no_shard_of_the_batch_is_the_failure_of_all(names: list[str]) -> None:
    """Nothing of the batch was stored, so none of its shards may be checkpointed."""
    destination, shard = Faulty(), StoredShard("s1", puts(4))

    def refuse(commits: Sequence[Commit]) -> None:
        raise FencedCommit("somebody was quicker", names)

    destination.before = refuse
    with pytest.raises(FencedCommit, match="somebody was quicker"):
        work(destination, shard, 1, 2)
    work(destination, shard, 2, 2, 2)

    assert shard.checkpoints == ["after 2", "after 4"]
    assert keys_in(destination) == [1, 2, 3, 4]


def test_exit_in_user_code_is_a_failure_of_its_batch_and_ends_no_thread() -> None:
    destination, shard = Faulty(), StoredShard("s1", puts(2))

    def leave(commits: Sequence[Commit]) -> None:
        raise SystemExit(3)

    destination.before = leave
    with make(destination, max_wait_millis=int(PATIENCE_SECONDS * 1_000)) as factory:
        run = Run(factory, shard)
        run.read(2)
        with pytest.raises(StreamClientException, match=r"SystemExit: 3"):
            run.stop()
        again = Run(factory, shard)
        again.read(2)
        again.stop()

    assert keys_in(destination) == [1, 2]


def test_only_shards_of_a_batch_can_be_refused() -> None:
    """Of another name nobody knows what was not stored, and all of the batch would be checkpointed."""
    one = ShardRange("s1", "stream", "lease", "TRIM_HORIZON", "after 1", 1, None, None)
    with pytest.raises(ConfigurationError, match="shard 's2' cannot be refused, because the batch has only s1"):
        BatchContext((one,), (), (), refuse=lambda shard, error: None).refuse("s2", StreamClientException("no"))


def test_checkpoint_that_was_moved_is_told_before_anything_is_read() -> None:
    destination, shard = MemoryDestination(), StoredShard("s1", puts(6))
    work(destination, shard, 1, 4)
    shard.checkpoint = "after 2"
    with pytest.raises(StreamClientException, match=r"read on from after 2, .* number 1 of epoch 1, ends at after 4:"):
        work(destination, shard, 1, 4)


def test_destination_that_has_lost_all_of_a_shard_is_told_unless_it_shall_start_anew() -> None:
    """As after a power loss, or with an empty directory where a disk was to be mounted."""
    shard = StoredShard("s1", puts(6))
    work(MemoryDestination(), shard, 1, 4)
    empty = MemoryDestination()
    with pytest.raises(StreamClientException, match="after 4 processed records, but the destination has no commit"):
        work(empty, shard, 2, 2)
    assert (keys_in(empty), shard.checkpoint) == ([], "after 4")
    with SparkRecordProcessorFactory(empty, starts_anew=True) as factory:
        run = Run(factory, shard, 3)
        run.read(2)
        run.stop()
    work(empty, StoredShard("child", puts(1)), 1, 1)

    assert shard.checkpoint == "after 6"
    assert keys_in(empty) == [1, 5, 6]


def test_no_table_is_made_for_new_shards_where_one_is_missing(tmp_path: Path) -> None:
    """It would be in the way of the one that comes back."""
    place, away = tmp_path / "orders", tmp_path / "away"
    old, fresh = StoredShard("old", puts(6)), StoredShard("fresh", puts(2))
    work(DeltaDestination(str(place)), old, 1, 4)
    place.rename(away)
    with make(DeltaDestination(str(place))) as factory:
        with pytest.raises(StreamClientException, match="records of other shards were processed, but the destination"):
            Run(factory, fresh, fleet_has_processed=True)
        assert not place.exists()
        away.rename(place)
        run = Run(factory, fresh, fleet_has_processed=True)
        run.read(2)
        run.stop()

    assert keys_in(DeltaDestination(str(place))) == [1, 1, 2, 2, 3, 4]


def test_new_shards_begin_in_a_place_whose_columns_nobody_knows_if_it_has_commits() -> None:
    class AnyColumns(MemoryDestination):
        def columns(self) -> None:
            return None

    destination = AnyColumns()
    work(destination, StoredShard("old", puts(1)), 1, 1)
    with make(destination) as factory:
        run = Run(factory, StoredShard("fresh", puts(1)), fleet_has_processed=True)
        run.read(1)
        run.stop()

    assert keys_in(destination) == [1, 1]


def test_shard_of_which_nothing_was_processed_needs_no_commit() -> None:
    """Reading begins where somebody has set it, at an iterator: no record before it was ever read."""
    destination, shard = MemoryDestination(), StoredShard("s1", puts(3))
    shard.checkpoint = "after 1"
    with make(destination) as factory:
        run = Run(factory, shard, progress=Progress(0, 0, 0))
        run.read(2)
        run.stop()

    assert keys_in(destination) == [2, 3]


@pytest.mark.parametrize("policy", list(TrimmedDataPolicy), ids=lambda policy: policy.value)
def test_destination_goes_on_behind_an_accepted_loss_and_says_so(policy: TrimmedDataPolicy) -> None:
    """Accepted by somebody; or by the policy, and then the first batch behind the loss fails and comes once more."""
    destination = Faulty()
    config = ClientConfig(
        trimmed_data_policy=policy,
        backoff=Backoff(restart_backoff_min_millis=50),
        failure_policy=FailurePolicy(then=OnFailure.RESTART),
    )
    with LocalTablestore() as local:
        client = local.client()
        TablestoreStreamApi(client).create_table(
            TableMeta("orders", [("pk", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )
        stream = StreamConfig(client=client, data_table_name="orders", status_table_name="orders_status")

        def write(first: int, last: int) -> None:
            for number in range(first, last + 1):
                client.put_row("orders", Row([("pk", number)], []), Condition(RowExistenceExpectation.IGNORE))

        def read(accepts: bool, wanted: list[int]) -> None:
            with make(destination, max_age_millis=50) as factory, Worker("worker-1", config, stream, factory) as worker:
                if accepts:
                    until(lambda: any(status.lost for status in worker.shard_statuses().values()))
                    for shard in worker.shard_statuses():
                        worker.accept_loss(shard)
                until(lambda: keys_in(destination) == wanted)

        write(1, 4)
        read(False, [1, 2, 3, 4])
        write(5, 10)
        local.trim("orders", keep_last=2)
        destination.before = lose_the_answer
        read(policy is TrimmedDataPolicy.STOP_SHARD, [1, 2, 3, 4, 9, 10])

    proof = verify(destination, with_rows=True)
    assert proof.is_whole, str(proof)
    (lost,) = proof.losses
    assert f"records after {lost.start} of shard {lost.shard} lost and given up: each record once" in str(proof)


def test_what_was_prepared_for_something_else_is_left_alone_and_told(caplog: pytest.LogCaptureFixture) -> None:
    destination, shard = MemoryDestination(), StoredShard("s1", puts(4))
    work(destination, shard, 1, 2)
    shard.pending = PendingCheckpoint(ITERATOR, b"no commit", 2, 0)
    work(destination, shard, 2, 2)

    assert keys_in(destination) == [1, 2, 3, 4]
    assert "the state that was prepared at iterator ...stuvwxyz is not a commit, and is ignored" in caplog.text


def test_columns_that_another_writer_brought_first_are_taken_over() -> None:
    """Its rows were made for other columns, and would be refused."""
    destination, shard = Faulty(), StoredShard("s1", [put(1, 1, v=1)])
    other = StoredShard("s2", [put(1, 2, v="text")])
    destination.before = lambda commits: work(MemoryDestination(destination.place), other, 1, 1)
    work(destination, shard, 1, 1)

    found = {one.key["pk"]: one.columns[0].value for table in destination.rows() for one in records_of(table)}
    assert found == {1: 1, 2: "text"}


def test_end_of_a_shard_without_changes_makes_a_table_with_the_key_first_and_in_order() -> None:
    """The order of the key is that of the table's columns, in the records that are made of rows."""
    table = TableDefinition("t", (("z", ColumnType.STRING), ("pk", ColumnType.INTEGER)), {"a": ColumnType.DOUBLE})
    destination, shard = MemoryDestination(), StoredShard("s1")
    with SparkRecordProcessorFactory(destination, table=table) as factory:
        Run(factory, shard).stop(ShutdownReason.TERMINATE)

    columns = destination.columns()
    assert columns is not None
    assert columns.names == ["z", "pk", "a", *ADDED]


@pytest.mark.parametrize("given", [5, None, object()], ids=["number", "none", "object"])
def test_what_is_no_destination_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="destination must be a Destination, the path of a Delta table"):
        SparkRecordProcessorFactory(given)


def test_transform_needs_a_destination() -> None:
    with pytest.raises(ConfigurationError, match="a transform needs a destination"):
        SparkRecordProcessorFactory(lambda frame, context: None, lambda frame, context: frame)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["nothing", "prepare", "before", "after", "checkpoint"]),
        st.lists(st.integers(1, 5), max_size=4),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_history_of_owners_stores_each_record_once(steps: list[tuple[str, list[int], bool]]) -> None:
    """Owners that fail at each step of a commit, before or after it took effect, and read in pieces of any size."""
    place, shard = MemoryPlace(), StoredShard("s1", puts(20))
    for epoch, (fault, reads, is_effective) in enumerate(steps, 1):
        destination = Faulty(place)
        if fault in {"before", "after"}:
            setattr(destination, fault, lose_the_answer)
        fail_at(shard, fault, is_effective)
        with suppress(DependencyException):
            work(destination, shard, epoch, *reads)
    fail_at(shard, "nothing", False)
    for epoch in (100, 101):  # the first one may end with a part of what was prepared
        work(MemoryDestination(place), shard, epoch, 20, 20)

    assert keys_in(MemoryDestination(place)) == list(range(1, 21))
    proof = verify(MemoryDestination(place), with_rows=True, checkpoints={"s1": shard.checkpoint})
    assert proof.is_whole, str(proof)


def fail_at(shard: StoredShard, fault: str, is_effective: bool) -> None:
    """Let a checkpoint fail once, stored or not."""

    def fail_checkpoint(value: str) -> None:
        if is_effective:
            shard.checkpoint, shard.pending = value, None
        crash(value)

    shard.before_prepare = crash if fault == "prepare" else lambda value: None
    shard.before_checkpoint = fail_checkpoint if fault == "checkpoint" else lambda value: None
