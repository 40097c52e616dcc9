"""Rows of a table, read and written over real HTTP as executors do it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient.destinations.rows.change_rows import UNFIT, added_types
from streamclient.destinations.rows.column_names import marked
from streamclient.destinations.rows.column_types import value_of
from streamclient.errors import ConfigurationError, StreamClientException, UnfitValueError
from streamclient.server import LocalTablestore
from streamclient.server.fault_rules import FailRows, FaultRule
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.source_schemas import check_changes, check_rows, inferred
from streamclient.spark.source.table_reading import MOST_FILTERS, TablePlan, TableRows
from streamclient.spark.source.table_reading import PushedComparison as Filter
from streamclient.spark.source.table_writing import RowWriter, types_of
from streamclient.tablestore import TablestoreStreamApi
from streamclient.wire import schema as messages
from streamclient.wire.schema import ComparatorType, FilterType

ANYTHING = Condition(RowExistenceExpectation.IGNORE)
KEY = [("name", "STRING"), ("number", "INTEGER")]


def options(local: LocalTablestore, **more: str) -> SourceOptions:
    given = {
        "endpoint": local.endpoint,
        "instance": local.instance,
        "table": "things",
        "accessKeyId": local.access_key_id,
        "accessKeySecret": local.access_key_secret,
    }
    return SourceOptions.read(given | more, {})


@pytest.fixture
def things(local: LocalTablestore) -> Any:
    client = local.client()
    meta = TableMeta("things", KEY, [("size", "INTEGER")])
    TablestoreStreamApi(client).create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))
    return client


def put(client: Any, name: str, number: int, **columns: Any) -> None:
    values = [(column, bytearray(value) if isinstance(value, bytes) else value) for column, value in columns.items()]
    client.put_row("things", Row([("name", name), ("number", number)], values), ANYTHING)


def read(local: LocalTablestore, columns: pa.Schema, *filters: Filter, **more: str) -> list[dict[str, Any]]:
    plan = TablePlan(options(local, **more), check_rows(columns)).with_conditions(filters)
    parts = plan.ranges()
    reader = pickle.loads(pickle.dumps(TableRows(plan.options, plan.columns, ("name", "number"))))
    batches = [batch for part in parts for batch in reader.read(pickle.loads(pickle.dumps(part)))]
    assert all(batch.schema == columns for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


SIZES = pa.schema([("name", pa.string()), ("number", pa.int64()), ("size", pa.int64())])


def test_every_row_is_read_once_from_ranges_of_keys(local: LocalTablestore, things: Any) -> None:
    text = "x" * 60_000
    for number in range(60):
        put(things, f"n{number:02}", number, size=number, text=text)
    ranges = TablePlan(options(local, splitSizeMb="1"), SIZES).ranges()
    rows = read(local, SIZES, splitSizeMb="1")

    assert len(ranges) > 2
    assert [row["number"] for row in rows] == list(range(60))


def test_large_rows_become_batches_of_few_rows(
    local: LocalTablestore, things: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many would be one batch by their number: a task would hold them all in memory."""
    monkeypatch.setattr("streamclient.spark.source.table_reading.BATCH_PAGES", 2)
    text = "x" * 1_500_000
    for number in range(9):
        put(things, "n", number, text=text)
    columns = pa.schema([("number", pa.int64()), ("text", pa.string())])
    (part,) = TablePlan(options(local), columns).ranges()
    batches = list(TableRows(options(local), columns, ("name", "number")).read(part))

    assert [row["number"] for batch in batches for row in batch.to_pylist()] == list(range(9))
    assert len(batches) > 1
    assert max(batch.nbytes for batch in batches) < 2 * 6_000_000


def test_a_row_that_has_none_of_the_columns_is_still_a_row(local: LocalTablestore, things: Any) -> None:
    """The service leaves such a row out of an answer to a request that names columns."""
    put(things, "a", 1, size=5)
    put(things, "b", 2, other="x")
    put(things, "c", 3)
    only_size = pa.schema([("size", pa.int64())])
    only_key = pa.schema([("number", pa.int64()), ("name", pa.string())])

    assert read(local, only_size) == [{"size": 5}, {"size": None}, {"size": None}]
    assert [row["number"] for row in read(local, only_key)] == [1, 2, 3]


def test_values_that_do_not_fit_are_kept_beside_with_their_types(local: LocalTablestore, things: Any) -> None:
    given = {"grade": "big", "weight": 7, "extra": b"\x00\xff", "flag": True}
    put(things, "a", 1, size=5, **given)
    grades = pa.schema([*SIZES, ("grade", pa.int64())])
    schema = pa.schema([*grades, ("weight", pa.float64()), (UNFIT, added_types()[UNFIT])])
    (row,) = read(local, schema)
    beside = {name: value_of(one["type"], one["value"]) for name, one in row[UNFIT]}

    assert (row["size"], row["grade"], row["weight"]) == (5, None, 7.0)
    assert beside == given
    assert isinstance(beside["weight"], int)
    assert isinstance(beside["flag"], bool)
    with pytest.raises(UnfitValueError, match=r"column 'grade' of row .*'a'.* holds the STRING 'big'"):
        read(local, grades)


