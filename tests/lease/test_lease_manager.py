"""The lease manager over a real HTTP server: set-up, damaged rows, failing calls, batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from itertools import count
from typing import Any

import pytest
from attrs import evolve
from status_table import ANY_STATE, STREAM, TABLE, Pauses, key_of, put_row, requests, stored_cells
from tablestore import (
    AsyncOTSClient,
    BatchWriteRowRequest,
    CapacityUnit,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)
from tablestore.error import OTSServiceError
from urllib3.exceptions import NewConnectionError

from streamclient.base.backoff import LeaseRetryStrategy
from streamclient.config import ClientConfig
from streamclient.core import leases as rule
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientException
from streamclient.interfaces import IRetryStrategy, RetryableAction
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress
from streamclient.server import Cut, Fail, FailRows, FaultRule, LateAnswer, LocalTablestore, LoseAnswer
from streamclient.server.fault_rules import FaultAction
from streamclient.tablestore import Connection
from streamclient.worker.lease.lease_manager import BYTES_PER_BATCH, RETRIES_AT_MOST, ROW_OVERHEAD_BYTES, LeaseManager
from streamclient.worker.lease.lease_rows import KEY_SCHEMA, row_item
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.status_connection import for_lease_calls, write_timeout_seconds
from tests.patience import PATIENCE_SECONDS

LEASE = Lease("s1", STREAM, owner="a", counter=7, parent_shard_ids={"p"})
CELLS = {"LeaseCounter": 7, "LeaseOwner": "a", "LeaseStealer": "", "Checkpoint": "x", "ParentShardIds": "p\n"}


# --- the table ---------------------------------------------------------------------------------------------------


def test_the_table_is_created_as_the_java_client_does(client: OTSClient) -> None:
    manager = LeaseManager(client, TABLE, STREAM)

    assert manager.create_lease_table_if_not_exists() is True
    assert manager.create_lease_table_if_not_exists() is False
    assert manager.wait_until_lease_table_ready() is True
    described = client.describe_table(TABLE)
    assert tuple(tuple(column[:2]) for column in described.table_meta.schema_of_primary_key) == KEY_SCHEMA
    assert (described.table_options.time_to_live, described.table_options.max_version) == (-1, 1)


def create_table(client: OTSClient, schema: list[tuple[str, str]], options: TableOptions) -> None:
    client.create_table(TableMeta(TABLE, schema), options, ReservedThroughput(CapacityUnit(0, 0)))


@pytest.mark.parametrize(
    ("schema", "options", "complaint"),
    [
        ([("id", "INTEGER")], TableOptions(), "primary key is id INTEGER, expected StreamId STRING"),
        ([*KEY_SCHEMA[:2]], TableOptions(), "primary key"),
        ([KEY_SCHEMA[1], KEY_SCHEMA[0], KEY_SCHEMA[2]], TableOptions(), "primary key"),
        (list(KEY_SCHEMA), TableOptions(time_to_live=86_400), "forgets rows after 86400 s"),
        (list(KEY_SCHEMA), TableOptions(allow_update=False), "forbids UpdateRow"),
    ],
)
def test_a_table_that_cannot_hold_leases_is_rejected_at_start(
    client: OTSClient, schema: list[tuple[str, str]], options: TableOptions, complaint: str
) -> None:
    create_table(client, schema, options)
    with pytest.raises(ConfigurationError, match=complaint):
        LeaseManager(client, TABLE, STREAM).create_lease_table_if_not_exists()


def test_more_versions_are_only_logged(client: OTSClient, caplog: pytest.LogCaptureFixture) -> None:
    create_table(client, list(KEY_SCHEMA), TableOptions(max_version=3))
    assert LeaseManager(client, TABLE, STREAM).create_lease_table_if_not_exists() is False
    assert "keeps 3 versions" in caplog.text


def test_a_table_created_by_another_worker_meanwhile_is_fine(
    client: OTSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LeaseManager(client, TABLE, STREAM)
    table = manager._table
    look = type(table.client).describe_table
    answers = [OTSServiceError(404, "OTSObjectNotExist", "Requested table does not exist.")]

    def describe(name: str) -> Any:
        if answers:
            LeaseManager(client, TABLE, STREAM).create_lease_table_if_not_exists()
            raise answers.pop()
        return look(table.client, name)

    monkeypatch.setattr(table.client, "describe_table", describe)

    assert manager.create_lease_table_if_not_exists() is False


def test_a_table_that_may_not_be_described_is_used_unchecked(
    server: LocalTablestore, manager: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    server.add_fault(FaultRule("DescribeTable", Fail("OTSNoPermissionAccess", http_status=403)))
    assert manager.create_lease_table_if_not_exists() is False
    assert "unchecked" in caplog.text


def test_set_up_is_retried_through_passing_trouble(server: LocalTablestore, client: OTSClient) -> None:
    """The answer to CreateTable is lost: the table exists then, and that is found out."""
    server.add_fault(FaultRule("DescribeTable", Fail("OTSServerBusy"), times=2))
    server.add_fault(FaultRule("CreateTable", LoseAnswer(), times=1))
    pauses = Pauses()
    LeaseManager(client, TABLE, STREAM, sleep=pauses).create_lease_table_if_not_exists()

    assert pauses == [0.1, 0.2, 0.3]
    assert TABLE in client.list_table()


def test_waiting_for_the_table_ends_after_the_configured_time(server: LocalTablestore, client: OTSClient) -> None:
    pauses = Pauses()
    config = ClientConfig(max_wait_table_ready_time_millis=1_000, check_table_ready_interval_millis=100)
    manager = LeaseManager(client, TABLE, STREAM, config, clock=pauses.now, sleep=pauses)
    manager.create_lease_table_if_not_exists()
    server.add_fault(FaultRule("GetRow", Fail("OTSTableNotReady")))

    assert manager.wait_until_lease_table_ready() is False
    assert 1.0 <= pauses.now() < 1.2
    server.clear_faults()
    server.add_fault(FaultRule("GetRow", Fail("OTSTableNotReady"), times=3))
    assert manager.wait_until_lease_table_ready() is True


@pytest.mark.parametrize("action", [Fail("OTSTableNotReady"), Fail("OTSServerBusy"), Cut()], ids=str)
def test_a_table_that_is_waited_for_is_named_meanwhile(
    server: LocalTablestore, client: OTSClient, caplog: pytest.LogCaptureFixture, action: FaultAction
) -> None:
    """Not at once, as a new table is not ready at once; and long before the wait is over."""
    pauses = Pauses()
    name = f"waited_for_{type(action).__name__}_{getattr(action, 'code', '')}"  # outages are told apart by the table
    manager = LeaseManager(client, name, STREAM, clock=pauses.now, sleep=pauses)
    manager.create_lease_table_if_not_exists()
    server.add_fault(FaultRule("GetRow", action))
    caplog.clear()

    assert manager.wait_until_lease_table_ready() is False
    early, late = (
        record.getMessage() for record in caplog.records if record.name == "streamclient.tablestore.own_table"
    )
    assert early.startswith(f"status table {name} does not answer reads yet; waiting for it up to 120 s: ")
    assert late.startswith(f"status table {name} was not ready after 120000 ms: ")
    assert str(manager.table_problem).partition(":")[0] in early


def test_a_table_that_is_ready_soon_is_not_named(
    server: LocalTablestore, client: OTSClient, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = Pauses()
    manager = LeaseManager(client, "ready_soon", STREAM, clock=pauses.now, sleep=pauses)
    manager.create_lease_table_if_not_exists()
    server.add_fault(FaultRule("GetRow", Fail("OTSTableNotReady"), times=3))
    caplog.clear()

    assert manager.wait_until_lease_table_ready() is True
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("answer", ["given", "lost"])
def test_a_table_of_our_own_may_be_unknown_for_a_minute(
    server: LocalTablestore, client: OTSClient, answer: str
) -> None:
    pauses = Pauses()
    manager = LeaseManager(client, "just_made", STREAM, clock=pauses.now, sleep=pauses)
    if answer == "lost":
        server.add_fault(FaultRule("CreateTable", LoseAnswer(), times=1))
    manager.create_lease_table_if_not_exists()
    server.clear_faults()
    server.add_fault(FaultRule("GetRow", Fail("OTSObjectNotExist"), times=3))
    assert manager.wait_until_lease_table_ready() is True

    server.add_fault(FaultRule("GetRow", Fail("OTSObjectNotExist")))
    began = pauses.now()
    with pytest.raises(DependencyException, match="OTSObjectNotExist"):
        manager.wait_until_lease_table_ready()
    assert 55 < pauses.now() - began <= 60


def test_waiting_for_a_table_that_does_not_exist_raises(client: OTSClient) -> None:
    with pytest.raises(DependencyException, match="OTSObjectNotExist"):
        LeaseManager(client, TABLE, STREAM).wait_until_lease_table_ready()


# --- rows --------------------------------------------------------------------------------------------------------


def test_a_row_written_by_java_is_a_lease(manager: LeaseManager, client: OTSClient) -> None:
    put_row(client, {**CELLS, "ParentShardIds": "p2\np1\n"})
    assert manager.get_lease("s1") == evolve(LEASE, checkpoint="x", parent_shard_ids={"p1", "p2"})


def test_rows_of_other_types_and_streams_are_not_listed(manager: LeaseManager, client: OTSClient) -> None:
    put_row(client, CELLS, key="0000000000000001\tshard", status_type="CheckpointForDataxReader")
    LeaseManager(client, TABLE, "stream-2").create_lease(evolve(LEASE, stream_id="stream-2"))
    manager.create_lease(LEASE)

    assert list(manager.list_leases()) == [LEASE]


def test_a_malformed_row_does_not_fail_the_scan(
    manager: LeaseManager, client: OTSClient, caplog: pytest.LogCaptureFixture
) -> None:
    """One such row stops every Java worker; here it is left out, and named once."""
    manager.create_lease(LEASE)
    put_row(client, {**CELLS, "LeaseCounter": "7"}, key="s0")

    assert list(manager.list_leases()) == [LEASE]
    assert list(manager.list_leases()) == [LEASE]
    assert manager.get_lease("s0") is None
    assert caplog.text.count("LeaseCounter") == 1
    assert manager.create_lease(evolve(LEASE, lease_key="s0")) is False
    assert stored_cells(client, "s0")["LeaseCounter"] == "7"


def test_a_row_that_breaks_again_is_named_again(
    manager: LeaseManager, client: OTSClient, caplog: pytest.LogCaptureFixture
) -> None:
    for counter in ("7", 7, "8"):
        put_row(client, {**CELLS, "LeaseCounter": counter})
        manager.list_leases()

    assert caplog.text.count("LeaseCounter") == 2


def test_columns_of_our_own_that_cannot_be_read_are_named_once_and_the_lease_is_listed(
    manager: LeaseManager, client: OTSClient, caplog: pytest.LogCaptureFixture
) -> None:
    put_row(client, {**CELLS, "Pause": "until noon", "ProgressRecords": "many"})
    with caplog.at_level(logging.WARNING):
        leases = [manager.list_leases(), manager.list_leases()]

    assert leases[0] == leases[1] == [evolve(LEASE, checkpoint="x")]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "row s1 of status table status has columns of streamclient that cannot be read" in warning
    assert "column Pause holds 'until noon'" in warning
    assert "column ProgressMicros is missing" in warning


def test_a_full_row_of_our_own_columns_comes_back_as_it_was(manager: LeaseManager) -> None:
    """The longest state that a worker accepts, and every other column of ours."""
    pending = PendingCheckpoint("next", bytes(range(256)) * 256, 2**40, 2**50)
    lease = evolve(
        LEASE,
        pending=pending,
        pause=Pause("r1", "änn@host", "line\nfeed", 2**51),
        pause_taken="r1 a",
        progress=Progress(2**50, 2**40, 2**45),
    )
    assert manager.create_lease(lease)
    assert manager.get_lease("s1") == lease
    assert manager.update_lease(lease, "next")

    assert manager.get_lease("s1") == evolve(lease, counter=8, checkpoint="next", pending=None)


def test_a_java_owners_checkpoint_voids_what_was_prepared(manager: LeaseManager, client: OTSClient) -> None:
    """It moves Checkpoint and LeaseCounter, and leaves our columns."""
    lease = evolve(LEASE, checkpoint="x", pending=PendingCheckpoint("y", b"tx", 3, 1))
    manager.create_lease(lease)
    changes = {"PUT": [("LeaseCounter", 8), ("Checkpoint", "z")]}
    client.update_row(TABLE, Row(key_of(), changes), ANY_STATE)

    assert manager.get_lease("s1") == evolve(lease, counter=8, checkpoint="z", pending=None)


def test_a_remnant_is_invisible_and_create_replaces_it(manager: LeaseManager, client: OTSClient) -> None:
    put_row(client, {"LeaseCounter": 12})

    assert list(manager.list_leases()) == []
    assert manager.renew_lease(LEASE) is False
    assert manager.create_lease(LEASE) is True
    assert manager.get_lease("s1") == LEASE


def test_a_remnant_that_became_a_lease_meanwhile_is_not_replaced(manager: LeaseManager, client: OTSClient) -> None:
    put_row(client, {"LeaseCounter": 12})
    manager.list_leases()
    put_row(client, CELLS)

    assert manager.create_lease(LEASE) is False
    assert stored_cells(client) == CELLS


@pytest.mark.parametrize("look", [lambda manager: manager.list_leases(), lambda manager: manager.get_lease("s1")])
def test_a_remnant_that_vanished_is_created_once_that_is_seen(
    manager: LeaseManager, client: OTSClient, look: Callable[[LeaseManager], object]
) -> None:
    put_row(client, {"LeaseCounter": 12})
    look(manager)
    client.delete_row(TABLE, Row(key_of()), ANY_STATE)

    assert manager.create_lease(LEASE) is False
    look(manager)
    assert manager.create_lease(LEASE) is True


def test_columns_of_others_survive_every_update(manager: LeaseManager, client: OTSClient) -> None:
    put_row(client, {**CELLS, "Load": 5})
    lease = manager.get_lease("s1")
    assert lease is not None

    assert manager.renew_lease(lease)
    assert manager.update_lease(evolve(lease, counter=8), "y")
    assert stored_cells(client) == {**CELLS, "Load": 5, "LeaseCounter": 9, "Checkpoint": "y"}


def test_cells_are_stamped_by_the_service(manager: LeaseManager, server: LocalTablestore, client: OTSClient) -> None:
    manager.create_lease(LEASE)
    server.advance_clock(3600)
    manager.renew_lease(LEASE)
    _, row, _ = client.get_row(TABLE, key_of())
    stamps = {name: stamp for name, _, stamp in row.attribute_columns}

    assert stamps["LeaseCounter"] - stamps["LeaseOwner"] >= 3_600_000


# --- calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "counter"),
    [
        (Fail("OTSTimeout"), ErrorKind.AMBIGUOUS, 7),
        (Fail("OTSServerBusy"), ErrorKind.THROTTLED, 7),
        (Fail("OTSRowOperationConflict"), ErrorKind.TRANSIENT, 7),
        (Cut(), ErrorKind.AMBIGUOUS, 7),
        (LoseAnswer(), ErrorKind.AMBIGUOUS, 8),
    ],
)
def test_a_write_without_a_clear_answer_is_sent_once_and_uncertain(
    server: LocalTablestore, manager: LeaseManager, fault: FaultAction, kind: ErrorKind, counter: int
) -> None:
    """It may be applied or not; only the row can tell."""
    manager.create_lease(LEASE)
    server.add_fault(FaultRule("BatchWriteRow", fault, times=1))
    server.reset_requests()
    (answer,) = manager.write_many([rule.renew(LEASE)])

    assert answer.outcome is WriteOutcome.UNCERTAIN
    assert isinstance(answer.error, DependencyException)
    assert answer.error.kind is kind
    assert answer.error.__cause__ is not None
    assert requests(server, "BatchWriteRow") == 1
    assert manager.get_lease("s1") == evolve(LEASE, counter=counter)


@pytest.mark.slow
def test_a_write_is_given_up_after_its_time(server: LocalTablestore, manager: LeaseManager) -> None:
    short = ClientConfig(lease_duration_millis=600, renewer_interval_millis=100, taker_interval_millis=100)
    impatient = LeaseManager(server.client(), TABLE, STREAM, short)
    manager.create_lease(LEASE)
    server.add_fault(FaultRule("BatchWriteRow", LateAnswer(PATIENCE_SECONDS), times=1))
    (answer,) = impatient.write_many([rule.renew(LEASE)])

    assert answer.outcome is WriteOutcome.UNCERTAIN
    assert "timed out" in str(answer.error)


def test_a_verb_raises_what_made_its_write_uncertain(server: LocalTablestore, manager: LeaseManager) -> None:
    server.add_fault(FaultRule("BatchWriteRow", Cut()))

    with pytest.raises(DependencyException) as caught:
        manager.renew_lease(LEASE)
    assert caught.value.kind is ErrorKind.AMBIGUOUS


def test_an_error_of_one_row_leaves_the_others_their_answers(server: LocalTablestore, manager: LeaseManager) -> None:
    leases = [evolve(LEASE, lease_key=f"s{number}") for number in range(3)]
    manager.write_many([rule.create(lease) for lease in leases])
    server.add_fault(FaultRule("BatchWriteRow", FailRows(rows=(1,), code="OTSServerBusy")))
    first, second, third = manager.write_many([rule.renew(lease) for lease in leases])

    assert first == third == WriteAnswer(WriteOutcome.ACCEPTED)
    assert second.outcome is WriteOutcome.UNCERTAIN
    assert isinstance(second.error, DependencyException)
    assert second.error.kind is ErrorKind.THROTTLED
    assert [lease.counter for lease in manager.list_leases()] == [8, 7, 8]


def test_a_row_that_the_answer_lacks_is_uncertain(manager: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.create_lease(LEASE)
    send = manager._client.batch_write_row

    def short(request: BatchWriteRowRequest) -> Any:
        response = send(request)
        response.table_of_update[TABLE].clear()
        return response

    monkeypatch.setattr(manager._client, "batch_write_row", short)
    (answer,) = manager.write_many([rule.renew(LEASE)])

    assert answer.outcome is WriteOutcome.UNCERTAIN
    assert "lacks this row" in str(answer.error)


@pytest.mark.parametrize("fault", [Fail("OTSServerUnavailable"), Fail("OTSServerBusy"), Cut()])
def test_reads_are_retried(server: LocalTablestore, manager: LeaseManager, pauses: Pauses, fault: FaultAction) -> None:
    manager.create_lease(LEASE)
    server.add_fault(FaultRule("Get*", fault, times=2))
    assert list(manager.list_leases()) == [LEASE]
    assert pauses == [0.1, 0.2]

    server.add_fault(FaultRule("Get*", fault, times=1))
    assert manager.get_lease("s1") == LEASE
    assert pauses == [0.1, 0.2, 0.1]


def test_reads_are_retried_as_the_strategy_says(server: LocalTablestore, manager: LeaseManager) -> None:
    class Twice(IRetryStrategy):
        def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
            return action is RetryableAction.LEASE_ACTION_LIST_LEASES and retries < 2

        def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
            return 1_000 + retries

    pauses = Pauses()
    config = ClientConfig(lease_manager_retry_strategy=Twice())
    strict = LeaseManager(server.client(), TABLE, STREAM, config, sleep=pauses)
    server.add_fault(FaultRule("Get*", Fail("OTSServerBusy")))

    with pytest.raises(DependencyException, match="OTSServerBusy"):
        strict.list_leases()
    assert pauses == [1.0, 1.001]
    with pytest.raises(DependencyException, match="OTSServerBusy"):
        strict.get_lease("s1")
    assert len(pauses) == 2


def test_a_strategy_that_never_says_no_ends_too(server: LocalTablestore, manager: LeaseManager) -> None:
    class Endless(LeaseRetryStrategy):
        def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
            return True

    pauses = Pauses()
    config = ClientConfig(lease_manager_retry_strategy=Endless())
    stubborn = LeaseManager(server.client(), TABLE, STREAM, config, sleep=pauses)
    server.add_fault(FaultRule("GetRow", Fail("OTSServerBusy")))

    with pytest.raises(DependencyException, match="OTSServerBusy"):
        stubborn.get_lease("s1")
    assert len(pauses) == RETRIES_AT_MOST


def test_a_read_that_can_never_succeed_is_not_retried(
    server: LocalTablestore, manager: LeaseManager, pauses: Pauses
) -> None:
    server.add_fault(FaultRule("GetRow", Fail("OTSNoPermissionAccess", http_status=403)))

    with pytest.raises(DependencyException, match="OTSNoPermissionAccess") as caught:
        manager.get_lease("s1")
    assert caught.value.kind is ErrorKind.PERMANENT
    assert isinstance(caught.value.__cause__, OTSServiceError)
    assert pauses == []


def test_a_scan_that_never_ends_is_an_error(manager: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamclient.tablestore.ranges.MOST_PAGES", 3)
    keys = (key_of("s" * n) for n in count(1))
    monkeypatch.setattr(manager._client, "get_range", lambda *_, **__: (None, next(keys), [], None))

    with pytest.raises(StreamClientException, match="did not end after 3 pages"):
        manager.list_leases()


def test_a_scan_reads_every_page(manager: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [evolve(LEASE, lease_key=f"s{number}") for number in range(5)]
    manager.write_many([rule.create(lease) for lease in leases])
    read = manager._client.get_range
    pages: list[int] = []

    def two_rows(*arguments: Any, **options: Any) -> Any:
        answer = read(*arguments, **{**options, "limit": 2})
        pages.append(len(answer[2]))
        return answer

    monkeypatch.setattr(manager._client, "get_range", two_rows)

    assert list(manager.list_leases()) == leases
    assert sum(pages) == 5
    assert len(pages) >= 3


@pytest.mark.slow
def test_many_writes_go_out_in_batches_of_two_hundred(server: LocalTablestore, manager: LeaseManager) -> None:
    leases = [evolve(LEASE, lease_key=f"s{number:04}") for number in range(450)]
    server.reset_requests()
    answers = manager.write_many([rule.create(lease) for lease in leases])

    assert {answer.outcome for answer in answers} == {WriteOutcome.ACCEPTED}
    assert requests(server, "BatchWriteRow") == 3
    assert list(manager.list_leases()) == leases


def test_writes_to_one_row_follow_each_other(manager: LeaseManager) -> None:
    """The service refuses a batch that names a row twice with conditions."""
    writes = [rule.create(LEASE), rule.renew(LEASE), rule.renew(LEASE), rule.renew(evolve(LEASE, counter=8))]
    outcomes = [answer.outcome for answer in manager.write_many(writes)]

    accepted, refused = WriteOutcome.ACCEPTED, WriteOutcome.REFUSED
    assert outcomes == [accepted, accepted, refused, accepted]


@pytest.mark.slow
def test_large_rows_go_out_in_smaller_batches(server: LocalTablestore, manager: LeaseManager) -> None:
    server.reset_requests()
    large = "x" * (BYTES_PER_BATCH // 3)
    leases = [evolve(LEASE, lease_key=f"s{number}", checkpoint=large) for number in range(5)]
    answers = manager.write_many([rule.create(lease) for lease in leases])

    assert {answer.outcome for answer in answers} == {WriteOutcome.ACCEPTED}
    assert requests(server, "BatchWriteRow") == 3


def test_the_overhead_of_a_row_is_as_bounded(manager: LeaseManager) -> None:
    """The bound holds for every kind of write, so a batch stays below what the service takes."""
    lease = evolve(LEASE, stealer="b")
    kinds = [rule.create(lease), rule.renew(lease), rule.take(lease, "c", checkpoint="z"), rule.delete(lease)]
    for write in [*kinds, rule.transfer(lease, "c"), rule.checkpoint(lease, "z"), rule.steal(lease, "c")]:
        request = BatchWriteRowRequest()
        request.add(TableInBatchWriteRowItem(TABLE, [row_item(write)] * 10))
        body = manager._client.protocol.encoder.encode_request("BatchWriteRow", request).SerializeToString()

        assert len(body) / 10 < ROW_OVERHEAD_BYTES


def test_an_invalid_write_is_not_sent(server: LocalTablestore, manager: LeaseManager) -> None:
    server.reset_requests()

    with pytest.raises(ConfigurationError, match="belongs to stream 'other'"):
        manager.create_lease(evolve(LEASE, stream_id="other"))
    assert requests(server, "BatchWriteRow") == 0


# --- the client --------------------------------------------------------------------------------------------------


def test_the_users_client_is_left_as_it_is(client: OTSClient) -> None:
    before = copy(vars(client))
    LeaseManager(client, TABLE, STREAM).create_lease_table_if_not_exists()
    assert vars(client) == before


def test_a_call_lasts_at_most_a_third_of_the_lease(client: OTSClient) -> None:
    own = for_lease_calls(client, ClientConfig())

    assert own.socket_timeout == write_timeout_seconds(ClientConfig()) == pytest.approx(6.667, abs=0.001)
    assert own.connection is not client.connection
    assert (
        write_timeout_seconds(
            ClientConfig(lease_duration_millis=300, renewer_interval_millis=50, taker_interval_millis=50)
        )
        == 1.0
    )


def test_a_shorter_timeout_of_the_user_is_kept(server: LocalTablestore) -> None:
    assert for_lease_calls(server.client(socket_timeout=2), ClientConfig()).socket_timeout == 2.0


def test_a_connection_of_the_users_own_making_is_kept(client: OTSClient) -> None:
    class Recorded(type(client.connection)):  # type: ignore[misc]
        pass

    client.connection = Recorded(client.host, client.path, timeout=1)

    assert for_lease_calls(client, ClientConfig()).connection is client.connection


@pytest.mark.parametrize("is_of_a_command", [False, True])
def test_an_outage_is_one_try_and_no_line_of_the_sdk_or_its_pool(
    is_of_a_command: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK's pool tries a refused connection four times, and logs each; an outage has thousands of calls."""
    with LocalTablestore() as gone:
        client, quiet = gone.client(), Connection(endpoint=gone.endpoint).quiet_client()
    own = quiet if is_of_a_command else for_lease_calls(client, ClientConfig())

    with caplog.at_level(logging.DEBUG), pytest.raises(NewConnectionError):
        own.describe_table(TABLE)
    assert caplog.messages == []


