"""Reading a stream: iterators and pages, records that left, streams that are switched off and on."""

from __future__ import annotations

import pytest
from server_state_driver import HOUR_SECONDS, START_MICROS, TRIMMED, Driver, letters, put, stream_driver

from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.wire import schema


@pytest.fixture
def driver() -> Driver:
    return stream_driver()


# Leaving


def test_records_leave_after_their_retention(driver: Driver) -> None:
    start = driver.only_iterator()
    driver.put("a")
    driver.clock.advance(12 * HOUR_SECONDS)
    driver.put("b")
    driver.clock.advance(13 * HOUR_SECONDS)

    assert driver.refusal("GetStreamRecord", shard_iterator=start) == TRIMMED
    assert letters(driver.pages(driver.only_iterator())) == ["b"]
    assert letters(driver.pages(driver.only_iterator(timestamp=0))) == ["b"]


def test_an_iterator_at_the_tip_outlives_all_records(driver: Driver) -> None:
    driver.put("a")
    _, tip = driver.page(driver.only_iterator())
    driver.clock.advance(48 * HOUR_SECONDS)

    assert driver.page(tip) == ((), tip)


def test_a_closed_shard_leaves_with_its_last_record(driver: Driver) -> None:
    stream_id = driver.stream_id()
    start = driver.only_iterator()
    driver.put("a")
    _, tip = driver.page(start)
    driver.engine.split_shard("t", at=["b"])
    parent, *children = driver.describe_shards(stream_id)
    driver.clock.advance(25 * HOUR_SECONDS)

    assert driver.describe_shards(stream_id) == children
    assert driver.refusal("GetStreamRecord", shard_iterator=start) == TRIMMED
    assert driver.refusal("GetShardIterator", stream_id=stream_id, shard_id=parent.shard_id) == TRIMMED
    assert driver.page(tip) == ((), None)  # nothing was missed: the shard had ended there


def test_a_closed_shard_that_never_had_records_leaves_after_retention(driver: Driver) -> None:
    driver.engine.split_shard("t", at=["b"])

    assert len(driver.describe_shards(driver.stream_id())) == 3
    driver.clock.advance(25 * HOUR_SECONDS)
    assert len(driver.describe_shards(driver.stream_id())) == 2


def test_an_open_shard_never_leaves(driver: Driver) -> None:
    driver.put("a")
    driver.clock.advance(1000 * HOUR_SECONDS)

    assert len(driver.describe_shards(driver.stream_id())) == 1


def test_trim_by_count_time_and_shard(driver: Driver) -> None:
    driver.put_each("abcdef")
    times = [record.sequence_info.timestamp_micros for record in driver.all_records()]

    assert driver.engine.trim("t", before_micros=times[1]) == 1
    assert letters(driver.all_records()) == list("bcdef")
    assert driver.engine.trim("t", keep_last=2) == 3
    assert letters(driver.all_records()) == ["e", "f"]
    (shard,) = driver.describe_shards(driver.stream_id())
    assert driver.engine.trim("t", shard_id=shard.shard_id) == 2
    assert driver.all_records() == []
    assert driver.engine.trim("t") == 0


def test_trimmed_positions_are_refused_and_later_ones_work(driver: Driver) -> None:
    start = driver.only_iterator()
    driver.put_each("abc")
    _, second = driver.page(start, limit=1)
    driver.engine.trim("t", keep_last=2)

    assert driver.refusal("GetStreamRecord", shard_iterator=start) == TRIMMED
    assert letters(driver.pages(second)) == ["b", "c"]


def test_expired_iterators_are_refused_and_new_ones_work(driver: Driver) -> None:
    driver.put("a")
    old = driver.only_iterator()
    driver.engine.expire_iterators("t")

    assert driver.refusal("GetStreamRecord", shard_iterator=old) == TRIMMED
    assert letters(driver.pages(driver.only_iterator())) == ["a"]


def set_stream(driver: Driver, *, enable: bool, hours: int | None = None) -> object:
    specification = schema.StreamSpecification(enable_stream=enable, expiration_time=hours)
    return driver.call("UpdateTable", table_name="t", stream_spec=specification)


def test_switching_off_forgets_the_stream(driver: Driver) -> None:
    stream_id = driver.stream_id()
    iterator = driver.only_iterator()
    details = set_stream(driver, enable=False).stream_details  # type: ignore[attr-defined]

    assert [field.name for field, _ in details.ListFields()] == ["enable_stream"]
    assert list(driver.call("ListStream", table_name="t").streams) == []
    for operation, fields in (
        ("DescribeStream", {"stream_id": stream_id}),
        ("GetShardIterator", {"stream_id": stream_id, "shard_id": "x"}),
        ("GetStreamRecord", {"shard_iterator": iterator}),
    ):
        assert driver.refusal(operation, **fields)[:2] == (404, "OTSObjectNotExist")


