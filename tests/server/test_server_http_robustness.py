"""What would bring a server down, or mislead it: connections, headers, hosts, secrets, floods of refused requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from server_http_tools import connect, create_table, error_code, headers_for, receive, send

from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore, connections
from streamclient.server.auth import Credentials, Doors, is_loopback, require_own_secret
from streamclient.server.counters import LONGEST_NAME, MOST_TALLIES, OTHERS, RequestCounters
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema, signature
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, encode_row
from tests.patience import PATIENCE_SECONDS, until


def port_of(local: LocalTablestore) -> int:
    return int(local.endpoint.rpartition(":")[2])


def raw(local: LocalTablestore) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(local)), timeout=PATIENCE_SECONDS)


def answer_to(local: LocalTablestore, data: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    with raw(local) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def lists_tables(local: LocalTablestore) -> bool:
    connection = connect(local)
    try:
        return send(local, connection, "ListTable")[0] == 200
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server ends a connection; a time-out is an error."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


# --- connections


@pytest.mark.parametrize("sent", [b"", b"POST /ListTable HTTP/1.1\r\nHost: a\r\nx-ots"], ids=["nothing", "half"])
def test_headers_that_do_not_come_to_an_end_are_not_waited_for(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    with raw(local) as half:
        half.sendall(sent)
        assert is_closed(half)


def test_bytes_that_come_one_by_one_do_not_stretch_the_time_for_headers(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.2)
    with raw(local) as slow:
        slow.settimeout(0.02)
        for _ in range(1_000):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("the connection stayed open")


def test_a_second_request_half_sent_is_not_waited_for_either(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(local)
    assert send(local, connection, "ListTable")[0] == 200
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.1)
    connection.sock.settimeout(PATIENCE_SECONDS)
    connection.sock.sendall(b"POST /ListTable HTTP/1.1\r\nHos")
    assert is_closed(connection.sock)
    connection.close()


FOREIGN = {
    "get": b"GET /_admin/tables HTTP/1.1\r\nHost: a\r\n\r\n",
    "chunked": b"POST /ListTable HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("form", ["plain", *FOREIGN])
def test_half_a_request_in_the_same_bytes_as_a_whole_one_is_not_waited_for(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, form: str, count: int
) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.1)
    whole = FOREIGN.get(form) or request_of(local, "ListTable", b"")

    answers = answer_to(local, whole * count + b"POST /ListTable HTTP/1.1\r\nHos")

    assert answers.count(b"HTTP/1.1 ") == count


def test_a_client_that_does_not_take_its_answer_is_not_waited_for(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_SECONDS", 0.05)
    fill(local)
    dropped: list[Any] = []
    drop = connections.Guard.drop
    monkeypatch.setattr(connections.Guard, "drop", lambda guard: (drop(guard), dropped.append(guard))[0])
    with raw(local) as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.sendall(request_of(local, "GetRange", everything()))
        until(lambda: bool(dropped), "the connection to be closed")
    (guard,) = dropped
    assert guard._transport.is_closing()


@pytest.mark.parametrize("more", [(), ("TE: trailers",)], ids=["plain", "aiohttp"])
def test_answers_that_nobody_takes_are_bounded_together(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """Each client may ask for the largest answer and read none of it."""
    monkeypatch.setattr(connections, "MAX_LEAVING_BYTES", 9_000_000)
    fill(local)
    server: Any = local._server
    open_ones = server._connections
    greedy: list[socket.socket] = []
    for count in range(1, 5):
        greedy.append(raw(local))
        greedy[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy[-1].sendall(request_of(local, "GetRange", everything(), *more))
        waiting = min(count, 2)
        until(lambda waiting=waiting: len(open_ones.answers) == waiting, "the answers to wait")  # type: ignore[misc]
        assert open_ones.answer_bytes <= 9_000_000
    assert lists_tables(local)
    for each in greedy:
        each.close()
    until(lambda: (open_ones.answers, open_ones.answer_bytes) == ({}, 0), "all answers to be forgotten")


class SlowTransport:
    """What is left of an answer each time that somebody looks."""

    def __init__(self, *left: int) -> None:
        self.left = list(left)
        self.is_aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.left.pop(0)

    def pause_reading(self) -> None:
        """Nothing more is taken from a client that takes nothing."""

    def abort(self) -> None:
        self.is_aborted.set()


def test_as_long_as_some_of_an_answer_is_taken_the_client_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_SECONDS", 0.0)
    transport = SlowTransport(100, 60, 60, 20, 20, 20)

    async def wait() -> None:
        guard = connections.Guard(connections.Connections(Mock, Mock()), Mock(), Mock())
        guard.connection_made(cast(asyncio.Transport, transport))
        guard.pause_writing()
        await transport.is_aborted.wait()
        guard.connection_lost(None)

    asyncio.run(wait())

    assert transport.left == [20, 20, 20], "it was given up when 60 bytes were left twice, and not before"


ROWS, ROW_BYTES = 8, 1_000_000


def fill(local: LocalTablestore) -> None:
    connection = connect(local)
    create_table(local, connection)
    for number in range(ROWS // 2):
        row = encode_row(Row((("pk", number),), (Cell("x", b"x" * ROW_BYTES), Cell("y", b"y" * ROW_BYTES))))
        request = schema.PutRowRequest(table_name="t", row=row, condition=schema.Condition(row_existence=0))
        assert send(local, connection, "PutRow", request.SerializeToString())[0] == 200
    connection.close()


def everything() -> bytes:
    low, high = (encode_row(Row((("pk", bound),))) for bound in (KeyBound.INF_MIN, KeyBound.INF_MAX))
    return bytes(
        schema.GetRangeRequest(
            table_name="t",
            direction=0,
            max_versions=1,
            inclusive_start_primary_key=low,
            exclusive_end_primary_key=high,
        ).SerializeToString()
    )


def request_of(local: LocalTablestore, operation: str, body: bytes, *more: str) -> bytes:
    headers = {"Host": "localhost", "Content-Length": str(len(body)), **headers_for(local, operation, body)}
    lines = [f"POST /{operation} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_bodies_that_do_not_come_to_an_end_are_bounded_together(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of people whom nobody knows yet, and each may be of five megabytes."""
    monkeypatch.setattr(connections, "MAX_COMING_BYTES", 1_000_000)
    body = b"\x7a\xfc\xb4\x18" + b"x" * 399_996  # one field that ListTable does not know
    half: list[socket.socket] = []
    server: Any = local._server
    open_ones = server._connections
    while len(half) < 10:
        half.append(raw(local))
        half[-1].sendall(request_of(local, "ListTable", body)[:-1])
        if len(half) > 2:
            assert is_closed(half[-3]), "the oldest did not make room"
        until(lambda: open_ones.body_bytes == 399_999 * min(len(half), 2), "the body to arrive")
    half[-1].sendall(b"x")
    assert half[-1].recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
    for each in half:
        each.close()
    until(lambda: (open_ones.bodies, open_ones.body_bytes) == ({}, 0), "all bodies to be forgotten")


