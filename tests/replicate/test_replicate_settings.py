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
    assert settings.writer.instance == "b"
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

    assert (settings.reader.access_key_id, settings.reader.access_key_secret, settings.writer.access_key_secret) == (
        "i",
        "k",
        "w",
    )


def test_secrets_are_not_shown() -> None:
    assert "key-w" not in repr(parse_settings(document(writer_accessKey="key-w"), {}).writer)


def test_toml_is_read_as_json_is(tmp_path: Path) -> None:
    lines = ["[ots-reader]", *(f"{key} = {json.dumps(value)}" for key, value in READER.items())]
    lines += ["[ots-writer]", *(f"{key} = {json.dumps(value)}" for key, value in WRITER.items())]
    (tmp_path / "copy.toml").write_text("\n".join(lines))
    (tmp_path / "copy.json").write_text(json.dumps(document()))

    assert load_settings(tmp_path / "copy.toml", {}) == load_settings(tmp_path / "copy.json", {})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"reader_endpoint": "a.example.com"}, "ots-reader.endpoint must be http(s)://host[:port], not"),
        ({"reader_endpoint": "http://[bad"}, "ots-reader.endpoint must be http(s)://host[:port], not 'http://[bad'"),
        ({"writer_endpoint": "http://a:b"}, "ots-writer.endpoint must be http(s)://host[:port], not 'http://a:b'"),
        ({"reader_tableName": None}, "ots-reader needs the key tableName"),
        ({"reader_instanceName": 5}, "ots-reader.instanceName must be a non-empty string, not 5"),
        ({"reader_tunnelName": ""}, "ots-reader needs the key tunnelName with source 'tunnel'"),
        (
            {"reader_endTime": "tomorrow"},
            "ots-reader.endTime must be a time such as '2019-06-19 17:00:00', not 'tomorrow'",
        ),
        (
            {"reader_endTime": "0001-01-01 00:00:00", "reader_timeZone": None},
            "ots-reader.endTime must be a time such as '2019-06-19 17:00:00', not '0001-01-01 00:00:00'",
        ),
        ({"reader_timeZone": "Asia"}, "Asia/Shanghai', not 'Asia'"),
        (
            {"reader_timeZone": "Mars"},
            "ots-reader.timeZone must be the name of a time zone such as 'UTC' or 'Asia/Shanghai', not 'Mars'",
        ),
        ({"reader_source": "file"}, "ots-reader.source must be 'tunnel' or 'stream', not 'file'"),
        ({"reader_source": "stream"}, "ots-reader needs the key statusTableName with source 'stream'"),
        ({"reader_statusTableName": "s"}, "ots-reader.statusTableName is not used with source 'tunnel'"),
        ({"reader_tableNmae": "x"}, "ots-reader has no key tableNmae; did you mean tableName?"),
        (
            {"writer_accessKey": None},
            "ots-writer needs the key accessKey, or the variable OTS_WRITER_ACCESS_KEY in the environment",
        ),
        ({"writer_accessKey": "${NONE}"}, "ots-writer.accessKey: the environment has no variable NONE"),
        ({"writer_batchWriteCount": 0}, "ots-writer.batchWriteCount must be a whole number from 1 to 200, not 0"),
        ({"writer_batchWriteCount": 201}, "must be a whole number from 1 to 200, not 201"),
        ({"writer_batchWriteCount": True}, "must be a whole number from 1 to 200, not True"),
        ({"writer_onPoisonRow": "skip"}, "ots-writer needs the key poisonFile with onPoisonRow 'skip'"),
    ],
)
def test_mistake_is_named_by_its_key(change: dict[str, Any], expected: str) -> None:
    assert any(expected in line for line in mistakes(document(**change)))


def test_all_mistakes_are_named_at_once() -> None:
    found = mistakes(document(reader_tableName=None, writer_batchWriteCount=-1))

    assert [line.split()[0] for line in found] == ["ots-reader", "ots-writer.batchWriteCount"]


def test_an_empty_part_lacks_every_key_that_is_needed() -> None:
    found = mistakes({"ots-reader": {}, "ots-writer": WRITER})

    assert [line.removeprefix("ots-reader needs the key ").split(",")[0].split()[0] for line in found] == [
        "endpoint",
        "instanceName",
        "accessId",
        "accessKey",
        "tableName",
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
    (tmp_path / "deep.json").write_text("[" * 100_000)
    wrong = {
        "none.json": "cannot read",
        "bad.json": "is not JSON",
        "deep.json": "is not JSON",
        "bad.toml": "is not TOML",
    }
    for name, expected in wrong.items():
        with pytest.raises(ConfigurationError, match=expected):
            load_settings(tmp_path / name, {})


def test_rows_may_be_skipped_into_a_file() -> None:
    settings = parse_settings(document(writer_onPoisonRow="skip", writer_poisonFile="/x"), {})

    assert (settings.poison_row, settings.poison_file) == (PoisonRow.SKIP, Path("/x"))
