"""Which cases of a family run each time, and which only with ``make test-long``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters: of each ``step`` cases in turn the first runs each time, and the others are marked ``long``."""
    return [pytest.param(case, marks=() if place % step == 0 else pytest.mark.long) for place, case in enumerate(cases)]