def test_a_client_that_waits_to_be_asked_for_the_body_is_asked(local: LocalTablestore) -> None:
    """curl, and the SDKs built on it, would wait a second before each larger body."""
    body = schema.ListStreamRequest(table_name="t").SerializeToString()
    whole = request_of(local, "ListStream", body, "Expect: 100-continue", "Connection: close")
    with raw(local) as connection:
        connection.sendall(whole[: -len(body)])
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(15, socket.MSG_WAITALL) == b"HTTP/1.1 200 OK"
    refused = whole[: -len(body)].replace(b"Content-Length: 3", b"Content-Length: 9999999")
    with raw(local) as connection:
        connection.sendall(refused)
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 413"


def test_an_idle_connection_that_has_asked_is_kept(local: LocalTablestore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools keep connections for minutes; only headers are in a hurry."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    connection = connect(local)
    assert send(local, connection, "ListTable")[0] == 200
    first = connection.sock
    for _ in range(3):  # so long, and three times
        with raw(local) as silent:
            assert is_closed(silent)
    assert send(local, connection, "ListTable")[0] == 200
    assert connection.sock is first
    connection.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTablestore]:
    """A server that bears eight connections."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 3_600.0)  # which would close them, too
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    with LocalTablestore() as running:
        yield running


def test_many_half_sent_requests_shut_out_nobody_and_do_not_fill_the_log(
    small: LocalTablestore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="streamclient")
    half = []
    known = connect(small)
    assert send(small, known, "ListTable")[0] == 200
    first = known.sock
    for _ in range(60):
        half.append(raw(small))
        half[-1].sendall(b"POST /ListTable HTTP/1.1\r\n")
        assert lists_tables(small)
    assert send(small, known, "ListTable")[0] == 200
    assert known.sock is first, "a client that asks was closed although others never did"
    assert sum(is_closed(each) for each in half[:40]) == 40
    for each in half:
        each.close()
    known.close()
    assert len([record for record in caplog.records if record.name.startswith(("streamclient", "aiohttp"))]) <= 1


def test_connections_that_come_all_at_once_are_bounded_too(small: LocalTablestore) -> None:
    """More come than the event loop tells of before the first of them is closed."""
    burst = [raw(small) for _ in range(200)]

    assert sum(is_closed(each) for each in burst[:150]) == 150
    assert lists_tables(small)
    for each in burst:
        each.close()


def test_the_process_keeps_files_for_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (100, 100))
    assert connections.most_connections() == 75


# --- what is no request


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nbad\x00name: x\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: a\r\nlong: " + b"x" * 10_000 + b"\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: a\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(300)) + b"\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=["TLS", "name", "long", "many", "chunk", "length", "lengths"],
)
def test_what_is_no_http_gets_a_protocol_error_with_a_request_id(
    local: LocalTablestore, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    head, _, body = answer_to(local, data).partition(b"\r\n\r\n")

    assert b" 400 " in head.partition(b"\r\n")[0]
    assert b"x-ots-requestid: " in head
    assert error_code(body) == "OTSParameterInvalid"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert lists_tables(local)


HEADERS = (
    "x-ots-date",
    "x-ots-apiversion",
    "x-ots-accesskeyid",
    "x-ots-instancename",
    "x-ots-contentmd5",
    "x-ots-signature",
    "x-ots-signaturev4",
    "x-ots-signdate",
    "x-ots-signregion",
    "x-ots-ststoken",
    "x-ots-request-compress-type",
    "x-ots-request-compress-size",
    "content-encoding",
    "content-type",
    "authorization",
    "origin",
    "cookie",
)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xc3\xa9", b"\x80" * 100, "\uff11".encode(), b"gzip", b"9" * 400])
def test_any_byte_in_a_header_gets_a_protocol_answer(local: LocalTablestore, name: str, value: bytes) -> None:
    headers = {**headers_for(local, "ListTable", b""), "host": "localhost", "content-length": "0"}
    headers.pop(name, None)
    lines = [b"POST /ListTable HTTP/1.1", b"connection: close", name.encode() + b": " + value]
    lines += [f"{each}: {text}".encode() for each, text in headers.items()]
    answer = answer_to(local, b"\r\n".join([*lines, b"", b""]))

    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200 ")), answer[:300]
    assert b"x-ots-requestid: " in answer


@pytest.mark.parametrize("path", [b"/\xff\xfe", b"/_admin/\xff?table=\xff%ff%", b"http://h/ListTable", b"*"])
def test_any_byte_in_a_path_gets_an_answer_that_is_no_failure(local: LocalTablestore, path: bytes) -> None:
    answer = answer_to(local, b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:300]


@pytest.mark.parametrize("name", ["x-ots-date", "X-Ots-Instancename", "x-ots-anything", "Content-Type", "host"])
def test_a_header_that_counts_must_not_come_twice(local: LocalTablestore, name: str) -> None:
    headers = {"host": "localhost", **headers_for(local, "ListTable", b""), "content-length": "0"}
    lines = [b"POST /ListTable HTTP/1.1", b"connection: close"]
    lines += [f"{each}: {text}".encode() for each, text in headers.items()]
    lines += [f"{name}: same".encode()] * (1 if name.lower() in headers else 2)
    head, _, body = answer_to(local, b"\r\n".join([*lines, b"", b""])).partition(b"\r\n\r\n")

    assert b" 400 " in head.partition(b"\r\n")[0]
    error = schema.parse(schema.Error, body)
    assert error.code == "OTSParameterInvalid"


def test_a_compressed_body_is_inflated_by_the_protocol_alone(local: LocalTablestore) -> None:
    """HTTP's own compression has no bound; the digest is that of the body as it came."""
    connection = connect(local)
    headers = {**headers_for(local, "ListTable", b"not deflated"), "Content-Encoding": "deflate"}
    connection.request("POST", "/ListTable", b"not deflated", headers)
    status, _, body = receive(connection)
    connection.close()

    assert (status, error_code(body)) == (400, "OTSParameterInvalid")


