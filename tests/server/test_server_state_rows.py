"""Rows: writing, versions, time to live, conditions and what writes return."""

from __future__ import annotations

from typing import Any

import pytest
from server_state_driver import (
    EXIST,
    GENERATED_KEY,
    HIGHEST,
    LOWEST,
    NOT_EXIST,
    START_MICROS,
    Driver,
    delete_all,
    delete_one,
    frame,
    increment,
    pagination,
    plain_key,
    put,
    refusal_of,
    single,
    table_driver,
)

from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, decode_row, encode_value
from streamclient.wire.schema import ComparatorType, ReturnType, RowExistenceExpectation

NOW_MILLIS = START_MICROS // 1000
CONDITION_FAILED = (403, "OTSConditionCheckFail", "Condition check failed.")
DAY_SECONDS = 86_400


@pytest.fixture
def driver() -> Driver:
    return table_driver(options={"max_versions": 3})


def at(offset: int, value: Any) -> Cell:
    """A version of column x, so many milliseconds from now."""
    return put("x", value, NOW_MILLIS + offset)


THREE_VERSIONS = ("put", at(0, 0), at(1, 1), at(2, 2))
WRITES: dict[str, tuple[list[Any], dict[str, Any] | None]] = {
    "put replaces the whole row": (
        [("put", put("x", 1), put("y", "two")), ("put", put("z", b"\x00\xff"))],
        {"z": b"\x00\xff"},
    ),
    "put without columns makes a row": ([("put",)], {}),
    "update changes only the cells it names": (
        [
            ("put", put("kept", 1), put("gone", 2), put("changed", 3)),
            ("update", delete_all("gone"), put("changed", 4), put("new", 5)),
        ],
        {"kept": 1, "changed": 4, "new": 5},
    ),
    "update creates an absent row": ([("update", put("x", 1))], {"x": 1}),
    "deletions of what is not there": ([("update", put("x", 1), delete_one("y", 5), delete_all("z"))], {"x": 1}),
    "deletions alone do not create a row": ([("update", delete_all("x"), delete_one("y", 5))], None),
    "a row without its last column remains": ([("put", put("x", 1)), ("update", delete_all("x"))], {}),
    "cells of one update apply in the order of the request": (
        [("put", put("x", 1)), ("update", delete_all("x"), put("x", 2))],
        {"x": 2},
    ),
    "increment counts from the newest version": (
        [
            ("put", put("n", 40, NOW_MILLIS)),
            ("update", increment("n", 5), increment("m", -3)),
            ("update", increment("n", -3)),
        ],
        {"n": 42, "m": -3},
    ),
}


def write_all(driver: Driver, writes: list[Any]) -> None:
    for kind, *cells in writes:
        getattr(driver, kind)("a", *cells)


@pytest.mark.parametrize(("writes", "row"), WRITES.values(), ids=WRITES)
def test_writes_make_the_row(driver: Driver, writes: list[Any], row: dict[str, Any] | None) -> None:
    write_all(driver, writes)

    assert driver.get("a") == row
    assert driver.table() == ({} if row is None else {"a": row})
    driver.delete("a", expect=NOT_EXIST if row is None else EXIST)


VERSIONS: dict[str, tuple[list[Any], list[tuple[int, Any]]]] = {
    "the newest are kept": ([("put", *(at(number, number) for number in range(5)))], [(4, 4), (3, 3), (2, 2)]),
    "one that is older than all kept ones is not": (
        [THREE_VERSIONS, ("update", at(-9, "old"))],
        [(2, 2), (1, 1), (0, 0)],
    ),
    "the later write wins at one timestamp": ([("put", at(0, "first")), ("update", at(0, "second"))], [(0, "second")]),
    "a deleted one leaves the others": (
        [THREE_VERSIONS, ("update", delete_one("x", NOW_MILLIS + 1), delete_one("x", 77))],
        [(2, 2), (0, 0)],
    ),
}


@pytest.mark.parametrize(("writes", "versions"), VERSIONS.values(), ids=VERSIONS)
def test_writes_make_versions(driver: Driver, writes: list[Any], versions: list[tuple[int, Any]]) -> None:
    write_all(driver, writes)

    assert driver.versions("a", "x") == [(NOW_MILLIS + offset, value) for offset, value in versions]