@pytest.mark.parametrize("bad", [None, "client", object()])
def test_only_the_synchronous_client_is_accepted(bad: object) -> None:
    with pytest.raises(ConfigurationError, match=r"tablestore\.OTSClient"):
        LeaseManager(bad, TABLE, STREAM)


def test_the_asynchronous_client_is_rejected_by_name(server: LocalTablestore) -> None:
    asynchronous = AsyncOTSClient(server.endpoint, "id", "secret", "instance")
    with pytest.raises(ConfigurationError, match="AsyncOTSClient"):
        LeaseManager(asynchronous, TABLE, STREAM)


@pytest.mark.parametrize(("table", "stream"), [("", STREAM), (None, STREAM), (TABLE, ""), (TABLE, 5)])
def test_names_are_checked_at_once(client: OTSClient, table: Any, stream: Any) -> None:
    with pytest.raises(ConfigurationError):
        LeaseManager(client, table, stream)


def test_a_put_of_the_sdk_shows_what_the_table_holds(manager: LeaseManager, client: OTSClient) -> None:
    """The row that create stores, cell by cell, as any other reader sees it."""
    manager.create_lease(evolve(LEASE, checkpoint="x"))

    assert stored_cells(client) == CELLS
    request = BatchWriteRowRequest()
    row = Row(key_of("s2"), list(CELLS.items()))
    request.add(TableInBatchWriteRowItem(TABLE, [PutRowItem(row, ANY_STATE)]))
    client.batch_write_row(request)
    assert manager.get_lease("s2") == evolve(LEASE, lease_key="s2", checkpoint="x")


def test_nothing_is_logged_while_all_is_well(manager: LeaseManager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="streamclient")
    manager.create_lease(LEASE)
    manager.create_lease(LEASE)
    manager.list_leases()

    assert caplog.text == ""
