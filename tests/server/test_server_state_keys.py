"""Keys as sortable bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.server.keys import decode_key, encode_key
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
@settings(deadline=None)
def test_encoding_is_reversible(key: tuple[int, str, bytes]) -> None:
    assert decode_key(encode_key(key)) == key


@given(KEYS)
@settings(deadline=None)
def test_every_key_lies_between_the_bounds_of_its_prefix(key: tuple[int, str, bytes]) -> None:
    low, high = KeyBound.INF_MIN, KeyBound.INF_MAX

    for length in range(3):
        prefix = key[:length]
        assert encode_key((*prefix, low)) < encode_key(key) < encode_key((*prefix, high))
        assert encode_key(prefix) <= encode_key(key)


@given(STRINGS, STRINGS, INTEGERS)
@settings(deadline=None)
def test_a_prefix_cuts_between_partition_keys(first: str, second: str, integer: int) -> None:
    """The leading column alone, as a shard's bound, has exactly the greater and equal keys behind it."""
    assert (encode_key((first, integer)) >= encode_key((second,))) is (first.encode() >= second.encode())
