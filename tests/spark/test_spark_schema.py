"""Types, growing schemas and Arrow columns: everything before Spark, without it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from spark_helpers import change, delete_cell, put, put_cell, update

from streamclient.errors import CodecError, ConfigurationError, UnfitValueError
from streamclient.model import ColumnType, TableDefinition
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.spark import FrameColumn, SparkConfig, UnfitValue
from streamclient.spark.arrow import build_table, note_wide_integers
from streamclient.spark.columns import Fitted, GrowingSchema, RawColumns
from streamclient.spark.context import BatchContext, ShardRange, sequence_text
from streamclient.spark.lake import merged_columns
from streamclient.spark.types import exact_text, fits, schema_types, text_of, type_of_value, value_of, wider

WIDE = 2**53 + 1

values = some.one_of(
    some.integers(-(2**63), 2**63 - 1), some.floats(), some.booleans(), some.text(max_size=5), some.binary(max_size=5)
)


def schema(
    policy: UnfitValue = UnfitValue.WIDEN,
    given: Mapping[str, ColumnType] | None = None,
    table: TableDefinition | None = None,
    *,
    is_case_sensitive: bool = True,
) -> GrowingSchema:
    return GrowingSchema.make(policy, "_", is_case_sensitive=is_case_sensitive, schema=given, table=table)


def fit(growing: GrowingSchema, *records: StreamRecord) -> Fitted:
    return growing.fit(RawColumns.collect("s1", records))


def table(growing: GrowingSchema, *records: StreamRecord) -> list[dict[str, Any]]:
    raws = [fit(growing, *records).raw]
    note_wide_integers(growing, raws)
    rows: list[dict[str, Any]] = build_table(raws, growing.frame_columns(), "_").to_pylist()
    return rows


def kinds(growing: GrowingSchema) -> dict[str, str]:
    return {column.name: column.type.value for column in growing.frame_columns()}


@given(some.sampled_from(ColumnType), some.sampled_from(ColumnType), some.sampled_from(ColumnType), some.booleans())
def test_widening_does_not_depend_on_the_order_of_what_comes(
    one: ColumnType, two: ColumnType, three: ColumnType, wide: bool
) -> None:
    def join(left: ColumnType, right: ColumnType) -> ColumnType:
        return wider(left, right, has_wide_integers=wide)

    assert join(one, two) is join(two, one)
    assert join(join(one, two), three) is join(one, join(two, three))
    assert join(one, one) is one


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (True, "true"),
        ("x", "x"),
        (b"hi", "base64:aGk="),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (1.25e-7, "1.25E-7"),
        (12345678.5, "1.23456785E7"),
        (1e22, "1.0E22"),
        (-1.5e300, "-1.5E300"),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
    ],
)
def test_text_of_a_value_is_what_spark_casts_it_to(value: Any, text: str) -> None:
    assert text_of(value) == text


@given(some.floats(allow_nan=False))
def test_text_of_a_double_loses_nothing(value: float) -> None:
    assert float(text_of(value)) == value


def test_integers_fit_doubles_only_while_exact() -> None:
    assert fits(2**53, ColumnType.DOUBLE)
    assert not fits(WIDE, ColumnType.DOUBLE)
    assert not fits(True, ColumnType.INTEGER), "a boolean is no integer, whatever Python says"


@given(some.lists(some.dictionaries(some.sampled_from("abc"), values, max_size=3), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_widening_never_nulls_or_changes_a_value(written: list[dict[str, Any]]) -> None:
    records = [put(number, number, **cells) for number, cells in enumerate(written, 1)]
    growing = schema()
    rows = table(growing, *records)
    for cells, row in zip(written, rows, strict=True):
        shown = {name: row[name] for name in "abc" if row.get(name) is not None}
        assert shown.keys() == cells.keys()
        for name, value in cells.items():
            kind = growing.columns[name].type
            expected = text_of(value) if kind is ColumnType.STRING else value
            assert shown[name] == expected or (math.isnan(value) and math.isnan(shown[name]))


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type; a number that is none equals itself."""
    return type(one) is type(other) and (one == other or (isinstance(one, float) and math.isnan(one + other)))


@given(values)
def test_a_type_and_an_exact_text_are_the_value_again(value: Any) -> None:
    assert same(value_of(type_of_value(value).value, exact_text(value)), value)


@pytest.mark.parametrize(("kind", "text"), [("INTEGER", "1.5"), ("BOOLEAN", "yes"), ("BINARY", "?"), ("DATE", "1")])
def test_a_text_that_is_no_value_of_its_type_is_named(kind: str, text: str) -> None:
    with pytest.raises(CodecError, match=f"{re.escape(repr(text))} is no value of type '{kind}'"):
        value_of(kind, text)


