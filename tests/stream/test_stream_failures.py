"""What stream reads do when the service or the network fails, and with answers that are rarely seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
import tablestore as sdk
from scripted_service import scripted

from streamclient.base.position import Position
from streamclient.errors import DependencyException, ErrorKind, StreamClientError, UnreadableAnswerError
from streamclient.server.fault_rules import Cut, Fail, FaultRule, LateAnswer, LoseAnswer
from streamclient.tablestore import ReadRetry, StreamSpecification, TablestoreStreamApi
from streamclient.wire import schema
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

QUICK = ReadRetry(retries=4, shortest_pause_millis=1, longest_pause_millis=2)
ONCE = ReadRetry(retries=0)


def create(api: TablestoreStreamApi) -> None:
    meta = sdk.TableMeta("orders", [("pk", "STRING")])
    throughput = sdk.ReservedThroughput(sdk.CapacityUnit(0, 0))
    api.create_table(meta, sdk.TableOptions(), throughput, stream=StreamSpecification(True, 24))


def requests(local: LocalTablestore, operation: str) -> int:
    return sum(count.requests for count in local.requests() if count.operation == operation)


@pytest.mark.parametrize(
    "action", [Fail("OTSServerBusy"), Fail("OTSInternalServerError"), Fail("OTSTimeout"), Cut(), LoseAnswer()]
)
def test_reads_are_repeated_over_passing_failures(local: LocalTablestore, action: Any) -> None:
    api = TablestoreStreamApi(local.client(), retry=QUICK)
    create(api)
    local.add_fault(FaultRule("ListStream", action=action, times=3))

    assert len(api.list_stream("orders")) == 1


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (Fail("OTSServerBusy"), ErrorKind.THROTTLED),
        (Fail("OTSInternalServerError"), ErrorKind.TRANSIENT),
        (Cut(), ErrorKind.TRANSIENT),
    ],
)
def test_reads_are_repeated_a_bounded_number_of_times(local: LocalTablestore, action: Any, kind: ErrorKind) -> None:
    """The SDK's own policy takes no part: it would ask twenty times more."""
    api = TablestoreStreamApi(local.client(), retry=QUICK)
    fault = local.add_fault(FaultRule("ListStream", action=action))

    with pytest.raises(DependencyException) as caught:
        api.list_stream()
    assert caught.value.kind is kind
    (status,) = [status for status in local.faults() if status.fault_id == fault]
    assert status.struck == QUICK.retries + 1


def test_a_permanent_failure_is_not_repeated(local: LocalTablestore) -> None:
    api = TablestoreStreamApi(local.client(), retry=QUICK)
    with pytest.raises(DependencyException) as caught:
        api.describe_stream("no_stream_1700000000000000")

    assert caught.value.kind is ErrorKind.PERMANENT
    assert requests(local, "DescribeStream") == 1


def test_a_time_out_is_a_passing_failure_of_a_read(local: LocalTablestore) -> None:
    api = TablestoreStreamApi(local.client(socket_timeout=1.0), retry=ONCE)
    local.add_fault(FaultRule("ListStream", action=LateAnswer(PATIENCE_SECONDS), times=1))

    with pytest.raises(DependencyException, match="no answer") as caught:
        api.list_stream()
    assert caught.value.kind is ErrorKind.TRANSIENT


def test_a_lost_answer_to_a_change_leaves_its_effect_open(local: LocalTablestore) -> None:
    api = TablestoreStreamApi(local.client())
    local.add_fault(FaultRule("CreateTable", action=LoseAnswer(), times=1))

    with pytest.raises(DependencyException) as caught:
        create(api)
    assert caught.value.kind is ErrorKind.AMBIGUOUS
    assert len(api.list_stream("orders")) == 1, "it was applied all the same"


def test_changes_follow_the_retry_policy_of_the_client(local: LocalTablestore) -> None:
    api = TablestoreStreamApi(local.client(retry_policy=sdk.NoDelayRetryPolicy()))
    local.add_fault(FaultRule("CreateTable", action=Fail("OTSServerBusy"), times=3))
    create(api)

    assert requests(local, "CreateTable") == 4


