"""A query over a stream in memory: each change once and in order, however it is cut, crashed and repeated."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.errors import ConfigurationError, StreamClientException, UnfitValueError
from streamclient.spark.source.partition_reading import RangeReader, StreamPages
from tests.datasource.query import COLUMNS, NOW_MICROS, MemoryStream, Query, options, two_shards

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 9), st.integers(1, 30)),
        st.tuples(st.just("split"), st.integers(0, 9)),
        st.tuples(st.just("merge"), st.integers(0, 9), st.integers(1, 9)),
        st.tuples(st.just("plan"), st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(1, 15))),
        st.tuples(st.just("run")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("jump"), st.booleans()),
        st.tuples(st.just("hint"), st.booleans()),
    ),
    max_size=40,
)


def step(stream: MemoryStream, query: Query, what: tuple[Any, ...]) -> None:
    shards = stream.open_shards
    match what:
        case ("write", place, count):
            stream.write(shards[place % len(shards)], count)
        case ("split", place):
            stream.split(shards[place % len(shards)])
        case ("merge", place, further) if len(shards) > 1 and further % len(shards):
            stream.merge(shards[place % len(shards)], shards[(place + further) % len(shards)])
        case ("plan", most, per_shard):
            if query.committed == len(query.log):
                query.plan(most, per_shard)
        case ("run",):
            if query.log:
                query.run()
        case ("crash",):
            query.start()
        case ("jump", jumps):
            stream.jumps = jumps
        case ("hint", hints):
            stream.hints = hints


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 12), st.sampled_from([{}, {"maxRecordsPerPartition": "4"}]))
def test_each_change_comes_once_in_order_and_behind_its_parents(
    steps: list[Any], page: int, given: dict[str, str]
) -> None:
    stream = two_shards()
    stream.page_records = page
    query = Query(stream, options(**given))
    for what in steps:
        step(stream, query, what)
    if query.log:
        query.run()
    stream.jumps = False
    query.catch_up(50)

    assert query.keys() == list(range(stream.written)), "none lost, none twice"
    batches: dict[str, list[int]] = {}
    for number, rows in enumerate(query.output):
        by_shard: dict[str, list[int]] = {}
        for row in rows:
            by_shard.setdefault(row["_shard_id"], []).append(row["pk"])
        for shard, keys in by_shard.items():
            assert keys == sorted(keys), "in order"
            batches.setdefault(shard, []).append(number)
    for shard, numbers in batches.items():
        for parent in stream.shards[shard].parent_shard_ids & batches.keys():
            assert max(batches[parent]) < min(numbers), "a child in a later batch than its parents"


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(1, 12), st.sampled_from([{}, {"maxRecordsPerPartition": "4"}]))
def test_a_batch_that_is_repeated_after_any_delay_has_the_same_rows(
    steps: list[Any], page: int, given: dict[str, str]
) -> None:
    """The first one too, whose beginning Spark does not store: the oldest record is another one by then."""
    stream = two_shards(5)
    query = Query(stream, options(**given))
    for what in steps:
        step(stream, query, what)
        step(stream, query, ("plan", 13, None))
        step(stream, query, ("run",))
    stream.page_records = page
    before = [list(rows) for rows in query.output]
    again = [[row for part in query.parts(batch) for row in query.rows(part)] for batch in range(len(before))]

    assert again == before


def test_the_first_batch_is_repeated_as_it_was_though_the_oldest_records_are_gone() -> None:
    """Asked again, Spark gets a mark; the end says where the batch began, and a hole is an error, not another row."""
    stream = two_shards(20)
    query = Query(stream)
    query.plan(10)
    stream.trimmed = {"s1": 3}
    query.start()
    with pytest.raises(StreamClientException, match=r"shard s1 were trimmed after they were planned.*failOnDataLoss"):
        query.run()


def test_the_latest_offset_is_settled_once() -> None:
    """Crashed before its first batch was run, a query goes on where it was to begin."""
    stream = two_shards(5)
    query = Query(stream, options(startingOffsets="latest"))
    assert query.plan(), "the beginning is written down, with nothing to read"
    query.start()
    stream.write("s1", 3)
    query.run()
    query.catch_up()

    assert query.keys() == [10, 11, 12]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingTimestamp": str(NOW_MICROS // 1_000 + 1)}, 1_000),
        ({"startingOffsets": json.dumps({"s1": "s1/4"})}, 4),
    ],
    ids=str,
)
def test_a_query_begins_where_it_was_told(given: dict[str, str], first: int) -> None:
    stream = MemoryStream()
    stream.write(stream.open("s1"), 1_020)
    query = Query(stream, options(**given))
    query.catch_up()

    assert query.keys() == list(range(first, 1_020))


def test_an_unknown_shard_in_the_starting_offsets_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shard 's9', and the stream of 't' has s1, s2"):
        Query(two_shards(), options(startingOffsets='{"s9": "latest"}')).plan()


def test_a_start_that_is_yet_to_come_is_refused_but_for_what_clocks_differ_by() -> None:
    """By a new query: one that goes on from its checkpoint does not look at it."""
    soon, late = (options(startingTimestamp=str(NOW_MICROS // 1_000 + minutes * 60_000)) for minutes in (14, 16))
    with pytest.raises(ConfigurationError, match="yet to come"):
        Query(two_shards(5), late).plan()
    query = Query(two_shards(5), soon)
    query.plan()
    query.options = late
    query.start()
    query.stream.write("s1", 3)
    query.catch_up()

    assert query.keys() == [10, 11, 12]


def test_limits_hold_and_are_shared_fairly() -> None:
    stream = two_shards(40)
    query = Query(stream)
    query.plan(20, None)
    query.run()
    first = [row["_shard_id"] for row in query.output[0]]
    query.plan(None, 5)
    query.run()
    second = [row["_shard_id"] for row in query.output[1]]

    assert (first.count("s1"), first.count("s2")) == (10, 10)
    assert (second.count("s1"), second.count("s2")) == (5, 5)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_no_shard_waits_for_good_if_a_batch_has_fewer_records_than_there_are_shards(restarts: bool) -> None:
    """A new one, too. What was planned is repeated as it was, whoever's turn comes next."""
    stream = MemoryStream()
    shards = [stream.open(f"s{number}") for number in range(5)]
    for shard in shards[:4]:
        stream.write(shard, 3)
    query = Query(stream)
    for number in range(30):
        for shard in shards:
            stream.write(shard, 1)
        query.plan(3)
        query.run()
        if restarts:
            query.start()
            before = list(query.output[number])
            query.run()
            assert query.output[number] == before
    read = [row["_shard_id"] for rows in query.output for row in rows]

    assert len(read) == 90
    assert all(read.count(shard) >= 15 for shard in shards), "half of the records are read, and so of each shard"
    query.catch_up(3)
    assert query.keys() == list(range(stream.written))


