"""Laws about the right to read a shard and to write its lease, and about the sessions that the right depends on."""

from __future__ import annotations

from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, WriteKind
from streamclient.model import Lease
from streamclient.testing.history import EPOCHS, READERS, OneReliesOnIt, ReaderBegan, ReaderOver, require
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange
from streamclient.testing.simulation.world import Law, SimulatedWorld

OWNERS_WRITES = frozenset(
    kind.value
    for kind in (
        WriteKind.RENEW,
        WriteKind.CHECKPOINT,
        WriteKind.PREPARE,
        WriteKind.TAKE_PAUSE,
        WriteKind.TRANSFER,
        WriteKind.RELEASE,
    )
)
"""Writes that are reserved for the present owner."""


SEIZURES = frozenset({WriteKind.TAKE.value, WriteKind.TRANSFER.value})
"""The writes that a worker without the lease may make once the lease is free: to take it, or to hand it over to another
worker."""


UNAWARE = (Excuse.ROW_DESTROYED, Excuse.ROW_ANEW, Excuse.NAME_TAKEN)
"""The reasons why a process may rely on a lease without being able to know that the lease is gone."""


class OneReader(Law):
    """No process has two consumers of a shard, and no two processes read one under leases that both may rely on.

    A process that takes an expired lease, or starts to read a shard, must be the only process that relies on the lease.
    A reader whose row was destroyed from outside since its last heartbeat cannot know that yet, and is excused until
    then. A process whose name another process has taken over is excused for a lease duration at most.
    """

    name = READERS
    in_one_process = "one processor"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._judge = OneReliesOnIt(self._relies_on_it, in_one_process=self.in_one_process)

    def row_changed(self, change: LeaseChange) -> None:
        actor, before = change.actor, change.before
        if change.after is None or before is None or not _is_seized(actor, change.what, before):
            return
        for other in self.world.readers_of(change.lease_key):
            if other.process is not actor and self._relies_on_it(other) and not self._is_hasty(actor, before):
                raise self.broken(change.lease_key, f"{actor.label} took what {other!r} still relies on")

    def consumer_started(self, consumer: ConsumerRole) -> None:
        require(ReaderBegan(consumer, consumer.process, consumer.lease_key), self._judge)

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        require(ReaderOver(consumer, consumer.lease_key), self._judge)

    def event_handled(self, process: ProcessRole) -> None:
        for key in sorted(self.world.contested):
            believers = [each for each in self.world.readers_of(key) if each.process.believes(each)]
            if len({each.process for each in believers}) > 1:
                believers = [each for each in believers if self._relies_on_it(each)]
            if len({each.process for each in believers}) > 1:
                raise self.broken(key, f"all of {believers} rely on their leases")

    def _relies_on_it(self, consumer: ConsumerRole) -> bool:
        process, key = consumer.process, consumer.lease_key
        return process.believes(consumer) and not self.excuses(process, key, *UNAWARE)

    def _is_hasty(self, actor: Actor, before: Lease) -> bool:
        """Return whether a Java worker took a live lease. The Java client does so, and it is not judged."""
        is_hasty = not actor.is_python and self.world.rest_of(before.lease_key) < self.world.patience_seconds
        return is_hasty and self.world.excused.note(self.name, Excuse.JAVA)


class Patience(Law):
    """No live lease is taken. The row of a taken lease stood still for a lease duration, or was free or handed over.

    Alternatively the session of the lease's owner must have ended since, by a verdict or by itself.

    The time is measured in true time, with the largest allowed drift of a clock. If a row was destroyed from outside,
    its counter begins anew and the row may look as it did earlier; the taker is then excused.
    """

    name = "patience"

    def row_changed(self, change: LeaseChange) -> None:
        actor, before, key = change.actor, change.before, change.lease_key
        if before is None or not actor.is_python or not _is_seized(actor, change.what, before):
            return
        rest = self.world.rest_of(key)
        if rest >= self.world.patience_seconds or self.world.is_dismissed(before):
            return
        if not self.excuses(actor, key, Excuse.ROW_ANEW):
            text = f"{change.what} of {before} by {actor.label}, although it had moved {rest:.3f} s before"
            raise self.broken(key, text)


def _is_seized(actor: Actor, what: str, before: Lease) -> bool:
    return what in SEIZURES and before.owner not in ("", actor.name)


