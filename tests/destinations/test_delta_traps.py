"""What loses or changes rows at a Delta table without a word: each such thing is refused, or goes well."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import ArrayType, Field, PrimitiveType

from streamclient.destinations import Commit, Day, DeltaDestination, Key, records_of
from streamclient.destinations.delta.delta_rows import find_rows, row_files
from streamclient.destinations.delta.maintenance import clean, compact
from streamclient.destinations.delta.object_stores import check_location
from streamclient.destinations.probe import sign_oss, sign_s3
from streamclient.destinations.proof.verification import verify
from streamclient.destinations.rows.arrow_schemas import check_fit, check_table_types
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException, UnfitValueError
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers

# --- values that are cast in silence ----------------------------------------------------------------------------------

CASTS = [
    (pa.float64(), 2.5, pa.int64()),
    (pa.int64(), 2**53 + 1, pa.float64()),
    (pa.int64(), 5, pa.string()),
    (pa.bool_(), True, pa.string()),
    (pa.int32(), 5, pa.int64()),
    (pa.float32(), 0.1, pa.float64()),
    (pa.binary(), b"x", pa.string()),
    (pa.list_(pa.float64()), [2.5], pa.list_(pa.int64())),
    (pa.map_(pa.string(), pa.float64()), [("k", 2.5)], pa.map_(pa.string(), pa.int64())),
    (pa.struct([("a", pa.float64())]), {"a": 2.5}, pa.struct([("a", pa.int64())])),
]


@pytest.mark.parametrize(("given", "value", "column"), CASTS, ids=str)
def test_values_of_another_type_are_refused_and_not_cast(given: Any, value: Any, column: Any) -> None:
    rows = pa.table({"v": pa.array([value], given)})
    with pytest.raises(UnfitValueError, match="nothing is cast"):
        check_fit(rows, pa.schema([("v", column)]), "the table")


def test_the_writer_does_cast_in_silence_which_is_why_types_are_compared(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"v": pa.array([1])}))
    write_deltalake(str(tmp_path / "t"), pa.table({"v": pa.array([2.5])}), mode="append", schema_mode="merge")
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset().to_table(use_threads=False)

    assert sorted(found.column("v").to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.timestamp("ns", tz="UTC"),
        pa.timestamp("us"),
        pa.timestamp("us", tz="+08:00"),
        pa.timestamp("ms", tz="UTC"),
        pa.time64("us"),
        pa.duration("us"),
        pa.float16(),
        pa.list_(pa.timestamp("ns")),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_types_that_come_back_as_others_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="'v'"):
        check_table_types(pa.schema([("v", kind)]))


def test_columns_of_nothing_but_null_are_left_until_a_value_gives_them_a_type() -> None:
    rows = pa.table({"v": pa.array([1]), "n": pa.nulls(1)})

    assert check_fit(rows, pa.schema([]), "the table").column_names == ["v"]


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.struct([("q", pa.null())]), pa.map_(pa.string(), pa.null())])
def test_null_within_a_type_is_refused_before_it_fixes_the_column(kind: Any, tmp_path: Path) -> None:
    destination, commit = DeltaDestination(str(tmp_path / "t")), batch(None, [change(1)])
    rows = rows_for(destination, [change(1)], commit).append_column("v", pa.array([None], kind))
    with pytest.raises(ConfigurationError, match=r"'v' .*contains the null type"):
        destination.commit(rows, [commit])
    assert destination.columns() is None
    store(destination, None, [change(1)])
    with pytest.raises(ConfigurationError, match=r"'v' .*contains the null type"):
        destination.commit(rows, [batch(commit, [change(2)])])

    assert destination.last_commits(["shard-1"])["shard-1"] == commit


def test_names_that_differ_only_in_case_are_refused_by_name() -> None:
    with pytest.raises(UnfitValueError, match=r"'Name'.*'name'"):
        check_fit(pa.table({"Name": pa.array([1])}), pa.schema([("name", pa.int64())]), "the table")
    with pytest.raises(ConfigurationError, match="differ only in case"):
        check_table_types(pa.schema([("Name", pa.int64()), ("name", pa.int64())]))


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "webhdfs://host/t",
        "cos://b/t",
        "obs://b/t",
        "tos://b/t",
        "http://host/t",
        "memory://t",
        "viewfs://x/t",
        "ftp://x",
    ],
)
def test_stores_that_are_not_known_to_refuse_the_second_writer_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written exactly once"):
        check_location(url, None, 10)


@pytest.mark.parametrize(
    "url",
    [
        "/tmp/t",
        "relative/t",
        "file:///tmp/t",
        "s3://b/t",
        "s3a://b/t",
        "abfss://c@a/t",
        "az://c/t",
        "gs://b/t",
        "hdfs://n/t",
    ],
)
def test_stores_that_are_known_are_taken(url: str) -> None:
    assert check_location(url, None, 10).url == url


@pytest.mark.parametrize(
    ("url", "misread"),
    [
        ("/tmp/a%20b", "%20"),
        ("/tmp/a%41/t", "%41"),
        ("file:///tmp/a%2520b", "%20"),
        ("/tmp/a[1]", "["),
        ("file:///tmp/a%5B1%5D", "["),
        ("/tmp/a|b", "|"),
        ("/tmp/a^b", "^"),
        ("/tmp/a\\b", "\\"),
        ("/tmp/a\tb", "\t"),
        ("s3://b/a[1]", "["),
        ("oss://b/a b", " "),
        ("oss://b/ü", "ü"),
    ],
)
def test_paths_that_the_writer_misreads_are_refused(url: str, misread: str) -> None:
    """It aborts, or looks elsewhere for what it has written."""
    options = {"opendal.endpoint": "https://oss-cn-hangzhou.aliyuncs.com"} if url.startswith("oss") else None
    with pytest.raises(ConfigurationError, match=re.escape(f"misreads {misread!r}")):
        check_location(url, options, 10)


@pytest.mark.parametrize("name", ["100%", "%zz", "a b", "a#b?c", "é{x}*", "a~b", "+=&;:,@$!'()"])
def test_paths_with_other_characters_are_taken_and_read_back(name: str, tmp_path: Path) -> None:
    store(DeltaDestination(str(tmp_path / name)), None, [change(1)])

    assert stored_numbers(DeltaDestination(str(tmp_path / name))) == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true"),
        ("allow_unsafe_rename", "1"),
        ("MOUNT_ALLOW_UNSAFE_RENAME", "true"),
        ("aws_conditional_put", "disabled"),
        ("conditional_put", "dynamo:table"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb"),
        ("opendal.enable_versioning", "true"),
    ],
)
def test_options_that_switch_the_refusal_off_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        check_location("s3://b/t", {name: value}, 10)


def test_options_of_the_environment_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs takes them as if they had been given."""
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(ConfigurationError, match="environment variable AWS_CONDITIONAL_PUT"):
        check_location("s3://b/t", None, 10)

    assert check_location("/tmp/t", None, 10).scheme == "file"


