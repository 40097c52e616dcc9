"""What would bring a server down, or mislead it: connections, headers, hosts, secrets, floods of refused requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, cast
from unittest.mock import Mock

import pytest
from server_http_tools import (
    WAYS,
    answer_to_headers,
    connect,
    create_table,
    error_code,
    raw,
    raw_request,
    request,
    send,
)
from server_state_driver import HIGHEST, LOWEST, frame, over_http, put

from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore, connections
from streamclient.server.auth import Doors
from streamclient.server.server_errors import ServiceError
from tests.patience import PATIENCE_SECONDS, until
from tests.service_under_test import signed_headers, signed_v4_headers


def answer_to(local: LocalTablestore, data: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    with raw(local) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


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
    local: LocalTablestore, connection: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(local, connection, "ListTable")[0] == 200
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.1)
    connection.sock.settimeout(PATIENCE_SECONDS)
    connection.sock.sendall(b"POST /ListTable HTTP/1.1\r\nHos")
    assert is_closed(connection.sock)


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
    whole = FOREIGN.get(form) or raw_request(local, "ListTable", b"")

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
        greedy.sendall(raw_request(local, "GetRange", everything()))
        until(lambda: bool(dropped), "the connection to be closed")
    (guard,) = dropped
    assert guard._transport.is_closing()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_answers_that_nobody_takes_are_bounded_together(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, way: dict[str, str]
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
        greedy[-1].sendall(raw_request(local, "GetRange", everything(), **way))
        waiting = min(count, 2)
        until(lambda waiting=waiting: len(open_ones.answers) == waiting, "the answers to wait")  # type: ignore[misc]
        assert open_ones.answer_bytes <= 9_000_000
    assert over_http(local).tables() == ["t"]
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
    create_table(local)
    for number in range(ROWS // 2):
        over_http(local).put(number, put("x", b"x" * ROW_BYTES), put("y", b"y" * ROW_BYTES))


def everything() -> bytes:
    bounds = {"inclusive_start_primary_key": frame(LOWEST), "exclusive_end_primary_key": frame(HIGHEST)}
    return request("GetRange", table_name="t", direction=0, max_versions=1, **bounds)


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
        half[-1].sendall(raw_request(local, "ListTable", body)[:-1])
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
    body, more = request("ListStream", table_name="t"), {"Expect": "100-continue", "Connection": "close"}
    with raw(local) as asking:
        asking.sendall(raw_request(local, "ListStream", body, **more)[: -len(body)])
        assert asking.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        asking.sendall(body)
        assert asking.recv(15, socket.MSG_WAITALL) == b"HTTP/1.1 200 OK"
    with raw(local) as asking:
        asking.sendall(raw_request(local, "ListStream", **more, **{"Content-Length": "9999999"}))
        assert asking.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 413"


def test_an_idle_connection_that_has_asked_is_kept(
    local: LocalTablestore, connection: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools keep connections for minutes; only headers are in a hurry."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    assert send(local, connection, "ListTable")[0] == 200
    first = connection.sock
    for _ in range(3):  # so long, and three times
        with raw(local) as silent:
            assert is_closed(silent)
    assert send(local, connection, "ListTable")[0] == 200
    assert connection.sock is first


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
        assert over_http(small).tables() == []
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
    assert over_http(small).tables() == []
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
    assert over_http(local).tables() == []


HEADERS = (
    *("x-ots-date", "x-ots-apiversion", "x-ots-accesskeyid", "x-ots-instancename", "x-ots-contentmd5"),
    *("x-ots-signature", "x-ots-signaturev4", "x-ots-signdate", "x-ots-signregion", "x-ots-ststoken"),
    *("x-ots-request-compress-type", "x-ots-request-compress-size", "content-encoding", "content-type"),
    *("authorization", "origin", "cookie"),
)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xc3\xa9", b"\x80" * 100, "\uff11".encode(), b"gzip", b"9" * 400])
def test_any_byte_in_a_header_gets_a_protocol_answer(local: LocalTablestore, name: str, value: bytes) -> None:
    headers = {**signed_headers(local, "ListTable", b""), "host": "localhost", "content-length": "0"}
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
    headers = {"host": "localhost", **signed_headers(local, "ListTable", b""), "content-length": "0"}
    lines = [b"POST /ListTable HTTP/1.1", b"connection: close"]
    lines += [f"{each}: {text}".encode() for each, text in headers.items()]
    lines += [f"{name}: same".encode()] * (1 if name.lower() in headers else 2)
    head, _, body = answer_to(local, b"\r\n".join([*lines, b"", b""])).partition(b"\r\n\r\n")

    assert b" 400 " in head.partition(b"\r\n")[0]
    assert error_code(body) == "OTSParameterInvalid"


def test_a_compressed_body_is_inflated_by_the_protocol_alone(local: LocalTablestore) -> None:
    """HTTP's own compression has no bound; the digest is that of the body as it came."""
    headers = {**signed_headers(local, "ListTable", b"not deflated"), "Content-Encoding": "deflate"}
    status, _, body = answer_to_headers(local, headers, body=b"not deflated")

    assert (status, error_code(body)) == (400, "OTSParameterInvalid")


