"""Rows: writing, versions, time to live, conditions and what writes return."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_state_driver import (
    START_MICROS,
    Driver,
    batch_row,
    batch_table,
    combined,
    delete_all,
    delete_one,
    frame,
    increment,
    pagination,
    put,
    single,
)

from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, decode_row, encode_value
from streamclient.wire.schema import (
    ComparatorType,
    LogicalOperator,
    OperationType,
    ReturnType,
    RowExistenceExpectation,
    VariantType,
)

NOW_MILLIS = START_MICROS // 1000
EXIST, NOT_EXIST = RowExistenceExpectation.EXPECT_EXIST, RowExistenceExpectation.EXPECT_NOT_EXIST
CONDITION_FAILED = (403, "OTSConditionCheckFail", "Condition check failed.")
DAY_SECONDS = 86_400


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create(options={"max_versions": 3})
    return driver


def test_put_replaces_the_whole_row(driver: Driver) -> None:
    driver.put("a", put("x", 1), put("y", "two"))
    driver.put("a", put("z", b"\x00\xff"))

    assert driver.get("a") == {"z": b"\x00\xff"}


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


def test_put_without_columns_makes_a_row(driver: Driver) -> None:
    driver.put("a")

    assert driver.get("a") == {}
    assert driver.table() == {"a": {}}


def test_columns_come_back_by_name_and_versions_newest_first(driver: Driver) -> None:
    driver.put("a", put("b", 1, NOW_MILLIS), put("a", 2, NOW_MILLIS - 5), put("a", 3, NOW_MILLIS + 5))

    row = driver.get_row("a", max_versions=9)

    assert row is not None
    assert [(cell.name, cell.value, cell.timestamp_millis) for cell in row.cells] == [
        ("a", 3, NOW_MILLIS + 5),
        ("a", 2, NOW_MILLIS - 5),
        ("b", 1, NOW_MILLIS),
    ]


def test_update_changes_only_the_cells_it_names(driver: Driver) -> None:
    driver.put("a", put("kept", 1), put("gone", 2), put("changed", 3))
    driver.update("a", delete_all("gone"), put("changed", 4), put("new", 5))

    assert driver.get("a") == {"kept": 1, "changed": 4, "new": 5}


def test_update_creates_an_absent_row(driver: Driver) -> None:
    driver.update("a", put("x", 1))

    assert driver.get("a") == {"x": 1}


def test_deletions_alone_do_not_create_a_row(driver: Driver) -> None:
    driver.update("a", delete_all("x"), delete_one("y", 5))

    assert driver.get("a") is None


def test_a_row_without_its_last_column_remains(driver: Driver) -> None:
    driver.put("a", put("x", 1))
    driver.update("a", delete_all("x"))

    assert driver.get("a") == {}
    driver.put("a", put("x", 1), expect=EXIST)


def test_cells_of_one_update_apply_in_the_order_of_the_request(driver: Driver) -> None:
    driver.put("a", put("x", 1))
    driver.update("a", delete_all("x"), put("x", 2))

    assert driver.get("a") == {"x": 2}


def test_the_newest_versions_are_kept(driver: Driver) -> None:
    driver.put("a", *(put("x", number, NOW_MILLIS + number) for number in range(5)))

    assert driver.versions("a", "x") == [(NOW_MILLIS + number, number) for number in (4, 3, 2)]


def test_an_older_version_than_all_kept_ones_is_not_kept(driver: Driver) -> None:
    driver.put("a", *(put("x", number, NOW_MILLIS + number) for number in range(3)))
    driver.update("a", put("x", "old", NOW_MILLIS - 9))

    assert [value for _, value in driver.versions("a", "x")] == [2, 1, 0]


def test_the_later_write_wins_at_one_timestamp(driver: Driver) -> None:
    driver.put("a", put("x", "first", NOW_MILLIS))
    driver.update("a", put("x", "second", NOW_MILLIS))

    assert driver.versions("a", "x") == [(NOW_MILLIS, "second")]


def test_delete_one_version_leaves_the_others(driver: Driver) -> None:
    driver.put("a", *(put("x", number, NOW_MILLIS + number) for number in range(3)))
    driver.update("a", delete_one("x", NOW_MILLIS + 1), delete_one("x", 77))

    assert [value for _, value in driver.versions("a", "x")] == [2, 0]


def test_fewer_versions_after_the_table_keeps_fewer(driver: Driver) -> None:
    driver.put("a", *(put("x", number, NOW_MILLIS + number) for number in range(3)))
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(max_versions=1))

    assert driver.versions("a", "x") == [(NOW_MILLIS + 2, 2)]


def test_increment_counts_from_the_newest_version(driver: Driver) -> None:
    driver.put("a", put("n", 40, NOW_MILLIS))
    driver.update("a", increment("n", 5), increment("m", -3))
    driver.update("a", increment("n", -3))

    assert driver.get("a") == {"n": 42, "m": -3}


@pytest.mark.parametrize("held", [True, 1.5, "1", b"1"])
def test_increment_of_another_type_is_refused(driver: Driver, held: object) -> None:
    driver.put("a", put("n", held))

    status, code, _ = driver.refusal(
        "UpdateRow",
        table_name="t",
        row_change=frame("a", increment("n", 1)),
        condition=schema.Condition(row_existence=0),
    )

    assert (status, code) == (400, "OTSParameterInvalid")
    assert driver.get("a") == {"n": held}


def test_a_refused_increment_leaves_the_whole_row(driver: Driver) -> None:
    driver.put("a", put("n", 2**63 - 1), put("other", 1))
    fields = {
        "row_change": frame("a", put("other", 2), increment("n", 1)),
        "condition": schema.Condition(row_existence=0),
    }

    status, code, text = driver.refusal("UpdateRow", table_name="t", **fields)

    assert (status, code, "overflows" in text) == (400, "OTSParameterInvalid", True)
    assert driver.get("a") == {"n": 2**63 - 1, "other": 1}


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
    fails = expect is (NOT_EXIST if exists else EXIST)
    cells = () if kind == "delete" else (put("x", 1),)
    write = getattr(driver, kind)
    if fails:
        with pytest.raises(Exception, match="OTSConditionCheckFail"):
            write("a", *cells, expect=expect)
        assert driver.table() == before
    else:
        write("a", *cells, expect=expect)
        assert driver.table() == ({} if kind == "delete" else {"a": {"x": 1}})


def test_refused_condition_has_the_documented_answer(driver: Driver) -> None:
    assert (
        driver.refusal("PutRow", table_name="t", row=frame("a"), condition=schema.Condition(row_existence=EXIST))
        == CONDITION_FAILED
    )


COMPARISONS = [
    (ComparatorType.EQUAL, {5}),
    (ComparatorType.NOT_EQUAL, {4, 6}),
    (ComparatorType.GREATER_THAN, {6}),
    (ComparatorType.GREATER_EQUAL, {5, 6}),
    (ComparatorType.LESS_THAN, {4}),
    (ComparatorType.LESS_EQUAL, {4, 5}),
]


@pytest.mark.parametrize(("comparator", "passing"), COMPARISONS)
def test_comparisons(driver: Driver, comparator: ComparatorType, passing: set[int]) -> None:
    for value in (4, 5, 6):
        driver.put(str(value), put("x", value))

    found = driver.table(filter=single(comparator, "x", encode_value(5)))

    assert {row["x"] for row in found.values()} == passing


@pytest.mark.parametrize("comparator", [comparator for comparator, _ in COMPARISONS])
@pytest.mark.parametrize("held", [1.0, True, "1", b"1"])
def test_unlike_types_satisfy_nothing(driver: Driver, comparator: ComparatorType, held: object) -> None:
    driver.put("a", put("x", held))

    assert driver.get("a", filter=single(comparator, "x", encode_value(1))) is None


def test_existence_filters_ignore_the_value(driver: Driver) -> None:
    driver.put("with", put("x", "text"))
    driver.put("without", put("y", 1))

    assert list(driver.table(filter=single(ComparatorType.EXIST, "x"))) == ["with"]
    assert list(driver.table(filter=single(ComparatorType.NOT_EXIST, "x"))) == ["without"]


@pytest.mark.parametrize("passes", [True, False])
def test_the_wire_flag_is_the_negation_of_pass_if_missing(driver: Driver, passes: bool) -> None:
    driver.put("a", put("y", 1))

    found = driver.get("a", filter=single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=passes))

    assert (found is not None) is passes


def test_all_versions_means_one_is_enough(driver: Driver) -> None:
    driver.put("a", put("x", "new", NOW_MILLIS), put("x", "old", NOW_MILLIS - 1))
    wanted = encode_value("old")

    assert driver.get("a", filter=single(ComparatorType.EQUAL, "x", wanted)) is None
    assert driver.get("a", filter=single(ComparatorType.EQUAL, "x", wanted, latest_only=False)) is not None


def test_composite_filters(driver: Driver) -> None:
    for name, x, y in (("a", 1, 1), ("b", 1, 2), ("c", 2, 2)):
        driver.put(name, put("x", x), put("y", y))
    x1 = single(ComparatorType.EQUAL, "x", encode_value(1))
    y2 = single(ComparatorType.EQUAL, "y", encode_value(2))

    assert list(driver.table(filter=combined(LogicalOperator.AND, x1, y2))) == ["b"]
    assert list(driver.table(filter=combined(LogicalOperator.OR, x1, y2))) == ["a", "b", "c"]
    assert list(driver.table(filter=combined(LogicalOperator.NOT, x1))) == ["c"]
    nested = combined(LogicalOperator.AND, x1, combined(LogicalOperator.NOT, y2))
    assert list(driver.table(filter=nested)) == ["a"]


def test_cast_rule_compares_the_first_group(driver: Driver) -> None:
    for name, text in (("a", "t1<10>"), ("b", "t1<9>"), ("c", "no number"), ("d", 11)):
        driver.put(name, put("x", text))
    rule = schema.ValueTransferRule(regex=r"<([0-9]+)>", cast_type=VariantType.INTEGER)

    found = driver.table(filter=single(ComparatorType.GREATER_EQUAL, "x", encode_value(10), rule=rule))

    assert list(found) == ["a"]


def test_existence_with_a_cast_rule_means_a_value_that_casts(driver: Driver) -> None:
    driver.put("a", put("x", "n7"))
    driver.put("b", put("x", "none"))
    driver.put("c", put("y", "n7"))
    rule = schema.ValueTransferRule(regex="n([0-9]+)", cast_type=VariantType.INTEGER)

    assert list(driver.table(filter=single(ComparatorType.EXIST, "x", rule=rule))) == ["a"]
    assert list(driver.table(filter=single(ComparatorType.NOT_EXIST, "x", rule=rule))) == ["b", "c"]


def test_column_condition_sees_the_row_before_the_write(driver: Driver) -> None:
    driver.put("a", put("counter", 1))
    is_one = single(ComparatorType.EQUAL, "counter", encode_value(1))

    driver.update("a", put("counter", 2), column_condition=is_one)

    with pytest.raises(Exception, match="OTSConditionCheckFail"):
        driver.update("a", put("counter", 3), column_condition=is_one)
    assert driver.get("a") == {"counter": 2}


def test_on_an_absent_row_all_columns_are_missing(driver: Driver) -> None:
    missing_passes = single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=True)
    missing_fails = single(ComparatorType.EQUAL, "x", encode_value(1))

    driver.put("a", put("x", 5), expect=NOT_EXIST, column_condition=missing_passes)

    with pytest.raises(Exception, match="OTSConditionCheckFail"):
        driver.put("b", put("x", 5), column_condition=missing_fails)


def test_a_filter_sees_columns_that_are_not_selected_as_missing(driver: Driver) -> None:
    driver.put("a", put("x", 1), put("y", 2))

    def found(*, passes_if_missing: bool) -> Any:
        is_1 = single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=passes_if_missing)
        return driver.get("a", columns_to_get=["y"], filter=is_1)

    assert found(passes_if_missing=False) is None
    assert found(passes_if_missing=True) == {"y": 2}


def test_column_pagination_is_a_window_by_name(driver: Driver) -> None:
    driver.put("a", *(put(name, 1) for name in "fbdace"))

    row = driver.get_row("a", filter=pagination(1, 3))
    assert row is not None
    assert [cell.name for cell in row.cells] == ["b", "c", "d"]
    assert driver.get("a", filter=pagination(6, 3)) == {}


def test_a_row_without_any_requested_column_is_not_returned(driver: Driver) -> None:
    driver.put("a", put("x", 1))

    assert driver.get("a", columns_to_get=["y"]) is None
    assert driver.get("a", columns_to_get=["pk"]) == {}
    assert driver.get("a", columns_to_get=["pk", "x", "y"]) == {"x": 1}


def test_column_range_is_half_open(driver: Driver) -> None:
    driver.put("a", *(put(name, 1) for name in "abcd"))

    assert set(driver.get("a", start_column="b", end_column="d") or ()) == {"b", "c"}


def test_time_ranges_are_half_open(driver: Driver) -> None:
    driver.put("a", *(put("x", number, NOW_MILLIS + number) for number in range(3)))

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
    driver = Driver()
    driver.create(options={"time_to_live": DAY_SECONDS, "max_versions": 5})
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
    driver = Driver()
    driver.create(options={"time_to_live": DAY_SECONDS})
    driver.put("a", put("n", 41), put("x", 1))
    driver.clock.advance(DAY_SECONDS + 1)
    driver.update("a", increment("n", 1))

    assert driver.get("a") == {"n": 1}


@pytest.mark.parametrize(("offset_millis", "accepted"), [(-1000, True), (-1002, False), (999, True), (1001, False)])
def test_timestamps_must_be_near_the_clock(offset_millis: int, accepted: bool) -> None:
    driver = Driver()
    driver.create(options={"deviation_cell_version_in_sec": 1})
    row = frame("a", put("x", 1, NOW_MILLIS + offset_millis))
    if accepted:
        driver.call("PutRow", table_name="t", row=row, condition=schema.Condition(row_existence=0))
    else:
        status, code, text = driver.refusal(
            "PutRow", table_name="t", row=row, condition=schema.Condition(row_existence=0)
        )
        assert (status, code) == (400, "OTSParameterInvalid")
        assert "'x' must be in range" in text


def test_returned_key_has_no_columns(driver: Driver) -> None:
    answer = driver.put("a", put("x", 1), returns=ReturnType.PK)

    assert decode_row(answer.row).primary_key == (("pk", "a"),)
    assert decode_row(answer.row).cells == ()


def test_nothing_is_returned_unless_asked_for(driver: Driver) -> None:
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


GENERATED_KEY = (("pk", "STRING"), ("id", "INTEGER", "AUTO_INCREMENT"))


def generated(driver: Driver, partition: str) -> int:
    key = (("pk", partition), ("id", KeyBound.AUTO_INCREMENT))
    answer = driver.put(key, put("x", 1), returns=ReturnType.PK)
    value = decode_row(answer.row).primary_key[1][1]
    assert isinstance(value, int)
    return value


def test_generated_keys_rise() -> None:
    driver = Driver()
    driver.create(key=GENERATED_KEY)

    values = [generated(driver, "a") for _ in range(20)]

    assert values == sorted(set(values))
    assert list(driver.table(columns=("pk", "id"))) == [("a", value) for value in values]


def test_a_generated_row_is_written_again_by_its_full_key() -> None:
    driver = Driver()
    driver.create(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", generated(driver, "a")))

    driver.update(key, put("x", 2), expect=EXIST)
    with pytest.raises(Exception, match="pk auto increment"):
        driver.update(key, put("x", 3), expect=NOT_EXIST)

    assert driver.get(key) == {"x": 2}


def test_a_full_key_that_was_never_generated_fails_as_a_condition_does() -> None:
    driver = Driver()
    driver.create(key=GENERATED_KEY)
    known = (("pk", "a"), ("id", generated(driver, "a")))
    unknown = (("pk", "a"), ("id", 7))

    for write in (driver.put, driver.update):
        with pytest.raises(ServiceError) as caught:
            write(unknown, put("x", 3))
        assert (caught.value.http_status, caught.value.code) == (403, "OTSConditionCheckFail")
        write(known, put("x", 4))
    driver.delete(unknown)
    assert len(driver.table(columns=("pk", "id"))) == 1


def test_generated_keys_take_no_condition_and_are_not_read() -> None:
    driver = Driver()
    driver.create(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))

    with pytest.raises(Exception, match="Can't set condition when modify row with pk auto increment"):
        driver.put(key, put("x", 1), expect=EXIST)
    with pytest.raises(Exception, match="PKAutoIncr can't be used for read operations"):
        driver.get(key)
    with pytest.raises(Exception, match="PKAutoIncr can't be used for delete operations"):
        driver.delete(key)


def test_allow_update_false_forbids_updates(driver: Driver) -> None:
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(allow_update=False))

    with pytest.raises(Exception, match="allow_update"):
        driver.update("a", put("x", 1))
    driver.put("a", put("x", 1))


def test_batch_results_stand_in_the_order_of_the_request(driver: Driver) -> None:
    driver.create("u")
    driver.put("exists", put("x", 1))
    driver.put("gone", put("x", 1))
    rows = [
        batch_row(OperationType.PUT, "a", put("x", 1)),
        batch_row(OperationType.PUT, "exists", put("x", 2), expect=NOT_EXIST),
        batch_row(OperationType.UPDATE, (("wrong", "b"),), put("x", 1)),
        batch_row(OperationType.DELETE, "gone"),
    ]
    tables = [
        batch_table([batch_row(OperationType.PUT, "a")], "missing"),
        batch_table(rows),
        batch_table([batch_row(OperationType.PUT, "a", put("y", 1), returns=ReturnType.PK)], "u"),
    ]

    answer = driver.call("BatchWriteRow", tables=tables)

    results = [
        (table.table_name, [row.error.code if not row.is_ok else "ok" for row in table.rows]) for table in answer.tables
    ]
    assert results == [
        ("missing", ["OTSObjectNotExist"]),
        ("t", ["ok", "OTSConditionCheckFail", "OTSInvalidPK", "ok"]),
        ("u", ["ok"]),
    ]
    assert decode_row(answer.tables[2].rows[0].row).primary_key == (("pk", "a"),)
    assert (driver.table(), driver.table("u")) == (
        {"a": {"x": 1}, "exists": {"x": 1}},
        {"a": {"y": 1}},
    )


def test_one_row_twice_in_a_batch_is_applied_in_order(driver: Driver) -> None:
    rows = [
        batch_row(OperationType.PUT, "a", put("x", 1)),
        batch_row(OperationType.UPDATE, "a", increment("x", 1)),
        batch_row(OperationType.UPDATE, "a", increment("x", 1)),
    ]

    driver.call("BatchWriteRow", tables=[batch_table(rows)])

    assert driver.get("a") == {"x": 3}


def test_atomic_batch_is_applied_as_a_whole_or_not_at_all() -> None:
    driver = Driver()
    key = (("pk", "STRING"), ("id", "INTEGER"))
    driver.create(key=key)

    def row(partition: str, number: int, expect: RowExistenceExpectation = RowExistenceExpectation.IGNORE) -> object:
        return batch_row(OperationType.PUT, (("pk", partition), ("id", number)), put("x", 1), expect=expect)

    def errors(*rows: object) -> list[tuple[str, str]]:
        answer = driver.call("BatchWriteRow", tables=[batch_table(rows)], is_atomic=True)
        return [(each.error.code, each.error.message) for each in answer.tables[0].rows]

    failed = ("OTSConditionCheckFail", "Condition check failed.")
    outside = ("OTSDataOutOfRange", "Data out of scope of atomic. Atomic PartKey:a. Data PartKey:b")
    assert errors(row("a", 1), row("a", 2, EXIST)) == [failed] * 2
    assert errors(row("a", 1), row("b", 2), row("c", 3)) == [outside] * 3
    assert errors(row("a", 1), row("b", 2), row("a", 3, EXIST)) == [outside] * 3
    assert driver.table(columns=("pk", "id")) == {}
    assert errors(row("a", 1), row("a", 2)) == [("", "")] * 2
    assert list(driver.table(columns=("pk", "id"))) == [("a", 1), ("a", 2)]


def test_an_atomic_batch_that_fails_at_its_own_earlier_row_leaves_nothing() -> None:
    """Each row is judged on what those before it would leave: here the increment meets a text of the same batch."""
    driver = Driver()
    driver.create_with_stream()
    driver.put("a", put("n", 1))
    rows = [
        batch_row(OperationType.UPDATE, "a", put("n", "text")),
        batch_row(OperationType.UPDATE, "a", increment("n", 1)),
    ]

    answer = driver.call("BatchWriteRow", tables=[batch_table(rows)], is_atomic=True)

    assert [row.is_ok for row in answer.tables[0].rows] == [False, False]
    assert len({row.error.message for row in answer.tables[0].rows}) == 1
    assert driver.table() == {"a": {"n": 1}}
    assert len(driver.all_records()) == 1


def test_an_atomic_batch_may_write_one_row_many_times() -> None:
    driver = Driver()
    driver.create_with_stream()
    rows = [batch_row(OperationType.UPDATE, "a", increment("n", 1)) for _ in range(10)]

    answer = driver.call("BatchWriteRow", tables=[batch_table(rows)], is_atomic=True)

    assert all(row.is_ok for row in answer.tables[0].rows)
    assert driver.table() == {"a": {"n": 10}}
    assert [column.value for record in driver.all_records() for column in record.columns] == list(range(1, 11))


def test_an_atomic_batch_generates_different_keys() -> None:
    driver = Driver()
    driver.create(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))
    rows = [batch_row(OperationType.PUT, key, put("x", number), returns=ReturnType.PK) for number in range(5)]

    answer = driver.call("BatchWriteRow", tables=[batch_table(rows)], is_atomic=True)

    keys = [decode_row(row.row).primary_key[1][1] for row in answer.tables[0].rows]
    assert keys == sorted(set(keys))  # type: ignore[type-var]
    assert len(driver.table(columns=("pk", "id"))) == 5


@given(
    kinds=st.lists(st.tuples(st.sampled_from(["put", "increment", "text", "delete"]), st.integers(0, 2)), min_size=1)
)
def test_an_atomic_batch_does_what_its_rows_do_one_by_one_or_nothing(kinds: list[tuple[str, int]]) -> None:
    def row(kind: str, number: int) -> Any:
        key = (("pk", "a"), ("id", number))
        if kind == "delete":
            return batch_row(OperationType.DELETE, key)
        cells = {"put": put("n", 5), "increment": increment("n", 1), "text": put("n", "text")}
        return batch_row(OperationType.UPDATE if kind != "put" else OperationType.PUT, key, cells[kind])

    rows = [row(*each) for each in kinds][:200]
    one_by_one, atomic = Driver(), Driver()
    for driver in (one_by_one, atomic):
        driver.create_with_stream(key=(("pk", "STRING"), ("id", "INTEGER")))

    results = [one_by_one.call("BatchWriteRow", tables=[batch_table([each])]).tables[0].rows[0].is_ok for each in rows]
    answer = atomic.call("BatchWriteRow", tables=[batch_table(rows)], is_atomic=True)

    columns = ("pk", "id")
    assert [each.is_ok for each in answer.tables[0].rows] == [all(results)] * len(rows)
    assert atomic.table(columns=columns) == (one_by_one.table(columns=columns) if all(results) else {})
    assert len(atomic.all_records()) == (len(rows) if all(results) else 0)


def test_batch_get_answers_each_key_in_order(driver: Driver) -> None:
    driver.put("a", put("x", 1))
    driver.put("b", put("x", 2))
    keys = [frame("b"), frame("absent"), frame((("wrong", "a"),)), frame("a")]
    tables = [
        schema.TableInBatchGetRowRequest(table_name="missing", primary_key=[frame("a")], max_versions=1),
        schema.TableInBatchGetRowRequest(table_name="t", primary_key=keys, max_versions=1),
    ]

    answer = driver.call("BatchGetRow", tables=tables)

    assert [row.error.code for row in answer.tables[0].rows] == ["OTSObjectNotExist"]
    rows = answer.tables[1].rows
    assert [row.is_ok for row in rows] == [True, True, False, True]
    assert [bool(row.row) for row in rows] == [True, False, False, True]
    assert rows[2].error.code == "OTSInvalidPK"


def test_capacity_is_counted_in_pages_of_four_kilobytes(driver: Driver) -> None:
    small = driver.put("a", put("x", "y")).consumed.capacity_unit
    large = driver.put("b", put("x", "y" * 8192)).consumed.capacity_unit
    conditional = driver.put("b", put("x", 1), expect=EXIST).consumed.capacity_unit

    assert [(unit.read, unit.write) for unit in (small, large, conditional)] == [(0, 1), (0, 3), (1, 1)]


def units(answer: Any) -> tuple[int, int]:
    unit = answer.consumed.capacity_unit
    return unit.read, unit.write


@pytest.fixture
def plain() -> Driver:
    """A table that keeps one version for ever, which does not count timestamps."""
    driver = Driver()
    driver.create(key=(("PK1", "STRING"),))
    return driver


def wide(*names: str, size: int = 2048) -> list[Cell]:
    return [put(name, "v" * size) for name in names]


def read_units(driver: Driver, key: Any = "a", **fields: Any) -> int:
    answer = driver.call("GetRow", table_name="t", primary_key=frame((("PK1", key),)), **{"max_versions": 1, **fields})
    return units(answer)[0]


def test_a_read_is_charged_for_the_key_and_what_it_selects(plain: Driver) -> None:
    plain.put((("PK1", "a"),), *wide(*"abcde"))
    plain.put((("PK1", "o"),), put("a", "v" * 5000))

    assert read_units(plain, "absent") == 1
    assert read_units(plain, "absent", columns_to_get=["a"]) == 1
    assert read_units(plain, "o") == 2
    assert read_units(plain) == 3
    assert read_units(plain, columns_to_get=["a", "b"]) == 2
    assert read_units(plain, columns_to_get=["a", "x"]) == 1
    assert read_units(plain, columns_to_get=["x", "y"]) == 1
    assert read_units(plain, filter=single(ComparatorType.EQUAL, "a", encode_value(1))) == 3


def test_a_range_is_charged_once_for_all_scanned_rows(plain: Driver) -> None:
    low, high = (("PK1", KeyBound.INF_MIN),), (("PK1", KeyBound.INF_MAX),)

    def charged(**fields: Any) -> int:
        return units(plain.range_page(low, high, **fields))[0]

    assert (charged(), charged(columns_to_get=["a"])) == (1, 1)
    plain.put((("PK1", "a"),), *wide("a", "b", "c", size=4096))
    assert charged() == 4
    plain.put((("PK1", "b"),), *wide("a", "b", "d", size=4096))
    assert charged() == 7
    assert charged(columns_to_get=["a", "b"]) == 5
    assert charged(columns_to_get=["x", "y"]) == 1
    assert charged(columns_to_get=["c", "d"]) == 3
    assert charged(filter=single(ComparatorType.EQUAL, "a", encode_value(1))) == 7


def test_an_expectation_reads_the_key_only(plain: Driver) -> None:
    key = (("PK1", "a"),)

    assert units(plain.put(key, *wide("a", "b", size=4096))) == (0, 3)
    assert units(plain.delete(key)) == (0, 1)
    assert units(plain.put(key, *wide("a", "b", size=4096), expect=NOT_EXIST)) == (1, 3)
    assert units(plain.put(key, *wide("a", "b", "c", size=4096), expect=EXIST)) == (1, 4)
    changes = [*wide("a", "b", size=4096), delete_all("c"), delete_all("d")]
    assert units(plain.update(key, *changes, expect=EXIST)) == (1, 3)
    assert units(plain.delete(key)) == (0, 1)
    assert units(plain.delete(key, expect=NOT_EXIST)) == (1, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"max_versions": 2}, 2), ({"time_to_live": DAY_SECONDS}, 2)],
    ids=["one version for ever", "versions", "a time to live"],
)
def test_timestamps_count_only_where_there_may_be_several_or_an_end(options: dict[str, int], expected: int) -> None:
    driver = Driver()
    driver.create(key=(("PK1", "STRING"),), options=options)
    # Key 4 bytes, column name 1: 4,090 bytes of row, and 8 more with its timestamp.
    answer = driver.update((("PK1", "a"),), put("c", "v" * 4085))

    assert units(answer) == (0, 1)
    assert read_units(driver) == expected


def test_lengths_of_names_are_bytes(plain: Driver) -> None:
    key = (("PK1", "a"),)
    fits, exceeds = put("公司", "v" * (4096 - 4 - 6)), put("公司", "v" * (4096 - 4 - 6 + 1))

    assert [units(plain.put(key, cell))[1] for cell in (fits, exceeds)] == [1, 2]
    assert read_units(plain) == 2


@pytest.mark.parametrize("operation", ["PutRow", "UpdateRow"])
def test_lengths_of_texts_are_bytes(plain: Driver, operation: str) -> None:
    write = plain.put if operation == "PutRow" else plain.update
    fits, exceeds = (("PK1", "é"),), (("PK1", "éé"),)  # 5 and 7 bytes, the name with them
    text = "ü" * ((4096 - 5 - 1) // 2)

    assert [units(write(key, put("c", text)))[1] for key in (fits, exceeds)] == [1, 2]
    assert [read_units(plain, key[0][1]) for key in (fits, exceeds)] == [1, 2]


def lettered(driver: Driver, letters: str = "abcdefg") -> None:
    for letter in letters:
        driver.put(letter, put("x", letter))


def test_range_is_half_open_and_ascending(driver: Driver) -> None:
    lettered(driver)

    assert [values[0] for values in driver.rows("b", "e")[0].primary_key] == ["pk"]
    assert [row.primary_key[0][1] for row in driver.rows("b", "e")] == ["b", "c", "d"]


def test_backward_range_includes_its_start_and_descends(driver: Driver) -> None:
    lettered(driver)

    assert [row.primary_key[0][1] for row in driver.rows("e", "b", backward=True)] == ["e", "d", "c"]
    assert len(driver.rows((("pk", KeyBound.INF_MAX),), (("pk", KeyBound.INF_MIN),), backward=True)) == 7


@pytest.mark.parametrize("backward", [True, False])
def test_pages_join_without_gap_or_repeat(driver: Driver, backward: bool) -> None:
    lettered(driver)
    low, high = (("pk", KeyBound.INF_MIN),), (("pk", KeyBound.INF_MAX),)
    start, end = (high, low) if backward else (low, high)

    rows = driver.rows(start, end, backward=backward, limit=2)

    assert [row.primary_key[0][1] for row in rows] == sorted("abcdefg", reverse=backward)


def test_the_last_page_names_no_next_key(driver: Driver) -> None:
    lettered(driver)

    assert driver.range_page("a", "d", limit=2).HasField("next_start_primary_key")
    assert not driver.range_page("a", "d", limit=3).HasField("next_start_primary_key")


def test_a_filtered_page_may_be_empty_and_still_continue() -> None:
    """What one call scans is bounded, whatever the filter leaves of it."""
    driver = Driver(limits=Limits(range_rows=3))
    driver.create()
    lettered(driver)
    is_g = single(ComparatorType.EQUAL, "x", encode_value("g"))

    answer = driver.range_page((("pk", KeyBound.INF_MIN),), (("pk", KeyBound.INF_MAX),), filter=is_g)

    assert answer.rows == b""
    assert decode_row(answer.next_start_primary_key).primary_key == (("pk", "d"),)
    assert list(driver.table(filter=is_g)) == ["g"]


def test_a_page_stops_at_its_size() -> None:
    driver = Driver(limits=Limits(range_bytes=2500))
    driver.create()
    for letter in "abcd":
        driver.put(letter, put("x", "v" * 1000))

    answer = driver.range_page((("pk", KeyBound.INF_MIN),), (("pk", KeyBound.INF_MAX),))

    assert decode_row(answer.next_start_primary_key).primary_key == (("pk", "d"),)


def test_range_over_several_key_columns() -> None:
    driver = Driver()
    driver.create(key=(("pk", "INTEGER"), ("sk", "BINARY")))
    for number in (-1, 0, 1):
        for suffix in (b"", b"\x00", b"\xff"):
            driver.put((("pk", number), ("sk", suffix)), put("x", 1))

    def keys(start: tuple[object, object], end: tuple[object, object]) -> list[object]:
        rows = driver.rows((("pk", start[0]), ("sk", start[1])), (("pk", end[0]), ("sk", end[1])))
        return [(row.primary_key[0][1], row.primary_key[1][1]) for row in rows]

    assert keys((0, KeyBound.INF_MIN), (0, KeyBound.INF_MAX)) == [(0, b""), (0, b"\x00"), (0, b"\xff")]
    assert keys((-1, b"\x00"), (0, b"\x00")) == [(-1, b"\x00"), (-1, b"\xff"), (0, b"")]
    assert len(keys((KeyBound.INF_MIN, KeyBound.INF_MIN), (KeyBound.INF_MAX, KeyBound.INF_MAX))) == 9
