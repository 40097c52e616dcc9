"""Parts of pages: sequences of records that are made when they are asked for, the same from both codecs."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore import OTSClient
from wire_examples import RECORDS
from wire_pages import CODECS, TWIN, body, both, compiled, records

from streamclient.errors import DisorderError
from streamclient.records import NATIVE, ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.spark.source.partition_reading import _ordered_page
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.page_parts import PageRecords
from streamclient.wire.record_decoding import NativeCodec, RecordCodec

EXAMPLES = tuple(record for _, record in RECORDS.values())
ENTRIES = tuple(entry for entry, _ in RECORDS.values())


def page_of(codec: RecordCodec, times: int = 1) -> PageRecords:
    return codec.decode_page(body(*ENTRIES * times)).records


@both
def test_a_page_is_a_sequence_that_cannot_be_told_from_the_tuple_of_its_records(codec: RecordCodec) -> None:
    page = page_of(codec)

    assert isinstance(page, Sequence)
    assert page == EXAMPLES
    assert operator.eq(EXAMPLES, page)
    assert page == page_of(TWIN)
    assert page != EXAMPLES[:2]
    assert page != list(EXAMPLES)
    assert (hash(page), repr(page), len(page)) == (hash(EXAMPLES), repr(EXAMPLES), len(EXAMPLES))
    assert page + EXAMPLES == EXAMPLES + page == EXAMPLES * 2
    assert [*page, *reversed(page)] == [*EXAMPLES, *reversed(EXAMPLES)]
    assert page.index(EXAMPLES[1]) == 1
    assert EXAMPLES[2] in page
    for copied in (pickle.loads(pickle.dumps(page)), copy.copy(page), copy.deepcopy(page)):
        assert type(copied) is tuple
        assert copied == EXAMPLES


@both
def test_a_record_is_made_once_however_it_is_reached(codec: RecordCodec) -> None:
    page = page_of(codec)
    second = page[1]

    assert all(one is second for one in (page[-2], page[1:][0], page.select([2, 1])[1], [*page][1], page[::-1][1]))
    assert second.columns is page[1].columns


@both
def test_places_that_no_record_has_are_refused(codec: RecordCodec) -> None:
    page = page_of(codec)
    for ask in (lambda: page[3], lambda: page[-4], lambda: page.select([3]), lambda: page[1:][2]):
        with pytest.raises(IndexError):
            ask()
    with pytest.raises(IndexError):
        page[:0].sequence_info(0)
    with pytest.raises(TypeError):
        page["a"]  # type: ignore[call-overload]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(records, max_size=6), st.slices(8), st.lists(st.integers(0, 5), max_size=5))
def test_any_part_is_that_of_the_tuple(made: list[StreamRecord], part: slice, places: list[int]) -> None:
    entries = [TWIN.encode_record(record) for record in made]
    sizes = [len(record) + len(origin or b"") for _, record, origin in entries]
    places = [place for place in places if place < len(made)]
    for codec in CODECS:
        page = codec.decode_page(body(*entries))
        chosen, expected = page.records[part], tuple(made)[part]
        assert chosen == expected
        assert [chosen.sequence_info(place) for place in range(len(chosen))] == [one.sequence_info for one in expected]
        assert chosen.size_bytes == sum(sizes[part])
        assert page.records.select(places) == tuple(made[place] for place in places)
        assert page.records.select(places)[::-1].size_bytes == sum(sizes[place] for place in places)
        assert page.record_count == len(made)


@both
def test_columns_of_a_part_are_those_of_its_records(codec: RecordCodec) -> None:
    page, expected = page_of(codec, 3), pa.record_batch(page_of(TWIN, 3).arrow()).to_pylist()

    for part in (page[2:7], page[:0], page[::-2], page.select([8, 0, 0]), page.select([])):
        made = part.arrow()
        assert isinstance(made, pa.RecordBatch) == (codec is TWIN), "declined, and done by the twin"
        batch = pa.record_batch(made)
        batch.validate(full=True)
        found = [(row["record_type"], row["primary_key"], row["sequence_info"]) for row in batch.to_pylist()]
        assert [SequenceInfo(**place) for *_, place in found] == [record.sequence_info for record in part]
        assert [kind for kind, *_ in found] == [record.record_type.value for record in part]
    whole = pa.record_batch(page.select(range(9)).arrow())
    assert whole.to_pylist() == expected


# --- records that outlive their page ----------------------------------------------------------------------------------


def large_body() -> bytes:
    cells = tuple(RecordColumn(f"c{place}", ColumnOperation.PUT, "x" * 100 + str(place), place) for place in range(30))
    keys = [(("id", number), ("name", "ä" * (number % 3))) for number in range(1000)]
    made = [StreamRecord(RecordType.PUT, key, cells, SequenceInfo(1, 2, 3), cells[:1]) for key in keys]
    return body(*map(TWIN.encode_record, made))


@compiled
def test_a_record_that_is_kept_lets_its_page_go_and_reads_the_same() -> None:
    data = large_body()
    expected = TWIN.decode_page(data).records
    before = sys.getrefcount(data)
    page = NativeCodec(NATIVE).decode_page(data).records
    untouched, looked_at, again = page[7], page[8], page[7]
    first_columns = looked_at.columns
    assert sys.getrefcount(data) > before

    del page
    gc.collect()
    assert sys.getrefcount(data) == before, "one record keeps a page of 4 MB"
    assert untouched is again
    assert (untouched, looked_at) == (expected[7], expected[8])
    assert repr(untouched) == repr(expected[7])
    assert looked_at.columns is first_columns
    assert untouched.original_columns == expected[7].original_columns
    assert pickle.loads(pickle.dumps(untouched)) == expected[7]


@compiled
def test_each_part_keeps_its_page_and_so_does_iterating() -> None:
    data = large_body()
    before = sys.getrefcount(data)
    page = NativeCodec(NATIVE).decode_page(data).records
    last = page[-1:]
    del page
    assert sys.getrefcount(data) > before
    walk = iter(last)
    del last
    assert sys.getrefcount(data) > before
    assert [record.key["id"] for record in walk] == [999]
    del walk
    assert sys.getrefcount(data) == before


@compiled
def test_a_page_that_goes_while_a_record_of_it_is_read_does_no_harm() -> None:
    """Making columns may run the collector, which may end the last part of the page: the record leaves it meanwhile."""
    data = large_body()
    own_copy = bytes(bytearray(data))  # which goes with the page
    holder: list[Any] = [NativeCodec(NATIVE).decode_page(own_copy).records]
    del own_copy
    record = holder[0][5]

    class Cycle:
        def __init__(self) -> None:
            self.own, self.page = self, holder[0]

    ends = []
    for _ in range(50):
        cycle = Cycle()
        weakref.finalize(cycle, ends.append, True)
        del cycle
    holder.clear()
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert len(record.columns) == 30, "more than Python keeps tuples ready for, so the collector runs"
        assert len(record.primary_key) == 2
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert ends
    assert record == TWIN.decode_page(data).records[5]


@compiled
def test_a_page_keeps_no_record_that_nobody_holds() -> None:
    """So that going through a page takes the memory of one record, not that of all."""
    page = page_of(NativeCodec(NATIVE))
    held = page[0]
    gone = weakref.ref(page[1])
    again = [weakref.ref(record) for record in page]

    assert gone() is None
    assert [one() for one in again] == [held, None, None]
    assert page[0] is held
    assert page == EXAMPLES


@compiled
def test_who_asks_for_a_record_while_it_goes_is_given_another_one() -> None:
    page = page_of(NativeCodec(NATIVE))
    given: list[StreamRecord] = []
    record = page[1]
    watch = weakref.ref(record, lambda _: given.append(page[1]))
    del record

    assert watch() is None
    assert given == [EXAMPLES[1]]
    assert page[1] is given[0]


@compiled
def test_the_collector_follows_nothing_of_a_record() -> None:
    """Not even a tuple, of which it would find out at its next run: a page of them would have it run."""
    (record,) = NativeCodec(NATIVE).decode_page(body(TWIN.encode_record(EXAMPLES[0]))).records

    seen = [record, record.primary_key, *record.primary_key, record.columns, *record.columns, record.sequence_info]
    assert [one for one in seen if gc.is_tracked(one)] == []


@compiled
def test_kept_records_leak_nothing() -> None:
    data = large_body()
    codec = NativeCodec(NATIVE)
    watched = [data, *RecordType, *ColumnOperation, StreamRecord, RecordColumn, SequenceInfo]

    def once() -> None:
        kept = [*codec.decode_page(data).records[::3]]
        assert kept[1].columns
        assert kept[2].primary_key
        part = codec.decode_page(data).records.select([5, 3])
        assert part.sequence_info(0)
        assert part.size_bytes
        part.arrow()

    once()
    gc.collect()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(5):
        once()
    gc.collect()

    assert [sys.getrefcount(one) for one in watched] == before


@compiled
def test_what_is_no_choice_of_records_is_refused_by_the_compiled_part() -> None:
    assert NATIVE is not None
    page = NATIVE.Codec(tuple(RecordType), tuple(ColumnOperation)).decode(body(*ENTRIES), False)
    for rows in ([0], 0, None, ("a",), slice(2)):
        for ask in (page.records, page.size, lambda rows: page.columns(None, rows)):
            with pytest.raises(TypeError):
                ask(rows)
    for rows in (range(4), range(-1, 2), (0, 3), (-1,), range(0, 2**70, 2**69), (2**70,)):
        for ask in (page.records, page.size, lambda rows: page.columns(None, rows)):
            with pytest.raises((IndexError, OverflowError)):
                ask(rows)
    assert len([*page.records(range(2, 3, sys.maxsize))]) == 1
    for number in (3, -1, 2**70):
        for ask in (page.record, page.sequence):
            with pytest.raises((IndexError, OverflowError)):
                ask(number)


# --- order -----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("places", "wrong"),
    [
        ([], None),
        ([(1, 5, 0)], None),
        ([(1, 5, 0), (1, 5, 1), (1, 6, 0), (2, 1, 0)], None),
        ([(1, 5, 0), (1, 5, 0)], 1),
        ([(1, 5, 0), (1, 6, 0), (1, 5, 9)], 2),
        ([(2, 5, 0), (1, 9, 9)], 1),
        ([(1, 5, 1), (1, 5, 0)], 1),
        ([(1, 5, 2**32 - 1), (2**32 - 1, 0, 0)], None),
    ],
)
def test_records_of_a_page_have_to_rise(
    codec: RecordCodec, places: list[tuple[int, int, int]], wrong: int | None
) -> None:
    made = [
        StreamRecord(RecordType.DELETE, (("id", number),), sequence_info=SequenceInfo(*place))
        for number, place in enumerate(places)
    ]
    page = codec.decode_page(body(*map(codec.encode_record, made))).records

    assert page == tuple(made), "a codec reads them all the same"
    if wrong is None:
        page.require_order()
    else:
        with pytest.raises(DisorderError, match=f"record {wrong} of a page of {len(places)} is at"):
            page.require_order()


@pytest.mark.parametrize("read", [TablestoreStreamApi._decoded, _ordered_page], ids=["stream", "source"])
def test_every_reader_of_shards_checks_the_order(read: Any) -> None:
    arguments: list[Any] = [body(ENTRIES[0], ENTRIES[0])]
    if read is TablestoreStreamApi._decoded:
        arguments.insert(0, TablestoreStreamApi(OTSClient("http://localhost", "k", "s", "i")))

    with pytest.raises(DisorderError):
        read(*arguments)
