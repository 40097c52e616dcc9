"""Tunnels of the local server, called by our client over HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from server_http_tools import answer_to_headers
from tablestore import Condition, OTSServiceError, Row, RowExistenceExpectation

from streamclient.errors import ConfigurationError
from streamclient.records import ColumnOperation, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
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
    ChannelCheckpoint,
    ChannelStatus,
    ChannelType,
    StartOffset,
    StreamTunnelConfig,
    TunnelDescription,
    TunnelStage,
    TunnelType,
)
from streamclient.tunnel.tunnel_transport import TunnelTransport
from streamclient.wire import schema, signature
from streamclient.wire._tags import TAG_ROW_KEY
from streamclient.wire.page_parts import FINISHED, TunnelPage
from streamclient.wire.tunnel import decode_token
from tests.service_under_test import signed_headers
from tests.stage import IGNORE, STREAM, make_table, put_rows

TABLE, KEY = "orders", [("id", "INTEGER")]
OPEN, WAIT = ChannelStatus.OPEN, ChannelStatus.WAIT
CLOSING, CLOSE, TERMINATED = ChannelStatus.CLOSING, ChannelStatus.CLOSE, ChannelStatus.TERMINATED


class Scene:
    """A table, a tunnel client, and what tests do with them."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local = local
        self.ots = local.client()
        self.tunnels = TunnelClient(self.ots)
        self.tunnel_id = ""

    def put(self, *numbers: int) -> None:
        put_rows(self.ots, TABLE, (Row([("id", number)], [("value", number)]) for number in numbers))

    def tunnel(self, kind: TunnelType, name: str = "t", config: StreamTunnelConfig | None = None) -> str:
        """Make the tunnel on which the other methods work."""
        self.tunnel_id = self.tunnels.create_tunnel(TABLE, name, kind, config)
        return self.tunnel_id

    def describe(self) -> TunnelDescription:
        return self.tunnels.describe_tunnel(TABLE, "t")

    def channels(self) -> dict[str, ChannelStatus]:
        return {channel.channel_id: channel.status for channel in self.describe().channels}

    @property
    def channel_id(self) -> str:
        """The only channel."""
        (found,) = self.channels()
        return found

    def connect(self, tag: str = "w", timeout_seconds: int = 60) -> str:
        return self.tunnels.connect(self.tunnel_id, timeout_seconds=timeout_seconds, client_tag=tag)

    def beat(self, client_id: str, *channels: Channel) -> list[Channel]:
        return list(self.tunnels.heartbeat(self.tunnel_id, client_id, channels))

    def stored(self, channel_id: str | None = None, client_id: str = "x") -> ChannelCheckpoint:
        return self.tunnels.get_checkpoint(self.tunnel_id, client_id, channel_id or self.channel_id)

    def read(self, token: str, channel_id: str | None = None, client_id: str = "x") -> TunnelPage:
        return self.tunnels.read_records(self.tunnel_id, client_id, channel_id or self.channel_id, token)

    def store(self, token: str, number: int, channel_id: str | None = None, client_id: str = "x") -> None:
        self.tunnels.checkpoint(self.tunnel_id, client_id, channel_id or self.channel_id, token, number)

    def read_all(self, channel_id: str | None = None, client_id: str = "x") -> tuple[list[StreamRecord], str]:
        """Read from the checkpoint until nothing more comes; records and the token behind them."""
        token = self.stored(channel_id, client_id).token
        records: list[StreamRecord] = []
        while True:
            page = self.read(token, channel_id, client_id)
            records += page.records
            token = page.next_token
            if page.is_finished or page.may_more_record is False:
                return records, token

    def consume(self, channel_id: str | None = None) -> list[StreamRecord]:
        """Read as ``read_all`` and store the checkpoint."""
        number = self.stored(channel_id).sequence_number
        records, token = self.read_all(channel_id)
        self.store(token, number + 1, channel_id)
        return records


@pytest.fixture
def scene() -> Iterator[Scene]:
    with LocalTablestore() as local:
        made = Scene(local)
        make_table(made.ots, TABLE, KEY)
        yield made


