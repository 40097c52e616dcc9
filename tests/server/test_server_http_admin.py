"""The admin surface over HTTP, and the command line on top of it."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from server_http_tools import connect, create_table
from server_state_driver import over_http, put

from streamclient.cli import main
from streamclient.server import Cut, FaultRule, LocalTablestore
from streamclient.server.admin import key_from_json

Reply = tuple[int, Any]


def call(local: LocalTablestore, method: str, target: str, body: Any = None, secret: str | None = None) -> Reply:
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    token = local.access_key_secret if secret is None else secret
    with closing(connect(local)) as connection:
        connection.request(method, f"/_admin/{target}", content, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.fixture
def table(local: LocalTablestore) -> str:
    """A table with a stream and the keys 0 to 9."""
    create_table(local, "orders")
    local.reset_requests()
    over_http(local).put_each(range(10), put("v", 1), table="orders")
    return "orders"


@pytest.mark.parametrize("secret", ["", "wrong", "ünï"])
def test_the_admin_surface_needs_the_secret(local: LocalTablestore, secret: str) -> None:
    """A page in a browser on the same machine reaches the port too."""
    status, answer = call(local, "DELETE", "faults", secret=secret.encode().decode("latin-1"))

    assert status == 401
    assert "Bearer" in answer["error"]


def test_the_signature_of_the_protocol_is_no_admin_token(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    connection.request("GET", "/_admin/requests", headers={"x-ots-accesskeyid": local.access_key_id})
    assert connection.getresponse().status == 401


def test_shards_are_listed_split_and_merged(local: LocalTablestore, table: str) -> None:
    status, answer = call(local, "GET", f"shards?table={table}")
    assert (status, len(answer["shards"])) == (200, 1)

    status, split = call(local, "POST", "split", {"table": table, "at": 3})
    assert (status, len(split["shard_ids"])) == (200, 2)
    low, high = split["shard_ids"]
    status, merged = call(local, "POST", "merge", {"table": table, "shard_a": low, "shard_b": high})
    assert status == 200

    shards = {shard["shard_id"]: shard for shard in call(local, "GET", f"shards?table={table}")[1]["shards"]}
    assert len(shards) == 4
    assert [shard_id for shard_id, shard in shards.items() if shard["is_open"]] == [merged["shard_id"]]


def test_a_shard_is_split_at_its_median_by_default(local: LocalTablestore, table: str) -> None:
    (only,) = local.shards(table)
    low, high = local.split(table)

    views = {view.shard_id: view for view in local.shards(table)}
    assert not views[only.shard_id].is_open
    assert views[low].parent_ids == views[high].parent_ids == (only.shard_id,)


def test_records_are_trimmed(local: LocalTablestore, table: str) -> None:
    assert call(local, "POST", "trim", {"table": table, "keep_last": 4}) == (200, {"trimmed": 6})
    assert call(local, "POST", "trim", {"table": table, "before_micros": 0}) == (200, {"trimmed": 0})
    assert call(local, "POST", "trim", {"table": table}) == (200, {"trimmed": 4})


def test_iterators_expire(local: LocalTablestore, table: str) -> None:
    assert call(local, "POST", "expire-iterators", {"table": table}) == (200, {})


def test_the_clock_advances_and_retention_follows(local: LocalTablestore, table: str) -> None:
    assert call(local, "POST", "advance-clock", {"seconds": 25 * 3600}) == (200, {})

    assert call(local, "GET", f"shards?table={table}")[1]["shards"][0]["record_count"] == 0


def test_faults_are_added_listed_and_removed(local: LocalTablestore) -> None:
    rule = {"operation": "PutRow", "times": 2, "action": {"kind": "fail-rows", "rows": [1, 2]}}
    status, first = call(local, "POST", "faults", rule)
    assert status == 200
    second = local.add_fault(FaultRule("Get*", Cut(), table="t"))

    listed = call(local, "GET", "faults")[1]["faults"]
    assert [fault["id"] for fault in listed] == [first["id"], second]
    assert listed[0]["rule"]["action"] == {"kind": "fail-rows", "rows": [1, 2], "code": "OTSServerBusy"}
    assert call(local, "DELETE", f"faults?id={second}") == (200, {"removed": 1})
    assert call(local, "DELETE", "faults") == (200, {"removed": 1})
    assert local.faults() == ()


def test_request_counters_are_shown_and_reset(local: LocalTablestore, table: str) -> None:
    counts = call(local, "GET", "requests")[1]["requests"]
    assert counts == [
        {
            "operation": "PutRow",
            "table": table,
            "requests": 10,
            "errors": 0,
            "rows_read": 0,
            "rows_written": 10,
            "read_units": 0,
            "write_units": 10,
        }
    ]
    assert call(local, "DELETE", "requests") == (200, {})
    assert call(local, "GET", "requests") == (200, {"requests": []})


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "reason"),
    [
        ("GET", "nothing", None, 404, "there are advance-clock, "),
        ("GET", "split", None, 405, "split takes POST"),
        ("POST", "split", {}, 400, "table must be a non-empty string"),
        ("POST", "split", {"table": "missing"}, 404, "OTSObjectNotExist"),
        ("POST", "split", {"table": "orders", "at": True}, 400, "a key value must be"),
        ("POST", "split", {"table": "orders", "at": []}, 400, "at least one value"),
        ("POST", "split", {"table": "orders", "shard_id": 3}, 400, "shard_id must be"),
        ("POST", "trim", {"table": "orders", "keep_last": "many"}, 400, "keep_last must be a whole number"),
        ("POST", "advance-clock", {"seconds": "long"}, 400, "seconds must be a number"),
        ("POST", "advance-clock", {"seconds": -5}, 400, "seconds must be from 0"),
        ("POST", "advance-clock", {"seconds": 10**400}, 400, "seconds must be from 0"),
        ("POST", "advance-clock", {"seconds": float("nan")}, 400, "seconds must be from 0"),
        ("POST", "faults", {"action": {"kind": "latency", "seconds": 10**400}}, 400, "seconds must be"),
        ("POST", "faults", {"action": {"kind": "fail-rows", "every": 10**400, "rows": "x"}}, 400, "rows must be"),
        ("POST", "trim", {"table": "t", "before_micros": 10**400, "keep_last": 10**400}, 404, "OTSObjectNotExist"),
        ("POST", "advance-clock", b"{", 400, "the body must be a JSON object"),
        ("POST", "advance-clock", [1], 400, "the body must be a JSON object"),
        ("POST", "faults", {"action": {"kind": "explode"}}, 400, "action kind must be one of"),
        ("DELETE", "faults?id=x", None, 400, "id must be a whole number"),
    ],
)
def test_a_wrong_call_says_what_was_expected(  # noqa: PLR0917 -- one column of the table each
    local: LocalTablestore, method: str, target: str, body: Any, status: int, reason: str
) -> None:
    answered, answer = call(local, method, target, body)

    assert answered == status
    assert reason in answer["error"]


@pytest.mark.parametrize(
    ("value", "key"), [(5, (5,)), ("text", ("text",)), (["a", 1], ("a", 1)), ([{"base64": "AP8="}], (b"\x00\xff",))]
)
def test_keys_are_read_from_json(value: Any, key: tuple[Any, ...]) -> None:
    assert key_from_json(value) == key


def run(local: LocalTablestore, *arguments: str) -> int:
    return main.main(["control", "--endpoint", local.endpoint, *arguments])


def output(local: LocalTablestore, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(local, *arguments) == 0
    return capsys.readouterr().out


def test_the_command_line_controls_shards(
    local: LocalTablestore, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = output(local, capsys, "split", table, "--at", "3").split()
    assert {shard.shard_id for shard in local.shards(table) if shard.is_open} == {low, high}

    merged = output(local, capsys, "merge", table, low, high).strip()
    listed = output(local, capsys, "shards", table)
    assert next(line for line in listed.splitlines() if " open " in line).startswith(merged)
    assert output(local, capsys, "trim", table, low, "--keep-last", "0") == "records forgotten: 0\n"
    assert output(local, capsys, "expire-iterators", table) == "iterators expired\n"
    assert output(local, capsys, "advance-clock", "10") == "clock advanced by 10 s\n"


def test_the_command_line_controls_faults(local: LocalTablestore, capsys: pytest.CaptureFixture[str]) -> None:
    rule = '{"operation": "PutRow", "action": {"kind": "cut"}}'

    assert output(local, capsys, "fault", "add", rule) == "fault 1 added\n"
    assert output(local, capsys, "fault", "list").splitlines()[1].startswith("1      0       0     {")
    assert output(local, capsys, "fault", "clear", "1") == "faults removed: 1\n"
    assert output(local, capsys, "fault", "list") == "no faults\n"


def test_the_command_line_shows_request_counters(
    local: LocalTablestore, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [line.split() for line in output(local, capsys, "requests", "--reset").splitlines()]
    assert ["PutRow", "orders", "10", "0", "0", "10", "0", "10"] in listed
    assert output(local, capsys, "requests") == "no requests\n"


def test_the_command_line_prints_json_on_demand(
    local: LocalTablestore, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(output(local, capsys, "--json", "shards", table))

    assert answer["shards"][0]["record_count"] == 10


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shards", "missing"], "OTSObjectNotExist"),
        (["--access-key-secret", "wrong", "shards", "t"], "refuses the secret: check --access-key-secret"),
        (
            ["--access-key-secret", "schl\u00fcssel\u20ac", "shards", "t"],
            "refuses the secret: check --access-key-secret",
        ),
        (["--access-key-secret", "\udcff", "shards", "t"], "refuses the secret: check --access-key-secret"),
        (["--access-key-secret", "s3\ncret", "shards", "t"], "access_key_secret must be a non-empty string"),
        (["shards", "\udcff"], "OTS"),
        (["--endpoint", "http://127.0.0.1:1", "shards", "t"], "no answer from http://127.0.0.1:1"),
        (["--endpoint", "http://127.0.0.1:1", "shards", "t"], "Tablestore with `streamclient server --port 1`"),
        (["--endpoint", "nonsense", "shards", "t"], "endpoint must be http(s)://host[:port]"),
        (["--endpoint", "http://localhost:81x0", "shards", "t"], "endpoint must be http(s)://host[:port]"),
        (["--endpoint", "http://[::1", "shards", "t"], "endpoint must be http(s)://host[:port]"),
        (["--endpoint", "https://localhost", "shards", "t"], "--endpoint must be http://HOST:PORT"),
        (["fault", "add", "{"], "the rule must be a JSON object"),
        (["fault", "add", "[]"], "the rule must be a JSON object"),
        (["fault", "--endpoint", "nonsense", "list"], "endpoint must be http(s)://host[:port]"),
    ],
)
def test_a_command_that_fails_says_why_on_one_line(
    local: LocalTablestore, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run(local, *arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    words = [word for word in arguments if word in ("shards", "fault", "add", "list")]
    assert captured.err.startswith(f"streamclient control {' '.join(words)}: ")
    assert captured.err.count("\n") == 1
    assert "s3" not in captured.err, "a secret is not shown"


def test_the_command_line_sends_a_secret_of_any_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a file as some editors write it, with a byte order mark and another end of the line."""
    secret = "schl\u00fcssel\u20ac"
    (tmp_path / "secret").write_bytes(f"\ufeff{secret}\r\n".encode())
    (tmp_path / "two").write_text(f"{secret}\nanother line\n")
    with LocalTablestore(access_key_secret=secret) as local:
        assert output(local, capsys, "--access-key-secret", secret, "requests") == "no requests\n"
        words = ["--access-key-secret-file", str(tmp_path / "secret"), "requests"]
        assert output(local, capsys, *words) == "no requests\n"
        assert run(local, "--access-key-secret-file", str(tmp_path / "two"), "requests") == 2

    told = capsys.readouterr().err
    assert told.endswith("two must have the access key secret alone, in one line, not 2 lines\n")
    assert "schl" not in told


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, b'{"error": {"code": "path", "text": "there is no such page"}}'),
        (401, b'{"error": {"code": "key"}}'),
        (404, b'["error"]'),
        (200, b"[]"),
        (200, b"<html>"),
    ],
)
def test_another_server_is_told_from_a_local_tablestore(
    capsys: pytest.CaptureFixture[str], status: int, content: bytes
) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(content)

    kind = type("Other", (BaseHTTPRequestHandler,), {"do_GET": answer, "log_message": lambda *_: None})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        assert main.main(["control", "--endpoint", endpoint, "shards", "t"]) == 2

    assert capsys.readouterr().err.endswith(f": {endpoint} is not a local Tablestore: status {status}\n")


