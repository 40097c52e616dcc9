"""The fetcher of one shard. It reads pages in order, and reads pages ahead while a page is processed.

Other modules decide about retries and pauses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import define, field, frozen

from streamclient.base import checks
from streamclient.base.position import Position
from streamclient.base.reasons import Cause, Raised, as_error, described
from streamclient.core.consumer.consumer_events import ShardPage
from streamclient.errors import StreamClientException
from streamclient.records import SequenceInfo, place_of
from streamclient.tablestore.stream_api import RecordPage, StreamApi
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.read_calls import Claim, OwnerReads, PrefetchBudget

PAGES_IN_A_ROW = 4
"""The largest number of pages that one task of the fetch pool reads ahead. Each task wakes a thread, and its last page
wakes the owner. The pages of one task share that cost. The number is small, so that no other shard waits long for the
thread."""

MOST_PAGES_SEARCHED = 64
"""The largest number of pages in which the oldest record of a shard is searched. The service skips a part of the shard
with each page that has no record, so the record may be on a later page. The page of a tunnel's channel that has no
record now never shows that."""

LEAST_RECORD_BYTES = 64
"""The smallest size, in bytes, that is counted for each record of a page. So a page counts even if a stream API of the
user does not state the size of the page."""


def _read(read: Callable[[], RecordPage]) -> RecordPage:
    return read()


def _checked(page: object) -> RecordPage:
    """Return ``page`` if it is a valid result of ``get_stream_record``; otherwise raise."""
    if (
        isinstance(page, RecordPage)
        and isinstance(page.next_position, Position)
        and isinstance(page.records, Sequence)
        and checks.is_whole(page.body_bytes)
    ):
        return page
    checks.done("get_stream_record", page)
    raise StreamClientException(
        f"get_stream_record answered {checks.shown(page)}; "
        "it must return a RecordPage of a sequence of records, a Position and a whole number of bytes"
    )


def checked_iterator(iterator: object) -> str:
    """Return ``iterator`` if it is a valid result of ``get_shard_iterator``; otherwise raise."""
    if isinstance(iterator, str) and iterator:
        return iterator
    checks.done("get_shard_iterator", iterator)
    raise StreamClientException(
        f"get_shard_iterator answered {checks.shown(iterator)}; it must return an iterator, which is a non-empty string"
    )


@frozen
class OldestLeft:
    """The result of a search for the oldest record of a shard."""

    place: SequenceInfo | None
    """The sequence information of the record; ``None`` if the shard has no record, or if ``is_known`` is false."""
    is_known: bool = True
    """False if ``MOST_PAGES_SEARCHED`` pages have no record, and records may follow."""


@frozen(kw_only=True)
class ShardSource:
    """The source of one shard's pages. Its methods block, and run in the fetch pool."""

    stream_api: StreamApi
    stream_id: str
    shard_id: str
    limit: int
    measured: Callable[[Callable[[], RecordPage]], RecordPage] = _read
    """A function that carries out a read, and may count and time it."""

    def read(self, position: Position) -> RecordPage:
        """Return the page at ``position``; raise the same errors as ``StreamApi``."""
        return self.measured(partial(self._page, position))

    def first_left(self, goes_on: Callable[[], bool]) -> OldestLeft:
        """Search for the oldest record in the shard, in at most ``MOST_PAGES_SEARCHED`` pages.

        Before each page but the first, ``goes_on`` returns whether the search is still needed. The method raises the
        same errors as ``StreamApi``.
        """
        position = Position(self._oldest())
        for number in range(MOST_PAGES_SEARCHED):
            if number and not goes_on():
                break
            page = _checked(self.stream_api.get_stream_record(position.text, 1))
            if page.records:
                return OldestLeft(place_of(page.records, 0))
            if page.next_position in (position, Position.SHARD_END):
                return OldestLeft(None)
            position = page.next_position
        return OldestLeft(None, is_known=False)

    def _page(self, position: Position) -> RecordPage:
        iterator = position.text if position.is_iterator else self._oldest()
        return _checked(self.stream_api.get_stream_record(iterator, self.limit))

    def _oldest(self) -> str:
        return checked_iterator(self.stream_api.get_shard_iterator(self.stream_id, self.shard_id))


