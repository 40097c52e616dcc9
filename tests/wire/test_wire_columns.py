"""Pages by column: the same cells from the compiled codec and from its twin, none lost and none changed."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import RECORDS
from wire_pages import CODECS, TWIN, body, both, columns, compiled, names, records

from streamclient.errors import CodecError, ConfigurationError
from streamclient.records import (
    NATIVE,
    ColumnOperation,
    ColumnType,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.wire.record_decoding import RecordCodec, default_codec

KEY = (("id", "k"), ("n", 1))


def page_of(*cells: tuple[RecordColumn, ...], codec: RecordCodec = TWIN, **kinds: Any) -> Any:
    made = [
        StreamRecord(RecordType.UPDATE, KEY, some, SequenceInfo(0, number, 0), **kinds)
        for number, some in enumerate(cells)
    ]
    return codec.decode_page(body(*map(TWIN.encode_record, made)))


def batch_of(page: Any, schema: dict[str, ColumnType] | None = None) -> pa.RecordBatch:
    batch = pa.record_batch(page.arrow(schema))
    batch.validate(full=True)
    return batch


def put(name: str, value: Any, stamp: int = 5) -> RecordColumn:
    return RecordColumn(name, ColumnOperation.PUT, value, stamp)


def shown(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Operation, value and version of a column, per record."""
    cells = [row[name] for row in batch["columns"].to_pylist()]
    return [None if cell is None else tuple(cell.values()) for cell in cells]


def listed(batch: pa.RecordBatch, name: str = "other_cells") -> list[Any]:
    """Name, operation, version and value of the listed cells, per record."""

    def plain(cell: dict[str, Any]) -> tuple[Any, ...]:
        values = [value for field, value in cell.items() if field not in LIST_HEAD and value is not None]
        assert len(values) <= 1
        return cell["name"], cell["operation"], cell["timestamp_millis"], *values

    return [None if cells is None else [plain(cell) for cell in cells] for cells in batch[name].to_pylist()]


LIST_HEAD = ("name", "operation", "timestamp_millis")


@both
def test_examples_are_laid_out_as_documented(codec: RecordCodec) -> None:
    batch = batch_of(codec.decode_page(body(*(entry for entry, _ in RECORDS.values()))))
    first, second, third = (record for _, record in RECORDS.values())

    assert batch["record_type"].to_pylist() == ["PUT", "UPDATE", "DELETE"]
    assert [SequenceInfo(**place) for place in batch["sequence_info"].to_pylist()] == [
        record.sequence_info for record in (first, second, third)
    ]
    assert batch["primary_key"].to_pylist() == [{"pk": "a"}] * 3
    assert shown(batch, "c")[0] == ("PUT", 7, first.columns[0].timestamp_millis)
    assert shown(batch, "c")[1:] == [("DELETE_ONE_VERSION", None, second.columns[0].timestamp_millis), None]
    assert shown(batch, "d") == [None, ("DELETE_ALL_VERSION", None, None), None]
    assert listed(batch, "original_columns") == [None, [("c", "PUT", first.columns[0].timestamp_millis, 7)], None]
    assert listed(batch) == [[], [], []]


@both
def test_each_type_keeps_its_values(codec: RecordCodec) -> None:
    values = (-(2**63), 2**63 - 1, 0.1, -0.0, float("inf"), True, False, "", "愿 ä", b"", b"\x00\xff")
    cells = tuple(put(f"c{place}", value) for place, value in enumerate(values))
    found = batch_of(page_of(cells, codec=codec))["columns"].to_pylist()[0]

    assert [repr(cell["value"]) for cell in found.values()] == [*map(repr, values)]


@both
def test_the_newest_put_is_shown_and_the_others_stand_beside(codec: RecordCodec) -> None:
    gone = RecordColumn("a", ColumnOperation.DELETE_ONE_VERSION, None, 9)
    page = page_of(
        (put("a", 1, 5), put("a", 2, 7), gone, put("a", 3, 7), put("a", 4, 6)),
        (gone, RecordColumn("a", ColumnOperation.DELETE_ALL_VERSION)),
        (put("a", 5), put("b", 6)),
        codec=codec,
    )
    batch = batch_of(page)

    assert shown(batch, "a") == [("PUT", 2, 7), ("DELETE_ONE_VERSION", None, 9), ("PUT", 5, 5)]
    assert listed(batch) == [
        [("a", "PUT", 5, 1), ("a", "DELETE_ONE_VERSION", 9), ("a", "PUT", 7, 3), ("a", "PUT", 6, 4)],
        [("a", "DELETE_ALL_VERSION", None)],
        [],
    ]