@pytest.mark.parametrize("url", ["/tmp/t", "file:///tmp/t"])
def test_an_environment_in_which_local_commits_overwrite_each_other_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigurationError, match="environment variable MOUNT_ALLOW_UNSAFE_RENAME"):
        DeltaDestination(url)

    assert check_location("hdfs://n/t", None, 10).scheme == "hdfs"
    monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", "false")
    assert check_location(url, None, 10).scheme == "file"


def test_harmless_values_of_these_options_are_taken() -> None:
    options = {"aws_conditional_put": "etag", "AWS_S3_ALLOW_UNSAFE_RENAME": "false"}

    assert check_location("s3://b/t", options, 10).options["aws_conditional_put"] == "etag"


def test_requests_are_not_repeated_for_longer_than_a_commit_may_take() -> None:
    """Three minutes by default: longer than most leases."""
    assert check_location("s3://b/t", None, 12).options["retry_timeout"] == "12s"
    assert check_location("s3://b/t", {"retry_timeout": "5s"}, 12).options["retry_timeout"] == "5s"
    for value in ("180s", "3 minutes", "long"):
        with pytest.raises(ConfigurationError, match="retry_timeout"):
            check_location("s3://b/t", {"retry_timeout": value}, 12)


def test_oss_by_the_scheme_of_s3_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match="write oss://"):
        check_location("s3://b/t", {"AWS_ENDPOINT_URL": "https://oss-cn-hangzhou.aliyuncs.com"}, 10)
    with pytest.raises(ConfigurationError, match=r"opendal\.endpoint"):
        check_location("oss://b/t", None, 10)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are made by them; there is none here without, so the call is made to fail."""

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(ConfigurationError, match="hard links"):
        DeltaDestination(str(tmp_path / "t")).probe()


def test_a_file_system_that_links_over_what_is_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.link", lambda source, target: None)
    with pytest.raises(ConfigurationError, match="links replace existing files"):
        DeltaDestination(str(tmp_path / "t")).probe()


def test_the_probe_of_a_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    """Nor a directory: it would be in the way of a table that is moved back there."""
    DeltaDestination(str(tmp_path / "t" / "u")).probe()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "t").mkdir()
    DeltaDestination(str(tmp_path / "t")).probe()

    assert list(tmp_path.rglob("*")) == [tmp_path / "t"]


def test_requests_to_s3_are_signed_as_amazon_documents_it() -> None:
    """The example of its page on signature version 4."""
    headers = {"host": "examplebucket.s3.amazonaws.com", "range": "bytes=0-9"}
    at = datetime(2013, 5, 24, tzinfo=timezone.utc)
    signed = sign_s3(
        "GET",
        "/test.txt",
        headers,
        access="AKIAIOSFODNN7EXAMPLE",
        secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        region="us-east-1",
        at=at,
    )

    assert signed["authorization"].endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")


def test_requests_to_oss_are_signed_as_alibaba_documents_it() -> None:
    """The example of its page on signatures in headers."""
    headers = {
        "Content-Md5": "ODBGOERFMDMzQTczRUY3NUE3NzA5QzdFNUYzMDQxNEM=",
        "Content-Type": "text/html",
        "Date": "Thu, 17 Nov 2005 18:49:58 GMT",
        "X-OSS-Meta-Author": "foo@bar.com",
        "X-OSS-Magic": "abracadabra",
    }
    signed = sign_oss(
        "PUT", "/oss-example/nelson", headers, "44CF9590006BF252F707", "OtxrzxIsfpFjA7SwPzILwy8Bw21TLhquhboDYROV"
    )

    assert signed == "OSS 44CF9590006BF252F707:26NBxoKdsyly4EDv6inkoDft/yA="


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets"),
        ({"delta.enableDeletionVectors": "true"}, "deletion vectors"),
        ({"delta.enableExpiredLogCleanup": "true"}, "is cleared by others"),
        ({}, "is cleared by others"),
    ],
)
def test_tables_with_properties_that_lose_rows_or_commits_are_refused(
    tmp_path: Path, properties: dict[str, str], said: str
) -> None:
    schema = pa.schema([("id", pa.int64())])
    configuration = {"delta.enableExpiredLogCleanup": "false", **properties} if properties else {}
    DeltaTable.create(str(tmp_path / "t"), schema=schema, configuration=configuration, raise_if_key_not_exists=False)
    with pytest.raises(ConfigurationError, match=said):
        DeltaDestination(str(tmp_path / "t")).probe()


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_with_mapped_columns_is_refused(mode: str, tmp_path: Path) -> None:
    """Readers of its files find null in every column. delta-rs makes no such table, so it is made as others do."""
    DeltaTable.create(
        str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64())]),
        configuration={"delta.enableExpiredLogCleanup": "false"},
    )
    path = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for one in actions:
        if "protocol" in one:
            one["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in one:
            one["metaData"]["configuration"]["delta.columnMapping.mode"] = mode
            schema = json.loads(one["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
            one["metaData"]["schemaString"] = json.dumps(schema)
    path.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ConfigurationError, match="mapped column names"):
        DeltaDestination(str(tmp_path / "t")).probe()


def test_a_table_that_is_divided_otherwise_is_refused(tmp_path: Path) -> None:
    store(DeltaDestination(str(tmp_path / "t"), partition_by=Day()), None, [change(1)])
    with pytest.raises(ConfigurationError, match="partition_by"):
        DeltaDestination(str(tmp_path / "t")).probe()


def test_commits_that_the_log_has_lost_are_an_error_that_is_shown(tmp_path: Path) -> None:
    """Somebody else cleared the log; the table still knows that there was a commit."""
    destination = DeltaDestination(str(tmp_path / "t"))
    last = store(destination, None, [change(1)])
    destination.handle().create_checkpoint()
    for path in (tmp_path / "t" / "_delta_log").glob("*.json"):
        path.unlink()
    reopened = DeltaDestination(str(tmp_path / "t"))
    with pytest.raises(StreamClientException, match="no longer holds this commit"):
        reopened.last_commits(["shard-1"])
    with pytest.raises(StreamClientException, match="no longer holds this commit"):
        reopened.commit(rows_for(reopened, [change(2)], batch(last, [change(2)])), [batch(last, [change(2)])])

    assert reopened.last_commits(["other"]) == {"other": None}


def test_a_table_that_was_there_and_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Not even for a shard's first commit, which would go in: all other shards' rows are lost."""
    destination = DeltaDestination(str(tmp_path / "t"))
    store(destination, None, [change(1)])
    further = destination.another()
    shutil.rmtree(tmp_path / "t")
    for handle in (destination, further):
        first = batch(None, [change(2)], shard="shard-2")
        with pytest.raises(DependencyException, match="is gone"):
            handle.commit(rows_for(DeltaDestination(str(tmp_path / "t")), [change(2)], first), [first])
        with pytest.raises(DependencyException, match="is gone"):
            handle.last_commits(["shard-1"])

    assert DeltaDestination(str(tmp_path / "t")).columns() is None


