"""The contract of ``Destination``: run ``check_destination`` on a destination of your own.

Each scenario checks one rule, and exactly-once delivery depends on every rule. A destination that breaks a rule loses
or repeats rows after a crash, a freeze or a lost answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import count
from threading import Barrier
from typing import TYPE_CHECKING, Any

from attrs import evolve

from streamclient.destinations.commit import Commit, Destination, FencedCommit
from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.rows.change_rows import change_rows, records_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import (
    ConfigurationError,
    FencedException,
    StreamClientError,
    StreamClientException,
    UnfitValueError,
)
from streamclient.model import CheckpointPosition
from streamclient.records import ColumnOperation, ColumnValue, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.testing.contracts.contract import RACE_SECONDS, expect, refused, scenario_named, side_by_side

if TYPE_CHECKING:
    from pyarrow import Table

MakeDestination = Callable[[str, str], Destination]
"""A function that opens a handle for a table name and an application name. The first handle of a name opens an empty
table, and later handles open the same table. Names consist of letters and digits. The checks close the handles."""

Open = Callable[..., Destination]
Scenario = Callable[[Open], None]

ROUNDS = 10
"""The number of commits that each of two writers tries at the same time."""

MANY_COLUMNS = 1_000
MANY_SHARDS = 20


def check_destination(make_destination: MakeDestination) -> None:
    """Run every scenario of ``Destination``, each on a table of its own.

    Raises:
        AssertionError: a rule is broken; the message names the scenario, the expected result and the actual one.
    """
    for name in DESTINATION_SCENARIOS:
        check_destination_scenario(name, make_destination)


def check_destination_scenario(name: str, make_destination: MakeDestination) -> None:
    """Run the scenario ``name`` of ``DESTINATION_SCENARIOS``, on a table of its own."""
    place = f"p{uuid.uuid4().hex}"
    handles: list[Destination] = []

    def open_handle(application: str = "default") -> Destination:
        handles.append(make_destination(place, application))
        return handles[-1]

    try:
        with scenario_named(name):
            DESTINATION_SCENARIOS[name](open_handle)
    except StreamClientError as error:
        raise AssertionError(f"{name}: a call that must succeed raised {error!r}") from error
    finally:
        for handle in handles:
            handle.close()


def change(number: int, **columns: ColumnValue) -> StreamRecord:
    """Return a put of the row with the id ``number``. Changes with greater numbers are later in the shard."""
    cells = tuple(RecordColumn(name, ColumnOperation.PUT, value, 1_000 + number) for name, value in columns.items())
    return StreamRecord(RecordType.PUT, (("id", number),), cells, SequenceInfo(1, 1_000_000 + number, 0))


def batch(
    last: Commit | None, records: Sequence[StreamRecord], *, shard: str = "shard-1", epoch: int = 1, **changes: Any
) -> Commit:
    """Return the commit of ``records`` that follows ``last``, or the shard's first commit if ``last`` is ``None``.

    ``changes`` replace fields of the commit.
    """
    start = CheckpointPosition.TRIM_HORIZON if last is None else last.end
    values: dict[str, Any] = {
        "application": "default",
        "shard": shard,
        "epoch": epoch,
        "start": start,
        "end": f"iterator/+={records[-1].sequence_info}" if records else f"{start}+",
        "count": len(records),
        "content": records_digest(records),
    }
    return Commit.after(last, **{**values, **changes})


def rows_for(destination: Destination, records: Sequence[StreamRecord], commit: Commit) -> Table:
    """Return ``records`` as the rows of ``commit``, with column types that fit the columns of ``destination``."""
    return change_rows(records, shard=commit.shard, number=commit.number, columns=destination.columns())


def store(destination: Destination, last: Commit | None, records: Sequence[StreamRecord], **changes: Any) -> Commit:
    """Store ``records`` in the commit that follows ``last``; return this commit.

    ``changes`` are further arguments of ``batch``.
    """
    commit = batch(last, records, **changes)
    destination.commit(rows_for(destination, records, commit), [commit])
    return commit


def stored_numbers(destination: Destination) -> list[int]:
    """Return the ids of all stored rows in ascending order, with an id twice if its row was stored twice."""
    return sorted(record.key["id"] for table in destination.rows() for record in records_of(table))  # type: ignore[misc]


# --- scenarios --------------------------------------------------------------------------------------------------------


def _a_commit_is_found_by_every_later_handle(open_handle: Open) -> None:
    first = open_handle()
    first.probe()
    expect("columns of an empty table", first.columns(), None)
    expect("last commits of an empty table", dict(first.last_commits(["shard-1"])), {"shard-1": None})
    one = store(first, None, [change(1, amount=1.5), change(2, amount=2.5)])
    two = store(first, one, [change(3)])
    other = store(first, None, [change(4)], shard="shard-2")
    wanted = {"shard-1": two, "shard-2": other, "shard-3": None}
    expect("last commits", dict(first.last_commits(list(wanted))), wanted)
    expect("last commits after reopening", dict(open_handle().last_commits(list(wanted))), wanted)
    expect("rows after reopening", stored_numbers(open_handle()), [1, 2, 3, 4])
    expect("the log", [entry.commits for entry in open_handle().log()], [(one,), (two,), (other,)])


def _a_repeat_changes_nothing(open_handle: Open) -> None:
    """Repeat a commit, as after a lost answer, by the same handle and by other handles of the same epoch."""
    first, second = open_handle(), open_handle()
    records = [change(1), change(2)]
    commit = batch(None, records)
    for handle in (first, first, second, open_handle()):
        handle.commit(rows_for(handle, records, commit), [commit])
    expect("rows after three repeats", stored_numbers(open_handle()), [1, 2])
    expect("entries", [entry.commits for entry in open_handle().log()], [(commit,)])


def _a_successor_finishes_the_same_batch_once(open_handle: Open) -> None:
    """Check that the rows of a batch are stored once if the next owner commits the same batch with its greater epoch.

    This happens if the first owner dies after its commit and before its checkpoint.
    """
    records = [change(1), change(2)]
    stored = store(open_handle(), None, records, epoch=3)
    successor = open_handle()
    again = batch(None, records, epoch=4)
    successor.commit(rows_for(successor, records, again), [again])
    expect("rows", stored_numbers(successor), [1, 2])
    expect("last commit", successor.last_commits(["shard-1"])["shard-1"], stored)
    store(successor, stored, [change(3)], epoch=4)
    expect("rows after the next batch", stored_numbers(open_handle()), [1, 2, 3])


def _an_older_owner_is_refused(open_handle: Open) -> None:
    """Check that the older owner's commit is refused after its successor's commit.

    One handle was opened before the successor's commit, the other handle is opened after it.
    """
    frozen = open_handle()
    one = store(frozen, None, [change(1)], epoch=1)
    late = batch(one, [change(2)], epoch=1)
    late_rows = rows_for(frozen, [change(2)], late)
    two = store(open_handle(), one, [change(20)], epoch=2)
    for handle in (frozen, open_handle()):
        error = refused("commit of epoch 1 after epoch 2", FencedCommit, lambda h=handle: h.commit(late_rows, [late]))  # type: ignore[misc]
        expect("shards of the refusal", getattr(error, "shards", None), frozenset({"shard-1"}))
        expect("the refusal is a FencedException", isinstance(error, FencedException), True)
    expect("rows", stored_numbers(open_handle()), [1, 20])
    expect("last commit", open_handle().last_commits(["shard-1"])["shard-1"], two)


def _an_owner_that_wakes_after_its_successor_is_refused(open_handle: Open) -> None:
    """Check that the older owner's batch is refused after the successor stored the same batch and the next batch."""
    frozen = open_handle()
    prepared = batch(None, [change(1)], epoch=1)
    rows = rows_for(frozen, [change(1)], prepared)
    one = store(open_handle(), None, [change(1)], epoch=2)
    store(open_handle(), one, [change(2)], epoch=2)
    for handle in (frozen, open_handle()):
        refused("a batch that a successor has followed", FencedCommit, lambda h=handle: h.commit(rows, [prepared]))  # type: ignore[misc]
    expect("rows", stored_numbers(open_handle()), [1, 2])


