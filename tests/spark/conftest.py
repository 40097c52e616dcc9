"""One Spark session for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamclient.spark import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = local_session("tests")
    yield session
    session.stop()
