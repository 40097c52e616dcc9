"""The life of one shard's consumer, as the table that drives it: only this table decides the next phase.

``machine`` classifies each event as an outcome, looks up the next phase, and begins the work of that phase.

Laws:

* User code runs only in STARTING, DELIVERING, PARKING and CLOSING, and each of these phases ends only when the call has
  returned or raised. While the worker asks a user's retry strategy about a failed read, READING also ends only when
  that call has ended. So calls for one shard never overlap, and a request to stop never interrupts a call.
* A processor that was made is closed exactly once: every way from a phase with a processor to a phase without a
  processor leads through CLOSING.
* Only ACCEPTED, CAUGHT_UP and END_REACHED move past a page. By then every record of the page was accepted, is safe in
  the parking store, or was dropped by an operator's order. A failed record is delivered again, parked or read again.
  Only an operator's order skips it.
* A page that is not believed (NOT_BELIEVED) is not delivered, and the consumer reads again. No record is skipped.
* ENDED is final, and is reached from every phase by stopping.

The diagram in the documentation is drawn from ``TRANSITIONS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from streamclient.model import ShardState, ShutdownReason


class Phase(Enum):
    """The present activity of a consumer."""

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    STARTING = "starting"
    """A processor is being made and initialised."""

    READING = "reading"
    """One page is being read."""

    WAITING = "waiting"
    """The consumer waits before the next read, or before failed work is tried again."""

    DELIVERING = "delivering"
    """``process_records`` runs."""

    PARKING = "parking"
    """The parking store is asked for parked keys, or is given records."""

    CLOSING = "closing"
    """``shutdown`` runs, or a checkpoint that was already requested is not answered yet."""

    BACKING_OFF = "backing_off"
    """No processor exists; a new processor starts after a pause."""

    HALTED = "halted"
    """No processor exists, and no processor starts before an operator or the program decides."""

    ENDED = "ended"
    """The consumer has ended: none of its work runs any more."""


class Outcome(Enum):
    """The event that ended a phase."""

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    BEGAN = "began"
    """The consumer was made for a lease whose parents are finished."""

    INITIALIZED = "initialized"
    NOT_MADE = "not_made"
    """The processor factory failed, so there is no processor to close."""

    DELIVERY_DUE = "delivery_due"
    """Records of a page must be delivered: the page was just read, a part of it is done, or a pause has ended."""

    STORE_DUE = "store_due"
    """The parking store must answer or store records before any other record is delivered."""

    CAUGHT_UP = "caught_up"
    """All records that were read are done, and the next read need not begin immediately. Either the service says that
    no more records wait, or immediate reads have lately found no records."""

    READ_FAILED = "read_failed"
    NOT_BELIEVED = "not_believed"
    """A page is not delivered: it makes no progress, only repeats records, or reports an end of the shard that the list
    of shards does not show."""
    END_REACHED = "end_reached"
    """The shard is closed, and all its records were processed, parked or dropped."""

    DATA_LOST = "data_lost"
    """The stream no longer keeps the records at the consumer's position."""

    READ_DUE = "read_due"
    ACCEPTED = "accepted"
    """Every record of the page was accepted, parked or dropped by an order, and more records may wait."""

    REFUSED_FOR_NOW = "refused_for_now"
    """``process_records`` or the parking store raised; the worker repeats the call after a pause."""

    FAILED = "failed"
    """User code raised, and a new processor tries again; or the user's retry strategy gave up reading."""

    GIVEN_UP = "given_up"
    """A record failed, and the failure policy says to stop; or too many records would be parked."""

    STOPPED = "stopped"
    """The consumer was asked to end: the lease is lost, handed over or paused, or the processor asked for the end."""

    CLOSED = "closed"
    """``shutdown`` returned, and the consumer's work is over."""

    CLOSED_TO_RESTART = "closed_to_restart"
    CLOSED_TO_HALT = "closed_to_halt"
    START_DUE = "start_due"
    """A new processor is due: the pause has ended, or an operator or the program let a halted shard go on."""


