"""Sending an operator's conditional writes, and finding out whether they were applied. For one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteOutcome, was_applied
from streamclient.errors import StreamClientError
from streamclient.model import Lease, Pause
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.plans import ChangePlan, PlannedWrite, Planner
from streamclient.operate.site import Site, text_of
from streamclient.operate.watching import still_there
from streamclient.worker.lease.audit_rows import DONE

TRIES_AT_MOST = 6
"""The largest number of times that a write is planned on a fresh row. A paused owner renews every few seconds, and each
renewal makes one write fail; more failures in a row have another cause."""


class StatusTableWriter:
    """The writer of one site's status table."""

    def __init__(self, site: Site, collector: FleetReader) -> None:
        self._site = site
        self._collector = collector

    def write(
        self, facts: FleetFacts, planner: Planner, still: Mapping[str, Lease], changes: Sequence[PlannedWrite]
    ) -> dict[str, str]:
        """Make the changes, rank by rank; return the outcome of each, by shard.

        Each write is planned anew on a fresh row until it is accepted or refused. After a rank that is not entirely
        done, no further rank is written.
        """
        outcomes = {change.shard_id: "not changed" for change in changes}
        for rank in sorted({change.rank for change in changes}):
            keys = {change.shard_id for change in changes if change.rank == rank}

            def plan(fresh: FleetFacts) -> ChangePlan:
                return planner(fresh, still_there(fresh, still))

            facts = self._write_rank(facts, plan, keys, outcomes)
            if any(outcomes[key] != DONE for key in keys):
                break
        return outcomes

    def _write_rank(
        self, facts: FleetFacts, plan: Callable[[FleetFacts], ChangePlan], keys: set[str], outcomes: dict[str, str]
    ) -> FleetFacts:
        left = set(keys)
        for _ in range(TRIES_AT_MOST):
            planned = plan(facts)
            writes = {change.shard_id: change.write for change in planned.changes if change.shard_id in left}
            refused = {refusal.shard_id: refusal.reason for refusal in planned.refusals if refusal.shard_id in left}
            outcomes.update((key, f"not changed: {reason}") for key, reason in refused.items())
            # A row that the plan no longer changes is as it should be.
            outcomes.update((key, DONE) for key in left - writes.keys() - refused.keys())
            outcomes.update(self.send([writes[key] for key in sorted(writes)]))
            left = {key for key in writes if outcomes[key] != DONE}
            facts = self._collector.refreshed(facts)
            if not left:
                break
        return facts

    def put_pauses(self, facts: FleetFacts, pauses: Mapping[str, Pause | None]) -> FleetFacts:
        """Set or end pauses, by shard. A change of the lease's owner does not matter. Return the facts afterwards."""
        left = dict(pauses)
        for _ in range(TRIES_AT_MOST):
            leases = [lease for key in sorted(left) if (lease := facts.lease(key)) is not None]
            outcomes = self.send([rule.set_pause(lease, left[lease.lease_key]) for lease in leases])
            left = {key: left[key] for key, outcome in outcomes.items() if outcome != DONE}
            facts = self._collector.refreshed(facts)
            if not left:
                break
        return facts

    def send(self, writes: Sequence[LeaseWrite]) -> dict[str, str]:
        """Send each write once; return the outcomes by shard. The row of a doubtful write is read back."""
        if not writes:
            return {}
        outcomes = {}
        for write, answer in zip(writes, self._site.write(writes), strict=True):
            if answer.outcome is WriteOutcome.ACCEPTED:
                outcomes[write.lease_key] = DONE
            elif answer.outcome is WriteOutcome.REFUSED:
                outcomes[write.lease_key] = "refused: the row changed meanwhile"
            else:
                outcomes[write.lease_key] = self._read_back(write, answer.error)
        return outcomes

    def _read_back(self, write: LeaseWrite, error: Exception | None) -> str:
        problem = "no answer" if error is None else text_of(error)
        try:
            row = self._site.manager(self._site.stream_id).get_lease(write.lease_key)
        except StreamClientError:
            return f"uncertain: {problem}"
        return DONE if was_applied(row, write) else f"not changed: {problem}"
