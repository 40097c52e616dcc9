"""What probes are told of a mirror, over HTTP, in each part of its life."""

from __future__ import annotations

import pytest

from streamclient.copying import Mirror
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import StreamClientError
from streamclient.server import LocalTablestore
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running
from tests.probing import probed, reason


def mirror_of(local: LocalTablestore, table: str = "orders") -> Mirror:
    return Mirror(local.client(), table, "status", MemoryDestination(), client_config=QUICK, limits=LIMITS)


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
