"""Records as rows, their digest, their names and their types: nothing is lost, nothing is confused."""

from __future__ import annotations

import math
import random
import string
from hashlib import sha256
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from strategies import BATCHES, VALUES, records

from streamclient.destinations.rows.change_rows import ADDED, RESERVED, change_rows, records_of
from streamclient.destinations.rows.column_names import marked, original_name, stored_names
from streamclient.destinations.rows.column_types import shown, text_of, type_of, value_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, ColumnType, RecordColumn, RecordType, SequenceInfo, StreamRecord


def rows_of(batch: list[StreamRecord], columns: pa.Schema | None = None) -> pa.Table:
    return change_rows(batch, shard="s", number=1, columns=columns)


# --- rows and back ----------------------------------------------------------------------------------------------------


@given(BATCHES)
def test_the_digest_of_the_rows_is_that_of_the_records(batch: list[StreamRecord]) -> None:
    assert records_digest(records_of(rows_of(batch))) == records_digest(batch)


@given(BATCHES, BATCHES)
def test_the_digest_does_not_depend_on_the_types_that_columns_have(
    batch: list[StreamRecord], earlier: list[StreamRecord]
) -> None:
    """Columns that others brought before have other types, and values stand beside them."""
    later = rows_of(batch, rows_of(earlier).schema)

    assert records_digest(records_of(later)) == records_digest(batch)


@given(BATCHES, st.sampled_from([pa.date32(), pa.int32(), pa.list_(pa.string())]), st.data())
def test_the_digest_does_not_depend_on_columns_of_other_programs(
    batch: list[StreamRecord], kind: pa.DataType, data: st.DataObject
) -> None:
    """Values of a source column that is called like one stand beside the columns, as a cast would change them."""
    names = sorted({cell.name for one in batch for cell in one.columns} - {"id", *RESERVED} | {"theirs"})
    taken = data.draw(st.sampled_from(names))
    rows = rows_of(batch, pa.schema([(taken, kind)]))

    assert taken not in rows.column_names
    assert records_digest(records_of(rows.append_column(taken, pa.nulls(len(rows), kind)))) == records_digest(batch)


@given(BATCHES, BATCHES)
def test_the_digest_does_not_depend_on_columns_that_came_later(
    batch: list[StreamRecord], later: list[StreamRecord]
) -> None:
    rows = rows_of(batch)
    added = rows_of(later, rows.schema)
    whole = pa.concat_tables([rows, added], promote_options="default").slice(0, len(batch))

    assert records_digest(records_of(whole)) == records_digest(batch)


@given(BATCHES, st.randoms())
def test_the_digest_depends_neither_on_the_order_of_rows_nor_of_cells(
    batch: list[StreamRecord], dice: random.Random
) -> None:
    mixed = [evolve(one, columns=tuple(dice.sample(one.columns, len(one.columns)))) for one in batch]
    dice.shuffle(mixed)

    assert records_digest(mixed) == records_digest(batch)


def content(one: StreamRecord) -> Any:
    """What a record says, whatever the order of its cells. Deleting all versions twice is deleting them once."""

    def plain(cell: RecordColumn) -> tuple[Any, ...]:
        value = None if cell.value is None else (type_of(cell.value), text_of(cell.value))
        return (cell.name, cell.operation, value, cell.timestamp_millis)

    cells = sorted((plain(cell) for cell in one.columns), key=repr)
    all_versions = ColumnOperation.DELETE_ALL_VERSION
    kept = [c for n, c in enumerate(cells) if c[1] is not all_versions or c not in cells[:n]]
    original = None if one.original_columns is None else sorted((plain(c) for c in one.original_columns), key=repr)
    return (one.record_type, one.primary_key, kept, one.sequence_info, original)


@given(BATCHES, BATCHES)
def test_digests_are_equal_only_for_equal_records(one: list[StreamRecord], two: list[StreamRecord]) -> None:
    same = sorted(map(content, one), key=repr) == sorted(map(content, two), key=repr)

    assert (records_digest(one) == records_digest(two)) == same


@given(records(), records())
def test_any_change_of_a_record_changes_the_digest(one: StreamRecord, two: StreamRecord) -> None:
    assert (records_digest([one]) == records_digest([two])) == (content(one) == content(two))


@given(BATCHES)
def test_rows_give_back_the_records(batch: list[StreamRecord]) -> None:
    found = records_of(rows_of(batch))

    assert sorted(map(content, found), key=repr) == sorted(map(content, batch), key=repr)


@pytest.mark.parametrize("operation", [ColumnOperation.DELETE_ALL_VERSION, ColumnOperation.DELETE_ONE_VERSION])
def test_a_record_that_deletes_a_column_and_puts_it_then_still_puts_it(operation: ColumnOperation) -> None:
    cells = (RecordColumn("a", operation, None, 5), RecordColumn("a", ColumnOperation.PUT, 2, 5))
    record = StreamRecord(RecordType.UPDATE, (("id", 1),), cells, SequenceInfo(1, 5, 0))
    (found,) = records_of(rows_of([record]))

    assert record.apply_to({"id": 1, "a": 1}) == found.apply_to({"id": 1, "a": 1}) == {"id": 1, "a": 2}