@pytest.mark.parametrize("at", [2**63, 2**64, -(2**63) - 1])
def test_a_split_at_a_number_that_no_key_has_says_which_a_key_has(
    local: LocalTablestore, table: str, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    status, answer = call(local, "POST", "split", {"table": table, "at": at})
    assert run(local, "split", table, f"--at={at}") == 2

    told = capsys.readouterr().err
    assert (status, "OTSParameterInvalid" in answer["error"]) == (400, True)
    assert told.startswith("streamclient control split: ")
    assert f"takes only integers of 64 bits: got {at}" in told


@pytest.mark.parametrize("arguments", [["nothing"], ["control"], ["control", "fault"], ["server", "--port", "x"]])
def test_wrong_arguments_exit_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)

    assert caught.value.code == 2


def test_a_terminal_is_shown_beginnings_of_ids_which_commands_take(
    local: LocalTablestore, table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamclient.cli.terminal.output.width_of", lambda stream: 80)
    (first,) = (shard.shard_id for shard in local.shards(table))
    low, high = output(local, capsys, "split", table, first[:8], "--at", "3").split()
    merged = output(local, capsys, "merge", table, low, high).strip()
    known = [shard.shard_id for shard in local.shards(table)]

    assert [sum(each.startswith(short) and each != short for each in known) for short in (low, high, merged)] == [1] * 3
