"""The laws that must hold in every history, each by its name."""

from __future__ import annotations

from streamclient.testing.simulation.laws.base import Law
from streamclient.testing.simulation.laws.consuming_laws import (
    CallsInOrder,
    OnlyFailuresAreParked,
    ParkedKeysWait,
    StoppedShardsWait,
)
from streamclient.testing.simulation.laws.orders_laws import (
    NothingIsRepeated,
    PausedShardsRest,
    PreparedIsRemembered,
    ProgramsPause,
    StartsWhereStored,
)
from streamclient.testing.simulation.laws.ownership_laws import EpochsGrow, FencedWritesFail, OneReader, Patience
from streamclient.testing.simulation.laws.progress_laws import (
    AnswersAreTrue,
    CheckpointsFollowProcessing,
    CheckpointsOnlyAdvance,
    LossesAreReported,
    NothingIsLost,
    NothingIsSkipped,
    ParentsFirst,
)
from streamclient.testing.simulation.laws.sessions_laws import KilledStaysKilled, SessionsFirst, VerdictsAreLate
from streamclient.testing.simulation.world import SimulatedWorld

__all__ = ["SAFETY", "Law", "make_laws"]

SAFETY: tuple[type[Law], ...] = (
    Patience,
    OneReader,
    EpochsGrow,
    FencedWritesFail,
    CheckpointsOnlyAdvance,
    CheckpointsFollowProcessing,
    AnswersAreTrue,
    ParentsFirst,
    StartsWhereStored,
    PreparedIsRemembered,
    NothingIsRepeated,
    CallsInOrder,
    StoppedShardsWait,
    OnlyFailuresAreParked,
    ParkedKeysWait,
    NothingIsLost,
    NothingIsSkipped,
    LossesAreReported,
    PausedShardsRest,
    ProgramsPause,
    KilledStaysKilled,
    VerdictsAreLate,
    SessionsFirst,
)
"""Checked at every event. The order matters if one mistake breaks two laws: the cause comes first."""


def make_laws(world: SimulatedWorld) -> list[Law]:
    """Make all laws for one history."""
    return [law(world) for law in SAFETY]