def _only_what_follows_is_taken(open_handle: Open) -> None:
    """Check that a commit is refused if it does not start at the end of the shard's last commit.

    The rule holds for commits of the same epoch, too.
    """
    destination = open_handle()
    one = store(destination, None, [change(1)])
    two = store(destination, one, [change(2)])
    for rule, late in (
        ("commit after a commit that is no longer the last", batch(one, [change(3)])),
        ("first commit of a shard that already has commits", batch(None, [change(3)])),
        ("commit after a commit that was never stored", batch(batch(two, [change(3)]), [change(4)])),
    ):
        rows = rows_for(destination, [change(3)], late)
        refused(rule, StreamClientException, lambda rows=rows, late=late: destination.commit(rows, [late]))  # type: ignore[misc]
    expect("rows", stored_numbers(open_handle()), [1, 2])


def _several_shards_are_one_step(open_handle: Open) -> None:
    destination = open_handle()
    shards = [f"shard-{number}" for number in range(MANY_SHARDS)]
    commits = [batch(None, [change(number)], shard=shard) for number, shard in enumerate(shards)]
    destination.commit(_together(destination, [([change(n)], one) for n, one in enumerate(commits)]), commits)
    expect("last commits", dict(open_handle().last_commits(shards)), dict(zip(shards, commits, strict=True)))
    expect("entries", len(list(destination.log())), 1)
    expect("rows", stored_numbers(open_handle()), list(range(MANY_SHARDS)))


