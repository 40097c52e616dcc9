"""The scene of the tests of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rules_scene import Scene

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    """A table with a stream of one shard, and no worker yet."""
    return Scene(local)
