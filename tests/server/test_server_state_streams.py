"""Streams: what is recorded, in which order, how shards split and merge, and how data leaves."""

from __future__ import annotations

import base64
import re
from itertools import pairwise

import pytest
from server_state_driver import (
    EXIST,
    GENERATED_KEY,
    PUT,
    START_MICROS,
    TWO_COLUMN_KEY,
    Driver,
    batch_row,
    creation,
    delete_all,
    delete_one,
    increment,
    letters,
    parents_first,
    put,
    refusal_of,
    stream_driver,
)

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema
from streamclient.wire.crc8 import crc8
from streamclient.wire.plainbuffer import KeyBound, decode_row, encode_value
from streamclient.wire.schema import StreamStatusNumber

NOW_MILLIS = START_MICROS // 1000


@pytest.fixture
def driver() -> Driver:
    return stream_driver(options={"max_versions": 3})


def summary(record: StreamRecord) -> object:
    return record.record_type, record.key, [(column.name, column.operation, column.value) for column in record.columns]


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
        driver.put("a", put("x", 1), expect=EXIST)

    assert driver.all_records() == []


def test_generated_key_is_recorded_with_its_value() -> None:
    driver = stream_driver(key=GENERATED_KEY)
    driver.put((("pk", "a"), ("id", KeyBound.AUTO_INCREMENT)), put("x", 1))

    (record,) = driver.all_records()

    assert list(driver.table(columns=("pk", "id"))) == [("a", record.key["id"])]


def test_sequence_rises_with_every_request_even_if_the_clock_stands(driver: Driver) -> None:
    for letter in "abc":
        driver.wall.micros = START_MICROS
        driver.put(letter)

    infos = [record.sequence_info for record in driver.all_records()]

    assert infos == sorted(set(infos))
    assert [info.row_index for info in infos] == [0, 0, 0]


def test_rows_of_one_batch_share_a_timestamp_and_count_up(driver: Driver) -> None:
    rows = [batch_row(PUT, letter) for letter in "cab"]
    rows.insert(1, batch_row(PUT, "x", expect=EXIST))
    driver.write_batch(rows)

    records = driver.all_records()

    assert letters(records) == ["c", "a", "b"]
    first = records[0].sequence_info
    assert [record.sequence_info for record in records] == [
        SequenceInfo(first.epoch, first.timestamp_micros, index) for index in range(3)
    ]


def test_delete_of_an_absent_row_is_recorded_with_marker_and_extension(driver: Driver) -> None:
    """The Go SDK fails on a record without the extension."""
    driver.delete("a")
    (record,) = driver.call("GetStreamRecord", shard_iterator=driver.only_iterator()).stream_records

    row = decode_row(record.record)

    assert row.delete_marker is True
    assert row.sequence is not None


def test_origin_columns_bring_the_previous_values() -> None:
    driver = stream_driver(origin=["y", "x"])
    driver.put("a", put("x", 1), put("y", 2), put("z", 3))
    driver.update("a", put("x", 10))
    driver.put("a", put("z", 30))
    driver.delete("a")

    assert list(driver.call("DescribeTable", table_name="t").stream_details.columns_to_get) == ["y", "x"]
    originals = [record.original_columns for record in driver.all_records()]

    assert [None if each is None else [(column.name, column.value) for column in each] for each in originals] == [
        None,
        [("x", 1), ("y", 2)],
        [("x", 10), ("y", 2)],
        None,
    ]


def test_ids_have_the_observed_forms(driver: Driver) -> None:
    stream_id = driver.stream_id()
    (shard,) = driver.describe_shards(stream_id)

    assert re.fullmatch(r"t_\d{16}", stream_id)
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(rf"{uuid4}_{stream_id.removeprefix('t_')}", shard.shard_id)


# Lineage


def test_split_closes_the_parent_and_opens_two_children(driver: Driver) -> None:
    stream_id = driver.stream_id()
    driver.put_each("abcd")
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
    driver.put_each("abc")
    driver.engine.split_shard("t", at=["b"])
    first, following = driver.page(iterator, limit=2)

    assert letters(first) == ["a", "b"]
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
    driver.put_each("abcde")

    driver.engine.split_shard("t")

    assert [view.key_range for view in driver.engine.shards("t") if view.is_open] == [
        "[INF_MIN, ('b',))",
        "[('b',), ('d',))",
        "[('d',), INF_MAX)",
    ]
    assert {view.parent_ids for view in driver.engine.shards("t")[-2:]} == {(upper,)}


def test_default_split_keeps_partition_keys_whole() -> None:
    driver = stream_driver(key=TWO_COLUMN_KEY)
    driver.put_each((("pk", letter), ("sk", number)) for number in range(4) for letter in "ab")

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
    driver = stream_driver(partitions=partitions("h", "p"))
    stream_id = driver.stream_id()
    driver.put_each("ahpz")
    shards = driver.describe_shards(stream_id)

    assert [letters(driver.records(stream_id, shard.shard_id)) for shard in shards] == [["a"], ["h"], ["p", "z"]]
    splits = driver.call("DescribeTable", table_name="t").shard_splits
    assert [decode_row(split).primary_key for split in splits] == [(("pk", "h"),), (("pk", "p"),)]


@pytest.mark.parametrize("bounds", [("p", "h"), ("h", "h"), (1,)])
def test_initial_partitions_must_cover_the_keys_in_order(bounds: tuple[object, ...]) -> None:
    assert Driver().refusal("CreateTable", **creation(partitions=partitions(*bounds)))[1] == "OTSParameterInvalid"
    with pytest.raises(ServiceError, match="from INF_MIN to INF_MAX"):
        Driver().create(partitions=partitions("h")[:1])


def test_describe_stream_pages_are_inclusive() -> None:
    driver = Driver()
    stream_id = driver.create_with_stream(partitions=partitions("b", "c", "d"))
    everything = driver.describe_shards(stream_id)
    page = driver.call("DescribeStream", stream_id=stream_id, shard_limit=3)

    assert list(page.shards) == everything[:3]
    assert page.next_shard_id == everything[3].shard_id
    assert driver.describe_shards(stream_id, shard_limit=1) == everything


def test_paging_goes_on_when_the_named_shard_has_left_the_listing(driver: Driver) -> None:
    stream_id = driver.stream_id()
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


@pytest.mark.parametrize("length", [238, 239])
def test_a_stream_of_a_very_long_name_can_be_listed_but_not_read(length: int) -> None:
    """An iterator has one byte for the length of the stream id; the shorter name is the longest readable one."""
    driver = Driver()
    stream_id = driver.create_with_stream("n" * length)
    (shard,) = driver.describe_shards(stream_id)
    iterator = driver.iterator(stream_id, shard.shard_id)
    if length == 238:
        assert driver.page(iterator) == ((), iterator)
    else:
        status, code, text = refusal_of(driver.page, iterator)
        assert (status, code, text.startswith("Invalid stream id")) == (400, "OTSParameterInvalid", True)


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
