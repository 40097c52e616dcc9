"""What every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    """A running local Tablestore of the test's own, in memory; or the service that the environment names, emptied."""
    from streamclient.server import LocalTablestore
    from tests.service_under_test import real_service

    service = real_service()
    if service is not None:
        yield cast("LocalTablestore", service)
        service.clear()
        return
    with LocalTablestore() as running:
        yield running
