"""The plan of an operator's command: its writes, and the reasons that forbid them. Pure.

Laws:

* Each write of a plan is conditional: it fails if its row has changed since the row was read.
* A plan changes a position or releases a lease only if certainly no worker reads the shard. Either the shard has no
  owner; or its owner has acknowledged a pause that lasts; or its owner is dead. An owner is dead if its session was
  killed, or if the lease's counter was watched for a lease duration and did not change.
* A plan keeps the order of records: a shard whose descendants have begun is read again only together with them.
* A plan with a refusal is not carried out, not even in part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

from attrs import evolve, frozen

from streamclient.base.times import MICROS_PER_SECOND, duration, utc_text
from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.model import CheckpointPosition, Lease, Pause, RecordOrder
from streamclient.operate.facts import FleetFacts
from streamclient.operate.liveness import Liveness, is_lease_silent, is_pause_on, life, living_workers

PAUSE_RESERVE_SECONDS = 60.0
"""The shortest time, in seconds, for which a pause must still last to protect a change. It covers the write, and the
difference between the clocks of the operator and the owner."""


class Hindrance(Enum):
    """The kinds of refusals, by the step that would make the change possible."""

    FINAL = "final"
    OWNER_RUNS = "owner-runs"
    """The change becomes possible once the owner has acknowledged a pause."""
    UNOBSERVED = "unobserved"
    """The owner may be dead. Watching the lease's counter for a lease duration would show whether it is."""


@frozen(kw_only=True)
class PlannedWrite:
    """One planned write of a lease row, with its effect and its place among the writes."""

    write: LeaseWrite
    effect: str
    """The effect of the write, in words for the operator."""
    rank: int = 0
    """The place of the write in the sequence of writes. A write is sent only after all writes of lower rank
    succeeded."""

    @property
    def shard_id(self) -> str:
        """The id of the shard whose lease row is written."""
        return self.write.lease_key


@frozen(kw_only=True)
class Refusal:
    """The reason why a plan must not write one lease row."""

    shard_id: str
    reason: str
    hindrance: Hindrance = Hindrance.FINAL


