"""Records of one shard that wait for their commit. Pure: no clock, no lock; callers pass the time in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from streamclient.model import PendingCheckpoint
from streamclient.records import SequenceInfo
from streamclient.spark.config import SparkConfig

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

    def add(self, page: BufferedPage) -> None:
        """Append a page."""
        self.pages.append(page)
        self.record_count += page.record_count
        self.size_bytes += page.size_bytes

    @property
    def is_incomplete(self) -> bool:
        """Whether the next batch was prepared, and has not arrived as a whole."""
        prepared = self.prepared
        if prepared is None:
            return False
        # By the number too: where records are lost, as they left the stream, no page may end at that position.
        return not any(page.end_position == prepared.value for page in self.pages) and (
            prepared.records == 0 or self.record_count < prepared.records
        )

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
        while self.pages and self._wants_more(pages, records, size, config):
            page = self._pop()
            pages.append(page)
            records, size = records + page.record_count, size + page.size_bytes
        self.prepared = None
        taken = ShardBatch(self.start_position, tuple(pages))
        self.start_position = taken.end_position
        return taken

    def _wants_more(self, pages: list[BufferedPage], records: int, size: int, config: SparkConfig) -> bool:
        prepared = self.prepared
        if prepared is None:
            return records < config.max_records and size < config.max_bytes
        if pages and pages[-1].end_position == prepared.value:
            return False
        return prepared.records == 0 or records < prepared.records

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
