"""One channel that cannot be read is given up alone, named, and tried again after growing pauses."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import pytest
from tunnel_shell import ERROR, Shell, channel, connected

from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.troubles import LONGEST_CHANNEL_PAUSE_MILLIS
from streamclient.core.tunnel.tunnel_events import CallVerdict

T = TypeVar("T")


def refuse(shell: Shell, channel_id: str = "a") -> None:
    """The lookup that is under way fails."""
    (lookup,) = [each for each in shell.of(tunnel_events.FindCheckpoint) if each.channel_id == channel_id]
    shell.handle(tunnel_events.CheckpointNotFound(channel_id, lookup.reader, ERROR))


def beat(shell: Shell, *texts: str) -> None:
    """Answer the next heartbeat, as soon as one is due."""
    until_command(shell, tunnel_events.Heartbeat)
    shell.answer(*texts)


def until_command(shell: Shell, kind: type[T], *texts: str) -> None:
    """Pass the time until there is such a command; heartbeats before are answered."""
    while not shell.of(kind):
        deadline = shell.session.next_deadline()
        assert deadline is not None
        shell.later(max(0.0, deadline - shell.now))
        if shell.of(tunnel_events.Heartbeat) and kind is not tunnel_events.Heartbeat:
            found = shell.of(kind)
            shell.answer(*texts)
            shell.commands = [*shell.commands, *found]  # type: ignore[list-item]


def test_a_channel_that_is_not_known_is_given_up_and_the_others_go_on(shell: Shell) -> None:
    shell.answer("a OPEN@0", "b OPEN@0")
    lookups = {each.channel_id: each for each in shell.of(tunnel_events.FindCheckpoint)}
    shell.handle(tunnel_events.CheckpointFound("b", lookups["b"].reader, "token", 4))
    shell.handle(tunnel_events.CheckpointNotFound("a", lookups["a"].reader, ERROR))
    assert shell.of(tunnel_events.Finish) == []

    shell.later(1)
    assert shell.reported() == ["a CLOSE@1", "b OPEN@0"]
    assert list(shell.session.troubles) == ["a"]
    assert "no checkpoint of it was read: RuntimeError: no" in shell.session.troubles["a"].why


def test_it_is_tried_again_with_growing_pauses_however_often_it_is_offered() -> None:
    shell, version, pauses = connected(), 0, list[float]()
    shell.answer("a OPEN@0")
    for _ in range(12):
        refuse(shell)
        began, version = shell.now, version + 2
        beat(shell, f"a OPEN@{version}")
        until_command(shell, tunnel_events.FindCheckpoint, f"a OPEN@{version}")
        pauses.append(shell.now - began)

    assert pauses[0] <= 0.5
    assert pauses[-2] < LONGEST_CHANNEL_PAUSE_MILLIS / 1_000 + 0.5
    assert pauses[-1] > 0.7 * LONGEST_CHANNEL_PAUSE_MILLIS / 1_000
    assert all(after > before * 0.7 for before, after in pairwise(pauses))


def test_it_is_forgotten_once_it_can_be_read(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    refuse(shell)
    beat(shell, "a OPEN@2")
    if not shell.of(tunnel_events.FindCheckpoint):
        shell.later(1)
    lookup = shell.lookup()
    shell.handle(tunnel_events.CheckpointFound("a", lookup.reader, "token", 4))

    assert shell.of(tunnel_events.StartReader)
    assert shell.session.troubles == {}


def test_it_is_no_trouble_of_this_client_while_it_is_another_ones(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    refuse(shell)
    beat(shell)

    assert shell.session.troubles == {}


def test_a_channel_that_waits_for_its_next_try_is_let_go_at_once() -> None:
    shell, version = connected(), 0
    shell.answer("a OPEN@0")
    for _ in range(3):
        refuse(shell)
        version += 2
        beat(shell, f"a OPEN@{version}")
        until_command(shell, tunnel_events.FindCheckpoint, f"a OPEN@{version}")
    refuse(shell)
    beat(shell, f"a OPEN@{version + 2}")
    assert shell.of(tunnel_events.FindCheckpoint) == []

    shell.handle(tunnel_events.SessionStopRequested())
    assert shell.of(tunnel_events.EndSession)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_channel_that_is_listed_with_what_nobody_knows_is_not_read_and_named(shell: Shell, is_read: bool) -> None:
    if is_read:
        started = shell.read("a OPEN@0")
    shell.later(30)
    shell.handle(
        tunnel_events.HeartbeatAnswered("me", [channel("b OPEN@0")], shell.now, {"a": "status 7 and version 1"})
    )
    assert [stop.channel_id for stop in shell.of(tunnel_events.StopReader)] == (["a"] if is_read else [])
    assert [lookup.channel_id for lookup in shell.of(tunnel_events.FindCheckpoint)] == ["b"]
    assert "status 7 and version 1" in shell.session.troubles["a"].why
    if is_read:
        shell.end(started)

    shell.beat("a OPEN@2", "b OPEN@0")
    assert [lookup.channel_id for lookup in shell.of(tunnel_events.FindCheckpoint)] == ["a"]
    assert shell.session.troubles == {}


def test_a_channel_that_is_missing_in_an_answer_is_asked_for_again_at_once(shell: Shell) -> None:
    """A cut answer looks so: the channel comes back with the next one, in a moment and not after an interval."""
    started = shell.read("a OPEN@0")
    shell.beat()
    assert shell.stops() == [("a", started.reader, True)]
    shell.end(started)

    shell.later(0.2)
    assert shell.of(tunnel_events.Heartbeat)
    shell.answer("a OPEN@0")
    assert [lookup.channel_id for lookup in shell.of(tunnel_events.FindCheckpoint)] == ["a"]


def test_a_final_error_of_a_lookup_ends_the_work_and_no_other(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    lookup = shell.lookup()
    shell.handle(tunnel_events.CheckpointNotFound("a", lookup.reader, ERROR, CallVerdict.FINAL))
    shell.handle(tunnel_events.SessionEnded())

    assert shell.of(tunnel_events.Finish) == [tunnel_events.Finish(ERROR)]


def test_a_channel_that_is_declined_is_no_trouble(shell: Shell) -> None:
    shell.answer("a OPEN@0")
    lookup = shell.lookup()
    shell.now += 1
    shell.handle(tunnel_events.ChannelDeclined("a", lookup.reader))

    assert shell.reported() == ["a CLOSE@1"]
    assert shell.session.troubles == {}
