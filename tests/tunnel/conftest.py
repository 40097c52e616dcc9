"""What the tests of tunnel workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tunnel_scene import Log, Scene
from tunnel_server import Server, serving

from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelType


@pytest.fixture
def scene() -> Iterator[Scene]:
    with LocalTablestore() as local:
        yield Scene(local)


@pytest.fixture
def tunnel_id(scene: Scene) -> str:
    """A tunnel of changes."""
    return scene.tunnel(TunnelType.STREAM)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts a server that gives these replies, one after the other, and the last one again and again."""
    yield from serving()
