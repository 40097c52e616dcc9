"""A worker whose idle connections a box on the way has forgotten."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import CapacityUnit, Condition, OTSClient, ReservedThroughput, Row, TableMeta, TableOptions

from streamclient import ClientConfig, InitialPosition, StreamConfig, Worker
from streamclient.interfaces import ShutdownReason
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi, with_limits
from streamclient.testing.simulation.scene import Journal
from tests.forgetful_proxy import forgetful
from tests.patience import until

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

LETTERS = "abcdefgh"
FORGOTTEN_SECONDS = 2.0
IDLE_SECONDS = 2.5 * FORGOTTEN_SECONDS
SOCKET_TIMEOUT_SECONDS = 50.0
"""Of the SDK; a worker that waits for one forgotten connection needs all of it."""


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"rest_seconds": FORGOTTEN_SECONDS / 3}, {}], ids=["set", "default"])
def test_records_after_a_rest_are_delivered_at_once_and_no_lease_is_lost(
    local: LocalTablestore, limits: dict[str, Any]
) -> None:
    """Eight shards that were read at the same time are read so again, after all but one connection had nothing to do.

    By default a third of a longer time; then the reads notice by themselves.
    """
    writer = local.client()
    TablestoreStreamApi(writer).create_table(
        TableMeta("orders", [("id", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        split_points=list(LETTERS[1:]),
    )
    journal = Journal()

    def write(number: int) -> None:
        for letter in LETTERS:
            writer.put_row("orders", Row([("id", f"{letter}{number}")], [("n", number)]), Condition("IGNORE"))

    def delivered() -> int:
        return sum(len(keys) for keys in list(journal.accepted.values()))

    with forgetful(local.endpoint, FORGOTTEN_SECONDS) as box:
        client = OTSClient(
            box.endpoint,
            local.access_key_id,
            local.access_key_secret,
            local.instance,
            socket_timeout=SOCKET_TIMEOUT_SECONDS,
        )
        config = StreamConfig(
            client=with_limits(client, **limits),
            data_table_name="orders",
            status_table_name="status",
            initial_position=InitialPosition.oldest(),
        )
        write(0)
        with Worker("w1", ClientConfig(), config, journal.make):
            until(lambda: delivered() == len(LETTERS))
            threading.Event().wait(IDLE_SECONDS)
            write(1)
            written = time.monotonic()
            until(lambda: delivered() == 2 * len(LETTERS))
            taken = time.monotonic() - written

    assert taken < SOCKET_TIMEOUT_SECONDS / 2
    assert ShutdownReason.ZOMBIE not in [detail for _, what, detail in journal.entries if what == "shutdown"]
    if limits:
        assert box.swallowed == 0
