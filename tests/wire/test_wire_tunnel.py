"""Tokens and pages of the Tunnel Service."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_pages import tunnel_body

from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire import schema
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import write_row
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.record_decoding import default_codec
from streamclient.wire.tunnel import Token, decode_token, decode_tunnel_page

TOKENS = st.builds(
    Token,
    iterator=st.text(max_size=20),
    primary_key=st.binary(max_size=20),
    timestamp=st.integers(0, 2**62),
    total_count=st.integers(0, 2**62),
)


@given(TOKENS)
def test_token_survives_its_text(token: Token) -> None:
    assert decode_token(token.encode()) == token


def test_token_with_an_iterator_is_one_of_a_stream_channel() -> None:
    assert decode_token(Token(iterator="i").encode()).is_stream
    assert not decode_token(Token(primary_key=b"k").encode()).is_stream


@pytest.mark.parametrize("text", ["faketoken", "", FINISHED, "AAAA", "ä", "CAMSAA=="])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        decode_token(text)


def test_token_of_version_one_is_read() -> None:
    old = schema.Token(version=1, content=schema.TokenContent(iterator="i").SerializeToString()).SerializeToString()
    assert decode_token(base64.b64encode(old).decode()) == Token(iterator="i")


def test_row_of_full_data_has_no_sequence_and_reads_as_zeros() -> None:
    parts = [HEADER]
    write_row(parts, (("id", 1),), [("a", 2, 0, 3)], False, None)

    read = decode_tunnel_page(tunnel_body((1, b"".join(parts), None), next_token=FINISHED))

    column = RecordColumn("a", ColumnOperation.PUT, 2, 3)
    assert read.records == (StreamRecord(RecordType.PUT, (("id", 1),), (column,), SequenceInfo(0, 0, 0)),)
    assert read.is_finished
    assert read.may_more_record is None


def test_records_of_a_stream_read_as_they_do_in_the_stream_operations() -> None:
    record = StreamRecord(RecordType.DELETE, (("id", "x"),), (), SequenceInfo(1, 2, 3))

    read = decode_tunnel_page(tunnel_body(default_codec().encode_record(record)))

    assert read.records == (record,)
    assert not read.is_finished


def test_corrupt_record_is_named_by_its_number() -> None:
    action, data, _ = default_codec().encode_record(StreamRecord(RecordType.DELETE, (("id", "x"),)))

    with pytest.raises(CodecError, match="record 1 of a page of 2"):
        decode_tunnel_page(tunnel_body((action, data, None), (action, data[:-1], None)))


def test_error_message_has_no_tunnel_id_which_would_hide_its_code_from_java_clients() -> None:
    assert "tunnel_id" not in {field.name for field in schema.Error.DESCRIPTOR.fields}


def test_every_tunnel_path_has_its_messages() -> None:
    assert sorted(schema.TUNNEL_OPERATIONS)[:3] == ["tunnel/checkpoint", "tunnel/connect", "tunnel/create"]
    assert schema.TUNNEL_OPERATIONS["tunnel/getrpobyoffset"].request is schema.GetRpoRequest
