"""HTTP 429, or the code of throttling, is throttling: whoever meets it, whatever else came with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tablestore as sdk
from byte_service import ByteServer, head_of_answer, serving
from tablestore.error import OTSClientError, OTSServiceError

from streamclient import ClientConfig, InitialPosition, StreamConfig, Worker
from streamclient.copying.copied_stream import CopiedStream
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter, RowChange, changes_of
from streamclient.copying.target_table import WIDEST_DEVIATION_SECONDS
from streamclient.errors import DependencyException, ErrorKind, StreamClientError
from streamclient.interfaces import IRetryStrategy
from streamclient.records import ColumnOperation, RecordColumn, RecordType, StreamRecord
from streamclient.server import Fail, FailRows, FaultRule
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.table_writing import RowWriter
from streamclient.tablestore import ReadRetry, StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.ranges import TableScan
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.service_errors import classify, from_answer
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.parking import TableParkingStore
from tests.patience import until
from tests.simulation.scene import Journal

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

FLOW_CONTROL = "OTSFlowControl"
TRIMMED = "Requested stream data is already trimmed or does not exist."
ONCE = ReadRetry(retries=0)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize(
    "error",
    [
        OTSServiceError(429, FLOW_CONTROL, "The requests are throttled.", "request-1"),
        OTSServiceError(429, "OTSParameterInvalid", "Slow down.", "request-1"),
        OTSServiceError(429, "OTSConditionCheckFail", "", "request-1"),
        OTSServiceError(429, "OTSTrimmedDataAccess", TRIMMED, "request-1"),
        OTSServiceError(429, "", "", ""),
        OTSServiceError(403, FLOW_CONTROL, "", "request-1"),
        OTSServiceError(503, FLOW_CONTROL, "", "request-1"),
        OTSClientError("HTTP status: 429, reason: Too Many Requests.", 429),
        OTSClientError("MD5 mismatch in response. HTTP status: 429.", 429),
    ],
    ids=str,
)
def test_the_status_or_the_code_says_it(error: Exception, write: bool) -> None:
    mapped = classify(error, write=write, client=None)
    assert isinstance(mapped, DependencyException)
    assert mapped.kind is ErrorKind.THROTTLED


def test_a_row_of_a_batch_has_the_code_alone() -> None:
    mapped = from_answer(FLOW_CONTROL, "The requests are throttled.", write=True)
    assert isinstance(mapped, DependencyException)
    assert (mapped.kind, mapped.code) == (ErrorKind.THROTTLED, FLOW_CONTROL)


# --- whoever meets it -------------------------------------------------------------------------------------------------

HTML = b"<html><head><title>429 Too Many Requests</title></head></html>"
LATE = b"HTTP/1.1 429 Too Many Requests\r\n"


def of_the_service(path: str, code: str) -> bytes:
    body = schema.Error(code=code, message="The requests are throttled.").SerializeToString()
    return head_of_answer(path, body, 429) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def of_a_gateway(_: str) -> bytes:
    return LATE + b"Content-Type: text/html\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n" % len(HTML) + HTML


def without_body(_: str) -> bytes:
    return LATE + b"Content-Length: 0\r\n\r\n"


def without_length(_: str) -> bytes:
    return LATE + b"\r\n" + HTML


ANSWERS: dict[str, Callable[[str], bytes]] = {
    FLOW_CONTROL: lambda path: of_the_service(path, FLOW_CONTROL),
    "another code": lambda path: of_the_service(path, "OTSMadeUp"),
    "HTML": of_a_gateway,
    "no body": without_body,
    "no length": without_length,
}


def stream_read(client: sdk.OTSClient) -> None:
    TablestoreStreamApi(client, retry=ONCE).list_stream()


def page(client: sdk.OTSClient) -> None:
    TablestoreStreamApi(client, retry=ONCE).get_stream_record("at")


def table_change(client: sdk.OTSClient) -> None:
    TablestoreStreamApi(client).update_table("orders", stream=StreamSpecification(enable_stream=False))


class Once(IRetryStrategy):
    """Never tries again."""

    def should_retry(self, action: Any, error: Exception, retries: int) -> bool:
        return False

    def backoff_millis(self, action: Any, error: Exception, retries: int) -> int:
        raise AssertionError


def lease_scan(client: sdk.OTSClient) -> None:
    LeaseManager(client, "status", "stream", ClientConfig(lease_manager_retry_strategy=Once())).list_leases()


def lease_write(client: sdk.OTSClient) -> None:
    (answer,) = send_rows(client, "status", [sdk.DeleteRowItem(sdk.Row([("id", 1)]), None)])
    raise answer.error or AssertionError(answer)


def rows(client: sdk.OTSClient) -> None:
    TableScan(calls=SignedCalls(client), table="orders", key=["id"]).page()


def parked(client: sdk.OTSClient) -> None:
    list(TableParkingStore(client, "parked").parked_keys("stream"))


def copied(client: sdk.OTSClient) -> None:
    source = SourceTable(client, "orders")
    source._repeater = source._repeater.__class__(ONCE)
    CopiedStream.of(source, "status", "stream", 1)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (stream_read, "ListStream"),
        (page, "GetStreamRecord"),
        (table_change, "UpdateTable"),
        (lease_scan, "GetRange"),
        (lease_write, "BatchWriteRow"),
        (rows, "GetRange"),
        (parked, "GetRange"),
        (copied, "GetRow"),
    ],
)
def test_every_call_takes_it_for_throttling(
    call: Callable[[sdk.OTSClient], None], operation: str, answer: Callable[[str], bytes]
) -> None:
    with serving(answer(f"/{operation}"), closes=True) as server, pytest.raises(StreamClientError) as raised:
        call(quiet(server))

    assert isinstance(raised.value, DependencyException)
    assert raised.value.kind is ErrorKind.THROTTLED


def quiet(server: ByteServer) -> sdk.OTSClient:
    return server.client(retry_policy=sdk.NoRetryPolicy())


def put(number: int) -> RowChange:
    column = RecordColumn("c0", ColumnOperation.PUT, number, 1_000_000_000_000)
    return changes_of([StreamRecord(RecordType.PUT, (("id", number),), (column,))])[0]


def make(local: LocalTablestore, kind: str = "INTEGER", **options: Any) -> None:
    TablestoreStreamApi(local.client()).create_table(
        sdk.TableMeta("to", [("id", kind)]),
        sdk.TableOptions(max_time_deviation=WIDEST_DEVIATION_SECONDS),
        sdk.ReservedThroughput(sdk.CapacityUnit(0, 0)),
        **options,
    )


class Kept(list[RowChange]):
    """Rows that were taken for poison."""

    def take(self, change: RowChange, error: StreamClientError) -> None:
        self.append(change)


def source_options(local: LocalTablestore, endpoint: str) -> SourceOptions:
    given = {
        "endpoint": endpoint,
        "instance": local.instance,
        "accessKeyId": local.access_key_id,
        "accessKeySecret": local.access_key_secret,
        "table": "to",
    }
    return SourceOptions.read(given, {})


FAULTS = [
    FailRows(every=13, code=FLOW_CONTROL),
    Fail(FLOW_CONTROL, http_status=429),
    Fail("OTSMadeUp", http_status=429),
]


@pytest.mark.parametrize("fault", FAULTS, ids=["rows", "request", "request, another code"])
def test_replication_keeps_no_good_row_as_poison(local: LocalTablestore, fault: Any) -> None:
    make(local)
    local.add_fault(FaultRule("BatchWriteRow", fault, times=2))
    kept = Kept()
    made = DestinationWriter(SignedCalls(local.client()), "to", 200, poison=kept.take)
    made.write([put(number) for number in range(50)])

    assert kept == []
    assert (made.counts.rows, made.counts.refused_rows) == (50, 0)


@pytest.mark.parametrize("fault", FAULTS, ids=["rows", "request", "request, another code"])
def test_the_data_source_writes_throttled_rows_again(local: LocalTablestore, fault: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    make(local)
    local.add_fault(FaultRule("BatchWriteRow", fault, times=2))
    options = source_options(local, local.endpoint)
    batch = pa.RecordBatch.from_pylist([{"id": number, "c0": number} for number in range(50)])

    assert RowWriter.checked(options, batch.schema).write([batch]) == 50
    _, found = TableScan(calls=SignedCalls(local.client()), table="to", key=["id"]).page()
    assert len(found) == 50


@pytest.mark.slow
@pytest.mark.parametrize("code", [FLOW_CONTROL, "OTSMadeUp"])
def test_a_worker_starts_although_each_of_its_calls_is_throttled_first(local: LocalTablestore, code: str) -> None:
    make(local, "STRING", stream=StreamSpecification(enable_stream=True, expiration_time_hours=24))
    journal = Journal()
    local.client().put_row("to", sdk.Row([("id", "one")], [("n", 1)]), sdk.Condition("IGNORE"))
    for operation in ("ListStream", "DescribeStream", "DescribeTable", "CreateTable", "Get*", "BatchWriteRow"):
        local.add_fault(FaultRule(operation, Fail(code, http_status=429), times=2))
    config = StreamConfig(
        client=local.client(),
        data_table_name="to",
        status_table_name="status",
        initial_position=InitialPosition.oldest(),
    )
    with Worker("w1", ClientConfig(taker_interval_millis=200), config, journal.make):
        until(lambda: any(journal.accepted.values()))

    assert all(fault.struck for fault in local.faults() if fault.rule.operation != "DescribeTable")
