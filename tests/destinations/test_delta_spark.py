"""Spark of any version reads the table without a jar, and reads it rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamclient.destinations import Day, DeltaDestination, Key
from streamclient.destinations.delta.delta_reading import read_delta
from streamclient.destinations.delta.maintenance import compact
from streamclient.errors import ConfigurationError
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.testing.contracts.destination_contract import change, store

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_spark_reads_the_rows_of_the_table_and_no_others(spark: Any, tmp_path: Path) -> None:
    """Files that were compacted stay beside the others for a week; columns come late; days are a partition."""
    url = str(tmp_path / "table")
    destination = DeltaDestination(url, partition_by=Day())
    last = store(destination, None, [change(1, amount=1.5)])
    last = store(destination, last, [change(2, amount=2.5)])
    compact(destination)
    store(destination, last, [change(3, **{"公 司.n": "x"}), change(4, amount=7)])
    rows = read_delta(spark, url).orderBy("id").collect()

    assert [(row["id"], row["amount"], row["公 司.n"]) for row in rows] == [
        (1, 1.5, None),
        (2, 2.5, None),
        (3, None, "x"),
        (4, 7.0, None),
    ]
    assert {str(row["_day"]) for row in rows} == {"1970-01-01"}
    assert [list(row["_unfit"]) for row in rows] == [[], [], [], ["amount"]]
    assert read_delta(spark, url, version=1).count() == 1


def test_spark_reads_each_directory_as_it_was_written(spark: Any, tmp_path: Path) -> None:
    keys = ["", "007", "公", "a/b c", "50%25", "__HIVE_DEFAULT_PARTITION__"]
    records = [
        StreamRecord(RecordType.DELETE, (("name", key),), (), SequenceInfo(1, number, 0))
        for number, key in enumerate(keys)
    ]
    store(DeltaDestination(str(tmp_path / "table"), partition_by=Key("name")), None, records)
    rows = read_delta(spark, str(tmp_path / "table")).collect()
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset().to_table(use_threads=False)

    assert {row["name"] for row in rows} == set(keys)
    assert {(row["name"], row["_key"]) for row in rows} == {
        (row["name"], row["_key"]) for row in found.select(["name", "_key"]).to_pylist()
    }


NAMES = (
    "plain",
    "a b",
    " a",
    "straße",
    "公司",
    "\U0001fae8",
    "100%",
    "%zz",
    "a#b",
    "a?b",
    "a{b}",
    "a{b,c}",
    "a}b",
    "it's",
    'a"b',
    "a*b",
    "a:b",
    "a,b",
    "a;b",
    "a+b",
    "a&b=c",
    "a@b",
    "a!b$c",
    "(a)",
    "a~b`c",
    "<a>",
)


@pytest.mark.parametrize(("is_address", "version"), [(False, None), (True, 1)], ids=["a path", "an address"])
def test_spark_reads_a_table_whatever_its_directory_is_called(
    spark: Any, tmp_path: Path, is_address: bool, version: int | None
) -> None:
    missed = []
    for name in NAMES:
        directory = tmp_path / name / "table"
        destination = DeltaDestination(directory.as_uri() if is_address else str(directory), partition_by=Key("name"))
        store(destination, None, [StreamRecord(RecordType.DELETE, (("name", name),), (), SequenceInfo(1, 1, 0))])
        rows = read_delta(spark, destination.location.url, version=version).collect()
        if [row["name"] for row in rows] != [name]:
            missed.append(name)

    assert missed == []


@pytest.mark.parametrize("place", ["t", "one two", "a#b?c{d}"])
def test_spark_reads_directories_of_other_writers_whatever_they_are_called(
    spark: Any, tmp_path: Path, place: str
) -> None:
    values = ["plain", "a b", "ü/%", "x=y", "%20", "a%2Fb", "..", 'é:?*"', "#", "{a,b}"]
    write_deltalake(tmp_path / place, pa.table({"p": values, "v": values}), partition_by=["p"])

    rows = read_delta(spark, str(tmp_path / place)).collect()

    assert sorted(row["v"] for row in rows) == sorted(values)


def test_a_table_without_rows_is_a_frame_with_its_columns(spark: Any, tmp_path: Path) -> None:
    store(DeltaDestination(str(tmp_path / "table")), None, [])
    frame = read_delta(spark, str(tmp_path / "table"))

    assert (frame.count(), "_operation" in frame.columns) == (0, True)


def test_a_table_with_deletion_vectors_is_not_read_by_its_files(spark: Any, tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "table"))
    store(destination, None, [change(1)])
    destination.handle().alter.set_table_properties({"delta.enableDeletionVectors": "true"}, raise_if_not_exists=False)
    with pytest.raises(ConfigurationError, match="deletion vectors"):
        read_delta(spark, str(tmp_path / "table"))
