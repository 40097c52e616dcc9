"""What tests of the status table begin with: a server, a client, and a manager that waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from status_table import STREAM, TABLE, Pauses
from tablestore import OTSClient

from streamclient.server import LocalTablestore
from streamclient.worker.lease.lease_manager import LeaseManager


@pytest.fixture
def server() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        yield local


@pytest.fixture
def client(server: LocalTablestore) -> OTSClient:
    return server.client()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def manager(client: OTSClient, pauses: Pauses) -> LeaseManager:
    made = LeaseManager(client, TABLE, STREAM, clock=pauses.now, sleep=pauses)
    assert made.create_lease_table_if_not_exists()
    return made