@pytest.mark.parametrize("jumps", [False, True], ids=["plain", "empty pages between"])
def test_a_large_part_of_a_shard_is_cut_into_ranges_that_follow_each_other(jumps: bool) -> None:
    stream = two_shards(20)
    stream.write("s1", 5)
    stream.jumps = jumps
    query = Query(stream, options(maxRecordsPerPartition="8"))

    def sizes() -> list[tuple[str, int]]:
        return [(part.shard_id, part.count) for part in query.parts(len(query.log) - 1)]

    query.plan(None, 20)
    first = sizes()
    query.run()
    query.plan(None, 20)
    query.run()

    assert first == [("s1", 8), ("s1", 8), ("s1", 4), ("s2", 8), ("s2", 8), ("s2", 4)]
    assert sizes() == [("s1", 5)], "counted from where the batch begins"
    assert query.keys() == list(range(45))


def test_ranges_of_a_batch_that_was_planned_before_a_restart_are_whole() -> None:
    """Spark stores where a batch ends, and not how it was cut: the records are the same."""
    query = Query(two_shards(20), options(maxRecordsPerPartition="8"))
    query.plan(None, 20)
    query.start()

    assert [part.count for part in query.parts(0)] == [20, 20]
    query.run()
    assert query.keys() == list(range(40))


@pytest.mark.parametrize("hints", [False, True])
@pytest.mark.parametrize("jumps", [0, 1, 25], ids=["plain", "empty pages between", "many empty pages between"])
def test_a_query_that_stops_at_the_present_ends_with_what_was_there(jumps: int, hints: bool) -> None:
    stream = two_shards(30)
    stream.jumps, stream.hints = jumps, hints
    stream.split("s1")
    stream.write("s1a", 10)
    query = Query(stream)
    query.planner.stop_at_present()
    sizes = []
    while query.plan(25):
        query.run()
        sizes.append(len(query.output[-1]))
        stream.write("s2", 4)

    assert query.keys() == list(range(70))
    assert max(sizes) <= 25


def test_an_idle_query_changes_nothing_and_asks_each_shard_twice_a_second() -> None:
    stream = two_shards(3)
    query = Query(stream)
    query.catch_up()
    reads, moments = stream.reads, iter([0.1 * number for number in range(1_000)])
    query.planner.monotonic = lambda: 1_000.0 + next(moments)
    assert not any(query.plan() for _ in range(20))

    assert stream.reads - reads <= 2 * 10, "far fewer than one for each question"


