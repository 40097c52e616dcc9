"""Calls that begin in the owner and end elsewhere: whoever has the token has the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from streamclient import FailurePolicy
from streamclient.base.pools import DaemonPool
from streamclient.base.reasons import Cause, Raised
from streamclient.core.consumer.consumer_positions import HandedOutPositions
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import ConfigurationError, DependencyException, ShutdownException
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import CheckpointPosition, OnFailure, Progress, ShutdownReason
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.handing_over import Receiver, ReceiverFactory
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.parking import MemoryParkingStore
from streamclient.worker.usercode import HandedCall, UserCode
from tests.placed_records import make_record
from tests.worker.stage import Stage, keys

# --- the token --------------------------------------------------------------------------------------------------------


class Told:
    """A user code whose owner turns when the test says so, and what the owner was told of each call."""

    def __init__(self) -> None:
        self.loop = OwnerLoop(lambda: 7.0)
        self.code = UserCode(DaemonPool("none", 1), self.loop)
        self.told: list[object] = []

    def call(self, start: Callable[[HandedCall], None] = lambda call: None) -> HandedCall:
        def done(raised: Raised | None) -> None:
            self.told.append("finished" if raised is None else raised.error)

        made = self.code.hand_over("process_records", "s", start, done, lambda: self.told.append("given back"))
        self.loop.turn(0)
        return made

    def then(self) -> list[object]:
        self.loop.turn(0)
        return self.told


@pytest.fixture
def owner() -> Told:
    return Told()


ENDS: dict[str, Callable[[HandedCall], object]] = {
    "finish": lambda call: call.finish(),
    "give back": lambda call: call.give_back(),
    "take back": lambda call: call.cancel(),
}


@pytest.mark.parametrize("order", list(permutations(ENDS, 2)), ids=" then ".join)
def test_of_two_who_end_a_call_in_line_the_first_has_it(owner: Told, order: tuple[str, str]) -> None:
    call = owner.call()
    answers = [ENDS[name](call) for name in order]

    expected: dict[str, list[object]] = {"finish": ["finished"], "give back": ["given back"], "take back": []}
    assert owner.then() == expected[order[0]]
    assert answers[1] in (None, False)


def test_a_claimed_call_is_not_taken_back_and_ends_when_its_holder_says(owner: Told) -> None:
    error = ValueError("no")
    call = owner.call()

    assert call.claim()
    assert not call.claim()
    assert not call.cancel()
    assert owner.then() == []
    call.finish(error)
    assert owner.then() == [error]


@pytest.mark.parametrize("again", ["finish", "give back"])
def test_a_claimed_call_that_is_ended_twice_has_its_first_end_and_nothing_is_said(
    owner: Told, again: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a loop that SIGTERM ends while it settles its batch."""
    call = owner.call()

    assert call.claim()
    call.finish()
    assert owner.then() == ["finished"]
    ENDS[again](call)
    assert owner.then() == ["finished"]
    assert caplog.messages == []


def test_a_call_that_was_taken_back_is_not_claimed_and_its_start_is_not_called_in_the_same_turn(owner: Told) -> None:
    started: list[HandedCall] = []
    call = owner.code.hand_over("process_records", "s", started.append, lambda raised: None, lambda: None)

    assert call.cancel()
    assert not call.claim()
    assert (owner.then(), started) == ([], [])


def test_a_start_that_raises_ends_its_call_with_the_error(owner: Told) -> None:
    error = RuntimeError("no line")

    def start(call: HandedCall) -> None:
        raise error

    owner.call(start)
    assert owner.then() == [error]


def test_only_threads_with_a_claimed_call_are_inside_user_code(owner: Told) -> None:
    first, second = owner.call(), owner.call()
    assert not owner.code.is_inside()
    assert first.claim()
    assert second.claim()
    first.finish()
    assert owner.code.is_inside()
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(owner.code.is_inside()))
    thread.start()
    thread.join()
    thread = threading.Thread(target=second.finish)
    thread.start()
    thread.join()
    assert (elsewhere, owner.code.is_inside()) == ([False], False)


def test_a_call_in_line_waits_since_the_line_last_moved_and_a_claimed_one_since_its_claim(owner: Told) -> None:
    call = owner.call()
    assert call.queued_at == 7.0
    call.last_taken_at = lambda: 9.0
    assert call.queued_at == 9.0
    assert call.claim()
    assert (call.queued_at, call.started_at) == (7.0, 7.0)


