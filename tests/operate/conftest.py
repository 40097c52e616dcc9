"""What these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from operate_scene import Scene, read_shard

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    """A fleet's tables, with the default lease duration."""
    return Scene(local)


@pytest.fixture
def hasty(local: LocalTablestore) -> Scene:
    """The same with leases of a second, for commands that watch a lease for as long as it lasts."""
    return Scene(local, lease_seconds=1.0)


@pytest.fixture
def quick(local: LocalTablestore) -> Scene:
    """The same, whose lease duration the commands learn from the workers."""
    return Scene(local, lease_seconds=None)


@pytest.fixture
def shard(scene: Scene) -> str:
    """A free shard of which six of ten records were read."""
    return read_shard(scene)
