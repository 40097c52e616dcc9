"""What probes are told of a mirror, over HTTP, in each part of its life."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from streamclient.config import ClientConfig
from streamclient.copying import Mirror
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import StreamClientError
from streamclient.server import LocalTablestore
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running
from tests.outages import OUTAGES, UnreliableService
from tests.patience import until
from tests.probing import probed, reason

SOON_UNHEALTHY = evolve(
    QUICK,
    taker_interval_millis=100,
    renewer_interval_millis=300,
    max_duration_before_last_successful_renew_or_take_lease=1_000,
)
"""Calls that fail for a second make a mirror unhealthy; those that succeed are far more frequent."""


def mirror_of(local: LocalTablestore, table: str = "orders", config: ClientConfig = QUICK) -> Mirror:
    return Mirror(local.client(), table, "status", MemoryDestination(), client_config=config, limits=LIMITS)


def test_a_mirror_from_before_its_beginning_to_its_end(local: LocalTablestore) -> None:
    make_table(local.client())
    mirror = mirror_of(local)
    with mirror.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "not begun"
        with running(mirror):
            put(local.client(), 1)
            caught_up(mirror)
            assert probed(server.port) == (200, 200, 200)
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health") == "ended"


def test_a_mirror_that_failed_says_why(local: LocalTablestore) -> None:
    mirror = mirror_of(local, "nothing")
    with pytest.raises(StreamClientError):
        mirror.run()
    with mirror.serve_health(0) as server:
        assert probed(server.port) == (200, 503, 503)
        assert reason(server.port, "/ready") == reason(server.port, "/health")
        assert reason(server.port, "/health").startswith("ended: ")


def test_a_mirror_that_is_asked_to_end_is_not_ready(local: LocalTablestore, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(local.client())
    mirror, close, seen = mirror_of(local), MirrorWriter.close, []
    with mirror.serve_health(0) as server:

        def last_step(writer: MirrorWriter) -> None:
            seen.append((probed(server.port), reason(server.port, "/ready")))
            close(writer)

        monkeypatch.setattr(MirrorWriter, "close", last_step)
        with running(mirror):
            pass

    assert seen == [((200, 503, 200), "stopping")]


@pytest.mark.slow
@pytest.mark.parametrize("code", OUTAGES.values(), ids=OUTAGES.keys())
def test_an_outage_of_the_service_changes_the_health_of_a_mirror_alone(tmp_path: Path, code: str) -> None:
    with UnreliableService(tmp_path) as service:
        make_table(service.local.client())
        mirror = mirror_of(service.local, config=SOON_UNHEALTHY)
        with mirror.serve_health(0) as server, running(mirror):
            put(service.local.client(), 1)
            caught_up(mirror)
            until(lambda: probed(server.port) == (200, 200, 200), lambda: mirror.health)
            service.goes_out(code)
            until(lambda: probed(server.port) == (200, 200, 503), lambda: mirror.health)
            until(lambda: code in reason(server.port, "/health"), lambda: mirror.health)
            assert probed(server.port) == (200, 200, 503)
            service.comes_back(code)
            until(lambda: probed(server.port) == (200, 200, 200), lambda: mirror.health)
            put(service.local.client(), 2)
            caught_up(mirror)
