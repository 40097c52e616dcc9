"""A stream in memory, for tests of processors and of workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from attrs import define, field

from streamclient.base.position import Position
from streamclient.errors import DependencyException, ErrorKind, TrimmedDataException
from streamclient.model import Shard
from streamclient.records import StreamRecord
from streamclient.tablestore.stream_api import RecordPage, StreamDescription, StreamStatus, StreamSummary

DEFAULT_LIMIT = 1_000


@define
class _FakeShard:
    shard: Shard
    records: list[StreamRecord] = field(factory=list)
    is_closed: bool = False
    trimmed: int = 0
    """The number of the shard's oldest records that were trimmed because their retention is over."""


class FakeStream:
    """The stream of one table: a ``StreamApi`` whose shards a test fills, closes, splits, merges and trims.

    Iterators have the form ``<shard id>@<number of the next record>``. While a shard is open, a
    page without records repeats the requested iterator as its next iterator. A test can let reads fail or wait.
    Thread-safe.

    Example:
        >>> stream = FakeStream("orders", ["a"])
        >>> stream.append("a", put("k1", amount=12))
        >>> stream.split("a", "b", "c")
        >>> [str(shard.parent_id) for shard in stream.describe_stream(stream.stream_id).shards]
        ['None', 'a', 'a']
    """

    def __init__(self, table_name: str = "orders", shard_ids: Sequence[str] = ("shard-1",)) -> None:
        self.table_name = table_name
        self.stream_id = f"{table_name}_1500000000000000"
        self.reads = 0
        """The number of page requests so far, except requests for which ``before_read`` raised."""
        self.before_read: Callable[[str], None] | None = None
        """A function that the reading thread calls with the shard id before each page. This call may wait or raise."""
        self._failures: dict[str, deque[Exception]] = {}
        self._lock = threading.Lock()
        self._shards: dict[str, _FakeShard] = {name: _FakeShard(Shard(name)) for name in shard_ids}

    # --- methods for tests ---------------------------------------------------------------------------------------

    def append(self, shard_id: str, *records: StreamRecord) -> None:
        """Write records to an open shard."""
        with self._lock:
            shard = self._shards[shard_id]
            if shard.is_closed:
                raise ValueError(f"shard {shard_id} is closed")
            shard.records.extend(records)

    def close(self, shard_id: str, child: str | None = None) -> None:
        """Close a shard, so that its last page has no next iterator.

        By default an empty child shard with the id ``<shard id>-next`` opens; ``child`` sets a different id. The child
        in the list of shards tells readers that the parent has ended. With ``child=""`` no child opens. The list of
        shards does not show the end in this case, as when the service truncates the list.
        """
        after = f"{shard_id}-next" if child is None else child
        with self._lock:
            self._shards[shard_id].is_closed = True
            if after:
                self._shards[after] = _FakeShard(Shard(after, parent_id=shard_id))

    def split(self, parent: str, first_child: str, second_child: str) -> None:
        """Close the shard ``parent``, and open two child shards."""
        with self._lock:
            self._shards[parent].is_closed = True
            for child in (first_child, second_child):
                self._shards[child] = _FakeShard(Shard(child, parent_id=parent))

    def merge(self, first_parent: str, second_parent: str, child: str) -> None:
        """Close both parent shards, and open the shard ``child`` with these parents."""
        with self._lock:
            self._shards[first_parent].is_closed = self._shards[second_parent].is_closed = True
            self._shards[child] = _FakeShard(Shard(child, first_parent, second_parent))

    def trim(self, shard_id: str, count: int) -> None:
        """Trim the oldest records of a shard, until ``count`` of its records are trimmed in total."""
        with self._lock:
            self._shards[shard_id].trimmed = count

    def remove(self, shard_id: str) -> None:
        """Stop listing a shard, as the service does when all its data is beyond retention."""
        with self._lock:
            del self._shards[shard_id]

    def fail_reads(self, shard_id: str, *errors: Exception) -> None:
        """Raise ``errors`` from the next reads of a shard, one error from each read."""
        with self._lock:
            self._failures.setdefault(shard_id, deque()).extend(errors)

    # --- StreamApi -----------------------------------------------------------------------------------------------

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return a sequence with the stream's summary, or an empty sequence if ``table_name`` names another table."""
        summary = StreamSummary(self.stream_id, self.table_name, 1_500_000_000_000_000)
        return (summary,) if table_name in (None, self.table_name) else ()

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return a description of the stream, with all shards that were not removed."""
        with self._lock:
            shards = tuple(entry.shard for entry in self._shards.values())
        return StreamDescription(stream_id, self.table_name, 24, 1_500_000_000_000_000, StreamStatus.ACTIVE, shards)

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return an iterator at the oldest record, or at the first record written at or after ``timestamp_micros``."""
        with self._lock:
            entry = self._entry(shard_id)
            place = entry.trimmed
            while timestamp_micros is not None and place < len(entry.records):
                if entry.records[place].sequence_info.timestamp_micros >= timestamp_micros:
                    break
                place += 1
            return f"{shard_id}@{place}"

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return the page at ``shard_iterator``, with at most ``limit`` records."""
        shard_id, _, place = shard_iterator.rpartition("@")
        if self.before_read is not None:
            self.before_read(shard_id)
        with self._lock:
            self.reads += 1
            if self._failures.get(shard_id):
                raise self._failures[shard_id].popleft()
            if not shard_id or not place.isdigit():
                raise DependencyException(
                    f"{shard_iterator!r} is not an iterator", kind=ErrorKind.PERMANENT, code="OTSParameterInvalid"
                )
            return self._page(self._entry(shard_id), int(place), limit or DEFAULT_LIMIT)

    def _entry(self, shard_id: str) -> _FakeShard:
        if shard_id not in self._shards:
            raise DependencyException(
                f"shard {shard_id} does not exist", kind=ErrorKind.PERMANENT, code="OTSObjectNotExist"
            )
        return self._shards[shard_id]

    def _page(self, entry: _FakeShard, place: int, limit: int) -> RecordPage:
        if place < entry.trimmed:
            raise TrimmedDataException("Requested stream data is already trimmed or does not exist.")
        records = tuple(entry.records[place : place + limit])
        after = place + len(records)
        is_end = entry.is_closed and after >= len(entry.records)
        following = Position.SHARD_END if is_end else Position(f"{entry.shard.shard_id}@{after}")
        return RecordPage(records, following, may_more_record=bool(records))
