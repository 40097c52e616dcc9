"""The configuration of a replication: what is read, and how mistakes are named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from streamclient.copying.replication_settings import PoisonRow, SourceKind, load_settings, parse_settings
from streamclient.errors import ConfigurationError

READER = {
    "endpoint": "https://a.example.com",
    "instanceName": "a",
    "tableName": "from",
    "accessId": "id",
    "accessKey": "key",
    "tunnelName": "copy",
    "endTime": "2019-06-19 17:00:00",
    "timeZone": "Asia/Shanghai",
}
WRITER = {
    "endpoint": "https://b.example.com",
    "instanceName": "b",
    "tableName": "to",
    "accessId": "id",
    "accessKey": "key",
    "batchWriteCount": 100,
}


def document(**changes: Any) -> dict[str, Any]:
    """The configuration above with changes, as ``reader_tunnelName=...``; ``None`` removes."""
    made = copy.deepcopy({"ots-reader": READER, "ots-writer": WRITER})
    for name, value in changes.items():
        section, _, key = name.partition("_")
        content = made[f"ots-{section}"]
        content.pop(key, None)
        if value is not None:
            content[key] = value
    return made


def mistakes(content: Any, **environment: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(content, environment)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_configuration_of_the_original_program_is_read() -> None:
    settings = parse_settings(document(), {})

    assert settings.reader.table_name == "from"
    assert settings.writer.instance_name == "b"
    assert (settings.source, settings.tunnel_name, settings.batch_rows) == (SourceKind.TUNNEL, "copy", 100)
    assert settings.end_time_micros == 1_560_934_800_000_000


def test_times_are_read_in_the_zone_that_is_named() -> None:
    shanghai = parse_settings(document(), {}).end_time_micros
    utc = parse_settings(document(reader_timeZone="UTC"), {}).end_time_micros

    assert shanghai is not None
    assert utc is not None
    assert utc - shanghai == 8 * 3_600 * 1_000_000


def test_without_end_time_changes_are_followed_for_ever() -> None:
    assert parse_settings(document(reader_endTime=None), {}).end_time_micros is None


def test_secrets_come_from_the_environment_where_the_file_has_none() -> None:
    content = document(reader_accessId="", reader_accessKey=None, writer_accessKey="${MY_KEY}")
    environment = {"OTS_READER_ACCESS_ID": "i", "OTS_READER_ACCESS_KEY": "k", "MY_KEY": "w"}
    settings = parse_settings(content, environment)

    assert (settings.reader.access_id, settings.reader.access_key, settings.writer.access_key) == ("i", "k", "w")


def test_secrets_are_not_shown() -> None:
    assert "key" not in repr(parse_settings(document(writer_accessKey="key-w"), {}).writer).replace("access_key", "")


def test_toml_is_read_as_json_is(tmp_path: Path) -> None:
    lines = ["[ots-reader]", *(f"{key} = {json.dumps(value)}" for key, value in READER.items())]
    lines += ["[ots-writer]", *(f"{key} = {json.dumps(value)}" for key, value in WRITER.items())]
    (tmp_path / "copy.toml").write_text("\n".join(lines))
    (tmp_path / "copy.json").write_text(json.dumps(document()))

    assert load_settings(tmp_path / "copy.toml", {}) == load_settings(tmp_path / "copy.json", {})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"reader_endpoint": "a.example.com"}, "ots-reader.endpoint: expected http(s)://host[:port], got"),
        ({"reader_endpoint": "http://[bad"}, "ots-reader.endpoint: expected http(s)://host[:port], got 'http://[bad'"),
        ({"writer_endpoint": "http://a:b"}, "ots-writer.endpoint: expected http(s)://host[:port], got 'http://a:b'"),
        ({"reader_tableName": None}, "ots-reader.tableName: missing; expected a text"),
        ({"reader_instanceName": 5}, "ots-reader.instanceName: expected a text, got 5"),
        ({"reader_tunnelName": ""}, "ots-reader.tunnelName: missing; expected a text"),
        ({"reader_endTime": "tomorrow"}, "ots-reader.endTime: expected a time such as '2019-06-19 17:00:00', got"),
        (
            {"reader_endTime": "0001-01-01 00:00:00", "reader_timeZone": None},
            "ots-reader.endTime: expected a time such as '2019-06-19 17:00:00', got '0001-01-01 00:00:00'",
        ),
        ({"reader_timeZone": "Asia"}, "ots-reader.timeZone: no time zone is called 'Asia'"),
        ({"reader_timeZone": "Mars"}, "ots-reader.timeZone: no time zone is called 'Mars'"),
        ({"reader_source": "file"}, "ots-reader.source: expected 'tunnel' or 'stream', got 'file'"),
        ({"reader_source": "stream"}, "ots-reader.statusTableName: missing; expected a text"),
        ({"reader_tableNmae": "x"}, "ots-reader.tableNmae: unknown; did you mean tableName?"),
        ({"writer_accessKey": None}, "in the environment variable OTS_WRITER_ACCESS_KEY"),
        ({"writer_accessKey": "${NONE}"}, "ots-writer.accessKey: the environment has no variable NONE"),
        ({"writer_batchWriteCount": 0}, "ots-writer.batchWriteCount: expected a whole number from 1 to 200, got 0"),
        ({"writer_batchWriteCount": 201}, "expected a whole number from 1 to 200, got 201"),
        ({"writer_batchWriteCount": True}, "expected a whole number from 1 to 200, got True"),
        ({"writer_onPoisonRow": "skip"}, "ots-writer.poisonFile: missing"),
    ],
)
def test_mistake_is_named_by_its_key(change: dict[str, Any], expected: str) -> None:
    assert any(expected in line for line in mistakes(document(**change)))


def test_all_mistakes_are_named_at_once() -> None:
    found = mistakes(document(reader_tableName=None, writer_batchWriteCount=-1))

    assert [line.split(":")[0] for line in found] == ["ots-reader.tableName", "ots-writer.batchWriteCount"]


def test_an_empty_part_lacks_every_key_that_is_needed() -> None:
    found = mistakes({"ots-reader": {}, "ots-writer": WRITER})

    assert [line.partition(":")[0].removeprefix("ots-reader.") for line in found] == [
        "endpoint",
        "instanceName",
        "tableName",
        "accessId",
        "accessKey",
        "tunnelName",
    ]


def test_copying_a_table_onto_itself_is_refused() -> None:
    content = document(
        writer_endpoint=READER["endpoint"] + "/", writer_instanceName="a", writer_tableName=READER["tableName"]
    )

    assert mistakes(content) == ["ots-writer.tableName: 'from' is the source table itself; name another one"]


@pytest.mark.parametrize("table", ["from", "to"])
def test_leases_in_a_table_that_is_copied_are_refused(table: str) -> None:
    place = {"writer_endpoint": READER["endpoint"], "writer_instanceName": READER["instanceName"]}
    content = document(reader_source="stream", reader_statusTableName=table, **place)

    (told,) = mistakes(content)
    assert told.startswith(f"ots-reader.statusTableName: {table!r} is the ")
    assert told.endswith(" table; leases need another one")


def test_choices_may_be_in_any_case() -> None:
    changes = {"reader_source": "Stream", "reader_statusTableName": "s"}
    settings = parse_settings(document(**changes, writer_onPoisonRow="SKIP", writer_poisonFile="/x"), {})

    assert (settings.source, settings.poison_row) == (SourceKind.STREAM, PoisonRow.SKIP)


@pytest.mark.parametrize("content", [[], {}, {"ots-reader": READER}, {"ots-reader": 1, "ots-writer": WRITER}])
def test_missing_parts_are_named(content: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ots-(reader|writer)"):
        parse_settings(content, {})


def test_unreadable_and_malformed_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.toml").write_text("=")
    for name, expected in (("none.json", "cannot read"), ("bad.json", "is no JSON"), ("bad.toml", "is no TOML")):
        with pytest.raises(ConfigurationError, match=expected):
            load_settings(tmp_path / name, {})


def test_rows_may_be_skipped_into_a_file() -> None:
    settings = parse_settings(document(writer_onPoisonRow="skip", writer_poisonFile="/x"), {})

    assert (settings.poison_row, settings.poison_file) == (PoisonRow.SKIP, Path("/x"))
