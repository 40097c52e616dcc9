"""Partition columns of a Delta table, with values that every reader reads unchanged.

Some values change in a partition column. Delta Lake turns the empty text and ``__HIVE_DEFAULT_PARTITION__`` into null,
and Spark decodes characters beyond ASCII wrongly. So keys are escaped into ASCII. The escapes have no percent signs,
because Delta would escape a percent sign in a file name, and its clean-up would then not recognise the file.
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
"""The partition value of a null key. No other key has this value, because after an underscore an escaped key has two
hexadecimal digits."""

_DIGEST = "_."
"""The text between the first characters of a long key and the digest of the whole key. No shorter escaped key contains
this text."""

_LETTERS_MAX = 128
"""The largest number of characters in a partition value. The directory name ``_key=VALUE`` may have at most 255 bytes,
and only 143 on some encrypted disks."""


@frozen
class Day:
    """A partition column ``_day``, with a directory for each UTC day on which the service accepted changes."""

    column = DAY

    def values(self, rows: Table) -> Array | ChunkedArray:
        """Return the values of the partition column for ``rows``: the UTC day of each row's change."""
        if not rows.num_rows:  # a commit without changes, for example at a shard's end, may lack the columns of changes
            return pyarrow().array([], pyarrow().date32())
        if TIMESTAMP not in rows.column_names:
            raise ConfigurationError(
                f"rows without {TIMESTAMP} cannot be partitioned by day; they have {rows.column_names}"
            )
        return compute().cast(rows.column(TIMESTAMP), pyarrow().date32())


@checks.explains_names
@frozen
class Key:
    """A partition column ``_key``, with a directory for each value of one key column of the source table.

    Use it for a key column with at most a few hundred different values.
    """

    name: str = field(validator=checks.text)
    """The name of the key column in the Tablestore table."""

    column = KEY

    def values(self, rows: Table) -> Array | ChunkedArray:
        """Return the values of the partition column for ``rows``: each row's escaped value of the key column."""
        if not rows.num_rows:  # a commit without changes, for example at a shard's end, has no source columns
            return pyarrow().array([], pyarrow().string())
        stored = next((name for name in rows.column_names if original_name(name) == self.name), None)
        if stored is None:
            raise ConfigurationError(f"rows cannot be partitioned by {self.name!r}: they have only {rows.column_names}")
        return pyarrow().array([escaped(value) for value in rows.column(stored).to_pylist()], pyarrow().string())


Partition = Day | Key


def escaped(value: object) -> str:
    """Return a key's value as a directory name.

    Each byte that is not an ASCII letter, a digit, ``.`` or ``-`` becomes ``_xx``. A name that would be too long is
    cut, and ends in ``_.`` and the SHA-256 of the whole value.
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
