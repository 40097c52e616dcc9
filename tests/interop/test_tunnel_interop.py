"""The unmodified Java and Go tunnel clients consume from the local Tablestore: full data, increments, and both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from client_process import ClientUnavailable
from tablestore import OTSClient, Row
from tunnel_clients import TunnelClientProcess, build_go, build_java

from streamclient.server import LocalTablestore
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_model import ChannelStatus, TunnelStage, TunnelType
from tests.patience import until
from tests.stage import STREAM, make_table, put_rows

TABLE = "orders"
KEYS = 120
HEARTBEAT_SECONDS = {"java": 5, "go": 1}
"""Java refuses less than five."""

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module", params=["java", "go"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def command(language: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    build = build_java if language == "java" else build_go
    try:
        return build(tmp_path_factory.mktemp(language))
    except ClientUnavailable as error:
        pytest.skip(str(error))


class Scene:
    """A table with a tunnel, a writer, and the clients of one language."""

    def __init__(self, local: LocalTablestore, language: str, command: list[str], directory: Path) -> None:
        self.local = local
        self.language = language
        self.command = command
        self.directory = directory
        self.ots: OTSClient = local.client()
        self.tunnels = TunnelClient(self.ots)
        self.clients: list[TunnelClientProcess] = []
        self.values = iter(range(1, 1_000_000))
        self.written: dict[int, list[int]] = {}
        make_table(self.ots, TABLE, [("id", "INTEGER")], stream=evolve(STREAM, columns_to_get=("value",)))

    def put(self, keys: range) -> None:
        """Write the next value into each key."""
        for key in keys:
            self.written.setdefault(key, []).append(next(self.values))
        put_rows(self.ots, TABLE, (Row([("id", key)], [("value", self.written[key][-1])]) for key in keys))

    def start(self, name: str, tunnel_id: str) -> TunnelClientProcess:
        """Start a client: settings are words of the command line of Java, and variables for Go."""
        settings = {
            "endpoint": self.local.endpoint,
            "instance": self.local.instance,
            "accessKeyId": self.local.access_key_id,
            "accessKeySecret": self.local.access_key_secret,
            "tunnelId": tunnel_id,
            "heartbeatSeconds": str(HEARTBEAT_SECONDS[self.language]),
            "timeoutSeconds": "30",
        }
        command, environment = self.command, dict[str, str]()
        if self.language == "java":
            command = [*command, *(f"-D{key}={value}" for key, value in settings.items()), "interop.TunnelConsumer"]
        else:
            environment = {re.sub("(?=[A-Z])", "_", key).upper(): value for key, value in settings.items()}
        client = TunnelClientProcess(name, command, self.directory / f"{name}.log", environment)
        self.clients.append(client)
        return client

    def records(self) -> list[dict[str, Any]]:
        """Everything that any client was given, in that order."""
        found = [record for client in self.clients for record in client.records()]
        return sorted(found, key=lambda record: int(record["nanos"]))

    def seen(self) -> dict[int, list[int]]:
        """Values by key, in the order in which each came first."""
        values: dict[int, list[int]] = {}
        for record in self.records():
            known = values.setdefault(int(record["key"]), [])
            if record["value"] not in known:
                known.append(record["value"])
        return values

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        logs = lambda: [(client.name, client.events[-2:]) for client in self.clients]  # noqa: E731
        until(condition, lambda: f"{what}; last events {logs()}; logs in {self.directory}")

    def holders(self, name: str = "t") -> set[str]:
        """Clients that hold an open channel."""
        channels = self.tunnels.describe_tunnel(TABLE, name).channels
        return {channel.client_id for channel in channels if channel.status is ChannelStatus.OPEN} - {""}


@pytest.fixture
def scene(language: str, command: list[str], tmp_path: Path) -> Iterator[Scene]:
    with LocalTablestore() as local:
        made = Scene(local, language, command, tmp_path)
        try:
            yield made
        finally:
            for client in made.clients:
                client.stop()


def test_full_data_is_consumed_once_and_the_tunnel_ends(scene: Scene) -> None:
    scene.put(range(KEYS))
    tunnel_id = scene.tunnels.create_tunnel(TABLE, "t", TunnelType.BASE_DATA)
    scene.start("a", tunnel_id)

    scene.wait_for(
        "the last stage", lambda: scene.tunnels.describe_tunnel(TABLE, "t").info.stage is TunnelStage.PROCESS_STREAM
    )

    scene.wait_for("every row", lambda: scene.seen() == scene.written)  # what a client prints is read by a thread
    assert {record["micros"] for record in scene.records()} == {0}


def test_changes_since_the_tunnel_was_made_are_consumed_in_order(scene: Scene) -> None:
    scene.put(range(KEYS))
    before = {key: list(values) for key, values in scene.written.items()}
    tunnel_id = scene.tunnels.create_tunnel(TABLE, "t", TunnelType.STREAM)
    scene.put(range(KEYS // 2))
    scene.start("a", tunnel_id)
    scene.put(range(KEYS))
    expected = {key: values[len(before[key]) :] for key, values in scene.written.items()}

    scene.wait_for("every change", lambda: scene.seen().keys() == expected.keys())

    scene.wait_for("every value", lambda: scene.seen() == expected)


def test_both_kinds_are_consumed_in_order_while_shards_split_and_clients_come_and_go(scene: Scene) -> None:
    """Full data first; then every change at least once, first deliveries of a key in the order of the log."""
    scene.put(range(KEYS))
    base = {key: values[-1] for key, values in scene.written.items()}
    tunnel_id = scene.tunnels.create_tunnel(TABLE, "t", TunnelType.BASE_AND_STREAM)
    scene.put(range(KEYS // 2))
    first = scene.start("a", tunnel_id)
    scene.wait_for("full data", lambda: scene.seen().keys() == base.keys())

    lower, upper = scene.local.split(TABLE, at=KEYS // 3)
    scene.put(range(KEYS))
    scene.wait_for("both children open", lambda: all_open(scene, lower, upper))
    scene.start("b", tunnel_id)
    scene.put(range(KEYS))
    scene.wait_for("an even share", lambda: len(scene.holders()) == 2)
    scene.put(range(KEYS))
    scene.local.merge(TABLE, lower, upper)
    scene.put(range(KEYS))
    assert first.stop() == 0
    scene.put(range(KEYS))

    scene.wait_for("everything", lambda: is_complete(scene, base))
    for key, values in scene.seen().items():
        assert values == sorted(values), f"key {key}"


def all_open(scene: Scene, *channel_ids: str) -> bool:
    channels = scene.tunnels.describe_tunnel(TABLE, "t").channels
    return {c.channel_id for c in channels if c.status is ChannelStatus.OPEN} >= set(channel_ids)


def is_complete(scene: Scene, base: dict[int, int]) -> bool:
    """Whether every value came, but for those that the full data, read later, has overtaken."""
    seen = scene.seen()
    return all(
        set(values[values.index(base[key]) + 1 :]) <= set(seen.get(key, [])) for key, values in scene.written.items()
    )