# --- signatures


def v4_headers(local: LocalTablestore, sign_date: str, region: str = "cn-hangzhou") -> dict[str, str]:
    headers = headers_for(local, "ListTable", b"")
    del headers[signature.SIGNATURE_V2_HEADER]
    headers |= {signature.SIGN_DATE_HEADER: sign_date, signature.SIGN_REGION_HEADER: region}
    key = signature.derive_v4_key(local.access_key_secret, sign_date, region)
    headers[signature.SIGNATURE_V4_HEADER] = signature.sign_request_v4(key, "/ListTable", headers)
    return headers


def status_of(local: LocalTablestore, headers: dict[str, str], path: str = "/ListTable") -> int:
    connection = connect(local)
    try:
        connection.request("POST", path, b"", headers)
        return receive(connection)[0]
    finally:
        connection.close()


def test_a_v4_key_is_good_for_the_day_of_the_request(local: LocalTablestore) -> None:
    now = datetime.now(timezone.utc)
    days = {shift: (now + timedelta(days=shift)).strftime("%Y%m%d") for shift in (-30, -2, 0, 2)}

    statuses = {shift: status_of(local, v4_headers(local, day)) for shift, day in days.items()}

    assert statuses == {-30: 403, -2: 403, 0: 200, 2: 403}
    assert status_of(local, v4_headers(local, "today")) == 403
    assert status_of(local, v4_headers(local, days[0], "no region")) == 400