# --- directories by key or day ----------------------------------------------------------------------------------------

KEYS = [
    "",
    "__HIVE_DEFAULT_PARTITION__",
    "公",
    "a/b",
    "50%",
    "x=y",
    "a:b",
    "007",
    ".",
    "..",
    "_a",
    "a b",
    "%",
    "%-",
    "_",
    "_-",
    "A",
    "a",
    "x" * 300,
    "x" * 299 + "y",
    "中" * 60,
]


def keyed(number: int, key: Any) -> StreamRecord:
    return StreamRecord(RecordType.DELETE, (("name", key), ("id", number)), (), SequenceInfo(1, number * 10**6, 0))


def test_each_key_gets_a_directory_of_its_own_and_comes_back(tmp_path: Path) -> None:
    """The writer makes null of the empty text and of one other; readers take letters beyond ASCII for others."""
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Key("name"))
    records = [keyed(number, key) for number, key in enumerate(KEYS)]
    store(destination, None, records)
    found = {record.key["name"] for table in destination.rows() for record in records_of(table)}
    written = {one for table in destination.rows() for one in table.column("_key").to_pylist()}

    assert found == set(KEYS)
    assert len(written) == len(KEYS)
    assert None not in written
    assert all(text.isascii() for text in written)
    directories = {path.name for path in (tmp_path / "t").iterdir() if path.name.startswith("_key=")}
    assert directories == {f"_key={one}" for one in written}  # nothing is escaped once more
    assert max(map(len, directories)) <= 143


