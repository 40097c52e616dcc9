"""Why a shard moves or does not: facts in, one sentence out. Pure.

Laws:

* The sentence names the cause that has to go first. A shard that waits for its parent is explained by the parent, or by
  that one's parent, up to the one that is not waiting for another.
* What can be seen in the tables comes before what a worker says, which comes before what its records suggest; an
  operator's pause comes before the death of an owner, as nobody would read the shard anyway.
* Nothing is guessed: where the facts do not tell, the sentence says so.
"""

from __future__ import annotations

from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_rules import LEASE_RULES
from streamclient.operate.record_rules import judge_by_records
from streamclient.operate.row_rules import ROW_RULES
from streamclient.operate.verdict import Case, Explanation


def explain(facts: FleetFacts, shard_id: str) -> Explanation:
    """The verdict about one shard."""
    return _judge(Case(facts=facts, shard_id=shard_id, judge=_judge))


def _judge(case: Case) -> Explanation:
    for rule in ROW_RULES:
        found = rule(case)
        if found is not None:
            return found
    row = case.row
    if row is None or row.lease is None:
        raise AssertionError("unreachable: the rules about rows cover every row that is no lease")
    for lease_rule in LEASE_RULES:
        found = lease_rule(case, row, row.lease)
        if found is not None:
            return found
    return judge_by_records(case, row, row.lease)
