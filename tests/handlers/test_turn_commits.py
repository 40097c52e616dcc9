"""The commit of a turn: whatever the answer, the shard goes on, and what is not stored is stored by the next commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from streamclient.base.outages import OutageLog
from streamclient.base.pools import DaemonPool
from streamclient.base.reasons import Raised
from streamclient.core.consumer.consumer_positions import HandedOutPositions
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, ShutdownException
from streamclient.interfaces import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.testing.simulation.kernel import Agenda
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.handlers import turn_commits
from streamclient.worker.handlers.async_user_code import HandlerCode
from streamclient.worker.handlers.batches import AsyncBatch, Batch, Commit
from streamclient.worker.handlers.blocking_twin import BlockingTwin, TwinLoops
from streamclient.worker.handlers.handler_processor import HandlerProcessor
from streamclient.worker.handlers.task_line import TaskLine
from streamclient.worker.handlers.task_receiver import TaskReceiver
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.usercode import HandedCall, ShutdownMarker, UserCode
from tests.handlers.stepping import StepBridge
from tests.placed_records import make_record

SHARD = ShardInfo("s", "stream", frozenset(), "lease")


async def nothing(batch: AsyncBatch) -> None:
    """Do nothing."""


async def commits(batch: AsyncBatch) -> None:
    await batch.commit()


class Desk:
    """A receiver with an owner, an event loop and a status table that answer when the test says so."""

    def __init__(self, handler: Callable[[AsyncBatch], Any] = nothing, commit: Commit = "turn") -> None:
        self.tickets: list[CheckpointTicket] = []
        self.agenda = Agenda()
        self.loop = OwnerLoop(lambda: self.agenda.now)
        self.code = UserCode(DaemonPool("none", 1), self.loop)
        positions = HandedOutPositions("s", "p0")
        self.checkpointer = RecordProcessorCheckpointer("s", positions, self.send, lambda event, _: event.is_set(), 5)
        bridge = StepBridge(self.agenda)
        self.receiver = TaskReceiver(HandlerCode(handler, commit), self.checkpointer, TaskLine(lambda: bridge))
        self.told: list[object] = []
        marker = ShutdownMarker(lambda reason: None)
        self.given = InitializationInput(SHARD, "p0", self.checkpointer, marker)
        self.begin("initialize", lambda call: self.receiver.initialize(self.given, call))
        self.told.clear()

    def send(self, ticket: CheckpointTicket, seconds: float) -> bool:
        self.tickets.append(ticket)
        return True

    def begin(self, name: str, start: Callable[[HandedCall], None]) -> None:
        def done(raised: Raised | None) -> None:
            self.told.append("finished" if raised is None else raised.error)

        self.code.hand_over(name, "s", start, done, lambda: self.told.append("left"))
        self.turn()

    def turn(self) -> None:
        for _ in range(3):
            self.loop.turn(0)
            self.agenda.run_until(self.agenda.now)
        self.loop.turn(0)

    def batch(self, number: int) -> None:
        """Hand out one batch, which ends at position ``p<number>``."""
        self.checkpointer.permit(f"p{number}")
        self.checkpointer.give()
        given = ProcessRecordsInput((make_record("k", number),), self.checkpointer, self.given.shutdown_marker)
        self.begin("process_records", lambda call: self.receiver.process(given, call))

    def end(self, reason: ShutdownReason) -> None:
        given = ShutdownInput(reason, self.checkpointer)
        self.begin("shutdown", lambda call: self.receiver.shutdown(given, call))

    def answer(self, outcome: CheckpointOutcome, error: Exception | None = None) -> str:
        ticket = self.tickets.pop(0)
        ticket.answer(AnswerCheckpoint(0, outcome, error))
        self.turn()
        return ticket.value


def test_the_shard_goes_on_when_the_turn_is_stored() -> None:
    desk = Desk()
    desk.batch(1)
    assert (len(desk.tickets), desk.told) == (1, [])
    assert desk.answer(CheckpointOutcome.STORED) == "p1"
    assert desk.told == ["finished"]
    desk.end(ShutdownReason.STOLEN)
    assert (desk.tickets, desk.told) == ([], ["finished", "finished"])


def test_an_unanswered_turn_is_accepted_and_stored_by_the_next_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_commits, "_outages", OutageLog(turn_commits._log))  # which has told nothing yet
    desk = Desk()
    desk.batch(1)
    desk.answer(CheckpointOutcome.UNKNOWN)
    assert desk.told == ["finished"]
    assert "is not known to be stored; the next commit stores it" in caplog.text
    desk.batch(2)
    assert desk.answer(CheckpointOutcome.STORED) == "p2"
    desk.end(ShutdownReason.STOLEN)
    assert (desk.tickets, desk.told) == ([], ["finished"] * 3)


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.PROCESS_RESTART])
def test_an_unanswered_turn_is_stored_by_the_hand_over(reason: ShutdownReason) -> None:
    desk = Desk()
    desk.batch(1)
    desk.answer(CheckpointOutcome.UNKNOWN)
    desk.end(reason)
    assert desk.told == ["finished"]
    assert desk.answer(CheckpointOutcome.STORED) == "p1"
    assert desk.told == ["finished", "finished"]


def test_an_unanswered_turn_is_not_stored_for_a_lost_lease() -> None:
    desk = Desk()
    desk.batch(1)
    desk.answer(CheckpointOutcome.UNKNOWN)
    desk.end(ShutdownReason.ZOMBIE)
    assert (desk.tickets, desk.told) == ([], ["finished", "finished"])


def test_a_turn_of_a_lost_lease_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk()
    desk.batch(1)
    caplog.clear()
    desk.answer(CheckpointOutcome.LEASE_LOST)
    assert desk.told == ["finished"]
    (line,) = caplog.records
    assert (line.levelno, line.exc_info) == (logging.INFO, None)
    assert line.getMessage().startswith("shard s: a batch was handled and not stored: checkpoint 'p1' of shard s")


def test_a_turn_that_can_never_be_stored_is_a_failure() -> None:
    desk = Desk()
    desk.batch(1)
    desk.answer(CheckpointOutcome.REJECTED, ValueError("too long"))
    (error,) = desk.told
    assert isinstance(error, ConfigurationError)
    assert "was not stored: too long" in str(error)


def test_a_commit_in_the_body_settles_the_batch_and_nothing_is_sent_twice() -> None:
    desk = Desk(commits)
    desk.batch(1)
    assert desk.answer(CheckpointOutcome.STORED) == "p1"
    assert (desk.tickets, desk.told) == ([], ["finished"])


def test_a_commit_in_the_body_without_an_answer_is_the_bodys_error() -> None:
    desk = Desk(commits)
    desk.batch(1)
    desk.answer(CheckpointOutcome.UNKNOWN)
    (error,) = desk.told
    assert isinstance(error, DependencyException)


def test_an_explicit_turn_sends_nothing() -> None:
    desk = Desk(commit="explicit")
    desk.batch(1)
    desk.end(ShutdownReason.STOLEN)
    assert (desk.tickets, desk.told) == ([], ["finished", "finished"])


# --- the same in threads ----------------------------------------------------------------------------------------------


class Answering(RecordProcessorCheckpointer):
    """Answers each checkpoint with the next error, and says which position was asked for."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors, self.asked = list(errors), list[str]()
        super().__init__("s", HandedOutPositions("s", "p0"), lambda ticket, _: True, lambda event, _: True, 5)

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        self.asked.append(checkpoint_value or self.largest_permitted_checkpoint_value)
        error = self.errors.pop(0)
        if error is not None:
            raise error