def test_keys_of_numbers_and_bytes_get_directories_too(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Key("name"))
    last: Commit | None = None
    for number, key in enumerate([-5, b"\xff\x00"]):
        last = store(destination, last, [keyed(number, key)])
    written = {one for table in destination.rows() for one in table.column("_key").to_pylist()}

    # The second one does not fit the column of integers, and stands beside it.
    assert written == {"-5", "_-"}
    assert {record.key["name"] for table in destination.rows() for record in records_of(table)} == {-5, b"\xff\x00"}


def test_files_of_a_key_stay_for_as_long_as_all_others_when_they_are_replaced(tmp_path: Path) -> None:
    """Names that Delta escapes again are not recognised by its clean-up, which removed such files at once."""
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Key("name"))
    last = store(destination, None, [keyed(0, "a b/公%")])
    store(destination, last, [keyed(1, "a b/公%")])
    for path in (tmp_path / "t").glob("_key=*/*.parquet"):
        os.utime(path, (path.stat().st_mtime - 10 * 24 * 3600,) * 2)
    replaced = destination.handle().file_uris()
    compact(destination)

    assert clean(destination, keep_hours=24).files == 0
    assert len(replaced) == 2
    assert all(Path(one.removeprefix("file://")).exists() for one in replaced)


def test_a_day_is_that_of_the_change_in_utc(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Day())
    midnight = datetime(2024, 3, 1, tzinfo=timezone.utc)
    micros = int(midnight.timestamp()) * 10**6
    records = [
        StreamRecord(RecordType.DELETE, (("id", number),), (), SequenceInfo(1, micros + number - 1, 0))
        for number in range(2)
    ]
    store(destination, None, records)
    days = {one for table in destination.rows() for one in table.column("_day").to_pylist()}

    assert days == {date(2024, 2, 29), date(2024, 3, 1)}


