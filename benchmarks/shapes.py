"""Pages of a thousand records in four shapes, each as a response of the stream and as bare rows for the SDK."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

from attrs import field, frozen

from streamclient import ColumnOperation, RecordColumn, RecordType, SequenceInfo
from streamclient.records import ColumnValue, KeyValue
from streamclient.records import StreamRecord as Record
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row
from streamclient.wire.record_decoding import default_codec

PAGE_RECORDS = 1_000

_FIRST_MICROS = 1_700_000_000_000_000
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_WIDE_ALPHABET = _ALPHABET + "äöü愿安"


@frozen
class Shape:
    """A page of one shape in two encodings, with the same keys, cells and timestamps."""

    name: str
    records: tuple[Record, ...] = field(repr=False)
    body: bytes = field(repr=False)
    """The body of a GetStreamRecord response, with sequence information."""
    rows: tuple[bytes, ...] = field(repr=False)
    """Each record as a row, without sequence information, which the SDK's decoders do not know."""


@cache
def shapes() -> tuple[Shape, ...]:
    """Return one page of each of the four shapes. Every call returns equal pages."""
    dice = random.Random(1)
    makers: dict[str, Callable[[random.Random, int], Record]] = {
        "2 key + 6 attribute columns": _order,
        "1 key + 1 attribute column": _narrow,
        "3 key + 30 attribute columns": _wide,
        "mixed: puts, partial updates, deletes": _mixed,
    }
    made = {name: tuple(make(dice, number) for number in range(PAGE_RECORDS)) for name, make in makers.items()}
    return tuple(_shape(name, records) for name, records in made.items())


def _shape(name: str, records: tuple[Record, ...]) -> Shape:
    page = schema.GetStreamRecordResponse(next_shard_iterator="iterator", may_more_record=True)
    for record in records:
        action, data, _ = default_codec().encode_record(record)
        page.stream_records.add(action_type=action, record=data)
    return Shape(name, records, page.SerializeToString(), tuple(_bare_row(record) for record in records))


def _bare_row(record: Record) -> bytes:
    cells = tuple(
        Cell(column.name, column.value, timestamp_millis=column.timestamp_millis) for column in record.columns
    )
    return encode_row(Row(record.primary_key, cells, record.record_type is RecordType.DELETE))


def _text(dice: random.Random, length: int, alphabet: str = _ALPHABET) -> str:
    return "".join(dice.choices(alphabet, k=length))


def _record(
    number: int, kind: RecordType, key: list[KeyValue], cells: Iterator[tuple[str, ColumnValue]] | None = None
) -> Record:
    stamp_micros = _FIRST_MICROS + number
    columns = tuple(
        RecordColumn(name, ColumnOperation.PUT, value, stamp_micros // 1_000) for name, value in cells or ()
    )
    named_key = tuple((f"key{place}", value) for place, value in enumerate(key))
    return Record(kind, named_key, columns, SequenceInfo(0, stamp_micros, 0))


def _order_cells(dice: random.Random, number: int, alphabet: str = _ALPHABET) -> Iterator[tuple[str, ColumnValue]]:
    yield "city", _text(dice, 16, alphabet)
    yield "items", number
    yield "amount", number * 0.25
    yield "paid", number % 2 == 0
    yield "digest", dice.randbytes(32)
    yield "status", _text(dice, 16, alphabet)


def _order(dice: random.Random, number: int) -> Record:
    return _record(number, RecordType.PUT, [_text(dice, 12), number], _order_cells(dice, number))


def _narrow(dice: random.Random, number: int) -> Record:
    return _record(number, RecordType.PUT, [_text(dice, 12)], iter([("value", number)]))


def _wide(dice: random.Random, number: int) -> Record:
    makers: list[Callable[[], ColumnValue]] = [
        lambda: _text(dice, 16),
        lambda: dice.getrandbits(40),
        dice.random,
        lambda: dice.random() < 0.5,
        lambda: dice.randbytes(24),
    ]
    cells = ((f"attribute_{place:02d}", makers[place % len(makers)]()) for place in range(30))
    return _record(number, RecordType.PUT, [_text(dice, 12), number, dice.randbytes(8)], cells)


def _mixed(dice: random.Random, number: int) -> Record:
    """Make a record. Half are puts, four tenths are updates of some columns in any order, and one tenth are deletes.

    Texts have characters beyond ASCII. Updates delete no columns, because the SDK's Python decoder fails at such cells.
    """
    key: list[KeyValue] = [_text(dice, 12, _WIDE_ALPHABET), number]
    share = dice.random()
    if share < 0.1:
        return _record(number, RecordType.DELETE, key)
    cells = [*_order_cells(dice, number, _WIDE_ALPHABET), ("note", _text(dice, 8, _WIDE_ALPHABET)), ("revision", 7)]
    if share < 0.6:
        return _record(number, RecordType.PUT, key, iter(cells))
    return _record(number, RecordType.UPDATE, key, iter(dice.sample(cells, dice.randint(1, len(cells)))))