def _one_stale_shard_refuses_the_whole_step(open_handle: Open) -> None:
    destination = open_handle()
    lasts = [store(destination, None, [change(n)], shard=f"shard-{n}", epoch=1) for n in range(3)]
    taken = store(open_handle(), lasts[1], [change(10)], shard="shard-1", epoch=2)
    commits = [batch(last, [change(20 + n)], shard=last.shard, epoch=1) for n, last in enumerate(lasts)]
    rows = _together(destination, [([change(20 + n)], one) for n, one in enumerate(commits)])
    error = refused("a step with one stale shard", FencedCommit, lambda: destination.commit(rows, commits))
    expect("shards of the refusal", getattr(error, "shards", None), frozenset({"shard-1"}))
    expect("rows after the refusal", stored_numbers(open_handle()), [0, 1, 2, 10])
    without = [commits[0], commits[2]]
    destination.commit(_together(destination, [([change(20)], without[0]), ([change(22)], without[1])]), without)
    expect("rows of the other shards", stored_numbers(open_handle()), [0, 1, 2, 10, 20, 22])
    expect("last commit of the stale shard", open_handle().last_commits(["shard-1"])["shard-1"], taken)


def _a_position_moves_without_rows(open_handle: Open) -> None:
    destination = open_handle()
    empty = store(destination, None, [])
    one = store(destination, empty, [change(1)])
    ended = store(destination, one, [], end=CheckpointPosition.SHARD_END)
    expect("last commit", open_handle().last_commits(["shard-1"])["shard-1"], ended)
    expect("rows", stored_numbers(open_handle()), [1])
    expect("entries", [entry.commits for entry in open_handle().log()], [(empty,), (one,), (ended,)])


def _of_two_writers_one_wins_each_time(open_handle: Open) -> None:
    """Let two writers of different epochs commit to one shard at the same time, each with its own handle."""
    start = Barrier(2)
    acknowledged: dict[int, list[int]] = {1: [], 2: []}

    def write(epoch: int) -> None:
        destination = open_handle()
        start.wait(RACE_SECONDS)
        for number in count():
            # The owner of epoch 1 stops after ``ROUNDS`` attempts, so that it does not interfere for ever. The owner of
            # epoch 2 also makes ``ROUNDS`` attempts, and goes on if it has not stored a commit yet.
            if number >= ROUNDS and (epoch == 1 or acknowledged[2]):
                return
            record = change(1_000 * epoch + number)
            last = destination.last_commits(["shard-1"])["shard-1"]
            commit = batch(last, [record], epoch=epoch)
            try:
                destination.commit(rows_for(destination, [record], commit), [commit])
            except (StreamClientException, FencedException):
                continue
            acknowledged[epoch].append(1_000 * epoch + number)

    side_by_side((1, 2), write)
    expect("exactly the acknowledged rows", stored_numbers(open_handle()), sorted(acknowledged[1] + acknowledged[2]))
    epochs = [commit.epoch for entry in open_handle().log() for commit in entry.commits]
    expect("epochs of the log", epochs, sorted(epochs))
    expect("the later owner stored", bool(acknowledged[2]), True)


