"""What tests of workers begin with."""

from __future__ import annotations

import pytest

from tests.worker.stage import Stage


@pytest.fixture
def world() -> Stage:
    """One stream of one shard, ``a``, on virtual time."""
    return Stage("a")
