"""Connections that rested, and boxes on the way that have forgotten them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tablestore import OTSClient

from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore
from streamclient.tablestore import ConnectionLimits, ReadRetry, TablestoreStreamApi, with_limits
from streamclient.tablestore import channel as channels
from streamclient.tablestore.channel import RESTED_SECONDS
from streamclient.tablestore.connection_limits import FORGOTTEN_SECONDS, REST_SECONDS, limits_of
from streamclient.tablestore.kept_connections import KeptConnections
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_extension import for_tables
from streamclient.worker.lease.status_connection import for_lease_calls, write_timeout_seconds
from tests.forgetful_proxy import ForgetfulProxy, forgetful

LONG_SECONDS = 600.0


@pytest.fixture
def box() -> Iterator[ForgetfulProxy]:
    with LocalTablestore() as local, forgetful(local.endpoint) as proxy:
        yield proxy


@pytest.fixture
def kept(box: ForgetfulProxy) -> Iterator[KeptConnections]:
    made = KeptConnections(box.endpoint, timeout_seconds=LONG_SECONDS, most_idle=8)
    yield made
    made.close()


def post(kept: KeptConnections, *, is_repeatable: bool = True) -> int:
    return kept.post("/ListTable", "", b"", is_repeatable=is_repeatable).status


def several(kept: KeptConnections, count: int) -> None:
    """Have as many idle connections: all exchanges are under way at once."""
    together = threading.Barrier(count)
    connect = kept._connect

    def connected(deadline: float) -> Any:
        made = connect(deadline)
        together.wait()
        return made

    kept._connect = connected  # type: ignore[method-assign]
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(post, kept) for _ in range(count)]:
            done.result()
    kept._connect = connect  # type: ignore[method-assign]
    assert len(kept._idle) == count


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_a_connection_that_rested_too_long_is_not_used_again(
    kept: KeptConnections, box: ForgetfulProxy, is_repeatable: bool
) -> None:
    several(kept, 3)
    box.forget_all()
    for idle in kept._idle:
        idle.used_at -= REST_SECONDS + 1

    assert post(kept, is_repeatable=is_repeatable) == 400
    assert (box.connections, len(box.swallowed), len(kept._idle)) == (4, 0, 1)


def test_a_connection_that_is_used_every_few_seconds_is_kept_and_those_beyond_need_are_closed_one_by_one(
    kept: KeptConnections, box: ForgetfulProxy
) -> None:
    several(kept, 4)
    used = kept._idle[-1]
    for idle in kept._idle:
        idle.used_at -= REST_SECONDS + 1
    used.used_at += REST_SECONDS - RESTED_SECONDS

    for left in (3, 2, 1, 1, 1):
        post(kept)
        assert len(kept._idle) == left
    assert kept._idle[0] is used
    assert box.connections == 4


def test_the_default_is_a_third_of_what_the_most_forgetful_box_allows() -> None:
    kept = KeptConnections("http://127.0.0.1:1", timeout_seconds=1, most_idle=1)
    assert kept._rest_seconds == ConnectionLimits().rest_seconds == FORGOTTEN_SECONDS / 3


def impatient(kept: KeptConnections) -> None:
    """Let connections wait for a moment only, now that they are there: no honest answer depends on it."""
    for idle in kept._idle:
        idle._wait_at_most(0.05)


def test_after_one_time_out_of_a_kept_connection_all_idle_ones_go(kept: KeptConnections, box: ForgetfulProxy) -> None:
    several(kept, 4)
    box.forget_all()
    impatient(kept)
    with pytest.raises(TimeoutError):
        post(kept, is_repeatable=False)

    assert len(kept._idle) == 0
    assert post(kept, is_repeatable=False) == 400
    assert len(box.swallowed) == 1


def test_a_read_over_a_rested_connection_that_is_silent_moves_to_a_new_one(
    kept: KeptConnections, box: ForgetfulProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its wait times out; all others that rested with it are closed, too."""
    monkeypatch.setattr(channels, "SILENCE_SECONDS", 0.05)
    several(kept, 4)
    box.forget_all()
    for idle in kept._idle:
        idle.used_at -= 2 * RESTED_SECONDS

    assert post(kept) == 400
    assert (len(box.swallowed), box.connections, len(kept._idle)) == (1, 5, 1)