def test_many_claims_and_one_taking_back_never_both_succeed() -> None:
    """Real threads: for each call exactly one of the two has it."""
    told = Told()
    for _ in range(300):
        call = told.call()
        ready = threading.Barrier(2)
        claimed: list[bool] = []

        def claim(call: HandedCall = call, ready: threading.Barrier = ready, claimed: list[bool] = claimed) -> None:
            ready.wait()
            claimed.append(call.claim())

        thread = threading.Thread(target=claim)
        thread.start()
        ready.wait()
        taken_back = call.cancel()
        thread.join()
        assert claimed == [not taken_back]


# --- a checkpoint that nobody waits for -------------------------------------------------------------------------------


class Desk:
    """Takes the tickets of a checkpointer, and answers when the test says so."""

    def __init__(self) -> None:
        self.tickets: list[CheckpointTicket] = []
        self.is_open = True
        positions = HandedOutPositions("s", "p0")
        self.checkpointer = RecordProcessorCheckpointer("s", positions, self.send, lambda event, _: event.is_set(), 5)
        self.answers: list[Exception | None] = []

    def send(self, ticket: CheckpointTicket, seconds: float) -> bool:
        if self.is_open:
            self.tickets.append(ticket)
        return self.is_open

    def begin(self, value: str | None = None) -> None:
        self.checkpointer.begin_checkpoint(value, self.answers.append)

    def answer(self, outcome: CheckpointOutcome) -> None:
        self.tickets.pop(0).answer(AnswerCheckpoint(0, outcome))


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.checkpointer.permit("p1")
    return desk


def test_a_begun_checkpoint_is_answered_when_it_is_stored(desk: Desk) -> None:
    desk.begin()
    assert desk.answers == []
    desk.answer(CheckpointOutcome.STORED)
    assert desk.answers == [None]


def test_the_stored_position_is_answered_without_a_request(desk: Desk) -> None:
    desk.begin("p1")
    desk.answer(CheckpointOutcome.STORED)
    desk.begin()

    assert (desk.answers, desk.tickets) == ([None, None], [])


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [(CheckpointOutcome.LEASE_LOST, ShutdownException), (CheckpointOutcome.UNKNOWN, DependencyException)],
)
def test_what_was_not_stored_is_answered_with_what_checkpoint_raises(
    desk: Desk, outcome: CheckpointOutcome, kind: type[Exception]
) -> None:
    desk.begin()
    desk.answer(outcome)
    assert [type(error) for error in desk.answers] == [kind]
    desk.begin()
    desk.answer(CheckpointOutcome.STORED)
    assert desk.answers[1:] == [None]


def test_begun_checkpoints_take_turns_and_those_of_a_position_that_is_stored_by_then_send_nothing(desk: Desk) -> None:
    """A thousand are answered in one go, without a call within a call for each."""
    desk.checkpointer.permit("p2")
    for value in ("p1", "p2", *["p2"] * 1_000):
        desk.begin(value)
    assert (desk.answers, [ticket.value for ticket in desk.tickets]) == ([], ["p1"])
    desk.answer(CheckpointOutcome.UNKNOWN)
    assert ([type(error) for error in desk.answers], desk.tickets[0].value) == ([DependencyException], "p2")
    desk.answer(CheckpointOutcome.STORED)

    assert (desk.answers[1:], desk.tickets) == ([None] * 1_001, [])


def test_a_checkpoint_begun_while_a_thread_waits_for_another_one_follows_it(desk: Desk) -> None:
    def wait(answered: threading.Event, seconds: float) -> bool:
        desk.begin()
        assert (desk.answers, len(desk.tickets)) == ([], 1)
        desk.answer(CheckpointOutcome.LEASE_LOST)
        return True

    desk.checkpointer._wait = wait
    with pytest.raises(ShutdownException):
        desk.checkpointer.checkpoint()
    assert desk.answers == []
    desk.answer(CheckpointOutcome.STORED)
    assert desk.answers == [None]


def test_a_begun_checkpoint_whose_turn_comes_after_the_end_stores_nothing(desk: Desk) -> None:
    desk.begin()
    desk.begin()
    desk.checkpointer.close("it is over")
    desk.answer(CheckpointOutcome.LEASE_LOST)

    assert [type(error) for error in desk.answers] == [ShutdownException, ShutdownException]
    assert (str(desk.answers[1]), desk.tickets) == ("nothing more is stored for shard s: it is over", [])


def test_a_checkpoint_that_cannot_begin_is_answered_in_the_callers_thread(desk: Desk) -> None:
    desk.begin()
    desk.answer(CheckpointOutcome.STORED)
    desk.checkpointer.permit("p2")
    desk.is_open = False
    desk.begin()  # the worker has ended
    desk.checkpointer.close("it is over")
    desk.begin()

    assert [type(error) for error in desk.answers] == [type(None), ShutdownException, ShutdownException]