def test_lag_is_the_age_of_the_last_change_of_shards_with_more() -> None:
    stream = two_shards(30)
    stream.page_records = 500
    stream.write("s2", 5_000)
    query = Query(stream)
    query.plan(100)
    behind = query.planner.lag()
    query.run()
    query.catch_up()
    caught_up = query.planner.lag()

    assert behind is not None
    assert caught_up is not None
    assert (behind["shardsBehind"], behind["shards"]["s1"], behind["lagMillis"]) == (1, 0, behind["shards"]["s2"])
    assert behind["lagMillis"] == (5_060 - query.output[0][-1]["pk"]) // 1_000 == 4
    assert (caught_up["lagMillis"], caught_up["shardsBehind"], caught_up["records"]) == (0, 0, 5_060)


@pytest.mark.parametrize("hints", [False, True])
def test_a_shard_of_which_a_part_is_skipped_is_not_caught_up(hints: bool) -> None:
    """A batch does not wait for the end of the empty pages, and the next one goes on there."""
    stream = two_shards(1)
    query = Query(stream)
    query.catch_up()
    stream.written += 2_000
    stream.write("s1", 1)
    stream.jumps, stream.hints = 25, hints
    query.plan()
    behind = query.planner.lag()
    query.run()
    query.catch_up()
    caught_up = query.planner.lag()

    assert behind is not None
    assert caught_up is not None
    assert behind["shards"]["s1"] > 0
    assert (caught_up["shards"]["s1"], query.keys()) == (0, [0, 1, 2_002])


def test_a_shard_that_was_not_read_for_lack_of_room_lags_since_it_was_read_up_or_seen() -> None:
    """Nobody knows what it holds."""
    stream = two_shards()
    query = Query(stream)
    query.plan()
    query.run()
    stream.written += 2_000
    stream.write("s1", 2)
    stream.write(stream.open("s3"), 2)
    query.plan(1)
    stream.written += 3_000
    behind = query.planner.lag()
    query.run()
    query.catch_up(1)
    caught_up = query.planner.lag()

    assert behind is not None
    assert (behind["shards"], behind["shardsBehind"]) == ({"s1": 3, "s2": 5, "s3": 3}, 3)
    assert behind["lagMillis"] == 5
    assert caught_up is not None
    assert (caught_up["lagMillis"], caught_up["shardsBehind"]) == (0, 0)


def test_a_shard_whose_first_record_comes_in_a_later_batch_lags_as_that_one() -> None:
    """A query that stops at the present has planned it already."""
    stream = two_shards()
    for shard in ("s1", "s2"):
        stream.write(shard, 2)
        stream.written += 2_000
    query = Query(stream)
    query.planner.stop_at_present()
    query.plan(1)
    lag = query.planner.lag()

    assert lag is not None
    assert (lag["shards"], lag["lagMillis"]) == ({"s1": 4, "s2": 2}, 4)


def test_a_replay_that_reads_other_records_is_refused() -> None:
    stream = two_shards(10)
    query = Query(stream)
    query.plan(6)
    stream.records["s1"].insert(0, stream.records["s1"][0])

    with pytest.raises(StreamClientException, match="a batch cannot be repeated as it was"):
        query.run()


def test_a_value_that_does_not_fit_and_has_no_place_is_an_error() -> None:
    query = Query(two_shards(1))
    query.plan()
    narrow = pa.schema([pa.field("pk", pa.int64()), pa.field("v", pa.string())])
    reader = RangeReader(StreamPages(query.stream), narrow)  # type: ignore[arg-type]

    with pytest.raises(UnfitValueError, match="column 'v' is string and holds the INTEGER '0' in the change 0/"):
        list(reader.read(query.parts(0)[0]))


@pytest.mark.parametrize("further", [[], ["_unfit"]], ids=["values alone", "records"])
def test_a_key_column_in_another_case_is_refused_and_not_null(further: list[str]) -> None:
    query = Query(two_shards(1))
    query.plan()
    columns = pa.schema([("PK", pa.int64()), *((name, COLUMNS.field(name).type) for name in further)])
    reader = RangeReader(StreamPages(query.stream), columns)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="schema has 'PK', and the key of shard s1 has 'pk'"):
        list(reader.read(query.parts(0)[0]))


def test_the_checkpoint_of_another_source_is_refused() -> None:
    query = Query(two_shards(1))
    query.log.append('{"partition": 3}')

    with pytest.raises(StreamClientException, match="an offset not written by this source"):
        query.plan()
