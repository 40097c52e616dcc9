"""The stream operations against the local Tablestore, over real HTTP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import tablestore as sdk

from streamclient.base.position import Position
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, TrimmedDataException
from streamclient.model import TableDefinition
from streamclient.records import ColumnOperation, ColumnType, RecordType, StreamRecord
from streamclient.tablestore import (
    ReadRetry,
    StreamApi,
    StreamDetails,
    StreamSpecification,
    StreamStatus,
    TablestoreStreamApi,
)

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

KEY_SCHEMA = [("pk", "STRING"), ("n", "INTEGER")]
ENABLED = StreamSpecification(True, 24)
QUICK = ReadRetry(retries=4, shortest_pause_millis=1, longest_pause_millis=2)


def create(api: TablestoreStreamApi, name: str = "orders", stream: StreamSpecification | None = ENABLED) -> None:
    meta = sdk.TableMeta(name, KEY_SCHEMA, [("total", "DOUBLE"), ("raw", "BINARY")])
    api.create_table(meta, sdk.TableOptions(), sdk.ReservedThroughput(sdk.CapacityUnit(0, 0)), stream=stream)


def put(client: sdk.OTSClient, number: int, table: str = "orders", **columns: Any) -> None:
    row = sdk.Row([("pk", f"key-{number}"), ("n", number)], list((columns or {"total": 1.5}).items()))
    client.put_row(table, row, sdk.Condition("IGNORE"))


def only_shard(api: TablestoreStreamApi, table: str = "orders") -> tuple[str, str]:
    (stream,) = api.list_stream(table)
    (shard,) = api.describe_stream(stream.stream_id).shards
    return stream.stream_id, shard.shard_id


def read_all(api: TablestoreStreamApi, position: str, limit: int | None = None) -> list[StreamRecord]:
    """Everything up to the first page that moves no further."""
    records: list[StreamRecord] = []
    for _ in range(1_000):
        page = api.get_stream_record(position, limit)
        records += page.records
        if page.next_position.is_shard_end or page.next_position.text == position:
            return records
        position = page.next_position.text
    raise AssertionError("the shard did not end")


@pytest.fixture
def api(local: LocalTablestore) -> TablestoreStreamApi:
    return TablestoreStreamApi(local.client(), retry=QUICK)


def test_a_table_is_created_with_its_stream(api: TablestoreStreamApi) -> None:
    create(api, stream=StreamSpecification(True, 48, ("total",)))
    described = api.describe_table("orders")
    (stream,) = api.list_stream("orders")

    assert described.definition == TableDefinition(
        "orders",
        (("pk", ColumnType.STRING), ("n", ColumnType.INTEGER)),
        {"total": ColumnType.DOUBLE, "raw": ColumnType.BINARY},
    )
    assert described.options.max_versions == 1
    assert described.options.time_to_live_seconds == -1
    assert described.stream.enable_stream
    assert (described.stream.expiration_time_hours, described.stream.columns_to_get) == (48, ("total",))
    assert described.stream.stream_id == stream.stream_id


def test_a_table_is_created_without_stream(api: TablestoreStreamApi) -> None:
    create(api, stream=None)
    assert api.describe_table("orders").stream == StreamDetails(enable_stream=False)
    assert list(api.list_stream("orders")) == []


def test_a_table_is_created_with_partitions(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    meta = sdk.TableMeta("split", KEY_SCHEMA)
    throughput = sdk.ReservedThroughput(sdk.CapacityUnit(0, 0))
    api.create_table(meta, sdk.TableOptions(), throughput, stream=ENABLED, split_points=["h", "p"])
    (stream,) = api.list_stream("split")

    assert len(api.describe_stream(stream.stream_id).shards) == len(local.shards("split")) == 3


def test_the_stream_is_switched_off_and_on_again(api: TablestoreStreamApi) -> None:
    create(api)
    (first,) = api.list_stream("orders")
    assert api.update_table("orders", stream=StreamSpecification(False)) == StreamDetails(enable_stream=False)
    assert list(api.list_stream("orders")) == []

    enabled = api.update_table("orders", stream=ENABLED)
    (second,) = api.list_stream("orders")
    assert enabled.stream_id == second.stream_id != first.stream_id


def test_options_are_updated_as_by_the_sdk(api: TablestoreStreamApi) -> None:
    create(api)
    details = api.update_table("orders", sdk.TableOptions(time_to_live=86_400, max_version=3))

    assert details.enable_stream, "the stream is as it was"
    assert api.describe_table("orders").options.max_versions == 3
    assert api.describe_table("orders").options.time_to_live_seconds == 86_400


def test_streams_of_the_whole_instance_are_listed(api: TablestoreStreamApi) -> None:
    create(api, "a")
    create(api, "b")
    create(api, "c", stream=None)

    assert sorted(stream.table_name for stream in api.list_stream()) == ["a", "b"]


def test_a_stream_is_described_with_its_shards(api: TablestoreStreamApi) -> None:
    create(api)
    (summary,) = api.list_stream("orders")
    described = api.describe_stream(summary.stream_id)

    assert (described.stream_id, described.table_name) == (summary.stream_id, "orders")
    assert (described.expiration_time_hours, described.status) == (24, StreamStatus.ACTIVE)
    assert described.creation_time_micros == summary.creation_time_micros
    assert [(shard.parent_id, shard.parent_sibling_id) for shard in described.shards] == [(None, None)]


def test_all_pages_of_shards_are_read(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api)
    for number in range(8):
        put(local.client(), number)
    left, right = local.split("orders", at=("key-4",))
    child = local.merge("orders", left, right)
    (stream,) = api.list_stream("orders")
    whole = api.describe_stream(stream.stream_id)

    assert len(whole.shards) == 4
    assert {whole.shards} == {api.describe_stream(stream.stream_id, shard_limit=size).shards for size in (1, 2, 3)}
    by_id = {shard.shard_id: shard for shard in whole.shards}
    assert by_id[left].parent_id == by_id[right].parent_id
    assert by_id[child].parent_shard_ids == {left, right}


def test_every_kind_of_change_arrives_in_order(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api, stream=StreamSpecification(True, 24, ("total",)))
    client = local.client()
    key = [("pk", "key-1"), ("n", 1)]
    put(client, 1, total=1.5, raw=bytearray(b"\x00"), note="é", paid=True, count=7)
    changes = {"PUT": [("total", 2.5)], "DELETE_ALL": ["note"], "DELETE": [("paid", None, 5)]}
    client.update_row("orders", sdk.Row(key, changes), sdk.Condition("IGNORE"))
    client.delete_row("orders", key, sdk.Condition("IGNORE"))
    stream_id, shard_id = only_shard(api)
    first, second, third = read_all(api, api.get_shard_iterator(stream_id, shard_id))

    assert [record.record_type for record in (first, second, third)] == [*RecordType]
    assert {column.name: column.value for column in first.columns} == {
        "total": 1.5,
        "raw": b"\x00",
        "note": "é",
        "paid": True,
        "count": 7,
    }
    assert first.key == {"pk": "key-1", "n": 1}
    assert {(column.name, column.operation) for column in second.columns} == {
        ("total", ColumnOperation.PUT),
        ("note", ColumnOperation.DELETE_ALL_VERSION),
        ("paid", ColumnOperation.DELETE_ONE_VERSION),
    }
    assert second.original_columns is not None
    assert [(column.name, column.value) for column in second.original_columns] == [("total", 1.5)]
    assert third.columns == ()
    assert first.sequence_info < second.sequence_info < third.sequence_info


def test_pages_hold_at_most_the_limit(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api)
    for number in range(7):
        put(local.client(), number)
    start = api.get_shard_iterator(*only_shard(api))
    page = api.get_stream_record(start, 3)

    assert len(page.records) == 3
    assert page.may_more_record is True
    assert page.body_bytes > 0
    assert [record.key["n"] for record in read_all(api, start, 3)] == [*range(7)]


def test_an_idle_shard_answers_with_the_same_position(api: TablestoreStreamApi) -> None:
    create(api)
    start = api.get_shard_iterator(*only_shard(api))
    page = api.get_stream_record(start)

    assert (page.records, page.next_position) == ((), Position(start))


def test_a_closed_and_drained_shard_ends(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api)
    for number in range(3):
        put(local.client(), number)
    start = api.get_shard_iterator(*only_shard(api))
    local.split("orders", at=("key-1",))
    first = api.get_stream_record(start, 2)
    assert not first.next_position.is_shard_end
    last = api.get_stream_record(first.next_position.text)
    if not last.next_position.is_shard_end:
        last = api.get_stream_record(last.next_position.text)

    assert last.next_position is Position.SHARD_END


def test_reading_starts_at_a_time(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api)
    for number in range(5):
        put(local.client(), number)
    stream_id, shard_id = only_shard(api)
    records = read_all(api, api.get_shard_iterator(stream_id, shard_id))
    wanted = records[2].sequence_info.timestamp_micros
    found = read_all(api, api.get_shard_iterator(stream_id, shard_id, wanted))

    assert [record for record in found if record.sequence_info.timestamp_micros >= wanted] == records[2:]


def test_trimmed_data_is_reported(api: TablestoreStreamApi, local: LocalTablestore) -> None:
    create(api)
    for number in range(4):
        put(local.client(), number)
    start = api.get_shard_iterator(*only_shard(api))
    local.trim("orders", keep_last=1)

    with pytest.raises(TrimmedDataException, match="OTSTrimmedDataAccess"):
        api.get_stream_record(start)


def test_an_unknown_table_is_a_permanent_failure_with_its_code(api: TablestoreStreamApi) -> None:
    with pytest.raises(DependencyException) as caught:
        api.describe_table("nowhere")

    assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, "OTSObjectNotExist")
    assert caught.value.http_status == 404
    assert caught.value.request_id


def test_signature_v4_works_alike(local: LocalTablestore) -> None:
    api = TablestoreStreamApi(local.client(region="cn-hangzhou"))
    create(api)
    assert len(api.list_stream("orders")) == 1


def test_the_client_given_and_others_stay_as_they_were(local: LocalTablestore) -> None:
    client, policy = local.client(), sdk.WriteRetryPolicy()
    client.retry_policy = policy
    operations, encoders = [*client.protocol.api_list], dict(client.protocol.encoder.api_encode_map)
    decoders = dict(client.protocol.decoder.api_decode_map)
    first = TablestoreStreamApi(client)
    create(first)
    second = TablestoreStreamApi(client)

    assert client.retry_policy is policy
    assert client.protocol.api_list == operations
    assert client.protocol.encoder.api_encode_map == encoders
    assert client.protocol.decoder.api_decode_map == decoders
    assert "ListStream" not in sdk.OTSClient.__mro__[0].__dict__
    assert client.describe_table("orders").table_meta.table_name == "orders"
    assert first.list_stream() == second.list_stream()


def test_requests_survive_the_sdk_debug_log(local: LocalTablestore, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK renders requests for its log at the level that loggers start with."""
    caplog.set_level(logging.DEBUG, "tests.stream.sdk")
    api = TablestoreStreamApi(local.client(logger_name="tests.stream.sdk"))
    create(api)

    assert "CreateTable" in caplog.text


