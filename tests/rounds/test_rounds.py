"""A round with real processes, in every test run; ``make rounds`` plays many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds.scene import play


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_lose_nothing_and_reorder_nothing(seed: int, tmp_path: Path) -> None:
    shown = play(seed, tmp_path / "round")

    assert shown.verdict.is_clean, shown.verdict
    assert min(shown.kills, shown.splits, shown.merges) > 0
