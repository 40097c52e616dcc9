"""What vouches for a page: damaged on its way over real HTTP and real TLS, with each setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import certifi
import pytest
from scripted_service import CERTIFICATE, scripted
from tablestore import AsyncOTSClient, OTSClient

from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.tablestore import Integrity, ReadRetry, TablestoreStreamApi, with_integrity
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_extension import for_tables
from streamclient.wire import schema
from streamclient.wire.record_decoding import PurePythonCodec, RecordCodec, default_codec
from streamclient.worker.lease.status_connection import for_lease_calls

RECORD = StreamRecord(
    RecordType.PUT,
    (("id", 1),),
    (RecordColumn("city", ColumnOperation.PUT, "Hangzhou", 1_500_000_000_000),),
    SequenceInfo(0x01020304, 1_500_000_000_000_000, 0),
)
RETRIES = 2

IN_A_CELL = (b"Hangzhou", b"Hangzhov")
IN_THE_SEQUENCE = (b"\x04\x03\x02\x01", b"\x04\x03\x02\x02")
IN_THE_ITERATOR = (b"iterator-2", b"iterator-3")
EVERYWHERE = (IN_A_CELL, IN_THE_SEQUENCE, IN_THE_ITERATOR)


def page(_: object) -> Any:
    action, data, _ = PurePythonCodec().encode_record(RECORD)
    answer = schema.GetStreamRecordResponse(next_shard_iterator="iterator-2")
    answer.stream_records.add(action_type=action, record=data)
    return answer


class Damage:
    """Puts bytes in the place of others, in the first answers only."""

    def __init__(self, change: tuple[bytes, bytes], answers: int = 1_000) -> None:
        self.change, self.answers = change, answers

    def __call__(self, body: bytes) -> bytes:
        self.answers -= 1
        assert body.count(self.change[0]) == 1
        return body.replace(*self.change) if self.answers >= 0 else body


def stream(client: OTSClient, codec: RecordCodec | None = None) -> TablestoreStreamApi:
    retry = ReadRetry(retries=RETRIES, shortest_pause_millis=1, longest_pause_millis=1)
    return TablestoreStreamApi(client, retry=retry, codec=codec)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted service's certificate is one of those that everybody trusts."""
    monkeypatch.setattr(certifi, "where", lambda: str(CERTIFICATE))


codecs = pytest.mark.parametrize("codec", [PurePythonCodec(), default_codec()], ids=["Python", "default"])


@pytest.mark.parametrize("change", EVERYWHERE)
@pytest.mark.parametrize("has_tls", [False, True], ids=["HTTP", "TLS"])
def test_whatever_is_damaged_is_found_by_the_digest_and_read_again(
    trusted: None, change: tuple[bytes, bytes], has_tls: bool
) -> None:
    with scripted(page, damage=Damage(change, answers=1), has_tls=has_tls) as script:
        for client in (script.client, with_integrity(script.client, Integrity.MD5)):
            assert list(stream(client).get_stream_record("at").records) == [RECORD]
        assert len(script.requests) == 3


@codecs
@pytest.mark.parametrize(
    ("integrity", "has_tls"), [(Integrity.TLS, True), (Integrity.CHECKSUMS, True), (Integrity.CHECKSUMS, False)]
)
def test_a_damaged_row_is_found_by_its_checksum_and_read_again(
    trusted: None, codec: RecordCodec, integrity: Integrity, has_tls: bool
) -> None:
    with scripted(page, damage=Damage(IN_A_CELL, answers=1), has_tls=has_tls) as script:
        found = stream(with_integrity(script.client, integrity), codec).get_stream_record("at")

    assert list(found.records) == [RECORD]
    assert len(script.requests) == 2


@codecs
def test_a_row_that_stays_damaged_says_that_it_was_on_its_way(codec: RecordCodec) -> None:
    with (
        scripted(page, damage=Damage(IN_A_CELL)) as script,
        pytest.raises(DependencyException, match="MD5 mismatch") as raised,
    ):
        stream(with_integrity(script.client, Integrity.CHECKSUMS), codec).get_stream_record("at")

    assert raised.value.kind is ErrorKind.TRANSIENT
    assert len(script.requests) == 1 + RETRIES


@pytest.mark.parametrize("change", [IN_THE_SEQUENCE, IN_THE_ITERATOR])
def test_what_no_checksum_covers_is_not_found_without_the_digest(change: tuple[bytes, bytes]) -> None:
    """Why the digest is the default."""
    with scripted(page, damage=Damage(change)) as script:
        found = stream(with_integrity(script.client, Integrity.CHECKSUMS)).get_stream_record("at")

    changed = (next(iter(found.records)).sequence_info, found.next_position.text)
    assert changed != (RECORD.sequence_info, "iterator-2")


def test_answers_other_than_pages_are_compared_with_their_digest_always() -> None:
    def answer(_: object) -> Any:
        return schema.ListStreamResponse(streams=[schema.Stream(stream_id="one", table_name="t", creation_time=1)])

    with (
        scripted(answer, damage=Damage((b"one", b"two"))) as script,
        pytest.raises(DependencyException, match="MD5 mismatch"),
    ):
        stream(with_integrity(script.client, Integrity.CHECKSUMS)).list_stream()


def test_clients_that_are_made_of_a_client_have_its_integrity_and_it_keeps_its_own() -> None:
    client = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
    own = with_integrity(client, Integrity.CHECKSUMS)

    for made in (own, for_tables(own), for_lease_calls(own, ClientConfig())):
        assert not SignedCalls(made).checks_pages
    assert SignedCalls(client).checks_pages
    assert SignedCalls(with_integrity(own, Integrity.MD5)).checks_pages


def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    """TLS vouches for a page only if it is known who speaks."""
    with (
        scripted(page, has_tls=True) as script,
        pytest.raises(DependencyException, match="certificate verify failed") as raised,
    ):
        stream(with_integrity(script.client, Integrity.TLS)).get_stream_record("at")

    assert raised.value.kind is ErrorKind.PERMANENT


@pytest.mark.parametrize(
    ("client", "integrity", "problem"),
    [
        (
            lambda: OTSClient("http://127.0.0.1:1", "id", "secret", "instance"),
            Integrity.TLS,
            r"http://127\.0\.0\.1:1 is reached without TLS; use an endpoint with https://, leave Integrity\.MD5",
        ),
        (
            lambda: OTSClient("http://127.0.0.1:1", "id", "secret", "instance"),
            "md4",
            r"one of Integrity\.MD5, Integrity\.TLS, Integrity\.CHECKSUMS, .* not 'md4'; did you mean MD5",
        ),
        (lambda: 5, Integrity.MD5, r"must be a tablestore\.OTSClient, not 5"),
        (
            lambda: AsyncOTSClient("https://instance.cn-hangzhou.ots.aliyuncs.com", "id", "secret", "instance"),
            Integrity.TLS,
            "not AsyncOTSClient: its calls are coroutines",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_any_call(client: Callable[[], Any], integrity: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        with_integrity(client(), integrity)