def test_columns_of_the_source_that_are_named_like_the_partition_stay_apart(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Day())
    store(destination, None, [change(1, _day="Monday", _DAY=2)])

    assert stored_numbers(destination) == [1]


# --- answers that are lost ---


def test_a_commit_that_a_successor_has_followed_is_not_called_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored without an answer, and overtaken before the writer looks again: it is fenced, but its rows are in."""
    destination, successor = (DeltaDestination(str(tmp_path / "t")) for _ in range(2))
    append, is_first = DeltaDestination._append, [True]

    def losing(self: DeltaDestination, handle: Any, rows: Any, commits: Any) -> None:
        append(self, handle, rows, commits)
        if is_first.pop():
            is_first.append(False)
            store(successor, commits[0], [change(2)], epoch=2)
            raise OSError("the answer is lost")

    monkeypatch.setattr(DeltaDestination, "_append", losing)
    store(destination, None, [change(1)], epoch=1)

    assert stored_numbers(destination) == [1, 2]


def test_rows_go_in_behind_a_column_that_another_writer_brought_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs refuses rows, and columns, of whoever loaded the table before; nothing is merged for them."""
    destination, other = (DeltaDestination(str(tmp_path / "t")) for _ in range(2))
    last = store(destination, None, [change(1)])
    append, is_first = DeltaDestination._append, [True]

    def overtaken(self: DeltaDestination, handle: Any, rows: Any, commits: Any) -> None:
        if is_first and is_first.pop():
            store(other, None, [change(2, theirs=True)], shard="shard-2")
        append(self, handle, rows, commits)

    monkeypatch.setattr(DeltaDestination, "_append", overtaken)
    store(destination, last, [change(3, ours="x")])

    assert stored_numbers(destination) == [1, 2, 3]
    columns = destination.columns()
    assert columns is not None
    assert {"ours", "theirs"} < set(columns.names)


