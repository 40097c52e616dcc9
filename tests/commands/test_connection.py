"""One recipe for a client: options, else the environment, else the local server."""

from __future__ import annotations

import argparse

import pytest

from streamclient.cli.main import main, make_parser
from streamclient.cli.options import connection_of, connection_parent, option_value
from streamclient.cli.server_command import DEFAULT_PORT
from streamclient.errors import ConfigurationError
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE
from streamclient.tablestore import Connection, connect
from tests.commands.commands_page import leaf_parsers


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
    with pytest.raises(ConfigurationError, match="endpoint 'nonsense' or its keys cannot be used"):
        Connection(endpoint="nonsense").client()


@pytest.mark.parametrize(
    "endpoint",
    ["http://h:abc", "http://h:99999", "http://a..b", f"http://{'a' * 64}.b", "http://", "http://localhost:81x0"],
)
def test_an_endpoint_that_cannot_be_is_named_before_anything_is_sent(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"^endpoint must be http\(s\)://HOST\[:PORT\], "):
        Connection(endpoint=endpoint).client()

    assert main(["tables", "list", "--endpoint", endpoint]) == 2
    told = capsys.readouterr().err
    assert f"not '{endpoint}': " in told
    assert "Traceback" not in told


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
