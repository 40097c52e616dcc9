"""Decoded records cannot be told from records made by hand, whichever codec decoded them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import attrs
import pytest
from wire_examples import RECORDS
from wire_pages import EXAMPLES

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire.record_decoding import default_codec

FIELDS = ("record_type", "primary_key", "columns", "sequence_info", "original_columns")


def pairs() -> Iterator[tuple[StreamRecord, StreamRecord]]:
    """Each example as decoded and as made by hand."""
    decoded = default_codec().decode_page(EXAMPLES).records
    yield from zip(decoded, (record for _, record in RECORDS.values()), strict=True)


def test_a_decoded_record_cannot_be_told_from_one_made_by_hand() -> None:
    for decoded, made in pairs():
        assert type(decoded) is type(made) is StreamRecord
        assert decoded == made
        assert made == decoded
        assert (decoded != made) is False
        assert hash(decoded) == hash(made)
        assert (repr(decoded), str(decoded)) == (repr(made), str(made))
        assert (decoded.key, decoded.columns) == (made.key, made.columns)
        assert attrs.asdict(decoded) == attrs.asdict(made)
        assert attrs.astuple(decoded) == attrs.astuple(made)
        assert weakref.ref(decoded)() is decoded


def test_a_decoded_record_is_no_other_record() -> None:
    for decoded, made in pairs():
        assert decoded != attrs.evolve(made, sequence_info=SequenceInfo(9, 9, 9))
        assert decoded != attrs.evolve(made, primary_key=(("other", 1),))
        assert decoded != object()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_decoded_record_is_pickled_as_one_made_by_hand(protocol: int) -> None:
    for decoded, made in pairs():
        assert pickle.loads(pickle.dumps(decoded, protocol)) == made
        assert [*map(repr, pickle.loads(pickle.dumps((decoded, made), protocol)))] == [repr(made)] * 2


def test_a_decoded_record_is_copied_and_changed_as_one_made_by_hand() -> None:
    for decoded, made in pairs():
        assert copy.copy(decoded) == copy.deepcopy(decoded) == attrs.evolve(decoded) == made
        assert attrs.evolve(decoded, columns=()).columns == ()
        assert attrs.evolve(decoded, columns=()).primary_key == made.primary_key


def test_a_decoded_record_is_immutable() -> None:
    for decoded, _ in pairs():
        for name in FIELDS:
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(decoded, name, None)
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                delattr(decoded, name)
        with pytest.raises(AttributeError):
            decoded.other = 1  # type: ignore[attr-defined]


def test_what_was_asked_for_stays_the_same_object() -> None:
    for decoded, _ in pairs():
        for name in FIELDS:
            assert getattr(decoded, name) is getattr(decoded, name)


def test_classes_look_as_attrs_made_them() -> None:
    for kind in (StreamRecord, RecordColumn, SequenceInfo):
        assert (kind.__module__, kind.__qualname__) == ("streamclient.records", kind.__name__)
        assert kind.__mro__ == (kind, object)
        assert attrs.has(kind)
        assert kind.__doc__


def test_classes_may_be_extended() -> None:
    class Noted(StreamRecord):
        pass

    @attrs.frozen
    class Tagged(StreamRecord):
        tag: str = ""

    noted = Noted(RecordType.DELETE, (("k", 1),))
    tagged = Tagged(RecordType.DELETE, (("k", 1),), tag="x")
    assert (noted.key, tagged.key, tagged.tag) == ({"k": 1}, {"k": 1}, "x")
    assert pickle.loads(pickle.dumps(RecordColumn("c", ColumnOperation.PUT, 1, 2))).value == 1
    del noted, tagged
    gc.collect()


def test_a_record_that_was_never_filled_says_so() -> None:
    empty = StreamRecord.__new__(StreamRecord)
    for name in FIELDS:
        with pytest.raises(AttributeError):
            getattr(empty, name)


def test_sequences_are_ordered() -> None:
    first, second, third = (decoded.sequence_info for decoded, _ in pairs())
    assert first < second < third
    assert first == SequenceInfo(first.epoch, first.timestamp_micros, first.row_index)
