"""A range of a shard as rows: what the records say, in whichever layout their pages are decoded."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.destinations.rows.change_rows import COMMIT, OF_CHANGES, UNFIT, added_types, rows_of_schema
from streamclient.destinations.rows.column_layout import ChangeColumns
from streamclient.errors import UnfitValueError
from streamclient.records import ColumnOperation, ColumnType, RecordColumn, RecordType, StreamRecord
from streamclient.spark.source.offsets import ShardSlice
from streamclient.spark.source.partition_reading import (
    LAYOUT_COLUMNS_MAX,
    SPARSE,
    PageDecoder,
    RangeReader,
    StreamPages,
)
from streamclient.wire.page_parts import DecodedPage
from tests.datasource.query import NOW_MICROS, MemoryStream, Query, put

NAMES = st.sampled_from([f"c{number}" for number in range(4)])
VALUES = st.one_of(st.integers(0, 9), st.text("xy", max_size=2), st.booleans())
CELLS = st.one_of(
    st.builds(RecordColumn, NAMES, st.just(ColumnOperation.PUT), VALUES, st.integers(0, 3)),
    st.builds(RecordColumn, NAMES, st.just(ColumnOperation.DELETE_ALL_VERSION)),
)


NUMBERS = st.builds(RecordColumn, NAMES, st.just(ColumnOperation.PUT), st.integers(0, 9), st.integers(0, 3))
"""All of them fit, and a record may have several of one column."""


def changes(cells: Iterable[Sequence[RecordColumn]]) -> list[StreamRecord]:
    """One of each key, with these cells."""
    return [
        evolve(put(number), record_type=RecordType.UPDATE, columns=tuple(some)) for number, some in enumerate(cells)
    ]


def whole_range(records: list[StreamRecord]) -> tuple[MemoryStream, ShardSlice]:
    stream = MemoryStream()
    stream.records[stream.open("s1")] += records
    query = Query(stream)
    query.plan()
    return stream, query.parts(0)[0]


@given(st.lists(st.lists(CELLS, max_size=6), min_size=1, max_size=40), st.sampled_from([["c0"], ["c0", "c1"], []]))
def test_rows_of_some_columns_are_what_the_records_say(cells: list[list[RecordColumn]], wanted: list[str]) -> None:
    """Whatever the other columns are, and in whichever layout the pages are decoded for them."""
    records = changes(cells)
    stream, part = whole_range(records)
    added = [pa.field(name, kind) for name, kind in added_types().items() if name != COMMIT]
    columns = pa.schema([pa.field("pk", pa.int64()), *(pa.field(name, pa.int64()) for name in wanted), *added])
    reader = RangeReader(StreamPages(stream), columns, batch_records=10)  # type: ignore[arg-type]
    expected = rows_of_schema(ChangeColumns.of_records(records), shard="s1", columns=columns)

    assert pa.Table.from_batches(reader.read(part)).to_pylist() == expected.to_pylist()


@settings(max_examples=200)
@given(
    st.lists(st.lists(CELLS, max_size=3), min_size=1, max_size=40)
    | st.lists(st.lists(NUMBERS, max_size=3), min_size=1, max_size=40),
    st.dictionaries(NAMES, st.sampled_from([pa.int64(), pa.int64(), pa.string()]), max_size=2),
    st.sets(st.sampled_from(sorted(OF_CHANGES))),
    st.integers(1, 20),
)
def test_rows_without_words_on_cells_are_what_the_records_say(
    cells: list[list[RecordColumn]], wanted: dict[str, pa.DataType], added: set[str], batch: int
) -> None:
    """Whether a page has values alone for it or not, page by page; and the same error, if a value does not fit."""
    records = changes(cells)
    stream, part = whole_range(records)
    stream.page_records = 7
    kinds = wanted | {name: added_types()[name] for name in added}
    columns = pa.schema([pa.field("pk", pa.int64()), *itertools.starmap(pa.field, kinds.items())])
    reader = RangeReader(StreamPages(stream), columns, batch_records=batch)  # type: ignore[arg-type]
    try:
        expected = rows_of_schema(ChangeColumns.of_records(records), shard="s1", columns=columns)
    except UnfitValueError as error:
        with pytest.raises(UnfitValueError, match=re.escape(str(error))):
            list(reader.read(part))
        return
    read = list(reader.read(part))

    assert pa.Table.from_batches(read).to_pylist() == expected.to_pylist()
    assert all(one.num_rows < batch + stream.page_records for one in read)


@pytest.mark.parametrize("further", [[], [UNFIT]], ids=["values alone", "records"])
def test_large_records_become_batches_of_few_rows(further: list[str]) -> None:
    """However many would be one batch by their number: a column of text cannot be larger than two gigabytes."""
    text = RecordColumn("v", ColumnOperation.PUT, "x" * 1_000, 1)
    stream, part = whole_range(changes([[text]] * 60))
    stream.page_records = 5
    columns = pa.schema([("pk", pa.int64()), ("v", pa.string()), *((name, added_types()[name]) for name in further)])
    reader = RangeReader(StreamPages(stream), columns, batch_bytes=9_000)  # type: ignore[arg-type]
    read = list(reader.read(part))

    assert [one.num_rows for one in read] == [10] * 6
    assert [row["pk"] for one in read for row in one.to_pylist()] == list(range(60))


def test_a_record_without_a_value_for_a_column_that_is_declared_not_null_is_an_error() -> None:
    """Spark looks for no null there, so it would read what happens to stand in its place."""
    cell = RecordColumn("v", ColumnOperation.PUT, 1, 1)
    stream, part = whole_range(changes([[cell], [cell], []]))
    for further in ([], [pa.field(UNFIT, added_types()[UNFIT])]):
        columns = pa.schema([pa.field("pk", pa.int64()), pa.field("v", pa.int64(), nullable=False), *further])
        reader = RangeReader(StreamPages(stream), columns)  # type: ignore[arg-type]

        with pytest.raises(
            UnfitValueError, match=rf"column 'v' is declared NOT NULL and the change 0/{NOW_MICROS + 2}/0 of shard s1"
        ):
            list(reader.read(part))


def pages_of(stream: MemoryStream) -> Iterator[DecodedPage]:
    at: str | None = "s1/0"
    while at is not None and (page := stream.page(at, 100)).record_count:
        yield page
        at = page.next_shard_iterator


def listed_names(batch: pa.RecordBatch) -> list[str]:
    return list(batch.column("other_cells").flatten().field("name").to_pylist())


def test_cells_of_columns_that_are_not_wanted_are_not_listed_one_by_one() -> None:
    """They would cost as much as records; only those of columns that hardly any record has are."""
    dense = [RecordColumn(f"c{number}", ColumnOperation.PUT, "x", 1) for number in range(3)]
    rare = RecordColumn("rare", ColumnOperation.PUT, "x", 1)
    stream, _ = whole_range(changes([[*dense, rare] if number % SPARSE == 0 else dense for number in range(60)]))
    stream.page_records = 2 * SPARSE - 1
    decoder = PageDecoder({"c0": ColumnType.STRING})
    names = [listed_names(decoder.batch(page)) for page in pages_of(stream)]

    assert names == [[], []], "two of 31 is more than one of 16"
    stream.page_records = 60
    stream.records["s1"][SPARSE] = stream.records["s1"][1]
    decoder = PageDecoder({"c0": ColumnType.STRING})
    assert [listed_names(decoder.batch(page)) for page in pages_of(stream)] == [["rare"] * 3]


def test_the_layout_of_pages_does_not_grow_without_a_bound() -> None:
    """As where each record has columns of its own."""
    stream, _ = whole_range(
        changes(
            [RecordColumn(f"c{page} {number}", ColumnOperation.PUT, 1, 1) for number in range(100)]
            for page in range(LAYOUT_COLUMNS_MAX // 100 + 3)
        )
    )
    stream.page_records = 1
    decoder = PageDecoder({})
    widths = [len(decoder.batch(page).schema.field("columns").type) for page in pages_of(stream)]

    assert widths[:2] == [100, 200]
    assert max(widths) == widths[-1] < LAYOUT_COLUMNS_MAX + 100