def ids(records: list[StreamRecord]) -> list[int]:
    return [int(record.key["id"]) for record in records]


# --- tunnels -------------------------------------------------------------------------------------------------------


def test_tunnel_is_listed_and_described_as_it_was_made(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)

    (listed,) = scene.tunnels.list_tunnel(TABLE)

    assert (listed.tunnel_id, listed.tunnel_name, listed.table_name) == (tunnel_id, "t", TABLE)
    assert listed.tunnel_type is TunnelType.BASE_AND_STREAM
    assert listed.instance_name == scene.local.instance
    assert listed == scene.describe().info
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


def test_stream_tunnel_switches_the_stream_on() -> None:
    with LocalTablestore() as local:
        scene = Scene(local)
        make_table(scene.ots, TABLE, KEY, stream=None)
        scene.tunnel(TunnelType.STREAM)

        details = TablestoreStreamApi(scene.ots).describe_table(TABLE).stream
        assert (details.enable_stream, details.expiration_time_hours) == (True, 168)


def test_config_is_described_to_the_millisecond(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM, "default")
    scene.tunnel(TunnelType.STREAM, "earliest", StreamTunnelConfig(StartOffset.EARLIEST))

    described = {info.tunnel_name: info.config for info in scene.tunnels.list_tunnel(TABLE)}

    assert described == {"default": StreamTunnelConfig(), "earliest": StreamTunnelConfig(StartOffset.EARLIEST)}


