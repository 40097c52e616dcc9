"""Laws about stored checkpoints, processed records, and the answers that user code gets to its checkpoints."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome, Report
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind
from streamclient.model import CheckpointPosition, ParkedRecord
from streamclient.records import StreamRecord
from streamclient.testing.history import (
    LOST,
    ORDER,
    PARENTS,
    Delivered,
    KeysInOrder,
    ParentsBeforeChildren,
    ReaderBegan,
    require,
)
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange
from streamclient.testing.simulation.world import Law, SimulatedWorld

Asked = tuple[str, str, bool]
"""A requested checkpoint: the lease key, the position, and whether the request is the first of two phases."""

RESTORATIONS = frozenset({WriteKind.TAKE.value, WriteKind.CREATE.value})
"""The kinds of writes by which a worker that holds a lease restores a destroyed row."""

END = 1 << 60
"""The number that stands for SHARD_END. It is greater than the number of any record."""


def place(checkpoint: str) -> int:
    """Return the number of the next record at a checkpoint, or ``END`` for SHARD_END."""
    return END if checkpoint == CheckpointPosition.SHARD_END else place_of(checkpoint)


class CheckpointsOnlyAdvance(Law):
    """A stored checkpoint never goes back, except by an operator or by a destruction of the row from outside.

    A worker that restores a destroyed row stores the last checkpoint that it knows to be stored, or a later one.
    The law judges a restoring write only if it is the worker's last decision about the lease. An earlier write may
    arrive late, when the row is already restored, and store an older checkpoint.
    """

    name = "checkpoints only advance"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._reached: dict[str, int] = {}
        """The furthest stored position of each lease since the last change of its row from outside."""
        self._own: dict[str, tuple[Actor, int]] = {}
        """The present owner of each lease, and the furthest position that the owner knows to be stored."""

    def row_changed(self, change: LeaseChange) -> None:
        actor, what, key, after = change.actor, change.what, change.lease_key, change.after
        stored = 0 if after is None else place(after.checkpoint)
        if not actor.is_python:
            self._reached[key] = stored
            if what in ("rewind", "take"):
                self._own.pop(key, None)
            return
        if after is None:
            return
        if stored < self._reached.get(key, 0) and not self._begins_anew(key, stored):
            raise self.broken(key, f"{what} of {actor.label} stored {after} where {change.before} was")
        self._reached[key] = stored
        owner, told = self._own.get(key, (actor, 0))
        if owner is actor and what in RESTORATIONS and key in held_by(actor):
            if change.write is not last_decision(actor, key):
                return
            if stored < told:
                raise self.broken(key, f"{what} of {actor.label} stored {after}, although position {told} was stored")
        if what == WriteKind.TAKE.value:
            self._own[key] = (actor, stored)

    def _begins_anew(self, key: str, stored: int) -> bool:
        """Return whether the shard's reader goes back to the oldest record because a loss of records was accepted."""
        is_given_up = stored == 0 and self.world.stream.shards[key].is_given_up
        return is_given_up and self.world.excused.note(self.name, Excuse.LOSS_GIVEN_UP)

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        key = request.consumer.lease_key
        if answer.outcome is CheckpointOutcome.STORED and request.pending is None:
            owner, told = self._own.get(key, (process, 0))
            if owner is process:
                self._own[key] = (process, max(told, place(request.value)))


def held_by(actor: Actor) -> Container[str]:
    """Return the keys of the leases that ``actor`` believes to hold; empty for an actor that is not a worker."""
    holdings = getattr(actor, "holdings", None)
    return () if holdings is None else holdings.held


def last_decision(actor: Actor, lease_key: str) -> LeaseWrite | None:
    """Return the last write of a lease that the core of ``actor`` decided; ``None`` without such a write."""
    decided: dict[str, LeaseWrite] = getattr(actor, "decided", {})
    return decided.get(lease_key)


