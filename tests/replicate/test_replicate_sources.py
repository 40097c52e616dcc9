"""A source against a local Tablestore: what counts as complete, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from tablestore import Condition, Row, RowExistenceExpectation

from streamclient.base.position import Position
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_progress import CHANGES, FULL_DATA
from streamclient.copying.replication_settings import Settings, parse_settings
from streamclient.copying.replication_sources import StreamSource, TunnelSource
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter
from streamclient.errors import DependencyException
from streamclient.model import CheckpointPosition
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import RecordPage, TablestoreStreamApi
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tunnel import TunnelClient, TunnelServerUnavailableError, TunnelType
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import CHECKPOINT, COUNTER, OWNER, PARENTS, STEALER, format_parents, key_of
from streamclient.worker.lease.own_columns import PROGRESS_BYTES, PROGRESS_MICROS, PROGRESS_RECORDS
from tests.patience import until
from tests.replicate.drill import SOURCE, configuration, make_source
from tests.stage import make_table

END = "2020-01-01 00:00:00"


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        make_source(running.client(), 4)
        yield running


def settings_of(local: LocalTablestore, **reader: str) -> Settings:
    return parse_settings(configuration(local, local, endTime=END, **reader), {})


def processors_of(local: LocalTablestore) -> ReplicationProcessors:
    writer = DestinationWriter(SignedCalls(local.client()), "copy", 200)
    return ReplicationProcessors(writer, SourceTable(local.client(), SOURCE))


def put_lease(local: LocalTablestore, stream: str, shard: str, checkpoint: str, micros: int, *parents: str) -> None:
    columns = [
        (COUNTER, 1),
        (OWNER, ""),
        (STEALER, ""),
        (CHECKPOINT, checkpoint),
        (PARENTS, format_parents(parents)),
        (PROGRESS_MICROS, micros),
        (PROGRESS_RECORDS, 1),
        (PROGRESS_BYTES, 1),
    ]
    local.client().put_row("status", Row(key_of(stream, shard), columns), Condition(RowExistenceExpectation.IGNORE))


def source_of(local: LocalTablestore) -> StreamSource:
    settings = settings_of(local, source="stream", statusTableName="status")
    return StreamSource(local.client(), settings, processors_of(local))


def copied_source(local: LocalTablestore) -> tuple[StreamSource, str]:
    """A source whose table is copied, as its leases say, and the id of its stream."""
    source = source_of(local)
    source.prepare()
    assert source.state().stage == FULL_DATA
    stream = TablestoreStreamApi(local.client()).list_stream(SOURCE)[0].stream_id
    put_lease(local, stream, "copy/0", CheckpointPosition.SHARD_END, 0)
    assert source.state().stage == CHANGES
    return source, stream


def test_a_split_shard_whose_children_have_no_rows_yet_is_not_complete(local: LocalTablestore) -> None:
    """One child is read far past the end time; of the other one nothing is known yet."""
    parent = local.shards(SOURCE)[0].shard_id
    left, right = local.split(SOURCE)
    source, stream = copied_source(local)
    now = time.time_ns() // 1_000
    put_lease(local, stream, parent, CheckpointPosition.SHARD_END, 5)
    put_lease(local, stream, left, "somewhere", now, parent)

    assert not source.state().is_past
    put_lease(local, stream, right, "somewhere", now, parent)
    assert source.state().is_past


def test_how_far_a_stream_was_read_does_not_go_back(local: LocalTablestore) -> None:
    """A shard that is split has a newest record, and its children have none yet."""
    parent = local.shards(SOURCE)[0].shard_id
    source, stream = copied_source(local)
    put_lease(local, stream, parent, "somewhere", 77)
    before = source.state().consumed_micros
    children = local.split(SOURCE)
    put_lease(local, stream, parent, CheckpointPosition.SHARD_END, 77)
    for child in children:
        put_lease(local, stream, child, CheckpointPosition.TRIM_HORIZON, 0, parent)

    assert (before, source.state().consumed_micros) == (77, 77)


def test_an_idle_shard_that_another_process_reads_counts_by_what_is_left_in_it(local: LocalTablestore) -> None:
    source, stream = copied_source(local)
    api, (shard,) = TablestoreStreamApi(local.client()), local.shards(SOURCE)
    local.client().put_row(SOURCE, Row([("id", 1)], [("c", 1)]))
    iterator = api.get_shard_iterator(stream, shard.shard_id)
    put_lease(local, stream, shard.shard_id, iterator, 5)
    assert not source.state().is_past

    while (page := api.get_stream_record(iterator)).records:
        iterator = page.next_position.text
    end = source.settings.end_time_micros
    assert end is not None
    for newest in (end + 1, 5):
        put_lease(local, stream, shard.shard_id, iterator, newest)
        assert source.state().is_past, "within the margin of clocks it is asked, too"


@pytest.mark.parametrize("hint", [None, True])
@pytest.mark.parametrize("is_own", [True, False], ids=["own worker", "another process"])
def test_a_shard_that_the_service_skips_is_not_read_past_the_end_time(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, hint: bool | None, is_own: bool
) -> None:
    """The service may return empty pages, each with another iterator, before the records that wait."""
    make_table(local.client(), "copy", [("id", "INTEGER")])
    source, stream = copied_source(local)
    (shard,), read, skipped = local.shards(SOURCE), TablestoreStreamApi.get_stream_record, []
    is_open = threading.Event()

    def get_stream_record(api: TablestoreStreamApi, iterator: str, limit: int | None = None) -> RecordPage:
        at = iterator.partition("+")[0]
        if is_open.is_set():
            return read(api, at, limit)
        skipped.append(iterator)
        return RecordPage((), Position(f"{at}+{len(skipped)}"), hint)

    put_lease(local, stream, shard.shard_id, source._table.api.get_shard_iterator(stream, shard.shard_id), 5)
    monkeypatch.setattr(TablestoreStreamApi, "get_stream_record", get_stream_record)
    if is_own:
        source.start()
    try:
        for pages in (1, 80):
            until(lambda wanted=pages: source.state().is_past or len(skipped) >= wanted, "pages that skip")  # type: ignore[misc]
            assert not source.state().is_past
        is_open.set()
        if is_own:
            until(lambda: source.state().is_past, "the end of the shard's records")
    finally:
        source.stop()
    (lease,) = [each for each in source._leases.list_leases() if each.lease_key == shard.shard_id]  # type: ignore[union-attr]
    assert lease.progress is not None
    assert lease.progress.records == (5 if is_own else 1), "the four records of the table, after the one of the lease"


def test_a_status_table_that_does_not_answer_is_named_while_it_is_waited_for(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    hasty = partial(LeaseManager, clock=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("streamclient.copying.replication_sources.LeaseManager", hasty)
    settings = settings_of(local, source="stream", statusTableName="mute")
    local.add_fault(FaultRule("GetRow", Fail("OTSServerBusy")))

    with pytest.raises(DependencyException, match=r"status table 'mute' does not answer.*: OTSServerBusy") as raised:
        StreamSource(local.client(), settings, processors_of(local)).prepare()
    assert raised.value.retriable
    assert "status table mute does not answer reads yet" in caplog.text


def test_two_sources_of_one_machine_have_different_names(local: LocalTablestore) -> None:
    names = {source_of(local)._worker_name for _ in range(3)}

    assert len(names) == 3


@pytest.mark.parametrize("status", [503, 400])
def test_making_the_tunnel_is_tried_again_while_the_service_is_unavailable(local: LocalTablestore, status: int) -> None:
    pauses: list[float] = []
    trouble = Fail("OTSTunnelServerUnavailable", "try again", http_status=status)
    local.add_fault(FaultRule("tunnel/create", trouble, times=3))
    source = TunnelSource(local.client(), settings_of(local), processors_of(local), wait=pauses.append)

    assert source.prepare().startswith("made tunnel 'copy'")
    assert pauses == [0.5, 1.0, 2.0]


def test_a_tunnel_that_was_made_without_an_answer_is_used(local: LocalTablestore) -> None:
    settings = settings_of(local)
    source = TunnelSource(local.client(), settings, processors_of(local), wait=lambda pause: make())

    def make() -> None:
        TunnelClient(local.client()).create_tunnel(
            settings.reader.table_name, settings.tunnel_name, TunnelType.BASE_AND_STREAM
        )

    local.add_fault(FaultRule("tunnel/create", Fail("OTSTunnelServerUnavailable"), times=1))

    assert source.prepare().startswith("going on with tunnel 'copy'")


def test_a_service_that_stays_unavailable_is_named_in_the_end(local: LocalTablestore) -> None:
    pauses: list[float] = []
    local.add_fault(FaultRule("tunnel/create", Fail("OTSTunnelServerUnavailable")))
    source = TunnelSource(local.client(), settings_of(local), processors_of(local), wait=pauses.append)

    with pytest.raises(TunnelServerUnavailableError):
        source.prepare()
    assert sum(pauses) > 30


def test_a_tunnel_that_another_process_makes_at_the_same_time_is_used(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, used = (TunnelSource(local.client(), settings_of(local), processors_of(local)) for _ in range(2))
    assert made.prepare().startswith("made tunnel 'copy'")
    monkeypatch.setattr(TunnelClient, "list_tunnel", lambda self, table: ())

    assert used.prepare().startswith("going on with tunnel 'copy'")
    assert used.info == made.info
