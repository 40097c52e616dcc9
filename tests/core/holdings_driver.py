"""One ``Holdings`` driven step by step over a dict of rows, for tests that walk one path."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any, TypeVar

from streamclient.base.reasons import text_of
from streamclient.config import ClientConfig
from streamclient.core import events, leases
from streamclient.core.events import ConsumerEnd
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteOutcome, apply_write, permits
from streamclient.model import InitialPosition, Lease, Shard

STREAM_ID = "stream"
COMMAND = TypeVar("COMMAND")


def row(key: str, owner: str = "", counter: int = 0, **others: object) -> Lease:
    return Lease(key, STREAM_ID, owner, counter, **others)  # type: ignore[arg-type]


def scanned(rows: tuple[Lease, ...], **more: Any) -> events.Answered[events.Scan]:
    return events.Answered(events.ReadRows(), events.Scan(rows, **more))


class Driver:
    """``now`` starts at 100; every helper returns the commands that followed."""

    def __init__(self, *rows: Lease, name: str = "me", position: InitialPosition | None = None, **config: int) -> None:
        self.now = 100.0
        self.table = {lease.lease_key: lease for lease in rows}
        self.epochs: dict[str, int] = {}
        self.log: list[events.Command] = []
        numbers = count(1)
        self.holdings = Holdings(
            name,
            STREAM_ID,
            ClientConfig(**config),
            position or InitialPosition.oldest(),
            Random(0),
            new_identifier=lambda: f"t{next(numbers)}",
            wall_start_micros=777,
        )

    def send(self, event: events.Event) -> list[events.Command]:
        commands = self.holdings.handle(event, self.now)
        self.log.extend(commands)
        return commands

    def scan(self) -> list[events.Command]:
        self.send(events.TakeDue())
        return self.send(scanned(tuple(self.table[key] for key in sorted(self.table))))

    def list_shards(self, *shards: Shard) -> list[events.Command]:
        return self.send(events.Answered(events.ListShards(), events.ShardList(shards)))

    def land(self, write: LeaseWrite) -> WriteOutcome:
        """Apply a write to the table, if permitted."""
        stored = self.table.get(write.lease_key)
        if not permits(stored, write):
            return WriteOutcome.REFUSED
        after = apply_write(stored, write)
        self.table.pop(write.lease_key, None)
        if after is not None:
            self.table[write.lease_key] = after
        return WriteOutcome.ACCEPTED

    def answer(
        self, write: LeaseWrite, outcome: WriteOutcome | None = None, sent_at: float | None = None
    ) -> list[events.Command]:
        """Apply and answer a write; with ``outcome``, answer that without applying anything."""
        outcome = self.land(write) if outcome is None else outcome
        return self.send(events.Answered(events.WriteLease(write), outcome, self.now if sent_at is None else sent_at))

    def answer_and_read_back(self, write: LeaseWrite) -> list[events.Command]:
        """A write gets no answer, and its row is read back as it is."""
        self.answer(write, WriteOutcome.UNCERTAIN)
        return self.read_back(write.lease_key)

    def draw(self, key: str) -> list[events.Command]:
        """Draw an epoch and answer with it."""
        self.epochs[key] = self.epochs.get(key, 0) + 1
        return self.send(events.Answered(events.DrawEpoch(key), self.epochs[key]))

    def read_back(self, key: str) -> list[events.Command]:
        return self.send(events.Answered(events.ReadRow(key), self.table.get(key)))

    def settle_without_epochs(self, commands: Iterable[events.Command]) -> list[events.Command]:
        """As ``settle``, but draw no epoch."""
        return self.settle(commands, draws=False)

    def settle(self, commands: Iterable[events.Command], *, draws: bool = True) -> list[events.Command]:
        """Carry out all writes and reads that commands ask for, until none is left; returns all commands."""
        pending, done = list(commands), []
        while pending:
            command = pending.pop(0)
            done.append(command)
            if isinstance(command, events.WriteLease):
                pending += self.answer(command.write)
            elif isinstance(command, events.ReadRow):
                pending += self.read_back(command.lease_key)
            elif isinstance(command, events.DrawEpoch) and draws:
                pending += self.draw(command.lease_key)
            elif isinstance(command, events.ReadRows):
                pending += self.send(scanned(tuple(self.table[key] for key in sorted(self.table))))
        return done

    def hold(self) -> list[events.Command]:
        """Scan, take what there is, and let consumers start."""
        return self.settle(self.scan())

    def renew(self) -> list[events.Command]:
        return self.send(events.RenewDue())

    def checkpoint(self, key: str, value: str, request_id: int = 1) -> list[events.Command]:
        identifier = self.holdings.held[key].identifier if key in self.holdings.held else "gone"
        return self.send(events.CheckpointRequested(request_id, key, identifier, value))

    def said(self, key: str) -> str:
        """Why a held lease is not being read; empty while it is."""
        reason = self.holdings.held[key].reason
        return "" if reason is None else text_of(reason)

    def stopped(self, key: str, end: ConsumerEnd = ConsumerEnd.STOPPED, identifier: str = "") -> list[events.Command]:
        return self.send(events.ConsumerStopped(key, identifier or self.holdings.held[key].identifier, end))

    def others_renew(self, me: str = "me") -> None:
        """Every other owner moves its counters."""
        for key, lease in self.table.items():
            if lease.owner not in ("", me) and not lease.is_handed_over:
                self.table[key] = apply_write(lease, leases.renew(lease)) or lease


def only(commands: Iterable[events.Command], kind: type[COMMAND]) -> list[COMMAND]:
    return [command for command in commands if isinstance(command, kind)]


def kinds(commands: list[events.Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def writes(commands: Iterable[events.Command]) -> list[LeaseWrite]:
    return [command.write for command in commands if isinstance(command, events.WriteLease)]


def answers(commands: Iterable[events.Command]) -> list[tuple[int, str]]:
    return [(c.request_id, c.outcome.value) for c in commands if isinstance(c, events.AnswerCheckpoint)]


def reader(**config: int) -> Driver:
    """A driver that holds and reads shard ``a``."""
    driver = Driver(row("a", checkpoint="i1"), **config)
    started = only(driver.hold(), events.StartConsumer)
    assert [(start.shard_info.shard_id, start.checkpoint) for start in started] == [("a", "i1")]
    return driver
