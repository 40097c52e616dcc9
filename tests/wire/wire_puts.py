"""A put's frame as the compiled reader takes it, judged by what Python makes of the same bytes."""

from __future__ import annotations

from typing import Any

from streamclient.records import SequenceInfo
from streamclient.server import work
from streamclient.server.keys import encode_key
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.validation.row_writes import read_change
from streamclient.server.writes import RowWrite
from streamclient.wire import puts, schema
from streamclient.wire.plainbuffer import HEADER, Cell, KeyBound, Row, encode_row
from streamclient.wire.schema import OperationType

NOW_MILLIS = 1_700_000_000_000


def read_in_python(frame: bytes, limits: Limits) -> RowWrite | None:
    """The put, if it is one that a table may take."""
    work.begin_request()
    try:
        row = read_change(OperationType.PUT, frame, limits)
    except ServiceError:
        return None
    return RowWrite(OperationType.PUT, row.primary_key, row.cells)


def is_usual(write: RowWrite) -> bool:
    names = {cell.name for cell in write.cells}
    return len(names) == len(write.cells) and not any(isinstance(value, KeyBound) for _, value in write.key)


def assert_same(frame: bytes, limits: Limits, *, is_unusual: bool = False) -> None:
    """What is right and usual is read, what is wrong never; both make the same row and the same record of it."""
    read, expected = puts.read_put(frame, limits.put), read_in_python(frame, limits)
    if read is None:
        assert is_unusual or expected is None or not is_usual(expected)
        return
    assert expected is not None
    assert is_usual(expected)
    assert (read.key, read.size_bytes, read.cell_count) == (expected.key, expected.size_bytes, len(expected.cells))
    assert read.frame == frame
    assert read.encoded_key == encode_key(value for _, value in expected.key)
    assert read.size_bytes + 8 * read.dated == expected.request_bytes
    assert_same_row(read, expected)


def dated(write: RowWrite) -> tuple[Cell, ...]:
    found = [
        Cell(
            cell.name,
            cell.value,
            timestamp_millis=NOW_MILLIS if cell.timestamp_millis is None else cell.timestamp_millis,
        )
        for cell in write.cells
    ]
    return tuple(sorted(found, key=lambda cell: cell.name))


def assert_same_row(read: Any, write: RowWrite) -> None:
    all_cells = dated(write)
    body = encode_row(Row(write.key, all_cells))[len(HEADER) :]
    element = read.record(NOW_MILLIS, 2**32 - 1, 2**63 - 1, 7)
    record = encode_row(Row(write.key, all_cells, sequence=SequenceInfo(2**32 - 1, 2**63 - 1, 7)))
    page = schema.GetStreamRecordResponse()
    page.stream_records.add(action_type=1, record=record)

    assert read.row(NOW_MILLIS) == body
    assert element == page.SerializeToString()
    stamps = [cell.timestamp_millis or 0 for cell in all_cells] or [NOW_MILLIS]
    assert read.versions(NOW_MILLIS) == (min(stamps), max(stamps))
    for form in (body, element):
        assert puts.row_of(form) == body
        assert puts.rows_of([form, form]) == puts._rows_in_python([form, form])
        parts = puts.read_parts(form)
        assert parts == puts._parts_in_python(form)
        assert repr(parts) == repr(puts._parts_in_python(form))
        assert puts.row_of_parts(tuple(name for name, _ in write.key), *parts) == body
