"""``streamclient mirror``, its configuration, and what other commands say to a mirror."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from streamclient.base.interrupts import ENDING_SIGNALS
from streamclient.cli.main import main
from streamclient.copying import Mirror
from streamclient.copying.mirror_comparison import readable_end
from streamclient.copying.mirror_settings import load_mirror_settings
from streamclient.destinations import DeltaDestination
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.server import LocalTablestore
from streamclient.tablestore import Connection
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running


def configuration(local: LocalTablestore, directory: Path, **changes: dict[str, Any]) -> Path:
    sections: dict[str, dict[str, Any]] = {
        "source": {
            "endpoint": local.endpoint,
            "instance": local.instance,
            "table": "orders",
            "status_table": "status",
            "access_key_id": local.access_key_id,
            "access_key_secret": "${MIRROR_SECRET}",
        },
        "destination": {"kind": "delta", "url": str(directory / "state")},
    }
    for name, section in changes.items():
        sections[name] = sections.get(name, {}) | section
    lines = [f"[{name}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in s.items()) for name, s in sections.items()]
    path = directory / "mirror.toml"
    path.write_text("\n".join(lines))
    return path


def test_the_command_compares_and_says_by_its_exit_code_whether_rows_differ(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_SECRET", local.access_key_secret)
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    path = configuration(local, tmp_path)
    assert main(["mirror", str(path), "--check"]) == 0
    assert capsys.readouterr().out == "the configuration is valid\n"
    assert main(["mirror", str(path), "--verify", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "the mirror does not exist yet" in err
    assert json.loads(out)["error"] in err
    assert json.loads(out)["differences"] is None
    mirror = Mirror(client, "orders", "status", str(tmp_path / "state"), client_config=QUICK, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
    assert main(["mirror", str(path), "--verify", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["differences"], json.loads(out)["error"]) == (0, None)
    assert err.endswith("comparing\n"), "it is not silent until it ends"
    DeltaDestination(str(tmp_path / "state")).handle().delete()
    assert main(["mirror", str(path), "--verify"]) == 3
    assert "row (1) is missing in the mirror" in capsys.readouterr().out


def test_what_the_file_does_not_say_is_looked_for_where_commands_look(tmp_path: Path) -> None:
    """But no table: the status table of a fleet is not the mirror's."""
    path = tmp_path / "mirror.toml"
    path.write_text(
        '[source]\ninstance = "i"\ntable = "t"\nstatus_table = "s"\n[destination]\nkind = "delta"\nurl = "state"\n'
    )
    names = {"ENDPOINT": "http://x", "INSTANCE": "other", "ACCESS_KEY_ID": "id", "ACCESS_KEY_SECRET": "secret"}
    environment = {
        f"TABLESTORE_{name}": value for name, value in {**names, "STATUS_TABLE": "fleet", "REGION": ""}.items()
    }
    source = load_mirror_settings(path, environment).source

    assert source == {
        "endpoint": "http://x",
        "instance": "i",
        "access_key_id": "id",
        "access_key_secret": "secret",
        "table": "t",
        "status_table": "s",
        "sts_token": "",
        "region": "",
    }
    with pytest.raises(ConfigurationError, match="source needs the key endpoint, or the variable TABLESTORE_ENDPOINT"):
        load_mirror_settings(path, {})


def test_a_local_server_needs_no_keys_in_the_file(tmp_path: Path) -> None:
    """Nor does it need them as options of the commands."""
    path = tmp_path / "mirror.toml"
    path.write_text(
        '[source]\nendpoint = "http://127.0.0.1:8180"\ntable = "t"\nstatus_table = "s"\n'
        '[destination]\nkind = "delta"\nurl = "state"\n'
    )
    source = load_mirror_settings(path, {}).source

    assert Connection(**{name: value for name, value in source.items() if "table" not in name}) == Connection()
    path.write_text(path.read_text().replace("127.0.0.1", "elsewhere"))
    with pytest.raises(ConfigurationError, match="source needs the key access_key_secret, or the variable"):
        load_mirror_settings(path, {})


def test_the_file_says_how_long_an_answer_is_waited_for(
    local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_SECRET", local.access_key_secret)
    make_table(local.client())
    nowhere = f"host={tmp_path} user=none dbname=none"
    postgres = {"kind": "postgres", "conninfo": nowhere, "table": "orders", "answer_seconds": 0.5}
    path = configuration(local, tmp_path, destination=postgres)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("url")]
    path.write_text("\n".join(lines))
    with pytest.raises(StreamClientError, match=r"within 0\.5 s"):
        load_mirror_settings(path, os.environ).make().run()
    slow = {"url": "s3://bucket/orders", "options": {"timeout": "10s"}, "answer_seconds": 5}
    path = configuration(local, tmp_path, destination=slow)
    path.write_text(path.read_text().replace('{"timeout": "10s"}', '{timeout = "10s"}'))
    with pytest.raises(ConfigurationError, match=r"at most answer_seconds, here 5s"):
        load_mirror_settings(path, os.environ).make()
    path.write_text(path.read_text().replace("answer_seconds = 5", "answer_seconds = 0"))
    with pytest.raises(ConfigurationError, match=r"destination\.answer_seconds must be"):
        load_mirror_settings(path, os.environ)


