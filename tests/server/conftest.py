"""What a real service, if one is tested, must not keep between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service_under_test import real_service


@pytest.fixture(autouse=True)
def _leave_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    service = real_service()
    if service is not None and "server" not in request.fixturenames:
        service.clear()
