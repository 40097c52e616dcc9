"""Records of one shard that wait for their commit. Pure: no clock, no lock; callers pass the time in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from streamclient.model import PendingCheckpoint
from streamclient.records import SequenceInfo
from streamclient.spark.processor.spark_config import SparkConfig

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@frozen(eq=False)
class BufferedPage:
    """What one read returned: the smallest unit of a batch, since only its end is a position."""

    columns: RecordBatch | None
    """The records by column, at least one; ``None`` for the end of a shard alone."""
    end_position: str
    arrived_at: float

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return 0 if self.columns is None else self.columns.num_rows

    @property
    def size_bytes(self) -> int:
        """About how much memory they take."""
        return 0 if self.columns is None else self.columns.nbytes

    def sequence(self, index: int) -> SequenceInfo:
        """Place of one of its records in the shard."""
        assert self.columns is not None, "the end of a shard has no records"
        return SequenceInfo(**self.columns.column("sequence_info")[index].as_py())


@frozen
class ShardBatch:
    """A batch of one shard, taken out of its buffer."""

    start_position: str
    pages: tuple[BufferedPage, ...]

    @property
    def end_position(self) -> str:
        """Where the next batch starts."""
        return self.pages[-1].end_position

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return sum(page.record_count for page in self.pages)

    @property
    def first(self) -> SequenceInfo | None:
        """Place of its first record; ``None`` for the end of a shard alone."""
        return next((page.sequence(0) for page in self.pages if page.record_count), None)

    @property
    def last(self) -> SequenceInfo | None:
        """Place of its last record; ``None`` for the end of a shard alone."""
        return next((page.sequence(page.record_count - 1) for page in reversed(self.pages) if page.record_count), None)

    @property
    def size_bytes(self) -> int:
        """Room that becomes free once the batch is settled."""
        return sum(page.size_bytes for page in self.pages)


@define
class ShardBuffer:
    """Pages in order of arrival, and the position before the first of them."""

    start_position: str
    prepared: PendingCheckpoint | None = None
    """A batch that an earlier processor cut and prepared: the next one has to be the very same. A later owner may not
    cut it otherwise, as the earlier one may still be about to store it."""
    pages: deque[BufferedPage] = field(factory=deque)
    record_count: int = 0
    size_bytes: int = 0

    _prepared_pages: int | None = None
    """How many of the pages are what was prepared; ``None`` while more may come of it."""

    def add(self, page: BufferedPage) -> None:
        """Append a page."""
        self.pages.append(page)
        self.record_count += page.record_count
        self.size_bytes += page.size_bytes
        if self.prepared is not None and self._prepared_pages is None:
            self._prepared_pages = self._count_prepared(self.prepared, page)

    def _count_prepared(self, prepared: PendingCheckpoint, page: BufferedPage) -> int | None:
        """Where records are lost, as they left the stream, no page may end at the prepared position.

        The batch then ends before the first page that lies behind it, or where that is not known with so many records.
        """
        if page.end_position == prepared.value:
            return len(self.pages)
        if prepared.last is None:
            return len(self.pages) if 0 < prepared.records <= self.record_count else None
        is_behind = not page.record_count or page.sequence(0) > prepared.last
        return len(self.pages) - 1 if is_behind else None

    @property
    def is_incomplete(self) -> bool:
        """Whether the next batch was prepared, and has not arrived as a whole."""
        return self.prepared is not None and self._prepared_pages is None

    def due_at(self, config: SparkConfig) -> float | None:
        """When the batch must be committed: ``None`` while there is none, at once if large enough, else by age."""
        if not self.pages or self.is_incomplete:
            return None
        arrived_at = self.pages[0].arrived_at
        is_full = self.record_count >= config.max_records or self.size_bytes >= config.max_bytes
        if is_full or self.prepared is not None:
            return arrived_at
        return arrived_at + config.max_age_millis / 1000

    def cut(self, config: SparkConfig) -> ShardBatch:
        """Take out the next batch: what was prepared, else pages until a limit is reached, at least one."""
        pages: list[BufferedPage] = []
        records = size = 0
        # Nothing of what was prepared may be left: then the next batch is as any other.
        wanted = self._prepared_pages
        while self.pages and (
            len(pages) < wanted if wanted else records < config.max_records and size < config.max_bytes
        ):
            page = self._pop()
            pages.append(page)
            records, size = records + page.record_count, size + page.size_bytes
        self.prepared = self._prepared_pages = None
        taken = ShardBatch(self.start_position, tuple(pages))
        self.start_position = taken.end_position
        return taken

    def _pop(self) -> BufferedPage:
        page = self.pages.popleft()
        self.record_count -= page.record_count
        self.size_bytes -= page.size_bytes
        return page

    def clear(self) -> int:
        """Drop everything; returns the bytes that this frees."""
        freed, self.size_bytes, self.record_count = self.size_bytes, 0, 0
        self.pages.clear()
        return freed
