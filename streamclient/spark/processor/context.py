"""The description of a batch that a transform or a sink gets with its frame."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from attrs import field, frozen

from streamclient.destinations.commit import Commit
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.records import ColumnType, SequenceInfo

_KEY_CHARACTERS = 32
"""The number of hexadecimal characters of an output key or a batch id. They hold 128 bits of a SHA-256: enough to avoid
collisions, and short enough for the names of directories."""


def _no_shards() -> frozenset[str]:
    return frozenset()


def _raise(shard_id: str, error: StreamClientError) -> None:
    raise error


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]


def output_key(stream_id: str, shard_id: str, start_position: str) -> str:
    """Return the ``ShardRange.output_key`` of a shard's range that starts at ``start_position``."""
    return _digest(stream_id, shard_id, start_position)


@frozen
class ShardRange:
    """The range of one shard's records in a batch, from ``start_position`` to ``end_position``."""

    shard_id: str
    stream_id: str
    lease_identifier: str
    start_position: str
    """The shard's stored checkpoint when the batch began. The first record of the range comes after this position."""
    end_position: str
    """The position after the last record of the range. It becomes the checkpoint once the sink has returned."""
    record_count: int
    """The number of the shard's records in the frame; 0 if the range only marks the end of the shard."""
    first_sequence: SequenceInfo | None
    last_sequence: SequenceInfo | None
    epoch: int = 0
    """The epoch of this worker's lease, ``ShardInfo.epoch``. It is greater than the epoch of every earlier owner. A
    sink that stores the epoch with its output can refuse a writer that has lost the shard; see
    ``BatchContext.refuse``."""

    @property
    def output_key(self) -> str:
        """The key under which a sink stores its output of this range. A sink must overwrite older output with this key.

        The key depends only on the shard and ``start_position``. After a crash, the shard's next batch starts at the
        same checkpoint, but may end at another position. If the crash came after the sink had written its output, and
        before the checkpoint was stored, the next batch has the same key. So it replaces this output, and no record is
        lost or repeated.
        """
        return output_key(self.stream_id, self.shard_id, self.start_position)


@frozen
class FrameColumn:
    """A column of a batch's frame that comes from the source table."""

    name: str
    type: ColumnType
    """The type of the column. A value of another type is in the map ``_unfit``."""
    is_key: bool = False


@frozen
class BatchContext:
    """A description of the batch in a frame, with keys by which a sink can store the changes without duplicates."""

    ranges: tuple[ShardRange, ...]
    """The batch's records as ranges, one for each shard, sorted by shard id."""
    columns: tuple[FrameColumn, ...]
    """The frame's columns from the source table: first the key columns, then the attributes."""
    commits: tuple[Commit, ...] = ()
    """One commit for each shard of the batch, sorted by shard id. With a destination, each commit follows the shard's
    last commit in the destination. With a sink, it follows the last commit that this factory made for the shard."""
    _lost_shards: Callable[[], frozenset[str]] = field(default=_no_shards, eq=False, repr=False)
    _refuse: Callable[[str, StreamClientError], None] = field(default=_raise, eq=False, repr=False)

    @property
    def batch_id(self) -> str:
        """An id of the batch, for logs. It depends on the batch's shards and their starts and ends.

        A batch that is repeated after a crash may end at another position, and then has another id. So do not use this
        id as a key of output. Use ``ShardRange.output_key``.
        """
        parts = [part for shard_range in self.ranges for part in (shard_range.output_key, shard_range.end_position)]
        return _digest(*parts)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of the frame's key columns, in the order of the primary key."""
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def record_count(self) -> int:
        """The number of rows in the frame: one for each record of all ``ranges``."""
        return sum(shard_range.record_count for shard_range in self.ranges)

    def lost_shards(self) -> frozenset[str]:
        """Return the shards of the batch whose leases this worker has lost since the batch began.

        Do not publish the rows of these shards: their new owners will write them.
        """
        return self._lost_shards()

    def refuse(self, shard_id: str, error: StreamClientError) -> None:
        """Report that the rows of one shard were not stored. The other shards of the batch are checkpointed as usual.

        The shard's processor raises ``error``, and the owner of the lease reads the records again from the last
        checkpoint. If the sink has stored a greater epoch than ``ShardRange.epoch``, ``error`` must be a
        ``FencedException``.

        Raises:
            ConfigurationError: ``shard_id`` is not a shard of the batch, or ``error`` is not an exception of this
                package.
        """
        if not isinstance(error, StreamClientError):
            raise ConfigurationError(
                f"the error of a refused shard must be a StreamClientError, such as a FencedException, not {error!r}"
            )
        known = [shard_range.shard_id for shard_range in self.ranges]
        if shard_id not in known:
            raise ConfigurationError(
                f"shard {shard_id!r} cannot be refused, because the batch has only {', '.join(known)}: name one of them"
            )
        self._refuse(shard_id, error)