def test_each_mistake_in_a_configuration_is_told(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configuration(
        local,
        tmp_path,
        source={"status_table": "orders", "regoin": "x"},
        destination={"kind": "delta", "table": "t"},
        mirror={"history": "yes", "max_age_seconds": 0},
        miror={},
    )
    assert main(["mirror", str(path), "--check"]) == 2
    said = capsys.readouterr().err
    for text in (
        "source has no key regoin; did you mean region?",
        "source.access_key_secret: the environment has no variable MIRROR_SECRET",
        "source.status_table: 'orders' is the source table",
        "destination.table is not used with kind 'delta'",
        "mirror.history must be True or False, not 'yes'",
        "mirror.max_age_seconds must be a number of seconds above 0, not 0",
        "section miror does not exist; did you mean mirror?",
    ):
        assert text in said


def test_what_no_mirror_can_be_made_of_is_not_called_valid(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_SECRET", local.access_key_secret)
    for section, change, named in (
        ("destination", {"kind": ["delta"]}, "destination.kind must be 'delta' or 'postgres', not ['delta']"),
        ("source", {"endpoint": "nonsense"}, "source.endpoint must be http(s)://host[:port], not 'nonsense'"),
        ("mirror", {"lease_seconds": 0.0001}, "lease_duration_millis must be a whole number above 0, not 0"),
        ("destination", {"url": "nosuch://lake/orders"}, "nosuch://lake/orders: a table at nosuch:// cannot be"),
    ):
        path = configuration(local, tmp_path, **{section: change})
        assert main(["mirror", str(path), "--check"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert named in err


@pytest.mark.parametrize("words", [[], ["--verify"]])
@pytest.mark.parametrize(
    ("table", "told"), [("odrers", "there is no table 'odrers' in instance"), ("plain", "table 'plain' has no stream")]
)
def test_a_table_that_cannot_be_mirrored_is_named(  # noqa: PLR0917 -- one column of the table each
    local: LocalTablestore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    table: str,
    told: str,
) -> None:
    """The exit code is 1 and not 2, because the service has been called."""
    monkeypatch.setenv("MIRROR_SECRET", local.access_key_secret)
    make_table(local.client(), "plain", stream=False)
    path = configuration(local, tmp_path, source={"table": table})
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    expected = "there is nothing to compare" if words and table == "plain" else told

    assert main(["mirror", str(path), *words]) == 1
    assert f"streamclient mirror: ended: {expected}" in capsys.readouterr().err
    assert {number: signal.getsignal(number) for number in ENDING_SIGNALS} == handlers


def test_the_rows_of_a_mirror_are_refused_where_commits_are_counted(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its log is proved like any other, and so are the rows of its history."""
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    state, history = str(tmp_path / "state"), str(tmp_path / "history")
    kept = DeltaDestination(history)
    mirror = Mirror(client, "orders", "status", state, history=kept, client_config=QUICK, limits=LIMITS)
    with running(mirror):
        put(client, 1, ("a", 2))
        caught_up(mirror)

    assert main(["verify", state]) == 0
    lines = capsys.readouterr().out
    assert re.search(r"^copy +default .*changes since \d{4}-.*Z, 1 piece to copy$", lines, re.MULTILINE), lines
    assert re.search(r"^copy/listed .* \d shards? without changes at \d{4}-.*Z$", lines, re.MULTILINE), lines
    assert re.search(r"^copy/0 .* SHARD_END$", lines, re.MULTILINE), lines
    assert "{" not in lines, "what the log holds is for programs"
    assert main(["verify", history, "--rows"]) == 0
    capsys.readouterr()
    for words in (["verify", state, "--rows"], ["maintain", state, "--verify", "0 4 * * *", "--rows"]):
        assert main(words) == 2
        assert "`streamclient mirror CONFIG --verify`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shard", "end", "said"),
    [
        ("copy/3", '["a", 5, {"hex": "00ff"}]', "rows before key 'a', 5, b'\\x00\\xff'"),
        ("copy/3", "SHARD_END", "SHARD_END"),
        ("expiry", "1700000000000", "expired cells up to 2023-11-14T22:13:20.000Z"),
        ("copy", '{"of a later": "version"}', 'iterator ...ersion"}'),
        ("s1", "TRIM_HORIZON", "TRIM_HORIZON"),
    ],
)
def test_positions_of_a_mirrors_own_commits_are_told_in_words(shard: str, end: str, said: str) -> None:
    assert readable_end(shard, end) == said
