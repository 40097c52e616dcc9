"""Requests as SDKs send them, which are answered without aiohttp: as it would answer them, and only those."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from server_http_tools import WAYS, answer_to_headers, create_table, error_code, raw, raw_request, request
from server_state_driver import over_http, put

from streamclient.server import Cut, Fail, FaultRule, LocalTablestore, connections, envelope
from streamclient.server.auth import Credentials, Doors
from streamclient.server.http_service import Service
from streamclient.server.plain_http import PlainHttp
from tests.patience import until
from tests.service_under_test import signed_headers


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were answered without aiohttp."""
    paths: list[str] = []
    answer = PlainHttp.answer

    def noted(plain: PlainHttp, head: object, body: bytes) -> bytes:
        paths.append(head.path)  # type: ignore[attr-defined]
        return answer(plain, head, body)  # type: ignore[arg-type]

    monkeypatch.setattr(PlainHttp, "answer", noted)
    return paths


@pytest.fixture
def opened(local: LocalTablestore) -> Iterator[socket.socket]:
    with raw(local) as connection:
        yield connection


def answers_of(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """So many answers; one reader for all, as it may have read the beginning of the next."""
    found = []
    with connection.makefile("rb") as answers:
        for _ in range(count):
            status = int(answers.readline().split()[1])
            size = int(http.client.parse_headers(answers)["content-length"])
            found.append((status, answers.read(size)))
    return found


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    return answers_of(connection, 1)[0]


CHANGES = {
    "right": {},
    "signature": {"x-ots-signature": "wrong"},
    "version": {"x-ots-apiversion": "1"},
    "date": {"x-ots-date": "yesterday"},
    "host": {"Host": "evil.example"},
    "origin": {"Origin": "http://evil.example"},
    "compressed": {"x-ots-request-compress-type": "deflate"},
    "json": {"Content-Type": "application/json", "x-ots-contentmd5": "wrong"},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("operation", ["ListTable", "DeleteTable", "MakeTea", "tunnel/list"])
def test_both_ways_answer_the_same(
    local: LocalTablestore, answered: list[str], operation: str, changed: dict[str, str]
) -> None:
    """Besides when, and under which number."""
    found = []
    for way in WAYS.values():
        headers = {**signed_headers(local, operation, b"\x0a\x01x"), **changed, **way}
        status, answer_headers, body = answer_to_headers(local, headers, f"/{operation}", b"\x0a\x01x")
        unlike = ("x-ots-date", "x-ots-requestid", "date", "authorization")
        found.append((status, body, {name: text for name, text in answer_headers.items() if name not in unlike}))
        found.append(sorted(answer_headers))

    assert found[:2] == found[2:]
    assert answered == [f"/{operation}"]


@pytest.mark.parametrize("size", [1, 100, 300_000])
def test_a_body_may_come_in_pieces(
    local: LocalTablestore, answered: list[str], opened: socket.socket, size: int
) -> None:
    body = request("DescribeTable", table_name="x" * size)
    whole = raw_request(local, "DescribeTable", body)
    end_of_head = whole.index(b"\r\n\r\n") + 4
    opened.sendall(whole[:end_of_head])
    for start in range(end_of_head, len(whole), len(body) // 3 + 1):
        opened.sendall(whole[start : start + len(body) // 3 + 1])

    status, answer = answer_of(opened)
    assert (status, error_code(answer)) == ((404, "OTSObjectNotExist") if size < 256 else (400, "OTSParameterInvalid"))
    assert answered == ["/DescribeTable"]


def test_requests_sent_ahead_are_answered_in_order(local: LocalTablestore, opened: socket.socket) -> None:
    bodies = [request("DescribeTable", table_name=f"t{number}") for number in range(3)]
    requests = [raw_request(local, "MakeTea"), *(raw_request(local, "DescribeTable", body) for body in bodies)]
    opened.sendall(b"".join(requests))

    assert [status for status, _ in answers_of(opened, 4)] == [400, 404, 404, 404]


def test_a_body_that_does_not_come_is_not_waited_for(
    local: LocalTablestore, opened: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_SECONDS", 0.1)
    opened.sendall(raw_request(local, "DescribeTable", b"\x0a\x01x")[:-1])

    status, answer = answer_of(opened)
    assert (status, error_code(answer)) == (408, "OTSRequestTimeout")
    assert opened.recv(1) == b""


def guards_of(local: LocalTablestore) -> list[Any]:
    server: Any = local._server
    return list(server._connections._guards.values())


def test_a_fault_that_is_added_while_a_body_comes_strikes(
    local: LocalTablestore, answered: list[str], opened: socket.socket
) -> None:
    whole = raw_request(local, "ListTable", b"\x0a\x01x")
    opened.sendall(whole[:-1])
    until(lambda: any(guard._head is not None for guard in guards_of(local)), "the head")
    local.add_fault(FaultRule("ListTable", Fail("OTSServerBusy")))
    opened.sendall(whole[-1:])

    assert answer_of(opened)[0] == 503
    assert answered == []


def test_a_fault_that_is_added_while_a_request_is_taken_strikes_the_next_one(
    local: LocalTablestore, answered: list[str], opened: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may add it at any time. A request that can no longer meet it does not count for it."""
    content_md5 = envelope.content_md5

    def added(body: bytes) -> str:
        monkeypatch.undo()
        local.add_fault(FaultRule("ListTable", Cut(), times=1))
        return content_md5(body)

    sent = raw_request(local, "ListTable", b"")
    monkeypatch.setattr(envelope, "content_md5", added)
    opened.sendall(sent)

    assert answer_of(opened)[0] == 200
    (fault,) = local.faults()
    assert (fault.seen, fault.struck) == (0, 0)
    opened.sendall(sent)
    assert opened.recv(1) == b""
    assert local.faults()[0].struck == 1


def test_idle_connections_are_closed(local: LocalTablestore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.1)
    for way in WAYS.values():
        with raw(local) as connection:
            connection.sendall(raw_request(local, "ListTable", **way))
            assert answer_of(connection)[0] == 200
            assert connection.recv(1) == b""


def test_no_headers_are_due_behind_a_whole_request(local: LocalTablestore, opened: socket.socket) -> None:
    """Also where a rule leaves all requests to aiohttp, and they come in pieces: a pool may keep such a connection."""
    local.add_fault(FaultRule("PutRow", Fail("OTSServerBusy")))
    whole = raw_request(local, "ListStream", request("ListStream", table_name="t" * 20))
    for pieces in ((whole,), (whole[:-4], whole[-4:]), (whole,)):
        for piece in pieces:
            opened.sendall(piece)
        assert answer_of(opened)[0] == 200
        (guard,) = guards_of(local)
        assert not guard.is_plain
        assert (guard._due, guard._timer) == (0, None)


def test_a_head_in_two_pieces_does_not_shorten_the_life_of_its_connection(
    local: LocalTablestore, opened: socket.socket
) -> None:
    whole = raw_request(local, "ListTable")
    opened.sendall(whole[:40])
    until(lambda: [guard.is_plain for guard in guards_of(local)] == [False], "the first piece")
    opened.sendall(whole[40:])
    assert answer_of(opened)[0] == 200
    (guard,) = guards_of(local)
    assert guard._timer is not None, "the next request may have begun"
    opened.sendall(whole)
    assert answer_of(opened)[0] == 200

    assert (guard._due, guard._timer) == (0, None)


@pytest.mark.parametrize("first", ["whole", "in pieces"])
def test_a_timer_that_is_due_beside_a_request_does_not_close_its_connection(
    local: LocalTablestore, opened: socket.socket, first: str
) -> None:
    """The request was read, and aiohttp begins it in the loop's next turn only."""
    whole = raw_request(local, "ListTable")
    local.add_fault(FaultRule("PutRow", Fail("OTSServerBusy")))  # leaves all requests to aiohttp
    for piece in (whole,) if first == "whole" else (whole[:40], whole[40:]):
        opened.sendall(piece)
        until(lambda: [guard.is_plain for guard in guards_of(local)] == [False], "the hand-over")
    assert answer_of(opened)[0] == 200
    (guard,) = guards_of(local)

    def one_turn() -> None:
        guard._used_at = -connections.KEEP_ALIVE_SECONDS
        headers = guard._timer
        guard.data_received(whole)
        guard._end_if_idle()
        if headers is not None and not headers.cancelled():
            guard.drop()

    local._server._loop.call_soon_threadsafe(one_turn)
    assert answer_of(opened)[0] == 200


def test_only_one_clock_closes_idle_connections(local: LocalTablestore, opened: socket.socket) -> None:
    """Not the one of aiohttp, which knows nothing of the requests that it does not answer."""
    opened.sendall(raw_request(local, "ListTable", TE="trailers"))
    assert answer_of(opened)[0] == 200

    assert [guard._handler.keepalive_timeout > 1e6 for guard in guards_of(local)] == [True]


def test_an_answer_larger_than_all_buffers_arrives_whole(local: LocalTablestore, answered: list[str]) -> None:
    create_table(local)
    for number in range(2):
        over_http(local).put(number, put("v", b"x" * 1_900_000))
    for _ in range(3):
        assert len(over_http(local).all_records()) == 2

    assert answered.count("/GetStreamRecord") == 6, "each time a page and an empty one behind it"


NOT_TAKEN = {
    "method": b"PUT /ListTable HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "version": b"POST /ListTable HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    "admin": b"POST /_admin/requests HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "query": b"POST /ListTable?a=b HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "no headers": b"POST /ListTable HTTP/1.1\r\n\r\n",
    "no length": b"POST /ListTable HTTP/1.1\r\nHost: a\r\n\r\n",
    "lengths": b"POST /ListTable HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n",
    "sign": b"POST /ListTable HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
    "too long": b"POST /ListTable HTTP/1.1\r\nContent-Length: 5242881\r\n\r\n",
    "twice": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA: b\r\na: b\r\n\r\n",
    "chunked": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "expect": b"POST /ListTable HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
    "close": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "upgrade": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nConnection: keep-alive\r\nUpgrade: h2c\r\n\r\n",
    "folded": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA: b\r\n c\r\n\r\n",
    "line feeds": b"POST /ListTable HTTP/1.1\nContent-Length: 0\n\n",
    "bytes": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA: \xff\r\n\r\n",
    "empty": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA: \r\n\r\n",
    "space before colon": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA : b\r\n\r\n",
    "half": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\n",
    "long": b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nA: " + b"b" * 5_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("data", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_is_not_plain_is_not_taken(data: bytes) -> None:
    plain = PlainHttp(Service(None, Credentials()), Doors(()))  # type: ignore[arg-type]

    assert plain.head_of(data) is None
    assert plain.head_of(b"POST /ListTable HTTP/1.1\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n") is not None