def test_every_type_comes_back_as_it_was(driver: Driver) -> None:
    cells = {
        "integer": -(2**63),
        "double": 2.5,
        "true": True,
        "string": "größer\x00",
        "binary": b"\x00\x01",
        "empty": "",
    }
    driver.put("a", *(put(name, value) for name, value in cells.items()))

    row = driver.get("a")

    assert row == cells
    assert {type(value) for value in row.values()} == {int, float, bool, str, bytes}


def test_absent_row_reads_as_empty_bytes(driver: Driver) -> None:
    answer = driver.call("GetRow", table_name="t", primary_key=frame("a"), max_versions=1)

    assert (answer.row, answer.consumed.capacity_unit.read) == (b"", 1)


def test_columns_come_back_by_name_and_versions_newest_first(driver: Driver) -> None:
    driver.put("a", put("b", 1, NOW_MILLIS), put("a", 2, NOW_MILLIS - 5), put("a", 3, NOW_MILLIS + 5))

    row = driver.get_row("a", max_versions=9)

    assert row is not None
    assert [(cell.name, cell.value, cell.timestamp_millis) for cell in row.cells] == [
        ("a", 3, NOW_MILLIS + 5),
        ("a", 2, NOW_MILLIS - 5),
        ("b", 1, NOW_MILLIS),
    ]


def test_fewer_versions_after_the_table_keeps_fewer(driver: Driver) -> None:
    write_all(driver, [THREE_VERSIONS])
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(max_versions=1))

    assert driver.versions("a", "x") == [(NOW_MILLIS + 2, 2)]


@pytest.mark.parametrize(
    ("held", "text"), [(True, ""), (1.5, ""), ("1", ""), (b"1", ""), (2**63 - 1, "overflows")], ids=repr
)
def test_a_refused_increment_leaves_the_whole_row(driver: Driver, held: object, text: str) -> None:
    driver.put("a", put("n", held), put("other", 1))

    status, code, told = refusal_of(driver.update, "a", put("other", 2), increment("n", 1))

    assert (status, code, text in told) == (400, "OTSParameterInvalid", True)
    assert driver.get("a") == {"n": held, "other": 1}


def test_delete_of_an_absent_row_succeeds(driver: Driver) -> None:
    driver.delete("a")
    driver.delete("a", expect=NOT_EXIST)

    assert driver.table() == {}


@pytest.mark.parametrize("kind", ["put", "update", "delete"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("expect", list(RowExistenceExpectation))
def test_existence_expectations(driver: Driver, kind: str, exists: bool, expect: RowExistenceExpectation) -> None:
    """IGNORE always passes; the other two pass when they are right."""
    if exists:
        driver.put("a", put("x", 0))
    before = driver.table()
    cells = () if kind == "delete" else (put("x", 1),)
    write = getattr(driver, kind)
    if expect is (NOT_EXIST if exists else EXIST):
        assert refusal_of(write, "a", *cells, expect=expect) == CONDITION_FAILED
        assert driver.table() == before
    else:
        write("a", *cells, expect=expect)
        assert driver.table() == ({} if kind == "delete" else {"a": {"x": 1}})


def test_all_versions_means_one_is_enough(driver: Driver) -> None:
    driver.put("a", put("x", "new", NOW_MILLIS), put("x", "old", NOW_MILLIS - 1))
    wanted = encode_value("old")

    assert driver.get("a", filter=single(ComparatorType.EQUAL, "x", wanted)) is None
    assert driver.get("a", filter=single(ComparatorType.EQUAL, "x", wanted, latest_only=False)) is not None


def test_column_condition_sees_the_row_before_the_write(driver: Driver) -> None:
    driver.put("a", put("counter", 1))
    is_one = single(ComparatorType.EQUAL, "counter", encode_value(1))

    driver.update("a", put("counter", 2), column_condition=is_one)

    assert refusal_of(driver.update, "a", put("counter", 3), column_condition=is_one) == CONDITION_FAILED
    assert driver.get("a") == {"counter": 2}


def test_on_an_absent_row_all_columns_are_missing(driver: Driver) -> None:
    missing_passes = single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=True)
    missing_fails = single(ComparatorType.EQUAL, "x", encode_value(1))

    driver.put("a", put("x", 5), expect=NOT_EXIST, column_condition=missing_passes)

    assert refusal_of(driver.put, "b", put("x", 5), column_condition=missing_fails) == CONDITION_FAILED


def test_a_filter_sees_columns_that_are_not_selected_as_missing(driver: Driver) -> None:
    driver.put("a", put("x", 1), put("y", 2))

    def found(*, passes_if_missing: bool) -> Any:
        is_1 = single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=passes_if_missing)
        return driver.get("a", columns_to_get=["y"], filter=is_1)

    assert found(passes_if_missing=False) is None
    assert found(passes_if_missing=True) == {"y": 2}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"columns_to_get": ["y"]}, None),
        ({"columns_to_get": ["pk"]}, ""),
        ({"columns_to_get": ["pk", "a", "y"]}, "a"),
        ({"start_column": "b", "end_column": "d"}, "bc"),
        ({"filter": pagination(1, 3)}, "bcd"),
        ({"filter": pagination(6, 3)}, ""),
    ],
    ids=["none that is there", "only the key", "some", "a half-open range", "a window", "a window behind all"],
)
def test_a_read_selects_columns(driver: Driver, fields: dict[str, Any], names: str | None) -> None:
    """A row without any requested column is not returned."""
    driver.put("a", *(put(name, 1) for name in "fbdace"))

    row = driver.get_row("a", **fields)

    assert (None if row is None else "".join(cell.name for cell in row.cells)) == names