# --- where a request comes from


WAYS = {"plain": {}, "aiohttp": {"TE": "trailers"}}
"""Headers that choose the half of the server that answers."""

OF_STRANGERS = (
    "evil.example",
    "evil.example:8180",
    "127.0.0.1.evil.example",
    "router",
    "tablestore:8180",
    "localhost.evil.example",
    "evillocalhost",
    "2130706433",
    "127.1",
    "a@localhost",
    "localhost/evil.example",
    "localhost:x",
    "a b",
    "[::1",
    "[localhost]",
)


@pytest.mark.parametrize("path", ["/ListTable", "/_admin/requests"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("host", OF_STRANGERS)
def test_a_host_that_is_not_ours_is_refused(local: LocalTablestore, path: str, way: dict[str, str], host: str) -> None:
    """A page can let a name of its own point to this machine, and a router can be such a name."""
    headers = headers_for(local, "ListTable", b"") | {"Authorization": f"Bearer {local.access_key_secret}"}

    assert status_of(local, {**headers, **way, "Host": host}, path) == 403
    assert local.requests() == (), "it is refused before anything is done"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "192.0.2.7", "localhost:8180", "LOCALHOST", "[::1]:8180", "[fe80::1%25eth0]", "a.localhost"]
)
def test_addresses_and_names_below_localhost_are_ours(local: LocalTablestore, way: dict[str, str], host: str) -> None:
    """An address cannot be made to point elsewhere."""
    assert status_of(local, {**headers_for(local, "ListTable", b""), **way, "Host": host}) == 200


@pytest.mark.parametrize("name", ["tablestore", "Tablestore.Example.Test"])
def test_a_name_that_was_given_is_ours(name: str) -> None:
    """Clients in other containers know the server by the name of its own."""
    with LocalTablestore(allowed_hosts=[name]) as local:
        headers = headers_for(local, "ListTable", b"")

        assert status_of(local, {**headers, "Host": f"{name}:80".lower()}) == 200
        assert status_of(local, {**headers, "Host": f"other.{name}"}) == 403


def test_the_refusal_of_a_host_tells_what_to_do() -> None:
    doors = Doors(("",))

    with pytest.raises(ServiceError, match=r"'tablestore:8180'.*--allowed-host tablestore"):
        doors.check({"host": "tablestore:8180"})
    for host in (":8180", "x" * 5_000):
        with pytest.raises(ServiceError, match="--allowed-host NAME") as caught:
            doors.check({"host": host})
        assert len(caught.value.message) < 500


@pytest.mark.parametrize("names", [("a b",), ("",), ("http://tablestore",), ("tablestore:8180",), ("x" * 256,)])
def test_a_name_that_no_client_can_send_is_refused_at_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="allowed_hosts must be"):
        LocalTablestore(allowed_hosts=names)


