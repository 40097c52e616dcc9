"""Records of one shard that wait for their commit. Pure: no clock, no lock; callers pass the time in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from streamclient.records import RecordColumn, SequenceInfo, StreamRecord
from streamclient.spark.config import SparkConfig

_RECORD_BYTES = 400
"""A record without cells: object, key tuples, sequence information (measured on CPython 3.11, rounded up)."""
_CELL_BYTES = 160
"""A cell without its text: object, boxed value, version."""


def estimate_bytes(records: Sequence[StreamRecord]) -> int:
    """About how much memory records take; never less than the text and bytes they hold."""
    return sum(_record_bytes(record) for record in records)


def _record_bytes(record: StreamRecord) -> int:
    key = sum(len(value) for _, value in record.primary_key if isinstance(value, str | bytes))
    originals = _cells_bytes(record.original_columns) if record.original_columns else 0
    return _RECORD_BYTES + key + _cells_bytes(record.columns) + originals


def _cells_bytes(columns: Sequence[RecordColumn]) -> int:
    text = sum(len(column.value) for column in columns if isinstance(column.value, str | bytes))
    return _CELL_BYTES * len(columns) + text


@frozen
class Page:
    """What one read returned, at least one record: the smallest unit of a batch, since only its end is a position."""

    records: tuple[StreamRecord, ...]
    end_position: str
    size_bytes: int
    arrived_at: float


@frozen
class Cut:
    """A batch of one shard, taken out of its buffer."""

    start_position: str
    pages: tuple[Page, ...]

    @property
    def end_position(self) -> str:
        """Where the next batch starts."""
        return self.pages[-1].end_position

    @property
    def last(self) -> SequenceInfo:
        """Place of its last record. Pages without records are never buffered."""
        return self.pages[-1].records[-1].sequence_info

    @property
    def size_bytes(self) -> int:
        """Room that becomes free once the batch is settled."""
        return sum(page.size_bytes for page in self.pages)

    @property
    def records(self) -> list[StreamRecord]:
        """The records, oldest first."""
        return [record for page in self.pages for record in page.records]


@define
class ShardBuffer:
    """Pages in order of arrival, and the position before the first of them."""

    start_position: str
    pages: deque[Page] = field(factory=deque)
    record_count: int = 0
    size_bytes: int = 0

    def add(self, page: Page) -> None:
        """Append a page."""
        self.pages.append(page)
        self.record_count += len(page.records)
        self.size_bytes += page.size_bytes

    def due_at(self, config: SparkConfig) -> float | None:
        """When the batch must be committed: ``None`` while empty, at once if large enough, else by age."""
        if not self.pages:
            return None
        arrived_at = self.pages[0].arrived_at
        if self.record_count >= config.max_records or self.size_bytes >= config.max_bytes:
            return arrived_at
        return arrived_at + config.max_age_millis / 1000

    def cut(self, config: SparkConfig) -> Cut:
        """Take out the next batch: pages until a limit is reached, at least one."""
        pages: list[Page] = []
        records = size = 0
        while self.pages and records < config.max_records and size < config.max_bytes:
            page = self._pop()
            pages.append(page)
            records, size = records + len(page.records), size + page.size_bytes
        taken = Cut(self.start_position, tuple(pages))
        self.start_position = taken.end_position
        return taken

    def _pop(self) -> Page:
        page = self.pages.popleft()
        self.record_count -= len(page.records)
        self.size_bytes -= page.size_bytes
        return page

    def clear(self) -> int:
        """Drop everything; returns the bytes that this frees."""
        freed, self.size_bytes, self.record_count = self.size_bytes, 0, 0
        self.pages.clear()
        return freed