def test_all_is_stored_once_a_checkpoint_after_the_last_batch_is_stored(desk: Desk) -> None:
    checkpointer = desk.checkpointer
    assert checkpointer.has_stored_all
    checkpointer.give()
    assert not checkpointer.has_stored_all
    desk.begin()
    checkpointer.permit("p2")
    checkpointer.give()  # before the answer comes
    desk.answer(CheckpointOutcome.STORED)
    assert not checkpointer.has_stored_all
    desk.begin("p2")
    desk.answer(CheckpointOutcome.STORED)
    assert checkpointer.has_stored_all


def test_a_batch_that_failed_leaves_nothing_to_store(desk: Desk) -> None:
    """Its records are given again, parked or skipped; only an accepted batch waits for a checkpoint."""
    checkpointer = desk.checkpointer
    checkpointer.give()
    checkpointer.take_back()
    assert checkpointer.has_stored_all
    checkpointer.give()
    checkpointer.give(0)
    checkpointer.take_back()  # the empty one
    assert not checkpointer.has_stored_all


def test_records_that_were_set_aside_are_after_the_last_request_and_wait_for_no_checkpoint(desk: Desk) -> None:
    checkpointer = desk.checkpointer
    checkpointer.permit("p2", Progress(record_micros=2, records=0, bytes=0))
    assert not checkpointer.has_set_aside, "no record came"
    checkpointer.give()
    checkpointer.permit("p3", Progress(record_micros=3, records=1, bytes=9))
    assert not checkpointer.has_set_aside, "the processor has it, and has stored nothing"
    desk.begin()
    desk.answer(CheckpointOutcome.STORED)
    assert not checkpointer.has_set_aside, "it is stored"
    checkpointer.give()
    checkpointer.take_back()  # its record is parked
    checkpointer.permit("p4", Progress(record_micros=4, records=2, bytes=18))
    assert checkpointer.has_set_aside
    checkpointer.give()
    checkpointer.permit("p5", Progress(record_micros=5, records=3, bytes=27))
    assert not checkpointer.has_set_aside


def progress(records: int) -> Progress:
    return Progress(record_micros=records, records=records, bytes=9 * records)


def given_and_stored(desk: Desk) -> None:
    desk.checkpointer.permit("p1", progress(1))
    desk.checkpointer.give()
    desk.begin()
    desk.answer(CheckpointOutcome.STORED)


def test_the_worker_stores_the_position_after_records_that_were_set_aside(desk: Desk) -> None:
    """What the processor stores again, or for the first time, before that position is stored with it."""
    given_and_stored(desk)
    mine = desk.checkpointer.largest_permitted_checkpoint_value
    for records, position in enumerate(["p2", "p3"], 2):
        desk.checkpointer.permit(position, progress(records))
    desk.checkpointer.store_set_aside()
    desk.checkpointer.store_set_aside()  # while the first request is under way
    (ticket,) = desk.tickets
    assert (ticket.value, ticket.progress) == ("p3", progress(3))
    desk.answer(CheckpointOutcome.STORED)
    desk.checkpointer.store_set_aside()
    for value in (mine, "p2", "p3", None):
        desk.begin(value)

    assert (desk.answers, desk.tickets) == ([None] * 5, [])
    assert not desk.checkpointer.has_set_aside
    with pytest.raises(ConfigurationError, match="was not handed out"):
        desk.checkpointer.checkpoint("p0")


@pytest.mark.parametrize("outcome", [CheckpointOutcome.UNKNOWN, CheckpointOutcome.LEASE_LOST])
def test_a_request_of_the_worker_that_fails_harms_no_processor(desk: Desk, outcome: CheckpointOutcome) -> None:
    given_and_stored(desk)
    desk.checkpointer.permit("p2", progress(2))
    desk.checkpointer.store_set_aside()
    desk.begin("p1")
    assert len(desk.tickets) == 1, "requests take turns"
    desk.answer(outcome)

    assert [ticket.value for ticket in desk.tickets] == ["p2"], "p1 means p2, which may be stored"
    desk.answer(CheckpointOutcome.STORED)
    assert desk.answers == [None, None]


