"""Records of one shard that wait for their commit. Pure, without clock and lock; callers pass the time."""

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
    """The result of one read. It is the smallest unit of a batch, because only the end of a read is a position."""

    columns: RecordBatch | None
    """The records by column, at least one record; ``None`` for the mere end of a shard."""
    end_position: str
    arrived_at: float

    @property
    def record_count(self) -> int:
        """Number of records."""
        return 0 if self.columns is None else self.columns.num_rows

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the records, in bytes."""
        return 0 if self.columns is None else self.columns.nbytes

    def sequence(self, index: int) -> SequenceInfo:
        """Return the sequence of the record at ``index``."""
        assert self.columns is not None, "the end of a shard has no records"
        return SequenceInfo(**self.columns.column("sequence_info")[index].as_py())


@frozen
class ShardBatch:
    """A batch of one shard, removed from its buffer."""

    start_position: str
    pages: tuple[BufferedPage, ...]

    @property
    def end_position(self) -> str:
        """The position at which the next batch starts."""
        return self.pages[-1].end_position

    @property
    def record_count(self) -> int:
        """Number of records."""
        return sum(page.record_count for page in self.pages)

    @property
    def first(self) -> SequenceInfo | None:
        """The sequence of the batch's first record; ``None`` for the mere end of a shard."""
        return next((page.sequence(0) for page in self.pages if page.record_count), None)

    @property
    def last(self) -> SequenceInfo | None:
        """The sequence of the batch's last record; ``None`` for the mere end of a shard."""
        return next((page.sequence(page.record_count - 1) for page in reversed(self.pages) if page.record_count), None)

    @property
    def size_bytes(self) -> int:
        """The bytes of memory that become free once the batch is settled."""
        return sum(page.size_bytes for page in self.pages)


@define
class ShardBuffer:
    """Pages in order of arrival, and the position before the first of them."""

    start_position: str
    prepared: PendingCheckpoint | None = None
    """The batch that an earlier processor cut and prepared. The next batch must be identical: a later owner must not
    cut it differently, because the earlier owner may still be about to store it."""
    pages: deque[BufferedPage] = field(factory=deque)
    record_count: int = 0
    size_bytes: int = 0

    _prepared_pages: int | None = None
    """The number of pages that make up the prepared batch; ``None`` while more may belong to it."""

    def add(self, page: BufferedPage) -> None:
        """Append a page."""
        self.pages.append(page)
        self.record_count += page.record_count
        self.size_bytes += page.size_bytes
        if self.prepared is not None and self._prepared_pages is None:
            self._prepared_pages = self._count_prepared(self.prepared, page)

    def _count_prepared(self, prepared: PendingCheckpoint, page: BufferedPage) -> int | None:
        """Return the number of pages in the prepared batch; ``None`` while more may belong to it.

        If records were lost, because they left the stream, no page may end at the prepared position. The batch then
        ends before the first page after that position, or, if the order is unknown, after as many records as were
        prepared.
        """
        if page.end_position == prepared.value:
            return len(self.pages)
        if prepared.last is None:
            return len(self.pages) if 0 < prepared.records <= self.record_count else None
        is_after = not page.record_count or page.sequence(0) > prepared.last
        return len(self.pages) - 1 if is_after else None

    @property
    def is_incomplete(self) -> bool:
        """Whether the next batch was prepared, and has not arrived completely."""
        return self.prepared is not None and self._prepared_pages is None

    def due_at(self, config: SparkConfig) -> float | None:
        """Return the time at which to commit the next batch; ``None`` if no complete batch waits."""
        if not self.pages or self.is_incomplete:
            return None
        arrived_at = self.pages[0].arrived_at
        is_full = self.record_count >= config.max_records or self.size_bytes >= config.max_bytes
        if is_full or self.prepared is not None:
            return arrived_at
        return arrived_at + config.max_age_millis / 1000

    def cut(self, config: SparkConfig) -> ShardBatch:
        """Remove the next batch: the prepared one, or else pages until a limit is reached, at least one."""
        pages: list[BufferedPage] = []
        records = size = 0
        # All records of the prepared batch may be lost: the next batch is then an ordinary one.
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
        """Drop everything; return the bytes that this frees."""
        freed, self.size_bytes, self.record_count = self.size_bytes, 0, 0
        self.pages.clear()
        return freed