@pytest.mark.parametrize("path", ["/ListTable", "/_admin/requests"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "", "http://{host}"])
def test_a_page_in_a_browser_is_refused(local: LocalTablestore, path: str, way: dict[str, str], origin: str) -> None:
    """Also one whose origin is the host that it asks: a name that was given may be a page's, too."""
    headers = headers_for(local, "ListTable", b"") | {"Authorization": f"Bearer {local.access_key_secret}"}
    host = local.endpoint.removeprefix("http://")

    assert status_of(local, {**headers, **way, "Host": host, "Origin": origin.format(host=host)}, path) == 403
    assert local.requests() == ()


# --- secrets


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True)])
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no.such.name.invalid"])
def test_the_public_secret_is_for_loopback_unless_insisted_on(host: str) -> None:
    with pytest.raises(ValueError, match="public access key secret"):
        LocalTablestore(host=host).start()
    require_own_secret(host, 0, Credentials(access_key_secret="another"))


def test_whoever_insists_listens_with_the_public_secret() -> None:
    with LocalTablestore(host="0.0.0.0", allow_public_secret=True) as local:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(local), timeout=PATIENCE_SECONDS)
        assert send(local, connection, "ListTable")[0] == 200
        connection.close()


def server_output(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a server process prints that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "streamclient", "server", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
def test_the_command_refuses_the_public_secret_beyond_loopback_on_one_line() -> None:
    done = server_output("--host", "0.0.0.0")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--allow-public-secret" in done.stderr


@pytest.mark.slow
def test_a_secret_file_that_is_not_there_is_named_on_one_line(tmp_path: Path) -> None:
    done = server_output("--access-key-secret-file", str(tmp_path / "none"))

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(tmp_path / "none") in done.stderr


def test_secrets_come_from_the_arguments_a_file_or_the_environment(tmp_path: Path) -> None:
    from argparse import ArgumentParser

    from streamclient.cli.options import connection_of, connection_parent

    parser = ArgumentParser(parents=[connection_parent()])
    (tmp_path / "secret").write_text("from-file\n")
    environment = {"TABLESTORE_ACCESS_KEY_SECRET": "from-environment"}

    given = {
        name: connection_of(parser.parse_args(arguments), environment).access_key_secret
        for name, arguments in {
            "argument": ["--access-key-secret", "mine"],
            "file": ["--access-key-secret-file", str(tmp_path / "secret")],
            "environment": [],
        }.items()
    }

    assert given == {"argument": "mine", "file": "from-file", "environment": "from-environment"}
    assert connection_of(parser.parse_args([]), {}).access_key_secret == "local-access-key-secret"


# --- refused requests


def test_names_that_are_asked_for_do_not_fill_the_memory() -> None:
    counters = RequestCounters()
    for number in range(MOST_TALLIES + 1_000):
        counters.add("GetRow", (f"{number}",), failed=True)
    counters.add("GetRow", ("x" * 1_000_000,), failed=True)
    counters.add("x" * 1_000_000, (), failed=True)
    counted = counters.counts()

    assert len(counted) == MOST_TALLIES + 1
    assert sum(count.requests for count in counted if count.operation == OTHERS) == 1_002
    assert sum(count.requests for count in counted) == MOST_TALLIES + 1_002


def test_long_names_are_counted_by_their_beginning() -> None:
    counters = RequestCounters()
    counters.add("BatchGetRow", tuple(f"table_{number}" for number in range(1_000)))

    (count,) = counters.counts()
    assert len(count.table) == LONGEST_NAME
    assert count.table.startswith("table_0,table_1,")


def test_a_refusal_does_not_repeat_megabytes(local: LocalTablestore) -> None:
    connection = connect(local)
    create_table(local, connection)
    body = schema.DescribeTableRequest(table_name="x" * 1_000_000).SerializeToString()
    status, _, answer = send(local, connection, "DescribeTable", body)
    connection.close()

    assert status == 400
    assert len(answer) < 10_000


def test_deep_json_is_a_refused_admin_request(local: LocalTablestore) -> None:
    connection = connect(local)
    headers = {"Authorization": f"Bearer {local.access_key_secret}"}
    connection.request("POST", "/_admin/split", b"[" * 200_000, headers)
    status, _, body = receive(connection)
    connection.close()

    assert status == 400
    assert "error" in json.loads(body)