@both
def test_a_value_of_another_type_is_kept_beside_its_column(codec: RecordCodec) -> None:
    page = page_of((put("a", 1),), (put("a", "one"),), (put("a", True),), (put("a", 1.0),), (put("a", 2),), codec=codec)
    batch = batch_of(page)

    assert shown(batch, "a") == [("PUT", value, 5) for value in (1, None, None, None, 2)]
    assert listed(batch) == [[], [("a", "PUT", 5, "one")], [("a", "PUT", 5, True)], [("a", "PUT", 5, 1.0)], []]


@both
def test_an_older_value_is_not_shown_for_one_that_does_not_fit(codec: RecordCodec) -> None:
    page = page_of((put("a", 1),), (put("a", 2, 5), put("a", "new", 6)), codec=codec)
    batch = batch_of(page)

    assert shown(batch, "a")[1] == ("PUT", None, 6)
    assert listed(batch)[1] == [("a", "PUT", 5, 2), ("a", "PUT", 6, "new")]


@both
def test_a_schema_says_which_columns_there_are(codec: RecordCodec) -> None:
    schema = {"missing": ColumnType.BINARY, "b": ColumnType.DOUBLE, "a": ColumnType.INTEGER}
    batch = batch_of(page_of((put("a", 1), put("b", 2), put("c", 3)), codec=codec), schema)

    assert [*batch["columns"].to_pylist()[0]] == ["missing", "b", "a"]
    assert shown(batch, "missing") == [None]
    assert shown(batch, "b") == [("PUT", None, 5)]
    assert shown(batch, "a") == [("PUT", 1, 5)]
    assert listed(batch) == [[("b", "PUT", 5, 2), ("c", "PUT", 5, 3)]]


@both
def test_a_schema_gives_each_page_the_same_layout(codec: RecordCodec) -> None:
    schema = {"a": ColumnType.STRING}
    layouts = [
        batch_of(page, schema).schema for page in (page_of((put("b", 1),), codec=codec), page_of((), codec=codec))
    ]

    assert layouts[0] == layouts[1]


