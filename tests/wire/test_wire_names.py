"""Values by name of records as a page holds them: those of the same records made by hand, and those of folding."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import RECORDS
from wire_pages import TWIN, body, both, columns, deletions, puts, records_of

from streamclient.destinations.folding.row_changes import RowCells, TableRule
from streamclient.records import RecordType, StreamRecord
from streamclient.wire.record_decoding import RecordCodec

FEW_NAMES = columns(st.sampled_from("abc"))
CHANGES = st.one_of(
    records_of(RecordType.PUT, puts),
    records_of(RecordType.UPDATE, FEW_NAMES),
    records_of(RecordType.UPDATE, puts | deletions),
    records_of(RecordType.DELETE, None),
).filter(lambda record: len(record.key) == len(record.primary_key))


def by_folding(record: StreamRecord) -> dict[str, Any]:
    row = RowCells(tuple(record.key.values()))
    row.apply(record, "shard", TableRule(tuple(record.key)))
    return {name: value for name, versions in row.cells.items() for value in versions.values()} | record.key


def by_name(record: StreamRecord) -> Any:
    return ({name: record[name] for name in record}, record.values, record.removed, record.is_delete, record.before)


def assert_named_alike(codec: RecordCodec, page: list[StreamRecord]) -> None:
    data = body(*map(TWIN.encode_record, page))
    for number, made in enumerate(page):
        values = codec.decode_page(data).records[number].values  # of a record that is fresh from its page
        decoded = codec.decode_page(data).records[number]
        assert by_name(decoded) == by_name(made)
        assert repr(values) == repr(made.values)
        assert {name: repr(value) for name, value in values.items()} == {
            name: repr(value) for name, value in by_folding(made).items()
        }


@both
def test_examples_of_other_implementations_have_these_values(codec: RecordCodec) -> None:
    examples = [record for _, record in RECORDS.values()]
    assert_named_alike(codec, examples)

    put, update, delete = codec.decode_page(body(*(entry for entry, _ in RECORDS.values()))).records
    assert (put["pk"], put["c"], put.removed, put.before) == ("a", 7, (), None)
    assert (update.values, update.removed, update.before) == ({"pk": "a", "e": "x"}, ("c", "d"), {"c": 7})
    assert (delete.values, delete.is_delete, delete.before) == ({"pk": "a"}, True, None)


@both
@settings(max_examples=60)
@given(page=st.lists(CHANGES, max_size=4))
def test_any_record_of_a_page_has_the_values_of_folding(codec: RecordCodec, page: list[StreamRecord]) -> None:
    assert_named_alike(codec, page)
