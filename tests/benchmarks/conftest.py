"""What the tests of benchmarks use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A server of the test's own: a group makes its tables once, and an instance has room for 64 of them."""
    with Stage() as own:
        yield own
