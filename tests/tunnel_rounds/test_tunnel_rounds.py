"""A round with real processes, in every test run; ``make tunnel-rounds`` plays many, with more rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tunnel_rounds.scene import play
from tests.tunnel_rounds.worker import WAYS


@pytest.mark.slow
def test_tunnels_of_every_kind_lose_nothing_and_reorder_nothing(tmp_path: Path) -> None:
    shown = play(1, tmp_path / "round", 4_000)

    assert shown.problems == []
    assert shown.delivered > 8_000
    assert set(shown.ways) == set(WAYS)