def _writers_of_different_shards_do_not_refuse_each_other(open_handle: Open) -> None:
    start = Barrier(2)
    store(open_handle(), None, [change(0)], shard="first")

    def write(base: int) -> None:
        destination, last = open_handle(), None
        start.wait(RACE_SECONDS)
        for number in range(ROUNDS):
            last = store(destination, last, [change(base + number)], shard=f"shard-{base}")

    side_by_side((100, 200), write)
    wanted = [0, *range(100, 100 + ROUNDS), *range(200, 200 + ROUNDS)]
    expect("rows", stored_numbers(open_handle()), wanted)


def _a_value_of_another_type_is_kept_beside_its_column(open_handle: Open) -> None:
    destination = open_handle()
    one = store(destination, None, [change(1, v=1)])
    values: list[ColumnValue] = ["1", 1.0, 2.5, True, b"1", 2**53 + 1, float("-inf"), ""]
    records = [change(2 + place, v=value) for place, value in enumerate(values)]
    store(destination, one, records)
    found = _stored_records(open_handle)
    shown = [(type(record.columns[0].value), record.columns[0].value) for record in found]
    expect("values, with their types", shown, [(type(value), value) for value in [1, *values]])


def _a_column_of_another_type_is_refused(open_handle: Open) -> None:
    """Check that the double 2.5 is refused if another writer has meanwhile added its column as a column of integers.

    The destination must not store 2 instead.
    """
    late, quick = open_handle(), open_handle()
    one = store(late, None, [change(1)])
    commit = batch(one, [change(2, v=2.5)])
    rows = rows_for(late, [change(2, v=2.5)], commit)
    store(quick, None, [change(3, v=7)], shard="shard-2")
    refused("a double for a column of integers", UnfitValueError, lambda: late.commit(rows, [commit]))
    expect("rows after the refusal", stored_numbers(open_handle()), [1, 3])
    late.commit(rows_for(late, [change(2, v=2.5)], commit), [commit])
    expect("rows made anew", stored_numbers(open_handle()), [1, 2, 3])
    digests = {records_digest(records_of(table)) for table in open_handle().rows(["shard-2"])}
    expect("rows of one shard", digests, {records_digest([change(3, v=7)])})


def _columns_come_and_stay(open_handle: Open) -> None:
    """Add columns whose names differ only in case or look like internal names, and store rows without them."""
    destination, last, records = open_handle(), None, []
    for number, name in enumerate(["a", "A", "_operation", "a b", "公司", "x.y", 'q"`', "_Day", "a"]):
        records.append(change(number, **{name: number}))
        last = store(destination, last, [records[-1]])
    expect("digest of all records", records_digest(_stored_records(open_handle)), records_digest(records))


def _wide_rows_are_stored(open_handle: Open) -> None:
    destination = open_handle()
    wide = [change(n, **{f"column_{c}": n * c for c in range(MANY_COLUMNS)}) for n in range(3)]
    one = store(destination, None, wide)
    store(destination, one, [change(10, column_999=5), change(11, one_more="text")])
    wanted = [*wide, change(10, column_999=5), change(11, one_more="text")]
    expect("digest", records_digest(_stored_records(open_handle)), records_digest(wanted))


