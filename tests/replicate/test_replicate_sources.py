"""A source against a local Tablestore: what counts as complete, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from attrs import evolve
from tablestore import Condition, Row, RowExistenceExpectation

from streamclient.base.position import Position
from streamclient.copying import replication_sources
from streamclient.copying.differences import compare_tables, scan
from streamclient.copying.replication import Replication, ReplicationOutcome
from streamclient.copying.replication_end import ChannelEnds, EndingTunnelClient, is_storable
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
from streamclient.tunnel import ChannelType, TunnelClient, TunnelServerUnavailableError, TunnelType
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import CHECKPOINT, COUNTER, OWNER, PARENTS, STEALER, format_parents, key_of
from streamclient.worker.lease.own_columns import PROGRESS_BYTES, PROGRESS_MICROS, PROGRESS_RECORDS
from tests.patience import until
from tests.replicate.drill import DESTINATION, SOURCE, configuration, make_source
from tests.stage import make_table

END = "2020-01-01 00:00:00"


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        make_source(running.client(), 4)
        yield running


@pytest.fixture
def late_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present of runs is an hour later, so that the margin of clocks after an end time has passed."""
    monkeypatch.setattr(replication_sources, "now_micros", lambda: time.time_ns() // 1_000 + 3_600_000_000)


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


def copied_source(local: LocalTablestore, *, is_all_wanted: bool = False) -> tuple[StreamSource, str]:
    """A source whose table is copied, as its leases say, and the id of its stream.

    The end time is before all changes, or after all changes until now.
    """
    source = source_of(local)
    if is_all_wanted:
        source.settings = evolve(source.settings, end_time_micros=written_up_to(local))
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


@pytest.mark.usefixtures("late_present")
def test_an_idle_shard_that_another_process_reads_counts_by_what_is_left_in_it(local: LocalTablestore) -> None:
    local.client().put_row(SOURCE, Row([("id", 1)], [("c", 1)]))
    source, stream = copied_source(local, is_all_wanted=True)
    api, (shard,) = TablestoreStreamApi(local.client()), local.shards(SOURCE)
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


@pytest.mark.usefixtures("late_present")
@pytest.mark.parametrize("hint", [None, True])
@pytest.mark.parametrize("is_own", [True, False], ids=["own worker", "another process"])
def test_a_shard_that_the_service_skips_is_not_read_past_the_end_time(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, hint: bool | None, is_own: bool
) -> None:
    """The service may return empty pages, each with another iterator, before the records that wait."""
    make_table(local.client(), "copy", [("id", "INTEGER")])
    source, stream = copied_source(local, is_all_wanted=True)
    (shard,), read, skipped = local.shards(SOURCE), TablestoreStreamApi.get_stream_record, []
    is_open = threading.Event()

    def get_stream_record(api: TablestoreStreamApi, iterator: str, limit: int | None = None) -> RecordPage:
        at = iterator.partition("~")[0]  # no character of iterators, which are base64
        if is_open.is_set():
            return read(api, at, limit)
        skipped.append(iterator)
        return RecordPage((), Position(f"{at}~{len(skipped)}"), hint)

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


# --- an end time that is moved on ------------------------------------------------------------------------------------

READERS = {"stream": {"source": "stream", "statusTableName": "status"}, "tunnel": {}}


def run_until(local: LocalTablestore, source: str, end_micros: int) -> ReplicationOutcome:
    settings = evolve(settings_of(local, **READERS[source]), end_time_micros=end_micros)
    return Replication(settings, print, print, poll_seconds=0.05).run()


def write_rows(local: LocalTablestore, keys: range) -> int:
    """Put rows; return the time of the last one. The times of later records are later."""
    for key in keys:
        local.client().put_row(SOURCE, Row([("id", key)], [("value", key)]))
    local.advance_clock(1.0)
    return written_up_to(local)


def written_up_to(local: LocalTablestore) -> int:
    """The time of the newest record of the source's stream."""
    api, newest = TablestoreStreamApi(local.client()), 0
    stream = api.list_stream(SOURCE)[0].stream_id
    for shard in local.shards(SOURCE):
        page = api.get_stream_record(api.get_shard_iterator(stream, shard.shard_id))
        newest = max([newest, *(record.sequence_info.timestamp_micros for record in page.records)])
    return newest


def copied_keys(local: LocalTablestore) -> list[object]:
    return [key for (key,), _ in scan(local.client(), DESTINATION, 1)]


def differences(local: LocalTablestore) -> list[str]:
    return [str(each) for each in compare_tables(local.client(), SOURCE, local.client(), DESTINATION)]


@pytest.mark.usefixtures("late_present")
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("source", READERS)
def test_changes_after_the_end_time_are_copied_by_a_later_run(
    local: LocalTablestore, source: str, is_split: bool
) -> None:
    assert run_until(local, source, 1).is_complete
    end = write_rows(local, range(10, 15))
    write_rows(local, range(15, 20))
    if is_split:
        local.split(SOURCE)
    last = write_rows(local, range(20, 25))
    for _ in range(2):
        assert run_until(local, source, end).is_complete
        assert copied_keys(local) == [*range(4), *range(10, 15)]

    assert run_until(local, source, last).is_complete
    assert differences(local) == []


@pytest.mark.usefixtures("late_present")
def test_a_shard_that_another_process_has_copied_up_to_the_end_time_is_complete(local: LocalTablestore) -> None:
    source, stream = copied_source(local)
    api, (shard,) = TablestoreStreamApi(local.client()), local.shards(SOURCE)
    page = api.get_stream_record(api.get_shard_iterator(stream, shard.shard_id), 2)
    put_lease(local, stream, shard.shard_id, page.next_position.text, 5)

    assert source.state().is_past, "the next record is after the end time"


def test_a_page_of_a_tunnel_ends_at_the_end_time_and_is_no_position(local: LocalTablestore) -> None:
    tunnels, ends = TunnelClient(local.client()), ChannelEnds()
    tunnel = tunnels.create_tunnel(SOURCE, "any", TunnelType.STREAM)
    before = write_rows(local, range(3))
    write_rows(local, range(3))
    (channel,) = tunnels.describe_tunnel(SOURCE, "any").channels
    token = tunnels.get_checkpoint(tunnel, "client", channel.channel_id).token
    page = EndingTunnelClient(local.client(), before, ends).read_records(tunnel, "client", channel.channel_id, token)

    assert [record.key["id"] for record in page.records] == [0, 1, 2]
    assert (is_storable(token), is_storable(page.next_token), page.may_more_record) == (True, False, False)
    for end, at in ((before, page.next_token), (1, token)):
        following = EndingTunnelClient(local.client(), end, ends).read_records(tunnel, "client", channel.channel_id, at)
        assert (len(following.records), following.next_token, following.is_finished) == (0, at, False)
    assert ends.copied == frozenset()
    ends.written(channel.channel_id, page.next_token)
    assert ends.copied == {channel.channel_id}


def holders(source: TunnelSource) -> set[str]:
    channels = source._described().channels
    return {each.client_id for each in channels if each.channel_type is ChannelType.STREAM and each.client_id}


@pytest.mark.slow
@pytest.mark.parametrize("is_ended", [False, True], ids=["both complete", "one ends before it is complete"])
def test_processes_of_a_tunnel_copy_all_channels_up_to_the_end_time_one_after_the_other(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """Each holds a channel whose checkpoint does not show that it was copied up to the end time."""
    monkeypatch.setattr(replication_sources, "HEARTBEAT_SECONDS", 1)
    local.split(SOURCE)
    assert run_until(local, "tunnel", 1).is_complete
    end = write_rows(local, range(-10, 20))
    write_rows(local, range(-20, 40))
    settings, running = evolve(settings_of(local), end_time_micros=end), list[TunnelSource]()
    for _ in range(2):
        writer = DestinationWriter(SignedCalls(local.client()), DESTINATION, 200)
        processors = ReplicationProcessors(writer, SourceTable(local.client(), SOURCE), end)
        running.append(TunnelSource(local.client(), settings, processors))
    gave_way = []

    def have_ended() -> bool:
        for source in list(running):
            if source.state().is_past:
                source.stop()
                running.remove(source)
            elif source.worker is None:
                gave_way.append(source)
                if is_ended and len(running) == 2:
                    other = running.pop(1 - running.index(source))
                    other.stop()
        return not running

    local.add_fault(FaultRule("tunnel/readrecords", Fail("OTSTunnelServerUnavailable")))
    try:
        for source in running:
            source.start()
        until(lambda: len(holders(running[0])) == 2, "both hold a channel")
        local.clear_faults()
        until(lambda: all(source.processors.ends.copied for source in running), "both meet the end time")
        assert not any(source._is_past(source._described()) for source in running)
        until(have_ended, "the end of both")
    finally:
        for source in running:
            source.stop()
    assert gave_way
    assert copied_keys(local) == [*range(-10, 20)]
    assert run_until(local, "tunnel", written_up_to(local)).is_complete
    assert differences(local) == []
