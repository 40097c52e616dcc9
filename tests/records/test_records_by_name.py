"""Values by name: what a change put, removed and replaced, the same from both storages of a record."""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import pickle
import sys
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence, Sized
from types import ModuleType
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient import records
from streamclient.destinations.folding.row_changes import RowCells, TableRule
from streamclient.records import NATIVE, ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord

KEY = (("id", "a"), ("part", 2))
SEQUENCE = SequenceInfo(0, 17, 3)
PUT, UPDATE, DELETE = RecordType.PUT, RecordType.UPDATE, RecordType.DELETE
SET, ALL, ONE = ColumnOperation.PUT, ColumnOperation.DELETE_ALL_VERSION, ColumnOperation.DELETE_ONE_VERSION


def without_compiler() -> ModuleType:
    """Load ``streamclient.records`` a second time, as it is where no compiled codec was built."""
    spec = importlib.util.spec_from_file_location("pure_records", records.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # by this name records are pickled
    with patch.dict(os.environ, STREAMCLIENT_PURE_PYTHON="1"):
        spec.loader.exec_module(module)
    return module


PURE = without_compiler()
STORAGES = [records, PURE]
both = pytest.mark.parametrize("module", STORAGES, ids=["installed", "pure"])


def as_in(module: Any, record: StreamRecord) -> Any:
    """The record in the storage of ``module``."""

    def cells(columns: Sequence[RecordColumn]) -> tuple[Any, ...]:
        return tuple(
            module.RecordColumn(
                cell.name, module.ColumnOperation[cell.operation.name], cell.value, cell.timestamp_millis
            )
            for cell in columns
        )

    return module.StreamRecord(
        module.RecordType[record.record_type.name],
        record.primary_key,
        cells(record.columns),
        module.SequenceInfo(*attrs.astuple(record.sequence_info)),
        None if record.original_columns is None else cells(record.original_columns),
    )


def put(name: str, value: Any, version: int | None = 1) -> RecordColumn:
    return RecordColumn(name, SET, value, version)


def update(*columns: RecordColumn, before: tuple[RecordColumn, ...] | None = None) -> StreamRecord:
    return StreamRecord(UPDATE, KEY, columns, SEQUENCE, before)


NAMES = st.sampled_from("xyz")
VERSIONS = st.none() | st.integers(0, 3)
VALUES = st.sampled_from([0, 1, 1.0, True, False, "", "1", b"", 2**53 + 1])
PUTS = st.builds(RecordColumn, NAMES, st.just(SET), VALUES, VERSIONS)
CELLS = st.one_of(
    PUTS,
    st.builds(RecordColumn, NAMES, st.just(ALL)),
    st.builds(RecordColumn, NAMES, st.just(ONE), st.none(), VERSIONS),
)
CHANGES = st.one_of(
    st.builds(
        StreamRecord,
        st.sampled_from([PUT, UPDATE]),
        st.just(KEY),
        st.lists(CELLS, max_size=7).map(tuple),
        st.just(SEQUENCE),
    ),
    st.builds(StreamRecord, st.just(DELETE), st.just(KEY), st.just(()), st.just(SEQUENCE)),
)
ORIGINALS = st.none() | st.lists(PUTS, max_size=5).map(tuple)


def folded(record: StreamRecord, max_versions: int) -> dict[str, Any]:
    """What folding the change into no row leaves in the columns."""
    row = RowCells(tuple(value for _, value in record.primary_key))
    row.apply(record, "shard", TableRule(tuple(record.key), max_versions))
    return {name: versions[max(versions)] for name, versions in row.cells.items()}


def typed(values: Mapping[str, Any]) -> dict[str, tuple[type, Any]]:
    """With types told apart, as 1, 1.0 and True are equal to Python."""
    return {name: (type(value), value) for name, value in values.items()}


# --- names ------------------------------------------------------------------------------------------------------------


@both
@given(record=CHANGES)
def test_values_are_what_folding_the_change_into_nothing_gives(module: Any, record: StreamRecord) -> None:
    found = as_in(module, record).values

    assert typed(found) == typed({**record.key, **folded(record, 1)})
    assert list(found)[:2] == ["id", "part"]
    if all(cell.operation is not ONE for cell in record.columns):
        assert typed(found) == typed({**record.key, **folded(record, 4)}), "the number of versions does not matter then"


@both
@given(record=CHANGES)
def test_every_way_to_a_value_leads_to_the_same_one(module: Any, record: StreamRecord) -> None:
    named = as_in(module, record)
    values = named.values

    assert tuple(named) == named.keys() == tuple(values)
    assert dict(named) == {**named} == values
    for name in ("id", "part", "x", "y", "z", "other"):
        assert (name in named) == (name in values)
        assert named.get(name) is values.get(name)
        assert named.get(name, "other") == values.get(name, "other")
        if name in values:
            assert (type(named[name]), named[name]) == (type(values[name]), values[name])
        else:
            with pytest.raises(KeyError, match="get"):
                named[name]


@both
@given(record=CHANGES)
def test_a_column_that_the_change_mentions_is_put_or_removed(module: Any, record: StreamRecord) -> None:
    named = as_in(module, record)

    assert {*named.removed, *named.values} == {"id", "part", *(cell.name for cell in record.columns)}
    assert {*named.removed}.isdisjoint(named.values)
    assert len({*named.removed}) == len(named.removed)
    assert named.is_delete is (record.record_type is DELETE)


@given(CHANGES)
def test_a_row_of_this_change_alone_has_its_values(record: StreamRecord) -> None:
    row = record.apply_to(None)

    assert row is None or typed(row) == typed(record.values)
    assert row is not None or not folded(record, 1)


@both
@given(record=CHANGES, originals=ORIGINALS)
def test_previous_values_are_the_newest_of_their_columns(module: Any, record: StreamRecord, originals: Any) -> None:
    changed = attrs.evolve(record, original_columns=originals)
    before = None if originals is None else folded(StreamRecord(PUT, KEY, originals), 1)

    assert as_in(module, changed).before == before
    assert as_in(module, changed).values == record.values, "what was before is not what was put"


@both
@pytest.mark.parametrize(
    ("columns", "values", "removed"),
    [
        ((put("x", "new", 9), put("x", "old", 5)), {"x": "new"}, ()),
        ((put("x", "old", 5), put("x", "new", 9)), {"x": "new"}, ()),
        ((put("x", 1, 5), put("x", 2, 5)), {"x": 2}, ()),
        ((put("x", 1, None), put("x", 2, 0)), {"x": 2}, ()),
        ((RecordColumn("x", ALL), put("x", 3)), {"x": 3}, ()),
        ((put("x", 3), RecordColumn("x", ALL)), {}, ("x",)),
        ((put("x", 3, 7), RecordColumn("x", ONE, None, 7)), {}, ("x",)),
        ((put("x", 3, 7), RecordColumn("x", ONE, None, 6)), {"x": 3}, ()),
        ((RecordColumn("x", ONE, None, 7), put("y", 0)), {"y": 0}, ("x",)),
        ((put("x", False), put("y", ""), put("z", 0)), {"x": False, "y": "", "z": 0}, ()),
    ],
)
def test_a_column_has_the_value_that_the_change_left_in_it(
    module: Any, columns: Any, values: dict[str, Any], removed: tuple[str, ...]
) -> None:
    record = as_in(module, update(*columns))

    assert record.values == {"id": "a", "part": 2, **values}
    assert record.removed == removed
    assert {name: record.get(name) for name in values} == values
    assert not any(name in record for name in removed)


@both
def test_a_missing_name_is_told_with_the_change_and_the_way_out(module: Any) -> None:
    record = as_in(module, update(put("x", 1), RecordColumn("y", ALL)))

    with pytest.raises(KeyError, match=r"UPDATE \{id='a', part=2\} at 0/17/3 did not put a column 'z'; get"):
        record["z"]
    with pytest.raises(KeyError, match="removed a column 'y'"):
        record["y"]


@both
def test_a_key_column_wins(module: Any) -> None:
    """The service refuses a column with the name of a key column; a record made by hand may have one."""
    record = as_in(module, update(put("id", "other")))

    assert record["id"] == record.values["id"] == record.get("id") == "a"


@both
def test_what_is_not_a_name_is_not_in_a_record(module: Any) -> None:
    record = as_in(module, update(put("x", 1)))

    assert 0 not in record
    assert None not in record
    assert [] not in record  # type: ignore[comparison-overlap]


@both
def test_values_are_a_dictionary_of_its_owner(module: Any) -> None:
    record = as_in(module, update(put("x", 1), before=(put("x", 0),)))
    record.values.clear()
    record.before.clear()

    assert record.values == {"id": "a", "part": 2, "x": 1}
    assert record.before == {"x": 0}


# --- a record stays what it was ---------------------------------------------------------------------------------------


@both
def test_a_record_is_no_mapping_and_no_sequence(module: Any) -> None:
    record = as_in(module, StreamRecord(DELETE, KEY))

    assert [kind for kind in (Mapping, Sequence, Sized, Collection) if isinstance(record, kind)] == []
    assert all(isinstance(record, kind) for kind in (Container, Iterable, Hashable))
    assert bool(record) is True
    assert not hasattr(record, "__len__")
    match record:
        case {"id": _} | [*_]:
            kind = "mapping or sequence"
        case module.StreamRecord(record_type, key):
            kind = f"{record_type.name} {len(key)}"
    assert kind == "DELETE 2"


@both
def test_a_record_is_compared_copied_and_pickled_by_its_fields(module: Any) -> None:
    record = as_in(module, update(put("x", 1)))
    other = as_in(module, update(put("x", 1, 2)))

    assert record.values == other.values
    assert record != other
    assert record != record.values
    assert hash(record) == hash(as_in(module, update(put("x", 1))))
    assert attrs.asdict(record, recurse=False)["primary_key"] == KEY
    assert len(attrs.astuple(record)) == 5
    for copied in (
        copy.copy(record),
        copy.deepcopy(record),
        *(pickle.loads(pickle.dumps(record, n)) for n in range(6)),
    ):
        assert copied == record
        assert type(copied) is module.StreamRecord
        assert copied["x"] == 1


@both
def test_a_record_is_printed_as_one_value(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    record = as_in(module, update(put("x", 1), RecordColumn("y", ALL)))
    shown = "UPDATE {id='a', part=2} [x=1@1, y DELETE_ALL_VERSION] at 0/17/3"
    with caplog.at_level(logging.INFO):
        logging.getLogger("records").info("got %s", record)

    assert str(record) == "%s" % record == f"{record}" == shown  # noqa: UP031
    assert caplog.messages == [f"got {shown}"]
    assert repr(record).startswith("StreamRecord(record_type=")


def test_a_record_has_room_for_its_fields_and_for_nothing_else() -> None:
    """Compiled, these are ten words: count, type, weak references, five fields, and two for the page."""
    bare = type("Bare", (), {"__slots__": ("__weakref__", *(field.name for field in attrs.fields(StreamRecord)))})
    assert PURE.StreamRecord.__basicsize__ == bare.__basicsize__
    assert StreamRecord.__basicsize__ == (bare.__basicsize__ if NATIVE is None else 10 * 8)
    for module in STORAGES:
        assert not hasattr(as_in(module, update(put("x", 1))), "__dict__")


def test_a_record_whose_columns_are_made_on_demand_has_names() -> None:
    made = []

    def make(cells: Any) -> Any:
        made.append(cells)
        return tuple(PURE.RecordColumn(name, PURE.ColumnOperation.PUT, value, 1) for name, value in cells)

    record = PURE.record_of_cells(PURE.RecordType.PUT, KEY, [("x", 1)], PURE.SequenceInfo(0, 1, 0), None, make=make)

    assert record["id"] == "a"
    assert made == [], "a key column needs no columns"
    assert (record["x"], record.values) == (1, {"id": "a", "part": 2, "x": 1})
    assert len(made) == 1
