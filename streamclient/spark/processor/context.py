"""What a sink is told about a batch."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from attrs import field, frozen

from streamclient.destinations.commit import Commit
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.records import ColumnType, SequenceInfo

_KEY_CHARACTERS = 32
"""128 bits of SHA-256: no two keys collide, and names of directories stay short."""


def _nobody() -> frozenset[str]:
    return frozenset()


def _raise(shard_id: str, error: StreamClientError) -> None:
    raise error


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def output_key(stream_id: str, shard_id: str, start_position: str) -> str:
    """Key of a batch's output; see ``ShardRange.output_key``."""
    return _digest(stream_id, shard_id, start_position)


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
    """Records of the shard in the frame; 0 for the end of a shard alone."""
    first_sequence: SequenceInfo | None
    last_sequence: SequenceInfo | None
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
    """Of the values that stand in it; a value of another type stands in ``_unfit``."""
    is_key: bool = False


@frozen
class BatchContext:
    """Which changes a frame holds, and under which keys to store them so that a repeat adds nothing."""

    ranges: tuple[ShardRange, ...]
    """One per shard, by shard id."""
    columns: tuple[FrameColumn, ...]
    """The table's columns in the frame: keys first, then attributes."""
    commits: tuple[Commit, ...] = ()
    """One per shard, by shard id: what a destination stores beside the rows. Where the batch goes to a destination,
    each follows its last one; for a sink they follow each other as long as this factory reads the shard on."""
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

        Raises:
            ConfigurationError: the batch has no such shard, so nobody knows which part is not stored; or the error is
                none of this package.
        """
        if not isinstance(error, StreamClientError):
            raise ConfigurationError(
                f"the error of a refused shard must be a StreamClientError, such as a FencedException, not {error!r}"
            )
        known = [one.shard_id for one in self.ranges]
        if shard_id not in known:
            raise ConfigurationError(f"only shards of the batch can be refused, {', '.join(known)}, not {shard_id!r}")
        self._refuse(shard_id, error)
