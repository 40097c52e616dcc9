"""A page that was cut on its way never ends a shard, and no other answer is believed that may have been cut."""

from __future__ import annotations

from collections.abc import Callable

import certifi
import pytest
from byte_service import head_of_answer, serving
from scripted_service import CERTIFICATE
from tablestore import OTSClientError

from streamclient.base.position import Position
from streamclient.errors import DependencyException, ErrorKind
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.spark.source.partition_reading import StreamService
from streamclient.tablestore import Connection, Integrity, ReadRetry, TablestoreStreamApi, with_integrity
from streamclient.tablestore.signed_calls import SignedCalls, with_own_connection
from streamclient.wire import schema
from streamclient.wire.record_decoding import PurePythonCodec

PAGE = "/GetStreamRecord"
RECORDS = [
    StreamRecord(RecordType.PUT, (("id", number),), (), SequenceInfo(1, 1_500_000_000_000_000 + number, 0))
    for number in range(30)
]


def page(records: list[StreamRecord], next_iterator: str | None) -> bytes:
    answer = schema.GetStreamRecordResponse()
    for record in records:
        action, data, _ = PurePythonCodec().encode_record(record)
        answer.stream_records.add(action_type=action, record=data)
    if next_iterator is not None:
        answer.next_shard_iterator = next_iterator
    return answer.SerializeToString()


FULL = page(RECORDS, "iterator-2")
SHORT = page(RECORDS[:5], None)
assert FULL.startswith(SHORT)


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(head: bytes, body: bytes) -> bytes:
    size = b"%x\r\n" % len(body) if body else b""
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + size + body + (b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n")


def unsized(head: bytes, body: bytes) -> bytes:
    return head + b"\r\n" + body


Framing = Callable[[bytes, bytes], bytes]

CUTS: dict[str, tuple[Framing, bytes, int]] = {
    "between two records, without length": (unsized, SHORT, 200),
    "between two records, with the length of what is left": (sized, SHORT, 200),
    "between two records, in chunks": (chunked, SHORT, 200),
    "to nothing, without length": (unsized, b"", 200),
    "to nothing, with length": (sized, b"", 200),
    "to nothing, in chunks": (chunked, b"", 200),
    "without content": (unsized, b"", 204),
    "without content, with a length": (sized, b"", 204),
    "of another success": (sized, SHORT, 206),
    "of another success that is whole": (sized, FULL, 203),
}

every_integrity = pytest.mark.parametrize(
    ("integrity", "has_tls"),
    [(Integrity.MD5, False), (Integrity.MD5, True), (Integrity.TLS, True), (Integrity.CHECKSUMS, False)],
    ids=["MD5", "MD5 over TLS", "TLS", "CHECKSUMS"],
)


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifi, "where", lambda: str(CERTIFICATE))


@every_integrity
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_a_cut_page_is_read_again_and_ends_no_shard(
    cut: tuple[Framing, bytes, int], integrity: Integrity, has_tls: bool
) -> None:
    framing, body, status = cut
    bad = framing(head_of_answer(PAGE, FULL, status), body)
    good = sized(head_of_answer(PAGE, FULL), FULL)
    with serving(bad, bad, good, closes=True, has_tls=has_tls) as server:
        api = TablestoreStreamApi(
            with_integrity(server.client(), integrity),
            retry=ReadRetry(retries=2, shortest_pause_millis=1, longest_pause_millis=1),
        )
        found = api.get_stream_record("at")

        assert (list(found.records), found.next_position) == (RECORDS, Position("iterator-2"))
        assert len(server.requests) == 3


@every_integrity
@pytest.mark.parametrize("framing", [sized, chunked])
@pytest.mark.parametrize("body", [SHORT, b""], ids=["records", "nothing"])
def test_the_last_page_of_a_shard_is_believed(
    framing: Framing, body: bytes, integrity: Integrity, has_tls: bool
) -> None:
    with serving(framing(head_of_answer(PAGE, body), body), has_tls=has_tls) as server:
        found = TablestoreStreamApi(with_integrity(server.client(), integrity)).get_stream_record("at")
    assert found.next_position is Position.SHARD_END


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (
            "between two records, without length",
            r"may have been cut: a body of \d+ bytes with HTTP status 200 came with",
        ),
        ("between two records, in chunks", r"has no next iterator, .* its MD5 differs from the MD5 .* gateway"),
        ("without content", r"HTTP status 204 is not from the service, whose successes have 200: .* gateway"),
    ],
)
def test_a_cut_page_says_what_it_lacks_and_whose_fault_that_is(cut: str, says: str) -> None:
    framing, body, status = CUTS[cut]
    with serving(framing(head_of_answer(PAGE, FULL, status), body), closes=True) as server:
        api = TablestoreStreamApi(with_integrity(server.client(), Integrity.CHECKSUMS), retry=ReadRetry(retries=0))
        with pytest.raises(DependencyException, match=says) as raised:
            api.get_stream_record("at")

    assert raised.value.kind is ErrorKind.TRANSIENT


def test_the_data_source_believes_no_cut_page_either(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, good = unsized(head_of_answer(PAGE, FULL), SHORT), sized(head_of_answer(PAGE, FULL), FULL)
    with serving(cut, good, cut, good, closes=True) as server:
        service = StreamService(Connection())
        calls = SignedCalls(with_integrity(server.client(), Integrity.CHECKSUMS))
        monkeypatch.setattr("streamclient.spark.source.partition_reading.calls_of", lambda _: calls)

        assert service.page("at", 100).next_shard_iterator == "iterator-2"
        assert service.summary("shard", "at", 100).next_shard_iterator == "iterator-2"


ABSENT_AT_THE_END = {
    "ListStream": lambda api: api.list_stream(),
    "DescribeStream": lambda api: api.describe_stream("s"),
    "GetShardIterator": lambda api: api.get_shard_iterator("s", "shard"),
}
"""Answers in which something that is absent means an end: no stream, no further shard, no token."""


@pytest.mark.parametrize("status", [200, 204, 206])
@pytest.mark.parametrize("operation", ABSENT_AT_THE_END)
def test_other_answers_that_may_have_been_cut_are_asked_for_again(operation: str, status: int) -> None:
    """An empty body, its digest and all headers are right, but nobody said that it ends there."""
    bad = unsized(head_of_answer(f"/{operation}", b"", status), b"")
    with serving(bad, bad, closes=True) as server:
        retry = ReadRetry(retries=1, shortest_pause_millis=1, longest_pause_millis=1)
        with pytest.raises(DependencyException) as raised:
            ABSENT_AT_THE_END[operation](TablestoreStreamApi(server.client(), retry=retry))

        assert raised.value.kind is ErrorKind.TRANSIENT
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [200, 201, 204])
def test_the_sdk_gets_no_answer_over_our_connections_that_may_have_been_cut(status: int) -> None:
    bad = unsized(head_of_answer("/ListTable", b"", status), b"")
    with serving(bad, closes=True) as server, pytest.raises(OTSClientError, match="gateway"):
        with_own_connection(server.client()).list_table()


@pytest.mark.parametrize(
    ("framing", "has_end"), [(sized, True), (chunked, True), (unsized, False)], ids=["length", "chunks", "neither"]
)
def test_over_a_connection_of_a_users_own_the_length_tells_the_end(framing: Framing, has_end: bool) -> None:
    from urllib3 import Timeout

    with serving(framing(head_of_answer(PAGE, FULL), FULL), closes=True) as server:
        client = server.client(socket_timeout=Timeout(connect=30, read=30))
        assert SignedCalls(client).send(PAGE, b"", is_repeatable=True).has_end is has_end
        client.connection.pool.clear()
