"""Laws about the right to read a shard and write its lease, and about the sessions on which this right depends."""

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
"""The kinds of writes that are reserved for the present owner of a lease."""


SEIZURES = frozenset({WriteKind.TAKE.value, WriteKind.TRANSFER.value})
"""The kinds of writes by which a worker that does not own a lease may take the lease, or hand it over to another
worker."""


UNAWARE = (Excuse.ROW_DESTROYED, Excuse.ROW_ANEW, Excuse.NAME_TAKEN)
"""The excuses of a process that relies on a lost lease because it cannot know of the loss yet."""


class OneReader(Law):
    """No process has two consumers of a shard. No two processes read a shard under leases that both may rely on.

    A process that takes an expired lease, or starts to read a shard, must be the only process that relies on the lease.
    A reader whose lease row was destroyed from outside is excused until its next heartbeat, which shows the
    destruction. A process whose name another process has taken over is excused for at most one lease duration.
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
                raise self.broken(change.lease_key, f"{actor.label} took a lease on which {other!r} still relies")

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
                raise self.broken(key, f"consumers in several processes rely on the lease at once: {believers}")

    def _relies_on_it(self, consumer: ConsumerRole) -> bool:
        process, key = consumer.process, consumer.lease_key
        return process.believes(consumer) and not self.excuses(process, key, *UNAWARE)

    def _is_hasty(self, actor: Actor, before: Lease) -> bool:
        """Return whether ``actor`` is a Java worker, and took the lease of the row ``before`` before it expired.

        The law excuses such a take, because the Java client does this, too. Each such take counts as one excuse.
        """
        is_hasty = not actor.is_python and self.world.rest_of(before.lease_key) < self.world.patience_seconds
        return is_hasty and self.world.excused.note(self.name, Excuse.JAVA)


class Patience(Law):
    """No worker takes the lease of another worker before the lease has expired.

    The row of a taken lease must be unchanged for a lease duration, or the session of its owner must have ended. A free
    lease, or a lease that was handed over to the worker, may be taken immediately.

    The lease duration is measured in true time, less the largest allowed drift of clocks. If a row was destroyed from
    outside, its counter begins anew, and the new row may look like an earlier state of the destroyed row. This excuses
    the worker that takes the lease.
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
            text = f"{change.what} of {before} by {actor.label}, although the row had changed {rest:.3f} s before"
            raise self.broken(key, text)


def _is_seized(actor: Actor, what: str, before: Lease) -> bool:
    return what in SEIZURES and before.owner not in ("", actor.name)


class FencedWritesFail(Law):
    """The table accepts no write of a former owner after another worker has taken the lease.

    Renewals, checkpoints and hand-overs are reserved for the present owner. But any worker may hand over a free lease,
    or a lease that was handed over and not yet taken.
    """

    name = "fenced writes fail"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._owners: dict[str, Actor] = {}
        """The process whose take was accepted last, by lease key."""

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
            raise self.broken(
                before.lease_key, f"a {what} of {actor.label} was accepted, but {label} took the lease last"
            )

    def _is_same_worker(self, actor: Actor, owner: Actor | None) -> bool:
        """Return whether ``actor`` may write because another process of the same worker took the lease last.

        ``owner`` is the process whose take was accepted last. If both have the same name, ``actor`` may write in three
        cases. First, ``owner`` is dead: its take arrived late. Second, both are alive, and ``actor`` is the newer one.
        Third, ``actor`` is the older one, and cannot know yet that its name was taken over.
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
    does not know yet that its row was destroyed from outside also counts as a late writer. A process whose name another
    process has taken over must not hold leases, so its late take is not an acquisition.
    """

    name = EPOCHS

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._last: dict[str, ConsumerRole] = {}
        self._takes: dict[str, tuple[Actor, int]] = {}
        """By lease key: the process that took the lease last, and the number of takes by another process than the take
        before."""
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
            return  # a process whose row was destroyed must not hold the lease
        self._last[key], self._known_takes[key] = consumer, changes

    def write_refused(self, consumer: ConsumerRole) -> None:
        key, process = consumer.lease_key, consumer.process
        if process.believes(consumer) and not self.excuses(process, key, *UNAWARE):
            raise self.broken(key, f"the sink refused {consumer!r}, which owns the lease")


class KilledStaysKilled(Law):
    """A killed session sends no further heartbeat. Its row may only be deleted, or replaced by a new session's row."""

    name = "killed stays killed"

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        was_killed = before is not None and before.state is SessionState.KILLED
        if was_killed and after is not None and before is not None and after.nonce == before.nonce:
            raise self.broken("", f"{write.kind.value} of {actor.label} was accepted for a killed session: {after}")


class VerdictsAreLate(Law):
    """A session is killed only after it expired by its worker's clock. So the worker's leases have expired, too."""

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
    """No process starts to read a shard without a valid session, or after a newer process has taken over its name."""

    name = "sessions first"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        process = consumer.process
        if process.holdings.session_valid_until <= process.local():
            raise self.broken(consumer.lease_key, f"{consumer!r} starts without a valid session")
        if process.holdings.is_ousted:
            raise self.broken(consumer.lease_key, f"{consumer!r} starts although a newer process has its name")
