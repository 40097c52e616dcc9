"""A worker whose idle connections a box on the way has forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import OTSClient

from streamclient import ClientConfig, InitialPosition, StreamConfig, Worker
from streamclient.interfaces import ShutdownReason
from streamclient.tablestore import with_limits
from tests.forgetful_proxy import ForgetfulProxy, forgetful
from tests.patience import FOREVER_SECONDS, until
from tests.simulation.scene import Journal
from tests.worker.stage import make_table, put

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

LETTERS = "abcdefgh"
REST_SECONDS = 1.0
FORGOTTEN_SECONDS = 5 * REST_SECONDS
"""Far more than connections may rest, as client and box see the end of an exchange at different times."""

FEW = len(LETTERS) // 2
"""Reads of all shards at the same time need more connections than these, so they also take forgotten ones."""


@contextmanager
def answers_held(box: ForgetfulProxy) -> Iterator[None]:
    """Each read that begins meanwhile needs a connection of its own."""
    box.answers.clear()
    try:
        yield
    finally:
        box.answers.set()


def is_read_over_forgotten(box: ForgetfulProxy) -> bool:
    return any(b"/GetStreamRecord" in data for data in box.swallowed)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"rest_seconds": REST_SECONDS}, {}], ids=["set", "default"])
def test_records_after_a_rest_wait_for_no_forgotten_connection_and_no_lease_is_lost(
    local: LocalTablestore, limits: dict[str, Any]
) -> None:
    """Eight shards that were read at the same time are read so again, after most connections had nothing to do.

    By default connections may rest for longer than the box knows them; then the reads notice by themselves. A read that
    waited for the answer over a forgotten connection would wait for ever.
    """
    writer = local.client()
    make_table(writer, split_points=list(LETTERS[1:]))
    journal = Journal()

    def write(number: int) -> None:
        for letter in LETTERS:
            put(writer, f"{letter}{number}", n=number)

    def delivered() -> int:
        return sum(len(keys) for keys in list(journal.accepted.values()))

    with forgetful(local.endpoint) as box:
        keys = (local.access_key_id, local.access_key_secret, local.instance)
        client = OTSClient(box.endpoint, *keys, socket_timeout=FOREVER_SECONDS)
        config = StreamConfig(
            client=with_limits(client, **limits),
            data_table_name="orders",
            status_table_name="status",
            initial_position=InitialPosition.oldest(),
        )
        write(0)
        # So seldom that one thread can read all shards, over one connection, while the others rest.
        with Worker("w1", ClientConfig(worker_idle_time_millis=500), config, journal.make):
            until(lambda: delivered() == len(LETTERS))
            with answers_held(box):
                until(lambda: box.connections >= len(LETTERS), "a connection for each shard")
            until(lambda: box.connections - len(box.rested(FORGOTTEN_SECONDS)) < FEW, "connections without work")
            box.forget(box.rested(FORGOTTEN_SECONDS - REST_SECONDS))
            before = box.connections
            write(1)
            with answers_held(box):
                until(lambda: box.connections > before if limits else is_read_over_forgotten(box), "a further read")
            until(lambda: delivered() == 2 * len(LETTERS), "the second records")

    assert ShutdownReason.ZOMBIE not in [detail for _, what, detail in journal.entries if what == "shutdown"]
    if limits:
        assert box.swallowed == []
