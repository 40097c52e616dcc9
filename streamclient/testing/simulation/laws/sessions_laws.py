"""Laws about the sessions of workers: their rows, their ends, and two processes with one name."""

from __future__ import annotations

from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind
from streamclient.testing.simulation.laws.base import Law
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.simulated_table import Actor


class KilledStaysKilled(Law):
    """A session that was killed never beats again: its row changes only by a new session, or is deleted."""

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