def test_a_column_of_another_program_that_a_change_is_called_like_stops_no_commit(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"))
    last = store(destination, None, [change(1)])
    theirs = [Field("checked_on", PrimitiveType("date")), Field("tags", ArrayType(PrimitiveType("string"), True))]
    DeltaTable(str(tmp_path / "t")).alter.add_columns(theirs)
    DeltaTable(str(tmp_path / "t")).update({"checked_on": "cast('2026-01-01' as date)"})
    last = store(destination, last, [change(2, checked_on="today", tags=5)])
    compact(destination)
    store(destination, last, [change(3, checked_on=1.5)])

    rows = {row["id"]: row for table in destination.rows() for row in table.to_pylist()}
    assert [rows[number]["checked_on"] for number in (1, 2, 3)] == [date(2026, 1, 1), None, None]
    assert dict(rows[2]["_unfit"]) == {
        "checked_on": {"type": "STRING", "value": "today"},
        "tags": {"type": "INTEGER", "value": "5"},
    }
    assert verify(destination, with_rows=True).is_whole


# --- what a table forgets ---------------------------------------------------------------------------------------------


def test_no_transaction_has_a_time_by_which_a_table_may_forget_it(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"))
    destination.key_by(["pk"])
    store(destination, store(destination, None, [change(1)]), [change(2)])
    clean(destination)

    texts = [path.read_text() for path in (tmp_path / "t" / "_delta_log").glob("*.json")]
    transactions = [line["txn"] for text in texts for line in map(json.loads, text.splitlines()) if "txn" in line]
    assert {one["appId"] for one in transactions} >= {"default/shard-1"}
    assert [one for one in transactions if one.get("lastUpdated") is not None] == []


# --- the process ------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from streamclient.destinations import DeltaDestination
from streamclient.testing.contracts.destination_contract import change, store, stored_numbers
destination = DeltaDestination(sys.argv[1])
store(destination, None, [change(number) for number in range(100)])
assert stored_numbers(destination) == list(range(100))
"""


@pytest.mark.slow
def test_a_process_that_wrote_and_read_ends_without_an_abort(tmp_path: Path) -> None:
    """Read by pyarrow's threads, about half of all processes abort at their end, after all was done."""
    for number in range(4):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / str(number))], capture_output=True, text=True, check=False
        )

        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def no_python_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of delta-rs, which is Python's and which threads of pyarrow's call, opens no file."""

    def refuse(handler: DeltaStorageHandler, path: str) -> None:
        raise AssertionError(f"{path} is read by way of Python")

    monkeypatch.setattr(DeltaStorageHandler, "open_input_file", refuse)


@pytest.mark.usefixtures("no_python_below")
def test_what_lies_in_a_directory_is_read_without_python_in_threads_of_pyarrow(tmp_path: Path) -> None:
    """A process whose interpreter ended while such a thread let go of a file aborted: one of some hundreds."""
    destination = DeltaDestination(str(tmp_path / "t"))
    store(destination, None, [change(1), change(2)])

    assert stored_numbers(destination) == [1, 2]
    assert [table.num_rows for _, tables in destination.files() for table in tables()] == [2]
    handle = DeltaTable(str(tmp_path / "t"))
    assert find_rows(handle, pa.table({"id": [2]}), ["id"]).present.column("id").to_pylist() == [2]


@pytest.mark.usefixtures("no_python_below")
@pytest.mark.parametrize("place", ["t", "one two", "straße", "a#b?c"])
def test_rows_of_a_divided_table_are_read_whatever_its_directories_are_called(tmp_path: Path, place: str) -> None:
    values = ["plain", "a b", "ü/%", "x=y", "%20", "a%2Fb", "..", 'é:?*"', "#"]
    rows = pa.table({"value": values, "number": range(len(values))})
    write_deltalake(tmp_path / place, rows, partition_by=["value"])

    found = [
        row for file in row_files(DeltaTable(tmp_path / place)) for one in file.tables() for row in one.to_pylist()
    ]

    assert sorted(found, key=lambda row: int(row["number"])) == rows.to_pylist()


@pytest.mark.parametrize("place", ["t", "a#b?c"])
def test_a_file_of_another_size_than_the_log_says_is_refused_whatever_it_is_called(tmp_path: Path, place: str) -> None:
    """Its rows would be read here, and not by other readers of Delta."""
    values = ["plain", "a b", "ü/%", "%20", "a%2Fb", "#"]
    write_deltalake(tmp_path / place, pa.table({"value": values, "number": range(6)}), partition_by=["value"])
    files = [tmp_path / place / one.path for one in row_files(DeltaTable(tmp_path / place))]
    for path in files:
        pq.write_table(pa.concat_tables([pq.read_table(path, partitioning=None)] * 100), path)

    for file in row_files(DeltaTable(tmp_path / place)):
        with pytest.raises(StreamClientException, match="by the table's log"):
            list(file.tables())
    with pytest.raises(StreamClientException, match="another program has replaced it"):
        find_rows(DeltaTable(tmp_path / place), pa.table({"number": [3]}), ["number"])
