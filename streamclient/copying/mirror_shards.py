"""The changes of a mirror's shards that wait to be merged, and the batches that the mirror cuts out of them."""

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
    """The limits at which a mirror merges waiting changes.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    max_records: int = field(default=10_000, validator=checks.positive)
    """A shard's batch is due once this many changes wait."""
    max_mebibytes: int = field(default=64, validator=checks.positive)
    """A shard's batch is due once its waiting changes have this size. One merge may have batches of several shards, but
    in total its changes have less than twice this size. A merge needs several times the size of its changes as memory.
    A merge fails if a column has more than two gigabytes of text."""
    max_age_seconds: float = field(default=2.0, validator=checks.seconds)
    """A shard's batch is due once its first change has waited for this many seconds. With a shorter time, the mirror
    writes more and smaller files."""
    expiry_seconds: float = field(default=300.0, validator=checks.seconds)
    """The seconds between two removals of cells that have exceeded the table's time to live."""

    @property
    def max_bytes(self) -> int:
        """The limit ``max_mebibytes``, converted to bytes."""
        return self.max_mebibytes << 20


@frozen
class WaitingPage:
    """The waiting changes of one read. A batch has only whole pages, because only the end of a page has a position."""

    records: Sequence[StreamRecord]
    size_bytes: int
    """The approximate size of the changes in bytes, as the service sends them."""
    end: str
    arrived: float

    @classmethod
    def of(cls, records: Sequence[StreamRecord], end: str, arrived: float) -> WaitingPage:
        """Return a page with ``records`` as a list. A lazy sequence would make each record object repeatedly."""
        if isinstance(records, PageRecords):
            return cls(list(records), records.size_bytes, end, arrived)
        return cls(list(records), size_of(cell.value for each in records for cell in each.columns), end, arrived)


@define(eq=False)
class MirroredShard:
    """The state of one shard while a processor has it. A thread that uses it must hold the lock of ``MirrorWriter``."""

    info: ShardInfo
    checkpointer: IRecordProcessorCheckpointer
    marker: IShutdownMarker
    start: str
    """The position at which the shard's next commit begins."""
    promised: Commit | None = None
    """The commit that an earlier owner of the shard prepared and did not complete, or ``None``. The next batch must
    have the records and the end of this commit."""
    pages: list[WaitingPage] = field(factory=list)
    is_flushing: bool = False
    is_ending: bool = False
    """Whether the shard has been read to its end, so that no further pages come."""
    is_under_way: bool = False
    is_lost: bool = False
    error: Exception | None = None

    @property
    def waiting(self) -> int:
        """The number of changes of the shard that wait to be merged."""
        return sum(len(page.records) for page in self.pages)

    @property
    def waiting_bytes(self) -> int:
        """The approximate size, in bytes, of the changes of the shard that wait to be merged."""
        return sum(page.size_bytes for page in self.pages)

    def is_full(self, limits: MergeLimits, times: int = 1) -> bool:
        """Return whether the waiting changes fill at least ``times`` batches, by their number or by their size."""
        return self.waiting >= times * limits.max_records or self.waiting_bytes >= times * limits.max_bytes

    @property
    def is_over(self) -> bool:
        """Whether no further changes of the shard will be merged, because of an error or a lost lease."""
        return self.is_lost or self.error is not None or self.checkpointer.is_closed

    @property
    def is_settled(self) -> bool:
        """Whether no merge of the shard is running, and none will follow for the changes that have arrived."""
        if self.is_under_way:
            return False
        return self.is_over or (not self.pages and not (self.is_ending and self.start != CheckpointPosition.SHARD_END))

    def due_at(self, limits: MergeLimits) -> float | None:
        """Return the time at which the shard's next batch must be merged; ``None`` if no batch can be merged now."""
        if self.is_over or self.is_under_way or self._pages_to_cut(limits) is None:
            return None
        if self.is_flushing or self.promised is not None or self.is_full(limits):
            return 0.0
        return self.pages[0].arrived + limits.max_age_seconds

    def cut(self, limits: MergeLimits) -> ShardCut:
        """Remove the pages of the next batch, and return them as the shard's part of a merge."""
        count = self._pages_to_cut(limits) or 0
        pages, self.pages = self.pages[:count], self.pages[count:]
        is_end = self.is_ending and not self.pages
        end = CheckpointPosition.SHARD_END if is_end else pages[-1].end
        self.is_under_way = True
        records = [record for page in pages for record in page.records]
        size = sum(page.size_bytes for page in pages)
        return ShardCut(self, ShardChanges.of(self.info.shard_id, records), size, end)

    def _pages_to_cut(self, limits: MergeLimits) -> int | None:
        """Return the number of waiting pages in the next batch; ``None`` if there is no complete batch."""
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
    """One shard's part of a merge: its changes, the position where they end, and their commit."""

    shard: MirroredShard
    part: ShardChanges
    size_bytes: int
    end: str
    commit: Commit | None = None
    prepared: IPreparedCheckpoint | None = None