@given(some.lists(some.dictionaries(some.sampled_from("abc"), values, max_size=3), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_each_value_can_be_told_from_every_other_whatever_its_column_became(written: list[dict[str, Any]]) -> None:
    """What a column shows may be ambiguous; together with the type beside it, it is not."""
    records = [put(number, number, **cells) for number, cells in enumerate(written, 1)]
    for cells, row in zip(written, table(schema(), *records), strict=True):
        unfit = {name: value_of(one["type"], one["value"]) for name, one in row["_unfit"]}
        assert all(same(unfit.get(name, row[name]), value) for name, value in cells.items())


@given(some.lists(some.dictionaries(some.sampled_from("abc"), values, max_size=3), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_diverting_splits_the_records_and_loses_none(written: list[dict[str, Any]]) -> None:
    records = [put(number, number, **cells) for number, cells in enumerate(written, 1)]
    growing = schema(UnfitValue.DIVERT)
    fitted = fit(growing, *records)
    kept, rejected = list(fitted.raw.records), [one.record for one in fitted.rejected]
    assert sorted(kept + rejected, key=lambda one: one.sequence_info) == records
    assert all(fits(value, growing.columns[name].type) for one in kept for name, value in _cells(one))
    assert build_table([fitted.raw], growing.frame_columns(), "_").num_rows == len(kept)


def _cells(record: StreamRecord) -> list[tuple[str, Any]]:
    return [(cell.name, cell.value) for cell in record.columns]


def test_new_columns_appear_and_stay() -> None:
    growing = schema()
    fit(growing, put(1, 1, b=1))
    rows = table(growing, put(2, 2, a="x"))
    assert kinds(growing) == {"pk": "INTEGER", "b": "INTEGER", "a": "STRING"}
    assert (rows[0]["b"], rows[0]["a"]) == (None, "x")


def test_declared_columns_are_there_from_the_first_frame() -> None:
    declared = TableDefinition("t", (("pk", ColumnType.INTEGER),), {"z": ColumnType.DOUBLE})
    growing = schema(table=declared)
    rows = table(growing, put(1, 1, z=3))
    assert (rows[0]["z"], kinds(growing)["z"]) == (3.0, "DOUBLE")
    assert fit(growing, put(2, 2, z=WIDE)).reports != ()
    assert kinds(growing)["z"] == "STRING"


def test_integers_beyond_doubles_are_remembered_when_doubles_come_later() -> None:
    growing = schema()
    table(growing, put(1, 1, v=WIDE))
    assert table(growing, put(2, 2, v=0.5))[0]["v"] == "0.5"
    small = schema()
    table(small, put(1, 1, v=1))
    assert table(small, put(2, 2, v=0.5))[0]["v"] == 0.5


def test_widening_is_reported_with_the_record() -> None:
    growing = schema()
    fit(growing, put(1, 1, v=1))
    (report,) = fit(growing, put(2, 2, v=2), put(3, 3, v="x")).reports
    assert str(report) == (
        "column 'v' of shard s1 is INTEGER, the record at 0/3/0 holds STRING: the column is now STRING"
    )


def test_failing_names_column_types_and_record() -> None:
    growing = schema(UnfitValue.FAIL)
    fit(growing, put(1, 1, v=1))
    with pytest.raises(UnfitValueError, match="column 'v' of shard s1 is INTEGER, the record at 0/9/0 holds BOOLEAN"):
        fit(growing, put(8, 1, v=2), put(9, 1, v=True))


@pytest.mark.parametrize("policy", UnfitValue)
def test_column_outside_a_given_schema_is_unfit(policy: UnfitValue) -> None:
    growing = schema(policy, {"pk": ColumnType.INTEGER, "a": ColumnType.INTEGER})
    records = (put(1, 1, a=1), put(2, 2, surprise="x"))
    if policy is UnfitValue.FAIL:
        with pytest.raises(UnfitValueError, match="not in the given schema"):
            fit(growing, *records)
        return
    fitted = fit(growing, *records)
    assert len(fitted.reports) == 1
    assert len(fitted.rejected) == (1 if policy is UnfitValue.DIVERT else 0)
    assert ("surprise" in growing.columns) is (policy is UnfitValue.WIDEN)


@pytest.mark.parametrize("policy", UnfitValue)
def test_names_that_differ_in_case_are_refused_only_where_spark_mixes_them_up(policy: UnfitValue) -> None:
    assert table(schema(policy), put(1, 1, A=1, a=2))[0] | {"A": 1, "a": 2} == table(schema(), put(1, 1, A=1, a=2))[0]
    growing = schema(policy, is_case_sensitive=False)
    if policy is UnfitValue.DIVERT:
        fitted = fit(growing, put(1, 1, a=2), put(2, 2, A=1), put(3, 3, b=1, B=1))
        assert [one.record.key for one in fitted.rejected] == [{"pk": 2}, {"pk": 3}]
        return
    with pytest.raises(UnfitValueError, match=r"differ only in case.*spark.sql.caseSensitive"):
        fit(growing, put(1, 1, a=2), put(2, 2, A=1))


def test_column_with_the_name_of_an_added_one_is_refused() -> None:
    with pytest.raises(UnfitValueError, match=r"column '_operation' of the table.*SparkConfig.prefix"):
        fit(schema(), put(1, 1, _operation="x"))
    other = GrowingSchema.make(UnfitValue.WIDEN, "__", is_case_sensitive=True, schema=None, table=None)
    fit(other, put(1, 1, _operation="x"))


def test_key_columns_come_first_in_key_order_whatever_the_schema_says() -> None:
    growing = schema(given={"a": ColumnType.STRING, "k2": ColumnType.STRING, "k1": ColumnType.INTEGER})
    record = StreamRecord(RecordType.DELETE, (("k1", 1), ("k2", "x")), (), SequenceInfo(0, 1, 0))
    fit(growing, record)
    assert [column.name for column in growing.frame_columns()] == ["k1", "k2", "a"]
    assert BatchContext((), growing.frame_columns()).primary_key == ("k1", "k2")


def test_deletes_are_told_apart_from_nulls() -> None:
    rows = table(
        schema(),
        change(1, 1, put_cell("a", "new", 7), put_cell("a", "old", 5), put_cell("b", 1, 7)),
        update(2, 1, delete_cell("a"), delete_cell("b", 7), delete_cell("b", 5)),
        change(3, 1, kind=RecordType.DELETE),
    )
    shown = ("a", "b", "_versions", "_deleted_columns", "_deleted_versions", "_older_versions")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("new", 1, [("a", 7), ("b", 7)], [], [], [{"column": "a", "version": 5, "type": "STRING", "value": "old"}]),
        (None, None, [], ["a"], [("b", [7, 5])], []),
        (None, None, [], [], [], []),
    ]


@given(some.tuples(*[some.integers(0, 2**32 - 1)] * 3), some.tuples(*[some.integers(0, 2**32 - 1)] * 3))
def test_text_of_a_sequence_sorts_as_the_sequence(one: tuple[int, int, int], two: tuple[int, int, int]) -> None:
    first, second = SequenceInfo(*one), SequenceInfo(*two)
    assert (sequence_text(first) < sequence_text(second)) is (first < second)


def test_output_key_depends_on_shard_and_start_but_not_on_the_end() -> None:
    def key(shard: str = "s", stream: str = "t", start: str = "a", end: str = "b") -> str:
        nothing = SequenceInfo(0, 0, 0)
        return ShardRange(shard, stream, "tenancy", start, end, 1, nothing, nothing).output_key

    assert key() == key(end="c")
    assert len({key(), key(shard="x"), key(stream="x"), key(start="x"), key(shard="st", stream="")}) == 5


def test_schemas_of_old_and_new_files_merge_without_loss() -> None:
    key = FrameColumn("pk", ColumnType.INTEGER, is_key=True)

    def merged(*columns: FrameColumn) -> str:
        return merged_columns([(key, column) for column in columns])[1].type.value

    integer, double = FrameColumn("v", ColumnType.INTEGER), FrameColumn("v", ColumnType.DOUBLE)
    wide = FrameColumn("v", ColumnType.INTEGER, has_wide_integers=True)
    assert merged(integer, double) == "DOUBLE"
    assert merged(double, integer, wide) == "STRING"
    assert merged(integer, FrameColumn("v", ColumnType.BINARY)) == "STRING"


def test_schema_with_a_type_that_tablestore_lacks_is_refused() -> None:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    assert schema_types(StructType([StructField("a", LongType())])) == {"a": ColumnType.INTEGER}
    with pytest.raises(ConfigurationError, match="'a' has type int; Tablestore stores bigint"):
        schema_types(StructType([StructField("a", IntegerType())]))
    with pytest.raises(ConfigurationError, match="must be a StructType or a mapping"):
        schema_types(["a"])


@pytest.mark.parametrize(
    ("settings_", "text"),
    [
        ({"max_records": 0}, "max_records must be a whole number above 0, not 0"),
        ({"max_age_millis": 1.5}, "max_age_millis must be a whole number"),
        ({"unfit_value": "WIDER"}, "unfit_value must be one of UnfitValue.WIDEN"),
        ({"prefix": "x"}, "prefix must be an underscore"),
        ({"max_bytes": 2, "max_buffered_bytes": 1}, "max_bytes=2 must not be above max_buffered_bytes=1"),
    ],
)
def test_foolish_settings_are_refused_by_name(settings_: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        SparkConfig(**settings_)
