"""Simulated histories for a model of each destination: nothing lost, nothing twice.

More of them: ``python -m tests.destinations.test_destination_histories 10000``, a part of ``make destination-rounds``.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.destinations.histories import Delta, Iceberg, Model, Postgres, run_history, violations

HISTORIES = 2_000
FEW = 600
"""Among which each broken rule shows."""

KINDS = ("prepare", "commit", "checkpoint")
"""Requests that meet faults."""

MODELS = (Delta, Iceberg, Postgres)


def judge(model: type[Model], histories: int) -> None:
    fenced = crashes = 0
    met: Counter[str] = Counter()
    for seed in range(histories):
        outcome = run_history(model, seed)
        assert violations(outcome) == [], f"{model.__name__}, seed {seed}"
        fenced += outcome.fenced
        crashes += outcome.crashes
        met += outcome.met

    # The histories are worth something: each fault was met, and late owners were refused.
    assert fenced >= histories / 100
    assert crashes >= histories
    faults = [f"{kind}: {fault}" for kind in KINDS for fault in ("request lost", "answer lost", "late")]
    assert min(met[fault] for fault in (*faults, "late, refused")) >= histories / 100


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_histories_store_each_record_once(model: type[Model]) -> None:
    judge(model, HISTORIES)


@pytest.mark.parametrize(
    ("model", "mutation"),
    [
        (Delta, "takes an error for a success"),
        (Delta, "looks at nothing"),
        (Delta, "commits without transactions"),
        (Delta, "store ignores the condition"),
        (Delta, "knows repeats, not owners"),
        (Delta, "cuts anew"),
        (Delta, "commits what it may not have prepared"),
        (Iceberg, "retries by itself"),
        (Iceberg, "looks at nothing"),
        (Iceberg, "takes an error for a success"),
        (Postgres, "locks nothing"),
        (Postgres, "looks at nothing"),
        (Postgres, "takes an error for a success"),
    ],
)
def test_a_rule_that_is_broken_shows_in_some_history(model: type[Model], mutation: str) -> None:
    assert any(violations(run_history(model, seed, mutation)) for seed in range(FEW))


def test_a_history_is_decided_by_its_seed() -> None:
    assert run_history(Delta, 7).rows == run_history(Delta, 7).rows


if __name__ == "__main__":
    for each in MODELS:
        judge(each, int(sys.argv[1]))
        print(f"{each.__name__}: {sys.argv[1]} histories, each record once")
