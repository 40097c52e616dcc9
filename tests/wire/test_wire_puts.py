"""Puts as the compiled reader takes them, beside what Python makes of the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_pages import compiled, flipped_bits
from wire_puts import assert_same

from streamclient.records import SequenceInfo
from streamclient.server.server_limits import CELL_TIMESTAMP_MAX_MILLIS, DEFAULT_LIMITS, Limits
from streamclient.wire import puts
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, encode_row

pytestmark = compiled

SMALL = Limits(
    key_columns=2, key_value_bytes=6, name_bytes=5, attribute_value_bytes=8, attribute_columns=3, range_rows=10
)

text = st.text(max_size=7)
key_values = st.one_of(
    st.integers(-(2**63), 2**63 - 1), text, st.binary(max_size=7), st.sampled_from(KeyBound), st.just("\0" * 3)
)
values = st.one_of(key_values, st.floats(), st.booleans())
stored = st.one_of(st.integers(-(2**63), 2**63 - 1), text, st.binary(max_size=7), st.floats(), st.booleans())
stamps = st.one_of(
    st.none(),
    st.none(),
    st.integers(0, 9),
    st.sampled_from([-1, CELL_TIMESTAMP_MAX_MILLIS - 1, CELL_TIMESTAMP_MAX_MILLIS]),
)
names = st.one_of(st.sampled_from(["a", "b", "ab", "é", "pk"]), st.text(max_size=6))
cells = st.builds(
    Cell, names, values, st.sampled_from([CellOperation.PUT] * 9 + [CellOperation.INCREMENT]), timestamp_millis=stamps
)
rows = st.builds(
    Row,
    st.lists(st.tuples(names, key_values), max_size=3).map(tuple),
    st.lists(cells, max_size=4, unique_by=lambda cell: cell.name).map(tuple),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from([None] * 9 + [SequenceInfo(1, 2, 3)]),
)


versions = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), stored), min_size=1, max_size=4).map(tuple)
stored_keys = st.lists(
    st.tuples(st.text(max_size=6), st.one_of(st.integers(-(2**63), 2**63 - 1), text, st.binary())), min_size=1
)


@given(stored_keys, st.dictionaries(st.text(max_size=9), versions, max_size=6))
def test_a_row_is_made_of_its_parts_and_read_again(key: list[tuple[str, Any]], columns: dict[str, Any]) -> None:
    names, values = tuple(name for name, _ in key), tuple(value for _, value in key)
    made = puts.row_of_parts(names, values, columns)
    expected = values, {name: columns[name] for name in sorted(columns)}

    assert made == puts._row_in_python(names, values, columns)
    assert repr(puts.read_parts(made)) == repr(puts._parts_in_python(made)) == repr(expected)


@pytest.mark.parametrize(
    ("names", "key", "columns"),
    [
        (("a",), (), {}),
        (("a",), (2**63,), {}),
        (("a",), (None,), {}),
        (("\ud800",), (1,), {}),
        ((1,), (1,), {}),
        ((), (), {"a": [(1, 1)]}),
        ((), (), {"a": ((1,),)}),
        ((), (), {"a": (1,)}),
        ((), (), {"a": (("x", 1),)}),
        ((), (), {"a": ((2**63, 1),)}),
        ((), (), {"a": ((1, "\ud800"),)}),
        ((), (), {1: ((1, 1),), "b": ((1, 1),)}),
    ],
)
def test_what_makes_no_row_is_refused(names: Any, key: Any, columns: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        puts.row_of_parts(names, key, columns)


@settings(deadline=None, max_examples=400)
@given(rows, st.sampled_from([SMALL, DEFAULT_LIMITS]))
def test_a_put_is_read_as_python_reads_it(row: Row, limits: Limits) -> None:
    assert_same(encode_row(row), limits, is_unusual=row.sequence is not None)


WHOLE = Row(
    (("customer", "c\0é"), ("order_id", -5)),
    (
        Cell("paid", True),
        Cell("amount", 1.5),
        Cell("note", "x" * 200, timestamp_millis=5),
        Cell("blob", b"\0\xff"),
        Cell("items", 2**63 - 1),
    ),
)


def damaged(frame: bytes) -> Iterator[bytes]:
    for position in range(len(frame)):
        yield frame[:position]
        yield frame[:position] + b"\0" + frame[position:]
    yield from flipped_bits(frame)


def test_a_damaged_put_is_left_to_python() -> None:
    frame = encode_row(WHOLE)
    assert_same(frame, DEFAULT_LIMITS)

    assert all(puts.read_put(bad, DEFAULT_LIMITS.put) is None for bad in damaged(frame) if bad != frame)


def test_many_columns_are_sorted_and_told_apart() -> None:
    dice = random.Random(1)
    cells = [Cell(f"{dice.random()}"[: 2 + number % 9] + str(number), number) for number in range(1_024)]
    key = (("pk", 1),)
    assert_same(encode_row(Row(key, tuple(cells))), DEFAULT_LIMITS)

    assert puts.read_put(encode_row(Row(key, (*cells, Cell("one", 1)))), DEFAULT_LIMITS.put) is None
    assert puts.read_put(encode_row(Row(key, (*cells[:500], cells[3]))), DEFAULT_LIMITS.put) is None


def test_a_key_is_compared_by_types_and_names() -> None:
    read = puts.read_put(encode_row(WHOLE), DEFAULT_LIMITS.put)
    assert read is not None
    form = puts.key_column_form("customer", 3) + puts.key_column_form("order_id", 0)

    assert read.has_form(form)
    others = (
        puts.key_column_form("customer", 3),
        form + puts.key_column_form("more", 0),
        puts.key_column_form("customer", 7) + puts.key_column_form("order_id", 0),
        puts.key_column_form("custome", 3) + puts.key_column_form("order_id", 0),
        form[:-1],
        b"",
    )
    assert not any(read.has_form(other) for other in others)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"\x0a\xff\xff\xff\xff", b"\x0a\x05\x08\x01\x12\x03abc", b"\x01\x03\x04\xff\xff\xff\xff\x09\x00"],
)
def test_bytes_that_hold_no_row_are_refused_and_not_read_beyond(data: bytes) -> None:
    with pytest.raises(ValueError, match="hold no row"):
        puts.read_parts(data)
