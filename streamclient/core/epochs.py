"""Epochs: numbers of acquisitions that a destination can compare, to refuse whoever lost its lease and goes on writing.

A worker draws a number after each take, from a counter of the shard that only grows and outlives the lease row, and
starts no consumer before it has the number. Laws:

* **Of two acquisitions of a shard, the later one has the greater epoch.** Let A be followed by B. A's number is used
  only if it arrives while A's tenancy is held and valid, so it was drawn before that moment. B's take is applied later:
  no worker takes a lease that its owner may still rely on, and an owner that hands it over holds it no more. B's number
  is drawn after B's take was applied. The counter gave A's before B's, so A's is the smaller one.
* **The same holds for two processes with one name,** of which the older one does not know yet that the newer one takes
  its leases. A number is used only after a look at the worker's own row that was asked for after the number had arrived
  and showed the session in place. So the newer process registered later than that, took the lease later still, and
  draws a greater number, although both may read for a moment.
* **A number that arrives after its acquisition is over is never used,** by a later acquisition neither: somebody else
  may have drawn in between. At most one draw per lease is under way, so an answer is never taken for another one's.
* **Consumers of one acquisition share its epoch.** A row that was put anew or created again under its owner proves
  nothing about what happened in between, so another number is drawn. If it is the next one, nobody else drew: the same
  acquisition goes on. If it is not, its consumer is ended, and a new one starts with the new number.
"""

from __future__ import annotations

from attrs import evolve

from streamclient.core.census import NEVER
from streamclient.core.events import CheckpointOutcome, EpochDrawn, EpochUndrawn, Severity
from streamclient.core.situation import Situation
from streamclient.core.tenancies import settle, start_anew
from streamclient.core.tenancy import HeldLease


def epoch_drawn(situation: Situation, event: EpochDrawn) -> None:
    """Use a number, if the acquisition that it was drawn for still stands."""
    key = event.lease_key
    acquisition = situation.draws.pop(key, None)
    held = situation.held.get(key)
    if held is not None and acquisition == held.acquisition:
        known = evolve(
            held,
            epoch=event.epoch,
            needs_epoch=False,
            epoch_problem="",
            epoch_failures=0,
            draw_again_at=NEVER,
        )
        situation.keep(known)
        if held.epoch not in (0, event.epoch - 1):
            _another_acquired(situation, known)
    settle(situation, key)


def epoch_undrawn(situation: Situation, event: EpochUndrawn) -> None:
    """Draw again after a pause."""
    key = event.lease_key
    acquisition = situation.draws.pop(key, None)
    held = situation.held.get(key)
    if held is not None and acquisition == held.acquisition:
        failures = held.epoch_failures + 1
        problem = f"drawing it failed {failures} times: {type(event.error).__name__}: {event.error}"
        again_at = situation.now + situation.pause_seconds(failures)
        situation.keep(evolve(held, epoch_failures=failures, epoch_problem=problem, draw_again_at=again_at))
        if failures == 2:
            situation.report(Severity.WARNING, key, f"no epoch for this acquisition, {problem}: {held.lease}")
    settle(situation, key)


def _another_acquired(situation: Situation, held: HeldLease) -> None:
    text = f"another worker may have read it while its row was gone or reset; reading starts anew: {held.lease}"
    situation.report(Severity.WARNING, held.lease.lease_key, text)
    start_anew(situation, evolve(held, lease_identifier=""), in_doubt=CheckpointOutcome.UNKNOWN)