def test_the_digest_is_what_the_page_says_it_is() -> None:
    """Pinned: a digest that changes makes every stored commit look damaged."""
    cell = RecordColumn("amount", ColumnOperation.PUT, 12.5, 1_700_000_000_000)
    record = StreamRecord(RecordType.PUT, (("id", 1),), (cell,), SequenceInfo(1, 5, 0))

    sections = [
        (b'["key","id","INTEGER"]', pack("<qq", 0, 1)),
        (b'["operation"]', b"P"),
        (b'["sequence"]', pack("<qqq", 1, 5, 0)),
        (b'["value","amount","DOUBLE"]', pack("<qd", 0, 12.5)),
        (b'["version","amount"]', pack("<qq", 0, 1_700_000_000_000)),
    ]
    text = b"streamclient-records-1\n" + pack("<q", 1)
    for name, body in sections:
        text += pack("<q", len(name)) + name + pack("<q", len(body)) + body

    assert records_digest([record]) == sha256(text).hexdigest()
    assert records_digest([]) == "32dd6e6c60f0b73d2c38415f303c0edb4fadd24ddb15f327013a9bd6dfc80c02"


def test_rows_of_something_else_are_an_error_that_says_so() -> None:
    rows = rows_of([StreamRecord(RecordType.PUT, (("id", 1),), (), SequenceInfo(1, 5, 0))])
    with pytest.raises(CodecError, match="not made from changes"):
        records_of(rows.set_column(rows.column_names.index("_operation"), "_operation", pa.array(["MERGE"])))


def test_declared_columns_are_there_from_the_first_row_with_their_types() -> None:
    record = StreamRecord(RecordType.DELETE, (("id", 1),), (), SequenceInfo(1, 5, 0))
    rows = change_rows([record], shard="s", number=3, declared={"id": ColumnType.INTEGER, "amount": ColumnType.DOUBLE})

    assert rows.schema.names == ["id", "amount", *ADDED]
    assert rows.schema.field("amount").type == pa.float64()


# --- values -----------------------------------------------------------------------------------------------------------


@given(VALUES)
def test_a_value_is_read_back_from_its_type_and_text(value: Any) -> None:
    found = value_of(type_of(value).value, text_of(value))

    assert type(found) is type(value)
    assert repr(found) == repr(value)


@given(VALUES, VALUES)
def test_two_values_have_one_text_only_if_they_have_one_type(one: Any, two: Any) -> None:
    equal = (type_of(one), text_of(one)) == (type_of(two), text_of(two))

    assert equal == (type(one) is type(two) and (repr(one) == repr(two)))


@given(VALUES, st.sampled_from(ColumnType))
def test_a_column_shows_a_value_exactly_or_not_at_all(value: Any, column: ColumnType) -> None:
    found = shown(value, column)

    assert found is None or found == value or math.isnan(found)
    assert found is None or type_of(found) is column


@pytest.mark.parametrize(("kind", "text"), [("INTEGER", "1.5"), ("BOOLEAN", "yes"), ("BINARY", "?"), ("DATE", "1")])
def test_a_text_of_another_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(CodecError, match=kind):
        value_of(kind, text)


# --- names ------------------------------------------------------------------------------------------------------------

LETTERS = st.text(st.sampled_from("aAbB_kK\u212aßẞ公"), min_size=1, max_size=4)


@given(st.lists(LETTERS, unique=True), st.lists(LETTERS, unique=True))
def test_stored_names_differ_in_any_case_and_lead_back(first: list[str], second: list[str]) -> None:
    """Also for names that come later, beside those that are there, and for names that look like marked ones."""
    one = stored_names(first, (), RESERVED)
    two = stored_names([*second, *map(marked, first)], list(one.values()), RESERVED)
    everything = {*one.values(), *two.values()}

    assert len({name.lower() for name in everything}) == len(everything)
    assert all(original_name(stored) == name for name, stored in {**one, **two}.items())
    assert all(two[name] == stored for name, stored in one.items() if name in two)


def test_names_stay_as_they_are_where_they_can() -> None:
    names = ["id", "Amount", "amount", "_operation", "公司"]

    assert stored_names(names, ["amount"], RESERVED) == {
        "id": "id",
        "Amount": marked("Amount"),
        "amount": "amount",
        "_operation": marked("_operation"),
        "公司": "公司",
    }


def test_the_order_in_which_names_come_does_not_matter() -> None:
    names = [letter + other for letter in "aA" for other in string.ascii_letters[:6]]

    assert stored_names(names, ()) == stored_names(reversed(names), ())