def test_a_row_without_a_value_for_a_column_that_is_declared_not_null_is_an_error(
    local: LocalTablestore, things: Any
) -> None:
    put(things, "a", 1, size=5)
    put(things, "b", 2)

    with pytest.raises(
        UnfitValueError, match=r"column 'size' is declared NOT NULL and row .*'b'.* has no value for it"
    ):
        read(local, pa.schema([pa.field("size", pa.int64(), nullable=False)]))


def test_the_schema_is_what_the_table_declares_and_its_first_rows_hold(local: LocalTablestore, things: Any) -> None:
    put(things, "a", 1, Note="n", note=1.5)
    put(things, "b", 2, Note=5, late=1)
    found = inferred(options(local, sampleRows="1"))
    types = {one.name: str(one.type) for one in found}

    assert list(types)[:3] == ["name", "number", "Note"]
    assert (types["size"], types["Note"]) == ("int64", "string")
    assert [name for name in types if name.startswith("note__")], "two spellings are two columns"
    assert "late" not in types
    assert list(inferred(options(local, sampleRows="0")).names) == ["name", "number", "size", UNFIT]


@pytest.mark.parametrize(
    ("filters", "numbers", "most_read"),
    [
        ([Filter("name", ComparatorType.EQUAL, ("n3",))], [3, 13, 23], 3),
        ([Filter("name", ComparatorType.GREATER_THAN, ("n7",))], [8, 18, 28, 9, 19, 29], 9),
        ([Filter("name", ComparatorType.LESS_EQUAL, ("n0",))], [0, 10, 20], 3),
        ([Filter("name", ComparatorType.EQUAL, ("n3", "n5"))], [3, 13, 23, 5, 15, 25], 9),
        ([Filter("size", ComparatorType.GREATER_EQUAL, (28,))], [28, 29], 30),
        ([Filter("name", ComparatorType.EQUAL, ("n3",)), Filter("size", ComparatorType.LESS_THAN, (10,))], [3], 3),
        ([Filter("name", ComparatorType.EQUAL, ("n1",)), Filter("name", ComparatorType.EQUAL, ("n2",))], [], 0),
        ([Filter("size", ComparatorType.EQUAL, ("28",))], None, 30),
        ([Filter("size", ComparatorType.EQUAL, (None,))], None, 30),
        ([Filter("weight", ComparatorType.EQUAL, (1.0,))], None, 30),
        ([Filter("weight", ComparatorType.GREATER_EQUAL, (0.5,))], None, 30),
    ],
    ids=str,
)
def test_filters_narrow_what_is_read_and_never_reject_what_spark_would_take(
    local: LocalTablestore, things: Any, filters: list[Filter], numbers: list[int] | None, most_read: int
) -> None:
    """Those that the service judges otherwise than Spark are not handed on: a weight of 1 shows as 1.0."""
    for number in range(30):
        put(things, f"n{number % 10}", number, size=number, weight=1)
    local.reset_requests()
    schema = pa.schema([*SIZES, ("weight", pa.float64()), (UNFIT, added_types()[UNFIT])])
    rows = read(local, schema, *filters)
    counted = sum(one.rows_read for one in local.requests() if one.operation == "GetRange")

    if numbers is None:
        assert len(rows) == 30
    else:
        assert [row["number"] for row in rows] == numbers
    assert counted <= most_read


def nodes(row_filter: bytes) -> int:
    message = messages.Filter.FromString(row_filter)
    if message.type != FilterType.COMPOSITE_COLUMN_VALUE:
        return 1
    parts = messages.CompositeColumnValueFilter.FromString(message.filter).sub_filters
    return 1 + sum(nodes(part.SerializeToString()) for part in parts)


@pytest.mark.parametrize(
    ("counts", "sent", "found"),
    [((9,), 10, 9), ((10,), 0, 12), ((5, 2), 10, 2), ((5, 3), 6, 5), ((10, 1), 1, 1), ((1,) * 12, 10, 1)],
    ids=str,
)
def test_conditions_that_find_no_room_in_a_request_are_left_to_spark(
    local: LocalTablestore, things: Any, counts: tuple[int, ...], sent: int, found: int
) -> None:
    """What joins them takes room, too."""
    for number in range(12):
        put(things, "n", number, size=number)
    filters = [Filter("size", ComparatorType.EQUAL, tuple(range(count))) for count in counts]
    plan = TablePlan(options(local), SIZES).with_conditions(filters)
    (part,) = plan.ranges()

    assert (0 if part.row_filter is None else nodes(part.row_filter)) == sent <= MOST_FILTERS
    assert [row["size"] for row in read(local, SIZES, *filters)] == list(range(found))


