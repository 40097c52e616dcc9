"""What the benchmarks of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One server and its tables for all groups, as in a whole run."""
    with Stage() as shared:
        yield shared