@both
@pytest.mark.parametrize("schema", [{"a\0b": ColumnType.STRING}, {"a": "STRING"}])
def test_a_schema_that_arrow_cannot_hold_is_refused(codec: RecordCodec, schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected names without NUL"):
        page_of((put("a", 1),), codec=codec).arrow(schema)
    with pytest.raises(ConfigurationError, match="expected names without NUL"):
        page_of((put("a", 1),), codec=codec).values(schema)


@both
def test_a_column_whose_name_arrow_cannot_carry_is_listed(codec: RecordCodec) -> None:
    batch = batch_of(page_of((put("a\0b", 1), put("c", 2)), codec=codec))

    assert [*batch["columns"].to_pylist()[0]] == ["c"]
    assert listed(batch) == [[("a\0b", "PUT", 5, 1)]]


@both
def test_an_empty_page_has_no_columns_and_no_rows(codec: RecordCodec) -> None:
    batch = batch_of(codec.decode_page(b""))

    assert batch.num_rows == 0
    assert batch.schema.names == [
        "record_type", "sequence_info", "primary_key", "columns", "other_cells", "original_columns"
    ]  # fmt: skip


# --- values alone -----------------------------------------------------------------------------------------------------


@both
def test_values_alone_are_laid_out_as_documented(codec: RecordCodec) -> None:
    gone = RecordColumn("a", ColumnOperation.DELETE_ALL_VERSION)
    page = page_of((put("a", 1), put("b", "x")), (gone,), (gone, put("a", 2), put("c", b"y")), codec=codec)
    schema = {"missing": ColumnType.DOUBLE, "a": ColumnType.INTEGER, "n": ColumnType.INTEGER}
    batch = pa.record_batch(page.values(schema))
    batch.validate(full=True)

    assert batch.schema.names == ["record_type", "sequence_info", "columns"]
    assert batch["record_type"].to_pylist() == ["UPDATE"] * 3
    assert batch["sequence_info"] == batch_of(page)["sequence_info"]
    assert batch["columns"].to_pylist() == [{"missing": None, "a": value, "n": 1} for value in (1, None, 2)]
    assert pa.record_batch(page.records[::2].values(schema))["columns"].to_pylist()[1]["a"] == 2
    assert pa.record_batch(codec.decode_page(b"").values(schema)).num_rows == 0


MORE_TO_SAY = {
    "another type": {"a": ColumnType.STRING},
    "two values": {"b": ColumnType.INTEGER},
    "a key of another type": {"id": ColumnType.BINARY},
    "a key and a column": {"n": ColumnType.INTEGER},
}


@both
@pytest.mark.parametrize("schema", MORE_TO_SAY.values(), ids=MORE_TO_SAY)
def test_values_that_do_not_say_all_are_not_given(codec: RecordCodec, schema: Any) -> None:
    page = page_of((put("c", 1),), (put("a", 1), put("b", 1, 5), put("b", 2, 6), put("n", 1)), codec=codec)

    assert page.values(schema) is None
    assert page.records[:1].values({"c": ColumnType.INTEGER}) is not None
    assert page.values({"c": ColumnType.INTEGER}) is not None, "what else there is does not matter"


BAD_KEYS = {
    "other names": ((("a", 1),), (("b", 1),)),
    "other types": ((("a", 1),), (("a", "1"),)),
    "fewer": ((("a", 1), ("b", 1)), (("a", 1),)),
    "twice": ((("a", 1), ("a", 1)), (("a", 1), ("a", 1))),
    "NUL": ((("a\0", 1),), (("a\0", 1),)),
}


@both
@pytest.mark.parametrize("keys", BAD_KEYS.values(), ids=BAD_KEYS)
def test_keys_that_no_one_table_has_are_refused(codec: RecordCodec, keys: Any) -> None:
    made = [StreamRecord(RecordType.PUT, key, (put("c", 1),)) for key in keys]
    page = codec.decode_page(body(*map(TWIN.encode_record, made)))

    with pytest.raises(CodecError, match="key"):
        page.arrow()
    assert page.values({}) is None


def plain(batch: pa.RecordBatch) -> Any:
    return batch.schema, repr(batch.to_pylist())


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    st.lists(records, max_size=6),
    st.none() | st.dictionaries(names.filter(lambda name: "\0" not in name), st.sampled_from(ColumnType), max_size=4),
)
def test_any_page_has_the_same_columns_from_both(
    page: list[StreamRecord], schema: dict[str, ColumnType] | None
) -> None:
    """One key, so that the page is of one table; few names, so that columns meet again with other types."""
    data = body(*(TWIN.encode_record(evolve(record, primary_key=KEY)) for record in page))
    expected = batch_of(TWIN.decode_page(data), schema)

    for codec in CODECS:
        assert plain(batch_of(codec.decode_page(data), schema)) == plain(expected)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.lists(columns(st.sampled_from("abc")), max_size=3).map(tuple), max_size=6),
    st.dictionaries(st.sampled_from(["a", "b", "d", "id"]), st.sampled_from(ColumnType), max_size=3),
)
def test_values_alone_are_those_of_the_columns_or_none(
    page: list[tuple[RecordColumn, ...]], schema: dict[str, ColumnType]
) -> None:
    """The same from both codecs; and given exactly if every record puts at most one value of the right type."""
    made = [page_of(*page, codec=codec).values(schema) for codec in CODECS]
    puts = [[(one.name, one.value) for one in cells if one.operation is ColumnOperation.PUT] for cells in page]
    wanted = [[(name, value) for name, value in (*KEY, *some) if name in schema] for some in puts]
    says_all = all(
        len(dict(some)) == len(some) and all(PYTHON_TYPES[schema[name]] is type(value) for name, value in some)
        for some in wanted
    )

    assert [one is not None for one in made] == [says_all] * len(CODECS)
    if says_all:
        batches = [pa.record_batch(one) for one in made]
        assert [plain(one) for one in batches] == [plain(batches[0])] * len(CODECS)
        expected = [{name: dict(some).get(name) for name in schema} for some in wanted]
        assert repr(batches[0]["columns"].to_pylist()) == repr(expected)
        assert batches[0]["sequence_info"] == batch_of(page_of(*page))["sequence_info"]