UNANSWERED = DependencyException("no answer", kind=ErrorKind.AMBIGUOUS)


def handled(checkpointer: Answering, handler: Callable[[Batch], None], commit: Commit = "turn") -> HandlerProcessor:
    processor = HandlerProcessor(handler, commit)
    marker = ShutdownMarker(lambda reason: None)
    processor.initialize(InitializationInput(SHARD, "p0", checkpointer, marker))
    checkpointer.permit("p1")
    processor.process_records(ProcessRecordsInput((make_record("k", 1),), checkpointer, marker))
    return processor


@pytest.mark.parametrize("error", [None, UNANSWERED, ShutdownException("gone")])
def test_a_turn_in_a_thread_raises_nothing_whatever_the_answer(error: Exception | None) -> None:
    checkpointer = Answering(error, None)
    processor = handled(checkpointer, lambda batch: None)
    processor.shutdown(ShutdownInput(ShutdownReason.STOLEN, checkpointer))
    assert checkpointer.asked == (["p1", "p1"] if error is UNANSWERED else ["p1"])


def test_a_turn_in_a_thread_that_can_never_be_stored_raises() -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        handled(Answering(ConfigurationError("too long")), lambda batch: None)


def test_a_twin_that_blocks_stores_nothing_before_the_end_of_its_handler() -> None:
    checkpointer = Answering(None, None)
    asked: list[list[str]] = []

    async def handle(batch: AsyncBatch) -> None:
        asked.append(list(checkpointer.asked))

    twin = BlockingTwin(HandlerCode(handle, "turn"), TwinLoops())
    marker = ShutdownMarker(lambda reason: None)
    twin.initialize(InitializationInput(SHARD, "p0", checkpointer, marker))
    checkpointer.permit("p1")
    twin.process_records(ProcessRecordsInput((make_record("k", 1),), checkpointer, marker))
    twin.shutdown(ShutdownInput(ShutdownReason.STOLEN, checkpointer))
    assert (asked, checkpointer.asked) == ([[]], ["p1"])


def test_an_explicit_handler_in_a_thread_is_given_the_end_to_commit() -> None:
    given: list[bool] = []

    def note(batch: Batch) -> None:
        given.append(batch.is_end)
        if batch.is_end:
            batch.commit()

    checkpointer = Answering(None)
    processor = handled(checkpointer, note, "explicit")
    checkpointer.permit("SHARD_END")
    processor.shutdown(ShutdownInput(ShutdownReason.TERMINATE, checkpointer))
    assert (given, checkpointer.asked) == ([False, True], ["SHARD_END"])