@define(eq=False)
class Reading:
    """One task of the fetch pool, from the time when it is queued until its end.

    The task reads the page that the consumer requested, reads several pages ahead, or looks for the shard's oldest
    record.
    """

    queued_cause: ClassVar[Cause] = Cause.READ_QUEUED
    runs_cause: ClassVar[Cause] = Cause.READ_RUNS
    start: Position
    """The position of the next page that the owner expects from this task."""
    queued_at: float
    claims: deque[Claim] = field(factory=deque)
    """The reservations of bytes, one for each page that the task will still read ahead."""
    is_patient: bool = False
    """Whether the task may wait until a busy thread is free. An empty page of such a task wakes the owner only if no
    other read waits for a thread. Otherwise a later read will wake the owner."""
    is_awaited: bool = False
    """Whether the consumer waits for the next page. Only the owner thread sets ``is_awaited`` and ``is_over``."""
    is_over: bool = False
    """Whether the consumer does not need further pages of this task."""
    started_at: float | None = None
    """The time at which the read of the current page began; ``None`` before the first page. Only the thread of the task
    sets ``started_at`` and ``thread_id``."""
    thread_id: int | None = None


@frozen
class _AheadPage:
    start: Position
    page: RecordPage
    read_at: float
    claim: Claim


@frozen
class _Asked:
    came: Callable[[Any], None]
    """A function that gets the result of the task: a page, or the place of the shard's oldest record."""
    failed: Callable[[Raised], None]