def test_the_worker_passes_no_batch_that_the_processor_has_not_stored(desk: Desk) -> None:
    """A page comes in parts: the parts before its end have the position of the batch before them."""
    desk.checkpointer.permit("p1", progress(1))
    desk.checkpointer.give()
    first = desk.checkpointer.handed_position
    desk.checkpointer.give()
    part = desk.checkpointer.handed_position
    assert part == first
    desk.begin(first)
    desk.answer(CheckpointOutcome.STORED)
    desk.checkpointer.permit("p2", progress(3))  # the rest of the page is parked
    desk.checkpointer.store_set_aside()
    assert (desk.tickets, desk.checkpointer.has_set_aside) == ([], False), "the part is not stored"
    desk.begin(part)
    desk.checkpointer.store_set_aside()

    assert [ticket.value for ticket in desk.tickets] == ["p2"]


def test_a_text_that_several_batches_have_says_of_none_that_it_is_stored(desk: Desk) -> None:
    """A processor that keeps positions, in a file for example, may store the position of the batch before."""
    desk.checkpointer.permit("p1", progress(1))
    desk.checkpointer.give()
    kept = desk.checkpointer.largest_permitted_checkpoint_value
    assert type(kept) is str, "programs may store it anywhere"
    desk.checkpointer.give()
    desk.begin(kept)
    desk.answer(CheckpointOutcome.STORED)
    desk.checkpointer.permit("p2", progress(3))
    desk.checkpointer.store_set_aside()
    assert desk.tickets == []

    desk.checkpointer.give()
    desk.begin("p2")
    desk.answer(CheckpointOutcome.STORED)
    desk.checkpointer.permit("p3", progress(4))
    desk.checkpointer.store_set_aside()
    assert [ticket.value for ticket in desk.tickets] == ["p3"]


@pytest.mark.parametrize("says_so", ["by a call", "by two phases", "by its end"])
def test_the_worker_stores_nothing_for_a_processor_that_stores_every_position_itself(desk: Desk, says_so: str) -> None:
    checkpointer = desk.checkpointer
    if says_so == "by a call":
        checkpointer.store_only_requests()
    elif says_so == "by two phases":

        def wait(answered: threading.Event, seconds: float) -> bool:
            desk.answer(CheckpointOutcome.STORED)
            return True

        checkpointer._wait = wait
        checkpointer.prepare_checkpoint(None, b"").checkpoint()
    else:
        checkpointer.close("it is over")
    checkpointer.permit("p2", progress(2))
    checkpointer.store_set_aside()

    assert desk.tickets == []


# --- receivers in a worker --------------------------------------------------------------------------------------------


class Held(Receiver):
    """Keeps the calls of one shard for the test; the first and the last one end by themselves."""

    def __init__(self, factory: HeldFactory, checkpointer: RecordProcessorCheckpointer) -> None:
        self.factory, self.checkpointer = factory, checkpointer

    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        self.factory.seen.append("initialize")
        call.finish()

    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        self.factory.seen.append([record.key["id"] for record in given.records])
        self.factory.attempts.append(given.attempt)
        self.factory.calls.append(call)

    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        self.factory.seen.append(given.shutdown_reason)
        call.finish()

    def closed(self) -> None:
        self.factory.closed += 1


class HeldFactory(ReceiverFactory):
    def __init__(self) -> None:
        self.seen: list[object] = []
        self.attempts: list[int] = []
        self.calls: list[HandedCall] = []
        self.closed = 0
        self.receivers: list[Held] = []

    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        self.receivers.append(Held(self, checkpointer))
        return self.receivers[-1]

    def create_processor(self) -> IRecordProcessor:
        raise NotImplementedError


class Out(Stage):
    """A worker whose first batch is in line."""

    def __init__(self, **config: Any) -> None:
        super().__init__("a", **config)
        self.held = HeldFactory()
        self.write("a", 2)
        self.one = self.worker(factory=self.held, max_records=2)
        self.until(lambda: len(self.held.calls) == 1, 200)

    @property
    def call(self) -> HandedCall:
        return self.held.calls[-1]


def test_a_batch_in_line_is_taken_back_by_a_stop_and_one_that_is_out_is_waited_for() -> None:
    in_line, out = Out(), Out()
    assert out.call.claim()
    for world in (in_line, out):
        world.one.stop()
    in_line.until(lambda: in_line.one.is_over, 20)
    out.advance(5)

    assert in_line.held.seen == ["initialize", keys(2), ShutdownReason.STOLEN]
    assert not in_line.call.claim()
    assert out.held.seen == ["initialize", keys(2)]
    out.call.finish()
    out.until(lambda: out.one.is_over, 20)
    assert out.held.seen[2:] == [ShutdownReason.STOLEN]


