"""Primary keys as byte strings that sort like the keys themselves.

The service orders keys column by column: INTEGER by value, STRING and BINARY by bytes, INF_MIN below and INF_MAX above
all values. The encoded form keeps that order and is reversible. So one bisection on bytes finds a row. A bound of a
shard may name only leading columns. Its encoded form is a prefix of the keys that begin with these columns.

Each encoded column is one byte for its type, followed by a payload. The payload of an INTEGER has eight bytes with the
sign bit flipped. The payload of a STRING or BINARY is its bytes, with ``00 ff`` for each ``00``, and ends with
``00 00``. A column of a table never mixes types, so the order of the type bytes does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from streamclient.records import KeyValue
from streamclient.wire.plainbuffer import KeyBound

_INF_MIN, _INTEGER, _STRING, _BINARY, _INF_MAX = b"\x00", b"\x10", b"\x11", b"\x12", b"\xff"
_SIGN = 1 << 63
_END = b"\x00\x00"


def _encode_column(value: KeyValue | KeyBound) -> bytes:
    if isinstance(value, str):
        return _STRING + value.encode().replace(b"\x00", b"\x00\xff") + _END
    if isinstance(value, int):
        return _INTEGER + (value + _SIGN).to_bytes(8, "big")
    if isinstance(value, (bytes, bytearray)):
        return _BINARY + bytes(value).replace(b"\x00", b"\x00\xff") + _END
    if value is KeyBound.INF_MIN:
        return _INF_MIN
    if value is KeyBound.INF_MAX:
        return _INF_MAX
    raise ValueError(f"{value!r} has no place in the order of keys; generate the value of the column first")


def encode_key(values: Iterable[KeyValue | KeyBound]) -> bytes:
    """Return the encoded form of a key, of leading columns of a key, or of a range bound."""
    return b"".join([_encode_column(value) for value in values])


def _decode_escaped(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = start
    while True:
        end = encoded.index(b"\x00", end)
        if encoded[end : end + 2] == _END:
            return encoded[start:end].replace(b"\x00\xff", b"\x00"), end + 2
        end += 2


def decode_key(encoded: bytes) -> tuple[KeyValue, ...]:
    """Return the key, or the leading columns of a key, that ``encode_key`` encoded.

    Raises:
        ValueError: a column is a bound such as INF_MIN, or the bytes are not an encoded key.
    """
    values: list[KeyValue] = []
    offset = 0
    while offset < len(encoded):
        mark = encoded[offset : offset + 1]
        if mark == _INTEGER:
            values.append(int.from_bytes(encoded[offset + 1 : offset + 9], "big") - _SIGN)
            offset += 9
        elif mark in (_STRING, _BINARY):
            data, offset = _decode_escaped(encoded, offset + 1)
            values.append(data.decode() if mark == _STRING else data)
        else:
            raise ValueError(f"no key column starts with {mark.hex()} at byte {offset} of {encoded.hex()}")
    return tuple(values)


RUN_KEYS = 1_024
"""The usual number of keys in a ``KeyRun``. A run has at most twice as many keys. A new key moves only keys of its run,
which takes a few microseconds. Without runs, adding a key before 400,000 other keys would take 170 µs."""


class KeyRun:
    """A run of consecutive keys, with the total size in bytes and the total number of versions of their rows."""

    __slots__ = ("keys", "size_bytes", "version_count")

    def __init__(self, keys: list[bytes], size_bytes: int = 0, version_count: int = 0) -> None:
        self.keys: list[bytes] = keys
        self.size_bytes: int = size_bytes
        self.version_count: int = version_count


Weigh = Callable[[Sequence[bytes]], tuple[int, int]]
"""A function that returns the total size in bytes and the total number of versions of the rows with the given keys."""


def _weightless(keys: Sequence[bytes]) -> tuple[int, int]:
    return 0, 0


class SortedKeys:
    """A set of encoded keys in their order, divided into runs. Do not add or remove keys during an iteration."""

    def __init__(self, weigh: Weigh = _weightless) -> None:
        self._weigh = weigh
        self._runs: list[KeyRun] = []
        self._lasts: list[bytes] = []
        """The last key of each run."""

    @property
    def runs(self) -> Sequence[KeyRun]:
        """The runs that contain all keys, in key order. No run is empty."""
        return self._runs

    def run_of(self, key: bytes) -> KeyRun:
        """Return the run that contains ``key``, which must be present."""
        return self._runs[bisect_left(self._lasts, key)]

    def add(self, key: bytes) -> KeyRun:
        """Add a key that is absent; return its run. The totals of the run do not yet include the key's row."""
        lasts = self._lasts
        if not lasts or key > lasts[-1]:
            return self._append(key)
        place = bisect_left(lasts, key)
        run = self._runs[place]
        run.keys.insert(bisect_left(run.keys, key), key)
        if len(run.keys) <= 2 * RUN_KEYS:
            return run
        upper = KeyRun(run.keys[RUN_KEYS:])
        del run.keys[RUN_KEYS:]
        # The new key is in one of the two runs, but has no row yet.
        for half in (run, upper):
            half.size_bytes, half.version_count = self._weigh([each for each in half.keys if each != key])
        self._runs.insert(place + 1, upper)
        lasts[place : place + 1] = [run.keys[-1], upper.keys[-1]]
        return run if key <= lasts[place] else upper

    def _append(self, key: bytes) -> KeyRun:
        if self._runs and len(self._runs[-1].keys) < RUN_KEYS:
            self._runs[-1].keys.append(key)
            self._lasts[-1] = key
        else:
            self._runs.append(KeyRun([key]))
            self._lasts.append(key)
        return self._runs[-1]

    def remove(self, key: bytes) -> None:
        """Remove a key that is present. The caller has already subtracted its row from the totals of the run."""
        place = bisect_left(self._lasts, key)
        keys = self._runs[place].keys
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._runs[place], self._lasts[place]
        elif key == self._lasts[place]:
            self._lasts[place] = keys[-1]

    def ascending(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """Yield the keys with start <= key < end, in order. If ``end`` is ``None``, yield all from ``start`` on."""
        for place in range(bisect_left(self._lasts, start), len(self._runs)):
            keys = self._runs[place].keys
            first = bisect_left(keys, start) if keys[0] < start else 0
            is_last = end is not None and end <= self._lasts[place]
            stop = bisect_left(keys, end) if is_last and end is not None else len(keys)
            for index in range(first, stop):
                yield keys[index]
            if is_last:
                return

    def descending(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys with start >= key > end, the greatest first."""
        for place in range(min(bisect_left(self._lasts, start), len(self._runs) - 1), -1, -1):
            keys = self._runs[place].keys
            last = bisect_right(keys, start) - 1 if keys[-1] > start else len(keys) - 1
            stop = bisect_right(keys, end) - 1 if keys[0] <= end else -1
            for index in range(last, stop, -1):
                yield keys[index]
            if keys[0] <= end:
                return

    def count(self, start: bytes, end: bytes | None) -> int:
        """Return the number of keys with start <= key < end. If ``end`` is ``None``, count all from ``start`` on."""
        stop = sum(len(run.keys) for run in self._runs) if end is None else self._rank(end)
        return stop - self._rank(start)

    def at(self, start: bytes, offset: int) -> bytes:
        """Return the key with the index ``offset`` among the keys from ``start`` on. The first of them has index 0.

        Raises:
            IndexError: there are too few keys.
        """
        rank = self._rank(start) + offset
        for run in self._runs:
            if rank < len(run.keys):
                return run.keys[rank]
            rank -= len(run.keys)
        raise IndexError(f"there is no key with index {offset} among the keys from {start!r} on")

    def _rank(self, key: bytes) -> int:
        """Return the number of keys before ``key``, which may be absent."""
        place = bisect_left(self._lasts, key)
        before = sum(len(run.keys) for run in self._runs[:place])
        return before + (bisect_left(self._runs[place].keys, key) if place < len(self._runs) else 0)
