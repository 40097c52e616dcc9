"""Pages of the next batch, which the planner asks for while Spark works on the present one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from attrs import define, field

from streamclient.errors import DependencyException, StreamClientException
from streamclient.spark.source.prefetch import PagesAhead
from streamclient.wire.page_parts import PageSummary
from tests.at_once import AtOnce
from tests.datasource.query import MemoryStream, Query, options
from tests.patience import PATIENCE_SECONDS

PAGE = 5


def one_shard(count: int, *, hints: bool = False) -> MemoryStream:
    stream = MemoryStream(hints=hints, page_records=PAGE)
    stream.write(stream.open("s1"), count)
    return stream


@define(eq=False)
class Shard:
    """Endless, with iterators that are numbers of records; ``errors`` are met by the next reads."""

    read: list[str] = field(factory=list)
    errors: list[Exception] = field(factory=list)
    begun: Event = field(factory=Event)
    may_end: Event = field(factory=Event)

    def summary(self, shard: str, iterator: str, size: int) -> PageSummary:
        self.read.append(iterator)
        self.begun.set()
        self.may_end.wait()
        if self.errors:
            raise self.errors.pop()
        return PageSummary(size, None, str(int(iterator) + size), may_more_record=True)


@pytest.mark.parametrize("hints", [False, True])
def test_no_page_is_asked_for_twice_but_the_last_one(hints: bool) -> None:
    stream = one_shard(4 * PAGE, hints=hints)
    query = Query(stream)
    reads = []
    while query.plan(per_shard=PAGE):
        reads.append(stream.reads)

    assert reads[:3] == [2, 3, 4], "the first plan reads its own page and that of the next one"
    assert stream.reads == 6, "the end is looked for twice: a record may have come to the last page, or another page"


@pytest.mark.parametrize("hints", [False, True])
def test_the_end_of_a_shard_is_looked_at_when_its_batch_is_planned(hints: bool) -> None:
    """What came meanwhile belongs to the batch."""
    stream = one_shard(PAGE + 2, hints=hints)
    query = Query(stream)
    query.plan(per_shard=PAGE)
    stream.write("s1", 2)
    query.plan(per_shard=PAGE)
    query.run()

    assert [row["pk"] for row in query.output[0]] == list(range(PAGE, PAGE + 4))


def test_pages_cut_by_their_size_are_asked_for_ahead_where_they_say_that_there_is_more() -> None:
    stream = one_shard(8 * PAGE, hints=True)
    query = Query(stream)
    for reads in (6, 8):
        query.plan(per_shard=3 * PAGE)
        assert stream.reads == reads
        query.run()
        stream.reads = reads
    query.catch_up(per_shard=3 * PAGE)

    assert query.keys() == list(range(8 * PAGE))


def test_a_query_with_other_limits_than_the_batch_before_has_its_own_pages() -> None:
    stream = one_shard(6 * PAGE)
    query = Query(stream, options(maxRecordsPerPartition="4"))
    for most in (9, 4, 1, 8, 40):
        query.plan(most)
        query.run()

    assert query.keys() == list(range(6 * PAGE))
    assert [len(rows) for rows in query.output] == [9, 4, 1, 8, 8]


def test_nothing_is_asked_for_ahead_of_a_query_that_ends_with_what_is_there() -> None:
    stream = one_shard(2 * PAGE)
    query = Query(stream)
    query.planner.stop_at_present()
    query.plan(per_shard=PAGE)
    before = stream.reads
    query.catch_up(per_shard=PAGE)

    assert stream.reads == before + 1, "one page of the batch that ran"


def test_records_that_went_after_they_were_asked_for_are_missed_by_who_reads_them() -> None:
    stream = one_shard(3 * PAGE)
    query = Query(stream)
    query.plan(per_shard=PAGE)
    query.run()
    stream.trimmed["s1"] = 2 * PAGE
    query.plan(per_shard=PAGE)

    with pytest.raises(StreamClientException, match="were trimmed after they were planned"):
        query.run()


def test_an_error_ahead_is_not_said_unless_it_is_met_again() -> None:
    shard = Shard(errors=[DependencyException("no")])
    shard.may_end.set()
    ahead = PagesAhead(shard.summary, AtOnce())
    ahead.start({"s": "0"}, {"s": [PAGE, PAGE]})

    assert ahead.page("s", "0", PAGE).next_shard_iterator == str(PAGE)
    assert shard.read == ["0", "0"]


HANGING = """
from threading import Event
from streamclient.spark.source.planner import StreamPlanner
from streamclient.spark.source.offsets import StreamOffset
from tests.datasource.query import MemoryStream, options

stream, hangs, count = MemoryStream(hints=True), Event(), 2
stream.write(stream.open("s1"), 40)

def summary(shard, iterator, limit):
    global count
    count -= 1
    if count < 0:
        hangs.set()
        Event().wait()
    return stream.summary(shard, iterator, limit)

planner = StreamPlanner(options(), stream, summary)
planner.latest(StreamOffset(), None, 14)
hangs.wait()
planner.close()
print("closed")
"""


def test_a_read_that_hangs_does_not_keep_the_process_of_the_planner_alive() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING], check=False, timeout=PATIENCE_SECONDS, capture_output=True, text=True
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == ("closed\n", "", 0)


def test_a_plan_waits_for_the_read_that_is_under_way_and_asks_for_the_rest_itself() -> None:
    shard = Shard()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as planner:
        ahead = PagesAhead(shard.summary, pool)
        ahead.start({"s": "0", "queued": "0"}, {"s": [PAGE, PAGE], "queued": [PAGE]})
        assert shard.begun.wait(PATIENCE_SECONDS)
        ahead.stop()
        coming = planner.submit(ahead.page, "s", "0", PAGE)
        shard.may_end.set()

        assert coming.result(PATIENCE_SECONDS).next_shard_iterator == str(PAGE)
        assert shard.read == ["0"], "read once, and no further"
        assert ahead.page("queued", "0", PAGE).record_count == PAGE, "whose turn never came"
        assert ahead.page("s", str(PAGE), PAGE).next_shard_iterator == str(2 * PAGE)
        assert shard.read == ["0", "0", str(PAGE)]


@pytest.mark.parametrize("end", [PagesAhead.stop, lambda ahead: ahead.start({}, {})], ids=["stopped", "started anew"])
def test_nothing_is_asked_for_that_is_no_longer_wanted(end: Callable[[PagesAhead], None]) -> None:
    shard = Shard()
    with ThreadPoolExecutor(1) as pool:
        ahead = PagesAhead(shard.summary, pool)
        ahead.start({"s": "0"}, {"s": [PAGE] * 10})
        assert shard.begun.wait(PATIENCE_SECONDS)
        end(ahead)
        shard.may_end.set()

    assert shard.read == ["0"]
