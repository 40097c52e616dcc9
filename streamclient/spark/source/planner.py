"""The planner of micro-batches: it reads ahead in each shard, counts the records, and notes the positions.

The planner runs in a Python process beside Spark's driver. It requests each page that executors will read, but uses
only the page's number of records and the position of its last record. While Spark works on a batch, the planner
requests pages of the next batch. The offsets hold all state that a restarted query needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from attrs import Factory, define, evolve, field

from streamclient.base import logs
from streamclient.base.pools import DaemonPool
from streamclient.base.position import no_progress
from streamclient.config import ClientConfig
from streamclient.core.consumer.reading_pace import TablePace, WorkerPace
from streamclient.core.shard_tree import NOT_SHOWN, ListedEnds, next_look
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException, TrimmedDataException
from streamclient.model import Shard
from streamclient.records import SequenceInfo
from streamclient.spark.source.offsets import (
    ShardListing,
    ShardOffset,
    ShardSlice,
    StreamOffset,
    data_loss,
    may_have_lost,
    new_shards,
    ranges_between,
    without_forgotten,
)
from streamclient.spark.source.prefetch import MOST_EMPTY_PAGES, DoubtedPages, PagesAhead, ShardSeen
from streamclient.spark.source.source_options import EARLIEST, LATEST, SourceOptions
from streamclient.tablestore.stream_api import StreamDescription
from streamclient.wire.page_parts import PageSummary

_log = logs.logger(__name__)

PAGE_RECORDS = 1_000
"""The largest number of records that the service returns in one response."""

LIST_SECONDS = 5.0
"""The seconds between two listings of the shards. After the end of a shard, the next batch lists them immediately."""

SHORTEST_MILLIS = 100
"""The shortest time, in ms, between two reads of an idle shard. Spark requests an offset up to 100 times a second."""

PACE = ClientConfig(worker_idle_time_millis=SHORTEST_MILLIS)
"""The settings for the pace of reads. An idle shard is read more rarely, as in a worker."""

READERS = 8
"""The largest number of shards that the planner reads at the same time, each in a thread of its own."""

MOST_SKEW_MICROS = 15 * 60 * 1_000_000
"""The largest difference, in microseconds, between the clocks of service and client with which the SDK accepts a
response. A record whose timestamp is later than a query's start by more than this difference was certainly written
after the start."""

_MISSING_SHARD_CODES = {"OTSObjectNotExist", "OTSParameterInvalid"}
"""The error codes that the service may send for a shard that does not exist. The service's documentation does not say
which of them it sends."""


@define(eq=False)
class StreamPlanner:
    """Plans the offsets of one streaming query. It reads by ``streams`` and ``summary``. Only one thread may use it."""

    options: SourceOptions
    streams: ShardListing
    summary: Callable[[str, str, int], PageSummary]
    """``summary(shard, iterator, limit)`` reads the page at ``iterator``, with at most ``limit`` records, and returns
    the number of its records, the sequence of the last one, and the next iterator."""
    now_micros: Callable[[], int] = lambda: time.time_ns() // 1_000
    monotonic: Callable[[], float] = time.monotonic
    page_records: int = PAGE_RECORDS
    """The largest number of records that one read requests."""
    pool: Executor = field(factory=lambda: DaemonPool("tablestore-planner", READERS))
    """The threads that read pages. They are daemon threads, because a read may hang when the query ends."""
    sleep: Callable[[float], None] = time.sleep
    _ends: ListedEnds = field(init=False, factory=ListedEnds)
    _doubts: DoubtedPages = field(init=False, factory=DoubtedPages)
    _described: StreamDescription | None = field(init=False, default=None)
    _listed_at: float = field(init=False, default=float("-inf"))
    _listed_micros: int = field(init=False, default=0)
    _not_listed_micros: dict[str, int] = field(init=False, factory=dict)
    """The time, in microseconds, of the last listing that lacked a shard, by shard id; 0 if every listing has it."""
    _seen: dict[str, ShardSeen] = field(init=False, factory=dict)
    _pace: TablePace = field(init=False, factory=lambda: WorkerPace(PACE).table())
    _chain: list[StreamOffset] | None = field(init=False, default=None)
    """The ends of all batches of a query that ends at the present; ``None`` for a query without an end."""
    _wants_chain: bool = field(init=False, default=False)
    _latest: StreamOffset | None = field(init=False, default=None)
    _partition_ends: dict[str, dict[int, ShardOffset]] = field(init=False, factory=dict)
    """The positions at which a range of ``maxRecordsPerPartition`` records ends. The keys are shard ids, and then the
    ``ShardOffset.count`` of each position."""
    _asked: dict[str, list[int]] = field(init=False, factory=dict)
    """The sizes, in records, of the pages that the planner requested from each shard for the last batch."""
    _ahead: PagesAhead = field(init=False, default=Factory(lambda self: PagesAhead(self.summary, self.pool), True))

    def latest(self, start: StreamOffset, most: int | None, per_shard: int | None) -> StreamOffset:
        """Return the end of the batch that begins at ``start``; ``start`` itself if there are no new records.

        Args:
            start: the beginning of the batch.
            most: the largest number of records of the batch; ``None`` for no limit.
            per_shard: the largest number of records of each shard; ``None`` for no limit.

        Raises:
            StreamClientException: records were lost, and the option ``failOnDataLoss`` does not accept a loss.
            StreamClientError: the service does not answer.
        """
        if self._wants_chain:
            self._wants_chain, self._chain = False, self._whole_chain(start, most, per_shard)
        if self._chain is None:
            end = self._next(start, most, per_shard, frozenset(), None)
            self._ahead.start(self._iterators_with_more(end), self._asked)
        else:
            later = [after for before, after in zip(self._chain, self._chain[1:], strict=False) if before == start]
            end = later[0] if later else start
        self._latest = end
        return end

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[ShardSlice]:
        """Return the ranges of records that the tasks of a batch read, without a call of the service.

        A shard has several ranges if it has more records than ``maxRecordsPerPartition``. After a restart, each shard
        of a repeated batch has one range.
        """
        for shard, before in start.shards.items():
            borders = self._partition_ends.pop(shard, {})
            later = {count: border for count, border in borders.items() if count > before.count}
            if later:
                self._partition_ends[shard] = later
        return ranges_between(start, end, self._partition_ends)

    def stop_at_present(self) -> None:
        """Let the query end at the present, so that it does not read records that are written from now on."""
        self._wants_chain = True

    def committed(self, end: StreamOffset) -> None:
        """Do nothing for a stream. Spark calls this method when it will no longer repeat records before ``end``."""

    def close(self) -> None:
        """Stop reading ahead, and stop the pool's threads without waiting for them."""
        self._ahead.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def lag(self) -> dict[str, Any] | None:
        """Return the lag of the query at the last planned offset; ``None`` before the first offset.

        A shard that is caught up has the lag 0. Otherwise its lag is the age of its last record up to the offset. If it
        has none, the lag is the age of a record that is planned for later, or else the time since it was first seen. A
        caught-up shard that found no room in the last batch has as its lag the time since it was caught up.
        """
        latest = self._latest
        if latest is None:
            return None
        shards = {
            shard: self._lag_millis(shard, offset) for shard, offset in latest.shards.items() if not offset.is_ended
        }
        most = max((millis or 0 for millis in shards.values()), default=0)
        return {
            "lagMillis": None if not most and None in shards.values() else most,
            "shardsBehind": sum(millis != 0 for millis in shards.values()),
            "records": sum(offset.count for offset in latest.shards.values()),
            "shards": dict(sorted(shards.items())),
        }

    def _lag_millis(self, shard: str, offset: ShardOffset) -> int | None:
        """Return the lag of a shard in milliseconds; ``None`` for a tunnel's full data, whose records have no time."""
        seen = self._seen[shard]
        is_read_up = seen.caught_up_count == offset.count
        if is_read_up and self._asked.get(shard) != []:
            return 0
        later = (after.shards[shard].last for after in (self._chain or ()) if shard in after.shards)
        last = None if is_read_up else offset.last or next(filter(None, later), None)
        since = seen.read_up_micros if last is None else last.timestamp_micros
        return max(1, (self.now_micros() - since) // 1_000) if since else None

    # --- the planning of one batch ------------------------------------------------------------------------------------

    def _next(
        self,
        start: StreamOffset,
        most: int | None,
        per_shard: int | None,
        done: frozenset[str],
        latest_micros: int | None,
    ) -> StreamOffset:
        described = self._listing()
        end = self._beginning(described) if start.is_beginning else self._checked(evolve(start, begins={}), described)
        for shard in end.shards:
            self._seen.setdefault(shard, ShardSeen(self.now_micros(), self._pace.shard()))
        readable = [shard for shard in end.readable() if shard not in done and self._may_ask(shard)]
        end = self._walk(end, readable, most, per_shard, latest_micros)
        if any(end.shards[shard].is_ended and not self._ends.has_child(shard) for shard in readable):
            self._listed_at = float("-inf")
        return start if end.is_where(start) and not self._is_old(start, described) else end

    def _is_old(self, start: StreamOffset, described: StreamDescription) -> bool:
        """Return whether the listing in ``start`` is so old that an empty batch should store the time of a new one."""
        looked = start.listed_micros
        return looked is None or self.now_micros() > next_look(looked, described.expiration_time_hours)

    def _may_ask(self, shard: str) -> bool:
        return self._wants_chain or self._chain is not None or self.monotonic() >= self._seen[shard].until

    def _iterators_with_more(self, end: StreamOffset) -> dict[str, str]:
        """Return the iterators of the shards that may have more records, because the last batch reached a limit."""
        reached = {shard: end.shards[shard] for shard in self._asked}
        return {
            shard: offset.at
            for shard, offset in reached.items()
            if offset.at is not None
            and offset.count != self._seen[shard].caught_up_count
            and shard not in self._doubts.counts
        }

    def _listing(self, *, is_new: bool = False) -> StreamDescription:
        if is_new or self._described is None or self.monotonic() - self._listed_at > LIST_SECONDS:
            streams = self.streams.list_stream(self.options.table)
            if not streams:
                raise ConfigurationError(
                    f"table {self.options.table!r} has no stream: check the name and the instance, or enable it by "
                    "UpdateTable with a StreamSpecification"
                )
            before = self.now_micros()  # the listing below may lack shards that are opened after this time
            self._described = self.streams.describe_stream(streams[0].stream_id)
            self._ends.listed(self._described.shards, self.monotonic())
            if circles := self._ends.tree.circles:
                _log.error("shards %s are each other's parents, so the query never reads them", ", ".join(circles))
            listed, known = [shard.shard_id for shard in self._described.shards], self._not_listed_micros
            self._not_listed_micros = {shard: known.get(shard, self._listed_micros) for shard in listed}
            self._listed_at, self._listed_micros = self.monotonic(), before
        return self._described

    def _beginning(self, described: StreamDescription) -> StreamOffset:
        """Return the offset at which a new query begins, with an iterator for each shard."""
        starting = self.options.starting
        if isinstance(starting, Mapping):
            unknown = starting.keys() - {shard.shard_id for shard in described.shards}
            if unknown:
                raise ConfigurationError(
                    f"startingOffsets names the shard {min(unknown)!r}, and the stream of {self.options.table!r} has "
                    f"{', '.join(sorted(shard.shard_id for shard in described.shards))}"
                )
        now = self.now_micros()
        self.options.check_start(now + MOST_SKEW_MICROS)

        def first_iterator(shard: Shard) -> str:
            named = starting if isinstance(starting, str) else starting.get(shard.shard_id, EARLIEST)
            if named not in (EARLIEST, LATEST):
                return named
            since = now if named == LATEST else self.options.starting_micros
            return self.streams.get_shard_iterator(described.stream_id, shard.shard_id, since)

        iterators = dict(zip(described.shards, self.pool.map(first_iterator, described.shards), strict=True))
        listed = {shard.shard_id for shard in iterators}
        shards = {
            shard.shard_id: ShardOffset(at, parents=frozenset(shard.parent_shard_ids & listed))
            for shard, at in iterators.items()
        }
        begins = {shard.shard_id: at for shard, at in iterators.items()}
        return StreamOffset(described.stream_id, shards, begins, self._listed_micros)

    def _checked(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        """Return ``start`` with new shards added, and without ended shards that the service no longer lists."""
        if described.stream_id != start.stream_id:
            self._lost(
                f"the stream of table {self.options.table!r} is {described.stream_id}, and the checkpoint is of "
                f"{start.stream_id}: the stream was switched off and on again, so its records are gone, or the option "
                "table earlier named another table"
            )
            return self._other_stream(start, described)
        self._ends.knows({shard: offset.parents for shard, offset in start.shards.items()})
        end, now = evolve(start, listed_micros=self._listed_micros), self.now_micros()
        for shard in new_shards(start, described.shards):
            doubt = may_have_lost(shard, start, described, now, self._not_listed_micros[shard.shard_id])
            if doubt:
                self._lost(f"records of shard {shard.shard_id} may be gone: {doubt}")
            at = self.streams.get_shard_iterator(described.stream_id, shard.shard_id)
            parents = frozenset(shard.parent_shard_ids)
            end = end.with_shard(shard.shard_id, ShardOffset(at, parents=parents), begin=at)
        return without_forgotten(end, described.shards, described.expiration_time_hours, now)

    def _other_stream(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        """Return an offset at the beginning of the new stream. All shards of the former stream count as ended."""
        shards = dict(start.shards)
        now = self.now_micros()
        ended = {
            shard: evolve(offset, at=None, ended_micros=offset.ended_micros or now) for shard, offset in shards.items()
        }
        end = StreamOffset(described.stream_id, ended, listed_micros=self._listed_micros)
        for shard in described.shards:
            at = self.streams.get_shard_iterator(described.stream_id, shard.shard_id)
            parents = frozenset(shard.parent_shard_ids)
            end = end.with_shard(shard.shard_id, ShardOffset(at, parents=parents), begin=at)
        return end

    def _lost(self, loss: str) -> None:
        if self.options.fails_on_data_loss:
            raise StreamClientException(data_loss(loss))
        _log.warning("%s; going on, as failOnDataLoss is false", loss)

    # --- the reads of one batch, page by page -------------------------------------------------------------------------

    def _walk(
        self, end: StreamOffset, readable: list[str], most: int | None, per_shard: int | None, latest: int | None
    ) -> StreamOffset:
        """Return the batch's end. Read all shards in turn, until each is caught up, past ``latest`` or at a limit."""
        taken = dict.fromkeys(readable, 0)
        left, partition = most, self.options.max_per_partition
        active = list(readable)
        self._asked = {shard: [] for shard in readable}
        while active and left != 0:
            sizes = self._sizes(end, active, taken, left, per_shard)
            had = [taken[shard] for shard in sizes]
            for shard, size in sizes.items():
                self._asked[shard].append(size)
            # This thread reads a single shard itself, because waking another thread costs as much time as a fast read.
            side_by_side, read_at = map if len(sizes) == 1 else self.pool.map, self.monotonic()
            pages = list(side_by_side(self._page, [end] * len(sizes), sizes, sizes.values(), had))
            going = [shard for shard in active if shard not in sizes]
            for shard, (begin, page) in zip(sizes, pages, strict=True):
                if page is None:
                    continue  # records were lost; the next batch begins after them, and reports the loss
                if page.record_count > sizes[shard] and taken[shard]:
                    continue  # a tunnel's page cannot be divided; leave it to the next batch
                before = begin or end.shards[shard].at
                why = self._doubt(shard, before, end.shards[shard].last, page, read_at)
                if why:
                    going += [shard] if self._asks_again(shard, why) else []
                    continue
                self._doubts.forget(shard)
                end = self._advanced(end, shard, page, begin)
                taken[shard] += page.record_count
                if page.record_count and partition is not None and taken[shard] % partition == 0:
                    self._partition_ends.setdefault(shard, {})[end.shards[shard].count] = end.shards[shard]
                left = None if left is None else max(0, left - page.record_count)
                is_over = self._ends_walk(shard, before, end.shards[shard], page, latest)
                if not is_over and (per_shard is None or taken[shard] < per_shard):
                    going.append(shard)
            active = going
        return end

    def _doubt(self, shard: str, at: str | None, last: SequenceInfo | None, page: PageSummary, read_at: float) -> str:
        """Return in words why ``page``, requested at ``read_at``, must be wrong; an empty text if it may be right."""
        why = no_progress(at or "", page.next_shard_iterator, page.last, page.last, last)
        if not why and page.next_shard_iterator is None and not self._has_ended(shard, read_at):
            why = NOT_SHOWN
        return why

    def _has_ended(self, shard: str, read_at: float) -> bool:
        """Return whether a listing that was made before ``read_at`` shows the end of ``shard``.

        If no listing shows the end, make a new listing for the next read.
        """
        return self._ends.confirms(shard, read_at, lambda: self._listing(is_new=True))

    def _asks_again(self, shard: str, why: str) -> bool:
        """Discard a doubtful page of ``shard``; return whether this batch must repeat the read.

        Raises:
            StreamClientException: the query ends at the present, and too many doubtful pages came in a row.
        """
        self._ahead.forget(shard)
        pause = self._doubts.add(shard, why, ends_by_itself=self._chain is not None)
        if self._chain is None:
            self._seen[shard].until = self.monotonic() + pause
            return False
        self.sleep(pause)
        return True

    def _sizes(
        self, end: StreamOffset, active: list[str], taken: Mapping[str, int], left: int | None, per_shard: int | None
    ) -> dict[str, int]:
        """Return the number of records to request from each shard.

        If the batch has no room for all shards, the shards with the fewest records in this batch come first. Among
        these, the shard whose last record is oldest comes first. This order depends only on offsets. So a restart does
        not change it, and no shard waits for ever.
        """

        def turn(shard: str) -> tuple[int, int, str]:
            last = end.shards[shard].last
            return taken[shard], -1 if last is None else last.timestamp_micros, shard

        sizes = {}
        share = self.page_records if left is None else max(1, min(self.page_records, -(-left // len(active))))
        for shard in sorted(active, key=turn):
            size = share if per_shard is None else min(share, per_shard - taken[shard])
            if self.options.max_per_partition is not None:
                size = min(size, self.options.max_per_partition - taken[shard] % self.options.max_per_partition)
            if left is not None:
                size = min(size, left)
                left -= size
            if size > 0:
                sizes[shard] = size
        return sizes

    def _page(self, end: StreamOffset, shard: str, size: int, taken: int) -> tuple[str | None, PageSummary | None]:
        """Read the next page of ``shard``; return a new iterator for the batch's beginning in the shard, and the page.

        The iterator is usually ``None``. It is given if records before the page were lost, or if the iterator in
        ``end`` may be wrong. The page is ``None`` if records were lost after this batch had counted earlier records of
        the shard.
        """
        at = end.shards[shard].at
        assert at is not None
        if not taken and self._doubts.counts.get(shard, 0) > 1 and end.shards[shard].last is not None:
            return self._first_unread(end, shard, size)  # the stored iterator may be wrong, and lead to older records
        try:
            return None, self._ahead.page(shard, at, size)
        except TrimmedDataException as error:
            if taken:
                return None, None
            self._lost(f"records of shard {shard} were trimmed before they were read: {error}")
        except DependencyException as error:
            # A shard that is no longer listed may still be readable. It is gone only if the service refuses the read.
            if error.code not in _MISSING_SHARD_CODES or taken or self._is_listed(shard):
                raise
            self._lost(f"shard {shard} is gone, and was not read to its end: {error}")
            return None, PageSummary(0, None, None, None)
        return self._first_unread(end, shard, size)

    def _first_unread(self, end: StreamOffset, shard: str, size: int) -> tuple[str, PageSummary]:
        """Return the iterator of the oldest record that the query has not read, and the page at this iterator.

        An iterator may expire before its records do. So the method searches from the shard's oldest record on, and
        skips the records that the query has read. A search by time could be wrong, because the clock of the shard's
        server may go back when the shard's epoch grows.
        """
        last = end.shards[shard].last
        at: str = self.streams.get_shard_iterator(end.stream_id, shard)
        step, seen = 0 if last is None else self.page_records, None
        while step:
            page = self.summary(shard, at, step)
            why = no_progress("", page.next_shard_iterator, page.last, page.last, seen)
            if why:
                raise DependencyException(f"shard {shard} cannot be read from its oldest record on: {why}")
            if last is not None and page.last is not None and page.last > last:
                step //= 2
            elif page.next_shard_iterator is None:
                return at, PageSummary(0, None, None, None)
            elif page.next_shard_iterator == at:
                break
            else:
                at, seen = page.next_shard_iterator, page.last or seen
        return at, self.summary(shard, at, size)

    def _is_listed(self, shard: str) -> bool:
        return self._described is not None and any(listed.shard_id == shard for listed in self._described.shards)

    def _advanced(self, end: StreamOffset, shard: str, page: PageSummary, begin: str | None) -> StreamOffset:
        before = end.shards[shard]
        after = evolve(
            before,
            at=page.next_shard_iterator,
            count=before.count + page.record_count,
            last=page.last or before.last,
            ended_micros=self.now_micros() if page.next_shard_iterator is None else None,
        )
        return end.with_shard(shard, after, begin)

    def _ends_walk(
        self, shard: str, before: str | None, after: ShardOffset, page: PageSummary, latest: int | None
    ) -> bool:
        """Return whether the batch reads no more of the shard, which is caught up, past ``latest`` or long empty."""
        seen, now = self._seen[shard], self.monotonic()
        seen.page_came(page.record_count, now)
        is_late = latest is not None and after.last is not None and after.last.timestamp_micros > latest
        is_up = is_late or after.is_ended or self._is_read_up(before, after, page, seen.empty_pages)
        # A query that ends at the present reads on after any number of empty pages, because records may follow.
        if not is_up and (self._chain is not None or seen.empty_pages < MOST_EMPTY_PAGES):
            return False
        seen.batch_ends(after.count if is_up else None, self.now_micros(), now)
        return True

    def _is_read_up(self, before: str | None, after: ShardOffset, page: PageSummary, empty_pages: int) -> bool:
        """Return whether ``page`` shows that no record waits, after ``empty_pages`` consecutive empty pages."""
        return page.may_more_record is False if page.record_count else after.at == before

    def _whole_chain(self, start: StreamOffset, most: int | None, per_shard: int | None) -> list[StreamOffset]:
        """Return ``start`` and the ends of all batches from ``start`` to the present."""
        chain, latest_micros = [start], self.now_micros() + MOST_SKEW_MICROS
        done: frozenset[str] = frozenset()
        self._listed_at = float("-inf")
        self._seen.clear()
        self._chain = chain
        while True:
            end = self._next(chain[-1], most, per_shard, done, latest_micros)
            done |= {shard for shard, offset in end.shards.items() if self._seen[shard].caught_up_count == offset.count}
            if end == chain[-1]:
                return chain
            chain.append(end)
