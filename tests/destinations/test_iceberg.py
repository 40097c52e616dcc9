"""Iceberg keeps the contract; an older owner is refused though pyiceberg would let it in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from streamclient.destinations import Commit, FencedCommit
from streamclient.destinations.iceberg_destination import PROPERTIES, IcebergDestination
from streamclient.destinations.proof.verification import Flaw, verify
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
)
from streamclient.testing.contracts.destination_contract import (
    DESTINATION_SCENARIOS,
    batch,
    change,
    check_destination_scenario,
    rows_for,
    store,
    stored_numbers,
)
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

Open = Callable[..., IcebergDestination]


@pytest.fixture
def catalogs(tmp_path: Path) -> Iterator[Callable[[], SqlCatalog]]:
    """Makes catalogs over one database; each process would have its own."""
    made: list[SqlCatalog] = []

    def make() -> SqlCatalog:
        uri = f"sqlite:///{tmp_path}/catalog.db?timeout=60"
        made.append(SqlCatalog("tests", uri=uri, warehouse=f"file://{tmp_path}/warehouse"))
        return made[-1]

    make().create_namespace("lake")
    yield make
    for one in made:
        one.engine.dispose()


@pytest.mark.parametrize("scenario", DESTINATION_SCENARIOS)
def test_iceberg_keeps_the_contract(scenario: str, catalogs: Callable[[], SqlCatalog]) -> None:
    check_destination_scenario(
        scenario,
        lambda name, application: IcebergDestination(
            catalogs(), f"lake.{name}", application=application, answer_seconds=60.0
        ),
    )


TEXTS = pa.list_(pa.struct([("a", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TEXTS, None),
        (pa.map_(pa.string(), pa.struct([("a", pa.string())])), None),
        (pa.struct([("a", TEXTS)]), {"a": None}),
        (pa.struct([("a", pa.struct([("b", TEXTS)]))]), {"a": {"b": None}}),
    ],
    ids=str,
)
def test_a_list_that_would_become_an_empty_one_is_refused(
    kind: Any, value: Any, catalogs: Callable[[], SqlCatalog]
) -> None:
    """Null ones are written as empty ones, and nothing is said."""
    destination = IcebergDestination(catalogs(), "lake.orders")

    with pytest.raises(ConfigurationError, match=r"column 'v'.*has nulls"):
        destination.commit(pa.table({"v": pa.array([value], kind)}), [batch(None, [])])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("a", pa.string())]), None),
        (pa.struct([("a", pa.struct([("b", pa.string())]))]), {"a": None}),
        (TEXTS, [None]),
        (pa.map_(pa.string(), TEXTS), [("k", None)]),
    ],
    ids=str,
)
def test_what_stays_null_is_stored(kind: Any, value: Any, catalogs: Callable[[], SqlCatalog]) -> None:
    destination = IcebergDestination(catalogs(), "lake.orders")
    first = batch(None, [])
    destination.commit(pa.table({"v": pa.array([value], kind)}), [first])
    # A column that is new has the first rows read by another schema than they were written with.
    destination.commit(pa.table({"v": pa.array([value], kind), "new": [1]}), [batch(first, [])])

    assert [row["v"] for table in destination.rows() for row in table.to_pylist()] == [value, value]


KEPT = {
    pa.int8(): -128,
    pa.int16(): 32_767,
    pa.int32(): 2**31 - 1,
    pa.int64(): -(2**63),
    pa.float32(): 0.5,
    pa.float64(): 0.1,
    pa.bool_(): True,
    pa.string(): "公",
    pa.binary(): b"\xff",
    pa.date32(): date(2020, 2, 29),
    pa.decimal128(10, 2): Decimal("1.25"),
    pa.timestamp("us", tz="UTC"): datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=timezone.utc),
}
"""Types that destinations keep, each with a value."""

WITHIN: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "alone": lambda kind, value: (kind, value),
    "in a struct": lambda kind, value: (pa.struct([("a", kind), ("b", pa.string())]), {"a": value, "b": None}),
    "in a list": lambda kind, value: (pa.list_(kind), [value, None]),
    "in a map": lambda kind, value: (pa.map_(pa.string(), kind), [("k", value)]),
    "in a struct in a list": lambda kind, value: (pa.list_(pa.struct([("a", kind)])), [{"a": value}]),
    "in a list in a struct": lambda kind, value: (pa.struct([("a", pa.list_(kind))]), {"a": [value]}),
}


@pytest.mark.parametrize("within", WITHIN)
def test_each_type_that_tables_keep_is_taken_and_comes_back(within: str, catalogs: Callable[[], SqlCatalog]) -> None:
    """Iceberg has no integers of 8 and 16 bits, so they become those of 32."""
    kinds = {f"c{place}": WITHIN[within](kind, value) for place, (kind, value) in enumerate(KEPT.items())}
    rows = pa.table({name: pa.array([value], kind) for name, (kind, value) in kinds.items()})
    destination = IcebergDestination(catalogs(), "lake.orders")
    first = batch(None, [])
    destination.commit(rows, [first])
    destination.commit(rows, [batch(first, [])])

    assert [row for table in destination.rows() for row in table.to_pylist()] == rows.to_pylist() * 2


NESTED = StructType(NestedField(3, "a", LongType(), required=True))

REFUSED: dict[str, tuple[list[NestedField], pa.Table, str]] = {
    "a value is required": ([NestedField(1, "v", LongType(), required=True)], pa.table({"v": [1]}), "'v'.*optional"),
    "a column is required": (
        [NestedField(1, "v", LongType()), NestedField(2, "w", LongType(), required=True)],
        pa.table({"v": [1]}),
        "'w'.*do not have this column",
    ),
    "a value in a struct is required": (
        [NestedField(1, "s", NESTED)],
        pa.table({"s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))}),
        r"'s\.a'",
    ),
    "a value in a list is required": (
        [NestedField(1, "l", ListType(2, LongType(), element_required=True))],
        pa.table({"l": pa.array([[1]], pa.list_(pa.int64()))}),
        r"'l\.element'",
    ),
    "a value in a map is required": (
        [NestedField(1, "m", MapType(2, StringType(), 3, LongType(), value_required=True))],
        pa.table({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}),
        r"'m\.value'",
    ),
    "a time without a zone": (
        [NestedField(1, "v", TimestampType())],
        pa.table({"v": pa.array([1], pa.timestamp("us", tz="UTC"))}),
        "'v'.*nothing is cast",
    ),
    "bytes of one length": ([NestedField(1, "v", FixedType(4))], pa.table({"v": [b"1234"]}), "'v'.*nothing is cast"),
    # An earlier pyarrow has no such type, which is found out by trying twice.
    "a UUID": (
        [NestedField(1, "v", UUIDType())],
        pa.table({"v": [b"1" * 16]}),
        "'v'.*nothing is cast|does not take these rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_table_never_takes_is_refused_at_once_and_quietly(
    name: str, catalogs: Callable[[], SqlCatalog], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, rows, wanted = REFUSED[name]
    catalogs().create_table("lake.orders", Schema(*fields), properties=PROPERTIES)
    destination = IcebergDestination(catalogs(), "lake.orders", answer_seconds=600.0)
    pauses: list[float] = []
    sleep, here = time.sleep, threading.get_ident()

    def slept(seconds: float) -> None:
        if threading.get_ident() == here:  # the module is everybody's, threads of other tests too
            pauses.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr("streamclient.destinations.iceberg_destination.time.sleep", slept)

    with pytest.raises(StreamClientError, match=wanted):
        destination.commit(rows, [batch(None, [])])

    assert (len(pauses) < 2, capfd.readouterr()) == (True, ("", ""))
    assert destination.last_commits(["shard-1"]) == {"shard-1": None}


@pytest.mark.parametrize(
    "error", [ValueError("no"), TypeError("no"), NotImplementedError("no"), KeyError("no"), AttributeError("no")]
)
def test_what_pyiceberg_refuses_before_it_asks_the_catalog_is_tried_twice(
    error: Exception, catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = IcebergDestination(catalogs(), "lake.orders", answer_seconds=600.0)
    last = store(destination, None, [change(1)])
    tries: list[object] = []

    def refusing(*arguments: object, **named: object) -> None:
        tries.append(arguments)
        raise error

    monkeypatch.setattr("pyiceberg.table.Transaction.append", refusing)
    with pytest.raises(StreamClientException, match=r"lake\.orders does not take these rows: .*no"):
        store(destination, last, [change(2)])

    assert len(tries) == 2


TRANSFORMS: dict[str, tuple[Transform[Any, Any], Any, pa.Array]] = {
    "bucket of numbers": (BucketTransform(4), LongType(), pa.array([1, 2])),
    "bucket of texts": (BucketTransform(4), StringType(), pa.array(["a", "b"])),
    "truncate": (TruncateTransform(1), StringType(), pa.array(["aa", "bb"])),
    "truncate of numbers": (TruncateTransform(10), LongType(), pa.array([1, 20])),
    "hour": (HourTransform(), TimestamptzType(), pa.array([1, 2], pa.timestamp("us", tz="UTC"))),
    "day": (DayTransform(), TimestamptzType(), pa.array([1, 2], pa.timestamp("us", tz="UTC"))),
    "month": (MonthTransform(), TimestamptzType(), pa.array([1, 2], pa.timestamp("us", tz="UTC"))),
    "year": (YearTransform(), DateType(), pa.array([1, 2], pa.date32())),
    "identity": (IdentityTransform(), StringType(), pa.array(["a", "b"])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_table_is_partitioned_by_each_transform(name: str, catalogs: Callable[[], SqlCatalog]) -> None:
    transform, kind, values = TRANSFORMS[name]
    schema = Schema(NestedField(1, "v", kind))
    by = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    catalogs().create_table("lake.orders", schema, partition_spec=by, properties=PROPERTIES)
    destination = IcebergDestination(catalogs(), "lake.orders", answer_seconds=60.0)

    destination.commit(pa.table({"v": values}), [batch(None, [])])

    found = [row["v"] for table in destination.rows() for row in table.to_pylist()]
    assert sorted(found) == sorted(values.to_pylist())


def test_a_change_that_was_refused_is_not_put_on_top_of_the_other(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer looks, freezes, and commits after its successor: what pyiceberg retries by itself is let in."""
    frozen, successor = (IcebergDestination(catalogs(), "lake.orders") for _ in range(2))
    one = store(frozen, None, [change(1)], epoch=1)
    late = batch(one, [change(2)], epoch=1)
    rows = rows_for(frozen, [change(2)], late)
    append, is_first = IcebergDestination._append, [True]

    def freezing(self: IcebergDestination, table: Table, given: object, commits: list[Commit]) -> None:
        if self is frozen and is_first.pop():
            is_first.append(False)
            store(successor, one, [change(20)], epoch=2)
        append(self, table, given, commits)  # type: ignore[arg-type]

    monkeypatch.setattr(IcebergDestination, "_append", freezing)
    with pytest.raises(FencedCommit):
        frozen.commit(rows, [late])

    assert stored_numbers(successor) == [1, 20]