def test_time_ranges_are_half_open(driver: Driver) -> None:
    write_all(driver, [THREE_VERSIONS])

    def read(**times: int) -> list[object]:
        row = driver.get_row("a", max_versions=None, time_range=schema.TimeRange(**times))
        assert row is not None, "a range of time leaves out cells, never the row"
        return [cell.value for cell in row.cells]

    assert read(start_time=NOW_MILLIS, end_time=NOW_MILLIS + 2) == [1, 0]
    assert read(specific_time=NOW_MILLIS + 1) == [1]
    assert read(specific_time=NOW_MILLIS + 9) == []


def test_only_named_columns_make_a_row_disappear_from_a_range_of_time(driver: Driver) -> None:
    driver.put("a", put("x", 1, NOW_MILLIS))
    later = schema.TimeRange(start_time=NOW_MILLIS + 1, end_time=NOW_MILLIS + 2)

    assert driver.get("a", time_range=later) == {}
    assert driver.get("a", time_range=later, columns_to_get=["x"]) is None
    assert [row.primary_key for row in driver.rows("a", "b", time_range=later)] == [(("pk", "a"),)]
    assert driver.rows("a", "b", time_range=later, columns_to_get=["x"]) == []


def test_a_filter_sees_a_column_outside_the_range_of_time_as_missing(driver: Driver) -> None:
    driver.put("a", put("x", 1, NOW_MILLIS))
    later = schema.TimeRange(start_time=NOW_MILLIS + 1, end_time=NOW_MILLIS + 2)
    is_1 = single(ComparatorType.EQUAL, "x", encode_value(1))

    assert driver.get("a", filter=is_1) == {"x": 1}
    assert driver.get("a", filter=is_1, time_range=later) is None


def test_expired_versions_are_hidden_and_rows_with_them() -> None:
    driver = table_driver(options={"time_to_live": DAY_SECONDS, "max_versions": 5})
    driver.put("a", put("x", 1))
    driver.put("empty")
    driver.clock.advance(DAY_SECONDS / 2)
    driver.update("a", put("y", 2))
    driver.clock.advance(DAY_SECONDS / 2 + 1)

    assert driver.table() == {"a": {"y": 2}}
    driver.clock.advance(DAY_SECONDS / 2)
    assert driver.table() == {}
    driver.put("a", put("z", 3), expect=NOT_EXIST)
    assert driver.get("a") == {"z": 3}


def test_update_of_an_expired_row_starts_from_nothing() -> None:
    driver = table_driver(options={"time_to_live": DAY_SECONDS})
    driver.put("a", put("n", 41), put("x", 1))
    driver.clock.advance(DAY_SECONDS + 1)
    driver.update("a", increment("n", 1))

    assert driver.get("a") == {"n": 1}