@pytest.mark.parametrize(("is_repeatable", "rested"), [(False, 2 * RESTED_SECONDS), (True, -LONG_SECONDS)])
def test_a_write_and_a_connection_just_used_have_all_of_their_time(
    kept: KeptConnections, box: ForgetfulProxy, monkeypatch: pytest.MonkeyPatch, is_repeatable: bool, rested: float
) -> None:
    monkeypatch.setattr(channels, "SILENCE_SECONDS", 0.0)
    post(kept)
    box.forget_all()
    impatient(kept)
    kept._idle[0].used_at -= rested
    with pytest.raises(TimeoutError, match=r"nothing came for 0\.05 s"):
        post(kept, is_repeatable=is_repeatable)

    assert box.connections == 1


def test_the_kernel_asks_whether_a_silent_peer_is_there(kept: KeptConnections) -> None:
    post(kept)
    (idle,) = kept._idle

    assert idle._channel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert idle._channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < REST_SECONDS


# --- the setting -----------------------------------------------------------------------------------------------------


def client() -> OTSClient:
    return OTSClient("http://127.0.0.1:1", "id", "secret", "instance")


def connections_of(made: OTSClient) -> KeptConnections:
    (found,) = [
        cell.cell_contents
        for cell in SignedCalls(made)._exchange.__closure__  # type: ignore[attr-defined]
        if isinstance(cell.cell_contents, KeptConnections)
    ]
    return found


def test_limits_of_a_client_are_those_of_all_that_is_made_of_it() -> None:
    given = client()
    own = with_limits(with_limits(given, rest_seconds=7), attempt_seconds=9)

    for made in (own, for_tables(own)):
        kept = connections_of(made)
        assert (kept._rest_seconds, kept._attempt_seconds, kept._wait_seconds) == (7, 9, 9)
    assert limits_of(given) == ConnectionLimits()
    kept = connections_of(given)
    assert (kept._rest_seconds, kept._attempt_seconds, kept._wait_seconds) == (REST_SECONDS, 100, 50)


@pytest.mark.parametrize(
    ("attempt_seconds", "expected"), [(None, write_timeout_seconds(ClientConfig())), (2, 2), (90, 20 / 3)]
)
def test_one_attempt_of_a_lease_call_takes_a_third_of_the_lease_at_most(
    attempt_seconds: float | None, expected: float
) -> None:
    given = with_limits(client(), rest_seconds=7, attempt_seconds=attempt_seconds)
    kept = connections_of(for_lease_calls(given, ClientConfig()))

    assert (kept._rest_seconds, kept._attempt_seconds) == (7, pytest.approx(expected))
    assert kept._wait_seconds <= kept._attempt_seconds


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: with_limits(client(), rest_seconds=0), "rest_seconds must be a number of seconds above 0, not 0"),
        (lambda: with_limits(client(), attempt_seconds=-1), "attempt_seconds must be a number of seconds above 0"),
        (lambda: with_limits(5, rest_seconds=1), r"must be a tablestore\.OTSClient, not 5"),  # type: ignore[arg-type]
    ],
)
def test_limits_that_cannot_be_are_refused_before_any_call(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make()


def test_a_stream_that_is_read_again_after_a_rest_is_read_at_once(box: ForgetfulProxy) -> None:
    """The whole way: a setting on the client, and a box that forgets."""
    given = OTSClient(box.endpoint, "local-access-key-id", "local-access-key-secret", "local")
    api = TablestoreStreamApi(with_limits(given, rest_seconds=0.001), retry=ReadRetry(retries=0))
    for _ in range(3):
        assert api.list_stream() == ()
        box.forget_all()
        threading.Event().wait(0.002)  # longer than the setting

    assert (box.connections, len(box.swallowed)) == (3, 0)
