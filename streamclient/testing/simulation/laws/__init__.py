"""The laws that must hold in every history of a fleet."""

from __future__ import annotations

import streamclient.testing.simulation.laws.consumer_laws as consumer
import streamclient.testing.simulation.laws.ownership_laws as ownership
import streamclient.testing.simulation.laws.progress_laws as progress
import streamclient.testing.simulation.laws.reading_laws as reading
from streamclient.testing.simulation.world import Law, SimulatedWorld

__all__ = ["SAFETY", "Law", "make_laws"]

SAFETY: tuple[type[Law], ...] = (
    ownership.Patience,
    ownership.OneReader,
    ownership.EpochsGrow,
    ownership.FencedWritesFail,
    progress.CheckpointsOnlyAdvance,
    progress.CheckpointsFollowProcessing,
    progress.AnswersAreTrue,
    progress.ParentsFirst,
    consumer.StartsWhereStored,
    consumer.PreparedIsRemembered,
    consumer.NothingIsRepeated,
    consumer.CallsInOrder,
    consumer.StoppedShardsWait,
    consumer.OnlyFailuresAreParked,
    consumer.ParkedKeysWait,
    progress.NothingIsLost,
    progress.NothingIsSkipped,
    progress.LossesAreReported,
    consumer.PausedShardsRest,
    consumer.OrderedRecordsStayOut,
    consumer.ProgramsPause,
    ownership.KilledStaysKilled,
    ownership.VerdictsAreLate,
    ownership.SessionsFirst,
    reading.ReadInTime,
    reading.ReadsKeepTheirCeiling,
)
"""The laws that are checked at every event, in this order. If one mistake breaks two laws, the law that names the cause
comes first."""


def make_laws(world: SimulatedWorld) -> list[Law]:
    """Return a new object of each law for the history of ``world``."""
    return [law(world) for law in SAFETY]
