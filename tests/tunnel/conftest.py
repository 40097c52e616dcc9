"""What the tests of tunnel workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tunnel_scene import Scene
from tunnel_server import Server, serving

from streamclient.server import LocalTablestore


@pytest.fixture
def scene() -> Iterator[Scene]:
    with LocalTablestore() as local:
        yield Scene(local)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts a server that gives these replies, one after the other, and the last one again and again."""
    yield from serving()
