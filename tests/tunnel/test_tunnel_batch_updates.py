"""Whole lists of channels, heartbeat after heartbeat: the scenario that the Java and Go clients' tests share."""

from __future__ import annotations

from random import Random

import pytest

from streamclient.core.tunnel import tunnel_events
from streamclient.core.tunnel.channel_states import Channel, ChannelStatus
from streamclient.core.tunnel.tunnel_session import SessionSettings, TunnelSession

ERROR = RuntimeError("no")


class Driver:
    """A session with a shell that starts and stops readers at once, unless a test wants otherwise."""

    def __init__(self) -> None:
        numbers = iter(range(1, 1_000))
        settings = SessionSettings(heartbeat_interval=30.0, heartbeat_timeout=300.0)
        self.session = TunnelSession(settings, Random(1), new_identifier=lambda: f"r{next(numbers)}")
        self.now = 0.0
        self.live: dict[str, str] = {}
        self.lost: set[str] = set()
        self.without_checkpoint: set[str] = set()
        self.reports: list[list[str]] = []
        self._do(tunnel_events.SessionTick())
        self._do(tunnel_events.Connected("me", self.now))
        self._do(tunnel_events.HeartbeatAnswered("me", [], self.now))

    def answer(self, *texts: str) -> None:
        """The service's answer to the next heartbeat."""
        self.now += 30
        self._do(tunnel_events.SessionTick())
        self._do(tunnel_events.HeartbeatAnswered("me", [channel(text) for text in texts], self.now))

    def end(self, channel_id: str, *, is_finished: bool = False) -> None:
        """The reader of a channel ends: by itself, or as it was asked to."""
        reader = self.live.pop(channel_id)
        self._do(tunnel_events.ReaderEnded(channel_id, reader, is_finished))

    def shown(self) -> dict[str, str]:
        return {name: f"{each.status.value}@{each.version}" for name, each in self.session.channels.items()}

    def _do(self, event: tunnel_events.Event) -> None:
        for command in self.session.handle(event, self.now):
            self._carry_out(command)

    def _carry_out(self, command: tunnel_events.Command) -> None:
        if isinstance(command, tunnel_events.FindCheckpoint) and command.channel_id in self.without_checkpoint:
            self._do(tunnel_events.CheckpointNotFound(command.channel_id, command.reader, ERROR))
        elif isinstance(command, tunnel_events.FindCheckpoint):
            self._do(tunnel_events.CheckpointFound(command.channel_id, command.reader, "token", 0))
        elif isinstance(command, tunnel_events.StartReader):
            self.live[command.channel_id] = command.reader
        elif isinstance(command, tunnel_events.StopReader) and command.is_lost:
            self.lost.add(command.channel_id)
        elif isinstance(command, tunnel_events.Heartbeat):
            self.reports.append([str(each) for each in command.channels])


def channel(text: str) -> Channel:
    name, status = text.split(" ")
    kind, _, version = status.partition("@")
    return Channel(name, int(version), ChannelStatus(kind))


def test_lists_of_channels_are_followed_step_by_step() -> None:
    driver = Driver()
    # 1: channels that are asked back before they were ever read are let go at once.
    driver.answer("a OPEN@1", "b OPEN@1", "c CLOSING@1", "d CLOSING@1")
    assert driver.shown() == {"a": "OPEN@1", "b": "OPEN@1", "c": "CLOSE@2", "d": "CLOSE@2"}
    assert set(driver.live) == {"a", "b"}
    # 2: a running one is let go when its reader has ended; one that was let go is leased again, with an equal version.
    driver.answer("a CLOSING@2", "b OPEN@1", "c OPEN@2", "e OPEN@1")
    assert driver.shown() == {"a": "CLOSING@2", "b": "OPEN@1", "c": "OPEN@2", "e": "OPEN@1"}
    driver.end("a")
    assert driver.shown()["a"] == "CLOSE@3"
    assert set(driver.live) == {"b", "c", "e"}
    # 3: a reader that gives up lets its channel go; the others stay.
    driver.answer("b OPEN@1", "c OPEN@2", "e OPEN@1", "f OPEN@0")
    driver.end("e")
    assert driver.shown() == {"b": "OPEN@1", "c": "OPEN@2", "e": "CLOSE@2", "f": "OPEN@0"}
    # 4: what the service says of an older version is old.
    driver.answer("b OPEN@1", "c CLOSING@1", "e OPEN@1", "f OPEN@0")
    assert driver.shown() == {"b": "OPEN@1", "c": "OPEN@2", "e": "CLOSE@2", "f": "OPEN@0"}
    # 5: the end of a channel.
    driver.end("f", is_finished=True)
    assert driver.shown()["f"] == "TERMINATED@1"
    # 6: what is missing is dropped; a channel without checkpoint is let go.
    driver.without_checkpoint.add("g")
    driver.answer("c OPEN@2", "g OPEN@4")
    assert driver.lost == {"b"}
    driver.end("b")
    assert driver.shown() == {"c": "OPEN@2", "g": "CLOSE@5"}

    # 7: nothing is left.
    driver.end("c", is_finished=True)
    assert driver.shown() == {"c": "TERMINATED@3", "g": "CLOSE@5"}
    driver.answer()
    assert (driver.shown(), driver.live) == ({}, {})
    assert driver.reports[-1] == ["c TERMINATED@3", "g CLOSE@5"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("OPEN@0",), "CLOSE@1"),
        (("CLOSING@0",), "CLOSE@1"),
        (("CLOSE@1",), "CLOSE@1"),
        (("TERMINATED@2",), "TERMINATED@2"),
        (("CLOSE@1", "CLOSING@1"), "CLOSE@2"),
        (("CLOSE@1", "OPEN@1"), "CLOSE@2"),
        (("CLOSE@1", "CLOSE@2"), "CLOSE@2"),
        (("CLOSE@1", "CLOSE@1"), "CLOSE@1"),
        (("CLOSE@1", "CLOSE@0"), "CLOSE@1"),
        (("CLOSE@1", "TERMINATED@2"), "TERMINATED@2"),
    ],
)
def test_channel_whose_checkpoint_cannot_be_looked_up_is_never_held(texts: tuple[str, ...], expected: str) -> None:
    driver = Driver()
    driver.without_checkpoint.add("a")
    for text in texts:
        driver.answer(f"a {text}")

    assert driver.shown() == {"a": expected}
    assert driver.live == {}


def test_checkpoint_is_looked_up_again_when_the_channel_is_offered_again() -> None:
    driver = Driver()
    driver.without_checkpoint.add("a")
    driver.answer("a OPEN@0")
    driver.without_checkpoint.clear()
    driver.answer("a OPEN@2")

    assert driver.shown() == {"a": "OPEN@2"}
    assert set(driver.live) == {"a"}


def test_news_of_readers_that_are_not_known_any_more_changes_nothing() -> None:
    driver = Driver()
    driver.answer("a OPEN@3")
    for event in (
        tunnel_events.ReaderEnded("a", "of an earlier one", is_finished=True),
        tunnel_events.ReaderEnded("unknown", "r9", is_finished=True),
        tunnel_events.ReaderStalled("unknown", "r9", "it hangs"),
        tunnel_events.CheckpointFound("unknown", "r9", "token", 1),
        tunnel_events.CheckpointNotFound("unknown", "r9", ERROR),
    ):
        assert driver.session.handle(event, driver.now) == []

    assert driver.shown() == {"a": "OPEN@3"}
