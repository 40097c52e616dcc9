"""Streams: what is recorded, in which order, how shards split and merge, and how data leaves."""

from __future__ import annotations

import base64
import re
from itertools import pairwise

import pytest
from server_state_driver import (
    HOUR_SECONDS,
    START_MICROS,
    Driver,
    batch_row,
    batch_table,
    creation,
    delete_all,
    delete_one,
    increment,
    parents_first,
    put,
)

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.crc8 import crc8
from streamclient.wire.plainbuffer import KeyBound, decode_row, encode_value
from streamclient.wire.schema import OperationType, RowExistenceExpectation, StreamStatusNumber

NOW_MILLIS = START_MICROS // 1000
TRIMMED = (404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.")


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create_with_stream(options={"max_versions": 3})
    return driver


def summary(record: StreamRecord) -> object:
    return record.record_type, record.key, [(column.name, column.operation, column.value) for column in record.columns]


def letters(records: object) -> list[str]:
    return [record.key["pk"] for record in records]  # type: ignore[attr-defined]


def test_every_kind_of_write_leaves_its_record(driver: Driver) -> None:
    driver.put("a", put("y", 1), put("x", "two"))
    driver.update("a", put("z", 1), delete_one("y", 77), delete_all("x"))
    driver.delete("a")

    assert [summary(record) for record in driver.all_records()] == [
        (RecordType.PUT, {"pk": "a"}, [("x", ColumnOperation.PUT, "two"), ("y", ColumnOperation.PUT, 1)]),
        (
            RecordType.UPDATE,
            {"pk": "a"},
            [
                ("x", ColumnOperation.DELETE_ALL_VERSION, None),
                ("y", ColumnOperation.DELETE_ONE_VERSION, None),
                ("z", ColumnOperation.PUT, 1),
            ],
        ),
        (RecordType.DELETE, {"pk": "a"}, []),
    ]


def test_cells_carry_the_timestamp_that_the_table_has(driver: Driver) -> None:
    driver.update("a", put("given", 1, NOW_MILLIS - 5), put("dated", 2), delete_one("gone", 77), delete_all("all"))

    (record,) = driver.all_records()

    times = {column.name: column.timestamp_millis for column in record.columns}
    assert times == {"given": NOW_MILLIS - 5, "dated": NOW_MILLIS, "gone": 77, "all": None}


def test_increment_is_recorded_as_the_put_of_its_result(driver: Driver) -> None:
    """The Java client refuses a record with an increment cell."""
    driver.put("a", put("n", 40))
    driver.update("a", increment("n", 2))

    assert driver.all_records()[1].columns == (RecordColumn("n", ColumnOperation.PUT, 42, NOW_MILLIS),)


def test_a_refused_write_leaves_no_record(driver: Driver) -> None:
    with pytest.raises(ServiceError, match="OTSConditionCheckFail"):
        driver.put("a", put("x", 1), expect=RowExistenceExpectation.EXPECT_EXIST)

    assert driver.all_records() == []


def test_delete_of_an_absent_row_is_recorded(driver: Driver) -> None:
    driver.delete("a")

    assert [record.record_type for record in driver.all_records()] == [RecordType.DELETE]


def test_generated_key_is_recorded_with_its_value() -> None:
    driver = Driver()
    driver.create_with_stream(key=(("pk", "STRING"), ("id", "INTEGER", "AUTO_INCREMENT")))
    driver.put((("pk", "a"), ("id", KeyBound.AUTO_INCREMENT)), put("x", 1))

    (record,) = driver.all_records()

    assert list(driver.table(columns=("pk", "id"))) == [("a", record.key["id"])]


def test_sequence_rises_with_every_request_even_if_the_clock_stands(driver: Driver) -> None:
    driver.wall.micros = START_MICROS
    for letter in "abc":
        driver.wall.micros = START_MICROS
        driver.put(letter)

    infos = [record.sequence_info for record in driver.all_records()]

    assert infos == sorted(set(infos))
    assert [info.row_index for info in infos] == [0, 0, 0]


def test_rows_of_one_batch_share_a_timestamp_and_count_up(driver: Driver) -> None:
    rows = [batch_row(OperationType.PUT, letter) for letter in "cab"]
    rows.insert(1, batch_row(OperationType.PUT, "x", expect=RowExistenceExpectation.EXPECT_EXIST))
    driver.call("BatchWriteRow", tables=[batch_table(rows)])

    records = driver.all_records()

    assert letters(records) == ["c", "a", "b"]
    first = records[0].sequence_info
    assert [record.sequence_info for record in records] == [
        SequenceInfo(first.epoch, first.timestamp_micros, index) for index in range(3)
    ]


def test_delete_record_has_marker_and_extension(driver: Driver) -> None:
    """The Go SDK fails on a record without the extension."""
    driver.delete("a")
    answer = driver.call("GetStreamRecord", shard_iterator=driver.only_iterator())

    row = decode_row(answer.stream_records[0].record)

    assert row.delete_marker is True
    assert row.sequence is not None


def test_origin_columns_bring_the_previous_values() -> None:
    driver = Driver()
    driver.create_with_stream(origin=["y", "x"])
    driver.put("a", put("x", 1), put("y", 2), put("z", 3))
    driver.update("a", put("x", 10))
    driver.put("a", put("z", 30))
    driver.delete("a")

    originals = [record.original_columns for record in driver.all_records()]

    assert [None if each is None else [(column.name, column.value) for column in each] for each in originals] == [
        None,
        [("x", 1), ("y", 2)],
        [("x", 10), ("y", 2)],
        None,
    ]


def test_origin_columns_are_described_in_their_order() -> None:
    driver = Driver()
    driver.create_with_stream(origin=["y", "x"])

    assert list(driver.call("DescribeTable", table_name="t").stream_details.columns_to_get) == ["y", "x"]


def test_ids_have_the_observed_forms(driver: Driver) -> None:
    stream_id = driver.stream_id()
    (shard,) = driver.describe_shards(stream_id)

    assert re.fullmatch(r"t_\d{16}", stream_id)
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(rf"{uuid4}_{stream_id.removeprefix('t_')}", shard.shard_id)


def test_idle_open_shard_returns_the_same_iterator(driver: Driver) -> None:
    """The Go SDK's loops end on that equality."""
    iterator = driver.only_iterator()
    assert driver.page(iterator) == ((), iterator)
    driver.put("a")
    _, following = driver.page(iterator)

    assert following is not None
    assert following != iterator
    assert driver.page(following) == ((), following)


def test_an_iterator_is_a_durable_position(driver: Driver) -> None:
    iterator = driver.only_iterator()
    for letter in "abc":
        driver.put(letter)
    first, following = driver.page(iterator, limit=2)
    driver.put("d")

    assert letters(first) == ["a", "b"]
    assert letters(driver.page(iterator, limit=2)[0]) == ["a", "b"]
    assert following is not None
    assert letters(driver.pages(following)) == ["c", "d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_limits_never_skip_or_repeat(driver: Driver, limit: int) -> None:
    for letter in "abcde":
        driver.put(letter)

    assert letters(driver.pages(driver.only_iterator(), limit=limit)) == list("abcde")


def test_a_page_stops_at_its_size_but_has_at_least_one_record() -> None:
    driver = Driver(limits=Limits(stream_page_bytes=2500))
    driver.create_with_stream()
    for size in (1000, 1000, 1000, 9000, 10):
        driver.put("a", put("x", "v" * size))
    iterator: str | None = driver.only_iterator()
    sizes = []
    for _ in range(4):
        assert iterator is not None
        records, iterator = driver.page(iterator)
        sizes.append([len(str(record.columns[0].value)) for record in records])

    assert sizes == [[1000, 1000], [1000], [9000], [10]]


def test_without_limit_a_page_has_the_default_number(driver: Driver) -> None:
    driver = Driver(limits=Limits(stream_page_records=3))
    driver.create_with_stream()
    for letter in "abcd":
        driver.put(letter)

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


# Lineage


def test_split_closes_the_parent_and_opens_two_children(driver: Driver) -> None:
    stream_id = driver.stream_id()
    for letter in "abcd":
        driver.put(letter)
    lower, upper = driver.engine.split_shard("t")
    driver.put("a")
    driver.put("d")
    parent, *children = driver.describe_shards(stream_id)

    assert [(child.shard_id, child.parent_id, child.HasField("parent_sibling_id")) for child in children] == [
        (lower, parent.shard_id, False),
        (upper, parent.shard_id, False),
    ]
    assert letters(driver.records(stream_id, parent.shard_id)) == ["a", "b", "c", "d"]
    assert letters(driver.records(stream_id, lower)) == ["a"]
    assert letters(driver.records(stream_id, upper)) == ["d"]


def test_a_drained_closed_shard_has_no_next_iterator(driver: Driver) -> None:
    iterator = driver.only_iterator()
    for letter in "abc":
        driver.put(letter)
    driver.engine.split_shard("t", at=["b"])
    first, following = driver.page(iterator, limit=2)

    assert letters(first) == ["a", "b"]
    assert following is not None
    last, end = driver.page(following, limit=2)
    assert (letters(last), end) == (["c"], None)


def test_an_empty_closed_shard_ends_at_once(driver: Driver) -> None:
    iterator = driver.only_iterator()
    driver.engine.split_shard("t", at=["b"])

    assert driver.page(iterator) == ((), None)


def test_merge_closes_both_parents_and_opens_one_child(driver: Driver) -> None:
    stream_id = driver.stream_id()
    lower, upper = driver.engine.split_shard("t", at=["m"])
    driver.put("a")
    driver.put("z")
    merged = driver.engine.merge_shards("t", upper, lower)
    driver.put("b")
    shards = {shard.shard_id: shard for shard in driver.describe_shards(stream_id)}

    assert (shards[merged].parent_id, shards[merged].parent_sibling_id) == (lower, upper)
    assert letters(driver.records(stream_id, merged)) == ["b"]
    assert [view.is_open for view in driver.engine.shards("t")] == [False, False, False, True]


def test_children_come_later_in_every_part_of_the_sequence(driver: Driver) -> None:
    driver.put("a")
    lower, upper = driver.engine.split_shard("t", at=["b"])
    driver.put("a")
    driver.put("b")
    driver.engine.merge_shards("t", lower, upper)
    driver.put("a")

    infos = [record.sequence_info for record in driver.all_records()]

    assert [info.epoch for info in infos] == [0, 1, 1, 2]
    times = [info.timestamp_micros for info in infos]
    assert times[0] < min(times[1:3]) <= max(times[1:3]) < times[3]


def test_only_adjoining_open_shards_merge(driver: Driver) -> None:
    first, rest = driver.engine.split_shard("t", at=["b"])
    second, third = driver.engine.split_shard("t", shard_id=rest, at=["c"])

    with pytest.raises(ServiceError, match="do not adjoin"):
        driver.engine.merge_shards("t", first, third)
    with pytest.raises(ServiceError, match="is closed"):
        driver.engine.merge_shards("t", first, rest)
    with pytest.raises(ServiceError, match="do not adjoin"):
        driver.engine.merge_shards("t", second, second)


@pytest.mark.parametrize("at", [[], ["a", "b"], [1], [b"a"], [True]])
def test_a_split_key_must_fit_the_table(driver: Driver, at: list[object]) -> None:
    with pytest.raises(ServiceError, match="OTSParameterInvalid"):
        driver.engine.split_shard("t", at=at)  # type: ignore[arg-type]


def test_a_split_must_be_inside_the_shard(driver: Driver) -> None:
    lower, upper = driver.engine.split_shard("t", at=["m"])

    for shard, key in ((lower, "m"), (lower, "n"), (upper, "m"), (upper, "a")):
        with pytest.raises(ServiceError, match="must be strictly inside"):
            driver.engine.split_shard("t", shard_id=shard, at=[key])


def test_a_shard_without_median_needs_a_key(driver: Driver) -> None:
    driver.put("a")

    with pytest.raises(ServiceError, match="give the key to split at"):
        driver.engine.split_shard("t")


def test_default_split_takes_the_shard_with_most_rows(driver: Driver) -> None:
    _, upper = driver.engine.split_shard("t", at=["b"])
    for letter in "abcde":
        driver.put(letter)

    driver.engine.split_shard("t")

    assert [view.key_range for view in driver.engine.shards("t") if view.is_open] == [
        "[INF_MIN, ('b',))",
        "[('b',), ('d',))",
        "[('d',), INF_MAX)",
    ]
    assert {view.parent_ids for view in driver.engine.shards("t")[-2:]} == {(upper,)}


def test_default_split_keeps_partition_keys_whole() -> None:
    driver = Driver()
    driver.create_with_stream(key=(("pk", "STRING"), ("sk", "INTEGER")))
    for number in range(4):
        driver.put((("pk", "a"), ("sk", number)))
        driver.put((("pk", "b"), ("sk", number)))

    driver.engine.split_shard("t")
    assert [view.key_range for view in driver.engine.shards("t")][-1] == "[('b',), INF_MAX)"
    driver.engine.split_shard("t")
    assert [view.key_range for view in driver.engine.shards("t") if view.is_open] == [
        "[INF_MIN, ('a', 2))",
        "[('a', 2), ('b',))",
        "[('b',), INF_MAX)",
    ]


def bound(value: object) -> bytes:
    return {"low": b"\x09", "high": b"\x0a"}.get(str(value)) or encode_value(value)  # type: ignore[arg-type]


def partitions(*bounds: object) -> list[object]:
    places = [bound(each) for each in ("low", *bounds, "high")]
    return [schema.PartitionRange(begin=begin, end=end) for begin, end in pairwise(places)]


def test_initial_partitions_are_the_first_shards() -> None:
    driver = Driver()
    stream_id = driver.create_with_stream(partitions=partitions("h", "p"))
    for letter in "ahpz":
        driver.put(letter)
    shards = driver.describe_shards(stream_id)

    assert [letters(driver.records(stream_id, shard.shard_id)) for shard in shards] == [["a"], ["h"], ["p", "z"]]
    splits = driver.call("DescribeTable", table_name="t").shard_splits
    assert [decode_row(split).primary_key for split in splits] == [(("pk", "h"),), (("pk", "p"),)]


@pytest.mark.parametrize("bounds", [("p", "h"), ("h", "h"), (1,)])
def test_initial_partitions_must_cover_the_keys_in_order(bounds: tuple[object, ...]) -> None:
    driver = Driver()

    assert driver.refusal("CreateTable", **creation(partitions=partitions(*bounds)))[1] == "OTSParameterInvalid"
    with pytest.raises(ServiceError, match="from INF_MIN to INF_MAX"):
        driver.create(partitions=partitions("h")[:1])


def test_describe_stream_pages_are_inclusive() -> None:
    driver = Driver()
    stream_id = driver.create_with_stream(partitions=partitions("b", "c", "d"))
    everything = driver.describe_shards(stream_id)
    page = driver.call("DescribeStream", stream_id=stream_id, shard_limit=3)

    assert list(page.shards) == everything[:3]
    assert page.next_shard_id == everything[3].shard_id
    assert driver.describe_shards(stream_id, shard_limit=1) == everything


def test_paging_goes_on_when_the_named_shard_has_left_the_listing() -> None:
    driver = Driver()
    stream_id = driver.create_with_stream()
    driver.put("a")
    driver.engine.split_shard("t", at=["b"])
    parent, *children = driver.describe_shards(stream_id)
    driver.engine.trim("t")

    answer = driver.call("DescribeStream", stream_id=stream_id, inclusive_start_shard_id=parent.shard_id)

    assert list(answer.shards) == children


def test_describe_stream_names_the_table_and_the_hours(driver: Driver) -> None:
    answer = driver.call("DescribeStream", stream_id=driver.stream_id())

    assert (answer.table_name, answer.expiration_time, answer.stream_status) == ("t", 24, StreamStatusNumber.ACTIVE)
    assert answer.stream_id == f"t_{answer.creation_time}"


def test_a_stream_can_be_enabling_for_a_while() -> None:
    driver = Driver(stream_enabling_millis=500)
    stream_id = driver.create_with_stream()

    def status() -> int:
        return int(driver.call("DescribeStream", stream_id=stream_id).stream_status)

    assert status() == StreamStatusNumber.ENABLING
    driver.clock.advance(0.6)
    assert status() == StreamStatusNumber.ACTIVE


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

    assert tip is not None
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
    assert tip is not None
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
    for letter in "abcdef":
        driver.put(letter)
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
    for letter in "abc":
        driver.put(letter)
    _, second = driver.page(start, limit=1)
    driver.engine.trim("t", keep_last=2)

    assert driver.refusal("GetStreamRecord", shard_iterator=start) == TRIMMED
    assert second is not None
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


def test_list_stream_of_unknown_or_plain_tables_is_empty(driver: Driver) -> None:
    driver.create("plain")

    assert list(driver.call("ListStream", table_name="plain").streams) == []
    assert list(driver.call("ListStream", table_name="unknown").streams) == []
    assert [stream.table_name for stream in driver.call("ListStream").streams] == ["t"]


def test_unknown_streams_and_shards_are_not_found(driver: Driver) -> None:
    stream_id = driver.stream_id()

    assert driver.refusal("DescribeStream", stream_id="x_1")[:2] == (404, "OTSObjectNotExist")
    assert driver.refusal("GetShardIterator", stream_id=stream_id, shard_id="x")[:2] == (404, "OTSObjectNotExist")
    driver.create("plain")
    with pytest.raises(ServiceError, match="has no stream"):
        driver.engine.shards("plain")


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_must_be_positive(driver: Driver, limit: int) -> None:
    iterator = driver.only_iterator()

    assert driver.refusal("GetStreamRecord", shard_iterator=iterator, limit=limit)[1] == "OTSParameterInvalid"
    stream_id = driver.stream_id()
    assert driver.refusal("DescribeStream", stream_id=stream_id, shard_limit=limit)[1] == "OTSParameterInvalid"


def signed(data: bytes) -> str:
    return base64.b64encode(data + bytes((crc8(data),))).decode()


@pytest.mark.parametrize(
    "iterator",
    [
        "",
        "x",
        "not base64!",
        "ä",
        base64.b64encode(b"abc").decode(),
        signed(b""),
        signed(b"\x05ab"),
        signed(b"\x00\x00\x00"),
    ],
)
def test_malformed_iterators_are_refused(driver: Driver, iterator: str) -> None:
    assert driver.refusal("GetStreamRecord", shard_iterator=iterator)[:2] == (400, "OTSParameterInvalid")


def test_a_changed_iterator_is_refused(driver: Driver) -> None:
    data = base64.b64decode(driver.only_iterator())
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        text = base64.b64encode(changed).decode()
        assert driver.refusal("GetStreamRecord", shard_iterator=text)[:2] == (400, "OTSParameterInvalid")


def test_a_position_that_never_was_is_refused(driver: Driver) -> None:
    data = bytearray(base64.b64decode(driver.only_iterator())[:-1])
    data[-8] += 1

    assert driver.refusal("GetStreamRecord", shard_iterator=signed(bytes(data)))[:2] == (400, "OTSParameterInvalid")


def test_a_stream_of_a_very_long_name_can_be_listed_but_not_read() -> None:
    """An iterator has one byte for the length of the stream id."""
    driver = Driver()
    name = "n" * 239
    stream_id = driver.create_with_stream(name)
    (shard,) = driver.describe_shards(stream_id)
    iterator = driver.iterator(stream_id, shard.shard_id)
    status, code, text = driver.refusal("GetStreamRecord", shard_iterator=iterator)

    assert (status, code, text.startswith("Invalid stream id")) == (400, "OTSParameterInvalid", True)


def test_the_longest_readable_name_is_readable() -> None:
    driver = Driver()
    stream_id = driver.create_with_stream("n" * 238)
    (shard,) = driver.describe_shards(stream_id)

    assert driver.records(stream_id, shard.shard_id) == []


def test_parents_first_helper_does_not_rely_on_the_listing(driver: Driver) -> None:
    driver.engine.split_shard("t", at=["b"])
    shards = driver.describe_shards(driver.stream_id())

    assert parents_first(shards[::-1])[0].shard_id == shards[0].shard_id


def test_open_neighbours_in_the_list_of_shards_can_be_merged(driver: Driver) -> None:
    """Open shards are listed in key order, whatever order they were made in."""
    first, second = driver.engine.split_shard("t", at=["m"])
    driver.engine.split_shard("t", second, at=["t"])
    driver.engine.split_shard("t", first, at=["f"])
    names = [shard.shard_id for shard in driver.engine.shards("t") if shard.is_open]
    driver.engine.merge_shards("t", names[1], names[2])

    assert sum(shard.is_open for shard in driver.engine.shards("t")) == 3