TRANSITIONS: Mapping[tuple[Phase, Outcome], Phase] = {
    (Phase.BACKING_OFF, Outcome.BEGAN): Phase.STARTING,
    (Phase.STARTING, Outcome.INITIALIZED): Phase.READING,
    (Phase.STARTING, Outcome.NOT_MADE): Phase.BACKING_OFF,
    (Phase.STARTING, Outcome.FAILED): Phase.CLOSING,
    (Phase.STARTING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.READING, Outcome.DELIVERY_DUE): Phase.DELIVERING,
    (Phase.READING, Outcome.STORE_DUE): Phase.PARKING,
    (Phase.READING, Outcome.ACCEPTED): Phase.READING,
    (Phase.READING, Outcome.CAUGHT_UP): Phase.WAITING,
    (Phase.READING, Outcome.READ_FAILED): Phase.WAITING,
    (Phase.READING, Outcome.NOT_BELIEVED): Phase.WAITING,
    (Phase.READING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.READING, Outcome.DATA_LOST): Phase.CLOSING,
    (Phase.READING, Outcome.FAILED): Phase.CLOSING,
    (Phase.READING, Outcome.GIVEN_UP): Phase.CLOSING,
    (Phase.READING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.WAITING, Outcome.READ_DUE): Phase.READING,
    (Phase.WAITING, Outcome.DELIVERY_DUE): Phase.DELIVERING,
    (Phase.WAITING, Outcome.STORE_DUE): Phase.PARKING,
    (Phase.WAITING, Outcome.ACCEPTED): Phase.READING,
    (Phase.WAITING, Outcome.CAUGHT_UP): Phase.WAITING,
    (Phase.WAITING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.WAITING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.DELIVERY_DUE): Phase.DELIVERING,
    (Phase.DELIVERING, Outcome.STORE_DUE): Phase.PARKING,
    (Phase.DELIVERING, Outcome.ACCEPTED): Phase.READING,
    (Phase.DELIVERING, Outcome.CAUGHT_UP): Phase.WAITING,
    (Phase.DELIVERING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.REFUSED_FOR_NOW): Phase.WAITING,
    (Phase.DELIVERING, Outcome.FAILED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.GIVEN_UP): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.PARKING, Outcome.DELIVERY_DUE): Phase.DELIVERING,
    (Phase.PARKING, Outcome.STORE_DUE): Phase.PARKING,
    (Phase.PARKING, Outcome.ACCEPTED): Phase.READING,
    (Phase.PARKING, Outcome.CAUGHT_UP): Phase.WAITING,
    (Phase.PARKING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.PARKING, Outcome.REFUSED_FOR_NOW): Phase.WAITING,
    (Phase.PARKING, Outcome.GIVEN_UP): Phase.CLOSING,
    (Phase.PARKING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.CLOSING, Outcome.CLOSED): Phase.ENDED,
    (Phase.CLOSING, Outcome.CLOSED_TO_RESTART): Phase.BACKING_OFF,
    (Phase.CLOSING, Outcome.CLOSED_TO_HALT): Phase.HALTED,
    (Phase.BACKING_OFF, Outcome.START_DUE): Phase.STARTING,
    (Phase.BACKING_OFF, Outcome.STOPPED): Phase.ENDED,
    (Phase.HALTED, Outcome.START_DUE): Phase.STARTING,
    (Phase.HALTED, Outcome.STOPPED): Phase.ENDED,
}
"""The next phase for each pair of phase and outcome. A pair that is missing cannot occur."""

PUBLIC_STATES: Mapping[Phase, ShardState] = {
    Phase.STARTING: ShardState.INITIALIZING,
    Phase.READING: ShardState.PROCESSING,
    Phase.WAITING: ShardState.PROCESSING,
    Phase.DELIVERING: ShardState.PROCESSING,
    Phase.PARKING: ShardState.PROCESSING,
    Phase.CLOSING: ShardState.SHUTTING_DOWN,
    Phase.BACKING_OFF: ShardState.INITIALIZING,
    Phase.HALTED: ShardState.SHUTDOWN_COMPLETE,
    Phase.ENDED: ShardState.SHUTDOWN_COMPLETE,
}
"""The state that ``Worker.shard_statuses`` reports for each phase."""

_RANKS: Mapping[ShutdownReason, int] = {
    ShutdownReason.ZOMBIE: 5,
    ShutdownReason.TERMINATE: 4,
    ShutdownReason.STOLEN: 3,
    ShutdownReason.PAUSED: 2,
    ShutdownReason.PROCESS_DONE: 1,
    ShutdownReason.PROCESS_RESTART: 0,
}


def next_phase(phase: Phase, outcome: Outcome) -> Phase:
    """Return the phase that follows ``phase`` after ``outcome``.

    Raises:
        ValueError: ``TRANSITIONS`` has no such pair, which is a programming error.
    """
    following = TRANSITIONS.get((phase, outcome))
    if following is None:
        raise ValueError(f"phase {phase.value} has no transition for outcome {outcome.value}")
    return following


def stronger(first: ShutdownReason | None, second: ShutdownReason | None) -> ShutdownReason | None:
    """Return the stronger of two reasons. Any reason is stronger than ``None``.

    The order from strongest to weakest is: lease lost, shard ended, hand-over, pause, the processor's request "done",
    the processor's request "restart".
    """
    if first is None or second is None:
        return first or second
    return second if _RANKS[second] > _RANKS[first] else first
