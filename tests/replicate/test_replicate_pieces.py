"""The pieces of a table: shared by processes, taken over after a kill, and read as earlier versions left them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tablestore import OTSClient, Row, TableOptions

from streamclient.copying import copied_stream
from streamclient.copying.copied_stream import MOST_PIECES, PLAN_STATUS_TYPE, CopiedStream
from streamclient.copying.differences import compare_tables, scan
from streamclient.copying.replication import Replication, ReplicationOutcome
from streamclient.copying.replication_settings import parse_settings
from streamclient.copying.source_table import CopyPlan, SourceTable
from streamclient.copying.table_writer import DestinationWriter, changes_of
from streamclient.errors import ShutdownException, StreamClientException
from streamclient.model import Lease
from streamclient.records import RecordType, StreamRecord
from streamclient.server import Fail, FailRows, FaultRule, LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.testing.fleet import Fleet
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import key_of
from tests.drill_kit import put
from tests.patience import PATIENCE_SECONDS, until
from tests.replicate.drill import DESTINATION, SOURCE, configuration, make_source, start
from tests.stage import IGNORE, STREAM, write

STATUS = "copy_status"
END = "2020-01-01 00:00:00"


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        yield running


def stream_of(local: LocalTablestore) -> str:
    return TablestoreStreamApi(local.client()).list_stream(SOURCE)[0].stream_id


def switch_off_and_on(client: OTSClient, table: str) -> None:
    for switch in (StreamSpecification(False), STREAM):
        TablestoreStreamApi(client).update_table(table, TableOptions(), stream=switch)


def pieces_of(local: LocalTablestore) -> list[Lease]:
    """Leases of the pieces; none while there is no status table."""
    if STATUS not in local.client().list_table():
        return []
    leases = LeaseManager(local.client(), STATUS, stream_of(local)).list_leases()
    return [lease for lease in leases if lease.lease_key.startswith("copy/")]


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_share_the_pieces_and_one_takes_over_those_of_another_that_was_killed(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination, Fleet(tmp_path) as fleet:
        make_source(source.client(), 0)
        write(source.client(), SOURCE, [put(key, ("value", "x" * 4_000)) for key in range(2_000)])
        reader = {"source": "stream", "statusTableName": STATUS, "pieceMebibytes": 1, "endTime": END}
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, **reader)))
        # Two pages are read. Then reads fail until the processes have shared the other pieces.
        source.add_fault(FaultRule("GetRange", Fail("OTSServerBusy"), table=SOURCE, after=2))
        killed = start(fleet, config, "killed")
        until(lambda: sum(lease.is_finished for lease in pieces_of(source)) == 2, "the pages that are read")
        other = start(fleet, config, "other", "--json")
        until(lambda: len({lease.owner for lease in pieces_of(source) if not lease.is_finished}) == 2, "both share")
        before = len(list(scan(destination.client(), DESTINATION, 1)))
        assert before > 0
        killed.kill()
        source.clear_faults()
        assert other.wait(PATIENCE_SECONDS) == 0, other.log.read_text()
        told = json.loads(other.log.read_text().splitlines()[-1])
        differences = list(compare_tables(source.client(), SOURCE, destination.client(), DESTINATION))

    assert differences == []
    assert told == {"complete": True, "rows": 2_000 - before, "refused_rows": 0, "error": None}


# --- rows that earlier versions kept ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("done", "following", "copied"), [(0, "[3]", [3, 4, 5]), (0, "", [*range(6)]), (1, "", [])])
def test_a_copy_that_an_earlier_version_began_goes_on(
    done: int, following: str, copied: list[int], local: LocalTablestore
) -> None:
    make_source(local.client(), 6)
    LeaseManager(local.client(), STATUS, stream_of(local)).create_lease_table_if_not_exists()
    put_plan(local, ("StartMicros", 1_700_000_000_000_000), ("Rows", 3), ("Done", done), ("Next", following))
    outcome = replicated(local)

    assert (outcome.is_complete, outcome.rows, outcome.error) == (True, len(copied), None)
    assert [key for (key,), _ in scan(local.client(), DESTINATION, 1)] == copied


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_a_stream_that_was_replaced_between_two_runs_is_refused_before_any_row(
    is_of_earlier_version: bool, local: LocalTablestore
) -> None:
    """Its rows would be copied again, and those that were deleted meanwhile would stay in the destination."""
    client = local.client()
    make_source(client, 6)
    followed = stream_of(local)
    if is_of_earlier_version:
        LeaseManager(client, STATUS, followed).create_lease_table_if_not_exists()
        put_plan(local, ("StartMicros", 1_700_000_000_000_000), ("Rows", 6), ("Done", 1), ("Next", ""))
    else:
        assert replicated(local).rows == 6
    switch_off_and_on(client, SOURCE)
    client.put_row(SOURCE, Row([("id", 7)], []), IGNORE)
    sentence = rf"'{STATUS}' follows stream {followed}, and .*; begin again, with another status table and an empty"
    for _ in range(2):
        with pytest.raises(StreamClientException, match=sentence):
            replicated(local)
    assert 7 not in [key for (key,), _ in scan(client, DESTINATION, 1)]

    client.delete_table(DESTINATION)
    assert replicated(local, "other_status").rows == 7


def test_the_plan_of_another_table_in_the_same_status_table_is_no_former_plan(local: LocalTablestore) -> None:
    make_source(local.client(), 6)
    LeaseManager(local.client(), STATUS, "any").create_lease_table_if_not_exists()
    for table, status_type in (("others", PLAN_STATUS_TYPE), (SOURCE, "Audit")):
        row = Row(key_of("others_1", table, status_type), [("Plan", CopyPlan(1).to_text())])
        local.client().put_row(STATUS, row, IGNORE)

    assert replicated(local).rows == 6


def put_plan(local: LocalTablestore, *columns: tuple[str, object]) -> None:
    key = key_of(stream_of(local), SOURCE, PLAN_STATUS_TYPE)
    local.client().put_row(STATUS, Row(key, list(columns)), IGNORE)


def replicated(local: LocalTablestore, status: str = STATUS) -> ReplicationOutcome:
    reader = {"source": "stream", "statusTableName": status, "endTime": END}
    settings = parse_settings(configuration(local, local, **reader), {})
    return Replication(settings, print, print, poll_seconds=0.05).run()


# --- the stream with the copy before it -------------------------------------------------------------------------------


def pieces(local: LocalTablestore, *points: int) -> CopiedStream:
    plan = CopyPlan(1, tuple(f"[{point}]" for point in points))
    return CopiedStream(SourceTable(local.client(), SOURCE), plan, plan.pieces)


def read(stream: CopiedStream, shard: str, limit: int) -> list[Any]:
    position, keys = stream.get_shard_iterator("any", shard, 5), []
    while True:
        page = stream.get_stream_record(position, limit)
        assert len(page.records) <= limit
        keys += [record.key["id"] for record in page.records]
        if page.next_position.is_shard_end:
            return keys
        position = page.next_position.text


def test_the_pieces_have_every_row_once_and_come_before_the_first_shards(local: LocalTablestore) -> None:
    make_source(local.client(), 10)
    parent = local.shards(SOURCE)[0].shard_id
    children = local.split(SOURCE)
    stream = pieces(local, 3, 7)
    listed = {shard.shard_id: shard.parent_shard_ids for shard in stream.describe_stream(stream_of(local)).shards}

    assert [read(stream, f"copy/{number}", 2) for number in range(3)] == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]
    assert listed[parent] == {"copy/0", "copy/1", "copy/2"}
    assert {listed[child] for child in children} == {frozenset({parent})}
    assert all(not listed[name] for name in listed[parent])


def test_of_processes_that_plan_at_once_all_follow_one_plan(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(local.client(), 1)
    LeaseManager(local.client(), STATUS, stream_of(local)).create_lease_table_if_not_exists()
    first, second = CopyPlan(1, ("[1]",)), CopyPlan(2)

    def plan(source: SourceTable, size: int, most: int) -> CopyPlan:
        put_plan(local, ("Plan", first.to_text()))  # meanwhile, by another process
        return second

    monkeypatch.setattr(SourceTable, "new_plan", plan)
    streams = [CopiedStream.of(SourceTable(local.client(), SOURCE), STATUS, stream_of(local), 1) for _ in range(2)]

    assert [stream.plan for stream in streams] == [first, first]


def test_a_plan_that_another_process_stores_before_former_plans_are_sought_is_no_former_plan(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(local.client(), 1)
    LeaseManager(local.client(), STATUS, stream_of(local)).create_lease_table_if_not_exists()
    plan, require = CopyPlan(1, ("[1]",)), copied_stream._require_first_stream

    def late(source: SourceTable, status: str, stream: str) -> None:
        put_plan(local, ("Plan", plan.to_text()))
        require(source, status, stream)

    monkeypatch.setattr(copied_stream, "_require_first_stream", late)

    assert CopiedStream.of(SourceTable(local.client(), SOURCE), STATUS, stream_of(local), 1).plan == plan


@pytest.mark.parametrize("count", [0, 1, MOST_PIECES - 1, MOST_PIECES, 2 * MOST_PIECES, 1_000])
def test_a_large_table_has_larger_pieces_and_no_more_of_them(
    count: int, local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_source(local.client(), 0)
    monkeypatch.setattr(SourceTable, "split_points", lambda self, size: [(point,) for point in range(count)])
    found = SourceTable(local.client(), SOURCE).new_plan(1, MOST_PIECES).pieces

    assert MOST_PIECES / 2 < len(found) <= MOST_PIECES if count >= MOST_PIECES else len(found) == count + 1
    assert SourceTable(local.client(), SOURCE).new_plan(1).pieces.keys() >= found.keys()


# --- writing ----------------------------------------------------------------------------------------------------------


def destination_of(client: OTSClient, local: LocalTablestore) -> DestinationWriter:
    make_source(client, 0)
    return DestinationWriter(SignedCalls(local.client()), SOURCE, 200)


def deletions(count: int) -> list[Any]:
    return changes_of([StreamRecord(RecordType.DELETE, (("id", number),), ()) for number in range(count)])


def test_rows_of_a_lost_lease_are_not_written_again(local: LocalTablestore) -> None:
    """Its next owner may have followed later changes of the same rows."""
    writer, answers = destination_of(local.client(), local), iter([False, True])
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=1), times=2))
    with pytest.raises(ShutdownException, match="the lease was lost"):
        writer.write(deletions(1), lambda: next(answers))

    assert (writer.counts.requests, writer.counts.rows) == (1, 0)
    with pytest.raises(ShutdownException):
        writer.write(deletions(1), lambda: True)
    assert writer.counts.requests == 1


def test_a_destination_that_takes_no_rows_is_named_until_it_takes_some(local: LocalTablestore) -> None:
    writer, stop = destination_of(local.client(), local), threading.Event()
    times = [0.0]
    writer.clock, writer.stop = lambda: times[-1], stop
    local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy")))
    stop.set()
    for at in (10.0, 75.0):
        times.append(at)
        with pytest.raises(Exception, match="OTSServerBusy"):
            writer.write(deletions(1))
    assert writer.trouble(70.0) == ""
    assert writer.trouble(60.0).startswith("no rows were written for 65 s (")
    local.clear_faults()
    writer.write(deletions(1))
    assert writer.trouble(0.0) == ""
