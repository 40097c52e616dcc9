"""The consumers of the table: a worker that stores changes in a destination, and a mirror."""

from __future__ import annotations

import sys
import time

import pyarrow.compute as pc
from attrs import define, field

from streamclient.copying.mirror_writer import EXPIRY
from streamclient.copying.source_table import COPY
from streamclient.destinations import DeltaDestination
from streamclient.destinations.commit import MergingDestination
from streamclient.destinations.proof.verification import verify
from streamclient.destinations.rows.change_rows import SHARD, records_of
from streamclient.errors import StreamClientError
from streamclient.spark import SparkConfig, SparkRecordProcessorFactory
from tests.hostile.consumers import Consumer, MirrorConsumer, WorkerConsumer, written_by
from tests.hostile_lake.places import Place
from tests.hostile_lake.table import DESTINATION, ICEBERG, Case

_CONFIG = SparkConfig(max_age_millis=50)
_LOOK_SECONDS = 0.1
"""Between two looks at a log, which take a while."""


@define(eq=False, slots=False)
class LakeConsumer(Consumer):
    """What both have in common."""

    place: Place = field(kw_only=True)
    _looked_at: float = 0.0

    @property
    def most_runs(self) -> int:
        """One that ends while the trouble lasts is started again and again; ``patience`` ends that."""
        return sys.maxsize

    @property
    def is_even(self) -> bool:
        """Whether the log has all changes; ``problems`` looks at the rows."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return False
        destination = self.place.see()
        try:
            commits = [one for entry in destination.log() for one in entry.commits]
        except StreamClientError:
            return False  # it is in the middle of something
        finally:
            destination.close()
            self._looked_at = time.monotonic()
        counts = {one.digest: one.count for one in commits if not one.shard.startswith((COPY, EXPIRY))}
        return sum(counts.values()) >= self.scene.records

    @property
    def trouble(self) -> str:
        try:
            return self.told()
        except StreamClientError:
            return ""  # the worker begins or ends

    def told(self) -> str:
        """What it tells of its trouble; may raise while it begins or ends."""
        raise NotImplementedError

    def flaws(self) -> list[str]:
        """What the proof of a table of changes finds, and how its changes differ from those that were written."""
        destination = self.place.see()
        try:
            found = [str(one) for one in verify(destination, with_rows=True).findings]
            rows = [table.filter(pc.invert(pc.starts_with(table.column(SHARD), COPY))) for table in destination.rows()]
            stored = [written_by(record) for table in rows for record in records_of(table)]
        except StreamClientError as error:
            return [f"the rows cannot be read: {error}"]
        finally:
            destination.close()
        return found + self._differences(stored)

    def _differences(self, stored: list[tuple[int, int]]) -> list[str]:
        written = {(key, value) for key, values in self.scene.written.items() for value in values}
        missing, foreign = sorted(written - set(stored)), sorted(set(stored) - written)
        counts = {"lost": len(missing), "foreign": len(foreign), "stored twice": len(stored) - len(set(stored))}
        return [f"{name}: {count} changes" for name, count in counts.items() if count]


class DestinationConsumer(LakeConsumer, WorkerConsumer):
    """A worker without Spark, as there is nothing to transform."""

    def run(self) -> None:
        destination = self.place.open()
        try:
            with SparkRecordProcessorFactory(destination, config=_CONFIG) as processors:
                self.run_worker(processors)
        finally:
            destination.close()

    def told(self) -> str:
        return WorkerConsumer.trouble.fget(self)  # type: ignore[attr-defined,no-any-return]

    def problems(self) -> list[str]:
        return self.flaws()


class LakeMirrorConsumer(LakeConsumer, MirrorConsumer):
    """A mirror whose rows have a key."""

    def run(self) -> None:
        destination = self.place.open()
        try:
            self.run_mirror(destination)  # type: ignore[arg-type]  # all of these kinds have a key
        finally:
            destination.close()

    def told(self) -> str:
        mirror = self._mirror
        unmerged = "" if mirror is None else mirror.trouble
        return unmerged or MirrorConsumer.trouble.fget(self)  # type: ignore[attr-defined,no-any-return]

    def opened(self) -> MergingDestination:
        return self.place.see()  # type: ignore[return-value]

    def problems(self) -> list[str]:
        return MirrorConsumer.problems(self)


class HistoryConsumer(LakeMirrorConsumer):
    """A mirror into a directory, with its history in the place."""

    def run(self) -> None:
        history, mirror = self.place.open(), self.opened()
        try:
            self.run_mirror(mirror, history)
        finally:
            history.close()
            mirror.close()

    def opened(self) -> MergingDestination:
        return DeltaDestination(str(self.directory / "mirror"))

    def problems(self) -> list[str]:
        return [*super().problems(), *self.flaws()]


def consumer_of(case: Case) -> type[LakeConsumer]:
    """Who plays the consumer of a case."""
    if case.consumer is DESTINATION:
        return DestinationConsumer
    return HistoryConsumer if case.place is ICEBERG else LakeMirrorConsumer
