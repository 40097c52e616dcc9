"""What these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from operate_scene import Scene

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
