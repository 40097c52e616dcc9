"""Options: both spellings, defaults, and refusals that say what was meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamclient.errors import ConfigurationError
from streamclient.spark.source.source_options import Layout, SourceOptions, Use, WriteMode
from streamclient.tablestore import Connection
from tests.datasource.query import GIVEN, options

EMR = {
    "endpoint": "http://localhost",
    "instance.name": "i",
    "table.name": "t",
    "access.key.id": "k",
    "access.key.secret": "s",
}


def test_both_spellings_mean_the_same_and_case_does_not_matter() -> None:
    made = SourceOptions.read(EMR | {"maxOffsetsPerChannel": "7"}, {})
    other = SourceOptions.read({name.upper(): value for name, value in GIVEN.items()} | {"MAXOFFSETSPERSHARD": "7"}, {})

    assert made == other
    assert made.max_per_shard == 7


def test_what_no_option_says_the_environment_of_the_driver_says() -> None:
    variables = {"TABLESTORE_ENDPOINT": "http://elsewhere", "TABLESTORE_ACCESS_KEY_SECRET": "other"}
    given = {name: value for name, value in GIVEN.items() if name != "endpoint"}
    made = SourceOptions.read(given, variables)

    assert (made.connection.endpoint, made.connection.access_key_secret) == ("http://elsewhere", "s")
    hidden = SourceOptions.read(GIVEN | {"accessKeySecret": "very-secret", "stsToken": "very-secret"}, {})
    assert "very-secret" not in repr(hidden)


@pytest.mark.parametrize("where", ["option", "environment"])
def test_a_local_server_needs_no_keys(where: str) -> None:
    """As no command needs them."""

    def read(endpoint: str) -> SourceOptions:
        is_option = where == "option"
        given = {"table": "t", **({"endpoint": endpoint} if is_option else {})}
        return SourceOptions.read(given, {} if is_option else {"TABLESTORE_ENDPOINT": endpoint})

    assert read("http://127.0.0.1:8180").connection == Connection()
    assert read("http://localhost:9000").connection == Connection(endpoint="http://localhost:9000")
    for other in ("http://elsewhere:8180", "https://127.0.0.1:8180"):
        with pytest.raises(ConfigurationError, match="needs the option accessKeyId, or the variable"):
            read(other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxoffsetpertrigger": "5"}, "no option maxoffsetpertrigger; did you mean maxOffsetsPerTrigger"),
        ({"catalog": "{}"}, r"give the columns by .schema"),
        ({"path": "orders"}, "name the table by the option table"),
        ({"table.name": "other"}, "are given, with different values"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number above 0, not 0"),
        ({"maxOffsetsPerTrigger": "many"}, "not 'many'"),
        ({"maxOffsetsPerTrigger": "--5"}, "not '--5'"),
        ({"maxOffsetsPerTrigger": "²"}, "not '²'"),
        ({"startingTimestamp": "²"}, "must be milliseconds since 1970"),
        ({"failOnDataLoss": "maybe"}, "must be true or false, not 'maybe'"),
        ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"s1": 5}'}, "earliest, latest or an iterator for each shard"),
        ({"startingOffsets": '{"s1": "latest", "s1": "earliest"}'}, "'s1' occurs twice"),
        ({"startingTimestamp": "1700000000000000"}, "are microseconds"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, r"a time zone, such as 2026-01-31T12:00:00Z or .*00\+08:00"),
        ({"startingTimestamp": "2026-01-31"}, r"needs a time and a time zone, such as 2026-01-31T00:00:00Z"),
        ({"startingTimestamp": "2026-01-31+08:00"}, r"a time zone, such as 2026-01-31T00:00:00Z"),
        ({"startingTimestamp": "-5"}, "must be milliseconds since 1970, .*, not '-5'"),
        ({"startingTimestamp": "1969-12-31T23:59:59Z"}, "not '1969-12-31T23:59:59Z': it is before 1970"),
        ({"sampleRows": "2147483648"}, "sampleRows must be a whole number from 0 to 2147483647, not 2147483648"),
        ({"splitSizeMb": "2147483648"}, "splitSizeMb must be a whole number from 1 to 2147483647"),
        ({"startingTimestamp": "0", "startingOffsets": "latest"}, "give one of them"),
        ({"tunnelId": "t-1", "startingOffsets": "latest"}, "contradict each other: the tunnel has its own start"),
        ({"tunnel.id": "t-1", "startingTimestamp": "0"}, "contradict each other: the tunnel has its own start"),
        ({"tunnelId": "t-1", "maxRecordsPerPartition": "5"}, "only at the end of a page"),
        ({"tunnelId": "t-1", "failOnDataLoss": "false"}, "has expired and cannot be read on"),
        ({"writeMode": "replace"}, "must be 'put' or 'update' or 'delete', not 'replace'"),
        ({"batchRows": "201"}, "batchRows must be a whole number from 1 to 200, not 201"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        options(**given)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot work:\n  .*failOnDataLoss must be .*\n  .*batchRows must be "
    ):
        options(batchRows="0", failOnDataLoss="maybe")


def test_what_is_missing_is_named_with_its_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"needs the option instance, or the variable TABLESTORE_INSTANCE"):
        SourceOptions.read({"endpoint": "http://elsewhere"}, {})


def test_an_option_for_another_use_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="option maxOffsetsPerTrigger is for readStream, not for read"):
        options(maxOffsetsPerTrigger="5").check_use(Use.ROWS)

    assert options(writeMode="update").check_use(Use.WRITE).write_mode is WriteMode.UPDATE


def test_options_of_spark_itself_are_let_through() -> None:
    assert options(checkpointLocation="/tmp/x", queryName="q").table == "t"


def test_times_are_milliseconds_or_iso() -> None:
    assert options(startingTimestamp="1700000000000").starting_micros == 1_700_000_000_000_000
    assert options(startingTimestamp="2023-11-15T06:13:20+08:00").starting_micros == 1_700_000_000_000_000


def test_options_of_a_stream_tell_which_columns_are_wanted() -> None:
    wanted = [options(), options(startingOffsets="latest"), options(startingOffsets="latest", layout="rows")]

    assert [one.inferred_layout for one in wanted] == [Layout.ROWS, Layout.CHANGES, Layout.ROWS]


def test_an_older_spark_is_told_by_its_version(tmp_path: Path) -> None:
    """A cluster brings its own, whatever was asked for at the installation; before 4.2 it had no such limits."""
    modules = {
        "pyspark/__init__.py": "__version__ = '4.1.2'",
        "pyspark/sql/__init__.py": "",
        "pyspark/sql/datasource.py": "class DataSource: ...",
        "pyspark/sql/streaming/__init__.py": "",
        "pyspark/sql/streaming/datasource.py": "",
    }
    for name, text in modules.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from streamclient.spark import TablestoreDataSource"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "ConfigurationError: the data source needs pyspark 4.2 or later, and this is 4.1.2" in done.stderr


def test_without_pyspark_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from streamclient.spark import TablestoreDataSource"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == (
        "streamclient.errors.ConfigurationError: pyspark cannot be imported; the data source needs it: install the "
        'extra spark from the same source as streamclient, in a checkout with  pip install ".[spark]"'
    )
