"""Changes of each shard that wait to be merged, and the part of them that one merge takes."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from streamclient.base import checks
from streamclient.copying.source_table import size_of
from streamclient.destinations.commit import Commit
from streamclient.destinations.folding.folded_batches import ShardChanges
from streamclient.interfaces import IPreparedCheckpoint, IRecordProcessorCheckpointer, IShutdownMarker
from streamclient.model import CheckpointPosition, ShardInfo
from streamclient.records import StreamRecord
from streamclient.wire.page_parts import PageRecords


@checks.explains_names
@frozen(kw_only=True)
class MergeLimits:
    """The bounds at which changes are merged.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    max_records: int = field(default=10_000, validator=checks.positive)
    """A shard's batch is due at this number of changes."""
    max_mebibytes: int = field(default=64, validator=checks.positive)
    """A shard's batch is due at this size, and one merge takes less than twice this size from all shards. A merge needs
    several times as much memory, and a column of text cannot have more than two gigabytes."""
    max_age_seconds: float = field(default=2.0, validator=checks.seconds)
    """A shard's batch is due when its first change has waited for this time, in seconds. Shorter times write files more
    often."""
    expiry_seconds: float = field(default=300.0, validator=checks.seconds)
    """Time between two removals of expired cells."""

    @property
    def max_bytes(self) -> int:
        """``max_mebibytes`` in bytes."""
        return self.max_mebibytes << 20


@frozen
class WaitingPage:
    """A page of waiting changes. It is the smallest unit of a batch, because only the end of a page is a position."""

    records: Sequence[StreamRecord]
    size_bytes: int
    """The approximate size on the wire."""
    end: str
    arrived: float

    @classmethod
    def of(cls, records: Sequence[StreamRecord], end: str, arrived: float) -> WaitingPage:
        """Make a page of delivered records.

        Each record object is made only once, because records are read several times.
        """
        if isinstance(records, PageRecords):
            return cls(list(records), records.size_bytes, end, arrived)
        return cls(list(records), size_of(cell.value for each in records for cell in each.columns), end, arrived)


@define(eq=False)
class MirroredShard:
    """The state of one shard while a processor has it. Guarded by the writer's lock."""

    info: ShardInfo
    checkpointer: IRecordProcessorCheckpointer
    marker: IShutdownMarker
    start: str
    """The position at which the next commit begins."""
    promised: Commit | None = None
    """The batch that an earlier owner prepared. It must be stored with exactly the same end."""
    pages: list[WaitingPage] = field(factory=list)
    is_flushing: bool = False
    is_ending: bool = False
    """Whether the shard ends after its last page."""
    is_under_way: bool = False
    is_lost: bool = False
    error: Exception | None = None

    @property
    def waiting(self) -> int:
        """Number of waiting changes."""
        return sum(len(page.records) for page in self.pages)

    @property
    def waiting_bytes(self) -> int:
        """Size of the waiting changes."""
        return sum(page.size_bytes for page in self.pages)

    def is_full(self, limits: MergeLimits, times: int = 1) -> bool:
        """Return whether at least ``times`` times the limits of a batch wait."""
        return self.waiting >= times * limits.max_records or self.waiting_bytes >= times * limits.max_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing more of the shard is merged."""
        return self.is_lost or self.error is not None or self.checkpointer.is_closed

    @property
    def is_settled(self) -> bool:
        """Whether no merge of the shard is left to wait for."""
        if self.is_under_way:
            return False
        return self.is_over or (not self.pages and not (self.is_ending and self.start != CheckpointPosition.SHARD_END))

    def due_at(self, limits: MergeLimits) -> float | None:
        """Return the time at which a batch of the shard must be merged; ``None`` if no batch can be cut."""
        if self.is_over or self.is_under_way or self._pages_to_cut(limits) is None:
            return None
        if self.is_flushing or self.promised is not None or self.is_full(limits):
            return 0.0
        return self.pages[0].arrived + limits.max_age_seconds

    def cut(self, limits: MergeLimits) -> ShardCut:
        """Remove the pages of the next batch from the waiting ones, and return them as the shard's part of a merge."""
        count = self._pages_to_cut(limits) or 0
        pages, self.pages = self.pages[:count], self.pages[count:]
        is_end = self.is_ending and not self.pages
        end = CheckpointPosition.SHARD_END if is_end else pages[-1].end
        self.is_under_way = True
        records = [record for page in pages for record in page.records]
        size = sum(page.size_bytes for page in pages)
        return ShardCut(self, ShardChanges.of(self.info.shard_id, records), size, end)

    def _pages_to_cut(self, limits: MergeLimits) -> int | None:
        """Return the number of pages of the next batch; ``None`` while it cannot be cut."""
        if self.promised is not None:
            if self.promised.end == CheckpointPosition.SHARD_END:
                return len(self.pages) if self.is_ending else None
            ends = [page.end for page in self.pages]
            return ends.index(self.promised.end) + 1 if self.promised.end in ends else None
        count = records = size = 0
        while count < len(self.pages) and records < limits.max_records and size < limits.max_bytes:
            records, size = records + len(self.pages[count].records), size + self.pages[count].size_bytes
            count += 1
        is_at_end = self.is_ending and self.start != CheckpointPosition.SHARD_END
        return count if count or is_at_end else None


@define(eq=False)
class ShardCut:
    """A shard's part of one merge."""

    shard: MirroredShard
    part: ShardChanges
    size_bytes: int
    end: str
    commit: Commit | None = None
    prepared: IPreparedCheckpoint | None = None
