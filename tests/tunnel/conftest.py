"""What the tests of tunnel workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tunnel_scene import Scene

from streamclient.server import LocalTablestore


@pytest.fixture
def scene() -> Iterator[Scene]:
    with LocalTablestore() as local:
        yield Scene(local)
