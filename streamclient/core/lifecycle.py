"""The life of one shard's consumer, as a table.

Laws:

* User code runs only in STARTING, DELIVERING and CLOSING, and each of these phases ends only when the call returned or
  raised. So calls for one shard never overlap, and a stop request never interrupts one.
* A processor that was made is closed exactly once: every way from a phase with a processor to one without leads
  through CLOSING.
* Only ACCEPTED moves past a batch. A batch that failed is delivered again or read again, never skipped.
* ENDED is final, and is reached from every phase by stopping.

The diagram in the documentation is drawn from ``TRANSITIONS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from streamclient.model import ShardState, ShutdownReason


class Phase(Enum):
    """What a consumer is doing."""

    STARTING = "starting"
    """A processor is being made and initialised."""

    READING = "reading"
    """One page is being read."""

    PAUSED = "paused"
    """It waits before the next read, or before the same batch is delivered again."""

    DELIVERING = "delivering"
    """``process_records`` runs."""

    CLOSING = "closing"
    """``shutdown`` runs."""

    BACKING_OFF = "backing_off"
    """There is no processor; a new one starts after a pause."""

    PARKED = "parked"
    """There is no processor and none will start: an operator has to decide."""

    ENDED = "ended"
    """Nothing of this consumer runs any more."""


class Outcome(Enum):
    """What ended a phase."""

    BEGAN = "began"
    """The consumer was made for a lease whose parents are finished."""

    INITIALIZED = "initialized"
    NOT_MADE = "not_made"
    """The factory failed, so there is no processor to close."""

    PAGE_READ = "page_read"
    CAUGHT_UP = "caught_up"
    """Nothing was read, or what was read was accepted and the service says that nothing more waits."""

    READ_FAILED = "read_failed"
    END_REACHED = "end_reached"
    """The shard is closed, and its last records were accepted or there were none."""

    DATA_LOST = "data_lost"
    """The position lies behind the stream's retention."""

    READ_DUE = "read_due"
    REDELIVERY_DUE = "redelivery_due"
    ACCEPTED = "accepted"
    REFUSED_FOR_NOW = "refused_for_now"
    """``process_records`` raised, and the user's retry strategy wants the same batch delivered again."""

    FAILED = "failed"
    """User code raised, or reading was given up by the user's retry strategy."""

    STOPPED = "stopped"
    """Somebody asked for an end: the lease is lost or handed over, or the processor marked itself."""

    CLOSED = "closed"
    """``shutdown`` is over, and the consumer's work with it."""

    CLOSED_TO_RESTART = "closed_to_restart"
    CLOSED_TO_PARK = "closed_to_park"
    START_DUE = "start_due"


TRANSITIONS: Mapping[tuple[Phase, Outcome], Phase] = {
    (Phase.BACKING_OFF, Outcome.BEGAN): Phase.STARTING,
    (Phase.STARTING, Outcome.INITIALIZED): Phase.READING,
    (Phase.STARTING, Outcome.NOT_MADE): Phase.BACKING_OFF,
    (Phase.STARTING, Outcome.FAILED): Phase.CLOSING,
    (Phase.STARTING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.READING, Outcome.PAGE_READ): Phase.DELIVERING,
    (Phase.READING, Outcome.CAUGHT_UP): Phase.PAUSED,
    (Phase.READING, Outcome.READ_FAILED): Phase.PAUSED,
    (Phase.READING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.READING, Outcome.DATA_LOST): Phase.CLOSING,
    (Phase.READING, Outcome.FAILED): Phase.CLOSING,
    (Phase.READING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.PAUSED, Outcome.READ_DUE): Phase.READING,
    (Phase.PAUSED, Outcome.REDELIVERY_DUE): Phase.DELIVERING,
    (Phase.PAUSED, Outcome.STOPPED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.ACCEPTED): Phase.READING,
    (Phase.DELIVERING, Outcome.CAUGHT_UP): Phase.PAUSED,
    (Phase.DELIVERING, Outcome.END_REACHED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.REFUSED_FOR_NOW): Phase.PAUSED,
    (Phase.DELIVERING, Outcome.FAILED): Phase.CLOSING,
    (Phase.DELIVERING, Outcome.STOPPED): Phase.CLOSING,
    (Phase.CLOSING, Outcome.CLOSED): Phase.ENDED,
    (Phase.CLOSING, Outcome.CLOSED_TO_RESTART): Phase.BACKING_OFF,
    (Phase.CLOSING, Outcome.CLOSED_TO_PARK): Phase.PARKED,
    (Phase.BACKING_OFF, Outcome.START_DUE): Phase.STARTING,
    (Phase.BACKING_OFF, Outcome.STOPPED): Phase.ENDED,
    (Phase.PARKED, Outcome.STOPPED): Phase.ENDED,
}
"""(phase, outcome) -> next phase. A pair that is not named here cannot happen."""

PUBLIC_STATES: Mapping[Phase, ShardState] = {
    Phase.STARTING: ShardState.INITIALIZING,
    Phase.READING: ShardState.PROCESSING,
    Phase.PAUSED: ShardState.PROCESSING,
    Phase.DELIVERING: ShardState.PROCESSING,
    Phase.CLOSING: ShardState.SHUTTING_DOWN,
    Phase.BACKING_OFF: ShardState.INITIALIZING,
    Phase.PARKED: ShardState.SHUTDOWN_COMPLETE,
    Phase.ENDED: ShardState.SHUTDOWN_COMPLETE,
}
"""How ``Worker.shard_statuses`` names each phase."""

USER_CODE_PHASES = frozenset({Phase.STARTING, Phase.DELIVERING, Phase.CLOSING})
"""Phases that end only when a call into user code has returned."""

_RANKS: Mapping[ShutdownReason, int] = {
    ShutdownReason.ZOMBIE: 5,
    ShutdownReason.TERMINATE: 4,
    ShutdownReason.STOLEN: 3,
    ShutdownReason.PAUSED: 2,
    ShutdownReason.PROCESS_DONE: 1,
    ShutdownReason.PROCESS_RESTART: 0,
}


def next_phase(phase: Phase, outcome: Outcome) -> Phase:
    """The phase that follows.

    Raises:
        ValueError: the table has no such transition, which is a programming error.
    """
    following = TRANSITIONS.get((phase, outcome))
    if following is None:
        raise ValueError(f"a consumer that is {phase.value} cannot meet {outcome.value}")
    return following


def stronger(first: ShutdownReason | None, second: ShutdownReason | None) -> ShutdownReason | None:
    """The reason that wins: lease lost, then shard ended, then hand-over, then the processor's own marks.

    Of two equal reasons, and of two marks, the first stays.
    """
    if first is None or second is None:
        return first or second
    return second if _RANKS[second] > _RANKS[first] else first
