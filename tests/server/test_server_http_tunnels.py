"""Tunnels of the local server, called by our client over HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from server_http_tools import connect, receive
from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    OTSServiceError,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient.errors import ConfigurationError
from streamclient.records import ColumnOperation, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import (
    SequenceNumberNotMatchError,
    TunnelExistsError,
    TunnelExpiredError,
    TunnelParameterInvalidError,
    TunnelSessionGoneError,
)
from streamclient.tunnel.tunnel_model import (
    Channel,
    ChannelStatus,
    ChannelType,
    StartOffset,
    StreamTunnelConfig,
    TunnelStage,
    TunnelType,
)
from streamclient.tunnel.tunnel_transport import TunnelTransport
from streamclient.wire import schema, signature
from streamclient.wire._tags import TAG_ROW_KEY
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.tunnel import decode_token

TABLE = "orders"
IGNORE = Condition(RowExistenceExpectation.IGNORE)
OPEN, CLOSING, CLOSE, TERMINATED = (
    ChannelStatus.OPEN,
    ChannelStatus.CLOSING,
    ChannelStatus.CLOSE,
    ChannelStatus.TERMINATED,
)


class Scene:
    """A table, a tunnel client, and what tests do with them."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local = local
        self.ots = local.client()
        self.tunnels = TunnelClient(self.ots)

    def make_table(self, *, stream: bool = True) -> None:
        specification = StreamSpecification(enable_stream=True, expiration_time_hours=24) if stream else None
        TablestoreStreamApi(self.ots).create_table(
            TableMeta(TABLE, [("id", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=specification,
        )

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.ots.put_row(TABLE, Row([("id", number)], [("value", number)]), IGNORE)

    def put_many(self, count: int) -> None:
        for start in range(0, count, 200):
            rows = [
                PutRowItem(Row([("id", number)], [("value", number)]), IGNORE) for number in range(start, start + 200)
            ]
            request = BatchWriteRowRequest()
            request.add(TableInBatchWriteRowItem(TABLE, rows))
            assert self.ots.batch_write_row(request).is_all_succeed()

    def tunnel(self, kind: TunnelType, name: str = "t", config: StreamTunnelConfig | None = None) -> str:
        return self.tunnels.create_tunnel(TABLE, name, kind, config)

    def channels(self, name: str = "t") -> dict[str, ChannelStatus]:
        described = self.tunnels.describe_tunnel(TABLE, name).channels
        return {channel.channel_id: channel.status for channel in described}

    def stage(self, name: str = "t") -> TunnelStage:
        return self.tunnels.describe_tunnel(TABLE, name).info.stage

    def connect(self, tunnel_id: str, tag: str = "w", timeout_seconds: int = 60) -> str:
        return self.tunnels.connect(tunnel_id, timeout_seconds=timeout_seconds, client_tag=tag)

    def beat(self, tunnel_id: str, client_id: str, *channels: Channel) -> list[Channel]:
        return list(self.tunnels.heartbeat(tunnel_id, client_id, channels))

    def read_all(self, tunnel_id: str, channel_id: str, client_id: str = "anybody") -> tuple[list[StreamRecord], str]:
        """Read from the checkpoint until nothing more comes; records and the token behind them."""
        token = self.tunnels.get_checkpoint(tunnel_id, client_id, channel_id).token
        records: list[StreamRecord] = []
        while True:
            page = self.tunnels.read_records(tunnel_id, client_id, channel_id, token)
            records += page.records
            token = page.next_token
            if page.is_finished or page.may_more_record is False:
                return records, token

    def consume(self, tunnel_id: str, channel_id: str) -> list[StreamRecord]:
        """Read as ``read_all`` and store the checkpoint."""
        number = self.tunnels.get_checkpoint(tunnel_id, "anybody", channel_id).sequence_number
        records, token = self.read_all(tunnel_id, channel_id)
        self.tunnels.checkpoint(tunnel_id, "anybody", channel_id, token, number + 1)
        return records


@pytest.fixture
def scene() -> Iterator[Scene]:
    with LocalTablestore() as local:
        made = Scene(local)
        made.make_table()
        yield made


def only(items: object) -> str:
    (item,) = items  # type: ignore[misc]
    return item  # type: ignore[no-any-return]


def ids(records: list[StreamRecord]) -> list[int]:
    return [int(record.key["id"]) for record in records]


# --- tunnels -------------------------------------------------------------------------------------------------------


def test_tunnel_is_listed_and_described_as_it_was_made(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)

    (listed,) = scene.tunnels.list_tunnel(TABLE)

    assert (listed.tunnel_id, listed.tunnel_name, listed.table_name) == (tunnel_id, "t", TABLE)
    assert listed.tunnel_type is TunnelType.BASE_AND_STREAM
    assert listed.instance_name == scene.local.instance
    assert listed == scene.tunnels.describe_tunnel(TABLE, "t").info
    assert scene.tunnels.list_tunnel() == (listed,)


def test_second_tunnel_of_one_name_is_refused_and_another_name_is_not(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)

    with pytest.raises(TunnelExistsError):
        scene.tunnel(TunnelType.BASE_DATA)
    assert scene.tunnel(TunnelType.STREAM, "another")


def test_missing_tunnels_and_tables_are_invalid_parameters(scene: Scene) -> None:
    with pytest.raises(TunnelParameterInvalidError):
        scene.tunnels.delete_tunnel(TABLE, "none")
    with pytest.raises(TunnelParameterInvalidError):
        scene.tunnels.describe_tunnel(TABLE, "none")
    with pytest.raises(TunnelParameterInvalidError):
        scene.tunnels.create_tunnel("none", "t", TunnelType.STREAM)


def test_stream_tunnel_switches_the_stream_on(tmp_path: Path) -> None:
    with LocalTablestore() as local:
        scene = Scene(local)
        scene.make_table(stream=False)
        scene.tunnel(TunnelType.STREAM)

        details = TablestoreStreamApi(scene.ots).describe_table(TABLE).stream
        assert (details.enable_stream, details.expiration_time_hours) == (True, 168)


def test_config_is_described_to_the_millisecond(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM, "default")
    scene.tunnel(TunnelType.STREAM, "earliest", StreamTunnelConfig(StartOffset.EARLIEST))

    described = {info.tunnel_name: info.config for info in scene.tunnels.list_tunnel(TABLE)}

    assert described == {"default": StreamTunnelConfig(), "earliest": StreamTunnelConfig(StartOffset.EARLIEST)}


def test_deleted_tunnel_ends_its_sessions(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id)
    scene.tunnels.delete_tunnel(TABLE, "t")

    with pytest.raises(TunnelParameterInvalidError):
        scene.beat(tunnel_id, client_id)


@pytest.mark.parametrize("start", [True, False])
def test_range_is_described_as_it_was_given(scene: Scene, start: bool) -> None:
    now = time.time_ns() // 1_000_000 * 1_000
    given = StreamTunnelConfig(start_micros=now - 60_000_000 if start else None, end_micros=now + 60_000_000)
    scene.tunnel(TunnelType.STREAM, config=given)

    described = scene.tunnels.describe_tunnel(TABLE, "t").info.config

    assert described == given
    assert described is not None
    assert described.start is StartOffset.LATEST


@pytest.mark.parametrize(
    ("start_seconds", "end_seconds"),
    [(-10, -20), (60, 0), (-48 * 3_600, 0)],
    ids=["end before start", "start in the future", "start before the log"],
)
def test_range_that_cannot_be_read_is_refused(scene: Scene, start_seconds: int, end_seconds: int) -> None:
    """Sent past our client, which refuses the first by itself."""
    now = time.time_ns()
    tunnel = schema.Tunnel(table_name=TABLE, tunnel_name="t", tunnel_type=int(schema.TunnelTypeNumber.STREAM))
    tunnel.stream_tunnel_config.start_offset = now + start_seconds * 10**9
    tunnel.stream_tunnel_config.end_offset = now + end_seconds * 10**9 if end_seconds else 0

    with pytest.raises(TunnelParameterInvalidError):
        TunnelTransport(scene.ots).send("create", schema.CreateTunnelRequest(tunnel=tunnel), write=True)
    assert scene.tunnels.list_tunnel(TABLE) == ()


def test_range_that_ends_before_it_starts_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ConfigurationError, match="is before start_micros"):
        StreamTunnelConfig(start_micros=2_000, end_micros=1_000)


def test_tunnel_outlives_no_table(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    scene.ots.delete_table(TABLE)

    with pytest.raises(TunnelParameterInvalidError):
        scene.tunnels.delete_tunnel(TABLE, "t")
    with pytest.raises(OTSServiceError, match="not exist") as caught:
        scene.ots.delete_table(TABLE)
    assert caught.value.code == "OTSObjectNotExist"


# --- data ----------------------------------------------------------------------------------------------------------


def test_full_data_comes_once_in_key_order_and_ends_the_tunnel(scene: Scene) -> None:
    scene.put(3, 1, 2)
    tunnel_id = scene.tunnel(TunnelType.BASE_DATA)
    channel_id = only(scene.channels())
    assert channel_id.startswith("BaseData_")

    records = scene.consume(tunnel_id, channel_id)

    assert ids(records) == [1, 2, 3]
    assert {record.record_type for record in records} == {RecordType.PUT}
    assert {record.sequence_info for record in records} == {SequenceInfo(0, 0, 0)}
    assert scene.channels() == {channel_id: TERMINATED}
    assert scene.stage() is TunnelStage.PROCESS_STREAM
    assert scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token == FINISHED


def test_full_data_is_read_in_pages_from_token_to_token(scene: Scene) -> None:
    scene.put_many(12_000)
    tunnel_id = scene.tunnel(TunnelType.BASE_DATA)
    channel_id = only(scene.channels())

    records, token = scene.read_all(tunnel_id, channel_id)

    assert ids(records) == list(range(12_000))
    assert token == FINISHED


def test_stream_delivers_what_is_written_after_the_tunnel_was_made(scene: Scene) -> None:
    scene.put(1)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(2, 3)
    scene.ots.delete_row(TABLE, [("id", 2)], IGNORE)
    channel_id = only(scene.channels())

    records = scene.consume(tunnel_id, channel_id)

    assert [(record.record_type, record.key["id"]) for record in records] == [
        (RecordType.PUT, 2),
        (RecordType.PUT, 3),
        (RecordType.DELETE, 2),
    ]
    scene.put(4)
    assert ids(scene.consume(tunnel_id, channel_id)) == [4]


def test_earliest_tunnel_delivers_the_whole_log(scene: Scene) -> None:
    scene.put(1, 2)
    tunnel_id = scene.tunnel(TunnelType.STREAM, config=StreamTunnelConfig(StartOffset.EARLIEST))

    assert ids(scene.consume(tunnel_id, only(scene.channels()))) == [1, 2]


def test_stream_channels_wait_until_all_full_data_was_consumed(scene: Scene) -> None:
    scene.put(1)
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    scene.put(2)
    described = {c.channel_type: c for c in scene.tunnels.describe_tunnel(TABLE, "t").channels}
    assert described[ChannelType.STREAM].status is ChannelStatus.WAIT
    assert scene.stage() is TunnelStage.PROCESS_BASE_DATA

    base = ids(scene.consume(tunnel_id, described[ChannelType.BASE_DATA].channel_id))

    assert base == [1, 2]
    assert scene.stage() is TunnelStage.PROCESS_STREAM
    assert scene.channels()[described[ChannelType.STREAM].channel_id] is OPEN
    assert ids(scene.consume(tunnel_id, described[ChannelType.STREAM].channel_id)) == [2]


def test_children_open_when_their_parents_are_finished(scene: Scene) -> None:
    scene.put(1, 2, 3, 4)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    parent = only(scene.channels())
    scene.put(5)
    lower, upper = scene.local.split(TABLE, at=3)
    scene.put(1, 4)
    assert scene.channels() == {parent: OPEN, lower: ChannelStatus.WAIT, upper: ChannelStatus.WAIT}

    assert ids(scene.consume(tunnel_id, parent)) == [5]

    assert scene.channels() == {parent: TERMINATED, lower: OPEN, upper: OPEN}
    assert [ids(scene.consume(tunnel_id, child)) for child in (lower, upper)] == [[1], [4]]
    merged = scene.local.merge(TABLE, lower, upper)
    assert ids(scene.consume(tunnel_id, lower)) == []
    assert scene.channels()[merged] is ChannelStatus.WAIT
    scene.consume(tunnel_id, upper)
    assert scene.channels()[merged] is OPEN


def test_consume_point_is_that_of_the_slowest_channel(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    assert scene.tunnels.describe_tunnel(TABLE, "t").consume_point_micros == 0

    scene.consume(tunnel_id, channel_id)

    described = scene.tunnels.describe_tunnel(TABLE, "t")
    assert described.consume_point_micros > described.info.create_time_micros
    assert described.channels[0].consume_point_micros == described.consume_point_micros
    assert described.channels[0].record_count == 0


def test_end_offset_finishes_the_channels(scene: Scene) -> None:
    scene.put(1)
    (shard,) = scene.local.shards(TABLE)
    assert shard.newest_sequence is not None
    end = int(shard.newest_sequence.partition("/")[2])
    scene.put(2)
    config = StreamTunnelConfig(StartOffset.EARLIEST, end_micros=end)
    tunnel_id = scene.tunnel(TunnelType.STREAM, config=config)

    assert ids(scene.consume(tunnel_id, only(scene.channels()))) == [1]
    assert list(scene.channels().values()) == [TERMINATED]


def test_tunnel_whose_log_was_trimmed_is_expired(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id)
    scene.put(1, 2)
    scene.local.trim(TABLE)

    with pytest.raises(TunnelExpiredError):
        scene.beat(tunnel_id, client_id)
    with pytest.raises(TunnelExpiredError):
        scene.connect(tunnel_id)
    assert scene.tunnels.list_tunnel(TABLE)[0].is_expired


LOST_LOG = re.compile(
    r"OTSTrimmedDataAccess Requested stream data is already trimmed or does not exist\. [0-9a-f-]{36}"
)


def test_a_read_before_the_log_is_answered_as_by_the_service(scene: Scene) -> None:
    """Code, status and text as they were observed: the error of the table service is the text."""
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    token = scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token
    scene.put(1, 2)
    scene.local.trim(TABLE)

    message = schema.ReadRecordsRequest(tunnel_id=tunnel_id, client_id="x", channel_id=channel_id, token=token)
    answer = SignedCalls(scene.ots).send("/tunnel/readrecords", message.SerializeToString(), is_repeatable=True)
    error = schema.parse(schema.TunnelError, answer.body)
    assert (answer.status, error.code, len(error.message)) == (400, "OTSTunnelServerUnavailable", 117)
    assert LOST_LOG.fullmatch(error.message)
    with pytest.raises(TunnelExpiredError):
        scene.tunnels.read_records(tunnel_id, "x", channel_id, token)


def test_a_read_after_the_lost_part_of_a_log_goes_on(scene: Scene) -> None:
    """The tunnel is expired by another channel, or by records before this token."""
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    token = scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token
    scene.put(1, 2)
    token = scene.tunnels.read_records(tunnel_id, "x", channel_id, token).next_token
    scene.put(3)
    scene.local.trim(TABLE, keep_last=1)

    assert scene.tunnels.list_tunnel(TABLE)[0].is_expired
    assert ids(scene.tunnels.read_records(tunnel_id, "x", channel_id, token).records) == [3]
    with pytest.raises(TunnelExpiredError):
        scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id)


def test_consumed_log_may_be_trimmed(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    scene.put(1, 2)
    scene.consume(tunnel_id, channel_id)
    scene.local.trim(TABLE)
    scene.put(3)

    assert ids(scene.consume(tunnel_id, channel_id)) == [3]


def test_nothing_is_read_behind_a_page_that_says_so(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    scene.put_many(2_400)
    token, sizes, hints = scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token, [], []
    for _ in range(4):
        page = scene.tunnels.read_records(tunnel_id, "x", channel_id, token)
        token = page.next_token
        sizes.append(len(page.records))
        hints.append(page.may_more_record)

    assert sizes == [1_000, 1_000, 400, 0]
    assert hints == [True, True, False, False]


def test_reading_behind_the_end_gives_nothing_and_ends_again(scene: Scene) -> None:
    scene.put(1)
    tunnel_id = scene.tunnel(TunnelType.BASE_DATA)

    page = scene.tunnels.read_records(tunnel_id, "x", only(scene.channels()), FINISHED)

    assert (page.records, page.next_token) == ((), FINISHED)


def test_origin_columns_come_with_changes_of_rows_that_were_there(scene: Scene) -> None:
    specification = StreamSpecification(enable_stream=True, expiration_time_hours=24, columns_to_get=("value",))
    TablestoreStreamApi(scene.ots).create_table(
        TableMeta("origins", [("id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=specification,
    )
    tunnel_id = scene.tunnels.create_tunnel("origins", "t", TunnelType.STREAM)
    scene.ots.put_row("origins", Row([("id", 1)], [("value", "old")]), IGNORE)
    scene.ots.update_row("origins", Row([("id", 1)], {"PUT": [("value", "new")]}), IGNORE)
    channel_id = scene.tunnels.describe_tunnel("origins", "t").channels[0].channel_id

    origin = raw_page(scene, tunnel_id, channel_id).records[1].origin_record
    put, update = scene.consume(tunnel_id, channel_id)

    assert (put.record_type, update.record_type) == (RecordType.PUT, RecordType.UPDATE)
    assert [column.value for column in put.columns + update.columns] == ["old", "new"]
    assert not put.original_columns
    assert [column.value for column in update.original_columns or ()] == ["old"]
    assert origin[4] == TAG_ROW_KEY, "the Go client wants the tag of the key first"


def raw_page(scene: Scene, tunnel_id: str, channel_id: str) -> Any:
    """The page at a channel's first position as it travels."""
    text = scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token
    request = schema.ReadRecordsRequest(tunnel_id=tunnel_id, client_id="x", channel_id=channel_id, token=text)
    return schema.parse(
        schema.ReadRecordsResponse, TunnelTransport(scene.ots).send("readrecords", request, write=False)
    )


def test_records_are_read_in_order_with_the_client_id_that_describe_shows(scene: Scene) -> None:
    """And with nobody's: reading needs no session."""
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    (channel,) = scene.tunnels.describe_tunnel(TABLE, "t").channels
    assert channel.client_id == ""
    scene.put_many(1_000)

    records, _ = scene.read_all(tunnel_id, channel.channel_id, channel.client_id)

    assert ids(records) == list(range(1_000))
    assert [record.columns[0].value for record in records] == list(range(1_000))
    order = [record.sequence_info for record in records]
    assert order == sorted(order)


def test_every_change_is_delivered_as_what_it_was(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(1)
    scene.ots.update_row(TABLE, Row([("id", 1)], {"PUT": [("more", 1)], "DELETE_ALL": ["value"]}), IGNORE)
    scene.ots.update_row(TABLE, Row([("id", 1)], {"INCREMENT": [("more", 41)]}), IGNORE)
    with pytest.raises(OTSServiceError, match="Condition check failed"):
        scene.ots.put_row(TABLE, Row([("id", 1)], []), Condition(RowExistenceExpectation.EXPECT_NOT_EXIST))
    scene.ots.delete_row(TABLE, [("id", 1)], IGNORE)

    records = scene.consume(tunnel_id, only(scene.channels()))

    assert [record.record_type for record in records] == [
        RecordType.PUT,
        RecordType.UPDATE,
        RecordType.UPDATE,
        RecordType.DELETE,
    ]
    (increment,) = records[2].columns
    assert (increment.operation, increment.value) == (ColumnOperation.PUT, 42)
    assert records[3].columns == ()


# --- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoint_is_kept_with_its_number_and_an_older_number_is_refused(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    token = scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).token
    scene.tunnels.checkpoint(tunnel_id, "x", channel_id, token, 5)

    assert scene.tunnels.get_checkpoint(tunnel_id, "x", channel_id).sequence_number == 5
    scene.tunnels.checkpoint(tunnel_id, "x", channel_id, token, 5)
    with pytest.raises(SequenceNumberNotMatchError):
        scene.tunnels.checkpoint(tunnel_id, "x", channel_id, token, 4)


def test_consumer_without_session_may_store_the_number_zero_again_and_again(scene: Scene) -> None:
    """As a Spark connector does that knows no leases: two batches, then the end."""
    scene.put(1, 2, 3)
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    base, stream = scene.channels()
    page = scene.tunnels.read_records(
        tunnel_id, "spark-client", base, scene.tunnels.get_checkpoint(tunnel_id, "spark-client", base).token
    )
    for _ in range(2):
        scene.tunnels.checkpoint(tunnel_id, "spark-client", base, page.next_token, 0)

    assert scene.channels() == {base: TERMINATED, stream: OPEN}
    assert scene.tunnels.get_checkpoint(tunnel_id, "spark-client", base).token == FINISHED


def test_late_checkpoint_does_not_reopen_a_finished_channel(scene: Scene) -> None:
    """A session lost the channel, and the next one read it to the end; that has no holder any more."""
    tunnel_id = scene.tunnel(TunnelType.BASE_DATA)
    late, channel_id = scene.connect(tunnel_id), only(scene.channels())
    token = scene.tunnels.get_checkpoint(tunnel_id, late, channel_id).token
    for _ in range(2):
        scene.tunnels.checkpoint(tunnel_id, "another", channel_id, FINISHED, 1)
    with pytest.raises(SequenceNumberNotMatchError):
        scene.tunnels.checkpoint(tunnel_id, late, channel_id, token, 1)

    assert scene.channels() == {channel_id: TERMINATED}
    assert scene.tunnels.get_checkpoint(tunnel_id, late, channel_id).token == FINISHED


def test_late_checkpoint_of_a_session_that_lost_its_channel_is_refused(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    first = scene.connect(tunnel_id)
    (channel,) = scene.beat(tunnel_id, first)
    token = scene.tunnels.get_checkpoint(tunnel_id, first, channel.channel_id).token
    scene.tunnels.shutdown(tunnel_id, first)
    scene.tunnels.checkpoint(tunnel_id, first, channel.channel_id, token, 1)
    scene.beat(tunnel_id, scene.connect(tunnel_id))

    with pytest.raises(SequenceNumberNotMatchError):
        scene.tunnels.checkpoint(tunnel_id, first, channel.channel_id, token, 2)


def test_tokens_say_what_kind_of_channel_they_are_of(scene: Scene) -> None:
    scene.put_many(6_000)
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    base, stream = scene.channels()
    first = scene.tunnels.get_checkpoint(tunnel_id, "x", base).token
    second = scene.tunnels.read_records(tunnel_id, "x", base, first).next_token

    assert [decode_token(token).is_stream for token in (first, second)] == [False, False]
    assert decode_token(second).total_count > 0
    assert decode_token(scene.tunnels.get_checkpoint(tunnel_id, "x", stream).token).is_stream
    assert base.startswith("BaseData_")
    assert stream.count("_") == 1


# --- the envelope --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2015-12-31", "2018-04-01"])
@pytest.mark.parametrize("fraction", ["123", "11212", "1112", "112112"])
def test_requests_of_both_official_clients_are_taken_and_answered_as_they_need(
    scene: Scene, version: str, fraction: str
) -> None:
    """The Go client names a version of its own, and writes month, day and hour where the fraction should be."""
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    requests = {
        "connect": schema.ConnectRequest(tunnel_id=tunnel_id),
        "heartbeat": schema.HeartbeatRequest(tunnel_id=tunnel_id, client_id="nobody"),
        "shutdown": schema.ShutdownRequest(tunnel_id=tunnel_id, client_id="nobody"),
        "list": schema.ListTunnelRequest(table_name=""),
        "getrpobyoffset": schema.GetRpoRequest(tunnel_id=tunnel_id),
    }
    connection = connect(scene.local)
    answers = {}
    for verb, request in requests.items():
        body = request.SerializeToString()
        headers = {
            "X-Ots-Date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.") + fraction + "Z",
            "X-Ots-Apiversion": version,
            "X-Ots-Accesskeyid": scene.local.access_key_id,
            "X-Ots-Instancename": scene.local.instance,
            "X-Ots-Contentmd5": signature.content_md5(body),
            "X-Ots-Trace-Id": "5b1c",
        }
        signed = {name.lower(): value for name, value in headers.items()}
        headers["X-Ots-Signature"] = signature.sign_request_v2(scene.local.access_key_secret, f"/tunnel/{verb}", signed)
        connection.request("POST", f"/tunnel/{verb}", body, headers)
        answers[verb] = receive(connection)
    connection.close()

    assert {verb: status for verb, (status, _, _) in answers.items()} == {
        **dict.fromkeys(requests, 200),
        "heartbeat": 410,
    }
    assert {verb for verb, (_, _, body) in answers.items() if not body} == {"shutdown"}
    for _, headers, body in answers.values():
        assert headers["content-length"] == str(len(body))
        assert headers["x-ots-requestid"]
        assert "x-ots-response-compress-type" not in headers


# --- sessions ------------------------------------------------------------------------------------------------------


def test_first_heartbeat_returns_the_open_channels(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id, tag="host")

    (channel,) = scene.beat(tunnel_id, client_id)

    assert client_id.startswith("host_")
    assert channel.status is OPEN
    assert scene.beat(tunnel_id, client_id, channel) == [channel]


def test_channels_are_shared_out_evenly_and_change_hands_by_closing(scene: Scene) -> None:
    scene.put(*range(8))
    for place in (2, 4, 6):
        scene.local.split(TABLE, at=place)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    a = scene.connect(tunnel_id, "a")
    held = scene.beat(tunnel_id, a)
    assert len(held) == 4

    b = scene.connect(tunnel_id, "b")
    assert scene.beat(tunnel_id, b) == []
    told = scene.beat(tunnel_id, a, *held)
    moving = [channel for channel in told if channel.status is CLOSING]
    assert len(moving) == 2
    assert {channel.version for channel in moving} == {1}

    closed = [Channel(c.channel_id, c.version + 1, CLOSE) for c in moving]
    kept = [channel for channel in told if channel.status is OPEN]
    assert scene.beat(tunnel_id, a, *kept, *closed) == kept
    arrived = scene.beat(tunnel_id, b)
    assert {(c.channel_id, c.version, c.status) for c in arrived} == {(c.channel_id, 3, OPEN) for c in moving}


def test_client_that_reports_a_failure_gets_the_channel_again_with_a_new_version(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id)
    (channel,) = scene.beat(tunnel_id, client_id)

    (again,) = scene.beat(tunnel_id, client_id, Channel(channel.channel_id, 1, CLOSE))

    assert (again.status, again.version) == (OPEN, 2)


def test_stale_report_is_ignored(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id)
    (channel,) = scene.beat(tunnel_id, client_id)

    assert scene.beat(tunnel_id, client_id, Channel(channel.channel_id, 0, CLOSE)) == [channel]


def test_terminated_report_finishes_the_channel_without_a_checkpoint(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    client_id = scene.connect(tunnel_id)
    (base,) = scene.beat(tunnel_id, client_id)

    (stream,) = scene.beat(tunnel_id, client_id, Channel(base.channel_id, base.version + 1, TERMINATED))

    assert scene.channels() == {base.channel_id: TERMINATED, stream.channel_id: OPEN}


def test_silent_client_loses_its_session_and_its_channels(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    silent = scene.connect(tunnel_id, timeout_seconds=10)
    scene.beat(tunnel_id, silent)
    scene.local.advance_clock(11)
    other = scene.connect(tunnel_id)

    (channel,) = scene.beat(tunnel_id, other)

    assert channel.status is OPEN
    with pytest.raises(TunnelSessionGoneError):
        scene.beat(tunnel_id, silent)


def test_session_that_is_not_known_ends_without_complaint(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tunnel_id)
    held = scene.beat(tunnel_id, client_id)

    scene.tunnels.shutdown(tunnel_id, "nobody")

    assert scene.beat(tunnel_id, client_id, *held) == held


def test_report_on_a_channel_of_another_client_is_ignored(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    holder, stranger = scene.connect(tunnel_id, "a"), scene.connect(tunnel_id, "b")
    (channel,) = scene.beat(tunnel_id, holder)

    assert scene.beat(tunnel_id, stranger, Channel(channel.channel_id, 9, TERMINATED)) == []
    assert scene.beat(tunnel_id, holder, channel) == [channel]


def test_consume_points_are_told_as_the_go_client_reads_them(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    scene.put(1)
    scene.consume(tunnel_id, channel_id)

    answer = schema.parse(
        schema.GetRpoResponse,
        TunnelTransport(scene.ots).send("getrpo", schema.GetRpoRequest(tunnel_id=tunnel_id), write=False),
    )

    assert answer.tunnel_id == tunnel_id
    (client,) = json.loads(answer.rpo_infos)[channel_id].values()
    (whole,) = json.loads(answer.tunnel_rpo_infos).values()
    assert client.keys() == {"ChannelTyp", "Status", "TotalCount", "AccessTime", "RpoTime"}
    assert whole.keys() == {"Status", "TotalCount", "AccessTime", "RpoTime"}
    assert (client["TotalCount"], whole["TotalCount"]) == (1, 1)
    assert client["RpoTime"] == scene.tunnels.describe_tunnel(TABLE, "t").consume_point_micros * 1_000


def test_suspended_channel_is_given_to_nobody_until_it_is_resumed(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = only(scene.channels())
    scene.tunnels.schedule(tunnel_id, [(channel_id, CLOSING)])
    client_id = scene.connect(tunnel_id)
    assert scene.channels() == {channel_id: CLOSING}
    assert scene.beat(tunnel_id, client_id) == []

    scene.tunnels.schedule(tunnel_id, [(channel_id, OPEN)])

    assert [channel.status for channel in scene.beat(tunnel_id, client_id)] == [OPEN]


def test_tunnels_checkpoints_and_sessions_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with LocalTablestore(data_dir=tmp_path) as local:
        scene = Scene(local)
        scene.make_table()
        tunnel_id = scene.tunnel(TunnelType.STREAM)
        client_id = scene.connect(tunnel_id)
        (channel,) = scene.beat(tunnel_id, client_id)
        scene.put(1)
        scene.consume(tunnel_id, channel.channel_id)
        scene.put(2)
    with LocalTablestore(data_dir=tmp_path) as local:
        scene = Scene(local)

        assert scene.beat(tunnel_id, client_id, channel) == [channel]
        assert ids(scene.consume(tunnel_id, channel.channel_id)) == [2]
        scene.tunnels.delete_tunnel(TABLE, "t")
    with LocalTablestore(data_dir=tmp_path) as local:
        assert Scene(local).tunnels.list_tunnel() == ()
