"""The writes of an operator's orders to the status table, and the outcome of each write. For one thread."""

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
"""The largest number of tries of one write, each planned on a fresh reading of the row. A paused owner renews its lease
every few seconds, and a renewal can make a try fail, but hardly six tries in a row."""


class StatusTableWriter:
    """The writer of one fleet's status table, for the orders of operators."""

    def __init__(self, site: Site, collector: FleetReader) -> None:
        self._site = site
        self._collector = collector

    def write(
        self, facts: FleetFacts, planner: Planner, still: Mapping[str, Lease], changes: Sequence[PlannedWrite]
    ) -> dict[str, str]:
        """Make the planned ``changes``, those of the lowest rank first; return the outcomes by shard id.

        Before each try of a write, ``planner`` plans the write anew, from ``facts`` at first and then from a fresh
        reading. The tries end when the write succeeds, when the new plan refuses the write, or after ``TRIES_AT_MOST``
        tries. If a write does not succeed, no write of a higher rank is made. ``still`` has the leases of owners that
        proved dead.
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
            # If the plan no longer changes a row, the row has the wanted content.
            outcomes.update((key, DONE) for key in left - writes.keys() - refused.keys())
            outcomes.update(self.send([writes[key] for key in sorted(writes)]))
            left = {key for key in writes if outcomes[key] != DONE}
            facts = self._collector.refreshed(facts)
            if not left:
                break
        return facts

    def put_pauses(self, facts: FleetFacts, pauses: Mapping[str, Pause | None]) -> FleetFacts:
        """Set the pause of each shard in ``pauses``, or end it for ``None``; return facts that are read afterwards."""
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
        """Send each write once; return the outcomes by shard id.

        If the answer to a write is lost, read the row to find out whether the write was made.
        """
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