@frozen(kw_only=True)
class ChangePlan:
    """The writes of a command, in order, and the refusals that forbid them."""

    changes: tuple[PlannedWrite, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences that the operator should read before the plan is carried out."""

    def with_notes(self, *notes: str) -> ChangePlan:
        """Return this plan with ``notes`` added."""
        return evolve(self, notes=(*self.notes, *notes))


Planner = Callable[[FleetFacts, Collection[str]], ChangePlan]
"""A function that returns a plan. Its arguments are the facts, and the shards whose owners proved dead: the counters of
their leases were watched for a lease duration and did not change."""


@frozen(kw_only=True)
class Target:
    """The position to which a command moves a shard, as it was looked up."""

    checkpoint: str
    """The position as the status table stores it: ``TRIM_HORIZON``, ``SHARD_END`` or an iterator."""
    text: str
    """The position in words, for the operator."""


# --- positions -----------------------------------------------------------------------------------------------------


def plan_rewind(
    facts: FleetFacts,
    stood_still: Collection[str],
    *,
    shard_id: str,
    target: Target,
    with_descendants: bool = False,
) -> ChangePlan:
    """Plan to read a shard again from an earlier position.

    If descendants of the shard have been read already, they must be read again, too, from their beginnings. Without
    ``with_descendants`` the plan is then a refusal.
    """
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    begun = [key for key in _descendants_with_rows(facts, shard_id) if _has_begun(facts, facts.leases[key])]
    if begun and not with_descendants:
        reason = (
            f"{_several(begun, 'descendant')} {'has' if len(begun) == 1 else 'have'} been read already "
            f"({', '.join(begun[:5])}{', ...' if len(begun) > 5 else ''}); reading the shard again would deliver its "
            "old changes after theirs. With --with-descendants they are read again, too"
        )
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=reason),))
    positions = {shard_id: target}
    if begun:
        oldest = Target(checkpoint=CheckpointPosition.TRIM_HORIZON, text="its beginning")
        positions.update(dict.fromkeys(_descendants_with_rows(facts, shard_id), oldest))
    return _moves(facts, stood_still, positions)


def plan_skip(facts: FleetFacts, stood_still: Collection[str], *, shard_id: str, target: Target) -> ChangePlan:
    """Plan to continue a shard at a later position. Its unread records before that position are never delivered."""
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    if lease.is_finished:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason="it is finished: there is nothing to skip"),))
    plan = _moves(facts, stood_still, {shard_id: target})
    children = facts.children.get(shard_id, [])
    if target.checkpoint != CheckpointPosition.SHARD_END:
        return plan
    if not children:
        reason = "it is open: after its end no worker would read its new records. Use --to latest"
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=reason),))
    return plan.with_notes(f"at the end of a shard its children may start: {', '.join(children)}")


def plan_reset(facts: FleetFacts, stood_still: Collection[str], *, targets: Mapping[str, Target]) -> ChangePlan:
    """Plan to read every shard in ``targets`` again from its target position."""
    positions = {key: target for key, target in targets.items() if key in facts.leases}
    malformed = [
        Refusal(shard_id=key, reason=row.why_unreadable) for key, row in sorted(facts.rows.items()) if row.lease is None
    ]
    plan = _moves(facts, stood_still, positions)
    return evolve(plan, refusals=(*malformed, *plan.refusals))


def _moves(facts: FleetFacts, stood_still: Collection[str], positions: Mapping[str, Target]) -> ChangePlan:
    """Plan the new positions, ancestors first, so that descendants wait for their ancestors from the first write on."""
    parents = facts.parents
    changes: list[PlannedWrite] = []
    refusals = []
    ranks: dict[str, int] = {}
    moved: set[str] = set()

    def may_begin(key: str) -> bool:
        """Return whether a worker may begin the shard ``key`` now, although the plan moves one of its parents.

        The row of such a shard is written, too, even if its position is already right.
        """
        is_below = not moved.isdisjoint(parents.get(key, ()))
        return is_below and facts.gates.of(facts.leases[key]).is_open

    for key in facts.tree.ancestors_first(positions):
        lease, target = facts.leases[key], positions[key]
        ranks[key] = 1 + max((ranks.get(parent, -1) for parent in parents.get(key, ())), default=-1)
        refusal = owner_hindrance(facts, lease, stood_still)
        if refusal is not None:
            refusals.append(refusal)
        elif lease.checkpoint != target.checkpoint or lease.pending is not None or may_begin(key):
            effect = f"goes on at {target.text}"
            changes.append(PlannedWrite(write=rule.rewind(lease, target.checkpoint), effect=effect, rank=ranks[key]))
            moved.add(key)
    if not changes and not refusals:
        return ChangePlan(notes=("nothing to change: every position is as asked",))
    return ChangePlan(changes=tuple(changes), refusals=tuple(refusals))


def _descendants_with_rows(facts: FleetFacts, shard_id: str) -> list[str]:
    return [key for key in facts.tree.descendants(shard_id) if key in facts.leases]


def _has_begun(facts: FleetFacts, lease: Lease) -> bool:
    """Return whether records of the shard may have been delivered, with or without a checkpoint.

    They were certainly not delivered if the shard has no checkpoint, and either its parents are unfinished, or no
    worker has written its row since the row was created.
    """
    is_at_start = lease.checkpoint == CheckpointPosition.TRIM_HORIZON and lease.progress is None
    is_untouched = is_at_start and not lease.owner and not lease.counter
    return not is_at_start or (facts.gates.of(lease).is_open and not is_untouched)


# --- owners --------------------------------------------------------------------------------------------------------


def plan_release(
    facts: FleetFacts, stood_still: Collection[str], *, shard_id: str, vouched: bool = False
) -> ChangePlan:
    """Plan to take a lease from its owner, so that another worker may take it.

    With ``vouched`` the operator confirms the owner's death, and one missed heartbeat suffices as proof.
    """
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    if not lease.owner:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason="it has no owner"),))
    if lease.is_handed_over:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=f"it was just handed over to {lease.owner}"),))
    hindrance = owner_hindrance(facts, lease, stood_still)
    if hindrance is not None and not (
        vouched and life(facts, lease.owner) in (Liveness.SILENT, Liveness.DEAD, Liveness.UNSEEN)
    ):
        if vouched:
            hindrance = evolve(
                hindrance,
                hindrance=Hindrance.FINAL,
                reason=f"{hindrance.reason}. --force needs an owner that has missed a heartbeat",
            )
        return ChangePlan(refusals=(hindrance,))
    effect = f"is taken from {lease.owner} and free for another worker"
    return ChangePlan(changes=(PlannedWrite(write=rule.release(lease), effect=effect),))


def plan_move(facts: FleetFacts, stood_still: Collection[str], *, shard_id: str, receiver: str) -> ChangePlan:
    """Plan to hand a lease to ``receiver``: ask a living owner for it, or make ``receiver`` the owner directly."""
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    living = living_workers(facts)
    reason = ""
    if receiver not in living:
        reason = f"worker {receiver} does not live (living: {', '.join(living) or 'none'})"
    elif lease.is_handed_over:
        reason = f"it is on its way to worker {lease.owner}"
    elif lease.owner == receiver:
        reason = f"worker {receiver} has it already"
    elif lease.is_marked:
        reason = f"worker {lease.stealer} has asked for it already"
    if reason:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=reason),))
    if lease.owner and not is_lease_silent(facts, lease):
        effect = f"worker {lease.owner} is asked to finish its batch and hand it to worker {receiver}"
        return ChangePlan(changes=(PlannedWrite(write=rule.steal(lease, receiver), effect=effect),))
    hindrance = owner_hindrance(facts, lease, stood_still)
    if hindrance is not None:
        return ChangePlan(refusals=(hindrance,))
    effect = f"is handed to worker {receiver}, which takes it at its next scan"
    return ChangePlan(changes=(PlannedWrite(write=rule.transfer(lease, receiver), effect=effect),))


def owner_hindrance(facts: FleetFacts, lease: Lease, stood_still: Collection[str]) -> Refusal | None:
    """Return a refusal if a lease's owner may be reading the shard; ``None`` if certainly no worker reads it."""
    if not lease.owner or lease.is_handed_over or lease.lease_key in stood_still:
        return None
    session = facts.workers.get(lease.owner)
    if session is not None and session.state == "killed":
        return None
    if lease.is_paused_by_owner and lease.pause is not None:
        return _pause_hindrance(facts, lease, lease.pause)
    if is_lease_silent(facts, lease):
        reason = f"its owner {lease.owner} is silent; watching it for a lease duration shows whether it is dead"
        return Refusal(shard_id=lease.lease_key, reason=reason, hindrance=Hindrance.UNOBSERVED)
    if session is None:
        reason = (
            f"its owner {lease.owner} runs and has no session row, so it does not obey pauses: stop that worker, and "
            "try again once its lease has expired"
        )
        return Refusal(shard_id=lease.lease_key, reason=reason)
    reason = f"its owner {lease.owner} runs and has not acknowledged a pause; --pause requests one first"
    return Refusal(shard_id=lease.lease_key, reason=reason, hindrance=Hindrance.OWNER_RUNS)


def pause_lasts(pause: Pause | None, now_micros: int) -> bool:
    """Return whether ``pause`` lasts long enough to protect a change until the change is written."""
    if pause is None:
        return False
    return pause.until_micros is None or _seconds_left(pause.until_micros, now_micros) > PAUSE_RESERVE_SECONDS


def _seconds_left(until_micros: int, now_micros: int) -> float:
    return (until_micros - now_micros) / MICROS_PER_SECOND


def _pause_hindrance(facts: FleetFacts, lease: Lease, pause: Pause) -> Refusal | None:
    if pause.until_micros is None or pause_lasts(pause, facts.now_micros):
        return None
    left = _seconds_left(pause.until_micros, facts.now_micros)
    reason = (
        f"its pause ends {f'in {duration(left)}' if left > 0 else 'now'}, and a change needs one that lasts at "
        f"least {duration(PAUSE_RESERVE_SECONDS)} more; --pause requests one first"
    )
    return Refusal(shard_id=lease.lease_key, reason=reason, hindrance=Hindrance.OWNER_RUNS)


# --- pauses --------------------------------------------------------------------------------------------------------


def plan_pause(
    facts: FleetFacts, stood_still: Collection[str], *, shard_ids: Sequence[str], pause: Pause
) -> ChangePlan:
    """Plan to pause the shards ``shard_ids``: their present and later owners hold the leases and do not read."""
    changes, refusals = [], []
    for shard_id in shard_ids:
        lease = lease_of(facts, shard_id)
        if isinstance(lease, Refusal):
            refusals.append(lease)
        elif lease.is_finished:
            refusals.append(Refusal(shard_id=shard_id, reason="it is finished: no worker reads it"))
        else:
            until = "" if pause.until_micros is None else f" until {utc_text(pause.until_micros)}"
            instead = "" if lease.pause is None else f", instead of the pause by {lease.pause.by}"
            effect = f"is not read{until or ' until it is resumed'}{instead}"
            changes.append(PlannedWrite(write=rule.set_pause(lease, pause), effect=effect))
    return ChangePlan(changes=tuple(changes), refusals=tuple(refusals), notes=_deaf_owners(facts, changes))


def _deaf_owners(facts: FleetFacts, changes: Sequence[PlannedWrite]) -> tuple[str, ...]:
    owners = {change.write.seen.owner for change in changes if change.write.seen.owner}
    deaf = sorted(name for name in owners if name not in facts.workers and life(facts, name) is Liveness.LIVING)
    if not deaf:
        return ()
    return (f"worker {', '.join(deaf)} has no session row, so it does not obey pauses",)


def plan_resume(facts: FleetFacts, stood_still: Collection[str], *, shard_ids: Sequence[str]) -> ChangePlan:
    """Plan to end operators' pauses of the shards ``shard_ids``."""
    changes, refusals = [], []
    for shard_id in shard_ids:
        lease = lease_of(facts, shard_id)
        if isinstance(lease, Refusal):
            refusals.append(lease)
        elif lease.pause is None:
            refusals.append(Refusal(shard_id=shard_id, reason="it is not paused by an operator"))
        else:
            effect = f"is read again from its checkpoint; the pause by {lease.pause.by} ends"
            changes.append(PlannedWrite(write=rule.set_pause(lease, None), effect=effect))
    return ChangePlan(changes=tuple(changes), refusals=tuple(refusals))


def plan_accept_end(
    facts: FleetFacts, stood_still: Collection[str], *, shard_id: str, order: Pause, ends_here: bool
) -> ChangePlan:
    """Plan to order a shard's present or next owner to accept the shard's end, although the shard has no child.

    ``order`` is the order to write. It has the form of a pause in the lease row, but it pauses nothing. ``ends_here``
    is true if the service says that the shard is closed and has an end after its checkpoint.
    """
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    reason = ""
    if lease.is_finished:
        reason = "it is finished: its end is stored"
    elif facts.children.get(shard_id):
        reason = f"its end is shown: its children are {', '.join(facts.children[shard_id])}, so its owner accepts it"
    elif not ends_here:
        reason = "the service does not say that it has ended: records follow its checkpoint, or may follow"
    elif is_pause_on(lease.pause, facts.now_micros):
        reason = f"it is paused by {lease.pause.by if lease.pause else ''}; resume it first"
    if reason:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=reason),))
    effect = "ends where the service says so: its remaining records are delivered, then SHARD_END is stored"
    note = f"if shard {shard_id} is open, records written to it from now on are never delivered"
    return ChangePlan(changes=(PlannedWrite(write=rule.set_pause(lease, order), effect=effect),), notes=(note,))


# --- helpers -------------------------------------------------------------------------------------------------------


def lease_of(facts: FleetFacts, shard_id: str) -> Lease | Refusal:
    """Return the lease of a shard, or the refusal that says why no command can change it."""
    row = facts.rows.get(shard_id)
    if row is None:
        reason = f"it has no lease row; known shards: {', '.join(sorted(facts.rows)[:5]) or 'none'}"
        return Refusal(shard_id=shard_id, reason=reason)
    if row.lease is None:
        return Refusal(shard_id=shard_id, reason=row.why_unreadable)
    return row.lease


def order_words(order: RecordOrder) -> str:
    """Return the effect of an order in words, for example ``2 records dropped and never delivered``."""
    records = _several(order.record_ids, "record")
    if order.is_skip:
        return f"{records} dropped and never delivered"
    where = f"table {order.parking_table}" if order.parking_table else f"directory {order.parking_directory}"
    return f"{records} parked in {where}"


def _several(items: Sequence[str], noun: str) -> str:
    return f"one {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
