"""What probes are told of a replication, over HTTP, in each part of its life, from either source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from tablestore import OTSClient

from streamclient.cli import main
from streamclient.copying import replication_sources
from streamclient.copying.differences import compare_tables
from streamclient.copying.replication import Replication
from streamclient.copying.replication_settings import parse_settings
from streamclient.copying.replication_sources import Source
from streamclient.errors import StreamClientError
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tunnel import TunnelClient
from tests.drill_kit import put
from tests.outages import OUTAGES, UnreliableService
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import probed, reason
from tests.replicate.drill import DESTINATION, SOURCE, configuration, make_source
from tests.stage import write

SOURCES = {"tunnel": {}, "stream": {"source": "stream", "statusTableName": "st"}}


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        make_source(running.client(), 4)
        yield running


def replication_of(local: LocalTablestore, source: str) -> Replication:
    settings = parse_settings(configuration(local, local, **SOURCES[source]), {})
    return Replication(settings, print, print, poll_seconds=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_a_replication_from_before_its_beginning_to_its_end(
    local: LocalTablestore, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replication, held = replication_of(local, source), threading.Event()
    with replication.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "not begun"
        thread = threading.Thread(target=replication.run)
        thread.start()
        until(lambda: probed(server.port) == (200, 200, 200), lambda: replication.health)
        until(lambda: replication._writer is not None and replication._writer.counts.rows >= 4)
        kind = type(replication._source)
        stop = kind.stop

        def stopped(source: Source) -> None:
            stop(source)
            held.wait(PATIENCE_SECONDS)

        monkeypatch.setattr(kind, "stop", stopped)
        replication.stop.set()
        until(lambda: reason(server.port, "/ready") == "stopping")
        assert probed(server.port) == (200, 503, 200)
        held.set()
        thread.join(PATIENCE_SECONDS)
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "ended"


@pytest.mark.parametrize("source", SOURCES)
def test_a_replication_that_failed_says_why(local: LocalTablestore, source: str) -> None:
    replication = replication_of(local, source)
    local.add_fault(FaultRule("*", Fail("OTSAuthFailed")))
    with pytest.raises(StreamClientError):
        replication.run()
    with replication.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health")
        assert "OTSAuthFailed" in reason(server.port, "/health")


def run_until(replication: Replication, is_enough: Callable[[], bool]) -> None:
    thread = threading.Thread(target=replication.run)
    thread.start()
    try:
        until(is_enough, lambda: replication.health)
    finally:
        replication.stop.set()
        thread.join(PATIENCE_SECONDS)


@pytest.mark.slow
def test_a_replication_whose_changes_were_lost_names_what_its_user_can_do(local: LocalTablestore) -> None:
    """One way is to begin again. The other way goes on without the lost changes."""
    first, second = (replication_of(local, "stream") for _ in range(2))
    run_until(first, lambda: first._writer is not None and first._writer.counts.rows >= 8)  # copied, and followed
    write(local.client(), SOURCE, [put(key, ("value", -1)) for key in range(3)])
    local.trim(SOURCE)
    write(local.client(), SOURCE, [put(9, ("value", 9))])
    said: list[str] = []

    def goes_on() -> bool:
        """Whether the last row was written, after the advised command let the shard go on."""
        if second.health.is_healthy:
            return bool(said) and second._writer is not None and second._writer.counts.rows > 0
        if not said:
            said.append(second.health.reason)
            shard = local.shards(SOURCE)[0].shard_id
            words = said[0].partition("`streamclient ")[2].partition("`")[0].replace("SHARD", shard).split()
            options = ["--endpoint", local.endpoint, "--data-table", SOURCE, "--status-table", "st"]
            assert main.main([*words, *options]) == 0
        return False

    run_until(second, goes_on)
    assert "begin again, with another status table and an empty destination" in said[0]
    assert "accept_loss" not in said[0], "users of the command cannot call it"
    differing = {each.key for each in compare_tables(local.client(), SOURCE, local.client(), DESTINATION)}
    assert differing == {(0,), (1,), (2,)}


@pytest.mark.parametrize(
    ("source", "begins_again"),
    [
        ("tunnel", lambda client: TunnelClient(client).delete_tunnel(SOURCE, "copy")),
        ("stream", lambda client: client.delete_table("st")),
    ],
)
def test_a_copy_that_begins_into_a_table_that_exists_says_that_its_other_rows_stay(
    local: LocalTablestore, source: str, begins_again: Callable[[OTSClient], object]
) -> None:
    said: list[list[str]] = []
    for run in range(3):
        if run == 2:
            begins_again(local.client())
        said.append([])
        settings = parse_settings(configuration(local, local, endTime="2020-01-01 00:00:00", **SOURCES[source]), {})
        assert Replication(settings, said[run].append, print, poll_seconds=0.05).run().is_complete

    assert [len(lines) for lines in said] == [2, 2, 3]
    assert said[2][2] == "the copy begins: rows that are in the destination already and not in the source stay there"


@pytest.fixture
def soon_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that fail for three seconds make a replication unhealthy; those that succeed are far more frequent."""
    config = evolve(
        replication_sources._CLIENT_CONFIG,
        taker_interval_millis=100,
        renewer_interval_millis=300,
        max_duration_before_last_successful_renew_or_take_lease=3_000,
    )
    monkeypatch.setattr(replication_sources, "_CLIENT_CONFIG", config)
    monkeypatch.setattr(replication_sources, "HEARTBEAT_SECONDS", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("soon_unhealthy")
@pytest.mark.parametrize("code", OUTAGES.values(), ids=OUTAGES.keys())
@pytest.mark.parametrize("source", SOURCES)
def test_an_outage_of_the_service_changes_the_health_of_a_replication_alone(
    tmp_path: Path, source: str, code: str
) -> None:
    """Source and destination are of one service."""
    with UnreliableService(tmp_path) as service:
        make_source(service.local.client(), 4)
        copy = replication_of(service.local, source)
        thread = threading.Thread(target=copy.run)
        with copy.serve_health(0) as server:
            thread.start()
            until(lambda: copy._writer is not None and copy._writer.counts.rows >= 4)
            until(lambda: probed(server.port) == (200, 200, 200), lambda: copy.health)
            service.goes_out(code)
            until(lambda: probed(server.port) == (200, 200, 503), lambda: copy.health)
            until(lambda: code in reason(server.port, "/health"), lambda: copy.health)
            assert probed(server.port) == (200, 200, 503)
            service.comes_back(code)
            until(lambda: probed(server.port) == (200, 200, 200), lambda: copy.health)
            write(service.local.client(), SOURCE, [put(9, ("value", 9))])
            until(lambda: copy._writer is not None and copy._writer.counts.rows >= 5)
            copy.stop.set()
            thread.join(PATIENCE_SECONDS)
            assert probed(server.port) == (200, 503, 503)
