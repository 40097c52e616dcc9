"""CRC-8/SMBUS (polynomial 0x07, initial value 0, no reflection), the checksum of PlainBuffer cells and rows.

The checksum is linear over GF(2): a byte with n bytes after it counts as the byte times x^(8n). So ``crc8`` can halve
long input repeatedly by operations on whole byte strings, and need not visit each byte.
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x107
FOLD_FROM_BYTES = 96
"""The length of input, in bytes, from which on repeated halving is faster than the loop over pairs of bytes. A
measurement showed that one step of halving costs as much as 15 bytes in the loop."""


UNPACK_PAIRS = [struct.Struct(f"<{pairs}H").unpack_from for pairs in range(FOLD_FROM_BYTES // 2 + 1)]
"""Functions that read pairs of bytes as numbers, from an offset on. ``UNPACK_PAIRS[n]`` reads ``n`` pairs."""


def _times_x8(value: int) -> int:
    for _ in range(8):
        value <<= 1
        if value & 0x100:
            value ^= _POLYNOMIAL
    return value


TABLE = bytes(_times_x8(value) for value in range(256))
"""The table of the checksum: ``TABLE[state ^ byte]`` continues the checksum ``state`` by one byte."""

# The checksum of two bytes is the XOR of two checksums: of the first byte with a zero after it, and of the second byte.
_FIRST = int.from_bytes(TABLE.translate(TABLE), "little")
_EACH = int.from_bytes(b"\x01" * 256, "little")
PAIRS = b"".join((_FIRST ^ TABLE[second] * _EACH).to_bytes(256, "little") for second in range(256))
"""The table of pairs: ``PAIRS[state ^ pair]`` continues the checksum ``state`` by two bytes. The low byte of ``pair``
is the first of the two bytes."""

# _POWERS[k][b] is b * x^(8 * 2^k), the share of byte b in a checksum if 2^k bytes come after b.
_POWERS = [TABLE]
for _ in range(31):  # enough for 2^31 bytes; a request has at most 5 MB
    _POWERS.append(_POWERS[-1].translate(_POWERS[-1]))

AFTER_EIGHT_BYTES = _POWERS[3]
"""The table for eight bytes with a known checksum: ``AFTER_EIGHT_BYTES[state] ^ crc8(eight_bytes)`` continues the
checksum ``state`` by these bytes."""


def crc8(data: bytes, state: int = 0) -> int:
    """Return the checksum of ``data``. If ``state`` is the checksum of earlier bytes, continue it by ``data``."""
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
            data = b"\x00" + data  # leading zeros do not change a checksum that starts from 0
        left = int.from_bytes(data[0::2].translate(_POWERS[level]), "little")
        right = int.from_bytes(data[1::2], "little")
        data = (left ^ right).to_bytes(len(data) // 2, "little")
        level += 1
    return TABLE[data[0]]