class CheckpointsFollowProcessing(Law):
    """Every record before a stored checkpoint was processed.

    SHARD_END is stored only after all records of the shard were processed.
    """

    name = "checkpoints follow processing"

    def row_changed(self, change: LeaseChange) -> None:
        actor, what, key, after = change.actor, change.what, change.lease_key, change.after
        if after is None or not actor.is_python or what not in (WriteKind.CHECKPOINT.value, WriteKind.CREATE.value):
            return
        shard, processed = self.world.stream.shards[key], self.world.sink.processed.get(key, 0)
        if after.is_finished:
            is_read = not shard.is_open and processed >= shard.size
            if not is_read and not (what == WriteKind.CREATE.value and key in self.world.ended):
                raise self.broken(key, f"{actor.label} stored {after}, but {processed} of {shard.size} were processed")
        elif place_of(after.checkpoint) > processed and self.world.has_had_row(key):
            raise self.broken(key, f"{actor.label} stored {after}, but only {processed} were processed")


class AnswersAreTrue(Law):
    """A checkpoint that is answered as stored was in the row. A checkpoint that is refused never comes into the row.

    The law also judges the first phase of a two-phase checkpoint. If the same checkpoint was requested more than once,
    the law judges only answers that say "stored", because one request may be refused and another one accepted. If the
    row was destroyed from outside, the refusal of a checkpoint that was stored is excused.
    """

    name = "answers are true"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._stored: set[Asked] = set()
        self._denied: set[Asked] = set()
        self._held: set[Asked] = set()
        """The checkpoints that rows have held, whichever worker stored them. For these checkpoints the answer "stored"
        is true without a further write."""

    def row_changed(self, change: LeaseChange) -> None:
        after = change.after
        if after is None:
            return
        self._held.add((after.lease_key, after.checkpoint, False))
        if not change.actor.is_python or change.what not in (WriteKind.CHECKPOINT.value, WriteKind.PREPARE.value):
            return  # a Java worker may store SHARD_END, which a refused request may also have asked for
        is_first_phase = change.what == WriteKind.PREPARE.value
        value = after.pending.value if is_first_phase and after.pending is not None else after.checkpoint
        asked = (after.lease_key, value, is_first_phase)
        self._stored.add(asked)
        if asked in self._denied and self.world.asked[asked] == 1:
            raise self.broken(after.lease_key, f"{after} was stored after the answer that it would not be stored")

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        asked, key = request.asked, request.consumer.lease_key
        if answer.outcome is CheckpointOutcome.STORED:
            if asked not in self._stored and asked not in self._held:
                raise self.broken(key, f"{request.value} of {process.label} was answered as stored, but is not stored")
        elif answer.outcome in (CheckpointOutcome.LEASE_LOST, CheckpointOutcome.REJECTED):
            is_untrue = asked in self._stored and self.world.asked[asked] == 1
            if is_untrue and self.excuses(process, key, Excuse.ROW_DESTROYED):
                return
            if not self.world.is_bereft(process, key):
                self._denied.add(asked)
            if is_untrue:
                text = f"{request.value} of {process.label} was answered as {answer.outcome.value}, but it is stored"
                raise self.broken(key, text)


class ParentsFirst(Law):
    """No shard is read before all its ancestors were read to their ends.

    An ancestor that has left the stream cannot be read, so its descendants need not wait for it.
    """

    name = PARENTS

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._judge = ParentsBeforeChildren(world.stream.ancestors, self._is_over)

    def consumer_started(self, consumer: ConsumerRole) -> None:
        require(ReaderBegan(consumer, consumer.process, consumer.lease_key), self._judge)

    def _is_over(self, shard_id: str) -> bool:
        return shard_id in self.world.ended or not self.world.stream.shards[shard_id].is_listed


