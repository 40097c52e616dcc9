"""A table mirrored by processes that are killed and frozen, while it is written and its shards split and merge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mirror.drill import drill

ROUNDS = 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "versions", "seed"),
    [pytest.param("delta", 1, 1, marks=pytest.mark.long), ("delta", 3, 2), ("postgres", 2, 3)],
)
def test_a_mirror_equals_its_table_after_crashes_splits_and_drift(
    kind: str, versions: int, seed: int, tmp_path: Path
) -> None:
    said = drill(kind, seed, tmp_path, rounds=ROUNDS, max_versions=versions)

    assert "rows equal" in said
