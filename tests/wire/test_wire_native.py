"""The compiled codec and its twin in Python: equal in what they read, in what they refuse, and in what is seen."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import ORIGIN_RECORD, PUT_RECORD, RECORDS
from wire_pages import EXAMPLES, TWIN, body, compiled, flipped_bits, records, tunnel_body

from streamclient.errors import CodecError
from streamclient.records import NATIVE, ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire import schema
from streamclient.wire.page_parts import PageSummary, TunnelPage
from streamclient.wire.plainbuffer import Cell, Row, encode_row
from streamclient.wire.record_decoding import NativeCodec, RecordCodec, default_codec

pytestmark = compiled


def native() -> Any:
    """A compiled codec without the twin behind it: what it declines is ``None``."""
    assert NATIVE is not None
    return NATIVE.Codec(tuple(RecordType), tuple(ColumnOperation))


def outcome(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        page = decode(data)
    except CodecError as error:
        return str(error)
    iterator = getattr(page, "next_shard_iterator", None)
    return page.records, page.may_more_record, iterator, repr(page.records), page.records.writes()


def summary(codec: RecordCodec, data: bytes) -> PageSummary | str:
    try:
        return codec.summarize_page(data)
    except CodecError as error:
        return str(error)


def assert_same(data: bytes) -> None:
    """Both read the same, or neither reads anything; what is merely unusual must not be declined."""
    assert outcome(NativeCodec(NATIVE).decode_page, data) == outcome(TWIN.decode_page, data)
    assert summary(NativeCodec(NATIVE), data) == summary(TWIN, data)
    is_refused = isinstance(outcome(TWIN.decode_page, data), str)
    assert (native().decode(data, False) is None) == is_refused
    assert (native().summarize(data) is None) == isinstance(summary(TWIN, data), str)


def test_this_codec_is_the_default_one() -> None:
    assert isinstance(default_codec(), NativeCodec)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.lists(records, max_size=8), st.none() | st.text(max_size=5), st.none() | st.booleans())
def test_any_page_is_read_as_the_twin_reads_it(
    page: list[StreamRecord], iterator: str | None, hint: bool | None
) -> None:
    fields = {"next_shard_iterator": iterator, "may_more_record": hint}
    data = body(*map(TWIN.encode_record, page), **{name: value for name, value in fields.items() if value is not None})

    assert_same(data)
    assert NativeCodec(NATIVE).decode_page(data).records == tuple(page)
    last = page[-1].sequence_info if page else None
    assert summary(NativeCodec(NATIVE), data) == PageSummary(len(page), last, iterator or None, hint)


@pytest.mark.slow
def test_every_truncation_and_every_flipped_bit_is_judged_as_the_twin_judges_it() -> None:
    codec, plain = NativeCodec(NATIVE), native()
    damaged = [EXAMPLES[:size] for size in range(len(EXAMPLES))] + list(flipped_bits(EXAMPLES))
    declined = 0
    for data in damaged:
        expected = outcome(TWIN.decode_page, data)
        assert outcome(codec.decode_page, data) == expected
        assert summary(codec, data) == summary(TWIN, data)
        if plain.decode(data, False) is None:
            declined += not isinstance(expected, str)
        else:
            assert not isinstance(expected, str)

    assert declined < 10, "only outer fields whose type was changed are left to the twin"


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(
    st.lists(records, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_damaged_pages_are_judged_as_the_twin_judges_them(
    page: list[StreamRecord], damages: list[tuple[int, bytes, int]]
) -> None:
    data = body(*map(TWIN.encode_record, page))
    for position, patch, removed in damages:
        start = position % (len(data) + 1)
        data = data[:start] + patch + data[start + removed :]

    assert outcome(NativeCodec(NATIVE).decode_page, data) == outcome(TWIN.decode_page, data)
    assert summary(NativeCodec(NATIVE), data) == summary(TWIN, data)


def test_a_summary_looks_into_the_last_record_only() -> None:
    """Damage of any other one is for whoever decodes the page; its place in the message must be sound all the same."""
    first, last = (
        TWIN.encode_record(StreamRecord(RecordType.PUT, (("k", n),), (), SequenceInfo(0, n, 0))) for n in (1, 2)
    )
    broken = (first[0], first[1][:-1] + bytes([first[1][-1] ^ 1]), None)
    for codec in (NativeCodec(NATIVE), TWIN):
        assert summary(codec, body(broken, last)) == PageSummary(2, SequenceInfo(0, 2, 0), None, None)
        assert "record 1 of a page of 2: at byte 58: found row checksum" in str(summary(codec, body(first, broken)))
        assert summary(codec, body()) == PageSummary(0, None, None, None)
    for entry in (b"", b"\x08\x01", b"\x12\x01x", b"\x08\x09\x12\x01x", b"\x08\x01\x12\x00", b"\x08\x01\x12"):
        data = sized(0x0A, entry) + body(last)
        assert summary(NativeCodec(NATIVE), data) == summary(TWIN, data)
        assert native().summarize(data) is None


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_judged_as_the_twin_judges_them(data: bytes, is_entry: bool) -> None:
    if is_entry:
        data = body((1, b"\x75\x00\x00\x00\x01" + data, None))
    assert outcome(NativeCodec(NATIVE).decode_page, data) == outcome(TWIN.decode_page, data)


TEXTS = [
    *(bytes([first, second, 0x80, 0x80]) for first in range(0xC0, 0x100) for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F)),
    *(bytes([first, second, 0x80]) for first in (0xE0, 0xED, 0xEF) for second in (0x80, 0x9F, 0xA0, 0xBF, 0xC0)),
    *(b"x" * before + tail for before in range(18) for tail in (b"\x80", "ä".encode(), "愿".encode(), b"\xf0\x9f\x98")),
]


def test_text_is_judged_as_the_decoder_of_python_judges_it() -> None:
    """The edges of UTF-8: shortest forms, surrogates, the last code point, words of eight bytes."""
    plain = native()
    for text in TEXTS:
        row = Row((("k", 1),), (Cell("c", text, timestamp_millis=1),), False, SequenceInfo(0, 1, 0))
        # The checksums cover the type, so the row is written as text once with bytes of the same length in place.
        data = as_text_cell(encode_row(row), text)
        try:
            text.decode("utf-8")
            expected = True
        except UnicodeDecodeError:
            expected = False
        assert (plain.decode(body((1, data, None)), False) is not None) is expected, text


def as_text_cell(frame: bytes, content: bytes) -> bytes:
    """The row with its one cell of bytes turned into one of text; checksums made anew."""
    from streamclient.wire.crc8 import crc8

    begin = frame.index(b"\x04\x01\x00\x00\x00c")
    payload = b"\x03" + len(content).to_bytes(4, "little") + content
    stamp = (1).to_bytes(8, "little")
    cell_crc = crc8(stamp, crc8(payload, crc8(b"c")))
    key_crc = frame[frame.index(b"\x0a") + 1]
    head = frame[: begin + 6] + b"\x05" + len(payload).to_bytes(4, "little") + payload + b"\x07" + stamp
    extension = frame[frame.rindex(b"\x0b\x18\x00\x00\x00") : -2]
    row_crc = crc8(bytes([key_crc, cell_crc, 0]))
    return head + bytes([0x0A, cell_crc]) + extension + bytes([0x09, row_crc])


PUT_ENTRY = schema.StreamRecord(action_type=1, record=PUT_RECORD).SerializeToString()


def sized(tag: int, data: bytes) -> bytes:
    return bytes([tag, len(data)]) + data


OUTER = {
    "unknown varint": b"\x78\x05" + sized(0x0A, PUT_ENTRY),
    "unknown bytes": sized(0x0A, PUT_ENTRY) + sized(0x7A, b"abc"),
    "unknown fixed": b"\x79" + b"12345678" + b"\x7d1234",
    "unknown inside an entry": sized(0x0A, PUT_ENTRY + sized(0x7A, b"abc")),
    "iterator twice": sized(0x12, b"a") + sized(0x12, b"b"),
    "iterator twice, the first no text": sized(0x12, b"\xff") + sized(0x12, b"b"),
    "iterator no text": sized(0x12, b"\xff"),
    "record twice": sized(0x0A, b"\x08\x01" + sized(0x12, b"no row") + sized(0x12, PUT_RECORD)),
    "action twice": sized(0x0A, b"\x08\x03" + PUT_ENTRY),
    "no action": sized(0x0A, sized(0x12, PUT_RECORD)),
    "no record": sized(0x0A, b"\x08\x01"),
    "consumed": sized(0x1A, sized(0x0A, b"\x08\x01\x10\x02") + sized(0x12, b"\x08\x01")),
    "consumed without unit": sized(0x1A, sized(0x12, b"\x08\x01")),
    "consumed broken": sized(0x1A, sized(0x0A, b"\x08")),
    "long hint": b"\x20\x80\x01",
    "hint overlong": b"\x20" + b"\x80" * 9 + b"\x00",
    "field 0": b"\x00\x01",
    "group end": b"\x7c",
    "truncated length": b"\x0a\x80",
    "length beyond": b"\x0a\x7f",
    "action too large": sized(0x0A, b"\x08\x81\x80\x80\x80\x10" + sized(0x12, PUT_RECORD)),
    "origin empty": sized(0x0A, PUT_ENTRY + sized(0x1A, b"")),
    "origin": sized(0x0A, PUT_ENTRY) + b"\x0a\xdb\x01" + PUT_ENTRY + sized(0x1A, ORIGIN_RECORD),
}


@pytest.mark.parametrize("data", OUTER.values(), ids=OUTER)
def test_the_outer_message_is_read_as_protobuf_reads_it(data: bytes) -> None:
    assert outcome(NativeCodec(NATIVE).decode_page, data) == outcome(TWIN.decode_page, data)


UNUSUAL = {
    "unknown group": b"\x7b\x08\x01\x7c",
    "known field of another type": sized(0x22, b"x"),
    "negative unknown number": b"\x78" + b"\xff" * 9 + b"\x01",
}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_right_but_unusual_is_left_to_the_twin(data: bytes) -> None:
    data = sized(0x0A, PUT_ENTRY) + data

    assert native().decode(data, False) is None
    assert NativeCodec(NATIVE).decode_page(data).records == TWIN.decode_page(data).records != ()


def test_more_names_than_a_page_may_have_are_left_to_the_twin() -> None:
    cells = [tuple(Cell(f"{row}.{place}", 1, timestamp_millis=1) for place in range(1024)) for row in range(64)]
    rows = [Row((("k", 1),), some, False, SequenceInfo(0, 1, row)) for row, some in enumerate(cells)]
    data = body(*((1, encode_row(row), None) for row in rows))

    assert native().decode(data, False) is None
    assert len(NativeCodec(NATIVE).decode_page(data).records) == 64


# --- tunnels ----------------------------------------------------------------------------------------------------------


def test_pages_of_tunnels_are_read_as_the_twin_reads_them() -> None:
    codec = NativeCodec(NATIVE)
    full_data = encode_row(Row((("k", 1),), (Cell("c", 1, timestamp_millis=1),)))
    pages = [
        tunnel_body(*(entry for entry, _ in RECORDS.values()), may_more_record=False),
        tunnel_body((1, full_data, None)),
        tunnel_body(),
    ]

    def seen(page: TunnelPage) -> Any:
        return page.records, page.next_token, page.may_more_record, page.body_bytes

    for data in pages:
        assert native().decode(data, True) is not None
        assert seen(codec.decode_tunnel_page(data)) == seen(TWIN.decode_tunnel_page(data))
    for data in (*flipped_bits(pages[1]), b""):
        assert outcome(codec.decode_tunnel_page, data) == outcome(TWIN.decode_tunnel_page, data)


def test_records_are_writes_of_the_same_rows_in_any_part_of_a_page() -> None:
    """A deletion that came without its marker gets it, an update without cells does nothing, sequences are left out."""
    key, place = (("id", 7),), SequenceInfo(3, 17, 2)
    put = StreamRecord(RecordType.PUT, key, (RecordColumn("a", ColumnOperation.PUT, "x", 5),), place)
    no_change = StreamRecord(RecordType.UPDATE, key, (), place)
    unmarked = (3, encode_row(Row(key, sequence=place)), None)
    page = NativeCodec(NATIVE).decode_page(body(TWIN.encode_record(put), TWIN.encode_record(no_change), unmarked))

    writes = page.records.writes()

    rows = [encode_row(Row(key, (Cell("a", "x", timestamp_millis=5),))), b"", encode_row(Row(key, delete_marker=True))]
    assert [row for _, _, row in writes] == rows
    assert [kind for kind, _, _ in writes] == [RecordType.PUT, RecordType.UPDATE, RecordType.DELETE]
    assert len({identity for _, identity, _ in writes}) == 1
    assert page.records[1:].writes() == writes[1:]
    assert page.records.select([2, 0]).writes() == [writes[2], writes[0]]
    assert TWIN.decode_page(body(TWIN.encode_record(put), unmarked)).records.writes() == [writes[0], writes[2]]


def test_records_outlive_their_page_and_codec() -> None:
    records = NativeCodec(NATIVE).decode_page(EXAMPLES).records
    gc.collect()
    assert records == tuple(record for _, record in RECORDS.values())


# --- memory and threads -----------------------------------------------------------------------------------------------


def many(count: int, seed: int = 1) -> bytes:
    """A page of all kinds of records, in any order of columns."""
    dice = random.Random(seed)
    cells = [Cell(f"c{place}", value, timestamp_millis=5) for place, value in enumerate((1, 2.5, True, "ä", b"b", "c"))]
    rows = [
        encode_row(
            Row(
                (("key", f"k{number}"), ("n", number)),
                tuple(
                    attrs.evolve(cell, timestamp_millis=dice.choice((5, number)))
                    for cell in dice.sample(cells, dice.randint(1, 6))
                ),
                False,
                SequenceInfo(0, number, 0),
            )
        )
        for number in range(count)
    ]
    return body(*((2, row, ORIGIN_LIKE) for row in rows), next_shard_iterator="it")


ORIGIN_LIKE = encode_row(Row((), (Cell("c0", 7, timestamp_millis=1), Cell("old", "x", timestamp_millis=2))))


def look(data: bytes, codec: NativeCodec) -> None:
    page = codec.decode_page(data)
    assert page.records.writes()
    for record in page.records:
        assert record.columns
        assert record.primary_key
        assert record.original_columns
        assert record.sequence_info


def test_decoding_leaks_nothing() -> None:
    data = many(100)
    broken = data[:-1] + b"\xff"
    codec = NativeCodec(NATIVE)

    def once() -> None:
        look(data, codec)
        look(data, NativeCodec(NATIVE))
        native().decode(broken, False)
        native().summarize(broken)
        codec.summarize_page(data)
        codec.decode_page(data)

    for _ in range(3):
        once()
    gc.collect()
    watched = [data, *RecordType, *ColumnOperation, StreamRecord, RecordColumn, SequenceInfo]
    before = [sys.getrefcount(one) for one in watched]
    tracemalloc.start()
    try:
        once()
        gc.collect()
        allocated = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            once()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - allocated
    finally:
        tracemalloc.stop()

    assert [sys.getrefcount(one) for one in watched] == before
    assert grown < 20_000, "less than a thousandth of what was decoded"


def output_of(program: str, **variables: str) -> str:
    command, environment = [sys.executable, "-c", program], {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_of_the_system_does_not_grow_either() -> None:
    """What C allocates itself is not traced: the process is watched from outside its allocator."""
    program = (
        "import resource, sys\n"
        "from test_wire_native import NATIVE, NativeCodec, look, many\n"
        "codec, data = NativeCodec(NATIVE), many(200)\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "def run(count):\n"
        "    for _ in range(count):\n"
        "        look(data, codec); look(data, NativeCodec(NATIVE)); codec._codec.decode(data[:-1], False)\n"
        "        codec.summarize_page(data); codec._codec.summarize(data[:-1])\n"
        "run(60); first = peak(); run(240); print(peak() - first)\n"
    )
    printed = output_of(program, PYTHONPATH=":".join(path for path in sys.path if path))

    assert int(printed) < 2_000, "kilobytes; a leak of one index per page would be far more"


def test_many_tables_do_not_fill_the_codec() -> None:
    """A codec that met too many names begins anew, while records of before keep theirs."""
    codec = NativeCodec(NATIVE)
    kept = []
    for table in range(12):
        cells = tuple(Cell(f"t{table}c{place}", place, timestamp_millis=1) for place in range(1000))
        data = body((1, encode_row(Row((("k", 1),), cells, False, SequenceInfo(0, 1, 0))), None))
        kept.append((codec.decode_page(data).records, TWIN.decode_page(data).records))

    assert all(one == other for one, other in kept)


def test_threads_share_a_codec() -> None:
    codec = NativeCodec(NATIVE)
    pages = [many(300, seed) for seed in range(8)]
    expected = [TWIN.decode_page(data).records for data in pages]

    def run(seed: int) -> bool:
        order = random.Random(seed).choices(range(len(pages)), k=20)
        return all(codec.decode_page(pages[number]).records == expected[number] for number in order)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_a_switch_turns_the_compiled_codec_off() -> None:
    program = (
        "from streamclient.wire.record_decoding import NativeCodec, default_codec\n"
        "from streamclient.records import NATIVE, StreamRecord\n"
        "print(NATIVE, isinstance(default_codec(), NativeCodec))\n"
    )

    assert output_of(program, STREAMCLIENT_PURE_PYTHON="1").split() == ["None", "False"]