class FencedWritesFail(Law):
    """No write of a worker is accepted for a lease that another worker has taken since.

    Heartbeats, checkpoints and hand-overs are reserved for the present owner. If a lease is free, or was handed over to
    a worker, any worker may hand it over without having read it.
    """

    name = "fenced writes fail"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._owners: dict[str, Actor] = {}
        """By lease, the process whose take was accepted last."""

    def row_changed(self, change: LeaseChange) -> None:
        actor, what, after = change.actor, change.what, change.after
        if after is None:
            return
        if what == WriteKind.TAKE.value or (what == WriteKind.CREATE.value and after.owner):
            self._owners[after.lease_key] = actor
        elif what in OWNERS_WRITES and actor.is_python and change.before is not None:
            self._judge(actor, what, change.before)

    def _judge(self, actor: Actor, what: str, before: Lease) -> None:
        owner = self._owners.get(before.lease_key)
        is_passed_on = before.owner != actor.name or before.is_handed_over
        if owner is actor or (what == WriteKind.TRANSFER.value and is_passed_on):
            return
        if not self._is_same_worker(actor, owner):
            label = owner.label if owner is not None else "no worker"
            raise self.broken(before.lease_key, f"a {what} of {actor.label} was accepted, but {label} took it last")

    def _is_same_worker(self, actor: Actor, owner: Actor | None) -> bool:
        """Return whether the lease was taken only by another process of the same worker.

        There are three such cases. In the first, a request of a former life arrived late, and there is nothing to
        fence. In the second, the newer of two processes acts for the worker. In the third, the older process does not
        know yet that its name was taken over.
        """
        if owner is None or owner.name != actor.name:
            return False
        if not owner.is_alive:
            return True
        is_replaced = self.world.was_replaced(owner) or self.world.is_being_replaced(actor)
        return is_replaced and self.world.excused.note(self.name, Excuse.NAME_TAKEN)


class EpochsGrow(Law):
    """Each acquisition of a shard has a greater epoch than all acquisitions before it.

    So a sink that remembers the greatest epoch refuses every late writer, and never the present owner. A process that
    does not know yet that its row was destroyed from outside is a late writer too. A late take by a process whose name
    another process already has is not an acquisition, because that process may hold nothing.
    """

    name = EPOCHS

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._last: dict[str, ConsumerRole] = {}
        self._takes: dict[str, tuple[Actor, int]] = {}
        """For each lease, the last taker, and the number of takes by others before that take."""
        self._known_takes: dict[str, int] = {}

    def row_changed(self, change: LeaseChange) -> None:
        actor, key = change.actor, change.lease_key
        if change.what == "take" and change.after is not None and not self.world.was_replaced(actor):
            owner, changes = self._takes.get(key, (actor, 0))
            self._takes[key] = (actor, changes + (owner is not actor))

    def consumer_started(self, consumer: ConsumerRole) -> None:
        key = consumer.lease_key
        last, changes = self._last.get(key), self._takes[key][1] if key in self._takes else 0
        if last is not None:
            is_same = last.process is consumer.process and self._known_takes[key] == changes
            is_broken = consumer.epoch < last.epoch or (consumer.epoch == last.epoch and not is_same)
            if is_broken and not self.excuses(consumer.process, key, Excuse.ROW_DESTROYED):
                raise self.broken(key, f"{consumer!r} does not have a greater epoch than {last!r} before it")
        if self.world.is_bereft(consumer.process, key):
            return  # that process may hold nothing
        self._last[key], self._known_takes[key] = consumer, changes

    def write_refused(self, consumer: ConsumerRole) -> None:
        key, process = consumer.lease_key, consumer.process
        if process.believes(consumer) and not self.excuses(process, key, *UNAWARE):
            raise self.broken(key, f"the sink refused {consumer!r}, which owns the lease")


class KilledStaysKilled(Law):
    """A session that was killed never beats again. Its row changes only by a new session, or is deleted."""

    name = "killed stays killed"

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        was_killed = before is not None and before.state is SessionState.KILLED
        if was_killed and after is not None and before is not None and after.nonce == before.nonce:
            raise self.broken("", f"{write.kind.value} of {actor.label} was accepted after the verdict: {after}")


class VerdictsAreLate(Law):
    """A session is killed only when it, and with it every lease under it, has expired by its own worker's clock."""

    name = "verdicts are late"

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        if write.kind is not WorkerWriteKind.KILL:
            return
        victim = self.world.newest(write.worker_id)
        if victim is not None and victim.is_alive and victim.holdings.session_valid_until > victim.local():
            raise self.broken("", f"{actor.label} killed {before}, whose session is still valid for {victim.label}")


class SessionsFirst(Law):
    """No process starts to read without a valid session, or once a newer process has its name."""

    name = "sessions first"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        process = consumer.process
        if process.holdings.session_valid_until <= process.local():
            raise self.broken(consumer.lease_key, f"{consumer!r} starts without a valid session")
        if process.holdings.is_ousted:
            raise self.broken(consumer.lease_key, f"{consumer!r} starts although a newer process has its name")