def test_deleted_tunnel_ends_its_sessions(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect()
    scene.tunnels.delete_tunnel(TABLE, "t")

    with pytest.raises(TunnelParameterInvalidError):
        scene.beat(client_id)


@pytest.mark.parametrize("start", [True, False])
def test_range_is_described_as_it_was_given(scene: Scene, start: bool) -> None:
    now = time.time_ns() // 1_000_000 * 1_000
    given = StreamTunnelConfig(start_micros=now - 60_000_000 if start else None, end_micros=now + 60_000_000)
    scene.tunnel(TunnelType.STREAM, config=given)

    described = scene.describe().info.config

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
    with pytest.raises(ConfigurationError, match="is not after start_micros"):
        StreamTunnelConfig(start_micros=2_000, end_micros=1_000)


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "日本", "n" * 256])
def test_name_that_no_tunnel_may_have_is_refused_before_it_is_sent(scene: Scene, name: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 255 letters, digits and underscores"):
        scene.tunnels.create_tunnel(TABLE, name, TunnelType.STREAM)
    assert scene.tunnels.list_tunnel(TABLE) == ()


@pytest.mark.parametrize("name", ["_", "a", "_1", "A" * 255])
def test_tunnel_may_have_any_name_of_the_rule(scene: Scene, name: str) -> None:
    scene.tunnels.create_tunnel(TABLE, name, TunnelType.STREAM)
    assert [info.tunnel_name for info in scene.tunnels.list_tunnel(TABLE)] == [name]


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
    scene.tunnel(TunnelType.BASE_DATA)
    channel_id = scene.channel_id
    assert channel_id.startswith("BaseData_")

    records = scene.consume()

    assert ids(records) == [1, 2, 3]
    assert {record.record_type for record in records} == {RecordType.PUT}
    assert {record.sequence_info for record in records} == {SequenceInfo(0, 0, 0)}
    assert scene.channels() == {channel_id: TERMINATED}
    assert scene.describe().info.stage is TunnelStage.PROCESS_STREAM
    assert scene.stored().token == FINISHED


def test_full_data_is_read_in_pages_from_token_to_token(scene: Scene) -> None:
    scene.put(*range(12_000))
    scene.tunnel(TunnelType.BASE_DATA)

    records, token = scene.read_all()

    assert ids(records) == list(range(12_000))
    assert token == FINISHED


def test_stream_delivers_what_is_written_after_the_tunnel_was_made(scene: Scene) -> None:
    scene.put(1)
    scene.tunnel(TunnelType.STREAM)
    scene.put(2, 3)
    scene.ots.delete_row(TABLE, [("id", 2)], IGNORE)

    records = scene.consume()

    assert [(record.record_type, record.key["id"]) for record in records] == [
        (RecordType.PUT, 2),
        (RecordType.PUT, 3),
        (RecordType.DELETE, 2),
    ]
    scene.put(4)
    assert ids(scene.consume()) == [4]


def test_earliest_tunnel_delivers_the_whole_log(scene: Scene) -> None:
    scene.put(1, 2)
    scene.tunnel(TunnelType.STREAM, config=StreamTunnelConfig(StartOffset.EARLIEST))

    assert ids(scene.consume()) == [1, 2]


def test_stream_channels_wait_until_all_full_data_was_consumed(scene: Scene) -> None:
    scene.put(1)
    scene.tunnel(TunnelType.BASE_AND_STREAM)
    scene.put(2)
    described = {c.channel_type: c for c in scene.describe().channels}
    assert described[ChannelType.STREAM].status is WAIT
    assert scene.describe().info.stage is TunnelStage.PROCESS_BASE_DATA

    base = ids(scene.consume(described[ChannelType.BASE_DATA].channel_id))

    assert base == [1, 2]
    assert scene.describe().info.stage is TunnelStage.PROCESS_STREAM
    assert scene.channels()[described[ChannelType.STREAM].channel_id] is OPEN
    assert ids(scene.consume(described[ChannelType.STREAM].channel_id)) == [2]


def test_children_open_when_their_parents_are_finished(scene: Scene) -> None:
    scene.put(1, 2, 3, 4)
    scene.tunnel(TunnelType.STREAM)
    parent = scene.channel_id
    scene.put(5)
    lower, upper = scene.local.split(TABLE, at=3)
    scene.put(1, 4)
    assert scene.channels() == {parent: OPEN, lower: WAIT, upper: WAIT}

    assert ids(scene.consume(parent)) == [5]

    assert scene.channels() == {parent: TERMINATED, lower: OPEN, upper: OPEN}
    assert [ids(scene.consume(child)) for child in (lower, upper)] == [[1], [4]]
    merged = scene.local.merge(TABLE, lower, upper)
    assert ids(scene.consume(lower)) == []
    assert scene.channels()[merged] is WAIT
    scene.consume(upper)
    assert scene.channels()[merged] is OPEN


def test_consume_point_is_that_of_the_slowest_channel(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    assert scene.describe().consume_point_micros == 0

    scene.consume()

    described = scene.describe()
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
    scene.tunnel(TunnelType.STREAM, config=config)

    assert ids(scene.consume()) == [1]
    assert list(scene.channels().values()) == [TERMINATED]


def test_tunnel_whose_log_was_trimmed_is_expired(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect()
    scene.put(1, 2)
    scene.local.trim(TABLE)

    with pytest.raises(TunnelExpiredError):
        scene.beat(client_id)
    with pytest.raises(TunnelExpiredError):
        scene.connect()
    assert scene.tunnels.list_tunnel(TABLE)[0].is_expired


LOST_LOG = re.compile(
    r"OTSTrimmedDataAccess Requested stream data is already trimmed or does not exist\. [0-9a-f-]{36}"
)


def test_a_read_before_the_log_is_answered_as_by_the_service(scene: Scene) -> None:
    """Code, status and text as they were observed: the error of the table service is the text."""
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = scene.channel_id
    token = scene.stored().token
    scene.put(1, 2)
    scene.local.trim(TABLE)

    message = schema.ReadRecordsRequest(tunnel_id=tunnel_id, client_id="x", channel_id=channel_id, token=token)
    answer = SignedCalls(scene.ots).send("/tunnel/readrecords", message.SerializeToString(), is_repeatable=True)
    error = schema.parse(schema.TunnelError, answer.body)
    assert (answer.status, error.code, len(error.message)) == (400, "OTSTunnelServerUnavailable", 117)
    assert LOST_LOG.fullmatch(error.message)
    with pytest.raises(TunnelExpiredError):
        scene.read(token)


def test_a_read_after_the_lost_part_of_a_log_goes_on(scene: Scene) -> None:
    """The tunnel is expired by another channel, or by records before this token."""
    scene.tunnel(TunnelType.STREAM)
    token = scene.stored().token
    scene.put(1, 2)
    token = scene.read(token).next_token
    scene.put(3)
    scene.local.trim(TABLE, keep_last=1)

    assert scene.tunnels.list_tunnel(TABLE)[0].is_expired
    assert ids(scene.read(token).records) == [3]
    with pytest.raises(TunnelExpiredError):
        scene.stored()


def test_consumed_log_may_be_trimmed(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    scene.put(1, 2)
    scene.consume()
    scene.local.trim(TABLE)
    scene.put(3)

    assert ids(scene.consume()) == [3]


def test_nothing_is_read_behind_a_page_that_says_so(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    scene.put(*range(2_400))
    token, sizes, hints = scene.stored().token, [], []
    for _ in range(4):
        page = scene.read(token)
        token = page.next_token
        sizes.append(len(page.records))
        hints.append(page.may_more_record)

    assert sizes == [1_000, 1_000, 400, 0]
    assert hints == [True, True, False, False]


def test_reading_behind_the_end_gives_nothing_and_ends_again(scene: Scene) -> None:
    scene.put(1)
    scene.tunnel(TunnelType.BASE_DATA)

    page = scene.read(FINISHED)

    assert (page.records, page.next_token) == ((), FINISHED)


def test_origin_columns_come_with_changes_of_rows_that_were_there(scene: Scene) -> None:
    scene.ots.delete_table(TABLE)
    make_table(scene.ots, TABLE, KEY, stream=evolve(STREAM, columns_to_get=("value",)))
    scene.tunnel(TunnelType.STREAM)
    scene.ots.put_row(TABLE, Row([("id", 1)], [("value", "old")]), IGNORE)
    scene.ots.update_row(TABLE, Row([("id", 1)], {"PUT": [("value", "new")]}), IGNORE)

    origin = raw_page(scene).records[1].origin_record
    put, update = scene.consume()

    assert (put.record_type, update.record_type) == (RecordType.PUT, RecordType.UPDATE)
    assert [column.value for column in put.columns + update.columns] == ["old", "new"]
    assert not put.original_columns
    assert [column.value for column in update.original_columns or ()] == ["old"]
    assert origin[4] == TAG_ROW_KEY, "the Go client wants the tag of the key first"


def raw_page(scene: Scene) -> Any:
    """The page at the first position of the only channel as it travels."""
    whose = {"tunnel_id": scene.tunnel_id, "client_id": "x", "channel_id": scene.channel_id}
    request = schema.ReadRecordsRequest(**whose, token=scene.stored().token)
    return schema.parse(
        schema.ReadRecordsResponse, TunnelTransport(scene.ots).send("readrecords", request, write=False)
    )


def test_records_are_read_in_order_with_the_client_id_that_describe_shows(scene: Scene) -> None:
    """And with nobody's: reading needs no session."""
    scene.tunnel(TunnelType.STREAM)
    (channel,) = scene.describe().channels
    assert channel.client_id == ""
    scene.put(*range(1_000))

    records, _ = scene.read_all(client_id=channel.client_id)

    assert ids(records) == list(range(1_000))
    assert [record.columns[0].value for record in records] == list(range(1_000))
    order = [record.sequence_info for record in records]
    assert order == sorted(order)


def test_every_change_is_delivered_as_what_it_was(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    scene.put(1)
    scene.ots.update_row(TABLE, Row([("id", 1)], {"PUT": [("more", 1)], "DELETE_ALL": ["value"]}), IGNORE)
    scene.ots.update_row(TABLE, Row([("id", 1)], {"INCREMENT": [("more", 41)]}), IGNORE)
    with pytest.raises(OTSServiceError, match="Condition check failed"):
        scene.ots.put_row(TABLE, Row([("id", 1)], []), Condition(RowExistenceExpectation.EXPECT_NOT_EXIST))
    scene.ots.delete_row(TABLE, [("id", 1)], IGNORE)

    records = scene.consume()

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
    scene.tunnel(TunnelType.STREAM)
    token = scene.stored().token
    scene.store(token, 5)

    assert scene.stored().sequence_number == 5
    scene.store(token, 5)
    with pytest.raises(SequenceNumberNotMatchError):
        scene.store(token, 4)


def test_consumer_without_session_may_store_the_number_zero_again_and_again(scene: Scene) -> None:
    """As a Spark connector does that knows no leases: two batches, then the end."""
    scene.put(1, 2, 3)
    scene.tunnel(TunnelType.BASE_AND_STREAM)
    base, stream = scene.channels()
    page = scene.read(scene.stored(base, "spark-client").token, base, "spark-client")
    for _ in range(2):
        scene.store(page.next_token, 0, base, "spark-client")

    assert scene.channels() == {base: TERMINATED, stream: OPEN}
    assert scene.stored(base, "spark-client").token == FINISHED


def test_late_checkpoint_does_not_reopen_a_finished_channel(scene: Scene) -> None:
    """A session lost the channel, and the next one read it to the end; that has no holder any more."""
    scene.tunnel(TunnelType.BASE_DATA)
    late, channel_id = scene.connect(), scene.channel_id
    token = scene.stored(client_id=late).token
    for _ in range(2):
        scene.store(FINISHED, 1, client_id="another")
    with pytest.raises(SequenceNumberNotMatchError):
        scene.store(token, 1, client_id=late)

    assert scene.channels() == {channel_id: TERMINATED}
    assert scene.stored(client_id=late).token == FINISHED


def test_late_checkpoint_of_a_session_that_lost_its_channel_is_refused(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    first = scene.connect()
    scene.beat(first)
    token = scene.stored(client_id=first).token
    scene.tunnels.shutdown(scene.tunnel_id, first)
    scene.store(token, 1, client_id=first)
    scene.beat(scene.connect())

    with pytest.raises(SequenceNumberNotMatchError):
        scene.store(token, 2, client_id=first)


def test_tokens_say_what_kind_of_channel_they_are_of(scene: Scene) -> None:
    scene.put(*range(6_000))
    scene.tunnel(TunnelType.BASE_AND_STREAM)
    base, stream = scene.channels()
    first = scene.stored(base).token
    second = scene.read(first, base).next_token

    assert [decode_token(token).is_stream for token in (first, second)] == [False, False]
    assert decode_token(second).total_count > 0
    assert decode_token(scene.stored(stream).token).is_stream
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
    answers = {}
    for verb, request in requests.items():
        body, path = request.SerializeToString(), f"/tunnel/{verb}"
        headers = signed_headers(scene.local, path[1:], body)
        del headers["x-ots-signature"]
        headers |= {
            "x-ots-date": headers["x-ots-date"].partition(".")[0] + f".{fraction}Z",
            "x-ots-apiversion": version,
            "x-ots-trace-id": "5b1c",
        }
        headers["x-ots-signature"] = signature.sign_request_v2(scene.local.access_key_secret, path, headers)
        canonical = {name.title(): value for name, value in headers.items()}
        answers[verb] = answer_to_headers(scene.local, canonical, path, body)

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
    scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect(tag="host")

    (channel,) = scene.beat(client_id)

    assert client_id.startswith("host_")
    assert channel.status is OPEN
    assert scene.beat(client_id, channel) == [channel]


def test_channels_are_shared_out_evenly_and_change_hands_by_closing(scene: Scene) -> None:
    scene.put(*range(8))
    for place in (2, 4, 6):
        scene.local.split(TABLE, at=place)
    scene.tunnel(TunnelType.STREAM)
    a = scene.connect("a")
    held = scene.beat(a)
    assert len(held) == 4

    b = scene.connect("b")
    assert scene.beat(b) == []
    told = scene.beat(a, *held)
    moving = [channel for channel in told if channel.status is CLOSING]
    assert len(moving) == 2
    assert {channel.version for channel in moving} == {1}

    closed = [Channel(c.channel_id, c.version + 1, CLOSE) for c in moving]
    kept = [channel for channel in told if channel.status is OPEN]
    assert scene.beat(a, *kept, *closed) == kept
    arrived = scene.beat(b)
    assert {(c.channel_id, c.version, c.status) for c in arrived} == {(c.channel_id, 3, OPEN) for c in moving}


def test_client_that_reports_a_failure_gets_the_channel_again_with_a_new_version(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect()
    (channel,) = scene.beat(client_id)

    (again,) = scene.beat(client_id, Channel(channel.channel_id, 1, CLOSE))

    assert (again.status, again.version) == (OPEN, 2)


def test_stale_report_is_ignored(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect()
    (channel,) = scene.beat(client_id)

    assert scene.beat(client_id, Channel(channel.channel_id, 0, CLOSE)) == [channel]


def test_terminated_report_finishes_the_channel_without_a_checkpoint(scene: Scene) -> None:
    scene.tunnel(TunnelType.BASE_AND_STREAM)
    client_id = scene.connect()
    (base,) = scene.beat(client_id)

    (stream,) = scene.beat(client_id, Channel(base.channel_id, base.version + 1, TERMINATED))

    assert scene.channels() == {base.channel_id: TERMINATED, stream.channel_id: OPEN}


def test_silent_client_loses_its_session_and_its_channels(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    silent = scene.connect(timeout_seconds=10)
    scene.beat(silent)
    scene.local.advance_clock(11)
    other = scene.connect()

    (channel,) = scene.beat(other)

    assert channel.status is OPEN
    with pytest.raises(TunnelSessionGoneError):
        scene.beat(silent)


def test_session_that_is_not_known_ends_without_complaint(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = scene.connect()
    held = scene.beat(client_id)

    scene.tunnels.shutdown(tunnel_id, "nobody")

    assert scene.beat(client_id, *held) == held


def test_report_on_a_channel_of_another_client_is_ignored(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    holder, stranger = scene.connect("a"), scene.connect("b")
    (channel,) = scene.beat(holder)

    assert scene.beat(stranger, Channel(channel.channel_id, 9, TERMINATED)) == []
    assert scene.beat(holder, channel) == [channel]


def test_consume_points_are_told_as_the_go_client_reads_them(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = scene.channel_id
    scene.put(1)
    scene.consume()

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
    assert client["RpoTime"] == scene.describe().consume_point_micros * 1_000


def test_suspended_channel_is_given_to_nobody_until_it_is_resumed(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    channel_id = scene.channel_id
    scene.tunnels.schedule(tunnel_id, [(channel_id, CLOSING)])
    client_id = scene.connect()
    assert scene.channels() == {channel_id: CLOSING}
    assert scene.beat(client_id) == []

    scene.tunnels.schedule(tunnel_id, [(channel_id, OPEN)])

    assert [channel.status for channel in scene.beat(client_id)] == [OPEN]


def test_tunnels_checkpoints_and_sessions_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with LocalTablestore(data_dir=tmp_path) as local:
        scene = Scene(local)
        make_table(scene.ots, TABLE, KEY)
        tunnel_id = scene.tunnel(TunnelType.STREAM)
        client_id = scene.connect()
        (channel,) = scene.beat(client_id)
        scene.put(1)
        scene.consume()
        scene.put(2)
    with LocalTablestore(data_dir=tmp_path) as local:
        scene = Scene(local)
        scene.tunnel_id = tunnel_id

        assert scene.beat(client_id, channel) == [channel]
        assert ids(scene.consume()) == [2]
        scene.tunnels.delete_tunnel(TABLE, "t")
    with LocalTablestore(data_dir=tmp_path) as local:
        assert Scene(local).tunnels.list_tunnel() == ()
