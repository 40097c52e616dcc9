"""Reading the lake: each format without loss, files of different schemas, and the rows that changes leave."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, change, delete, delete_cell, put, put_cell, rows, update

from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.spark import (
    FileSink,
    SparkRecordProcessorFactory,
    UnfitValue,
    current_rows,
    fold_changes,
    read_changes,
)
from streamclient.spark.arrow import build_table, to_frame
from streamclient.spark.columns import GrowingSchema, RawColumns
from streamclient.spark.types import value_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AWKWARD = [
    put(1, "plain", i=-(2**63), d=1e-7, b=True, s="x", y=b"\x00\xff"),
    put(2, "empty", s="", y=b""),
    put(3, "\\N", s="\\N", d=math.inf),
    put(4, "\\", s="\\\\", d=-0.0),
    put(5, 'quote " and , and\ttab', s=' "lead and trail" '),
    put(6, "line\nend", s="carriage\r\nreturn\rand é 漢 😀"),
    put(7, "null", s="null"),
    update(8, "plain", delete_cell("i"), delete_cell("s", 5), b=False),
    change(9, "versions", put_cell("i", 2, 20), put_cell("i", 1, 10), put_cell("with.dot 'quote'", "v", 3)),
    delete(10, "empty"),
]


def write(spark: Any, sink: Any, shard: StoredShard) -> None:
    with SparkRecordProcessorFactory(sink, session=spark) as factory:
        run = Run(factory, shard)
        run.read(len(shard.records))
        run.stop()


def everything(frame: Any) -> list[Any]:
    return [tuple(row) for row in frame.orderBy("_sequence").collect()]


@pytest.mark.parametrize("name", ["orc", "json", "csv"])
def test_each_format_gives_back_what_parquet_does(spark: Any, tmp_path: Path, name: str) -> None:
    write(spark, FileSink(tmp_path / "parquet"), StoredShard("s/1 %", AWKWARD))
    write(spark, FileSink(tmp_path / name, name), StoredShard("s/1 %", AWKWARD))

    expected, actual = read_changes(spark, tmp_path / "parquet"), read_changes(spark, tmp_path / name)

    assert actual.schema.simpleString() == expected.schema.simpleString()
    assert everything(actual) == everything(expected)
    assert [row["pk"] for row in expected.orderBy("_sequence").collect()] == [one.key["pk"] for one in AWKWARD]
    assert everything(expected)[3][expected.columns.index("d")] == 0.0


def test_name_with_a_backtick_is_kept_or_refused(spark: Any, tmp_path: Path) -> None:
    """Spark's ORC writer would make nulls of the column."""
    shard = StoredShard("s1", [change(1, 1, put_cell("a`b", "v"))])
    write(spark, FileSink(tmp_path / "parquet"), shard)
    assert rows(current_rows(spark, tmp_path / "parquet"), "`a``b`") == [("v",)]
    again = StoredShard("s1", shard.records)
    with pytest.raises(ConfigurationError, match="backtick"):
        write(spark, FileSink(tmp_path / "orc", "orc"), again)
    assert again.checkpoints == []


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="format must be one of parquet, orc, json, csv, not 'avro'"):
        FileSink(tmp_path, "avro")


def test_files_of_old_and_new_schemas_are_read_together(spark: Any, tmp_path: Path) -> None:
    """A column that grows from integer to double to text, and one that appears late, over separate processes."""
    sink = FileSink(tmp_path)
    write(spark, sink, StoredShard("s1", [put(1, 1, v=1), put(2, 2, v=2)]))
    write(spark, sink, StoredShard("s2", [put(3, 3, v=0.5, late="x")]))
    assert rows(read_changes(spark, tmp_path), "pk", "v", "late") == [(1, 1.0, None), (2, 2.0, None), (3, 0.5, "x")]

    write(spark, sink, StoredShard("s3", [put(4, 4, v=2**60)]))
    write(spark, sink, StoredShard("s4", [put(5, 5, v=b"hi"), put(6, 6, v=1e10), put(7, 7, v=True)]))
    write(spark, sink, StoredShard("s5", [put(8, 8, v=1e10)]))
    write(spark, sink, StoredShard("s6", [put(9, 9, v=b"ho")]))

    assert rows(read_changes(spark, tmp_path), "pk", "v") == [
        (1, "1"),
        (2, "2"),
        (3, "0.5"),
        (4, str(2**60)),
        (5, "base64:aGk="),
        (6, "1.0E10"),
        (7, "true"),
        (8, "1.0E10"),
        (9, "base64:aG8="),
    ]