# --- signatures


def status_of(local: LocalTablestore, headers: dict[str, str], path: str = "/ListTable") -> int:
    return answer_to_headers(local, headers, path)[0]


def test_a_v4_key_is_good_for_the_day_of_the_request(local: LocalTablestore) -> None:
    now = datetime.now(timezone.utc)
    days = {shift: (now + timedelta(days=shift)).strftime("%Y%m%d") for shift in (-30, -2, 0, 2)}

    def status(*day_and_region: str) -> int:
        return status_of(local, signed_v4_headers(local, "ListTable", b"", *day_and_region))

    assert {shift: status(day) for shift, day in days.items()} == {-30: 403, -2: 403, 0: 200, 2: 403}
    assert status("today") == 403
    assert status(days[0], "no region") == 400


# --- where a request comes from


OF_STRANGERS = (
    *(
        "evil.example",
        "evil.example:8180",
        "127.0.0.1.evil.example",
        "router",
        "tablestore:8180",
        "127.1",
        "2130706433",
    ),
    *("localhost.evil.example", "evillocalhost", "a@localhost", "localhost/evil.example", "localhost:x", "a b"),
    *("[::1", "[localhost]"),
)


@pytest.mark.parametrize("path", ["/ListTable", "/_admin/requests"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("host", OF_STRANGERS)
def test_a_host_that_is_not_ours_is_refused(local: LocalTablestore, path: str, way: dict[str, str], host: str) -> None:
    """A page can let a name of its own point to this machine, and a router can be such a name."""
    headers = signed_headers(local, "ListTable", b"") | {"Authorization": f"Bearer {local.access_key_secret}"}

    assert status_of(local, {**headers, **way, "Host": host}, path) == 403
    assert local.requests() == (), "it is refused before anything is done"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "192.0.2.7", "localhost:8180", "LOCALHOST", "[::1]:8180", "[fe80::1%25eth0]", "a.localhost"]
)
def test_addresses_and_names_below_localhost_are_ours(local: LocalTablestore, way: dict[str, str], host: str) -> None:
    """An address cannot be made to point elsewhere."""
    assert status_of(local, {**signed_headers(local, "ListTable", b""), **way, "Host": host}) == 200


@pytest.mark.parametrize("name", ["tablestore", "Tablestore.Example.Test"])
def test_a_name_that_was_given_is_ours(name: str) -> None:
    """Clients in other containers know the server by the name of its own."""
    with LocalTablestore(allowed_hosts=[name]) as local:
        headers = signed_headers(local, "ListTable", b"")

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
    headers = signed_headers(local, "ListTable", b"") | {"Authorization": f"Bearer {local.access_key_secret}"}
    host = local.endpoint.removeprefix("http://")

    assert status_of(local, {**headers, **way, "Host": host, "Origin": origin.format(host=host)}, path) == 403
    assert local.requests() == ()


# --- refused requests


def test_a_refusal_does_not_repeat_megabytes(local: LocalTablestore, connection: http.client.HTTPConnection) -> None:
    body = request("DescribeTable", table_name="x" * 1_000_000)
    status, _, answer = send(local, connection, "DescribeTable", body)

    assert status == 400
    assert len(answer) < 10_000


def test_deep_json_is_a_refused_admin_request(local: LocalTablestore) -> None:
    headers = {"Authorization": f"Bearer {local.access_key_secret}"}
    status, _, body = answer_to_headers(local, headers, "/_admin/split", b"[" * 200_000)

    assert status == 400
    assert "error" in json.loads(body)
