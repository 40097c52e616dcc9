"""Change records as frozen values.

A record is what one write to the table left in its stream. Nothing above the codec depends on how a record is stored:
code reads the attributes below, never the layout.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

KeyValue = int | str | bytes
"""What a primary key column may hold: INTEGER, STRING, BINARY."""

PrimaryKey = tuple[tuple[str, KeyValue], ...]
"""Key columns as (name, value), in the table's key order."""

ColumnValue = int | float | bool | str | bytes
"""What an attribute column may hold: INTEGER, DOUBLE, BOOLEAN, STRING, BINARY."""


class RecordType(Enum):
    """What happened to the row (Java: ``StreamRecord.RecordType``)."""

    PUT = "PUT"
    """The whole row was replaced by the columns of this record."""

    UPDATE = "UPDATE"
    """The columns of this record changed; others kept their values."""

    DELETE = "DELETE"
    """The row was deleted; the record has no columns."""


class ColumnOperation(Enum):
    """What happened to one column (Java: ``RecordColumn.ColumnType``)."""

    PUT = "PUT"
    DELETE_ONE_VERSION = "DELETE_ONE_VERSION"
    DELETE_ALL_VERSION = "DELETE_ALL_VERSION"


@frozen(order=True)
class SequenceInfo:
    """Position of a record inside its shard. Order is (epoch, timestamp, row index); never compare across shards."""

    epoch: int
    timestamp_micros: int
    """When the service took the write, microseconds since 1970, by the clock of the server that took it."""
    row_index: int
    """Position among the rows of one batch, which share epoch and timestamp."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.timestamp_micros}/{self.row_index}"


@frozen
class RecordColumn:
    """One cell of a record."""

    name: str
    operation: ColumnOperation
    value: ColumnValue | None = None
    """The new value for ``PUT``; ``None`` for both kinds of deletion. A stored value is never ``None``."""
    timestamp_millis: int | None = None
    """The cell's version in milliseconds; ``None`` for ``DELETE_ALL_VERSION``."""

    def __str__(self) -> str:
        # A name may be any text, line ends and equals signs included: what is not plain is shown as a literal.
        name = self.name if self.name.isidentifier() else repr(self.name)
        version = "" if self.timestamp_millis is None else f"@{self.timestamp_millis}"
        if self.operation is ColumnOperation.PUT:
            return f"{name}={self.value!r}{version}"
        return f"{name} {self.operation.value}{version}"


@frozen
class StreamRecord:
    """One change of one row, as the stream delivers it."""

    record_type: RecordType
    primary_key: PrimaryKey
    columns: tuple[RecordColumn, ...] = ()
    """The cells that this change wrote or deleted; a column may occur more than once, with different versions."""
    sequence_info: SequenceInfo = SequenceInfo(0, 0, 0)
    original_columns: tuple[RecordColumn, ...] | None = None
    """The previous cells of the stream's origin columns; ``None`` where the stream delivers none."""

    @property
    def key(self) -> dict[str, KeyValue]:
        """The primary key as a dictionary, made anew at each access."""
        return dict(self.primary_key)

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.primary_key)
        cells = ", ".join(str(column) for column in self.columns)
        return f"{self.record_type.value} {{{key}}} [{cells}] at {self.sequence_info}"
