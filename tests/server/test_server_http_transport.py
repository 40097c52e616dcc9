"""The transport over real sockets: connections, methods, sizes, faults that break them, start and stop."""

from __future__ import annotations

import gc
import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone

import pytest
from server_http_tools import answer_to_headers, create_table, error_code, port_of, raw, receive, request, send
from server_state_driver import PUT, batch_row, creation, over_http, put

from streamclient.server import (
    Cut,
    Fail,
    FailRows,
    FaultRule,
    LateAnswer,
    Latency,
    LocalTablestore,
    LoseAnswer,
    ServiceError,
)
from streamclient.wire import schema, signature
from tests.patience import FOREVER_SECONDS, PATIENCE_SECONDS, until
from tests.service_under_test import signed_headers


def test_a_connection_serves_many_requests_and_survives_errors(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    send(local, connection, "ListTable")
    first = connection.sock
    for _ in range(5):
        assert send(local, connection, "ListTable")[0] == 200
        assert send(local, connection, "DeleteTable", b"\x0a\x01x")[0] == 404

    assert connection.sock is first


@pytest.mark.parametrize(
    ("operation", "sent"), [("ListTable", b""), ("DeleteTable", b"\x0a\x01x")], ids=["answer", "error"]
)
def test_answers_hold_exactly_the_signed_headers(
    local: LocalTablestore, connection: http.client.HTTPConnection, operation: str, sent: bytes
) -> None:
    """One more ``x-ots-`` header would break the signature in Java and Python."""
    _, headers, body = send(local, connection, operation, sent)
    signed = {name: value for name, value in headers.items() if name.startswith("x-ots-")}

    assert sorted(signed) == ["x-ots-contentmd5", "x-ots-contenttype", "x-ots-date", "x-ots-requestid"]
    expected = signature.sign_response(local.access_key_secret, f"/{operation}", signed)
    assert headers["authorization"] == f"OTS {local.access_key_id}:{expected}"
    assert signed["x-ots-contentmd5"] == signature.content_md5(body)


def test_errors_to_strangers_are_not_signed_but_numbered(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", "/ListTable", b"")
    status, headers, body = receive(connection)

    assert (status, error_code(body)) == (400, "OTSParameterInvalid")
    assert "authorization" not in headers
    assert headers["x-ots-requestid"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, br"])
def test_answers_are_never_compressed(local: LocalTablestore, encoding: str) -> None:
    """Go asks for gzip by default and would undo it; the others would not."""
    headers = {**signed_headers(local, "ListTable", b""), "Accept-Encoding": encoding}
    status, answered, _ = answer_to_headers(local, headers)

    assert status == 200
    assert "content-encoding" not in answered


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_post_is_allowed(connection: http.client.HTTPConnection, method: str) -> None:
    connection.request(method, "/ListTable")
    status, _, body = receive(connection)

    assert status == 405
    assert method == "HEAD" or error_code(body) == "OTSMethodNotAllowed"


def test_a_chunked_request_is_read(local: LocalTablestore, connection: http.client.HTTPConnection) -> None:
    create_table(local)
    body = b"\x0a\x01t"
    chunks = iter([body[:1], body[1:]])
    connection.request(
        "POST", "/DescribeTable", chunks, signed_headers(local, "DescribeTable", body), encode_chunked=True
    )

    assert receive(connection)[0] == 200


def test_a_chunked_body_is_refused_as_soon_as_it_exceeds_the_limit(local: LocalTablestore) -> None:
    """The body never ends here: a server that waited for its end would keep all of it in memory."""
    with raw(local) as endless:
        endless.sendall(b"POST /PutRow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            endless.sendall(b"100000\r\n" + bytes(1024 * 1024) + b"\r\n")
        answer = endless.recv(13, socket.MSG_WAITALL)

    assert answer == b"HTTP/1.1 413 "


def test_a_body_above_the_limit_is_refused_by_its_length_alone(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    headers = {**signed_headers(local, "PutRow", b""), "Content-Length": str(5 * 1024 * 1024 + 1)}
    connection.request("POST", "/PutRow", None, headers)
    status, _, body = receive(connection)

    assert (status, error_code(body)) == (413, "OTSRequestBodyTooLarge")


def test_a_client_that_leaves_in_mid_request_harms_nobody(local: LocalTablestore) -> None:
    for partial in (b"", b"POST /ListTable HTT", b"POST /PutRow HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf"):
        with raw(local) as rude:
            rude.sendall(partial)

    assert over_http(local).tables() == []


@pytest.mark.parametrize(("action", "tables"), [(Cut(), []), (LoseAnswer(), ["t"])], ids=["cut", "lost answer"])
def test_a_cut_request_is_not_executed_and_one_whose_answer_is_lost_is(
    local: LocalTablestore, action: Cut | LoseAnswer, tables: list[str]
) -> None:
    local.add_fault(FaultRule("CreateTable", action, times=1))

    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        create_table(local)

    assert over_http(local).tables() == tables


@pytest.mark.parametrize(
    ("action", "has_effect"),
    [
        (Latency(FOREVER_SECONDS), False),
        (LateAnswer(FOREVER_SECONDS), True),
        (LoseAnswer(seconds=FOREVER_SECONDS), True),
    ],
    ids=["latency", "lateness", "silent loss"],
)
def test_latency_comes_before_and_lateness_after_the_effect(
    local: LocalTablestore, action: Latency | LateAnswer | LoseAnswer, has_effect: bool
) -> None:
    """While the answer is late, others already see the change; while there is latency, they do not."""
    local.add_fault(FaultRule("CreateTable", action))
    address = local.endpoint.removeprefix("http://")
    with closing(http.client.HTTPConnection(address, timeout=0.2)) as impatient, pytest.raises(TimeoutError):
        send(local, impatient, "CreateTable", request("CreateTable", **creation()))

    until(lambda: local.faults()[0].struck == 1, "the fault")
    if has_effect:
        until(lambda: over_http(local).tables() == ["t"], "the effect")
    assert over_http(local).tables() == ["t"] * has_effect


def test_latency_delays_only_its_own_request(local: LocalTablestore) -> None:
    local.add_fault(FaultRule("CreateTable", Latency(0.1), times=1))
    started = time.monotonic()
    create_table(local)

    assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize(
    ("action", "status", "message"),
    [
        (Fail("OTSServerBusy"), 503, "Server is busy."),
        (Fail("OTSNotEnoughCapacityUnit"), 403, "Remaining capacity unit is not enough."),
        (Fail("OTSServerBusy", "Come back.", 429), 429, "Come back."),
        (Fail("OTSFlowControl"), 429, "The request is throttled."),
        (Fail("OTSSessionNotExist"), 404, "Session not exist or may be timeout."),
        (Fail("OTSInvalidPK"), 400, "Primary key schema mismatch."),
        (Fail("OTSFlowControl", http_status=503), 503, "The request is throttled."),
        (Fail("OTSMadeUp", http_status=429), 429, "Injected error."),
        (Fail("OTSMadeUp"), 400, "Injected error."),
    ],
)
def test_an_injected_error_looks_like_the_services_own(
    local: LocalTablestore, connection: http.client.HTTPConnection, action: Fail, status: int, message: str
) -> None:
    local.add_fault(FaultRule("CreateTable", action))

    answered, _, body = send(local, connection, "CreateTable", request("CreateTable", **creation()))

    error = schema.parse(schema.Error, body)
    assert (answered, error.code, error.message) == (status, action.code, message)
    assert over_http(local).tables() == []


def test_strangers_do_not_use_up_faults(local: LocalTablestore, connection: http.client.HTTPConnection) -> None:
    local.add_fault(FaultRule("ListTable", Fail("OTSServerBusy"), times=1))
    connection.request("POST", "/ListTable", b"")
    assert receive(connection)[0] == 400

    assert send(local, connection, "ListTable")[0] == 503
    assert send(local, connection, "ListTable")[0] == 200


def test_rows_of_a_batch_fail_while_the_others_are_written(local: LocalTablestore) -> None:
    create_table(local)
    local.add_fault(FaultRule("BatchWriteRow", FailRows(rows=(1,), every=4, code="OTSTimeout"), table="t"))
    rows = [batch_row(PUT, number, put("v", 1)) for number in range(5)]

    results = over_http(local).write_batch(rows)

    failed, done = (False, "OTSTimeout", "Operation timeout."), (True, "", "")
    assert [(row.is_ok, row.error.code, row.error.message) for row in results] == [done, failed, done, failed, done]
    assert list(over_http(local).table()) == [0, 2, 4]


def test_an_atomic_batch_with_a_failing_row_writes_nothing(local: LocalTablestore) -> None:
    create_table(local)
    local.add_fault(FaultRule("BatchWriteRow", FailRows(rows=(1,)), table="t", times=1))
    rows = [batch_row(PUT, 1, put(f"v{number}", 1)) for number in range(3)]
    driver = over_http(local)

    assert [row.error.code for row in driver.write_batch(rows, is_atomic=True)] == ["OTSServerBusy"] * 3
    assert driver.table() == {}
    assert all(row.is_ok for row in driver.write_batch(rows, is_atomic=True))
    assert driver.table() == {1: {"v2": 1}}


def test_requests_are_counted_by_operation_and_table(local: LocalTablestore) -> None:
    create_table(local)
    driver = over_http(local)
    assert driver.tables() == ["t"]
    for _ in range(2):
        driver.call("DescribeTable", table_name="t")
    driver.refusal("DescribeTable", table_name="u")

    counted = [(count.operation, count.table, count.requests, count.errors) for count in local.requests()]
    assert counted == [
        ("CreateTable", "t", 1, 0),
        ("DescribeTable", "t", 2, 0),
        ("DescribeTable", "u", 1, 1),
        ("ListTable", "", 1, 0),
    ]
    local.reset_requests()
    assert local.requests() == ()


def test_servers_in_one_process_do_not_share_anything(local: LocalTablestore) -> None:
    with LocalTablestore(instance="other", access_key_id="id", access_key_secret="secret") as other:
        create_table(other, "theirs")

        assert other.endpoint != local.endpoint
        assert over_http(local).tables() == []
        assert over_http(other).tables() == ["theirs"]


@pytest.fixture
def patient_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so much patience, a stop that had to wait for something would not end within a test's."""
    monkeypatch.setattr("streamclient.server.http_server.STOP_TIMEOUT_SECONDS", FOREVER_SECONDS)
    monkeypatch.setattr("streamclient.server.http_server.JOIN_TIMEOUT_SECONDS", FOREVER_SECONDS)


def stops(local: LocalTablestore) -> bool:
    """Whether a stop ends within the patience of a test."""
    stopping = threading.Thread(target=local.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_SECONDS)
    return not stopping.is_alive()


@pytest.mark.usefixtures("patient_stop")
def test_stopping_wakes_waiting_requests_and_leaves_nothing_behind() -> None:
    before = set(threading.enumerate())
    local = LocalTablestore().start()
    local.add_fault(FaultRule("ListTable", Latency(FOREVER_SECONDS)))
    failures: list[Exception] = []

    def wait() -> None:
        try:
            over_http(local).tables()
        except (http.client.HTTPException, OSError) as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: any(fault.struck for fault in local.faults()), "the fault")

    assert stops(local), "a stop must not sit out an injected latency"
    waiting.join(PATIENCE_SECONDS)
    assert len(failures) == 1
    gc.collect()
    assert set(threading.enumerate()) == before


def test_a_stopped_server_can_be_started_again() -> None:
    local = LocalTablestore()
    for _ in range(2):
        with local:
            assert over_http(local).tables() == []
    local.stop()

    with pytest.raises(RuntimeError, match="not running"):
        _ = local.endpoint


def test_starting_twice_is_an_error(local: LocalTablestore) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        local.start()


def test_a_port_in_use_is_named(local: LocalTablestore) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port_of(local)}"):
        LocalTablestore(port=port_of(local)).start()


@pytest.mark.usefixtures("patient_stop")
def test_an_idle_connection_does_not_hold_up_a_stop(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    send(local, connection, "ListTable")

    assert stops(local)


def test_a_stop_closes_the_clients_that_the_server_made(local: LocalTablestore) -> None:
    client = local.client()
    client.list_table()
    assert len(client.connection.pool.pools) == 1

    local.stop()

    assert len(client.connection.pool.pools) == 0


def test_a_broken_engine_answers_with_an_internal_error(
    local: LocalTablestore, connection: http.client.HTTPConnection, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(operation: str, body: bytes, message: object) -> bytes:
        raise ZeroDivisionError

    local._server._service._engine.answer = explode  # type: ignore[union-attr,method-assign,assignment]

    status, _, body = send(local, connection, "ListTable")

    assert (status, error_code(body)) == (500, "OTSInternalServerError")
    assert "ListTable failed inside the server" in caplog.text


@pytest.mark.parametrize("call", [lambda local: local.shards("missing"), lambda local: local.split("missing")])
def test_control_of_a_missing_table_is_the_services_error(
    local: LocalTablestore, call: Callable[[LocalTablestore], object]
) -> None:
    with pytest.raises(ServiceError, match="OTSObjectNotExist"):
        call(local)


def test_an_advanced_clock_does_not_move_the_envelopes_time(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    """Clients compare the answer's date with their own clock."""
    local.advance_clock(86400 * 30)
    status, headers, _ = send(local, connection, "ListTable")

    date = datetime.strptime(headers["x-ots-date"] + "+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z")
    assert status == 200
    assert abs((datetime.now(timezone.utc) - date).total_seconds()) < 60


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), 1e12])
def test_the_clock_cannot_be_moved_anywhere(local: LocalTablestore, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be from 0"):
        local.advance_clock(seconds)