@pytest.mark.parametrize("name", ["name", "number"])
def test_a_key_column_of_another_type_than_the_table_has_narrows_nothing(
    local: LocalTablestore, things: Any, name: str
) -> None:
    """It is shown as null beside its value; the service would refuse such a key."""
    put(things, "a", 1)
    declared = {"name": pa.string(), "number": pa.int64(), UNFIT: added_types()[UNFIT]}
    declared[name] = {"name": pa.int64(), "number": pa.string()}[name]
    value = {"name": 3, "number": "3"}[name]
    (row,) = read(local, pa.schema(list(declared.items())), Filter(name, ComparatorType.EQUAL, (value,)))

    assert row[name] is None


def test_a_schema_has_each_column_once() -> None:
    """For a stream, too; a marked name stands for the same column."""
    for check, again in ((check_rows, "size"), (check_changes, "size"), (check_rows, marked("size"))):
        with pytest.raises(ConfigurationError, match=f"the schema has column 'size' twice, as 'size' and '{again}'"):
            check(pa.schema([("size", pa.int64()), (again, pa.int64())]))


def test_a_key_column_in_another_case_is_refused_and_not_null(local: LocalTablestore, things: Any) -> None:
    put(things, "a", 1, Name="n")
    columns = [("Name", pa.string()), ("number", pa.int64())]
    with pytest.raises(ConfigurationError, match=r"schema has 'Name', and the key of table 'things' has 'name'"):
        read(local, pa.schema(columns))

    both = pa.schema([*columns, ("name", pa.string())])
    assert read(local, both) == [{"Name": "n", "number": 1, "name": "a"}]
    other = marked("Name")
    assert read(local, pa.schema([(other, pa.string())])) == [{other: "n"}], "as the refusal says"


def test_a_table_that_is_not_there_is_named(local: LocalTablestore) -> None:
    with pytest.raises(ConfigurationError, match=r"instance '\w+' has no table 'things'"):
        inferred(options(local))


@pytest.mark.parametrize("name", ["_key", "_day", "_version"])
def test_a_schema_names_a_column_of_the_table_so_that_it_is_no_other(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"source's own column of that name is '{name}__"):
        check_rows(pa.schema([(name, pa.string())]))


INTEGERS = [-(2**63), -1, 0, 5, 6, 2**63 - 1]
TEXTS = ["", "a", "a\0", "ab", "b", "公"]

TAKES = {
    ComparatorType.EQUAL: lambda key, values: key in values,
    ComparatorType.LESS_EQUAL: lambda key, values: key <= values[0],
    ComparatorType.LESS_THAN: lambda key, values: key < values[0],
    ComparatorType.GREATER_EQUAL: lambda key, values: key >= values[0],
    ComparatorType.GREATER_THAN: lambda key, values: key > values[0],
}


@pytest.mark.parametrize(("kind", "keys"), [("INTEGER", INTEGERS), ("STRING", TEXTS)])
def test_filters_on_a_key_of_one_column_take_its_ends_along(local: LocalTablestore, kind: str, keys: list[Any]) -> None:
    """The end of a range that is read is not in it."""
    client = local.client()
    meta = TableMeta("things", [("id", kind)])
    client.create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))
    for key in keys:
        client.put_row("things", Row([("id", key)], [("size", 1)]), ANYTHING)
    columns = pa.schema([("id", pa.int64() if kind == "INTEGER" else pa.string())])
    wanted = [(comparator, (key,)) for comparator in TAKES for key in keys]
    wanted += [(ComparatorType.EQUAL, tuple(keys[1:4])), (ComparatorType.EQUAL, (keys[0], keys[-1]))]

    for comparator, values in wanted:
        plan = TablePlan(options(local), check_rows(columns)).with_conditions([Filter("id", comparator, values)])
        rows = TableRows(plan.options, plan.columns, ("id",))
        found = [row["id"] for part in plan.ranges() for batch in rows.read(part) for row in batch.to_pylist()]
        assert found == [key for key in keys if TAKES[comparator](key, values)], (comparator, values)


# --- writing ----------------------------------------------------------------------------------------------------------

FRAME = pa.schema([("number", pa.int64()), ("name", pa.string()), ("size", pa.int64()), ("note", pa.string())])


