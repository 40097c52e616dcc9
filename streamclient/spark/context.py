"""What a sink is told about a batch."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from attrs import field, frozen

from streamclient.errors import StreamClientError
from streamclient.model import ColumnType
from streamclient.records import SequenceInfo, StreamRecord

_KEY_CHARACTERS = 32
"""128 bits of SHA-256: no two keys of a lake collide, and directory names stay short."""


def _nobody() -> frozenset[str]:
    return frozenset()


def _raise(shard_id: str, error: StreamClientError) -> None:
    raise error


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def output_key(stream_id: str, shard_id: str, start_position: str) -> str:
    """Key of a batch's output; see ``ShardRange.output_key``."""
    return _digest(stream_id, shard_id, start_position)


def sequence_text(sequence: SequenceInfo) -> str:
    """Sequence information as text of fixed width, so that text order is sequence order."""
    return f"{sequence.epoch:010d}/{sequence.timestamp_micros:020d}/{sequence.row_index:010d}"


@frozen
class ShardRange:
    """The records of one shard in a batch: everything after ``start_position`` up to ``end_position``."""

    shard_id: str
    stream_id: str
    lease_identifier: str
    start_position: str
    """The stored checkpoint before this batch."""
    end_position: str
    """What is checkpointed once the sink has returned."""
    record_count: int
    """Records of the shard in the frame; 0 if every one of them was diverted."""
    first_sequence: SequenceInfo
    last_sequence: SequenceInfo
    epoch: int = 0
    """Of the lease's present owner, ``ShardInfo.epoch``: greater than that of every earlier one. A sink that stores it
    beside its output can refuse a writer that has lost the shard; see ``BatchContext.refuse``."""

    @property
    def output_key(self) -> str:
        """Key under which a repeat of this batch must overwrite: depends on shard and start only.

        After a crash the batch starts again at the same stored checkpoint, but may end elsewhere. Everything written
        and not checkpointed therefore has this key, and replacing all of it neither loses nor repeats a record.
        """
        return output_key(self.stream_id, self.shard_id, self.start_position)


@frozen
class FrameColumn:
    """One column of the table in the frame."""

    name: str
    type: ColumnType
    is_key: bool = False
    has_wide_integers: bool = False
    """Whether an INTEGER beyond 2**53 was seen: DOUBLE cannot hold this column."""


@frozen
class BatchContext:
    """Which changes a frame holds, and under which keys to store them so that a repeat adds nothing."""

    ranges: tuple[ShardRange, ...]
    """One per shard, by shard id."""
    columns: tuple[FrameColumn, ...]
    """The table's columns in the frame: keys first, then attributes."""
    prefix: str = "_"
    """First characters of the other columns, such as ``_operation``."""
    _lost_shards: Callable[[], frozenset[str]] = field(default=_nobody, eq=False, repr=False)
    _refuse: Callable[[str, StreamClientError], None] = field(default=_raise, eq=False, repr=False)

    @property
    def batch_id(self) -> str:
        """The same for the same shards, starts and ends.

        A repeat after a crash may be cut differently and then has another id: key output by
        ``ShardRange.output_key``, and use this one for logs.
        """
        parts = [part for one in self.ranges for part in (one.output_key, one.end_position)]
        return _digest(*parts)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns, in key order."""
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def record_count(self) -> int:
        """Rows of the frame."""
        return sum(one.record_count for one in self.ranges)

    def lost_shards(self) -> frozenset[str]:
        """Shards of the batch whose lease was lost since it began. Do not publish their part: it has a new owner."""
        return self._lost_shards()

    def refuse(self, shard_id: str, error: StreamClientError) -> None:
        """Say that one shard's part was not stored, and why; the others go on, and are checkpointed.

        For a destination that knows a greater epoch than ``ShardRange.epoch`` the error is a ``FencedException``. The
        shard's processor raises it, and its records are read again from the last checkpoint by whoever has the lease.
        """
        self._refuse(shard_id, error)


@frozen
class RejectedRecord:
    """A record that was diverted, whole, because one of its values does not fit."""

    shard_id: str
    record: StreamRecord
    reason: str


@frozen
class UnfitReport:
    """A value did not fit its column; what was done about it."""

    shard_id: str
    column: str
    sequence_info: SequenceInfo
    """The first record concerned."""
    given: str
    expected: str
    outcome: str

    def __str__(self) -> str:
        return (
            f"column {self.column!r} of shard {self.shard_id} is {self.expected}, the record at {self.sequence_info} "
            f"holds {self.given}: {self.outcome}"
        )
