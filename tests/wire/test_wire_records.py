from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import DELETE_RECORD, KEY_A, MILLIS, ORIGIN_RECORD, PUT_COLUMN, PUT_RECORD, RECORDS, UPDATE_RECORD
from wire_pages import TWIN, Encoded, body, flipped_bits, records

from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire.page_parts import DecodedPage
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, decode_row, encode_row
from streamclient.wire.record_decoding import default_codec


def decode(*entries: Encoded, **fields: Any) -> DecodedPage:
    return default_codec().decode_page(body(*entries, **fields))


@pytest.mark.parametrize(("encoded", "record"), RECORDS.values(), ids=RECORDS)
def test_records_of_the_other_sdks_are_read_and_written(encoded: Encoded, record: StreamRecord) -> None:
    assert decode(encoded).records == (record,)
    assert default_codec().encode_record(record) == encoded


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(records, max_size=5))
def test_records_survive_the_round_trip(page: list[StreamRecord]) -> None:
    decoded = TWIN.decode_page(body(*map(TWIN.encode_record, page)))

    assert decoded.records == tuple(page)
    assert repr(decoded.records) == repr(tuple(page)), "types and signs of zero, which equality does not see"


def test_an_absent_or_empty_next_iterator_is_none() -> None:
    """Both say that the shard is closed and read to its end."""
    assert decode(next_shard_iterator="it").next_shard_iterator == "it"
    assert decode().next_shard_iterator is None
    assert decode(next_shard_iterator="").next_shard_iterator is None


def test_the_hint_of_more_records_has_three_values() -> None:
    assert [decode(may_more_record=hint).may_more_record for hint in (True, False)] == [True, False]
    assert decode().may_more_record is None


def test_an_empty_origin_is_no_origin() -> None:
    assert decode((1, PUT_RECORD, b"")).records[0].original_columns is None


def test_an_origin_may_leave_out_the_key() -> None:
    origin = encode_row(Row((), (Cell("c", 7, timestamp_millis=MILLIS),)))
    assert decode((1, PUT_RECORD, origin)).records[0].original_columns == (PUT_COLUMN,)


def test_a_delete_record_may_lack_the_marker() -> None:
    """Every known decoder accepts both."""
    bare = encode_row(evolve(decode_row(DELETE_RECORD), delete_marker=False))
    assert decode((3, bare, None)).records == decode((3, DELETE_RECORD, None)).records


def test_an_unknown_action_is_an_error_not_a_put() -> None:
    for action in (0, 4, 77):
        with pytest.raises(CodecError, match=f"action type {action} is unknown"):
            decode((action, PUT_RECORD, None))


SEQUENCE = SequenceInfo(0, 1, 0)
PUT = Cell("c", 1, timestamp_millis=5)
ALL, ONE = CellOperation.DELETE_ALL_VERSIONS, CellOperation.DELETE_ONE_VERSION


def row_of(*cells: Cell, key: Any = KEY_A, is_marked: bool = False, sequence: SequenceInfo | None = SEQUENCE) -> Row:
    return Row(key, cells, is_marked, sequence)


BAD_RECORDS: dict[str, tuple[int, Row, str]] = {
    "no key": (1, row_of(PUT, key=()), "at least one key column"),
    "key bound": (1, row_of(PUT, key=(("pk", KeyBound.INF_MAX),)), "expected a stored value"),
    "no sequence": (1, row_of(PUT, sequence=None), "without sequence information"),
    "marker on put": (1, row_of(PUT, is_marked=True), "delete marker"),
    "marker on update": (2, row_of(PUT, is_marked=True), "delete marker"),
    "columns on delete": (3, row_of(PUT, is_marked=True), "come with a DELETE record"),
    "put without timestamp": (1, row_of(Cell("c", 1)), "timestamp None"),
    "negative timestamp": (1, row_of(Cell("c", 1, timestamp_millis=-1)), "timestamp -1"),
    "bound as value": (1, row_of(Cell("c", KeyBound.INF_MIN, timestamp_millis=1)), "value"),
    "deletion in put": (1, row_of(Cell("c", None, ALL)), "only puts"),
    "increment": (2, row_of(Cell("c", 1, CellOperation.INCREMENT)), "increment"),
    "deletion with value": (2, row_of(Cell("c", 1, ALL)), "it deletes"),
    "delete-all with timestamp": (2, row_of(Cell("c", None, ALL, 5)), "deletes all versions"),
    "delete-one without timestamp": (2, row_of(Cell("c", None, ONE)), "that of the deleted version"),
}


@pytest.mark.parametrize(("action", "row", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_rows_that_no_stream_holds_are_refused(action: int, row: Row, message: str) -> None:
    with pytest.raises(CodecError, match=f"record 1 of a page of 2: .*{message}"):
        decode((1, PUT_RECORD, None), (action, encode_row(row), None))


def test_a_record_is_exactly_one_row() -> None:
    for broken in (b"", PUT_RECORD[:-1], PUT_RECORD + b"\x01", PUT_RECORD + PUT_RECORD[4:], b"\x74" + PUT_RECORD[1:]):
        with pytest.raises(CodecError, match="record 0 of a page of 1"):
            decode((1, broken, None))


def test_an_origin_of_another_row_is_refused() -> None:
    other = encode_row(Row((("pk", "b"),), (PUT,)))
    for origin in (other, DELETE_RECORD, UPDATE_RECORD, ORIGIN_RECORD[:-1], b"\x00"):
        with pytest.raises(CodecError):
            decode((1, PUT_RECORD, origin))


def test_damaged_pages_never_give_a_wrong_record() -> None:
    """Every truncation and every flipped bit: refused, or only what no checksum covers has changed.

    Uncovered are the sequence numbers, the iterator, the hint, and, in the outer message, which kind a record has and
    where one ends. The digest in the response header covers them all; here we see what remains without it.
    """
    encoded = [entry for entry, _ in RECORDS.values()]
    page = body(*encoded, next_shard_iterator="it")
    contents = {(record.primary_key, record.columns) for _, record in RECORDS.values()}
    for data in (*(page[:size] for size in range(len(page))), *flipped_bits(page)):
        try:
            decoded = TWIN.decode_page(data)
        except CodecError:
            continue
        assert {(record.primary_key, record.columns) for record in decoded.records} <= contents


RECORD, GONE = RECORDS["put"][1], RecordColumn("c", ColumnOperation.DELETE_ALL_VERSION)
VALUED = RecordColumn("c", ColumnOperation.DELETE_ONE_VERSION, 5, 5)
BAD_VALUES = {
    "no key": (evolve(RECORD, primary_key=()), "needs a primary key"),
    "columns on delete": (evolve(RECORDS["delete"][1], columns=(PUT_COLUMN,)), "has no columns"),
    "put without value": (evolve(RECORD, columns=(evolve(PUT_COLUMN, value=None),)), "value None"),
    "put without timestamp": (evolve(RECORD, columns=(evolve(PUT_COLUMN, timestamp_millis=None),)), "timestamp None"),
    "deletion in put": (evolve(RECORD, columns=(GONE,)), "only puts"),
    "deletion with value": (evolve(RECORD, record_type=RecordType.UPDATE, columns=(VALUED,)), "it deletes"),
    "deletion in origin": (evolve(RECORD, original_columns=(GONE,)), "only puts"),
}


@pytest.mark.parametrize(("record", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_records_that_no_stream_holds_are_not_written(record: StreamRecord, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        default_codec().encode_record(record)