@pytest.mark.parametrize(("offset_millis", "accepted"), [(-1000, True), (-1002, False), (999, True), (1001, False)])
def test_timestamps_must_be_near_the_clock(offset_millis: int, accepted: bool) -> None:
    driver = table_driver(options={"deviation_cell_version_in_sec": 1})
    if accepted:
        driver.put("a", at(offset_millis, 1))
    else:
        refused = (400, "OTSParameterInvalid", "Invalid timestamp. Cell:x.")
        assert refusal_of(driver.put, "a", at(offset_millis, 1)) == refused


def test_returned_key_has_no_columns(driver: Driver) -> None:
    """And without being asked for, nothing is returned."""
    answer = driver.put("a", put("x", 1), returns=ReturnType.PK)

    assert decode_row(answer.row).primary_key == (("pk", "a"),)
    assert decode_row(answer.row).cells == ()
    assert not driver.put("a", put("x", 1)).HasField("row")


def test_after_modify_returns_the_named_counters(driver: Driver) -> None:
    driver.put("a", put("n", 1), put("m", 1))

    answer = driver.update(
        "a", increment("n", 2), increment("m", 1), returns=ReturnType.AFTER_MODIFY, return_columns=["n"]
    )

    row = decode_row(answer.row)
    assert [(cell.name, cell.value, cell.operation) for cell in row.cells] == [("n", 3, Cell("", 0).operation)]


@pytest.mark.parametrize(
    ("returns", "names"),
    [(ReturnType.AFTER_MODIFY, ["x"]), (ReturnType.AFTER_MODIFY, ["other"]), (ReturnType.PK, ["n"])],
)
def test_only_counters_of_the_request_can_be_returned(driver: Driver, returns: ReturnType, names: list[str]) -> None:
    with pytest.raises(Exception, match="OTSParameterInvalid"):
        driver.update("a", increment("n", 2), put("x", 1), returns=returns, return_columns=names)


def generated(driver: Driver, partition: str) -> int:
    key = (("pk", partition), ("id", KeyBound.AUTO_INCREMENT))
    answer = driver.put(key, put("x", 1), returns=ReturnType.PK)
    value = decode_row(answer.row).primary_key[1][1]
    assert isinstance(value, int)
    return value


def test_generated_keys_rise() -> None:
    driver = table_driver(key=GENERATED_KEY)

    values = [generated(driver, "a") for _ in range(20)]

    assert values == sorted(set(values))
    assert list(driver.table(columns=("pk", "id"))) == [("a", value) for value in values]


def test_a_generated_row_is_written_again_by_its_full_key() -> None:
    driver = table_driver(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", generated(driver, "a")))

    driver.update(key, put("x", 2), expect=EXIST)
    with pytest.raises(Exception, match="pk auto increment"):
        driver.update(key, put("x", 3), expect=NOT_EXIST)

    assert driver.get(key) == {"x": 2}


def test_a_full_key_that_was_never_generated_fails_as_a_condition_does() -> None:
    driver = table_driver(key=GENERATED_KEY)
    known = (("pk", "a"), ("id", generated(driver, "a")))
    unknown = (("pk", "a"), ("id", 7))

    for write in (driver.put, driver.update):
        assert refusal_of(write, unknown, put("x", 3))[:2] == (403, "OTSConditionCheckFail")
        write(known, put("x", 4))
    driver.delete(unknown)
    assert len(driver.table(columns=("pk", "id"))) == 1


def test_generated_keys_take_no_condition_and_are_not_read() -> None:
    driver = table_driver(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))

    with pytest.raises(Exception, match="Invalid expect:EXPECT_EXIST when modify row with pk auto increment"):
        driver.put(key, put("x", 1), expect=EXIST)
    with pytest.raises(Exception, match="PKAutoIncr can't be used for read operations"):
        driver.get(key)
    with pytest.raises(Exception, match="Invalid row to delete which with pk auto increment"):
        driver.delete(key)


def test_allow_update_false_forbids_updates(driver: Driver) -> None:
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(allow_update=False))

    with pytest.raises(Exception, match="Update operation is not allowed in this table"):
        driver.update("a", put("x", 1))
    driver.put("a", put("x", 1))


def lettered(driver: Driver) -> None:
    for letter in "abcdefg":
        driver.put(letter, put("x", letter))


