"""Pages as the service sends them, any that there may be, and the codecs that read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from wire_examples import RECORDS

from streamclient.records import NATIVE, ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire import schema
from streamclient.wire.record_decoding import NativeCodec, PurePythonCodec, RecordCodec

TWIN = PurePythonCodec()
CODECS: list[RecordCodec] = [TWIN] if NATIVE is None else [TWIN, NativeCodec(NATIVE)]

both = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
compiled = pytest.mark.skipif(NATIVE is None, reason="the compiled codec is not built here, or is switched off")

Encoded = tuple[int, bytes, "bytes | None"]

integers = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=12)
stamps = st.integers(0, 2**50)
values = st.one_of(integers, st.floats(allow_nan=False), st.booleans(), st.text(max_size=30), st.binary(max_size=90))
puts = st.builds(RecordColumn, names, st.just(ColumnOperation.PUT), values, stamps)
deletions = st.one_of(
    st.builds(RecordColumn, names, st.just(ColumnOperation.DELETE_ONE_VERSION), st.none(), stamps),
    st.builds(RecordColumn, names, st.just(ColumnOperation.DELETE_ALL_VERSION)),
)


def columns(of_names: st.SearchStrategy[str]) -> st.SearchStrategy[RecordColumn]:
    """Cells of an UPDATE record under some of these names."""
    puts_of = st.builds(RecordColumn, of_names, st.just(ColumnOperation.PUT), values, st.integers(0, 3))
    gone = st.builds(RecordColumn, of_names, st.just(ColumnOperation.DELETE_ONE_VERSION), st.none(), st.integers(0, 3))
    return puts_of | gone | st.builds(RecordColumn, of_names, st.just(ColumnOperation.DELETE_ALL_VERSION))


keys = st.lists(
    st.tuples(names, st.one_of(integers, st.text(max_size=9), st.binary(max_size=9))), min_size=1, max_size=4
)
sequences = st.builds(SequenceInfo, st.integers(0, 2**32 - 1), st.integers(0, 2**60), st.integers(0, 2**32 - 1))
originals = st.none() | st.lists(puts, max_size=3).map(tuple)


def records_of(record_type: RecordType, columns: st.SearchStrategy[Any] | None) -> st.SearchStrategy[StreamRecord]:
    listed = st.just(()) if columns is None else st.lists(columns, max_size=6).map(tuple)
    return st.builds(StreamRecord, st.just(record_type), keys.map(tuple), listed, sequences, originals)


records = st.one_of(
    records_of(RecordType.PUT, puts),
    records_of(RecordType.UPDATE, puts | deletions),
    records_of(RecordType.DELETE, None),
)


def body(*entries: Encoded, **fields: Any) -> bytes:
    page = schema.GetStreamRecordResponse(**fields)
    for action_type, record, origin in entries:
        page.stream_records.add(action_type=action_type, record=record, origin_record=origin)
    data: bytes = page.SerializeToString()
    return data


EXAMPLES = body(*(entry for entry, _ in RECORDS.values()), next_shard_iterator="it", may_more_record=True)


def tunnel_body(*entries: Encoded, next_token: str = "t", **fields: Any) -> bytes:
    page = schema.ReadRecordsResponse(next_token=next_token, **fields)
    for action_type, record, origin in entries:
        page.records.add(action_type=action_type, record=record, origin_record=origin)
    return bytes(page.SerializeToString())


def flipped_bits(data: bytes) -> Iterator[bytes]:
    for position in range(len(data) * 8):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)