def test_switching_on_again_begins_a_new_stream(driver: Driver) -> None:
    old = driver.stream_id()
    driver.put("a")
    set_stream(driver, enable=False)
    driver.put("b")
    set_stream(driver, enable=True, hours=48)
    driver.put("c")

    assert driver.stream_id() != old
    assert letters(driver.all_records()) == ["c"]


def test_switching_on_keeps_the_partitions(driver: Driver) -> None:
    driver.engine.split_shard("t", at=["m"])
    set_stream(driver, enable=False)
    set_stream(driver, enable=True)

    assert [view.key_range for view in driver.engine.shards("t")] == ["[INF_MIN, ('m',))", "[('m',), INF_MAX)"]
    assert [view.parent_ids for view in driver.engine.shards("t")] == [(), ()]


def test_an_enabled_stream_keeps_its_settings(driver: Driver) -> None:
    old = driver.stream_id()
    set_stream(driver, enable=True, hours=24)
    set_stream(driver, enable=True)

    assert driver.stream_id() == old
    with pytest.raises(ServiceError, match="expiration time of an enabled stream can't be changed"):
        set_stream(driver, enable=True, hours=48)


def test_a_table_created_anew_has_another_stream(driver: Driver) -> None:
    old = driver.stream_id()
    iterator = driver.only_iterator()
    driver.call("DeleteTable", table_name="t")
    driver.create_with_stream()

    assert driver.stream_id() != old
    assert driver.refusal("GetStreamRecord", shard_iterator=iterator)[:2] == (404, "OTSObjectNotExist")


def test_idle_open_shard_returns_the_same_iterator(driver: Driver) -> None:
    """The Go SDK's loops end on that equality."""
    iterator = driver.only_iterator()
    assert driver.page(iterator) == ((), iterator)
    driver.put("a")
    _, following = driver.page(iterator)

    assert following != iterator
    assert driver.page(following) == ((), following)


def test_an_iterator_is_a_durable_position(driver: Driver) -> None:
    iterator = driver.only_iterator()
    driver.put_each("abc")
    first, following = driver.page(iterator, limit=2)
    driver.put("d")

    assert letters(first) == ["a", "b"]
    assert letters(driver.page(iterator, limit=2)[0]) == ["a", "b"]
    assert letters(driver.pages(following)) == ["c", "d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_limits_never_skip_or_repeat(driver: Driver, limit: int) -> None:
    driver.put_each("abcde")

    assert letters(driver.pages(driver.only_iterator(), limit=limit)) == list("abcde")


def test_a_page_stops_at_its_size_but_has_at_least_one_record() -> None:
    driver = stream_driver(limits=Limits(stream_page_bytes=2500))
    for size in (1000, 1000, 1000, 9000, 10):
        driver.put("a", put("x", "v" * size))
    iterator: str | None = driver.only_iterator()
    sizes = []
    for _ in range(4):
        records, iterator = driver.page(iterator)
        sizes.append([len(str(record.columns[0].value)) for record in records])

    assert sizes == [[1000, 1000], [1000], [9000], [10]]


def test_without_limit_a_page_has_the_default_number() -> None:
    driver = stream_driver(limits=Limits(stream_page_records=3))
    driver.put_each("abcd")

    assert letters(driver.page(driver.only_iterator())[0]) == ["a", "b", "c"]


def test_iterator_by_time_starts_at_the_first_record_at_or_after_it(driver: Driver) -> None:
    for letter in "abc":
        driver.wall.micros += 1000
        driver.put(letter)
    times = [record.sequence_info.timestamp_micros for record in driver.all_records()]

    def from_time(timestamp: int) -> list[str]:
        return letters(driver.pages(driver.only_iterator(timestamp=timestamp)))

    assert from_time(0) == ["a", "b", "c"]
    assert from_time(times[1]) == ["b", "c"]
    assert from_time(times[1] + 1) == ["c"]
    assert from_time(times[2] + 1) == []


def test_iterator_beyond_the_newest_record_waits_for_the_next_one(driver: Driver) -> None:
    driver.put("a")
    iterator = driver.only_iterator(timestamp=START_MICROS * 2)
    driver.put("b")

    assert letters(driver.pages(iterator)) == ["b"]


def test_consumed_capacity_follows_the_rows_read(driver: Driver) -> None:
    iterator = driver.only_iterator()
    idle = driver.call("GetStreamRecord", shard_iterator=iterator).consumed.capacity_unit.read
    driver.put("a", put("x", "v" * 5000))

    assert (idle, driver.call("GetStreamRecord", shard_iterator=iterator).consumed.capacity_unit.read) == (0, 2)
