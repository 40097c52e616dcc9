"""CRC-8/SMBUS (polynomial 0x07, initial value 0, no reflection), the checksum of PlainBuffer cells and rows.

The remainder is linear over GF(2): a byte that n bytes follow counts as that byte times x^(8n). So long input is halved
again and again by operations on whole strings, and Python does not visit each byte.
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x107
FOLD_FROM_BYTES = 96
"""The length, in bytes, from which on halving is faster than the loop. One step of halving was measured to cost as much
as 15 bytes of the loop."""


UNPACK_PAIRS = [struct.Struct(f"<{pairs}H").unpack_from for pairs in range(FOLD_FROM_BYTES // 2 + 1)]
"""Unpackers by number of pairs. An unpacker reads bytes as pairs, from an offset on."""


def _times_x8(value: int) -> int:
    for _ in range(8):
        value <<= 1
        if value & 0x100:
            value ^= _POLYNOMIAL
    return value


TABLE = bytes(_times_x8(value) for value in range(256))
"""``TABLE[state ^ byte]`` is the checksum after one more byte."""

# The sum of the remainders of each byte alone: of the first byte followed by a zero, and of the second byte.
_FIRST = int.from_bytes(TABLE.translate(TABLE), "little")
_EACH = int.from_bytes(b"\x01" * 256, "little")
PAIRS = b"".join((_FIRST ^ TABLE[second] * _EACH).to_bytes(256, "little") for second in range(256))
"""``PAIRS[state ^ pair]`` is the checksum after two more bytes, the first in the low byte of ``pair``."""

# _POWERS[k][b] is b * x^(8 * 2^k): the weight of a byte in the left half of a pair of 2^k-byte groups.
_POWERS = [TABLE]
for _ in range(31):  # 2^31 bytes exceed every frame: a length has 32 bits, and a request has at most 5 MB.
    _POWERS.append(_POWERS[-1].translate(_POWERS[-1]))

AFTER_EIGHT_BYTES = _POWERS[3]
"""``AFTER_EIGHT_BYTES[state] ^ crc8(eight_bytes)`` continues ``state`` over eight bytes whose own checksum is known."""


def crc8(data: bytes, state: int = 0) -> int:
    """Continue the checksum ``state`` over ``data``."""
    if len(data) >= FOLD_FROM_BYTES:
        return _folded(bytes([data[0] ^ state]) + data[1:])
    is_odd = len(data) % 2
    if is_odd:
        state = TABLE[state ^ data[0]]
    for pair in UNPACK_PAIRS[len(data) // 2](data, is_odd):
        state = PAIRS[state ^ pair]
    return state


def _folded(data: bytes) -> int:
    level = 0
    while len(data) > 1:
        if len(data) % 2:
            data = b"\x00" + data  # Leading zeros change nothing. The initial value is already included.
        left = int.from_bytes(data[0::2].translate(_POWERS[level]), "little")
        right = int.from_bytes(data[1::2], "little")
        data = (left ^ right).to_bytes(len(data) // 2, "little")
        level += 1
    return TABLE[data[0]]