def test_wrong_keys_are_a_permanent_failure(local: LocalTablestore) -> None:
    client = sdk.OTSClient(local.endpoint, local.access_key_id, "wrong", local.instance, logger_name="tests.stream")
    try:
        with pytest.raises(DependencyException) as caught:
            TablestoreStreamApi(client).list_stream()
    finally:
        client.connection.pool.clear()
    assert (caught.value.kind, caught.value.code) == (ErrorKind.PERMANENT, "OTSAuthFailed")


def test_no_server_at_all_is_a_passing_failure(local: LocalTablestore) -> None:
    client, port = local.client(), local.endpoint.rpartition(":")[2]
    local.stop()
    with pytest.raises(DependencyException, match="no connection") as caught:
        TablestoreStreamApi(client, retry=ONCE).list_stream()
    assert caught.value.kind is ErrorKind.TRANSIENT
    assert str(caught.value).endswith(f"; start a local Tablestore with `streamclient server --port {port}`")


def test_stop_ends_the_pause_at_once(local: LocalTablestore) -> None:
    """A worker that shuts down does not wait for a back-off."""
    stop = Event()
    patient = ReadRetry(
        retries=5,
        shortest_pause_millis=FOREVER_MILLIS,
        longest_pause_millis=FOREVER_MILLIS,
        total_millis=FOREVER_MILLIS,
    )
    api = TablestoreStreamApi(local.client(), retry=patient, stop=stop)
    local.add_fault(FaultRule("ListStream", action=Fail("OTSServerBusy")))
    raised: list[BaseException] = []

    def read() -> None:
        try:
            api.list_stream()
        except StreamClientError as error:
            raised.append(error)

    reader = Thread(target=read)
    reader.start()
    until(lambda: requests(local, "ListStream") == 1, "the first try")
    stop.set()
    reader.join(PATIENCE_SECONDS)

    assert not reader.is_alive()
    assert isinstance(raised[0], DependencyException)
    assert requests(local, "ListStream") == 1


# --- answers that a real service may give, rarely --------------------------------------------------------------------


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    remaining: Iterator[Any] = iter(answers)
    return lambda _: next(remaining)


def iterator(text: str = "", token: str | None = None) -> Any:
    return schema.GetShardIteratorResponse(shard_iterator=text, next_token=token)


def page(*shards: str, next_shard_id: str | None = None, status: int = 2) -> Any:
    described = schema.DescribeStreamResponse(
        stream_id="s",
        expiration_time=24,
        table_name="t",
        creation_time=5,
        stream_status=status,
        next_shard_id=next_shard_id,
    )
    for shard in shards:
        described.shards.add(shard_id=shard)
    return described


def test_a_search_is_continued_with_its_token_and_the_same_time() -> None:
    with scripted(in_turn(iterator(token="t1"), iterator(token="t2"), iterator("found"))) as script:
        assert TablestoreStreamApi(script.client).get_shard_iterator("s", "h", 77) == "found"
    assert [(request.timestamp, request.token) for request in script.requests] == [(77, ""), (77, "t1"), (77, "t2")]


def test_a_search_that_finds_nothing_begins_at_the_oldest_record() -> None:
    """Beginning earlier is allowed; beginning later could lose records."""
    with scripted(in_turn(iterator(token="t1"), iterator(), iterator("oldest"))) as script:
        assert TablestoreStreamApi(script.client).get_shard_iterator("s", "h", 77) == "oldest"
    assert not script.requests[-1].HasField("timestamp")


def test_no_iterator_at_all_is_an_error() -> None:
    with scripted(lambda _: iterator()) as script, pytest.raises(DependencyException, match="no iterator") as caught:
        TablestoreStreamApi(script.client).get_shard_iterator("s", "h")
    assert caught.value.kind is ErrorKind.PERMANENT


def test_an_endless_search_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamclient.tablestore.stream_operations.MOST_CONTINUATIONS", 5)
    with scripted(lambda _: iterator(token="again")) as script, pytest.raises(DependencyException, match="not end"):
        TablestoreStreamApi(script.client).get_shard_iterator("s", "h", 77)
    assert len(script.requests) == 5