PYTHON_TYPES = {
    ColumnType.INTEGER: int,
    ColumnType.DOUBLE: float,
    ColumnType.BOOLEAN: bool,
    ColumnType.STRING: str,
    ColumnType.BINARY: bytes,
}


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(columns(st.sampled_from("abc")), max_size=6).map(tuple), max_size=6))
def test_no_cell_is_lost(page: list[tuple[RecordColumn, ...]]) -> None:
    """What is shown with its value, and what is listed, are together exactly the cells of the record."""
    for codec in CODECS:
        batch = batch_of(page_of(*page, codec=codec))
        assert plain(batch) == plain(batch_of(page_of(*page)))
        for number, cells in enumerate(page):
            found = [
                (name, *(part for place, part in enumerate(cell.values()) if place != 1 or part is not None))
                for name, cell in batch["columns"].to_pylist()[number].items()
                if cell is not None and (cell["value"] is not None or cell["operation"] != "PUT")
            ]
            seen = [(name, operation, stamp, *value) for name, operation, *value, stamp in found]
            expected = [
                (one.name, one.operation.value, one.timestamp_millis, *([] if one.value is None else [one.value]))
                for one in cells
            ]
            assert sorted(map(repr, seen + listed(batch)[number])) == sorted(map(repr, expected))


@compiled
def test_the_capsules_are_used_up_in_any_order() -> None:
    """A consumer may take one capsule, both or none, more than once, and outlive the page."""
    made = page_of((put("a", 1), put("b", "x")), (put("a", 2),), codec=default_codec()).arrow()
    schema, array = made.__arrow_c_array__()
    made.__arrow_c_schema__()
    batches = [pa.record_batch(made) for _ in range(3)]
    del schema, array, made
    gc.collect()

    assert shown(batches[0], "a") == [("PUT", 1, 5), ("PUT", 2, 5)]
    column = batches[1]["columns"].field("b").field("value")
    del batches
    gc.collect()
    assert column.to_pylist() == ["x", None]


@compiled
def test_columns_leak_nothing() -> None:
    page = page_of(*[(put("a", 1), put("b", "x" * 50))] * 200, codec=default_codec())
    text = "x" * 20
    schema = {text: ColumnType.STRING, "b": ColumnType.STRING}

    def once() -> None:
        page.arrow().__arrow_c_array__()
        pa.record_batch(page.arrow(schema))
        pa.record_batch(page.values(schema))
        assert page.values({"b": ColumnType.INTEGER}) is None

    once()
    gc.collect()
    before = sys.getrefcount(text), pa.total_allocated_bytes()
    for _ in range(50):
        once()
    gc.collect()

    assert (sys.getrefcount(text), pa.total_allocated_bytes()) == before


@compiled
def test_a_schema_of_another_form_is_refused_by_the_compiled_part() -> None:
    assert NATIVE is not None
    page = NATIVE.Codec(tuple(RecordType), tuple(ColumnOperation)).decode(b"", False)
    for schema in ([], {}, ((1, 2),), (("a", "b"),), (("a",),), ("ab",), (("a", 200),), (("a", -1),), (("a", 4),)):
        with pytest.raises(TypeError):
            page.columns(schema, range(0))
        with pytest.raises(TypeError):
            page.values(schema, range(0))
    with pytest.raises(TypeError):
        page.values(None, range(0))


@compiled
def test_threads_make_columns_and_records_of_one_page_and_of_others() -> None:
    codec = default_codec()
    pages = [[(put(f"{name}{number % 7}", number),) for number in range(400)] for name in "abcd"]
    expected = [plain(batch_of(page_of(*cells))) for cells in pages]
    shared = page_of(*pages[0], codec=codec)
    barrier = threading.Barrier(4)

    def run(number: int) -> bool:
        barrier.wait()
        return all(
            plain(batch_of(page_of(*pages[number], codec=codec))) == expected[number]
            and plain(batch_of(shared)) == expected[0]
            and len(shared.records) == 400
            for _ in range(5)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))
