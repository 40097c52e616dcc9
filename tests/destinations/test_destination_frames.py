"""Batches as flat frames: the rows of a destination, from records and from pages, for three libraries."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BATCHES, decodable

from streamclient.destinations import change_rows
from streamclient.destinations.rows import frames
from streamclient.destinations.rows.frames import to_arrow, to_pandas, to_polars
from streamclient.errors import ConfigurationError
from streamclient.records import NATIVE, ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire import schema
from streamclient.wire.page_parts import PageRecords
from streamclient.wire.record_decoding import NativeCodec, PurePythonCodec, RecordCodec

TWIN = PurePythonCodec()
CODECS: list[RecordCodec] = [TWIN] if NATIVE is None else [TWIN, NativeCodec(NATIVE)]
both = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)


def page_of(codec: RecordCodec, batch: list[StreamRecord]) -> PageRecords:
    page = schema.GetStreamRecordResponse(next_shard_iterator="next")
    for record in map(decodable, batch):
        action, data, origin = TWIN.encode_record(record)
        page.stream_records.add(action_type=action, record=data, origin_record=origin)
    return codec.decode_page(page.SerializeToString()).records


def assert_same(rows: pa.Table, expected: pa.Table) -> None:
    rows.validate(full=True)
    assert rows.schema == expected.schema
    # Texts, as no NaN equals itself, and 1 equals 1.0.
    assert repr(rows.to_pylist()) == repr(expected.to_pylist())


@given(BATCHES)
def test_records_become_the_rows_of_a_destination(batch: list[StreamRecord]) -> None:
    assert_same(to_arrow(batch, shard="s"), change_rows(batch, shard="s", number=0))
    assert_same(to_arrow(tuple(batch)), change_rows(batch, shard="", number=0))


@both
@settings(max_examples=60)
@given(batch=BATCHES, part=st.slices(6))
def test_a_page_and_its_parts_become_the_rows_of_their_records(
    codec: RecordCodec, batch: list[StreamRecord], part: slice
) -> None:
    page = page_of(codec, batch)
    for records in (page, page[part], page.select(range(0, len(page), 2))):
        assert_same(to_arrow(records, shard="s"), change_rows(list(records), shard="s", number=0))


ORDERS = [
    StreamRecord(
        RecordType.PUT,
        (("id", number),),
        (RecordColumn("amount", ColumnOperation.PUT, 2**53 + number, 5),) if number else (),
        SequenceInfo(0, number, 0),
    )
    for number in range(3)
]


@both
def test_no_record_is_made_for_the_rows_of_a_page(codec: RecordCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(codec, ORDERS)
    monkeypatch.setattr(PageRecords, "__iter__", None)
    monkeypatch.setattr(PageRecords, "__getitem__", None)

    assert to_arrow(page).column("amount").to_pylist() == [None, 2**53 + 1, 2**53 + 2]


@both
def test_an_empty_page_has_the_added_columns_alone(codec: RecordCodec) -> None:
    assert_same(to_arrow(page_of(codec, [])), change_rows([], shard="", number=0))


# --- other libraries --------------------------------------------------------------------------------------------------


def test_polars_is_given_the_table_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in shows the call; where polars is installed, the next test uses it."""
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: ("frame", table)))

    kind, table = to_polars(ORDERS, shard="s")
    assert kind == "frame"
    assert_same(table, to_arrow(ORDERS, shard="s"))


def test_polars_keeps_every_value() -> None:
    pytest.importorskip("polars")
    frame = to_polars(ORDERS, shard="s")

    assert frame["amount"].to_list() == [None, 2**53 + 1, 2**53 + 2]
    assert frame["_shard_id"].to_list() == ["s"] * 3


def test_pandas_is_asked_for_the_types_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in shows the call; where pandas is installed, the next test uses it."""
    calls: list[Any] = []
    types = object()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(ArrowDtype=types))
    table = SimpleNamespace(to_pandas=lambda **how: calls.append(how) or "frame")
    monkeypatch.setattr(frames, "to_arrow", lambda records, *, shard: table)

    assert to_pandas(ORDERS) == "frame"
    assert calls == [{"types_mapper": types}]


def test_pandas_keeps_every_value() -> None:
    pytest.importorskip("pandas")
    frame = to_pandas(ORDERS, shard="s")

    assert [None if row is None else int(row) for row in frame["amount"].array.__arrow_array__().to_pylist()] == [
        None,
        2**53 + 1,
        2**53 + 2,
    ]
    assert list(frame["_shard_id"]) == ["s"] * 3


@pytest.mark.parametrize(("convert", "missing"), [(to_polars, "polars"), (to_pandas, "pandas")])
def test_a_missing_library_is_named_with_the_way_to_it(
    convert: Any, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(ConfigurationError, match=rf"to_{missing}\(\) needs {missing} .*: pip install {missing}"):
        convert(ORDERS)


def test_missing_pyarrow_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigurationError, match=r"pyarrow cannot be imported .*: install the extra delta"):
        to_arrow(ORDERS)