def test_a_shard_on_two_pages_is_given_once() -> None:
    answers = in_turn(page("a", "b", next_shard_id="b"), page("b", "c"))
    with scripted(answers) as script:
        described = TablestoreStreamApi(script.client).describe_stream("s")

    assert [shard.shard_id for shard in described.shards] == ["a", "b", "c"]
    assert [request.inclusive_start_shard_id for request in script.requests] == ["", "b"]


def test_an_empty_next_shard_ends_the_listing() -> None:
    with scripted(lambda _: page("a", next_shard_id="")) as script:
        assert len(TablestoreStreamApi(script.client).describe_stream("s").shards) == 1


def test_a_listing_that_does_not_move_is_given_up() -> None:
    with (
        scripted(lambda _: page("a", next_shard_id="a")) as script,
        pytest.raises(DependencyException, match="does not end"),
    ):
        TablestoreStreamApi(script.client).describe_stream("s")
    assert len(script.requests) == 2


def test_a_listing_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamclient.tablestore.stream_operations.MOST_SHARD_PAGES", 6)
    numbers = iter(range(100))
    with (
        scripted(lambda _: page("a", next_shard_id=f"shard-{next(numbers)}")) as script,
        pytest.raises(DependencyException, match="6 pages"),
    ):
        TablestoreStreamApi(script.client).describe_stream("s")


def test_an_unknown_stream_status_is_an_error() -> None:
    with (
        scripted(lambda _: page("a", status=9)) as script,
        pytest.raises(UnreadableAnswerError, match="stream status 9"),
    ):
        TablestoreStreamApi(script.client, retry=ONCE).describe_stream("s")


def test_no_records_with_another_iterator_is_not_the_end() -> None:
    """The service may skip over data that is of no interest."""
    answer = schema.GetStreamRecordResponse(next_shard_iterator="further")
    with scripted(lambda _: answer) as script:
        read = TablestoreStreamApi(script.client).get_stream_record("it")

    assert (read.records, read.next_position, read.may_more_record) == ((), Position("further"), None)


@pytest.mark.parametrize("answer", [b"", schema.GetStreamRecordResponse(next_shard_iterator="")])
def test_an_absent_or_empty_next_iterator_is_the_end(answer: Any) -> None:
    with scripted(lambda _: answer) as script:
        assert TablestoreStreamApi(script.client).get_stream_record("it").next_position is Position.SHARD_END


@pytest.mark.parametrize("answer", [b"\xff", b"\x0a\x02\x08\x01", b"\x0a\x07\x08\x01\x12\x03abc"])
def test_an_answer_that_is_none_is_asked_for_again_and_named(answer: bytes) -> None:
    with scripted(lambda _: answer) as script, pytest.raises(UnreadableAnswerError, match="GetStreamRecord"):
        TablestoreStreamApi(script.client, retry=QUICK).get_stream_record("it")
    assert len(script.requests) == QUICK.retries + 1


def test_an_unknown_column_type_is_an_error() -> None:
    described = schema.DescribeTableResponse()
    described.table_meta.table_name = "t"
    described.table_meta.primary_key.add(name="pk", type=42)
    described.reserved_throughput_details.capacity_unit.read = 0
    described.reserved_throughput_details.last_increase_time = 0
    described.table_options.SetInParent()
    with scripted(lambda _: described) as script, pytest.raises(UnreadableAnswerError, match="unknown type 42"):
        TablestoreStreamApi(script.client, retry=ONCE).describe_table("t")


def test_what_older_clusters_leave_out_is_none() -> None:
    described = schema.DescribeTableResponse()
    described.table_meta.table_name = "t"
    described.table_meta.primary_key.add(name="pk", type=1)
    described.table_meta.primary_key.add(name="id", type=1, option=1)
    described.reserved_throughput_details.capacity_unit.read = 3
    described.reserved_throughput_details.last_increase_time = 0
    described.table_options.SetInParent()
    described.index_metas.add(name="by_id", index_update_mode=0, index_type=0)
    with scripted(lambda _: described) as script:
        table = TablestoreStreamApi(script.client).describe_table("t")

    assert (table.creation_time_micros, table.options.allow_update, table.stream.enable_stream) == (None, None, False)
    assert (table.auto_increment_key, table.index_names, table.reserved_read_capacity) == ("id", ("by_id",), 3)
