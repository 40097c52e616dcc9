"""What tests of loops stand on: workers over a fake stream, and one shard whose owner the test steps."""

from __future__ import annotations

import threading
import time
from typing import Any

from streamclient import Changes, ClientConfig, Lease, StreamConfig, Worker
from streamclient.aio import AsyncChanges
from streamclient.core.consumer.consumer_positions import HandedOutPositions
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.interfaces import InitializationInput
from streamclient.loops.consumption import Consumption
from streamclient.loops.line import Line
from streamclient.loops.line_receiver import HandedBatch, LineReceivers
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.testing.fakes import FakeStream
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.handing_over import ReceiverSession, session_of
from streamclient.worker.handlers.batches import BatchBase, Commit
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.usercode import ShutdownMarker, UserCode
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS
from tests.simulation.scene import FaultyLeases
from tests.worker.stage import ManualPool, records

START = "TRIM_HORIZON"


def ids(batch: BatchBase) -> list[Any]:
    """The keys of a batch."""
    return [record.key["id"] for record in batch]


class LoopScene:
    """A fake stream and leases in memory, for loops in real threads."""

    def __init__(self, *shard_ids: str) -> None:
        self.stream = FakeStream("orders", shard_ids or ("a",))
        self.leases = FaultyLeases(self.stream.stream_id)

    def write(self, shard_id: str, count: int, start: int = 0) -> None:
        self.stream.append(shard_id, *records(count, start))

    def consumption(
        self, name: str = "w1", commit: Commit = "turn", *, max_records: int = 5, **config: Any
    ) -> Consumption:
        """What a loop takes its batches from: pages of five, and a worker with short intervals."""
        quick = {"taker_interval_millis": 50, "renewer_interval_millis": 100, "sync_shard_interval_millis": 50}
        settings = ClientConfig(**{"lease_duration_millis": 6_000, **quick, **config})
        stream = StreamConfig(
            client=None, data_table_name="orders", status_table_name="status", max_records=max_records
        )

        def make(receivers: LineReceivers, threads: Any) -> Worker:
            return Worker(name, settings, stream, receivers, threads, self.leases, stream_api=self.stream)

        return Consumption(name, make, settings, commit)

    def changes(self, name: str = "w1", commit: Commit = "turn", **config: Any) -> Changes:
        return Changes(self.consumption(name, commit, **config))

    def async_changes(self, name: str = "w1", commit: Commit = "turn", **config: Any) -> AsyncChanges:
        return AsyncChanges(self.consumption(name, commit, **config))

    def lease(self, shard_id: str = "a") -> Lease:
        lease = self.leases.get_lease(shard_id)
        assert lease is not None
        return lease

    def stored(self, shard_id: str = "a") -> str:
        return self.lease(shard_id).checkpoint

    def is_free(self, shard_id: str = "a") -> bool:
        """Whether no living worker holds the shard."""
        return not self.lease(shard_id).owner

    def take_away(self, shard_id: str = "a") -> None:
        """Give the lease to another worker, as if its owner had been taken for dead; its next write is refused."""
        while not self.leases.take_lease(self.lease(shard_id), "other"):
            pass


class OneShard:
    """A receiver of one shard, whose owner does what the test says and nothing else."""

    def __init__(self, commit: Commit = "turn") -> None:
        self.owner = OwnerLoop(time.monotonic)
        self.user_code = UserCode(ManualPool(), self.owner)
        self.line = Line[HandedBatch]()
        self.receivers = LineReceivers(self.line, commit)
        self.sent: list[CheckpointTicket] = []
        self.stored: list[str] = []
        """Positions that were stored at once, if ``stores`` is set."""
        self.stores = False
        self.said: list[str] = []
        """What the owner learned about calls."""
        self.positions = HandedOutPositions("a", START)
        self.checkpointer = RecordProcessorCheckpointer("a", self.positions, self._send, self._wait, FOREVER_MILLIS)
        given = InitializationInput(
            ShardInfo("a", "orders_1", frozenset(), "lease-1", table_name="orders"),
            START,
            self.checkpointer,
            ShutdownMarker(lambda reason: self.said.append(reason.value)),
        )
        session = session_of(given, self.receivers, self.checkpointer)
        assert isinstance(session, ReceiverSession)
        self.session = session
        self.hand_over("initialize", session.initialize)

    def hand_over(self, name: str, work: Any) -> Any:
        """Have the owner begin a call."""
        call = self.user_code.hand_over(
            name,
            "a",
            work,
            lambda raised: self.said.append(f"{name} {'returned' if raised is None else raised.text}"),
            lambda: self.said.append(f"{name} given back"),
        )
        self.turn()
        return call

    def turn(self) -> None:
        """Let the owner do what it has to do."""
        self.owner.turn(0)
        while self.owner.has_messages:
            self.owner.turn(0)

    def give(self, position: str, count: int = 1) -> Any:
        """Deliver one batch."""
        self.checkpointer.permit(position)
        return self.hand_over("batch", lambda call: self.session.process(records(count), 0, call))

    def taken(self) -> HandedBatch:
        """Take the next batch, as a loop does."""
        delivery = self.line.take()
        assert delivery is not None
        return delivery

    def shut_down(self, reason: ShutdownReason) -> Any:
        return self.hand_over("shutdown", lambda call: self.session.shutdown(reason, call))

    def answer(self, outcome: CheckpointOutcome = CheckpointOutcome.STORED) -> None:
        """Answer the oldest checkpoint under way."""
        self.sent.pop(0).answer(AnswerCheckpoint(1, outcome))
        self.turn()

    @property
    def requested(self) -> list[str]:
        """Positions of the checkpoints under way."""
        return [ticket.value for ticket in self.sent]

    def _send(self, ticket: CheckpointTicket, seconds: float) -> bool:
        if self.stores:
            self.stored.append(ticket.value)
            ticket.answer(AnswerCheckpoint(1, CheckpointOutcome.STORED))
        else:
            self.sent.append(ticket)
        return True

    @staticmethod
    def _wait(event: threading.Event, seconds: float) -> bool:
        return event.wait(PATIENCE_SECONDS)
