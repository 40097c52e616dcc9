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


def landed(table: dict[str, Any], key: str, write: Any) -> WriteOutcome:
    """Apply a write to a dict of rows, if permitted."""
    stored = table.get(key)
    if not permits(stored, write):
        return WriteOutcome.REFUSED
    after = apply_write(stored, write)
    table.pop(key, None)
    if after is not None:
        table[key] = after
    return WriteOutcome.ACCEPTED


class Driver:
    """``now`` starts at 100; every helper returns the commands that followed."""

    has_worker_rows = False
    sets_counters = True

    def __init__(self, *rows: Lease, name: str = "me", position: InitialPosition | None = None, **config: Any) -> None:
        self.now = 100.0
        self.config = ClientConfig(**config)
        self.table = {lease.lease_key: lease for lease in rows}
        self.epochs: dict[str, int] = {}
        self.log: list[events.Command] = []
        numbers = count(1)
        self.holdings = Holdings(
            name,
            STREAM_ID,
            self.config,
            position or InitialPosition.oldest(),
            Random(0),
            new_identifier=lambda: f"t{next(numbers)}",
            wall_start_micros=777,
            has_worker_rows=self.has_worker_rows,
            sets_counters=self.sets_counters,
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
        return landed(self.table, write.lease_key, write)

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
            done.append(pending.pop(0))
            pending += self.carry_out(done[-1], draws=draws)
        return done

    def carry_out(self, command: events.Command, *, draws: bool = True) -> list[events.Command]:
        match command:
            case events.WriteLease(write):
                return self.answer(write)
            case events.ReadRow(key):
                return self.read_back(key)
            case events.DrawEpoch(key) if draws:
                return self.draw(key)
            case events.ReadRows():
                return self.send(scanned(tuple(self.table[key] for key in sorted(self.table))))
        return []

    def hold(self) -> list[events.Command]:
        """Scan, take what there is, and let consumers start."""
        return self.settle(self.scan())

    def renew(self) -> list[events.Command]:
        return self.send(events.RenewDue())

    def renew_later(self, seconds: float = 6) -> list[events.Command]:
        """Let the time of the next heartbeat come, and carry out what follows from it."""
        self.now += seconds
        return self.settle(self.renew())

    def scan_later(self, seconds: float = 6) -> list[events.Command]:
        """Let the time of the next scan come, and carry out what follows from it."""
        self.now += seconds
        return self.settle(self.scan())

    def tick_at(self, now: float) -> list[events.Command]:
        """Let the time be ``now``."""
        self.now = now
        return self.send(events.Tick())

    def fail_to_read_back(self, key: str) -> list[events.Command]:
        return self.send(events.Answered(events.ReadRow(key), error=TimeoutError()))

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


def reader(*others: Lease) -> Driver:
    """A driver that holds and reads shard ``a`` from ``i1``, with ``others`` in the table."""
    driver = Driver(row("a", checkpoint="i1"), *others)
    started = only(driver.hold(), events.StartConsumer)
    assert [start.checkpoint for start in started if start.shard_info.shard_id == "a"] == ["i1"]
    return driver