@pytest.mark.parametrize(
    ("start", "end", "fields", "found"),
    [
        ("b", "e", {}, "bcd"),
        ("e", "b", {"backward": True}, "edc"),
        (HIGHEST, LOWEST, {"backward": True}, "gfedcba"),
        (LOWEST, HIGHEST, {"limit": 2}, "abcdefg"),
        (HIGHEST, LOWEST, {"limit": 2, "backward": True}, "gfedcba"),
    ],
    ids=["half-open", "backward from its start", "backward over all", "pages join", "backward pages join"],
)
def test_ranges_are_half_open_and_ordered(
    driver: Driver, start: Any, end: Any, fields: dict[str, Any], found: str
) -> None:
    lettered(driver)

    assert [row.primary_key for row in driver.rows(start, end, **fields)] == [(("pk", letter),) for letter in found]


def test_the_last_page_names_no_next_key(driver: Driver) -> None:
    lettered(driver)

    assert driver.range_page("a", "d", limit=2).HasField("next_start_primary_key")
    assert not driver.range_page("a", "d", limit=3).HasField("next_start_primary_key")


def test_a_filtered_page_may_be_empty_and_still_continue() -> None:
    """What one call scans is bounded, whatever the filter leaves of it."""
    driver = table_driver(limits=Limits(range_rows=3))
    lettered(driver)
    is_g = single(ComparatorType.EQUAL, "x", encode_value("g"))

    answer = driver.range_page(LOWEST, HIGHEST, filter=is_g)

    assert answer.rows == b""
    assert decode_row(answer.next_start_primary_key).primary_key == (("pk", "d"),)
    assert list(driver.table(filter=is_g)) == ["g"]


def test_a_page_stops_at_its_size() -> None:
    driver = table_driver(limits=Limits(range_bytes=2500))
    driver.put_each("abcd", put("x", "v" * 1000))

    answer = driver.range_page(LOWEST, HIGHEST)

    assert decode_row(answer.next_start_primary_key).primary_key == (("pk", "d"),)


def key_of(first: object, second: object) -> tuple[tuple[str, Any], ...]:
    return ("pk", first), ("sk", second)


def test_range_over_several_key_columns() -> None:
    driver = table_driver(key=(("pk", "INTEGER"), ("sk", "BINARY")))
    driver.put_each(key_of(number, suffix) for number in (-1, 0, 1) for suffix in (b"", b"\x00", b"\xff"))

    def keys(start: tuple[object, object], end: tuple[object, object]) -> list[object]:
        return [plain_key(row) for row in driver.rows(key_of(*start), key_of(*end))]

    assert keys((0, KeyBound.INF_MIN), (0, KeyBound.INF_MAX)) == [(0, b""), (0, b"\x00"), (0, b"\xff")]
    assert keys((-1, b"\x00"), (0, b"\x00")) == [(-1, b"\x00"), (-1, b"\xff"), (0, b"")]
    assert len(keys((KeyBound.INF_MIN, KeyBound.INF_MIN), (KeyBound.INF_MAX, KeyBound.INF_MAX))) == 9


def batch_get(driver: Driver, **fields_by_table: dict[str, Any]) -> list[tuple[str, list[bool]]]:
    """The names of the tables in the answer, and whether each of their rows was found."""
    tables = [schema.TableInBatchGetRowRequest(table_name=name, **fields) for name, fields in fields_by_table.items()]
    answer = driver.call("BatchGetRow", tables=tables)
    return [(table.table_name, [bool(row.row) for row in table.rows]) for table in answer.tables]


def test_a_table_without_keys_in_a_batch_is_answered_without_rows() -> None:
    driver = table_driver()
    driver.create("u")
    driver.put("a", put("x", 1))

    assert batch_get(driver, t={}, u={}) == [("t", []), ("u", [])]
    found = batch_get(driver, t={"primary_key": [frame("a"), frame("b")], "max_versions": 1}, u={})
    assert found == [("t", [True, False]), ("u", [])]
    assert batch_get(driver, missing={}) == [("missing", [])]
    assert refusal_of(batch_get, driver)[2] == "No row specified in the request of BatchGetRow."
    assert refusal_of(batch_get, driver, u={"max_versions": 0})[2].startswith("Invalid max versions")
    assert refusal_of(batch_get, driver, u={}, t={"primary_key": [frame("a")]})[2] == (
        "No version condition is specified while querying row."
    )