def _everything_in_a_record_survives(open_handle: Open) -> None:
    cells = (
        RecordColumn("i", ColumnOperation.PUT, -(2**63), 1),
        RecordColumn("d", ColumnOperation.PUT, -0.0, 2),
        RecordColumn("n", ColumnOperation.PUT, float("nan"), 2),
        RecordColumn("b", ColumnOperation.PUT, False, 3),
        RecordColumn("s", ColumnOperation.PUT, "a\0ü😀\n", 4),
        RecordColumn("y", ColumnOperation.PUT, bytes(range(256)), 5),
        RecordColumn("s", ColumnOperation.PUT, "older", 3),
        RecordColumn("gone", ColumnOperation.DELETE_ALL_VERSION),
        RecordColumn("one", ColumnOperation.DELETE_ONE_VERSION, None, 9),
        RecordColumn("one", ColumnOperation.DELETE_ONE_VERSION, None, 8),
    )
    key = (("id", 1), ("text", ""), ("bytes", b"\x00\xff"))
    original = (RecordColumn("i", ColumnOperation.PUT, 7, 1),)
    records = [
        StreamRecord(RecordType.UPDATE, key, cells, SequenceInfo(1, 5, 0), original),
        StreamRecord(RecordType.PUT, key, (), SequenceInfo(1, 5, 1), ()),
        StreamRecord(RecordType.DELETE, key, (), SequenceInfo(2, 4, 0)),
    ]
    store(open_handle(), None, records)
    found = _stored_records(open_handle)
    expect("digest", records_digest(found), records_digest(records))
    expect("keys", [record.primary_key for record in found], [key] * 3)
    expect("operations", [record.record_type for record in found], [record.record_type for record in records])


def _applications_do_not_see_each_other(open_handle: Open) -> None:
    ours, theirs = open_handle(), open_handle("other")
    one = store(ours, None, [change(1)], epoch=9)
    other = store(theirs, None, [change(2)], application="other", epoch=1)
    expect("their last commit", theirs.last_commits(["shard-1"])["shard-1"], other)
    expect("our last commit", open_handle().last_commits(["shard-1"])["shard-1"], one)
    expect("rows", stored_numbers(open_handle()), [1, 2])


def _wrong_calls_have_no_effect(open_handle: Open) -> None:
    destination = open_handle()
    good = batch(None, [change(1)])
    rows = rows_for(destination, [change(1)], good)
    for rule, commits in (
        ("no commit", []),
        ("one shard twice", [good, batch(None, [change(2)])]),
        ("a digest of something else", [evolve(good, count=2)]),
        ("another application", [batch(None, [change(1)], application="other")]),
    ):
        refused(rule, ConfigurationError, lambda commits=commits: destination.commit(rows, commits))  # type: ignore[misc]
    expect("rows", [table.num_rows for table in open_handle().rows()], [])


def _stored_records(open_handle: Open) -> list[StreamRecord]:
    found = [record for table in open_handle().rows() for record in records_of(table)]
    return sorted(found, key=lambda record: record.sequence_info)


def _together(destination: Destination, parts: Sequence[tuple[Sequence[StreamRecord], Commit]]) -> Table:
    tables = [rows_for(destination, records, commit) for records, commit in parts]
    together: Table = pyarrow().concat_tables(tables, promote_options="default")
    return together


DESTINATION_SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.strip("_").replace("_", " "): scenario
    for scenario in (
        _a_commit_is_found_by_every_later_handle,
        _a_repeat_changes_nothing,
        _a_successor_finishes_the_same_batch_once,
        _an_older_owner_is_refused,
        _an_owner_that_wakes_after_its_successor_is_refused,
        _only_what_follows_is_taken,
        _several_shards_are_one_step,
        _one_stale_shard_refuses_the_whole_step,
        _a_position_moves_without_rows,
        _of_two_writers_one_wins_each_time,
        _writers_of_different_shards_do_not_refuse_each_other,
        _a_value_of_another_type_is_kept_beside_its_column,
        _a_column_of_another_type_is_refused,
        _columns_come_and_stay,
        _wide_rows_are_stored,
        _everything_in_a_record_survives,
        _applications_do_not_see_each_other,
        _wrong_calls_have_no_effect,
    )
}
"""The scenarios by name, for test frameworks that report each scenario on its own."""
