"""Frames that other implementations wrote, with what they mean."""

from __future__ import annotations

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row

KEY_CELL = "03 04 02 00 00 00 70 6b 05 06 00 00 00 03 01 00 00 00 61 0a d4"
KEY_A = (("pk", "a"),)
MILLIS = 1_700_000_000_123
MICROS = 1_700_000_000_123_456

PUT_REQUEST = bytes.fromhex(
    f"75 00 00 00 01 {KEY_CELL} 02 03 04 01 00 00 00 63 05 09 00 00 00 00 07 00 00 00 00 00 00 00 0a a4 09 c8"
)
DELETE_REQUEST = bytes.fromhex(f"75 00 00 00 01 {KEY_CELL} 08 09 e9")
RANGE_START = bytes.fromhex("75 00 00 00 01 03 04 02 00 00 00 70 6b 05 01 00 00 00 09 0a 3a 09 7b")
RANGE_END = bytes.fromhex("75 00 00 00 01 03 04 02 00 00 00 70 6b 05 01 00 00 00 0a 0a 33 09 c6")
UPDATE_CELLS = {
    "03 04 01 00 00 00 65 05 06 00 00 00 03 01 00 00 00 78 0a 38": Cell("e", "x"),
    "03 04 01 00 00 00 63 06 03 07 05 00 00 00 00 00 00 00 0a 4e": Cell("c", None, CellOperation.DELETE_ONE_VERSION, 5),
    "03 04 01 00 00 00 64 06 01 0a a6": Cell("d", None, CellOperation.DELETE_ALL_VERSIONS),
    "03 04 01 00 00 00 6e 05 09 00 00 00 00 01 00 00 00 00 00 00 00 06 04 0a e3": Cell("n", 1, CellOperation.INCREMENT),
}

_PUT_CELLS = "02 03 04 01 00 00 00 63 05 09 00 00 00 00 07 00 00 00 00 00 00 00 07 7b 68 e5 cf 8b 01 00 00 0a 28"
PUT_RECORD = bytes.fromhex(
    f"75 00 00 00 01 {KEY_CELL} {_PUT_CELLS} 0b 18 00 00 00 0c 13 00 00 00 0d 00 00 00 00 "
    "0e 40 22 20 18 24 0a 06 00 0f 00 00 00 00 09 82"
)
ORIGIN_RECORD = bytes.fromhex(f"75 00 00 00 01 {KEY_CELL} {_PUT_CELLS} 09 82")
UPDATE_RECORD = bytes.fromhex(
    f"75 00 00 00 01 {KEY_CELL} "
    "02 03 04 01 00 00 00 63 06 03 07 7b 68 e5 cf 8b 01 00 00 0a d6 "
    "03 04 01 00 00 00 64 06 01 0a a6 "
    "03 04 01 00 00 00 65 05 06 00 00 00 03 01 00 00 00 78 07 7c 68 e5 cf 8b 01 00 00 0a 0d "
    "0b 18 00 00 00 0c 13 00 00 00 0d 00 00 00 00 0e 41 22 20 18 24 0a 06 00 0f 01 00 00 00 09 87"
)
DELETE_RECORD = bytes.fromhex(
    f"75 00 00 00 01 {KEY_CELL} 08 "
    "0b 18 00 00 00 0c 13 00 00 00 0d 00 00 00 00 0e 42 22 20 18 24 0a 06 00 0f 00 00 00 00 09 e9"
)

ROWS: dict[str, tuple[bytes, Row]] = {
    "put request": (PUT_REQUEST, Row(KEY_A, (Cell("c", 7),))),
    "delete request": (DELETE_REQUEST, Row(KEY_A, delete_marker=True)),
    "range start": (RANGE_START, Row((("pk", KeyBound.INF_MIN),))),
    "range end": (RANGE_END, Row((("pk", KeyBound.INF_MAX),))),
    "put record": (PUT_RECORD, Row(KEY_A, (Cell("c", 7, timestamp_millis=MILLIS),), False, SequenceInfo(0, MICROS, 0))),
    "origin record": (ORIGIN_RECORD, Row(KEY_A, (Cell("c", 7, timestamp_millis=MILLIS),))),
    "update record": (
        UPDATE_RECORD,
        Row(
            KEY_A,
            (
                Cell("c", None, CellOperation.DELETE_ONE_VERSION, MILLIS),
                Cell("d", None, CellOperation.DELETE_ALL_VERSIONS),
                Cell("e", "x", timestamp_millis=MILLIS + 1),
            ),
            False,
            SequenceInfo(0, MICROS + 1, 1),
        ),
    ),
    "delete record": (DELETE_RECORD, Row(KEY_A, (), True, SequenceInfo(0, MICROS + 2, 0))),
}

PUT_COLUMN = RecordColumn("c", ColumnOperation.PUT, 7, MILLIS)
RECORDS: dict[str, tuple[tuple[int, bytes, bytes | None], StreamRecord]] = {
    "put": ((1, PUT_RECORD, None), StreamRecord(RecordType.PUT, KEY_A, (PUT_COLUMN,), SequenceInfo(0, MICROS, 0))),
    "update with origin": (
        (2, UPDATE_RECORD, ORIGIN_RECORD),
        StreamRecord(
            RecordType.UPDATE,
            KEY_A,
            (
                RecordColumn("c", ColumnOperation.DELETE_ONE_VERSION, None, MILLIS),
                RecordColumn("d", ColumnOperation.DELETE_ALL_VERSION),
                RecordColumn("e", ColumnOperation.PUT, "x", MILLIS + 1),
            ),
            SequenceInfo(0, MICROS + 1, 1),
            (PUT_COLUMN,),
        ),
    ),
    "delete": ((3, DELETE_RECORD, None), StreamRecord(RecordType.DELETE, KEY_A, (), SequenceInfo(0, MICROS + 2, 0))),
}

EVERYTHING = Row(
    (("text", "ключ"), ("number", -(2**63)), ("raw", b"\x00\xff\x75")),
    (
        Cell("i", 2**63 - 1, timestamp_millis=0),
        Cell("f", -0.5, timestamp_millis=MILLIS),
        Cell("yes", True, timestamp_millis=MILLIS),
        Cell("no", False, timestamp_millis=MILLIS - 1),
        Cell("s", "日本語 " * 20, timestamp_millis=MILLIS),
        Cell("b", bytes(range(256)), timestamp_millis=MILLIS),
        Cell("имя", ""),
        Cell("gone", None, CellOperation.DELETE_ONE_VERSION, MILLIS),
        Cell("gone", None, CellOperation.DELETE_ALL_VERSIONS),
        Cell("n", -3, CellOperation.INCREMENT),
    ),
    True,
    SequenceInfo(7, MICROS, 41),
)
"""One of each kind of cell; more than any real row would combine."""