def frame(*rows: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield pa.RecordBatch.from_pylist([dict(zip(FRAME.names, row, strict=True))], schema=FRAME)


def writer(local: LocalTablestore, schema: pa.Schema = FRAME, **more: str) -> RowWriter:
    made = RowWriter.checked(options(local, **more), schema)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def table(local: LocalTablestore) -> Mapping[str, Any]:
    columns = pa.schema([*SIZES, ("note", pa.string())])
    return {row["name"]: (row["size"], row["note"]) for row in read(local, columns)}


def test_modes_put_update_and_delete(local: LocalTablestore, things: Any) -> None:
    put(things, "a", 1, size=1, note="old")
    put(things, "b", 1, size=1, note="old")
    put(things, "c", 1, size=1, note="old")
    assert writer(local).write(frame((1, "a", 2, None))) == 1
    writer(local, writeMode="update").write(frame((1, "b", 2, None)))
    dated = pa.schema([("day", pa.date32()), *FRAME, ("note", pa.null()), ("_operation", pa.string())])
    values = [[None], [1], ["c"], [None], [None], [None], ["DELETE"]]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(value, one.type) for value, one in zip(values, dated, strict=True)], schema=dated
    )
    writer(local, dated, writeMode="delete").write([rows])

    assert table(local) == {"a": (2, None), "b": (2, "old")}


def test_rows_that_fail_for_a_moment_are_written_again_alone(local: LocalTablestore, things: Any) -> None:
    rows = [(1, f"n{number:03}", number, "x") for number in range(450)]
    writer_of_many = writer(local)
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=7), times=2))
    local.reset_requests()
    assert writer_of_many.write(frame(*rows)) == 450
    requests = next(one for one in local.requests() if one.operation == "BatchWriteRow")

    assert {name: size for name, (size, _) in table(local).items()} == {f"n{n:03}": n for n in range(450)}
    assert requests.requests == 5
    assert requests.rows_written < 520, "only those that failed came again"


def test_the_last_of_two_rows_of_a_key_wins_and_writing_again_changes_nothing(
    local: LocalTablestore, things: Any
) -> None:
    rows = [(1, "a", 1, "first"), (1, "b", 1, "x"), (1, "a", 2, "second")]
    for _ in range(2):
        local.reset_requests()
        writer(local).write(frame(*rows))
        sent = sum(one.requests for one in local.requests() if one.operation == "BatchWriteRow")
        assert sent == 2, "the second row of the key in a request of its own"

    assert table(local) == {"a": (2, "second"), "b": (1, "x")}


@pytest.mark.parametrize(
    ("row", "mode", "said"),
    [
        ((None, "a", 1, "x"), "put", "key column 'number' is null in the row"),
        ((1, "a", None, None), "update", "every column of the row .*'a'.* is null"),
        ((1, "a", 1, "x" * 3_000_000), "put", "does not take the put of row {name='a', number='1'}: .*note"),
    ],
    ids=["key", "update", "value"],
)
def test_a_row_that_cannot_be_written_is_named(
    local: LocalTablestore, things: Any, row: tuple[Any, ...], mode: str, said: str
) -> None:
    with pytest.raises(StreamClientException, match=said):
        writer(local, writeMode=mode).write(frame((7, "before", 1, "x"), row))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("name", pa.string())], "the frame lacks 'number', a key column"),
        ([("name", pa.string()), ("Number", pa.int64())], "lacks 'number', a key column .*; rename 'Number'"),
        ([*KEY, ("note", pa.string()), ("note", pa.string())], "the frame has column 'note' twice"),
        ([("name", pa.string()), ("number", pa.string())], "STRING, and the key column of table 'things' is INTEGER"),
        ([*KEY, ("size", pa.float64())], "DOUBLE, and table 'things' declares INTEGER"),
        ([*KEY, ("day", pa.date32())], "column 'day' is date32.*bigint, double, boolean, string, binary; cast it"),
        ([*KEY, ("_operation", pa.string())], "has the column _operation.*drop the column"),
        ([*KEY, ("_version", pa.int64())], "has the column _version.*own column of that name is '_version__"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value[-1][0]),
)
def test_a_frame_that_does_not_fit_the_table_is_refused_before_anything_is_written(
    local: LocalTablestore, things: Any, columns: list[Any], said: str
) -> None:
    types = {"STRING": pa.string(), "INTEGER": pa.int64()}
    schema = pa.schema([(name, types.get(kind, kind)) for name, kind in columns])
    with pytest.raises(ConfigurationError, match=said):
        writer(local, schema)


def test_narrow_types_of_spark_are_stored_in_the_wide_ones() -> None:
    stored = types_of(pa.schema([("a", pa.int16()), ("b", pa.float32())]))

    assert {name: kind.value for name, kind in stored.items()} == {"a": "INTEGER", "b": "DOUBLE"}
