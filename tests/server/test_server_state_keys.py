"""Keys as sortable bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.server import keys
from streamclient.server.keys import decode_key, encode_key
from streamclient.server.stored_rows import RowStore, StoredRow, make_row
from streamclient.wire.plainbuffer import KeyBound

INTEGERS = st.integers(-(2**63), 2**63 - 1)
STRINGS = st.text(st.characters(codec="utf-8"), max_size=8) | st.text("a\x00\x01\xff", max_size=5)
BINARIES = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 255]), max_size=5).map(bytes)
KEYS = st.tuples(INTEGERS, STRINGS, BINARIES)


def reference_order(key: tuple[int, str, bytes]) -> Any:
    return key[0], key[1].encode(), key[2]


@pytest.mark.slow
@given(KEYS, KEYS)
@settings(deadline=None, max_examples=300)
def test_encoded_keys_sort_like_keys(first: tuple[int, str, bytes], second: tuple[int, str, bytes]) -> None:
    expected = reference_order(first) < reference_order(second)

    assert (encode_key(first) < encode_key(second)) is expected


@pytest.mark.slow
@given(KEYS)
def test_encoding_is_reversible(key: tuple[int, str, bytes]) -> None:
    assert decode_key(encode_key(key)) == key


@given(KEYS)
def test_every_key_lies_between_the_bounds_of_its_prefix(key: tuple[int, str, bytes]) -> None:
    low, high = KeyBound.INF_MIN, KeyBound.INF_MAX

    for length in range(3):
        prefix = key[:length]
        assert encode_key((*prefix, low)) < encode_key(key) < encode_key((*prefix, high))
        assert encode_key(prefix) <= encode_key(key)


@given(STRINGS, STRINGS, INTEGERS)
def test_a_prefix_cuts_between_partition_keys(first: str, second: str, integer: int) -> None:
    """The leading column alone, as a shard's bound, has exactly the greater and equal keys behind it."""
    assert (encode_key((first, integer)) >= encode_key((second,))) is (first.encode() >= second.encode())


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=200),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
@settings(max_examples=60, deadline=None)
def test_keys_in_runs_are_as_in_one_list(steps: list[tuple[int, bool]], bounds: tuple[int, int]) -> None:
    """Also where runs are cut, emptied, and weighed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "RUN_KEYS", 4)
        store, model = RowStore(), dict[bytes, StoredRow]()
        for number, is_put in steps:
            key = bytes([number])
            if is_put:
                model[key] = make_row(("pk",), (number,), {"x": ((1, "v" * number),)}, 1)
                store.put(key, model[key])
            elif key in model:
                del model[key]
                store.delete(key)
        low, high = (bytes([bound]) for bound in sorted(bounds))
        ordered = sorted(model)

        assert [key for run in store.runs() for key in run.keys] == ordered
        assert all(run.keys for run in store.runs())
        for run in store.runs():
            rows = [model[key] for key in run.keys]
            assert run.size_bytes == sum(row.size_bytes for row in rows)
            assert run.version_count == sum(row.version_count for row in rows)
            assert len(run.keys) <= 8
        assert [key for key, _ in store.ascending(low, high)] == [key for key in ordered if low <= key < high]
        assert [key for key, _ in store.descending(high, low)] == [key for key in ordered[::-1] if low < key <= high]
        assert store.count(low, high) == sum(low <= key < high for key in ordered)
        assert store.count(low, None) == sum(low <= key for key in ordered)
        for offset in range(store.count(low, None)):
            assert store.key_at(low, offset) == [key for key in ordered if low <= key][offset]


def test_a_key_before_all_others_moves_few_of_them() -> None:
    moved = RowStore()
    row = make_row(("pk",), (1,), {}, 1)
    for number in range(20_000, 0, -1):
        moved.put(number.to_bytes(4, "big"), row)

    assert max(len(run.keys) for run in moved.runs()) <= 2 * keys.RUN_KEYS
