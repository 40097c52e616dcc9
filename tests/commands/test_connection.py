"""One recipe for a client: options, else the environment, else the local server."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from streamclient.cli.main import main, make_parser
from streamclient.cli.options import connection_of, connection_parent, option_value
from streamclient.cli.server_command import DEFAULT_PORT
from streamclient.errors import ConfigurationError
from streamclient.server import (
    DEFAULT_ACCESS_KEY_ID,
    DEFAULT_ACCESS_KEY_SECRET,
    DEFAULT_INSTANCE,
    LocalTablestore,
)
from streamclient.tablestore import Connection, connect
from tests.commands.commands_page import leaf_parsers
from tests.mirror.mirroring import make_table


def parsed(*words: str) -> argparse.Namespace:
    return argparse.ArgumentParser(parents=[connection_parent(tables=("data-table",))]).parse_args(words)


def test_without_anything_it_is_the_local_server() -> None:
    found = connection_of(parsed(), {})

    assert found == Connection()
    assert found.endpoint == f"http://127.0.0.1:{DEFAULT_PORT}"
    keys = (found.instance, found.access_key_id, found.access_key_secret)
    assert keys == (DEFAULT_INSTANCE, DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET)


def test_an_option_counts_more_than_the_environment() -> None:
    environment = {"TABLESTORE_ENDPOINT": "http://a", "TABLESTORE_REGION": "cn-x", "TABLESTORE_STS_TOKEN": "t"}
    found = connection_of(parsed("--endpoint", "http://b"), environment)

    assert (found.endpoint, found.region, found.sts_token) == ("http://b", "cn-x", "t")


def test_a_table_must_be_named() -> None:
    assert option_value("data-table", parsed(), {"TABLESTORE_DATA_TABLE": "t"}) == "t"
    with pytest.raises(ConfigurationError, match="--data-table, or TABLESTORE_DATA_TABLE in the environment"):
        option_value("data-table", parsed(), {})


def test_an_empty_value_is_refused_where_there_is_none_to_fall_back_on() -> None:
    with pytest.raises(ConfigurationError, match="name the endpoint of the instance: --endpoint"):
        connection_of(parsed("--endpoint", ""), {})
    assert connection_of(parsed("--region", ""), {}).region == ""


def test_a_region_signs_with_v4_and_a_token_is_passed_on() -> None:
    plain = Connection().client()
    temporary = Connection(region="cn-hangzhou", sts_token="token").client()

    assert type(temporary._signer) is not type(plain._signer)
    assert temporary.credentials_provider.get_credentials().get_security_token() == "token"
    assert plain.credentials_provider.get_credentials().get_security_token() is None


def test_what_the_sdk_refuses_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"endpoint 'http://127\.0\.0\.1:8180' or its keys cannot be used"):
        Connection().client(retry_policy="nonsense", region=5)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://h:abc",
        "http://h:99999",
        "http://a..b",
        f"http://{'a' * 64}.b",
        "http://",
        "http://localhost:81x0",
        "http://localhost:8180/foo",
        "http://localhost:8180?x=1",
        "ftp://localhost",
        "nonsense",
    ],
)
def test_an_endpoint_that_cannot_be_is_named_before_anything_is_sent(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"^endpoint must be http\(s\)://host\[:port\], "):
        Connection(endpoint=endpoint)

    assert main(["tables", "list", "--endpoint", endpoint]) == 2
    told = capsys.readouterr().err
    assert f"not '{endpoint}': " in told
    assert "Traceback" not in told


@pytest.mark.parametrize("end", ["/", "//", "/\n"])
def test_a_slash_at_the_end_of_an_endpoint_is_removed(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The SDK would put it before the path of each call, and the service would know no such operation."""
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint + end)

    assert Connection.of_environment().endpoint == local.endpoint
    assert list(connect().list_table()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["tables", "list"], 0),
        (["tunnels", "list", "orders"], 0),
        (["control", "shards", "orders"], 0),
        (["leases", "list", "--data-table", "orders", "--status-table", "leases"], 2),  # there is no such status table
        (["run", "json:loads", "--data-table", "orders", "--group", "g", "--check"], 0),
        (["mirror", "mirror.toml", "--verify"], 1),  # there is no mirror yet
        (["replicate", "copy.json", "--verify"], 1),  # there is no destination yet
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_take_an_endpoint_with_a_slash_and_refuse_a_path(  # noqa: PLR0917 -- one column of the table each
    local: LocalTablestore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_table(local.client())
    for path, expected in (("/", code), ("/foo", 2)):
        endpoint = local.endpoint + path
        monkeypatch.setenv("TABLESTORE_ENDPOINT", endpoint)
        Path("mirror.toml").write_text(
            '[source]\ntable = "orders"\nstatus_table = "s"\n[destination]\nkind = "delta"\nurl = "lake"\n'
        )
        side = {"endpoint": endpoint, "instanceName": local.instance, "tableName": "orders"}
        keys = {"accessId": local.access_key_id, "accessKey": local.access_key_secret}
        elsewhere = {"ots-reader": {**side, **keys, "tunnelName": "t"}, "ots-writer": {**side, **keys}}
        elsewhere["ots-writer"]["tableName"] = "others"
        Path("copy.json").write_text(json.dumps(elsewhere))
        ended = main(words)
        err = capsys.readouterr().err

        assert ended == expected, err
        assert ("endpoint must be http(s)://host[:port], not " in err.replace("ENDPOINT", "endpoint")) == (path != "/")
        assert "Unsupported operation" not in err


@pytest.mark.parametrize("name", ["instance", "access_key_id", "access_key_secret", "sts_token", "region"])
def test_what_becomes_a_header_has_no_control_characters(name: str) -> None:
    """Such as the end of a line, after which a value would begin another header."""
    with pytest.raises(ConfigurationError, match=f"^{name} must be .*: its character 6 is a control character") as told:
        Connection(**{name: "s3cret\nx-ots-date: 0"})

    assert ("s3cret" in str(told.value)) == (name not in ("access_key_secret", "sts_token"))


def test_secrets_are_not_printed() -> None:
    assert "s3cret" not in repr(Connection(access_key_secret="s3cret", sts_token="s3cret"))


def test_a_program_connects_as_the_commands_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLESTORE_ENDPOINT", "http://127.0.0.1:4711")
    monkeypatch.setenv("TABLESTORE_INSTANCE", "mine")
    client = connect(socket_timeout=3)

    assert (client.host, client.protocol.instance_name, client.socket_timeout) == ("http://127.0.0.1:4711", "mine", 3)


COMMON = {f"--{name}" for name in ("endpoint", "instance", "access-key-id", "sts-token", "region")} | {
    "--access-key-secret",
    "--access-key-secret-file",
}
TABLES = {"--data-table", "--status-table"}
CALL_NOTHING = {
    "sample": "writes files",
    "maintain": "works on a destination",
    "mirror": "its configuration file says where, else the environment",
    "replicate": "its configuration file names two places",
    "simulate": "calls nobody",
}
OWN_KEYS = {"--endpoint", "--access-key-secret", "--access-key-secret-file"}


def expected_options(words: str) -> set[str]:
    """What a command takes of the options that say where."""
    name = words.split()[1]
    if name in CALL_NOTHING:
        return set()
    if name == "control":  # the admin surface of a local server knows no instance, no other keys and no V4
        return OWN_KEYS
    if name == "server":  # it is the place; this is what it is for its clients
        return COMMON - {"--endpoint", "--sts-token", "--region"}
    return COMMON | (TABLES if name in ("leases", "explain", "top", "run", "settings", "verify") else set())


@pytest.mark.parametrize("parser", [*leaf_parsers(make_parser())], ids=lambda parser: parser.prog)
def test_every_command_takes_the_same_options_or_is_an_exception_with_a_reason(parser: argparse.ArgumentParser) -> None:
    taken = {option for action in parser._actions for option in action.option_strings}

    assert taken & (COMMON | TABLES) == expected_options(parser.prog)


@pytest.mark.parametrize(
    "words", [["leases"], ["tables"], ["tunnels"], ["parked"], ["control"], ["control", "fault"]], ids=" ".join
)
def test_options_may_stand_before_an_action(words: list[str]) -> None:
    """Groups of actions take the options of their actions."""
    command = " ".join(["streamclient", *words])
    leaf = next(leaf for leaf in leaf_parsers(make_parser()) if leaf.prog.startswith(f"{command} "))
    given = [word for option in sorted(expected_options(leaf.prog)) for word in (option, "given")]

    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([*words, *given, "--help"])
    assert ended.value.code == 0
