"""The buffer of one shard's records that wait to be committed. Its callers hold the lock of the committer."""

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
    """The records of one read. A batch consists of whole pages, because only the end of a page has a position."""

    columns: RecordBatch | None
    """The records as Arrow columns, never empty; ``None`` for a page that only marks the end of the shard."""
    end_position: str
    arrived_at: float

    @property
    def record_count(self) -> int:
        """The number of records in the page; 0 if it only marks the end of the shard."""
        return 0 if self.columns is None else self.columns.num_rows

    @property
    def size_bytes(self) -> int:
        """The memory that the records take, in bytes."""
        return 0 if self.columns is None else self.columns.nbytes

    def sequence(self, index: int) -> SequenceInfo:
        """Return the sequence of the record at ``index`` in this page; the first record has index 0."""
        assert self.columns is not None, "the end of a shard has no records"
        return SequenceInfo(**self.columns.column("sequence_info")[index].as_py())


@frozen
class ShardBatch:
    """The records of one shard in a batch, after they were removed from the buffer."""

    start_position: str
    pages: tuple[BufferedPage, ...]

    @property
    def end_position(self) -> str:
        """The position after the last record, at which the shard's next batch starts."""
        return self.pages[-1].end_position

    @property
    def record_count(self) -> int:
        """The number of records in all pages of the batch."""
        return sum(page.record_count for page in self.pages)

    @property
    def first(self) -> SequenceInfo | None:
        """The sequence of the batch's first record; ``None`` if the batch has no records."""
        return next((page.sequence(0) for page in self.pages if page.record_count), None)

    @property
    def last(self) -> SequenceInfo | None:
        """The sequence of the batch's last record; ``None`` if the batch has no records."""
        return next((page.sequence(page.record_count - 1) for page in reversed(self.pages) if page.record_count), None)

    @property
    def size_bytes(self) -> int:
        """The memory, in bytes, that the batch's records take until they are committed or the batch fails."""
        return sum(page.size_bytes for page in self.pages)


@define
class ShardBuffer:
    """The waiting pages of one shard, in the order of their arrival."""

    start_position: str
    prepared: PendingCheckpoint | None = None
    """The batch that an earlier owner of the shard prepared, or ``None``. The next batch must have the same records,
    because the earlier owner may still store the prepared batch."""
    pages: deque[BufferedPage] = field(factory=deque)
    record_count: int = 0
    size_bytes: int = 0

    _prepared_pages: int | None = None
    """The number of waiting pages that make up the prepared batch; ``None`` while further pages may belong to it."""

    def add(self, page: BufferedPage) -> None:
        """Append ``page``, which follows all waiting pages of the shard."""
        self.pages.append(page)
        self.record_count += page.record_count
        self.size_bytes += page.size_bytes
        if self.prepared is not None and self._prepared_pages is None:
            self._prepared_pages = self._count_prepared(self.prepared, page)

    def _count_prepared(self, prepared: PendingCheckpoint, page: BufferedPage) -> int | None:
        """Return the number of pages in the prepared batch, where ``page`` is the newest page of the buffer.

        Return ``None`` while further pages may belong to the batch. Normally the batch ends with the page that ends at
        the prepared position. If records have left the stream, such a page may be missing. The batch then ends before
        the first page with later records. If the last prepared sequence is unknown, the batch ends after the prepared
        number of records.
        """
        if page.end_position == prepared.value:
            return len(self.pages)
        if prepared.last is None:
            return len(self.pages) if 0 < prepared.records <= self.record_count else None
        is_after = not page.record_count or page.sequence(0) > prepared.last
        return len(self.pages) - 1 if is_after else None

    @property
    def is_incomplete(self) -> bool:
        """Whether a prepared batch comes next, and some of its pages have not arrived yet."""
        return self.prepared is not None and self._prepared_pages is None

    def due_at(self, config: SparkConfig) -> float | None:
        """Return the time from which the next batch may be committed; ``None`` if no complete batch waits."""
        if not self.pages or self.is_incomplete:
            return None
        arrived_at = self.pages[0].arrived_at
        is_full = self.record_count >= config.max_records or self.size_bytes >= config.max_bytes
        if is_full or self.prepared is not None:
            return arrived_at
        return arrived_at + config.max_age_millis / 1000

    def cut(self, config: SparkConfig) -> ShardBatch:
        """Remove and return the next batch: the prepared batch, or pages until a limit of ``config`` is reached."""
        pages: list[BufferedPage] = []
        records = size = 0
        # If all records of the prepared batch are lost, ``wanted`` is 0, and the limits decide the size of the batch.
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
        """Drop all pages; return the bytes of memory that this releases."""
        freed, self.size_bytes, self.record_count = self.size_bytes, 0, 0
        self.pages.clear()
        return freed