def test_a_batch_that_is_given_back_meets_no_failure_policy_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    world = Out()
    assert world.call.claim()
    world.call.give_back()
    world.until(lambda: len(world.held.calls) == 2, 200)

    assert world.held.seen == ["initialize", keys(2), ShutdownReason.PROCESS_RESTART, "initialize", keys(2)]
    assert world.one.worker.shard_statuses()["a"].failures == 0
    assert "Traceback" not in caplog.text


def test_a_batch_that_fails_is_delivered_again_and_says_how_often() -> None:
    world = Out(failure_policy=_policy(retries=2))
    for number in (1, 2):
        assert world.call.claim()
        world.call.finish(ValueError("not today"))
        world.until(lambda number=number: len(world.held.calls) == number + 1, 100)  # type: ignore[misc]

    assert world.held.attempts == [0, 1, 2]


def _policy(retries: int) -> Any:
    return FailurePolicy(retries=retries, then=OnFailure.STOP_SHARD)


def test_a_receiver_learns_that_the_lease_is_lost_while_its_batch_is_out() -> None:
    world = Out()
    assert world.call.claim()
    lease = world.lease()
    assert world.leases.take_lease(lease, "somebody else")
    world.until(lambda: world.held.closed > 0, 200)

    with pytest.raises(ShutdownException):
        world.held.receivers[0].checkpointer.checkpoint()
    world.call.finish()
    world.until(lambda: ShutdownReason.ZOMBIE in world.held.seen, 20)


def test_a_status_tells_a_batch_that_waits_from_one_that_is_out() -> None:
    world = Out(limits=_limits())
    world.advance(40)
    (waits,) = world.one.worker.shard_statuses()["a"].reasons
    assert world.call.claim()
    world.advance(40)
    (out,) = world.one.worker.shard_statuses()["a"].reasons

    assert (waits.cause, out.cause) == (Cause.BATCH_WAITS, Cause.BATCH_OUT)


def _limits() -> Any:
    from streamclient import CallLimits

    return CallLimits(slow_processor_warning_millis=30_000, user_code_limit_millis=0)


# --- a processor without shutdown -------------------------------------------------------------------------------------


class Kept(IRecordProcessor):
    """Stores by the test's rule, and has neither ``initialize`` nor ``shutdown``."""

    def __init__(self, store: Callable[[ProcessRecordsInput], object]) -> None:
        self._store = store

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._store(process_records_input)


RULES: dict[str, tuple[Callable[[ProcessRecordsInput], object], bool]] = {
    "each batch is stored": (lambda given: given.checkpointer.checkpoint(), True),
    "nothing is stored": (lambda given: None, False),
    "the last batch is kept in a buffer": (
        lambda given: given.records[0].key["id"] == "k0" and given.checkpointer.checkpoint(),
        False,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_end_is_stored_for_a_processor_without_shutdown_only_if_it_stored_all_it_was_given(rule: str) -> None:
    store, is_finished = RULES[rule]
    world = Stage("a")
    world.write("a", 4)
    world.stream.close("a")
    worker = world.worker(factory=lambda: Kept(store), max_records=2)
    if is_finished:
        world.until(world.is_finished, 200)
        return
    world.until(lambda: _has(worker, Cause.END_NOT_STORED), 200)
    assert world.checkpoint("a") != CheckpointPosition.SHARD_END


def test_the_end_after_a_last_record_that_was_parked_is_stored_for_a_processor_without_shutdown() -> None:
    def store(given: ProcessRecordsInput) -> None:
        if given.records[-1].key["id"] == "k3":
            raise ValueError("k3")
        given.checkpointer.checkpoint()

    parking = MemoryParkingStore()
    policy = FailurePolicy(retries=0, first_pause_millis=0, then=OnFailure.PARK, parking=parking, most_parked_share=1.0)
    world = Stage("a")
    world.write("a", 4)
    world.stream.close("a")
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept(store))
        return made[-1]

    world.worker(factory=make, max_records=2, failure_policy=policy)
    world.until(world.is_finished, 200)

    assert len(made) == 1, "no new start is needed to store the end"
    assert [parked.record.key["id"] for parked in parking.parked()] == ["k3"]


def _has(worker: Any, cause: Cause) -> bool:
    statuses = worker.worker.shard_statuses()
    return "a" in statuses and any(reason.cause is cause for reason in statuses["a"].reasons)


def test_the_end_of_a_shard_without_records_is_stored_for_a_processor_without_shutdown() -> None:
    world = Stage("a")
    world.stream.close("a")
    world.worker(factory=lambda: Kept(lambda given: None))

    world.until(world.is_finished, 200)
    assert make_record("k", 1).key == {"id": "k"}
