"""The execution of an operator's command: plan, audit, pause, write, resume.

Laws:

* Nothing is written before the whole plan is allowed. Every write is conditional.
* The audit rows are stored before the first write to a lease, a pause included, and completed after the last write.
* A command resumes the shards that it paused, even if it fails. If the command's process dies, its pauses end by
  themselves, about ``ABANDONED_SECONDS`` after the time for which the command would have waited for owners.
* An operator may agree to a plan by its digest. If the plan has changed since then, the command writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import field, frozen

from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_SECOND, duration
from streamclient.core.leases import LeaseWrite
from streamclient.errors import StreamClientError, StreamClientException
from streamclient.model import Lease, Pause
from streamclient.operate.audit import AuditLog, plain, records_for
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_writing import StatusTableWriter
from streamclient.operate.liveness import is_pause_on, living_workers
from streamclient.operate.plans import PAUSE_RESERVE_SECONDS, ChangePlan, Hindrance, PlannedWrite, Planner, pause_lasts
from streamclient.operate.site import Site, text_of
from streamclient.operate.watching import RowWatcher, may_be_read, still_there
from streamclient.worker.lease.audit_rows import DONE, AuditRecord

ABANDONED_SECONDS = 900.0
"""The seconds for which a command's pauses last beyond the time that the command waits for owners. They matter only if
the command's process dies. They suffice for slow answers and for clocks that differ, and are few enough that no
operator has to end the pauses by hand."""

DIGEST_CHARACTERS = 16
"""The number of hexadecimal digits in the digest of a plan. Its 64 bits suffice to distinguish the plans of one
operator."""

_OWNERS_OWN = frozenset({"counter", "pause_taken"})
"""The fields of a lease that its owner may write without changing an operator's plan."""

_DRAWN = frozenset({"request_id", "at_micros", "until_micros"})
"""The fields that differ in each plan of the same command: ids and times. The digest of a plan leaves these fields out.
Two commands with different durations still have different digests, because the digest covers the command's text."""


class PlanChangedError(StreamClientException):
    """The error for a plan that is no longer the plan to which the operator agreed. Nothing was written."""


class OrderStatus(Enum):
    """The way in which a command ended."""

    PLANNED = "planned"
    """A dry run: nothing was written."""
    DONE = "done"
    UNCHANGED = "unchanged"
    """Nothing had to be changed."""
    REFUSED = "refused"
    """The command is not allowed; nothing was written."""
    GIVEN_UP = "given-up"
    """An owner did not acknowledge a pause in time. No position and no owner was changed."""
    FAILED = "failed"
    """Some writes were not accepted; the outcomes say which."""


@frozen(kw_only=True)
class Order:
    """A command of an operator about leases, ready to be planned."""

    command: str
    """The text of the command as the operator types it. The audit stores this text."""
    prepare: Callable[[FleetFacts], Planner]
    """The function that looks positions up and makes the planner. It is called again after the owner has paused,
    because the owner may have read further records before the pause. Raises ``ConfigurationError`` if the command makes
    no sense for the facts."""
    reason: str = ""
    change_id: str
    """The id that the command's audit rows share."""
    wakes_all: bool = False
    """True if every worker should read the lease rows immediately, not only the workers whose leases change."""


@frozen(kw_only=True)
class OrderReport:
    """The outcome of a command: its status, its plan, and the outcome of each write."""

    status: OrderStatus
    plan: ChangePlan
    change_id: str = ""
    """The id that the command's audit rows share; empty if the command has no audit rows."""
    outcomes: Mapping[str, str] = field(factory=dict)
    """The outcome by shard: ``done``, or the reason why the write failed."""
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Work:
    """A command whose plan is allowed and whose audit rows are stored."""

    order: Order
    plan: ChangePlan
    planner: Planner
    records: Sequence[AuditRecord]
    still: Mapping[str, Lease]
    """The leases whose counters did not change while they were watched. So their owners are dead."""

    def report(self, status: OrderStatus, outcomes: Mapping[str, str], *notes: str) -> OrderReport:
        return OrderReport(
            status=status, plan=self.plan, change_id=self.records[0].change_id, outcomes=outcomes, notes=notes
        )


