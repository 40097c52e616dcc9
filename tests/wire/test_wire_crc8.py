from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.wire.crc8 import AFTER_EIGHT_BYTES, crc8


def bit_by_bit(data: bytes, state: int) -> int:
    """The definition: polynomial division, one bit at a time."""
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state << 1) ^ (0x107 if state & 0x80 else 0)
    return state


def test_published_check_value() -> None:
    assert crc8(b"123456789") == 0xF4


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=600), st.integers(0, 255))
def test_short_and_long_input_agree_with_the_definition(data: bytes, state: int) -> None:
    assert crc8(data, state) == bit_by_bit(data, state)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 255))
def test_a_checksum_can_be_continued(first: bytes, second: bytes, state: int) -> None:
    assert crc8(second, crc8(first, state)) == crc8(first + second, state)


@settings(deadline=None, max_examples=50)
@given(st.binary(min_size=8, max_size=8), st.integers(0, 255))
def test_eight_known_bytes_continue_any_state(data: bytes, state: int) -> None:
    assert AFTER_EIGHT_BYTES[state] ^ crc8(data) == crc8(data, state)


def test_every_length_around_the_halving_threshold() -> None:
    data = bytes(range(7, 207))
    assert [crc8(data[:size], 5) for size in range(200)] == [bit_by_bit(data[:size], 5) for size in range(200)]
