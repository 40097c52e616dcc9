"""What a processor is handed: records that are made when they are looked at, and the same by column."""

from __future__ import annotations

import pickle
from typing import Any
from unittest.mock import sentinel

import pyarrow as pa
import pytest

from streamclient import ProcessRecordsInput
from streamclient.records import (
    NATIVE,
    ColumnOperation,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
    place_of,
)
from streamclient.tunnel import ChannelRecordsInput
from streamclient.wire import schema
from streamclient.wire.columns import record_batch
from streamclient.wire.page_parts import DecodedPage
from streamclient.wire.record_decoding import PurePythonCodec, default_codec

RECORDS = tuple(
    StreamRecord(
        RecordType.PUT,
        (("id", number),),
        (RecordColumn("city", ColumnOperation.PUT, f"city-{number}", 1_500_000_000_000 + number),),
        SequenceInfo(1, 1_500_000_000_000_000 + number, 0),
    )
    for number in range(10)
)


def page(codec: Any = None) -> DecodedPage:
    message = schema.GetStreamRecordResponse(next_shard_iterator="next")
    for record in RECORDS:
        action, data, _ = PurePythonCodec().encode_record(record)
        message.stream_records.add(action_type=action, record=data)
    found: DecodedPage = (codec or default_codec()).decode_page(message.SerializeToString())
    return found


def given(records: Any) -> ProcessRecordsInput:
    return ProcessRecordsInput(records, sentinel.checkpointer, sentinel.marker)


def as_rows(columns: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.record_batch(columns).to_pylist()
    return rows


def test_records_of_a_page_behave_as_the_tuple_of_them() -> None:
    records = given(page().records).records

    assert len(records) == 10
    assert list(records) == list(RECORDS)
    assert records[3] == RECORDS[3]
    assert records[-1] == RECORDS[-1]
    assert (records, records[2:5], records[::2]) == (RECORDS, RECORDS[2:5], RECORDS[::2])
    assert records != RECORDS[:9]
    assert records != list(RECORDS)
    assert hash(records) == hash(RECORDS)
    assert records + RECORDS[:1] == RECORDS + RECORDS[:1]  # type: ignore[operator]
    assert RECORDS[:1] + records == RECORDS[:1] + RECORDS  # type: ignore[operator]
    assert repr(records) == repr(RECORDS)
    assert pickle.loads(pickle.dumps(records)) == RECORDS
    with pytest.raises(IndexError):
        _ = records[10]


@pytest.mark.parametrize("codec", [PurePythonCodec(), default_codec()], ids=["Python", "default"])
def test_columns_hold_the_records_of_the_input_and_no_others(codec: Any) -> None:
    records = page(codec).records

    for part, expected in ((records, RECORDS), (records[2:5], RECORDS[2:5]), (records[:0], ())):
        assert as_rows(given(part).arrow()) == as_rows(record_batch(expected, None))
        assert as_rows(ChannelRecordsInput(part, "c").arrow({})) == as_rows(record_batch(expected, {}))


def test_columns_are_also_made_of_plain_records() -> None:
    for plain in (RECORDS, list(RECORDS), RECORDS[4:6]):
        assert as_rows(given(plain).arrow()) == as_rows(record_batch(plain, None))


def test_places_are_those_of_the_records() -> None:
    for records in (RECORDS, page().records, page().records[3:7]):
        assert place_of(records, 0) == next(iter(records)).sequence_info
        assert place_of(records, -1) == tuple(records)[-1].sequence_info


@pytest.mark.skipif(NATIVE is None, reason="only the compiled codec reads a page without making records")
def test_columns_of_a_page_make_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = given(page().records)
    monkeypatch.setattr("streamclient.wire.record_decoding.record_batch", None)
    monkeypatch.setattr("streamclient.wire.columns.record_batch", None)

    assert pa.record_batch(whole.arrow()).num_rows == 10
