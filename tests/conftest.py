"""What every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    """A running local Tablestore of the test's own, in memory."""
    from streamclient.server import LocalTablestore

    with LocalTablestore() as running:
        yield running
