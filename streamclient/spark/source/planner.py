"""Planning micro-batches: walk the stream, count, and remember the position behind each shard's last record.

It runs in Spark's planner, one Python process beside the driver, and asks for each page that executors will read,
without looking into it: only the number of records and the last one's place matter. Those of the next batch it asks for
while Spark works on the present one. Nothing is kept here that a restart would need: offsets hold all.
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
from streamclient.spark.source.prefetch import DoubtedPages, PagesAhead
from streamclient.spark.source.source_options import EARLIEST, LATEST, SourceOptions
from streamclient.tablestore.stream_api import StreamDescription
from streamclient.wire.page_parts import PageSummary

_log = logs.logger(__name__)

PAGE_RECORDS = 1_000
"""What the service answers at most at once."""

LIST_SECONDS = 5.0
"""Between two listings of the shards, and at once when one has ended."""

IDLE_SECONDS = 0.5
"""Before a shard that had nothing new is asked again. Spark asks up to a hundred times a second."""

READERS = 8
"""Shards that are walked side by side; a read is mostly waiting."""

MOST_SKEW_MICROS = 15 * 60 * 1_000_000
"""How far clocks may differ before the SDK trusts no answer. A record stamped later than this after the beginning of a
query was surely written after it."""

MOST_EMPTY_PAGES = 10
"""In a row, until a shard counts as read to its end. A page may be empty because the service skips something: then the
next iterator is another one, and records may follow."""

_GONE_CODES = {"OTSObjectNotExist", "OTSParameterInvalid"}
"""What the service may say of a shard that is not there; which of the two is not known."""


@define
class _Seen:
    """What is known of a shard beyond its offset: for pauses, and for the lag that is reported."""

    read_up_micros: int
    """When it was last known to hold nothing more, or else was first seen."""
    caught_up_count: int | None = None
    """Records that had been read of it when nothing more was there."""
    until: float = 0.0
    """By the monotonic clock, when it may be asked again."""
    empty_pages: int = 0


@define(eq=False)
class StreamPlanner:
    """Offsets for one streaming query. One thread calls; ``streams`` and ``summary`` read the service."""

    options: SourceOptions
    streams: ShardListing
    summary: Callable[[str, str, int], PageSummary]
    """What the page of a shard behind an iterator holds, of so many records at most."""
    now_micros: Callable[[], int] = lambda: time.time_ns() // 1_000
    monotonic: Callable[[], float] = time.monotonic
    page_records: int = PAGE_RECORDS
    """What is asked for at once."""
    pool: Executor = field(factory=lambda: DaemonPool("tablestore-planner", READERS))
    """Whose threads do not keep the process alive: a read ahead may hang when the query ends."""
    sleep: Callable[[float], None] = time.sleep
    _ends: ListedEnds = field(init=False, factory=ListedEnds)
    _doubts: DoubtedPages = field(init=False, factory=DoubtedPages)
    _described: StreamDescription | None = field(init=False, default=None)
    _listed_at: float = field(init=False, default=float("-inf"))
    _listed_micros: int = field(init=False, default=0)
    _not_listed_micros: dict[str, int] = field(init=False, factory=dict)
    """When each shard was not listed yet; 0 for those that the first listing had."""
    _seen: dict[str, _Seen] = field(init=False, factory=dict)
    _chain: list[StreamOffset] | None = field(init=False, default=None)
    """Ends of all batches of a query that reads what is there now; ``None`` for one that goes on."""
    _wants_chain: bool = field(init=False, default=False)
    _latest: StreamOffset | None = field(init=False, default=None)
    _partition_ends: dict[str, dict[int, ShardOffset]] = field(init=False, factory=dict)
    """Places that were passed where a partition has as many records as it may, by shard and count."""
    _asked: dict[str, list[int]] = field(init=False, factory=dict)
    """Records that each shard was asked for, page by page, in the last batch."""
    _ahead: PagesAhead = field(init=False, default=Factory(lambda self: PagesAhead(self.summary, self.pool), True))

    def latest(self, start: StreamOffset, most: int | None, per_shard: int | None) -> StreamOffset:
        """The end of the batch that begins at ``start``: equal to it if nothing is new.

        Args:
            start: where the batch begins.
            most: records of the batch; ``None`` for all.
            per_shard: records of each shard; ``None`` for all.

        Raises:
            StreamClientException: records were lost, and the options do not allow that.
            StreamClientError: the service does not answer.
        """
        if self._wants_chain:
            self._wants_chain, self._chain = False, self._whole_chain(start, most, per_shard)
        if self._chain is None:
            end = self._next(start, most, per_shard, frozenset(), None)
            self._ahead.start(self._places_with_more(end), self._asked)
        else:
            later = [after for before, after in zip(self._chain, self._chain[1:], strict=False) if before == start]
            end = later[0] if later else start
        self._latest = end
        return end

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[ShardSlice]:
        """What the tasks of a batch read; calls nobody.

        A shard's part is cut where ``maxRecordsPerPartition`` says, if this planner walked it. That of a batch which
        was planned before a restart is one range: the same records, in one task.
        """
        for shard, before in start.shards.items():
            places = self._partition_ends.pop(shard, {})
            ahead = {count: place for count, place in places.items() if count > before.count}
            if ahead:
                self._partition_ends[shard] = ahead
        return ranges_between(start, end, self._partition_ends)

    def stop_at_present(self) -> None:
        """Give out nothing that is written from now on."""
        self._wants_chain = True

    def committed(self, end: StreamOffset) -> None:
        """Spark will not repeat what lies before. A stream need not know."""

    def close(self) -> None:
        """End the threads."""
        self._ahead.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def lag(self) -> dict[str, Any] | None:
        """How far behind the query is, as of the last offset.

        A shard that was read to its end lags by nothing. Any other one lags by the age of the last record planned, or
        while none was, of the first one that will be, or by the time since it was first seen.
        """
        latest = self._latest
        if latest is None:
            return None
        shards = {shard: self._millis_behind(shard, one) for shard, one in latest.shards.items() if not one.is_ended}
        most = max((millis or 0 for millis in shards.values()), default=0)
        return {
            "lagMillis": None if not most and None in shards.values() else most,
            "shardsBehind": sum(millis != 0 for millis in shards.values()),
            "records": sum(one.count for one in latest.shards.values()),
            "shards": dict(sorted(shards.items())),
        }

    def _millis_behind(self, shard: str, one: ShardOffset) -> int | None:
        """``None`` for full data, whose records have no time.

        A shard that is read up may hold what came since then, if the last batch had no room to ask it.
        """
        seen = self._seen[shard]
        is_read_up = seen.caught_up_count == one.count
        if is_read_up and self._asked.get(shard) != []:
            return 0
        later = (after.shards[shard].last for after in (self._chain or ()) if shard in after.shards)
        last = None if is_read_up else one.last or next(filter(None, later), None)
        since = seen.read_up_micros if last is None else last.timestamp_micros
        return max(1, (self.now_micros() - since) // 1_000) if since else None

    # --- one batch ----------------------------------------------------------------------------------------------------

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
            self._seen.setdefault(shard, _Seen(self.now_micros()))
        readable = [shard for shard in end.readable() if shard not in done and self._may_ask(shard)]
        end = self._walk(end, readable, most, per_shard, latest_micros)
        if any(end.shards[shard].is_ended and not self._ends.has_child(shard) for shard in readable):
            self._listed_at = float("-inf")
        return start if end.is_where(start) and not self._is_old(start, described) else end

    def _is_old(self, start: StreamOffset, described: StreamDescription) -> bool:
        """Return whether it is time for an empty batch that stores another look at the shards."""
        looked = start.listed_micros
        return looked is None or self.now_micros() > next_look(looked, described.expiration_time_hours)

    def _may_ask(self, shard: str) -> bool:
        return self._wants_chain or self._chain is not None or self.monotonic() >= self._seen[shard].until

    def _places_with_more(self, end: StreamOffset) -> dict[str, str]:
        """Iterators of the shards whose part of the batch ended because it was large enough."""
        places = {shard: end.shards[shard] for shard in self._asked}
        return {
            shard: one.at
            for shard, one in places.items()
            if one.at is not None
            and one.count != self._seen[shard].caught_up_count
            and shard not in self._doubts.counts
        }

    def _listing(self, *, is_new: bool = False) -> StreamDescription:
        if is_new or self._described is None or self.monotonic() - self._listed_at > LIST_SECONDS:
            found = self.streams.list_stream(self.options.table)
            if not found:
                raise ConfigurationError(
                    f"table {self.options.table!r} has no stream: check the name and the instance, or enable it by "
                    "UpdateTable with a StreamSpecification"
                )
            before = self.now_micros()  # what is opened meanwhile, the answer may lack
            self._described = self.streams.describe_stream(found[0].stream_id)
            self._ends.listed(self._described.shards)
            if circles := self._ends.tree.circles:
                _log.error("shards %s are each other's parents in the list: none is ever read", ", ".join(circles))
            listed, known = [shard.shard_id for shard in self._described.shards], self._not_listed_micros
            self._not_listed_micros = {shard: known.get(shard, self._listed_micros) for shard in listed}
            self._listed_at, self._listed_micros = self.monotonic(), before
        return self._described

    def _beginning(self, described: StreamDescription) -> StreamOffset:
        """Where a new query begins: an iterator for each shard."""
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

        def place(shard: Shard) -> str:
            named = starting if isinstance(starting, str) else starting.get(shard.shard_id, EARLIEST)
            if named not in (EARLIEST, LATEST):
                return named
            since = now if named == LATEST else self.options.starting_micros
            return self.streams.get_shard_iterator(described.stream_id, shard.shard_id, since)

        places = dict(zip(described.shards, self.pool.map(place, described.shards), strict=True))
        listed = {shard.shard_id for shard in places}
        shards = {
            shard.shard_id: ShardOffset(at, parents=frozenset(shard.parent_shard_ids & listed))
            for shard, at in places.items()
        }
        begins = {shard.shard_id: at for shard, at in places.items()}
        return StreamOffset(described.stream_id, shards, begins, self._listed_micros)

    def _checked(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        """The start with the shards that are new, and without those that need not be remembered any more."""
        if described.stream_id != start.stream_id:
            self._lost(
                f"the stream of table {self.options.table!r} is {described.stream_id}, and the checkpoint is of "
                f"{start.stream_id}: the stream was switched off and on again, so its records are gone, or the option "
                "table named another table before"
            )
            return self._other_stream(start, described)
        end, now = evolve(start, listed_micros=self._listed_micros), self.now_micros()
        for shard in new_shards(start, described.shards):
            doubt = may_have_lost(shard, start, described, now, self._not_listed_micros[shard.shard_id])
            if doubt:
                self._lost(f"of shard {shard.shard_id} records may be gone: {doubt}")
            at = self.streams.get_shard_iterator(described.stream_id, shard.shard_id)
            parents = frozenset(shard.parent_shard_ids)
            end = end.with_shard(shard.shard_id, ShardOffset(at, parents=parents), begin=at)
        return without_forgotten(end, described.shards, described.expiration_time_hours, now)

    def _other_stream(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        """The new stream from its oldest records on; ids of shards are never those of another stream."""
        shards = dict(start.shards)
        now = self.now_micros()
        ended = {shard: evolve(one, at=None, ended_micros=one.ended_micros or now) for shard, one in shards.items()}
        end = StreamOffset(described.stream_id, ended, listed_micros=self._listed_micros)
        for shard in described.shards:
            at = self.streams.get_shard_iterator(described.stream_id, shard.shard_id)
            parents = frozenset(shard.parent_shard_ids)
            end = end.with_shard(shard.shard_id, ShardOffset(at, parents=parents), begin=at)
        return end

    def _lost(self, what: str) -> None:
        if self.options.fails_on_data_loss:
            raise StreamClientException(data_loss(what))
        _log.warning("%s; going on, as failOnDataLoss is false", what)

    # --- walking ------------------------------------------------------------------------------------------------------

    def _walk(
        self, end: StreamOffset, readable: list[str], most: int | None, per_shard: int | None, latest: int | None
    ) -> StreamOffset:
        """A page of each shard in turn until all are read up, or have their share."""
        taken = dict.fromkeys(readable, 0)
        left, partition = most, self.options.max_per_partition
        active = list(readable)
        self._asked = {shard: [] for shard in readable}
        while active and left != 0:
            sizes = self._sizes(end, active, taken, left, per_shard)
            had = [taken[shard] for shard in sizes]
            for shard, size in sizes.items():
                self._asked[shard].append(size)
            # One shard alone is read by this thread: waking another one would cost as much as a page from memory.
            side_by_side = map if len(sizes) == 1 else self.pool.map
            pages = list(side_by_side(self._page, [end] * len(sizes), sizes, sizes.values(), had))
            going = [shard for shard in active if shard not in sizes]
            for shard, (begin, page) in zip(sizes, pages, strict=True):
                if page is None:
                    continue  # lost behind what was counted: the next batch, which begins there, says so
                if page.record_count > sizes[shard] and taken[shard]:
                    continue  # a tunnel's page, which has no smaller parts: it is the next batch's
                before = begin or end.shards[shard].at
                why = self._doubt(shard, before, end.shards[shard].last, page)
                if why:
                    going += [shard] if self._asks_again(shard, why) else []
                    continue
                self._doubts.forget(shard)
                end = self._advanced(end, shard, page, begin)
                taken[shard] += page.record_count
                if page.record_count and partition is not None and taken[shard] % partition == 0:
                    self._partition_ends.setdefault(shard, {})[end.shards[shard].count] = end.shards[shard]
                left = None if left is None else max(0, left - page.record_count)
                is_up = self._is_caught_up(shard, before, end.shards[shard], page, latest)
                if not is_up and (per_shard is None or taken[shard] < per_shard):
                    going.append(shard)
            active = going
        return end

    def _doubt(self, shard: str, at: str | None, last: SequenceInfo | None, page: PageSummary) -> str:
        """Why a page cannot be true; empty if it can."""
        why = no_progress(at or "", page.next_shard_iterator, page.last, page.last, last)
        if not why and page.next_shard_iterator is None and not self._has_ended(shard):
            why = NOT_SHOWN
        return why

    def _has_ended(self, shard: str) -> bool:
        """Whether the list of shards shows it; asked again if the last one does not."""
        return self._ends.confirms(shard, lambda: self._listing(is_new=True))

    def _asks_again(self, shard: str, why: str) -> bool:
        """A page is in doubt, so nothing of it counts: whether to ask for it again now, after a pause.

        Raises:
            StreamClientException: the query has to end, and cannot read up to the present.
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
        """How many records to ask each shard for.

        If not all get some, those come first that have had the least in this batch, and of these the one that is
        furthest behind. Offsets say that, so a restart goes on with the same one, and none waits for good.
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
        """A page, and where the shard's part of the batch begins instead if records were lost before it.

        No page if they were lost after others had been counted for this batch.
        """
        at = end.shards[shard].at
        assert at is not None
        if not taken and self._doubts.counts.get(shard, 0) > 1 and end.shards[shard].last is not None:
            return self._first_unread(end, shard, size)  # the iterator may be one that leads back
        try:
            return None, self._ahead.page(shard, at, size)
        except TrimmedDataException as error:
            if taken:
                return None, None
            self._lost(f"records of shard {shard} were trimmed before they were read: {error}")
        except DependencyException as error:
            # A shard that is not listed may still be read: only if it may not, it is gone.
            if error.code not in _GONE_CODES or taken or self._is_listed(shard):
                raise
            self._lost(f"shard {shard} is gone, and was not read to its end: {error}")
            return None, PageSummary(0, None, None, None)
        return self._first_unread(end, shard, size)

    def _first_unread(self, end: StreamOffset, shard: str, size: int) -> tuple[str, PageSummary]:
        """The oldest place behind what the query has read, and its page.

        An iterator may have expired while its records are kept: those that were read are not read again. Times would
        lead there at once, but a shard's epoch may grow while the clock of its server goes back.
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
        return self._described is not None and any(one.shard_id == shard for one in self._described.shards)

    def _advanced(self, end: StreamOffset, shard: str, page: PageSummary, begin: str | None) -> StreamOffset:
        one = end.shards[shard]
        after = evolve(
            one,
            at=page.next_shard_iterator,
            count=one.count + page.record_count,
            last=page.last or one.last,
            ended_micros=self.now_micros() if page.next_shard_iterator is None else None,
        )
        return end.with_shard(shard, after, begin)

    def _is_caught_up(
        self, shard: str, before: str | None, after: ShardOffset, page: PageSummary, latest: int | None
    ) -> bool:
        """Whether the page left nothing to read for now. ``latest`` is the stamp behind which nothing is wanted."""
        seen = self._seen[shard]
        seen.empty_pages = 0 if page.record_count else seen.empty_pages + 1
        is_late = latest is not None and after.last is not None and after.last.timestamp_micros > latest
        is_still = not page.record_count and (after.at == before or seen.empty_pages >= MOST_EMPTY_PAGES)
        if not (is_still or is_late or after.is_ended or page.may_more_record is False):
            return False
        seen.caught_up_count, seen.read_up_micros = after.count, self.now_micros()
        seen.until = self.monotonic() + IDLE_SECONDS
        return True

    def _whole_chain(self, start: StreamOffset, most: int | None, per_shard: int | None) -> list[StreamOffset]:
        """Offsets from the start to the present, each the end of a batch."""
        chain, latest_micros = [start], self.now_micros() + MOST_SKEW_MICROS
        done: frozenset[str] = frozenset()
        self._listed_at = float("-inf")
        self._seen.clear()
        self._chain = chain
        while True:
            end = self._next(chain[-1], most, per_shard, done, latest_micros)
            done |= {shard for shard, one in end.shards.items() if self._seen[shard].caught_up_count == one.count}
            if end == chain[-1]:
                return chain
            chain.append(end)