def test_the_interface_is_fulfilled(api: TablestoreStreamApi) -> None:
    as_interface: StreamApi = api
    assert as_interface is api


BAD_STREAMS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no retention": ((True,), "expiration_time_hours"),
    "zero": ((True, 0), "expiration_time_hours"),
    "too long": ((True, 169), "expiration_time_hours"),
    "boolean": ((True, True), "expiration_time_hours"),
    "text": ((True, 24, "total"), "columns_to_get"),
    "retention when off": ((False, 24), "takes neither"),
    "columns when off": ((False, None, ("a",)), "takes neither"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_STREAMS.values(), ids=BAD_STREAMS)
def test_a_setting_that_cannot_work_is_refused_when_it_is_made(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StreamSpecification(*arguments)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_that_cannot_work_is_refused_before_any_call(
    api: TablestoreStreamApi, local: LocalTablestore, limit: Any
) -> None:
    with pytest.raises(ConfigurationError, match="limit must be a whole number above 0"):
        api.get_stream_record("it", limit)
    with pytest.raises(ConfigurationError, match="limit must be a whole number above 0"):
        api.describe_stream("s", shard_limit=limit)
    assert not local.requests()


def test_an_asynchronous_client_is_refused() -> None:
    client = sdk.AsyncOTSClient("http://127.0.0.1:1", "id", "secret", "instance")
    with pytest.raises(ConfigurationError, match=r"must be a tablestore\.OTSClient, not .*AsyncOTSClient"):
        TablestoreStreamApi(client)


def test_something_else_than_a_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a tablestore\.OTSClient, not 'http"):
        TablestoreStreamApi("http://127.0.0.1")  # type: ignore[arg-type]


def test_an_sdk_that_lacks_an_operation_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    kept = {name: encode for name, encode in client.protocol.encoder.api_encode_map.items() if name != "UpdateTable"}
    client.protocol.encoder.api_encode_map = kept
    with pytest.raises(ConfigurationError, match=r"lack UpdateTable; install tablestore 6\.4"):
        TablestoreStreamApi(client)


def test_an_sdk_with_other_registries_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    del client.protocol.encoder.api_encode_map
    with pytest.raises(ConfigurationError, match=r"install tablestore 6\.4"):
        TablestoreStreamApi(client)