class OrderExecutor:
    """The executor of one operator's commands about the leases of one fleet. For one thread."""

    def __init__(
        self,
        site: Site,
        collector: FleetReader,
        who: str,
        *,
        watcher: RowWatcher | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._site = site
        self._collector = collector
        self._who = who
        self._watcher = watcher or RowWatcher(collector)
        self._writer = StatusTableWriter(site, collector)
        self._say = say

    def carry_out(
        self, order: Order, *, dry_run: bool = False, pause_seconds: float | None = None, agreed: str | None = None
    ) -> OrderReport:
        """Plan the command and, without ``dry_run``, write its changes.

        With ``pause_seconds``, pause running owners first, and wait for them for at most this time. With ``agreed``,
        the ``order_digest`` of an earlier dry run, write the changes only if the plan is still the same.

        Raises:
            PlanChangedError: the plan's digest is not ``agreed``; nothing was changed.
            StreamClientError: a read failed, the audit could not be written, or the command makes no sense for the
                fleet. Nothing was changed, unless a read failed after the first write.
        """
        facts = self._facts()
        planner = order.prepare(facts)
        facts, still = self._watched(facts, planner)
        plan = planner(facts, still)
        hindered = [refusal.shard_id for refusal in plan.refusals if refusal.hindrance is Hindrance.OWNER_RUNS]
        if len(plan.refusals) > (0 if pause_seconds is None else len(hindered)):
            return OrderReport(status=OrderStatus.PLANNED if dry_run else OrderStatus.REFUSED, plan=plan)
        whole = planner(facts, {*still, *hindered})
        if dry_run:
            return OrderReport(status=OrderStatus.PLANNED, plan=whole, notes=_first_paused(facts, hindered))
        if agreed not in (None, order_digest(order, whole)):
            raise PlanChangedError(f"the plan of `{order.command}` is not the one that was agreed to: look at it again")
        if not whole.changes:
            return OrderReport(status=OrderStatus.UNCHANGED, plan=whole)
        records = self._intend(order, whole.changes)
        work = _Work(order=order, plan=whole, planner=planner, records=records, still=still)
        to_pause = [*hindered, *_to_be_taken(facts, whole, still)]
        if to_pause and pause_seconds is not None:
            return self._paused(work, facts, to_pause, pause_seconds)
        return self._completed(work, facts, self._writer.write(facts, planner, still, whole.changes))

    def await_pauses(self, shard_ids: Sequence[str], seconds: float) -> list[str]:
        """Wait until no worker reads the paused shards ``shard_ids``.

        Return the shards that may still be read after ``seconds``.
        """
        return self._watcher.await_quiet(self._facts(), shard_ids, seconds)

    def _facts(self) -> FleetFacts:
        facts = self._collector.collect()
        if facts.trouble:
            raise StreamClientException(facts.trouble)
        if facts.stream.stream_id is None:
            raise StreamClientException(f"data table {facts.stream.table_name!r} has no stream")
        return facts

    def _watched(self, facts: FleetFacts, planner: Planner) -> tuple[FleetFacts, Mapping[str, Lease]]:
        """Watch the leases of those owners that seem dead and whose death matters for the plan.

        Return the facts after the watch, and the leases that did not change, by shard id. Their owners are dead. If no
        such lease is to be watched, return ``facts`` and no leases.
        """
        unobserved = [
            refusal.shard_id for refusal in planner(facts, ()).refusals if refusal.hindrance is Hindrance.UNOBSERVED
        ]
        if not unobserved:
            return facts, {}
        self._say(f"watching {counted(len(unobserved), 'lease')} for up to {duration(facts.lease_duration_seconds)}")
        still = self._watcher.standing_still(facts, unobserved)
        facts = self._collector.refreshed(facts)
        return facts, still_there(facts, still)

    # --- pause, change, resume -------------------------------------------------------------------------------------

    def _paused(self, work: _Work, facts: FleetFacts, to_pause: Sequence[str], seconds: float) -> OrderReport:
        pause = self._own_pause(work.order, seconds)
        before = {key: lease.pause for key in to_pause if (lease := facts.lease(key)) is not None}
        before = {key: old for key, old in before.items() if not pause_lasts(old, facts.now_micros)}
        try:
            late, outcomes = self._change_quietly(work, facts, to_pause, dict.fromkeys(before, pause), seconds)
        except BaseException as error:
            # No other code would ever complete these audit rows. The lease rows show which writes were made.
            outcome = {record.shard_id: f"ended early: {type(error).__name__}: {error}" for record in work.records}
            self._complete_audit(work.records, outcome)
            raise
        finally:
            self._end_pauses(facts, pause, before)
        return self._given_up(work, facts, late) if late else self._completed(work, facts, outcomes)

    def _change_quietly(
        self, work: _Work, facts: FleetFacts, to_pause: Sequence[str], pauses: Mapping[str, Pause], seconds: float
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """Pause the shards, wait until no worker reads them, and write the changes.

        If workers still read some of the shards after ``seconds``, write no change; return these shards, and no
        outcomes. Otherwise return no shards, and the outcomes of the writes by shard id. If a worker takes a lease
        meanwhile, it finds the pause in the lease row, and the command waits for that worker, too.
        """
        facts = self._writer.put_pauses(facts, pauses)
        self._wake_owners(facts, to_pause)
        self._say(f"paused {counted(len(pauses), 'shard')}, waiting up to {duration(seconds)} for their owners")
        deadline, outcomes, taken = self._watcher.now() + seconds, dict[str, str](), to_pause
        while taken:
            late = self._watcher.await_quiet(facts, {*to_pause, *taken}, deadline - self._watcher.now())
            if late:
                return ([] if outcomes else late), outcomes
            facts = self._collector.refreshed(facts)
            outcomes = self._writer.write(facts, work.order.prepare(facts), work.still, work.plan.changes)
            facts = self._collector.refreshed(facts)
            taken = [key for key, outcome in outcomes.items() if outcome != DONE and may_be_read(facts, key)]
        return (), outcomes

    def _own_pause(self, order: Order, seconds: float) -> Pause:
        lasting = seconds + ABANDONED_SECONDS + PAUSE_RESERVE_SECONDS
        until = self._site.clock.now_micros() + round(lasting * MICROS_PER_SECOND)
        return Pause(uuid.uuid4().hex[:12], self._who, f"while it is changed: {order.command}", until)

    def _end_pauses(self, facts: FleetFacts, pause: Pause, before: Mapping[str, Pause | None]) -> None:
        """End the command's own pauses; put back each earlier pause that has not run out."""
        facts = self._collector.refreshed(facts)
        now = self._site.clock.now_micros()
        own = {key: old for key, old in before.items() if (lease := facts.lease(key)) and lease.pause == pause}
        lasting = {key: old if is_pause_on(old, now) else None for key, old in own.items()}
        facts = self._writer.put_pauses(facts, lasting)
        self._wake_owners(facts, lasting)

    def _given_up(self, work: _Work, facts: FleetFacts, late: Sequence[str]) -> OrderReport:
        owners = sorted({lease.owner for key in late if (lease := facts.lease(key)) is not None})
        note = (
            f"worker {', '.join(owners)} did not stop reading {', '.join(late)} in time; nothing was changed. "
            "`streamclient explain` says why"
        )
        outcomes = {change.shard_id: "not changed: not every owner paused in time" for change in work.plan.changes}
        return work.report(OrderStatus.GIVEN_UP, outcomes, note, *self._complete_audit(work.records, outcomes))

    # --- audit and end ---------------------------------------------------------------------------------------------

    def _intend(self, order: Order, changes: Sequence[PlannedWrite]) -> Sequence[AuditRecord]:
        records = records_for(
            [change.write for change in changes],
            change_id=order.change_id,
            at_micros=self._site.clock.now_micros(),
            who=self._who,
            command=order.command,
            reason=order.reason,
        )
        self._audit.intend(records)
        return records

    def _completed(self, work: _Work, facts: FleetFacts, outcomes: Mapping[str, str]) -> OrderReport:
        notes = self._complete_audit(work.records, outcomes)
        names = {name for change in work.plan.changes for name in _concerned(change.write)}
        self._site.wake({*names, *living_workers(facts)} if work.order.wakes_all else names)
        is_done = all(outcome == DONE for outcome in outcomes.values())
        return work.report(OrderStatus.DONE if is_done else OrderStatus.FAILED, outcomes, *notes)

    def _complete_audit(self, records: Sequence[AuditRecord], outcomes: Mapping[str, str]) -> tuple[str, ...]:
        """Complete the audit rows. If that fails, return a note instead of an error: the changes are made already."""
        try:
            self._audit.complete(records, outcomes)
        except StreamClientError as error:
            return (f"the audit rows of change {records[0].change_id} stay incomplete: {text_of(error)}",)
        return ()

    @property
    def _audit(self) -> AuditLog:
        return AuditLog(self._site.client, self._site.status_table, self._site.stream_id)

    def _wake_owners(self, facts: FleetFacts, shard_ids: Iterable[str]) -> None:
        self._site.wake(lease.owner for key in shard_ids if (lease := facts.lease(key)) is not None)


def order_digest(order: Order, plan: ChangePlan) -> str:
    """Return the digest of a plan. Two plans of a command have the same digest if they would make the same changes.

    The digest covers the command, its reason, and for each write the shard, the kind, and the fields before and after.
    It leaves out counters and acknowledgements, which owners write all the time, and the ids and times of new orders.
    """
    writes = [_write_digested(change.write) for change in sorted(plan.changes, key=lambda change: change.shard_id)]
    text = json.dumps([order.command, order.reason, writes], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _write_digested(write: LeaseWrite) -> list[Any]:
    before = sorted({*write.rule.if_same, *write.changes} - _OWNERS_OWN)
    after = sorted({*write.changes} - _OWNERS_OWN)
    return [
        write.lease_key,
        write.kind.value,
        {name: plain(getattr(write.seen, name)) for name in before},
        None if write.result is None else {name: _timeless(plain(getattr(write.result, name))) for name in after},
    ]


def _timeless(value: Any) -> Any:
    """Return the value of a field without the ids and times that are new in each plan of a command."""
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    return {name: each for name, each in value.items() if name not in _DRAWN} if isinstance(value, dict) else value


def _first_paused(facts: FleetFacts, shard_ids: Sequence[str]) -> tuple[str, ...]:
    owners = sorted({lease.owner for key in shard_ids if (lease := facts.lease(key)) is not None})
    return (f"worker {', '.join(owners)} would first pause {', '.join(shard_ids)}",) if shard_ids else ()


def _to_be_taken(facts: FleetFacts, plan: ChangePlan, still: Collection[str]) -> list[str]:
    """Return the shards of the plan whose leases a living worker may take before the command writes them.

    A worker may take a lease that has no owner, or that was handed over to it. The shards ``still`` are left out,
    because their leases did not change while they were watched.
    """
    if not living_workers(facts):
        return []
    leases = {change.shard_id: change.write.seen for change in plan.changes}
    return [key for key, lease in leases.items() if key not in still and (lease.is_handed_over or not lease.owner)]


def _concerned(write: LeaseWrite) -> tuple[str, ...]:
    """Return the workers that should read the lease row immediately after the write: the owner and the next owner."""
    return (write.seen.owner, "" if write.result is None else write.result.stealer)
