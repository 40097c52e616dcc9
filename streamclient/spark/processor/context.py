"""The description of a batch that a sink receives."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from attrs import field, frozen

from streamclient.destinations.commit import Commit
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.records import ColumnType, SequenceInfo

_KEY_CHARACTERS = 32
"""The number of characters of a key. They hold 128 bits of SHA-256, so keys do not collide, and names of directories
stay short."""


def _no_shards() -> frozenset[str]:
    return frozenset()


def _raise(shard_id: str, error: StreamClientError) -> None:
    raise error


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def output_key(stream_id: str, shard_id: str, start_position: str) -> str:
    """Return the key of a batch's output; see ``ShardRange.output_key``."""
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
    """The checkpoint that is stored once the sink has returned."""
    record_count: int
    """The number of the shard's records in the frame; 0 for the mere end of a shard."""
    first_sequence: SequenceInfo | None
    last_sequence: SequenceInfo | None
    epoch: int = 0
    """The epoch of the lease's present owner, ``ShardInfo.epoch``: greater than the epoch of every earlier owner. A
    sink that stores it with its output can refuse a writer that has lost the shard; see ``BatchContext.refuse``."""

    @property
    def output_key(self) -> str:
        """The key under which a repeat of this batch must overwrite; it depends on the shard and the start only.

        After a crash the batch starts again at the same stored checkpoint, but may end elsewhere. So everything that
        was written and not checkpointed has this key, and replacing all of that output neither loses nor repeats a
        record.
        """
        return output_key(self.stream_id, self.shard_id, self.start_position)


@frozen
class FrameColumn:
    """One column of the source table in the frame."""

    name: str
    type: ColumnType
    """The type of its values. A value of another type goes to ``_unfit``."""
    is_key: bool = False


@frozen
class BatchContext:
    """The changes that a frame holds, and keys to store them so that a repeat adds nothing."""

    ranges: tuple[ShardRange, ...]
    """One range per shard, sorted by shard id."""
    columns: tuple[FrameColumn, ...]
    """The table's columns in the frame: keys first, then attributes."""
    commits: tuple[Commit, ...] = ()
    """One commit per shard, sorted by shard id, for a destination to store with the rows. In a destination, each commit
    follows the shard's last one there; for a sink, the commits follow each other as long as this factory reads the
    shard."""
    _lost_shards: Callable[[], frozenset[str]] = field(default=_no_shards, eq=False, repr=False)
    _refuse: Callable[[str, StreamClientError], None] = field(default=_raise, eq=False, repr=False)

    @property
    def batch_id(self) -> str:
        """An id that is equal for the same shards, starts and ends.

        A repeat after a crash may be cut differently and then has another id: key output by
        ``ShardRange.output_key``, and use this id for logs.
        """
        parts = [part for shard_range in self.ranges for part in (shard_range.output_key, shard_range.end_position)]
        return _digest(*parts)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns, in key order."""
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def record_count(self) -> int:
        """Number of rows in the frame."""
        return sum(shard_range.record_count for shard_range in self.ranges)

    def lost_shards(self) -> frozenset[str]:
        """Return the shards of the batch that lost their lease since it began.

        Do not publish their part: it has a new owner.
        """
        return self._lost_shards()

    def refuse(self, shard_id: str, error: StreamClientError) -> None:
        """Report that one shard's part was not stored, and why. The other shards go on, and are checkpointed.

        If a destination knows a greater epoch than ``ShardRange.epoch``, the error must be a ``FencedException``. The
        shard's processor raises the error, and the owner of the lease reads the records again from the last checkpoint.

        Raises:
            ConfigurationError: the batch does not have the shard, so the missing part is unknown; or ``error`` does not
                belong to this package.
        """
        if not isinstance(error, StreamClientError):
            raise ConfigurationError(
                f"the error of a refused shard must be a StreamClientError, such as a FencedException, not {error!r}"
            )
        known = [shard_range.shard_id for shard_range in self.ranges]
        if shard_id not in known:
            raise ConfigurationError(f"only shards of the batch can be refused, {', '.join(known)}, not {shard_id!r}")
        self._refuse(shard_id, error)
