"""Leave a real service empty after each test; a data directory and a connection for tests."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from server_state_driver import Disk

from streamclient.server import LocalTablestore
from tests.service_under_test import connection_to, real_service


@pytest.fixture(autouse=True)
def _leave_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    service = real_service()
    if service is not None and "server" not in request.fixturenames:
        service.clear()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with closing(Disk(tmp_path)) as made:
        yield made


@pytest.fixture
def connection(local: LocalTablestore) -> Iterator[http.client.HTTPConnection]:
    with closing(connection_to(local.endpoint)) as opened:
        yield opened