class DataFetcher:
    """The fetcher of one shard's data, which reads one page at a time. Owner thread only.

    ``fetch`` delivers the page at a position. A page that was read ahead is as good as a page read on demand, because
    both result from a read at that position.
    """

    def __init__(
        self,
        source: ShardSource,
        *,
        loop: OwnerLoop,
        reads: OwnerReads,
        loss_micros: Callable[[], float],
        budget: PrefetchBudget,
        most_ahead_bytes: int,
    ) -> None:
        self._source = source
        self._loop = loop
        self._reads = reads
        self._loss_micros = loss_micros
        self._budget = budget
        self._most_ahead_bytes = most_ahead_bytes
        self._asked: _Asked | None = None
        self._pages: deque[_AheadPage] = deque()
        self._ahead_bytes = 0
        self._ahead_end: Position | None = None
        self._question: Claim | None = None
        self._largest_bytes = 0
        self._last_had_records = True
        self._is_catching_up = False
        self.reading: Reading | None = None
        """The task under way, or ``None``. The consumer of the shard checks how long the task's read takes."""
        self.read_at = 0.0
        """The time at which the read of the latest delivered page began; 0.0 before the first page."""

    # --- the consumer's requests ---------------------------------------------------------------------------------

    def fetch(
        self,
        position: Position,
        came: Callable[[RecordPage], None],
        failed: Callable[[Raised], None],
        *,
        is_patient: bool = False,
    ) -> None:
        """Call ``came`` with the page at ``position``, or ``failed`` with the error that ``StreamApi`` raised.

        If the page was read ahead, ``came`` is called immediately. If ``discard`` is called first, neither function is
        called. If ``is_patient``, the read may wait a short time for a busy thread; see ``ReadQueue``.
        """
        if self._pages and self._pages[0].start == position:
            ahead = self._pages.popleft()
            self._ahead_bytes -= ahead.claim.size_bytes
            ahead.claim.release()
            self._hand_out(ahead.page, ahead.read_at, came)
            return
        if self.reading is None or self.reading.start != position:
            self.discard()
            self._begin(Reading(position, self._loop.now(), is_patient=is_patient))
        else:
            self.reading.is_awaited = True
        self._asked = _Asked(came, failed)

    def find_first_left(self, found: Callable[[OldestLeft], None], failed: Callable[[Raised], None]) -> None:
        """Call ``found`` with the result of a search for the shard's oldest record.

        If ``StreamApi`` raises, ``failed`` is called with the error. If ``discard`` is called first, neither function
        is called. Until then, ``reading`` is the search, so that its time is checked as the time of a read.
        """
        self.discard()
        self._asked = _Asked(found, failed)
        search = self.reading = Reading(Position.TRIM_HORIZON, self._loop.now())
        self._loop.at_end(partial(self._submit, search, partial(self._search, search)))

    def read_ahead(self, page: ShardPage) -> None:
        """Read the pages after ``page`` while that page is processed, within the limits for bytes and pages.

        Read ahead only if ``page`` has records, and is full or follows a page with records. Otherwise the shard
        probably has no further records now. A read ahead would then be an additional request for an idle shard.
        """
        if self._pages and self._pages[0].start != page.next_position:
            self.discard()
        if self._is_catching_up and self._most_ahead_bytes and page.may_more_record is not False:
            self._ahead_end = self._pages[-1].page.next_position if self._pages else page.next_position
            self._go_on()

    def discard(self) -> None:
        """Drop all pages read ahead, the task under way, and the pending request of ``fetch``."""
        self._asked = self._ahead_end = None
        if self.reading is None and self._question is None and not self._pages:
            return
        claims = [entry.claim for entry in self._pages]
        claims += [self._question] if self._question is not None else []
        if self.reading is not None:
            self.reading.is_over = True
            claims += self.reading.claims
        self._pages.clear()
        self._ahead_bytes = 0
        self._question = self.reading = None
        _release(claims)

    @property
    def ahead_bytes(self) -> int:
        """The size of the pages read ahead, in bytes."""
        return self._ahead_bytes

    # --- reading -------------------------------------------------------------------------------------------------

    def _begin(self, reading: Reading) -> None:
        self.reading = reading
        sizes = [claim.size_bytes for claim in reading.claims]
        self._loop.at_end(partial(self._submit, reading, partial(self._work, reading, reading.start, sizes)))

    def _submit(self, reading: Reading, work: Callable[[], None]) -> None:
        if reading is self.reading:
            try:
                self._reads.submit(self._loss_micros(), work, is_patient=reading.is_patient)
            except Exception as error:  # any error, because the pool may be the program's own
                refused = StreamClientException(f"the read executor refused a read: {described(error)}")
                self._failed(reading, Raised.of(refused))

    def _work(self, reading: Reading, position: Position, sizes: Sequence[int]) -> None:
        """Read one page, or one page ahead for each of ``sizes``. Runs in the fetch pool.

        The task ends after the last page of the shard, after an empty page, and when its pages are no longer needed. It
        also ends after a page that is larger than the size reserved for it, so that the owner can calculate new sizes.

        The last page of the task and an awaited page wake the owner. The thread first posts a page, and then checks
        whether the page is awaited. If the owner begins to wait after that check, it looks into its inbox before it
        sleeps, and finds the page there.
        """
        reading.thread_id = threading.get_ident()
        for number, size_bytes in enumerate(sizes or (0,), start=1):
            began = reading.started_at = self._loop.now()
            try:
                page = self._source.read(position)
            except BaseException as error:
                self._loop.post(partial(self._failed, reading, Raised.of(as_error(error))))
                return
            position = page.next_position
            is_last = number >= len(sizes) or not page.records or position.is_shard_end or _bytes_of(page) > size_bytes
            is_no_news = reading.is_patient and not page.records
            self._loop.post(partial(self._came, reading, page, began, is_last), is_urgent=is_last and not is_no_news)
            if self._reads.is_last() if is_no_news else reading.is_awaited and not is_last:
                self._loop.wake()
            if reading.is_over or is_last:
                return

    def _search(self, search: Reading) -> None:
        """Look for the oldest record of the shard. Runs in the fetch pool."""
        search.thread_id, search.started_at = threading.get_ident(), self._loop.now()

        def goes_on() -> bool:
            search.started_at = self._loop.now()  # each page is a read of its own, as in ``_work``
            return not search.is_over

        try:
            first = self._source.first_left(goes_on)
        except BaseException as error:
            self._loop.post(partial(self._failed, search, Raised.of(as_error(error))))
        else:
            self._loop.post(partial(self._found, search, first))

    def _found(self, search: Reading, first: OldestLeft) -> None:
        if search is self.reading:
            self._end(search)
            asked, self._asked = self._asked, None
            if asked is not None:
                asked.came(first)

    def _came(self, reading: Reading, page: RecordPage, read_at: float, is_last: bool) -> None:
        if reading is not self.reading:
            return  # ``discard`` has already released the claims of this task
        start, reading.start, reading.is_awaited = reading.start, page.next_position, False
        claim = reading.claims.popleft() if reading.claims else None
        if is_last:
            self._end(reading)
        size_bytes = _bytes_of(page)
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        asked, self._asked = self._asked, None
        if asked is not None:
            if claim is not None:
                claim.release()
            self._hand_out(page, read_at, asked.came)
        elif claim is not None:
            self._keep(_AheadPage(start, page, read_at, claim), size_bytes)

    def _failed(self, reading: Reading, error: Raised) -> None:
        if reading is not self.reading:
            return
        self._end(reading)
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.failed(error)

    def _end(self, reading: Reading) -> None:
        """End a task after its last page or its error, and release its unused claims of bytes."""
        self.reading = self._ahead_end = None
        if reading.claims:
            _release(reading.claims)

    def _hand_out(self, page: RecordPage, read_at: float, came: Callable[[RecordPage], None]) -> None:
        self.read_at = read_at
        count = len(page.records)
        self._is_catching_up = count > 0 and (self._last_had_records or count >= self._source.limit)
        self._last_had_records = count > 0
        came(page)

    # --- reading ahead -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Read more pages ahead, if no task is under way and at least half of the shard's limit in bytes is unused."""
        end = self._ahead_end
        if end is None or end.is_shard_end or self.reading is not None or self._question is not None:
            return
        own_bytes, size_bytes = self._ahead_bytes, max(1, self._largest_bytes)
        free_bytes = self._most_ahead_bytes - own_bytes
        if own_bytes and free_bytes < max(size_bytes, self._most_ahead_bytes / 2):
            return
        claims: deque[Claim] = deque()
        for _ in range(max(1, min(PAGES_IN_A_ROW, free_bytes // size_bytes))):
            claim = self._budget.claim(self._largest_bytes, own_bytes, self._granted_anywhere)
            if claim.is_granted:
                claims.append(claim)
                own_bytes += size_bytes
                continue
            if claims:
                claim.release()
            else:
                self._question = claim
            break
        if claims:
            self._begin(Reading(end, self._loop.now(), claims))

    def _granted_anywhere(self, claim: Claim) -> None:
        """Tell the owner thread that ``claim`` was granted. Runs in a thread that has given bytes back."""
        self._loop.post(partial(self._granted, claim))

    def _granted(self, claim: Claim) -> None:
        if claim is self._question and self._ahead_end is not None:
            self._question = None
            self._begin(Reading(self._ahead_end, self._loop.now(), deque([claim])))

    def _keep(self, ahead: _AheadPage, size_bytes: int) -> None:
        """Keep a page read ahead. Drop an empty page, because a later read at its position may find records."""
        page = ahead.page
        if not page.records and not page.next_position.is_shard_end:
            self._last_had_records = False
            self._ahead_end = None
            ahead.claim.release()
            return
        ahead.claim.settle(size_bytes)
        self._pages.append(ahead)
        self._ahead_bytes += size_bytes
        self._ahead_end = page.next_position
        self._go_on()


def _bytes_of(page: RecordPage) -> int:
    return max(page.body_bytes, len(page.records) * LEAST_RECORD_BYTES)


def _release(claims: Iterable[Claim]) -> None:
    for claim in claims:
        claim.release()
