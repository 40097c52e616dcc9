"""The reason why a shard moves or does not: facts in, one sentence out. Pure.

Laws:

* The sentence names the cause that has to end first. A shard that waits for its parent is explained by its nearest
  ancestor that does not wait for another shard.
* The content of the tables comes before the words of a worker, and these come before the evidence of the shard's
  records. An operator's pause comes before the death of an owner, because no worker would read the shard anyway.
* Nothing is guessed: if the facts do not suffice, the sentence says so.
"""

from __future__ import annotations

from streamclient.operate.cases import Case, Explanation
from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_rules import LEASE_RULES
from streamclient.operate.record_rules import judge_by_records
from streamclient.operate.row_rules import ROW_RULES


def explain(facts: FleetFacts, shard_id: str) -> Explanation:
    """Return the verdict about one shard."""
    return _judge(Case(facts=facts, shard_id=shard_id, judge=_judge))


def _judge(case: Case) -> Explanation:
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
