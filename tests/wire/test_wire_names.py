"""Column names of any kind through the codecs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_pages import TWIN, body

from streamclient.records import ColumnOperation, RecordColumn, SequenceInfo
from streamclient.wire.plainbuffer import Cell, Row, decode_row, encode_row
from tests.column_names import ODD_NAMES

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60)


@given(st.lists(NAMES, unique=True, min_size=1))
def test_any_name_comes_back_from_a_row(names: list[str]) -> None:
    row = Row((("pk", 1),), tuple(Cell(name, name, timestamp_millis=5) for name in names))

    assert decode_row(encode_row(row)) == row


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_any_name_comes_back_from_a_page_of_records(name: str) -> None:
    row = Row((("pk", 1),), (Cell(name, "v", timestamp_millis=5),), sequence=SequenceInfo(0, 1, 0))
    origin = Row((("pk", 1),), (Cell(name, "old", timestamp_millis=4),))

    (record,) = TWIN.decode_page(body((1, encode_row(row), encode_row(origin)))).records

    assert record.columns == (RecordColumn(name, ColumnOperation.PUT, "v", 5),)
    assert record.original_columns == (RecordColumn(name, ColumnOperation.PUT, "old", 4),)


def test_a_record_is_one_line_of_output_whatever_its_columns_are_called() -> None:
    shown = {str(RecordColumn(name, ColumnOperation.PUT, 1)) for name in ODD_NAMES}

    assert len(shown) == len(ODD_NAMES)
    assert all(len(each.splitlines()) == 1 and "\x1b" not in each for each in shown)
    assert str(RecordColumn("plain", ColumnOperation.PUT, 1, 5)) == "plain=1@5"
    assert str(RecordColumn("公司", ColumnOperation.DELETE_ALL_VERSION)) == "公司 DELETE_ALL_VERSION"
    assert str(RecordColumn("a\nb", ColumnOperation.PUT, 1, 5)) == r"'a\nb'=1@5"
