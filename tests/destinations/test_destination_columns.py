"""Rows and digest by column: whole pages give what their records give, whatever stands in them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from strategies import BATCHES, decodable, records

from streamclient.destinations import change_rows, columns_of_pages, records_digest
from streamclient.errors import CodecError
from streamclient.records import (
    NATIVE,
    ColumnOperation,
    ColumnType,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.wire import schema
from streamclient.wire.columns import record_batch
from streamclient.wire.record_decoding import NativeCodec, PurePythonCodec, RecordCodec

TWIN = PurePythonCodec()
CODECS: list[RecordCodec] = [TWIN] if NATIVE is None else [TWIN, NativeCodec(NATIVE)]
SCHEMAS = st.none() | st.dictionaries(st.sampled_from(["a", "b", "A", "none"]), st.sampled_from(ColumnType), max_size=3)


def cut(batch: Sequence[StreamRecord], sizes: Sequence[int]) -> Iterator[Sequence[StreamRecord]]:
    """The records in pages of these sizes, and the rest in one."""
    begin = 0
    for size in sizes:
        yield batch[begin : begin + size]
        begin += size
    yield batch[begin:]


def assert_equal_by_column(
    batch: Sequence[StreamRecord], pages: Sequence[object], stored: pa.Schema | None = None
) -> None:
    by_column = columns_of_pages(pages)
    rows = change_rows(by_column, shard="s", number=1, columns=stored)
    expected = change_rows(batch, shard="s", number=1, columns=stored)
    rows.validate(full=True)

    assert records_digest(by_column) == records_digest(batch)
    assert rows.schema == expected.schema
    # Texts, as no NaN equals itself, and 1 equals 1.0.
    assert repr(rows.to_pylist()) == repr(expected.to_pylist())


@given(BATCHES, BATCHES, st.lists(st.integers(0, 3), max_size=3), SCHEMAS)
def test_pages_by_column_give_the_rows_and_the_digest_of_their_records(
    batch: list[StreamRecord], earlier: list[StreamRecord], sizes: list[int], types: dict[str, ColumnType] | None
) -> None:
    """In any order, cut anywhere, with any types of the page, into a table with any types of its own."""
    stored = change_rows(earlier, shard="s", number=1).schema
    pages = [record_batch(page, types) for page in cut(batch, sizes)]

    assert_equal_by_column(batch, pages)
    assert_equal_by_column(batch, pages, stored)


@given(st.lists(records(), max_size=8), st.integers(0, 8))
def test_records_of_equal_sequence_are_put_in_the_order_of_their_keys(batch: list[StreamRecord], size: int) -> None:
    """Rows of a table's full data all have a sequence of zeros."""
    keys: dict[object, StreamRecord] = {one.primary_key: one for one in batch}
    full = [evolve(one, sequence_info=SequenceInfo(0, 0, 0)) for one in keys.values()]

    assert_equal_by_column(full, [record_batch(page, None) for page in cut(full, [size])])


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
@given(batch=BATCHES)
def test_pages_as_codecs_give_them_are_taken(codec: RecordCodec, batch: list[StreamRecord]) -> None:
    sent = [decodable(one) for one in batch]
    page = schema.GetStreamRecordResponse(next_shard_iterator="next")
    for record in sent:
        action, data, origin = TWIN.encode_record(record)
        page.stream_records.add(action_type=action, record=data, origin_record=origin)
    decoded = codec.decode_page(page.SerializeToString())

    assert_equal_by_column(decoded.records, [decoded.arrow()])


def test_a_thousand_columns_of_which_some_are_deleted_drift_and_have_older_versions() -> None:
    dice = random.Random(1)
    values = [3, 2.5, "text", b"bytes", True]

    def cells() -> Iterator[RecordColumn]:
        for number in dice.sample(range(1_000), dice.choice([1, 30, 1_000])):
            name, version = f"c{number}", dice.choice([5, 6])
            kind = dice.choices(list(ColumnOperation), [30, 1, 1])[0]
            value = values[number % 5] if dice.random() < 0.95 else dice.choice(values)
            if kind is not ColumnOperation.PUT:
                value = None
            yield RecordColumn(name, kind, value, None if kind is ColumnOperation.DELETE_ALL_VERSION else version)
            if dice.random() < 0.05:
                yield RecordColumn(name, ColumnOperation.PUT, dice.choice(values), dice.choice([4, 5, 7]))

    batch = [
        StreamRecord(RecordType.UPDATE, (("id", number),), tuple(cells()), SequenceInfo(1, number, 0))
        for number in range(60)
    ]

    assert_equal_by_column(batch, [record_batch(page, None) for page in cut(batch, [1, 20])])


def test_columns_without_a_single_record_give_no_rows_and_the_digest_of_nothing() -> None:
    for pages in ([], [record_batch((), None)]):
        assert_equal_by_column([], pages)


def test_a_part_of_a_page_is_what_its_records_are() -> None:
    """Arrays that begin in the middle of their memory."""
    batch = [
        StreamRecord(
            RecordType.PUT,
            (("id", f"key {number}"),),
            tuple(
                RecordColumn(f"c{place}", ColumnOperation.PUT, value, 5 + number)
                for place, value in enumerate([number, number / 4, number % 2 == 0, "ä" * number, b"b" * number])
            ),
            SequenceInfo(1, number, 0),
            (RecordColumn("c0", ColumnOperation.PUT, number - 1, 4),),
        )
        for number in range(20)
    ]

    assert_equal_by_column(batch[3:17], [record_batch(batch, None).slice(3, 14)])


def test_pages_of_two_tables_are_refused() -> None:
    one = StreamRecord(RecordType.PUT, (("id", 1),))
    two = StreamRecord(RecordType.PUT, (("number", 1),))

    with pytest.raises(CodecError, match=r"number.*the first page.*id.*not of one table"):
        columns_of_pages([record_batch([one], None), record_batch([two], None)])


def test_something_that_is_no_page_is_refused() -> None:
    with pytest.raises(CodecError, match=r"expected a page in columns.*got \('a',\)"):
        columns_of_pages([pa.record_batch({"a": pa.array([1])})])