def test_values_that_look_alike_stay_apart(spark: Any, tmp_path: Path) -> None:
    """In one batch, in files of several schemas, and in the rows that the changes leave."""
    sink, alike = FileSink(tmp_path), [1, 1.0, "1", True, "true", b"hi", "base64:aGk=", "1.0", "aGk="]
    write(spark, sink, StoredShard("s1", [put(1, 1, v=1)]))
    write(spark, sink, StoredShard("s2", [put(2, 2, v=1.0), put(3, 3, v=1)]))
    write(spark, sink, StoredShard("s3", [put(4, 4, v=b"hi")]))
    write(spark, sink, StoredShard("s4", [put(number, number, v=value) for number, value in enumerate(alike, 10)]))

    for frame in (read_changes(spark, tmp_path), current_rows(spark, tmp_path)):
        found = {row["pk"]: exactly(row, "v") for row in frame.select("pk", "v", "_unfit").collect()}
        expected = {1: 1, 2: 1.0, 3: 1, 4: b"hi", **{10 + number: value for number, value in enumerate(alike)}}
        assert {key: (type(value), value) for key, value in found.items()} == {
            key: (type(value), value) for key, value in expected.items()
        }


def exactly(row: Any, name: str) -> Any:
    """The value that a column shows, as it was written."""
    unfit = row["_unfit"].get(name)
    return row[name] if unfit is None else value_of(unfit["type"], unfit["value"])


def test_older_versions_keep_their_types_too(spark: Any, tmp_path: Path) -> None:
    """A version that another one covered shows again when that one is deleted."""
    cells = [put_cell("v", "1", 1), put_cell("v", 1, 2), put_cell("v", b"x", 3)]
    shard = StoredShard("s1", [change(1, 1, *cells[:2]), update(2, 1, delete_cell("v", 2)), change(3, 2, *cells)])
    write(spark, FileSink(tmp_path), shard)

    found = current_rows(spark, tmp_path, max_versions=3).select("pk", "v", "_unfit").collect()
    assert {row["pk"]: exactly(row, "v") for row in found} == {1: "1", 2: b"x"}


