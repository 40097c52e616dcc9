"""Partition columns of a table. Every reader reads their values back as they were written.

In a partition column, Delta Lake turns the empty text and ``__HIVE_DEFAULT_PARTITION__`` into null, and Spark decodes
characters beyond ASCII wrongly. So a key is written in ASCII, escaped. Percent signs cannot be used: Delta escapes them
again in its file names, and its clean-up then does not recognise the files.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from attrs import field, frozen

from streamclient.base import checks
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.change_rows import DAY, KEY, TIMESTAMP
from streamclient.destinations.rows.column_names import original_name
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Table

EMPTY = "_"
NULL = "_-"
"""The value that stands for null. Escaping never yields it, because escaping puts two hexadecimal digits after each
underscore."""

_DIGEST = "_."
"""The prefix of a long value's digest. Escaping never yields it either."""

_LETTERS_MAX = 128
"""The largest number of letters of a value. A longer value is cut and ends in a digest. With ``_key=`` before it, the
value must fit in the name of a directory: at most 255 bytes, and 143 on some encrypted disks."""


@frozen
class Day:
    """A partition column ``_day``: a directory for each day, in UTC, on which the service took changes."""

    column = DAY

    def values(self, rows: Table) -> Array | ChunkedArray:
        """Return the partition column's values for some rows."""
        if TIMESTAMP not in rows.column_names:
            raise ConfigurationError(
                f"rows without {TIMESTAMP} cannot be partitioned by day; they have {rows.column_names}"
            )
        return compute().cast(rows.column(TIMESTAMP), pyarrow().date32())


@checks.explains_names
@frozen
class Key:
    """A partition column ``_key``: a directory for each value of a key column.

    It suits key columns with at most some hundreds of values.
    """

    name: str = field(validator=checks.text)
    """The column, by its name in Tablestore."""

    column = KEY

    def values(self, rows: Table) -> Array | ChunkedArray:
        """Return the partition column's values for some rows."""
        if not rows.num_rows:  # a commit without changes, as at a shard's end, names no source columns
            return pyarrow().array([], pyarrow().string())
        stored = next((name for name in rows.column_names if original_name(name) == self.name), None)
        if stored is None:
            raise ConfigurationError(f"rows cannot be partitioned by {self.name!r}: they have only {rows.column_names}")
        return pyarrow().array([escaped(value) for value in rows.column(stored).to_pylist()], pyarrow().string())


Partition = Day | Key


def escaped(value: object) -> str:
    """Return a key's value as a directory name: letters, digits, ``.`` and ``-``; any other byte as ``_xx``.

    A value that would be too long is cut, and ends in ``_.`` and the SHA-256 of the whole value.
    """
    if value is None:
        return NULL
    raw = value if isinstance(value, bytes) else str(value).encode()
    text = "".join(chr(byte) if _is_plain(byte) else f"_{byte:02x}" for byte in raw) or EMPTY
    if len(text) <= _LETTERS_MAX:
        return text
    end = _DIGEST + sha256(raw).hexdigest()
    return text[: _LETTERS_MAX - len(end)] + end


def _is_plain(byte: int) -> bool:
    letter = chr(byte)
    return byte < 128 and (letter.isalnum() or letter in ".-")
