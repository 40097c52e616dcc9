"""Calls that wait for the service delay no heartbeat, and no call follows that is out of date."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tunnel_scene import TABLE, Log, Scene

from streamclient.base.pools import DaemonPool
from streamclient.errors import DependencyException, ErrorKind
from streamclient.tunnel import ChannelCheckpoint, SequenceNumberNotMatchError, TunnelClient, TunnelType
from streamclient.tunnel.tunnel_calls import ChannelSlot, Stored, TunnelCalls
from streamclient.tunnel.tunnel_worker import CALL_THREADS
from streamclient.worker.owner_loop import OwnerLoop
from tests.patience import FOREVER_SECONDS, until

CHANNELS = CALL_THREADS + 4


class HeldCalls(TunnelClient):
    """Holds the calls of one kind back until ``go`` is set, and counts calls by kind and client."""

    def __init__(self, client: Any, kind: str) -> None:
        super().__init__(client)
        self.kind, self.go, self.begun = kind, threading.Event(), Counter[tuple[str, str]]()

    def note(self, kind: str, client_id: str) -> None:
        self.begun[kind, client_id] += 1
        if kind == self.kind:
            self.go.wait(FOREVER_SECONDS)

    def count(self, kind: str) -> int:
        return sum(number for (each, _), number in list(self.begun.items()) if each == kind)

    def clients(self) -> set[str]:
        """The clients that have sent heartbeats."""
        return {client_id for kind, client_id in list(self.begun) if kind == "heartbeat"}

    def connect(self, *given: Any, **named: Any) -> str:
        self.note("connect", "")
        return super().connect(*given, **named)

    def heartbeat(self, tunnel_id: str, client_id: str, *given: Any, **named: Any) -> Any:
        self.note("heartbeat", client_id)
        return super().heartbeat(tunnel_id, client_id, *given, **named)

    def get_checkpoint(self, tunnel_id: str, client_id: str, *given: Any, **named: Any) -> Any:
        self.note("getcheckpoint", client_id)
        return super().get_checkpoint(tunnel_id, client_id, *given, **named)

    def checkpoint(self, tunnel_id: str, client_id: str, *given: Any) -> None:
        self.note("checkpoint", client_id)
        super().checkpoint(tunnel_id, client_id, *given)


@pytest.fixture
def held(scene: Scene, request: pytest.FixtureRequest) -> Iterator[HeldCalls]:
    """The client of a scene with more channels than there are threads for calls about channels."""
    for place in range(1, CHANNELS):
        scene.local.split(TABLE, at=place * 10)
    scene.tunnels = client = HeldCalls(scene.ots, request.param)
    yield client
    client.go.set()


def write(scene: Scene) -> None:
    """Write a row into each channel."""
    scene.put(*range(5, CHANNELS * 10, 10))


@pytest.mark.slow
@pytest.mark.parametrize("held", ["checkpoint", "getcheckpoint"], indirect=True)
def test_heartbeats_go_on_while_calls_about_channels_wait_for_the_service(scene: Scene, held: HeldCalls) -> None:
    tunnel_id, log = scene.tunnel(TunnelType.STREAM), Log()
    write(scene)
    with scene.worker(tunnel_id, log, heartbeat_timeout_seconds=300):
        until(lambda: held.count(held.kind) == CALL_THREADS)
        before = held.count("heartbeat")
        until(lambda: held.count("heartbeat") > before + 2)
        held.go.set()
        until(lambda: log.values() == scene.written)

    assert held.count("connect") == 1


@pytest.mark.slow
@pytest.mark.parametrize("held", ["getcheckpoint"], indirect=True)
def test_lookups_of_a_session_that_has_ended_are_not_sent(scene: Scene, held: HeldCalls) -> None:
    tunnel_id, log = scene.tunnel(TunnelType.STREAM), Log()
    write(scene)
    with scene.worker(tunnel_id, log, heartbeat_timeout_seconds=300):
        until(lambda: held.count("getcheckpoint") == CALL_THREADS)
        (client_id,) = held.clients()
        held.shutdown(tunnel_id, client_id)
        until(lambda: len(held.clients()) == 2)
        held.go.set()
        until(lambda: log.values() == scene.written)

    assert held.begun["getcheckpoint", client_id] == CALL_THREADS


class SlowFirst(TunnelClient):
    """Stores checkpoints of a channel in memory. The first request stays on its way until ``go`` is set, and fails."""

    def __init__(self) -> None:
        self.go, self.sent, self.stored = threading.Event(), list[str](), ChannelCheckpoint("0", 0)

    def get_checkpoint(self, *given: Any, **named: Any) -> ChannelCheckpoint:
        return self.stored

    def checkpoint(self, tunnel_id: str, client_id: str, channel_id: str, token: str, sequence_number: int) -> None:
        self.sent.append(token)
        if len(self.sent) == 1:
            self.go.wait(FOREVER_SECONDS)
            raise DependencyException("no answer", kind=ErrorKind.AMBIGUOUS)
        if sequence_number < self.stored.sequence_number:
            raise SequenceNumberNotMatchError("a later checkpoint is stored", kind=ErrorKind.PERMANENT)
        self.stored = ChannelCheckpoint(token, sequence_number)


@pytest.mark.parametrize("later", [["2"], ["2", "3"]])
def test_a_checkpoint_that_later_ones_have_passed_is_not_sent_again_and_ends_no_reader(later: list[str]) -> None:
    """Its caller waits for a limited time, and may send the next one meanwhile."""
    client, loop, pool = SlowFirst(), OwnerLoop(time.monotonic), DaemonPool("calls", 2)
    calls = TunnelCalls(
        client=client,
        tunnel_id="t",
        timeout_seconds=30,
        client_tag="",
        loop=loop,
        session_pool=pool,
        pool=pool,
        emit=lambda event: None,
    )
    slot, outcomes = ChannelSlot("c", "ch", 0), dict[str, Stored]()

    def store(token: str) -> None:
        calls.store(slot, token, lambda stored, _: outcomes.update({token: stored}))

    def turned(token: str) -> bool:
        loop.turn(0.01)
        return token in outcomes

    store("1")
    until(lambda: client.sent == ["1"])
    for token in later:
        store(token)
        until(lambda token=token: turned(token))  # type: ignore[misc]
    client.go.set()
    until(lambda: turned("1"))
    pool.shutdown()

    assert outcomes == {"1": Stored.PASSED, **dict.fromkeys(later, Stored.YES)}
    assert client.sent == ["1", *later]
    assert client.stored.token == later[-1]
