"""Epochs: numbers that grow from one acquisition of a shard to the next.

A destination compares epochs, to refuse the writes of a worker that has lost its lease. After each take, a worker draws
an epoch from a counter of the shard. That counter only grows, and stays when the lease row is deleted. The worker
starts no consumer before it has the epoch. Laws:

* **The later of two acquisitions of a shard has the greater epoch.** Let acquisition A be followed by acquisition B.
  A's epoch is used only if it arrives while A's lease is held and valid, so it was drawn while A's lease was valid. B's
  take is applied later: no worker takes a lease on which the owner may still rely, and an owner that hands a lease over
  no longer holds it. B's epoch is drawn after B's take was applied. So the counter gave A's epoch before B's epoch, and
  A's epoch is the smaller one.
* **The later of two processes with one name has the greater epoch, too,** while the older process does not know yet
  that the newer process takes its leases. Before a worker uses an epoch, it reads its own row. That read must be
  requested after the epoch arrived, and must show the session unchanged. So the newer process registers after this
  read, takes the lease later, and draws a greater epoch, although both processes may read for a moment.
* **An epoch that arrives after the end of its acquisition is never used,** not even by a later acquisition: another
  worker may have drawn an epoch in between. At any time at most one draw per lease is unanswered, so answers cannot be
  confused.
* **Consumers of one acquisition share its epoch.** If the row of a held lease was missing, or was overwritten with a
  new row, another worker may have held the lease meanwhile. So the worker restores the row and draws a second epoch. If
  the second epoch is the next number after the first epoch, no other worker drew an epoch, and the acquisition goes on.
  Otherwise the consumer ends, and a new consumer gets the second epoch.
"""

from __future__ import annotations

from streamclient.base.reasons import described, times
from streamclient.core.events import Answered, CheckpointOutcome, DrawEpoch, Severity
from streamclient.core.held import Acquisition, HeldLease
from streamclient.core.settle import settle, start_anew
from streamclient.core.values import evolve
from streamclient.core.worker_state import WorkerState


def epoch_answered(state: WorkerState, call: DrawEpoch, answer: Answered[int]) -> None:
    """Use the drawn epoch if its acquisition still goes on. If the draw failed, draw again after a pause."""
    number = state.draws.pop(call.lease_key, None)
    held = state.held.get(call.lease_key)
    if held is not None and held.acquisition.number == number:
        if answer.value is not None:
            _drawn(state, held, answer.value)
        else:
            _undrawn(state, held, answer.error)
    settle(state, call.lease_key)


def _drawn(state: WorkerState, held: HeldLease, epoch: int) -> None:
    former = held.acquisition
    known = evolve(held, acquisition=Acquisition(former.number, former.identifier, epoch, needs_epoch=False))
    state.keep(known)
    if former.epoch not in (0, epoch - 1):
        _another_acquired(state, known)


def _undrawn(state: WorkerState, held: HeldLease, error: Exception | None) -> None:
    failures = held.acquisition.failures + 1
    problem = f"drawing it failed {times(failures)}" + ("" if error is None else f": {described(error)}")
    again_at = state.now + state.pause_seconds(failures)
    acquisition = evolve(held.acquisition, failures=failures, problem=problem, draw_again_at=again_at)
    state.keep(evolve(held, acquisition=acquisition))
    if failures == 2:
        text = f"no epoch for this acquisition, {problem}: {held.lease}"
        state.report(Severity.WARNING, held.lease.lease_key, text)


def _another_acquired(state: WorkerState, held: HeldLease) -> None:
    text = f"another worker may have read it while its row was gone or reset; reading starts anew: {held.lease}"
    state.report(Severity.WARNING, held.lease.lease_key, text)
    renamed = evolve(held, acquisition=evolve(held.acquisition, identifier=""))
    start_anew(state, renamed, in_doubt=CheckpointOutcome.UNKNOWN)
