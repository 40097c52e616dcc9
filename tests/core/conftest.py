"""What tests of decisions begin with."""

from __future__ import annotations

import pytest
from holdings_driver import Driver, reader
from tunnel_shell import Shell, connected


@pytest.fixture
def driver() -> Driver:
    """It holds and reads shard ``a``."""
    return reader()


@pytest.fixture
def shell() -> Shell:
    """A tunnel's session that is connected and has sent its first heartbeat."""
    return connected()
