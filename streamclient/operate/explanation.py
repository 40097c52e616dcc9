"""The reason why a shard moves or does not: facts in, one sentence out. Pure.

Laws:

* The sentence names the cause that has to end first. A shard that waits for its parent is explained by its nearest
  ancestor that does not wait for another shard.
* The content of the tables comes before the words of a worker, and these come before the evidence of the shard's
  records. An operator's pause comes before the death of an owner, because no worker would read the shard anyway.
* Nothing is guessed: if the facts do not suffice, the sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamclient.operate.cases import Case, Explanation
from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_rules import LEASE_RULES
from streamclient.operate.liveness import living_workers
from streamclient.operate.record_rules import judge_by_records
from streamclient.operate.row_rules import ROW_RULES


def explain(facts: FleetFacts, shard_id: str) -> Explanation:
    """Return the verdict about one shard."""
    ancestors = (key for key in facts.tree.ancestors(shard_id) if not _is_finished(facts, key))
    return explanations(facts, [*ancestors, shard_id])[-1]


def explanations(facts: FleetFacts, shard_ids: Iterable[str]) -> list[Explanation]:
    """Return the verdicts about shards, in the order given.

    An ancestor for which several shards wait is judged once.
    """
    wanted = list(shard_ids)
    judge, living = _Judge(), tuple(living_workers(facts))
    for key in facts.tree.ancestors_first(wanted):
        judge(Case(facts=facts, shard_id=key, judge=judge, living=living))
    return [judge.verdicts[key] for key in wanted]


def _is_finished(facts: FleetFacts, shard_id: str) -> bool:
    lease = facts.lease(shard_id)
    return lease is not None and lease.is_finished


class _Judge:
    """Applies the rules, and remembers the verdicts.

    A shard that waits needs the verdict about the shard before it, so that shard is judged first. So a long chain of
    waiting shards costs one verdict each, and the calls are not nested.
    """

    def __init__(self) -> None:
        self.verdicts: dict[str, Explanation] = {}

    def __call__(self, case: Case) -> Explanation:
        known = self.verdicts.get(case.shard_id)
        # In a cycle a verdict depends on the shard that asks for it.
        if known is not None and case.shard_id not in case.facts.tree.circles:
            return known
        verdict = _judged(case)
        if not case.above:
            self.verdicts[case.shard_id] = verdict
        return verdict


def _judged(case: Case) -> Explanation:
    for rule in ROW_RULES:
        verdict = rule(case)
        if verdict is not None:
            return verdict
    row = case.row
    if row is None or row.lease is None:
        raise AssertionError("unreachable: the rules about rows cover every row that is not a lease")
    for lease_rule in LEASE_RULES:
        verdict = lease_rule(case, row, row.lease)
        if verdict is not None:
            return verdict
    return judge_by_records(case, row, row.lease)