@pytest.mark.parametrize("can_be_asked", [True, False], ids=["asked", "not to be asked"])
def test_a_conflict_of_a_commit_with_itself_deletes_none_of_its_files(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch, can_be_asked: bool
) -> None:
    """Its answer was lost, the transport sent it again, and the catalog says that somebody was quicker."""
    catalog = catalogs()
    destination = IcebergDestination(catalog, "lake.orders")
    one = store(destination, None, [change(1)])
    commit_table, load_table, is_silent = catalog.commit_table, catalog.load_table, []

    def commit_twice(*given: Any) -> Any:
        commit_table(*given)
        try:
            return commit_table(*given)
        finally:
            is_silent.append(not can_be_asked)

    def load(*given: Any) -> Any:
        if is_silent and is_silent.pop():
            raise OSError("no route")
        return load_table(*given)

    monkeypatch.setattr(catalog, "commit_table", commit_twice)
    monkeypatch.setattr(catalog, "load_table", load)
    two = store(destination, one, [change(2)])

    other = IcebergDestination(catalogs(), "lake.orders")
    assert other.last_commits(["shard-1"]) == {"shard-1": two}
    assert stored_numbers(other) == [1, 2]
    assert verify(other, with_rows=True).is_whole


@pytest.mark.parametrize("error", [CommitStateUnknownException("lost"), CommitFailedException("lost"), OSError("lost")])
def test_an_answer_that_is_lost_after_the_commit_is_looked_for(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    destination = IcebergDestination(catalogs(), "lake.orders")
    append, calls = IcebergDestination._append, []

    def losing(self: IcebergDestination, table: Table, rows: object, commits: list[Commit]) -> None:
        calls.append(commits)
        append(self, table, rows, commits)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(IcebergDestination, "_append", losing)
    commit = store(destination, None, [change(1)])

    assert len(calls) == 1
    assert stored_numbers(destination) == [1]
    assert destination.last_commits(["shard-1"]) == {"shard-1": commit}


def test_a_commit_that_a_successor_has_followed_is_not_called_refused(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination, successor = (IcebergDestination(catalogs(), "lake.orders") for _ in range(2))
    append, is_first = IcebergDestination._append, [True]

    def losing(self: IcebergDestination, table: Table, rows: object, commits: list[Commit]) -> None:
        append(self, table, rows, commits)  # type: ignore[arg-type]
        if is_first.pop():
            is_first.append(False)
            store(successor, commits[0], [change(2)], epoch=2)
            raise OSError("the answer is lost")

    monkeypatch.setattr(IcebergDestination, "_append", losing)
    store(destination, None, [change(1)], epoch=1)

    assert stored_numbers(destination) == [1, 2]


def test_a_catalog_that_never_answers_leaves_it_unknown(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = IcebergDestination(catalogs(), "lake.orders", answer_seconds=0.3)
    destination._catalog._answer_seconds = PATIENCE_SECONDS

    def failing(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(IcebergDestination, "_append", failing)
    with pytest.raises(DependencyException, match="no route") as raised:
        store(destination, None, [change(1)])

    assert raised.value.kind is ErrorKind.AMBIGUOUS


def test_a_table_that_retries_by_itself_is_refused(catalogs: Callable[[], SqlCatalog]) -> None:
    """Also by a handle that has it open."""
    destination = IcebergDestination(catalogs(), "lake.orders")
    last = store(destination, None, [change(1)])
    rows = rows_for(destination, [change(2)], second := batch(last, [change(2)]))
    with catalogs().load_table("lake.orders").transaction() as step:
        step.set_properties({"commit.retry.num-retries": "4"})
    for work in (IcebergDestination(catalogs(), "lake.orders").probe, lambda: destination.commit(rows, [second])):
        with pytest.raises(ConfigurationError, match="num-retries=0"):
            work()
    with catalogs().load_table("lake.orders").transaction() as step:
        step.set_properties(PROPERTIES)
    destination.commit(rows, [second])

    assert stored_numbers(destination) == [1, 2]


def test_a_table_that_retries_by_itself_is_refused_though_it_is_made_meanwhile(
    catalogs: Callable[[], SqlCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination, create = IcebergDestination(catalogs(), "lake.orders"), IcebergDestination._create

    def others_first(self: IcebergDestination, rows: pa.Table) -> Table:
        catalogs().create_table("lake.orders", Schema(NestedField(1, "v", LongType())))
        return create(self, rows)

    monkeypatch.setattr(IcebergDestination, "_create", others_first)
    with pytest.raises(ConfigurationError, match="num-retries=0"):
        destination.commit(pa.table({"v": [1]}), [batch(None, [])])


def test_a_namespace_that_is_not_there_is_named(catalogs: Callable[[], SqlCatalog]) -> None:
    with pytest.raises(ConfigurationError, match=r"namespace of nowhere\.orders"):
        store(IcebergDestination(catalogs(), "nowhere.orders"), None, [change(1)])


@pytest.mark.parametrize("identifier", ["orders", "lake.", ".orders", "lake..orders", ""])
def test_a_name_without_a_namespace_is_refused(identifier: str, catalogs: Callable[[], SqlCatalog]) -> None:
    with pytest.raises(ConfigurationError, match=r"such as 'lake\.orders'"):
        IcebergDestination(catalogs(), identifier)


def test_a_table_that_was_there_and_is_gone_is_not_made_anew(catalogs: Callable[[], SqlCatalog]) -> None:
    destination, _ = stored(catalogs, 2)
    catalogs().drop_table("lake.orders")
    with pytest.raises(DependencyException, match="is gone, with all its commits"):
        store(destination, None, [change(5)], shard="shard-2")

    assert not catalogs().table_exists("lake.orders")
    store(IcebergDestination(catalogs(), "lake.orders"), None, [change(6)])


@pytest.mark.parametrize("format_version", ["1", "2"])
def test_snapshots_that_expired_are_no_hole_and_forget_no_commit(
    format_version: str, catalogs: Callable[[], SqlCatalog]
) -> None:
    """Snapshots of Iceberg's first format have no numbers."""
    destination = IcebergDestination(catalogs(), "lake.orders")
    schema = rows_for(destination, [change(500)], batch(None, [change(500)])).schema
    catalogs().create_table("lake.orders", schema, properties={**PROPERTIES, "format-version": format_version})
    idle = store(destination, None, [change(500)], shard="idle")
    last: Commit | None = None
    for number in range(5):
        last = store(destination, last, [change(number)])
    whole = verify(destination, with_rows=True)
    table = catalogs().load_table("lake.orders")
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:4]]).commit()
    proof = verify(destination, with_rows=True)

    assert (whole.findings, whole.commits) == ([], 6)
    assert (proof.findings, proof.commits) == ([], 2)
    assert destination.last_commits(["shard-1", "idle"]) == {"shard-1": last, "idle": idle}


@pytest.mark.parametrize("tagged", [0, 2])
def test_a_snapshot_that_a_tag_keeps_is_no_hole(tagged: int, catalogs: Callable[[], SqlCatalog]) -> None:
    """Those between it and the present one have expired."""
    destination, table = stored(catalogs, 6)
    with table.manage_snapshots() as manage:
        manage.create_tag(table.snapshots()[tagged].snapshot_id, "month_end")
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for place, one in enumerate(table.snapshots()[:4]) if place != tagged]
    ).commit()
    proof = verify(destination, with_rows=True)

    assert (proof.findings, proof.commits, proof.rows) == ([], 2, 6)


def test_a_table_of_the_first_format_goes_on_in_the_second(catalogs: Callable[[], SqlCatalog]) -> None:
    """Some of its snapshots have no numbers then, and their first ones have expired."""
    destination = IcebergDestination(catalogs(), "lake.orders")
    schema = rows_for(destination, [change(0)], batch(None, [change(0)])).schema
    catalogs().create_table("lake.orders", schema, properties={**PROPERTIES, "format-version": "1"})
    last: Commit | None = None
    for number in range(3):
        last = store(destination, last, [change(number)])
    table = catalogs().load_table("lake.orders")
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    with catalogs().load_table("lake.orders").transaction() as step:
        step.upgrade_table_version(2)
    for number in range(3, 5):
        last = store(destination, last, [change(number)])
    proof = verify(destination, with_rows=True)

    assert (proof.findings, proof.commits, proof.rows) == ([], 4, 5)


def test_a_table_that_was_set_back_is_found_by_its_log(catalogs: Callable[[], SqlCatalog]) -> None:
    destination, table = stored(catalogs, 4)
    snapshots = table.snapshots()
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshots[1].snapshot_id)
    proof = verify(destination)
    last = destination.last_commits(["shard-1"])["shard-1"]
    store(destination, last, [change(4)])
    later = verify(destination)

    assert [one.flaw for one in proof.findings] == [Flaw.UNREADABLE] * 2
    for finding, lost, number in zip(proof.findings, snapshots[2:], (3, 4), strict=True):
        assert f"before snapshot {lost.snapshot_id}, and lacks its commits: commit {number}" in finding.text
    assert (later.findings, later.commits) == (proof.findings, 5)


def stored(catalogs: Callable[[], SqlCatalog], commits: int) -> tuple[IcebergDestination, Table]:
    """A destination with so many commits of a row, and its table."""
    destination, last = IcebergDestination(catalogs(), "lake.orders"), None
    for number in range(commits):
        last = store(destination, last, [change(number)])
    return destination, catalogs().load_table("lake.orders")
