"""Pauses: shards that stay held and are not read, because an operator or the worker's own program said so.

An operator's pause stands in the lease row, so it outlives its owner; every worker that holds the lease obeys it, as
long as this machine's wall clock has not reached its end. It moves no counter: the owner notices it by its next scan,
or whenever it reads the row back. Once nothing reads the shard any more the owner says so in the row, and an operator
may change the checkpoint. Before anything reads again the owner takes that back, by a write that compares the counter:
if an operator changed the row meanwhile it is refused. Pauses of the worker's own program are kept in memory only.
"""

from __future__ import annotations

from streamclient.core.situation import Situation
from streamclient.core.tenancy import ConsumerPhase, HeldLease
from streamclient.model import Lease, Pause, utc_text
from streamclient.reasons import Cause, Reason


def pause_reason(situation: Situation, held: HeldLease) -> Reason | None:
    """Why the shard is paused; ``None`` if it is not."""
    pause = present_pause(situation, held.lease)
    if pause is not None:
        until = "" if pause.until_micros is None else f" until {utc_text(pause.until_micros)}"
        return Reason(Cause.PAUSED, pause.by, f"{pause.reason}{until}")
    if situation.own_pauses:
        for key in (held.lease.lease_key, None):
            if key in situation.own_pauses:
                return Reason(Cause.PAUSED_BY_PROGRAM, detail=situation.own_pauses[key])
    return None


def present_pause(situation: Situation, lease: Lease) -> Pause | None:
    """The operator's pause of a row, unless it is over."""
    pause = lease.pause
    if pause is None or pause.until_micros is None or situation.now < situation.moment_of(pause.until_micros):
        return pause
    return None


def must_take_back(situation: Situation, held: HeldLease) -> bool:
    """Whether the row may say that this worker obeys a pause that is over."""
    return held.has_acknowledged and present_pause(situation, held.lease) is None


def must_acknowledge(situation: Situation, held: HeldLease) -> bool:
    """Whether the row should say that its owner obeys: nothing reads, and it does not say so yet."""
    pause = present_pause(situation, held.lease)
    return (
        pause is not None
        and held.consumer is ConsumerPhase.NONE
        and held.lease.lease_key not in situation.running
        and not held.lease.is_paused_by_owner
        and held.mute_pause != pause.request_id
    )
