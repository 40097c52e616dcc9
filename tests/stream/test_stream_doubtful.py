"""Answers that say nothing, and refusals that do: which of them pass, for whoever meets them, and in which words."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import tablestore as sdk
from byte_service import head_of_answer, serving
from tablestore.error import OTSClientError
from test_stream_throttling import (
    HTML,
    ONCE,
    Kept,
    Once,
    copied,
    lease_scan,
    lease_write,
    make,
    page,
    parked,
    put,
    quiet,
    rows,
    source_options,
    stream_read,
    table_change,
)

from streamclient import ClientConfig
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter
from streamclient.errors import DependencyException, ErrorKind, StreamClientError, UnreadableAnswerError, is_foreseen
from streamclient.metrics.request_metrics import result_of
from streamclient.spark.source.table_writing import RowWriter
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tablestore.ranges import TableScan
from streamclient.tablestore.signed_calls import SignedCalls, with_own_connection
from streamclient.wire import schema
from streamclient.wire.service_errors import classify
from streamclient.worker.lease import LeaseManager
from tests.hostile.proxy import Fault, HostileProxy
from tests.hostile.table import ANSWERS as HOSTILE
from tests.hostile.table import Place

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

TRANSIENT, AMBIGUOUS, PERMANENT = ErrorKind.TRANSIENT, ErrorKind.AMBIGUOUS, ErrorKind.PERMANENT

NO_SUCH_TABLE = schema.Error(code="OTSObjectNotExist", message="Requested table does not exist.").SerializeToString()
STRANGE = b"\xff"
"""The beginning of a field."""


def sent(path: str, body: bytes, status: int, *, digest_of: bytes | None = None, has_length: bool = True) -> bytes:
    """As the service sends it; with the digest of other bytes, or without a length."""
    length = b"Content-Length: %d\r\n" % len(body) if has_length else b""
    return head_of_answer(path, body if digest_of is None else digest_of, status) + length + b"\r\n" + body


def without_digest(path: str, body: bytes, status: int, *, has_length: bool) -> bytes:
    """The head of the service, of which a gateway has taken digest and signature."""
    lines = sent(path, body, status, has_length=has_length).partition(b"\r\n\r\n")[0].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"x-ots-contentmd5", b"authorization"))]
    return b"\r\n".join(kept) + b"\r\n\r\n" + body


def of_a_gateway(status: int, body: bytes = HTML, *, has_length: bool = True) -> Callable[[str], bytes]:
    length = b"Content-Length: %d\r\n" % len(body) if has_length else b""
    return lambda _: b"HTTP/1.1 %d X\r\nContent-Type: text/html\r\n%s\r\n%s" % (status, length, body)


UNREADABLE: dict[str, Callable[[str], bytes]] = {
    "no message": lambda path: sent(path, STRANGE, 200),
    "an error as a success": lambda path: sent(path, NO_SUCH_TABLE, 200),
}
"""They come as they were sent."""

DOUBTFUL: dict[str, Callable[[str], bytes]] = {
    "a cut refusal": lambda path: sent(path, NO_SUCH_TABLE[:20], 404, digest_of=NO_SUCH_TABLE),
    "an emptied refusal": lambda path: sent(path, b"", 404, digest_of=NO_SUCH_TABLE),
    "a refusal with another digest": lambda path: sent(path, NO_SUCH_TABLE, 404, digest_of=b"another"),
    "a cut refusal without length": lambda path: sent(
        path, NO_SUCH_TABLE[:20], 404, digest_of=NO_SUCH_TABLE, has_length=False
    ),
    "a refusal without digest and end": lambda path: without_digest(path, NO_SUCH_TABLE, 404, has_length=False),
    "an unreadable refusal": lambda path: sent(path, STRANGE, 403),
    "an unreadable refusal without digest": lambda path: without_digest(path, b"", 400, has_length=True),
    "a refusal that another one signed": lambda path: sent("/Another", NO_SUCH_TABLE, 404),
}
"""The service was asked, and nobody knows what it said."""

FINAL: dict[str, Callable[[str], bytes]] = {
    "the service's refusal": lambda path: sent(path, NO_SUCH_TABLE, 404),
    "the service's refusal without length": lambda path: sent(path, NO_SUCH_TABLE, 404, has_length=False),
    "a gateway's 403": of_a_gateway(403),
    "a gateway's 404": of_a_gateway(404),
    "a gateway's 404 without length": of_a_gateway(404, has_length=False),
    "a gateway's 404 without body": of_a_gateway(404, b""),
    "a gateway's 302": of_a_gateway(302),
}
"""Asked again, it would come again."""

ABSENT = (FINAL["the service's refusal"], FINAL["the service's refusal without length"])


def describing(client: sdk.OTSClient) -> None:
    TablestoreStreamApi(client, retry=ONCE).describe_table("orders")


def listing(client: sdk.OTSClient) -> None:
    TablestoreStreamApi(client, retry=ONCE).describe_stream("orders_1")


def lease_table(client: sdk.OTSClient) -> None:
    LeaseManager(
        client, "status", "stream", ClientConfig(lease_manager_retry_strategy=Once())
    ).create_lease_table_if_not_exists()


def lease_row(client: sdk.OTSClient) -> None:
    manager = LeaseManager(client, "status", "stream", ClientConfig(lease_manager_retry_strategy=Once()))
    failure = manager._table._probe([("id", 1)])
    raise failure or AssertionError


def split_points(client: sdk.OTSClient) -> None:
    source = SourceTable(client, "orders")
    source._repeater = source._repeater.__class__(ONCE)
    source.split_points(1)


READS: list[tuple[Callable[[sdk.OTSClient], None], str]] = [
    (stream_read, "ListStream"),
    (describing, "DescribeTable"),
    (listing, "DescribeStream"),
    (page, "GetStreamRecord"),
    (lease_table, "DescribeTable"),
    (lease_row, "GetRow"),
    (lease_scan, "GetRange"),
    (rows, "GetRange"),
    (parked, "DescribeTable"),
    (copied, "GetRow"),
    (split_points, "ComputeSplitPointsBySize"),
]
WRITES: list[tuple[Callable[[sdk.OTSClient], None], str]] = [
    (table_change, "UpdateTable"),
    (lease_write, "BatchWriteRow"),
]
CALLS = [pytest.param(call, operation, id=f"{call.__name__}-{operation}") for call, operation in READS + WRITES]


def failure_of(
    call: Callable[[sdk.OTSClient], None], operation: str, answer: Callable[[str], bytes]
) -> DependencyException:
    with serving(answer(f"/{operation}"), closes=True) as server, pytest.raises(StreamClientError) as raised:
        call(with_own_connection(quiet(server)))
    assert isinstance(raised.value, DependencyException), repr(raised.value)
    return raised.value


def doubt_of(call: Callable[[sdk.OTSClient], None]) -> ErrorKind:
    return AMBIGUOUS if call in {write for write, _ in WRITES} else TRANSIENT


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize(("call", "operation"), CALLS)
def test_an_answer_that_cannot_be_read_is_the_services_fault_and_passes(
    call: Callable[[sdk.OTSClient], None], operation: str, answer: Callable[[str], bytes]
) -> None:
    failure = failure_of(call, operation, answer)

    assert isinstance(failure, UnreadableAnswerError)
    assert failure.kind is doubt_of(call)
    assert result_of(failure) == "undecodable"
    assert is_foreseen(failure), "its text says all, and no traceback is shown"
    assert "cannot be read" in str(failure)
    assert "the service, or a gateway before it, is at fault" in str(failure)


@pytest.mark.parametrize("answer", DOUBTFUL.values(), ids=DOUBTFUL.keys())
@pytest.mark.parametrize(("call", "operation"), CALLS)
def test_a_refusal_whose_bytes_nobody_vouches_for_says_nothing(
    call: Callable[[sdk.OTSClient], None], operation: str, answer: Callable[[str], bytes]
) -> None:
    failure = failure_of(call, operation, answer)

    assert failure.kind is doubt_of(call), str(failure)
    assert failure.http_status in (400, 403, 404)
    assert "If it lasts, check the endpoint" in str(failure) or "gateway" in str(failure)


@pytest.mark.parametrize("answer", FINAL.values(), ids=FINAL.keys())
@pytest.mark.parametrize(("call", "operation"), CALLS)
def test_a_refusal_that_would_come_again_is_final(
    call: Callable[[sdk.OTSClient], None], operation: str, answer: Callable[[str], bytes]
) -> None:
    if call in (lease_table, parked) and answer in ABSENT:
        operation = "GetRow"  # a table that is not there is made, and then it is read
        call = lease_row
    failure = failure_of(call, operation, answer)

    assert failure.kind is PERMANENT, str(failure)


# --- who must not take it for the fault of a row ---------------------------------------------------------------------

BATCHES = Place("BatchWriteRow", "data")
UNREADABLE_TWICE = next(answer for answer in HOSTILE if answer.name == "error with 200")


def hostile(local: LocalTablestore) -> HostileProxy:
    fault = Fault(BATCHES, UNREADABLE_TWICE, 2, random.Random(1), is_data=lambda table: table == "to")
    return HostileProxy(local, fault)


def test_replication_keeps_no_row_as_poison_for_an_answer_that_cannot_be_read(local: LocalTablestore) -> None:
    make(local)
    kept = Kept()
    with hostile(local) as proxy:
        client = sdk.OTSClient(proxy.endpoint, local.access_key_id, local.access_key_secret, local.instance)
        made = DestinationWriter(SignedCalls(client), "to", 200, poison=kept.take)
        made.write([put(1)])

    assert kept == []
    assert (made.counts.rows, made.counts.refused_rows) == (1, 0)
    assert proxy.fault is not None
    assert proxy.fault.played == 2


def test_the_data_source_writes_again_after_an_answer_that_cannot_be_read(local: LocalTablestore) -> None:
    pa = pytest.importorskip("pyarrow")
    make(local)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "c0": 1}])
    with hostile(local) as proxy:
        options = source_options(local, proxy.endpoint)
        assert RowWriter.checked(options, batch.schema).write([batch]) == 1

    _, found = TableScan(calls=SignedCalls(local.client()), table="to", key=["id"]).page()
    assert len(found) == 1


# --- in which words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "came", "todo"),
    [
        (of_a_gateway(429), "the answer to ListStream has HTTP status 429 (Too Many Requests)", "ask less often"),
        (of_a_gateway(408), "the answer to ListStream has HTTP status 408 (Request Timeout)", "check the network"),
        (
            of_a_gateway(200),
            'the answer to ListStream cannot be trusted: "x-ots-contentmd5" is missing',
            "check the endpoint",
        ),
        (of_a_gateway(404), "the answer to ListStream has HTTP status 404 (Not Found)", "check the endpoint"),
        (of_a_gateway(404), "begins with '<html>", "check the endpoint"),
        (of_a_gateway(502), "HTTP status 502", "check the endpoint"),
        (UNREADABLE["no message"], "the answer to ListStream cannot be read", "check the endpoint"),
        (DOUBTFUL["a cut refusal"], "the answer to ListStream cannot be trusted: MD5 mismatch", "check the endpoint"),
    ],
)
def test_an_answer_is_told_with_what_was_asked_and_what_to_do(
    answer: Callable[[str], bytes], came: str, todo: str
) -> None:
    told = str(failure_of(stream_read, "ListStream", answer))
    assert came in told
    assert todo in told


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    "error",
    [TimeoutError("timed out"), ConnectionResetError("reset"), sdk.error.OTSClientError("HTTP status: 404.", 404)],
)
def test_what_to_do_is_told_whatever_the_network_did(error: Exception, write: bool) -> None:
    client = sdk.OTSClient("http://tablestore.test", "id", "secret", "instance")
    told = str(classify(error, write=write, client=client))

    assert "If it lasts, check the endpoint" in told
    assert isinstance(error, OTSClientError) or "no answer from http://tablestore.test: " in told


def test_a_wrong_clock_is_told_at_once_and_by_name() -> None:
    skewed = "The difference between date in response and system time is more than 15 minutes."

    def late(path: str) -> bytes:
        lines = sent(path, NO_SUCH_TABLE, 403).split(b"\r\n")
        return b"\r\n".join(
            b"x-ots-date: 2020-01-01T00:00:00.000Z" if b"x-ots-date" in each else each for each in lines
        )

    failure = failure_of(stream_read, "ListStream", late)

    assert failure.kind is PERMANENT
    assert skewed in str(failure)
    assert "because this machine's clock is wrong" in str(failure)
    assert "The service's clock shows 2020-01-01T00:00:00.000Z, this machine's 20" in str(failure)
    assert str(failure).endswith("Set this machine's clock")
