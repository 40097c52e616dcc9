"""``put``, ``update`` and ``delete``: the records that they make, and the arguments that they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from streamclient import (
    ColumnOperation,
    ConfigurationError,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.testing import delete, put, update
from streamclient.testing.builders import in_places
from streamclient.wire.plainbuffer import decode_row, write_of

PUT, REMOVE = ColumnOperation.PUT, ColumnOperation.DELETE_ALL_VERSION

INTEGERS = st.integers(-(2**63), 2**63 - 1)
KEY_VALUES = INTEGERS | st.text(max_size=5) | st.binary(max_size=5)
VALUES = KEY_VALUES | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(min_size=1, max_size=5)


def test_a_put_has_its_key_and_its_columns() -> None:
    record = put("a", amount=12, state="new")

    assert record == StreamRecord(
        RecordType.PUT,
        (("id", "a"),),
        (RecordColumn("amount", PUT, 12, 0), RecordColumn("state", PUT, "new", 0)),
    )
    assert record.apply_to(None) == {"id": "a", "amount": 12, "state": "new"}
    assert (record.sequence_info, record.original_columns) == (SequenceInfo(0, 0, 0), None)


def test_an_update_sets_and_removes_columns_and_knows_old_values() -> None:
    record = update(7, amount=12, remove=["note"], before={"amount": 11})

    assert (record.record_type, record.key) == (RecordType.UPDATE, {"id": 7})
    assert record.columns == (RecordColumn("amount", PUT, 12, 0), RecordColumn("note", REMOVE))
    assert record.original_columns == (RecordColumn("amount", PUT, 11, 0),)
    assert record.apply_to({"id": 7, "amount": 11, "note": "x"}) == {"id": 7, "amount": 12}


def test_a_deletion_has_no_columns() -> None:
    record = delete(b"a", before={})

    assert (record.record_type, record.key, record.columns) == (RecordType.DELETE, {"id": b"a"}, ())
    assert record.original_columns == ()
    assert record.apply_to({"id": b"a", "amount": 1}) is None


def test_a_key_of_several_columns_keeps_their_order() -> None:
    for make in (put, delete):
        assert make({"shop": 7, "order": "a"}).primary_key == (("shop", 7), ("order", "a"))


def test_columns_may_have_any_name() -> None:
    """Keywords of Python, and the names of the parameters themselves."""
    assert put("a", **{"key": 1, "self": 2, "a b": 3, "class": 4}).apply_to(None) == {
        "id": "a",
        "key": 1,
        "self": 2,
        "a b": 3,
        "class": 4,
    }


@given(key=KEY_VALUES, values=st.dictionaries(NAMES.filter(lambda name: name != "id"), VALUES))
def test_whatever_is_put_can_be_written(key: Any, values: dict[str, Any]) -> None:
    """As a row of the wire, from which the same values are read."""
    _, _, row = write_of(put(key, **values))

    found = decode_row(row)
    assert found.primary_key == (("id", key),)
    assert [(cell.name, cell.value) for cell in found.cells] == list(values.items())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: put(None), "^key must be the value of the key column id, or a mapping .*, not None$"),
        (lambda: put(1.5), "^key must be .*, not 1.5$"),
        (lambda: put(True), "^key must be .*, not True$"),
        (lambda: put({}), "^key must be .* mapping of one or more key columns, not {}$"),
        (lambda: put({"id": None}), "^key column 'id' must be an int, a str or bytes, not None$"),
        (lambda: put({7: "a"}), "^the name of a key column must be a non-empty string, not 7$"),
        (lambda: put("a", amount=None), "^column 'amount' must be an int, a float, a bool, a str or bytes, not None$"),
        (lambda: put("a", amount=[1]), r"^column 'amount' must be .*, not \[1\]$"),
        (lambda: put(2**63), f"^key column 'id' cannot have the value {2**63}: .* integers have 64 bits"),
        (lambda: put({"shop": -(2**63) - 1}), "^key column 'shop' cannot have the value .* 64 bits"),
        (lambda: delete("\ud800"), "^key column 'id' cannot have the value .* UTF-8"),
        (lambda: put("a" * 1_025), "^key column 'id' cannot have the value .* MaxLength:1024 with CurrentLength:1025"),
        (lambda: put("a", amount=2**63), f"^column 'amount' cannot have the value {2**63}: .* 64 bits"),
        (lambda: put("a", amount=math.nan), "^column 'amount' cannot have the value nan: NaN can't be set"),
        (lambda: update("a", amount=-math.inf), "^column 'amount' cannot have the value -inf: Infinity can't be set"),
        (lambda: delete("a", before={"note": b"a" * (2**21 + 1)}), "^column 'note' cannot have the value .* MaxLength"),
        (lambda: put("a", id="b"), "^column 'id' is a key column"),
        (lambda: put("a", **{"": 1}), "^the name of a column must be a non-empty string, not ''$"),
        (lambda: update("a"), "^an update must set or remove a column"),
        (lambda: update("a", remove="note"), "^remove must be a sequence of non-empty strings, not 'note'$"),
        (lambda: update("a", remove=["note"], note=1), "^column 'note' is both set and removed"),
        (lambda: update("a", remove=["id"]), "^column 'id' is a key column"),
        (lambda: update("a", note=1, before=[1]), r"^before must be a mapping of columns or None, not \[1\]$"),
        (lambda: delete("a", before={"note": None}), "^column 'note' must be "),
        (lambda: delete("a", before={"id": "a"}), "^column 'id' is a key column"),
    ],
)
def test_what_cannot_be_in_a_table_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


# --- places -----------------------------------------------------------------------------------------------------------


def at(epoch: int, micros: int) -> StreamRecord:
    return evolve(put("a"), sequence_info=SequenceInfo(epoch, micros, 0))


def test_records_without_a_place_are_at_1_2_3() -> None:
    assert [record.sequence_info for record in in_places([put("a"), delete("b"), put("c")])] == [
        SequenceInfo(1, 1, 0),
        SequenceInfo(1, 2, 0),
        SequenceInfo(1, 3, 0),
    ]


def test_records_with_a_place_keep_it_and_those_without_follow() -> None:
    placed = in_places([at(0, 5), put("b"), at(3, 7), put("c")])

    assert [str(record.sequence_info) for record in placed] == ["0/5/0", "0/6/0", "3/7/0", "3/8/0"]


@given(st.lists(st.none() | st.integers(1, 9), max_size=6))
def test_places_rise_or_are_refused(wanted: list[int | None]) -> None:
    expected, last = list[int](), 0
    for micros in wanted:
        last = last + 1 if micros is None else micros
        expected.append(last)
    records = [put("a") if micros is None else at(1, micros) for micros in wanted]

    if expected == sorted(set(expected)):
        assert [record.sequence_info.timestamp_micros for record in in_places(records)] == expected
    else:
        with pytest.raises(ConfigurationError, match="must be after its predecessor"):
            in_places(records)


def test_a_place_before_that_of_the_predecessor_is_refused_with_both() -> None:
    with pytest.raises(ConfigurationError, match=r"^records\[1\] must be after its predecessor .* 1/5/0 .* 1/6/0;"):
        in_places([at(1, 6), at(1, 5)])
    with pytest.raises(ConfigurationError, match=r"^records\[1\] must be after its predecessor"):
        in_places([at(1, 6), at(1, 6)])


def test_only_records_have_places() -> None:
    with pytest.raises(ConfigurationError, match=r"^records\[1\] must be a StreamRecord, .*, not 'b'$"):
        in_places([put("a"), "b"])  # type: ignore[list-item]