class NothingIsLost(Law):
    """The changes of every key reach the sink, in order and without a gap, through all splits and merges.

    Repeats are allowed only within one shard: after a child shard's change of a key was written, no change of the key
    may come from a parent. A change may be missing if it was parked, or if an operator's order names it. A change that
    retention removed may be missing if the loss was reported before the reader went on.
    """

    name = LOST
    order = ORDER

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._judge = KeysInOrder(may_be_missing=self._may_be_missing, is_fenced=self._is_fenced)
        self._aside: set[tuple[int, int]] = set()
        """The key and number of each change that was parked, or that an operator's order names."""
        self._unfenced: set[str] = set()
        """The shards that a Java worker has read. The sink cannot refuse late writers of these shards, because Java
        workers have no epochs."""

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        shard = consumer.shard
        keys, numbers = shard.keys[start:end], shard.numbers[start:end]
        require(Delivered(consumer, consumer.lease_key, keys, numbers), self._judge)

    def records_ordered(self, lease_key: str, places: Sequence[int]) -> None:
        shard = self.world.stream.shards[lease_key]
        self._aside |= {(shard.keys[place], shard.numbers[place]) for place in places}

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        self._aside |= {change_of(consumer, each.record) for each in records}

    def records_replayed(self, changes: Iterable[tuple[str, int, int]]) -> None:
        for shard, key, number in changes:
            require(Delivered("a replay", shard, [key], [number], is_judged=False), self._judge)

    def java_wrote(self, lease_key: str, start: int, end: int) -> None:
        shard = self.world.stream.shards[lease_key]
        self._unfenced.add(lease_key)
        keys, numbers = shard.keys[start:end], shard.numbers[start:end]
        require(Delivered("java", "", keys, numbers, is_judged=False), self._judge)

    def recovered(self, unread: Container[str]) -> None:
        furthest = self._judge.furthest
        for name, shard in self.world.stream.shards.items():
            for key, number in zip(shard.keys, shard.numbers, strict=True):
                if number <= furthest.get(key, 0):
                    continue
                is_javas = name in unread and self.world.excused.note(LOST, Excuse.JAVA)
                if not is_javas and not self._may_be_missing(key, number, LOST):
                    raise self.broken(name, f"no worker ever wrote change {number} of key {key}")

    def _may_be_missing(self, key: Any, number: int, law: str = ORDER) -> bool:
        if (key, number) in self._aside:
            return True
        excuse = self.world.may_be_missing(key, number)
        return excuse is not None and self.world.excused.note(law, excuse)

    def _is_fenced(self, shard: str, later: str) -> bool:
        """Return whether the sink refuses late writers of ``shard`` once a reader of the shard ``later`` has written.

        The sink cannot refuse late writers after a Java worker has read the shard, or after an actor from outside has
        changed a row.
        """
        excused, touched = self.world.excused, self.world.touched
        if not later or shard in self._unfenced:
            return not excused.note(ORDER, Excuse.JAVA)
        return not ({shard, later} & touched and excused.note(ORDER, Excuse.TOUCHED))


def change_of(consumer: ConsumerRole, record: StreamRecord) -> tuple[int, int]:
    """Return the key and the change number of ``record``, which belongs to the consumer's shard."""
    place = record.sequence_info.row_index
    return consumer.shard.keys[place], consumer.shard.numbers[place]


class NothingIsSkipped(Law):
    """A shard is read from its beginning. Only a plan that starts at the latest record allows a later first position.

    In such a plan, the worker that creates the row may skip only records that were written before this worker started.
    It may skip no record if another worker has created the row of an ancestor.
    """

    name = "nothing is skipped"

    def row_changed(self, change: LeaseChange) -> None:
        actor, after = change.actor, change.after
        if change.what != WriteKind.CREATE.value or after is None or not actor.is_python or after.is_finished:
            return
        world, key, first = self.world, after.lease_key, place_of(after.checkpoint)
        if first == 0 or world.has_had_row(key):
            return
        known = sorted(name for name in world.stream.ancestors(key) if world.creator_of(name) not in (None, actor))
        if known or world.plan.position == "oldest":
            text = f"{actor.label} lets {after} skip records, although others created rows of its ancestors {known}"
            raise self.broken(key, text)
        if first > world.stream.place_at(key, world.start_of(actor)):
            raise self.broken(key, f"{actor.label} lets {after} skip records written after this worker's start")


class LossesAreReported(Law):
    """A row is deleted only after its shard has left the stream, and after any loss of unread records was reported."""

    name = "losses are reported"

    def row_changed(self, change: LeaseChange) -> None:
        actor, key, before = change.actor, change.lease_key, change.before
        if change.after is not None or before is None or not actor.is_python:
            return
        if self.world.stream.shards[key].is_listed:
            raise self.broken(key, f"{actor.label} deleted {before}, whose shard is in the stream")
        if not before.is_finished and key not in self.world.losses:
            raise self.broken(key, f"{actor.label} deleted {before} without reporting the loss")

    def reported(self, process: ProcessRole, report: Report) -> None:
        if "records are lost" in report.text:
            self.world.losses.add(report.lease_key)
