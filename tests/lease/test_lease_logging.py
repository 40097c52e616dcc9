"""The SDK's own error log stays silent about refusals that are ordinary answers here."""

from __future__ import annotations

import logging

import pytest

from streamclient.server import LocalTablestore
from streamclient.worker.lease import LeaseManager


def test_a_status_table_that_does_not_exist_yet_is_no_error(
    local: LocalTablestore, caplog: pytest.LogCaptureFixture
) -> None:
    client = local.client()
    with caplog.at_level(logging.DEBUG):
        manager = LeaseManager(client, "status", "stream")
        manager.create_lease_table_if_not_exists()

    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == []


def test_the_clients_own_logger_is_left_alone(local: LocalTablestore) -> None:
    client = local.client()
    before = client.protocol.logger
    LeaseManager(client, "status", "stream").create_lease_table_if_not_exists()

    assert client.protocol.logger is before