def test_lakes_of_two_tables_are_not_mixed(spark: Any, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    write(spark, sink, StoredShard("s1", [put(1, 1, v=1)]))
    other = StreamRecord(RecordType.DELETE, (("other", 1),), (), SequenceInfo(0, 1, 0))
    write(spark, sink, StoredShard("s2", [other]))
    with pytest.raises(StreamClientException, match="different primary_key"):
        read_changes(spark, tmp_path)


Versions = dict[str, list[tuple[int, Any]]]


def model(records: list[StreamRecord], max_versions: int) -> dict[str, dict[str, Any]]:
    """What a table would hold: written cell by cell, for clarity."""
    table: dict[Any, Versions] = {}
    for record in records:
        key = record.primary_key[0][1]
        if record.record_type is RecordType.DELETE:
            table.pop(key, None)
            continue
        if record.record_type is RecordType.PUT:
            table[key] = {}
        is_new = key not in table
        row = table.setdefault(key, {})
        for cell in sorted(record.columns, key=lambda one: one.operation is ColumnOperation.PUT):
            kept = row.get(cell.name, [])
            if cell.operation is ColumnOperation.DELETE_ALL_VERSION:
                row[cell.name] = []
                continue
            kept = [one for one in kept if one[0] != cell.timestamp_millis]
            if cell.operation is ColumnOperation.PUT:
                kept = sorted([*kept, (cell.timestamp_millis or 0, cell.value)], reverse=True)
            row[cell.name] = kept[:max_versions]
        puts = any(cell.operation is ColumnOperation.PUT for cell in record.columns)
        if is_new and not puts and record.record_type is RecordType.UPDATE:
            del table[key]
    return {key: {name: kept[0][1] for name, kept in row.items() if kept} for key, row in table.items()}


def history(seed: int, count: int, keys: int, *, several_versions: bool) -> list[StreamRecord]:
    dice = random.Random(seed)
    records = []
    for number in range(1, count + 1):
        kind = dice.choices(list(RecordType), [2, 6, 1])[0]
        cells: list[RecordColumn] = []
        for name in dice.sample("abc", dice.randrange(4)) if kind is not RecordType.DELETE else ():
            roll = dice.random() if kind is RecordType.UPDATE else 1.0
            # Few versions, so that they meet: older than what is there, equal to it, and newer.
            if roll < 0.15:
                cells.append(delete_cell(name))
            elif roll < 0.35:
                cells.append(delete_cell(name, dice.randrange(6)))
            else:
                versions = dice.sample(range(6), 3 if several_versions and dice.random() < 0.3 else 1)
                cells += [put_cell(name, f"{name}{number}@{version}", version) for version in sorted(versions)[::-1]]
        # The clock falls back with each epoch, as it may when a child shard lives on another server.
        epoch, time = divmod(number, 200)
        records.append(StreamRecord(kind, (("pk", dice.randrange(keys)),), tuple(cells), SequenceInfo(epoch, time, 0)))
    return records


@pytest.mark.parametrize("max_versions", [1, 3])
def test_folded_changes_are_the_rows_of_the_table(spark: Any, max_versions: int) -> None:
    records = history(max_versions, 1_500, 150, several_versions=max_versions > 1)
    schema = GrowingSchema(UnfitValue.WIDEN)
    shuffled = random.Random(7).sample(records, len(records)) + records[:100]
    raw = schema.fit(RawColumns.collect("s1", shuffled)).raw
    changes = to_frame(spark, build_table([raw], schema.frame_columns(), "_"))

    folded = fold_changes(changes, ["pk"], max_versions=max_versions)

    actual = {
        row["pk"]: {name: row[name] for name in "abc" if row[name] is not None}
        for row in folded.select("pk", "a", "b", "c").collect()
    }
    assert actual == model(records, max_versions)
    assert len(actual) > 50


def test_row_without_columns_exists(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard(
        "s1", [put(1, 1), update(2, 2, delete_cell("v")), update(3, 3, v=1), update(4, 3, delete_cell("v"))]
    )
    write(spark, FileSink(tmp_path), shard)
    assert rows(current_rows(spark, tmp_path), "pk", "v") == [(1, None), (3, None)]


def test_frame_comes_in_partitions_worth_their_rows(spark: Any) -> None:
    import pyarrow as pa

    assert to_frame(spark, pa.table({"a": range(30_000)})).rdd.getNumPartitions() == 2
    assert to_frame(spark, pa.table({"a": range(300)})).rdd.getNumPartitions() == 1


def test_making_a_frame_touches_no_setting_of_the_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: other threads use the same session, and make frames in it."""
    import pyarrow as pa

    changed: list[str] = []
    kind = type(spark.conf)
    original = kind.set

    def noted(conf: Any, key: str, value: Any) -> None:
        if conf._jconf.equals(spark.conf._jconf):
            changed.append(key)
        original(conf, key, value)

    monkeypatch.setattr(kind, "set", noted)
    frame = to_frame(spark, pa.table({"a": range(30)}))
    spark.range(1).createOrReplaceTempView("known_to_the_session")

    assert changed == []
    assert frame.count() == 30
    assert to_frame(spark, pa.table({"a": [1]})).sparkSession.table("known_to_the_session").count() == 1


# --- file systems without a rename in one step -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/lake",
        "s3a://bucket/lake",
        "S3N://bucket/lake/",
        Path("s3a://bucket/lake"),
        "oss://bucket/lake",
        "oss://bucket.oss-cn-hangzhou.aliyuncs.com/lake",
        "oss://bucket/x.oss-dls.aliyuncs.com/lake",
        "gs://bucket/lake",
        "cosn://bucket/lake",
        "obs://bucket/lake",
        "wasbs://container@account.blob.core.windows.net/lake",
        "dbfs:/lake",
    ],
    ids=str,
)
def test_a_lake_on_a_store_of_objects_is_refused_with_a_sentence(path: str | Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write exactly once to .* renames a directory in one step"):
        FileSink(path)


@pytest.mark.parametrize(
    "path",
    [
        "lake",
        "/lake/with:colon",
        "C:/lake",
        "file:///lake",
        "hdfs://name/lake",
        "abfss://container@account.dfs.core.windows.net/lake",
        "oss://bucket.cn-hangzhou.oss-dls.aliyuncs.com/lake",
    ],
)
def test_a_lake_where_directories_are_renamed_in_one_step_is_taken(path: str) -> None:
    FileSink(path)


def test_a_lake_on_a_default_file_system_without_such_a_rename_is_refused_before_any_effect(spark: Any) -> None:
    """FTP comes with Hadoop and connects with the first question only; a store of objects shows itself the same way."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    usual = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "ftp://user:word@localhost")
    try:
        with pytest.raises(ConfigurationError, match=r"cannot write exactly once to ftp://.*/lake: "):
            FileSink("/lake")(spark.range(1), None)  # type: ignore[arg-type]
    finally:
        hadoop.set("fs.defaultFS", usual)
