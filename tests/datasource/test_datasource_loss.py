"""A query whose records are gone, or may be: it says so, and only then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamclient.errors import DependencyException, StreamClientException
from streamclient.wire.page_parts import PageSummary
from tests.datasource.query import MemoryStream, Query, options, two_shards


def trim_s1(stream: MemoryStream) -> None:
    stream.trimmed["s1"] = 15


def drop_s1(stream: MemoryStream) -> None:
    stream.gone.add("s1")


def drop_s1_and_keep_its_children(stream: MemoryStream) -> None:
    stream.split("s1")
    stream.split("s1a")
    stream.gone |= {"s1", "s1a"}


def other_stream(stream: MemoryStream) -> None:
    stream.stream_id = "other"
    for shard in ("s1", "s2"):
        stream.hidden.add(shard)
    stream.write(stream.open("n1"), 5)


@pytest.mark.parametrize(
    ("lose", "said", "left"),
    [
        (trim_s1, "records of shard s1 were trimmed before they were read", {*range(20, 40), *range(15, 20)}),
        (drop_s1, "shard s1 is gone, and was not read to its end", set(range(20, 40))),
        (drop_s1_and_keep_its_children, "may be gone: its parent s1a was never seen", set(range(20, 40))),
        (other_stream, "switched off and on again", set(range(40, 45))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_lost_records_end_the_query_unless_that_is_allowed(lose: Any, said: str, left: set[int]) -> None:
    for allowed in ("false", "true"):
        stream = two_shards(20)
        query = Query(stream, options(failOnDataLoss=allowed))
        query.plan(8)
        query.run()
        had = set(query.keys())
        lose(stream)
        query.start()
        if allowed == "true":
            with pytest.raises(StreamClientException, match=said):
                query.plan()
        else:
            query.catch_up()
            assert set(query.keys()) == had | (left - had)
            assert len(query.keys()) == len(set(query.keys())), "none twice"


def stopped_for_30_hours(query: Query) -> None:
    """Meanwhile s1, of which nothing is left to read, splits, and the first records of a child go."""
    query.stream.split("s1")
    query.stream.write("s1a", 5)
    query.stream.trimmed["s1a"] = 3
    query.passed_hours += 30
    query.start()


@pytest.mark.parametrize("allowed", [True, False])
def test_the_first_records_of_a_shard_that_was_opened_meanwhile_are_not_skipped_in_silence(allowed: bool) -> None:
    """No iterator of it is stored, so no reading of the stream says that anything is gone."""
    query = Query(two_shards(5), options(failOnDataLoss=str(not allowed)))
    query.catch_up()
    stopped_for_30_hours(query)
    if allowed:
        query.catch_up()
        assert query.keys() == [*range(10), 13, 14]
        return
    said = (
        "records of shard s1a may be gone: it was opened at some time in the last 30.0 hours, .* are kept for 24 hours"
    )
    for _ in range(2):
        with pytest.raises(StreamClientException, match=said):
            query.plan()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends with what is there"])
def test_a_query_without_new_records_knows_all_the_same_how_young_a_new_shard_is(ends: bool) -> None:
    """While it runs, and after a short stop: an empty batch now and then stores which shards there were."""
    query = Query(two_shards(5))
    query.catch_up()
    batches = len(query.log)
    for _ in range(60):
        query.passed_hours += 0.5
        if ends:
            query.start()
            query.planner.stop_at_present()
        query.catch_up()
    assert 10 <= len(query.log) - batches <= 30, "about one an hour"
    assert all(rows == [] for rows in query.output[batches:])
    query.stream.split("s1")
    query.stream.write("s1a", 5)
    query.start()
    query.catch_up()
    assert query.keys() == list(range(15))

    query.passed_hours += 5
    query.catch_up()
    query.passed_hours += 5  # of which the checkpoint knows nothing
    query.stream.split("s2")
    query.stream.write("s2a", 5)
    query.catch_up()
    assert query.keys() == list(range(20))


def test_a_checkpoint_that_does_not_say_when_its_shards_were_listed_goes_on() -> None:
    """It is of an earlier version. The next batch says it."""
    query = Query(two_shards(5))
    query.catch_up()
    query.log = [
        json.dumps({name: one for name, one in json.loads(text).items() if name != "listed"}) for text in query.log
    ]
    stopped_for_30_hours(query)
    query.catch_up()

    assert query.keys() == [*range(10), 13, 14]
    assert query.offset(len(query.log) - 1).listed_micros is not None


@pytest.mark.parametrize("trimmed", [1, 3, 4])
@pytest.mark.parametrize("given", [{}, {"maxRecordsPerPartition": "3"}], ids=["whole", "cut"])
def test_a_loss_between_plan_and_read_is_allowed_or_ends_the_query(given: dict[str, str], trimmed: int) -> None:
    stream = two_shards(20)
    query = Query(stream, options(failOnDataLoss="false", **given))
    query.plan(16)
    stream.trimmed["s1"] = trimmed
    query.run()
    query.catch_up()

    assert query.keys() == list(range(trimmed, 40)), "up to the planned end, and each once"


@pytest.mark.parametrize("jumps", [1, 25])
@pytest.mark.parametrize("trimmed", [1, 3, 4])
def test_empty_pages_do_not_end_what_is_left_of_a_range(trimmed: int, jumps: int) -> None:
    stream = two_shards(20)
    query = Query(stream, options(failOnDataLoss="false"))
    query.plan(16)
    stream.trimmed["s1"] = trimmed
    stream.jumps = jumps
    query.run()

    assert {row["pk"] for row in query.output[0] if row["_shard_id"] == "s1"} == set(range(trimmed, 8))


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("read", [1, 6, 7, 8, 19, 20])
@pytest.mark.parametrize("closed", [False, True])
def test_an_iterator_that_expired_while_its_records_are_kept_gives_none_twice(
    read: int, jumps: bool, closed: bool
) -> None:
    stream = two_shards(20)
    query = Query(stream, options(failOnDataLoss="false"))
    query.plan(per_shard=read)
    query.run()
    stream.jumps = jumps
    at = query.offset(0).shards["s1"].at
    assert at is not None
    stream.expired.add(at)
    if closed:
        stream.split("s1")
    query.start()
    query.catch_up()

    assert query.keys() == list(range(40))


@pytest.mark.parametrize("at", ["s1/3", "s1/6", "s1/7", "s1/10"])
def test_an_iterator_that_expired_between_plan_and_read_gives_none_twice(at: str) -> None:
    stream = two_shards(20)
    stream.page_records = 3
    query = Query(stream, options(failOnDataLoss="false", maxRecordsPerPartition="7"))
    query.plan(32)
    stream.expired.add(at)
    query.run()
    assert not stream.expired, "the reader met it"
    query.catch_up()

    assert query.keys() == list(range(40))


class TrimmedStream(MemoryStream):
    """Forgets records of the first shard as soon as it was read."""

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        try:
            return super().summary(shard_id, iterator, limit)
        finally:
            self.trimmed["s1"] = 15


def test_a_query_of_what_is_there_now_does_not_end_well_behind_a_loss() -> None:
    """The loss lies behind what its last batch had counted, so no other batch would say so."""
    query = Query(two_shards(20, TrimmedStream()))
    query.planner.stop_at_present()
    with pytest.raises(StreamClientException, match=r"records of shard s1 were trimmed before they were read"):
        query.catch_up()


def test_a_shard_that_may_not_be_read_is_not_taken_for_gone() -> None:
    stream = two_shards(20)
    query = Query(stream, options(failOnDataLoss="false"))
    query.plan(8)
    query.run()
    stream.gone.add("s1")
    stream.refusal = "OTSNoPermissionAccess"
    query.start()
    with pytest.raises(DependencyException, match="OTSNoPermissionAccess"):
        query.plan()


def test_a_shard_that_a_listing_lacks_is_neither_lost_nor_read_again() -> None:
    """Those that were read to their ends, for which nobody waits any more, and one that is still read."""
    stream = two_shards(10)
    stream.merge("s1", "s2")
    (merged,) = stream.open_shards
    stream.split(merged)
    query = Query(stream)
    query.catch_up()
    stream.hidden = {"s1", "s2", f"{merged}a"}
    for half in ("a", "b"):
        stream.write(f"{merged}{half}", 5)
    query.catch_up()
    stream.hidden = set()
    query.catch_up()

    assert query.keys() == list(range(30))
