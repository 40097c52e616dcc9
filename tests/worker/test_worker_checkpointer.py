"""Which positions may be stored, and what a caller learns."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.consumer.consumer_positions import END_NUMBER, MOST_POSITIONS, HandedOutPositions
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, ShutdownException
from streamclient.model import PendingCheckpoint, Progress
from streamclient.worker.checkpointer import MOST_STATE_BYTES, CheckpointTicket, RecordProcessorCheckpointer
from tests.patience import PATIENCE_SECONDS


def positions(*texts: str) -> HandedOutPositions:
    made = HandedOutPositions("s", "TRIM_HORIZON")
    for text in texts:
        made.permit(text)
    return made


def place(made: HandedOutPositions, value: str | None) -> tuple[str, int]:
    found = made.resolve(value)
    return found.text, found.number


def test_a_position_that_was_never_handed_out_is_refused() -> None:
    """A foreign string in the shared column would break whoever reads it next."""
    with pytest.raises(ConfigurationError, match="'i9' was not handed out for shard s"):
        positions("i1", "i2").resolve("i9")


def test_every_position_from_the_initial_one_on_may_be_stored() -> None:
    made = positions("i1", "i2")

    assert [place(made, text) for text in ("TRIM_HORIZON", "i1", "i2", None)] == [
        ("TRIM_HORIZON", 0),
        ("i1", 1),
        ("i2", 2),
        ("i2", 2),
    ]


def test_progress_never_goes_back() -> None:
    """Iterators are opaque, so the numbers in memory decide."""
    made = positions("i1", "i2", "i3")
    made.requested(made.resolve("i2"))

    assert place(made, "i2") == ("i2", 2)
    assert place(made, "i3") == ("i3", 3)
    with pytest.raises(ConfigurationError):
        made.resolve("i1")


def test_the_position_behind_a_failed_batch_is_taken_back() -> None:
    made = positions("i1", "i2")
    made.retract()

    assert made.permitted == "i1"
    assert place(made, None) == ("i1", 1)
    for value in ("i2", "SHARD_END"):
        with pytest.raises(ConfigurationError):
            made.resolve(value)


def test_a_repeated_batch_hands_its_position_out_again() -> None:
    made = positions("i1", "i2")
    made.retract()
    made.permit("i2")

    assert made.resolve(None).text == "i2"


def test_the_end_may_be_stored_at_any_time_and_nothing_after_it() -> None:
    """A processor may declare a shard finished; then the matter is closed."""
    made = positions("i1")
    assert place(made, "SHARD_END") == ("SHARD_END", END_NUMBER)
    made.requested(made.resolve("SHARD_END"))
    made.permit("i2")

    assert place(made, "SHARD_END") == ("SHARD_END", END_NUMBER)
    with pytest.raises(ConfigurationError):
        made.resolve("i2")


def test_memory_for_positions_is_bounded() -> None:
    made = positions(*(f"i{number}" for number in range(MOST_POSITIONS + 5)))

    with pytest.raises(ConfigurationError, match="positions ago"):
        made.resolve("i0")
    assert len(made._places) == MOST_POSITIONS


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_stored_numbers_only_grow(data: st.DataObject) -> None:
    """Whatever is permitted, retracted and requested in any order, what is accepted never goes back."""
    made = HandedOutPositions("s", "TRIM_HORIZON")
    known = ["TRIM_HORIZON"]
    stored = 0
    for number in range(data.draw(st.integers(0, 30))):
        step = data.draw(st.sampled_from(["permit", "retract", "store"]))
        if step == "permit":
            known.append(f"i{number}")
            made.permit(known[-1])
        elif step == "retract":
            made.retract()
        else:
            try:
                chosen = made.resolve(data.draw(st.sampled_from([None, *known])))
            except ConfigurationError:
                continue
            assert chosen.number >= stored
            stored = chosen.number
            made.requested(chosen)
        assert made.resolve(None).text == made.permitted


def progress(records: int) -> Progress:
    return Progress(record_micros=records * 10, records=records, bytes=records * 100)


def test_every_position_knows_what_was_processed_up_to_it() -> None:
    """Progress goes on from what was stored with the initial position."""
    made = HandedOutPositions("s", "i0", progress(40))
    made.permit("i1", progress(45))
    made.permit("i2")
    made.permit("SHARD_END", progress(50))

    assert [made.resolve(text).progress.records for text in ("i0", "i1", "i2", "SHARD_END", None)] == [
        *(40, 45, 45),
        *(50, 50),
    ]
    made.retract()
    assert made.progress == progress(45)


def test_a_prepared_position_counts_from_the_checkpoint_requested_before_it() -> None:
    """That one is stored first, or this one is not stored either."""
    made = HandedOutPositions("s", "i0", progress(40))
    for number in (1, 2, 3):
        made.permit(f"i{number}", progress(40 + 5 * number))
    assert made.records_since_request(made.resolve("i3")) == 15
    made.requested(made.resolve("i1"))

    assert made.records_since_request(made.resolve("i3")) == 10
    assert made.records_since_request(made.resolve("i1")) == 0


def test_a_prepared_position_of_a_failed_batch_is_stored_only_by_name() -> None:
    """Its sink may have committed it; but nobody who only says "up to here" may mean it."""
    made = positions("i1", "i2")
    made.prepared(made.resolve("i2"))
    made.retract()

    assert made.resolve(None).text == "i1"
    assert made.resolve("i2").text == "i2"
    with pytest.raises(ConfigurationError):
        made.resolve("SHARD_END")


def test_an_offered_position_may_be_stored_until_the_offer_is_withdrawn() -> None:
    made = HandedOutPositions("s", "i0", progress(40))
    made.offer("i5", progress(45))
    assert (made.permitted, made.resolve("i5").progress.records) == ("i0", 45)
    made.withdraw("i5")

    with pytest.raises(ConfigurationError):
        made.resolve("i5")


def test_an_offer_that_was_taken_is_not_withdrawn() -> None:
    made = HandedOutPositions("s", "i0", progress(40))
    made.offer("i5", progress(45))
    made.requested(made.resolve("i5"))
    made.withdraw("i5")

    assert made.resolve("i5").text == "i5"
    with pytest.raises(ConfigurationError):
        made.resolve("i0")


def test_a_plain_checkpoint_repeats_what_was_asked_for_and_perhaps_not_stored_beyond_what_was_handed_out() -> None:
    """What an earlier processor prepared was completed, without an answer; then ``shutdown`` says "up to here"."""
    made = HandedOutPositions("s", "i0", progress(40))
    made.offer("i5", progress(45))
    made.requested(made.resolve("i5"))

    assert made.resolve(None).text == "i5"
    made.permit("i6", progress(50))
    assert made.resolve(None).text == "i6"


class Owner:
    """Answers every ticket in a set way."""

    def __init__(self, outcome: CheckpointOutcome | None) -> None:
        self.outcome = outcome
        self.tickets: list[CheckpointTicket] = []

    @property
    def values(self) -> list[str]:
        return [ticket.value for ticket in self.tickets]

    def send(self, ticket: CheckpointTicket, timeout_seconds: float) -> bool:
        self.tickets.append(ticket)
        if self.outcome is not None:
            ticket.answer(AnswerCheckpoint(1, self.outcome))
        return True

    def checkpointer(self, timeout_millis: int = 5_000) -> RecordProcessorCheckpointer:
        start = HandedOutPositions("s", "TRIM_HORIZON")
        made = RecordProcessorCheckpointer("s", start, self.send, lambda e, s: e.wait(s), timeout_millis, epoch=3)
        made.permit("i1", progress(5))
        return made


def test_storing_the_same_position_twice_writes_once() -> None:
    owner = Owner(CheckpointOutcome.STORED)
    checkpointer = owner.checkpointer()
    checkpointer.checkpoint()
    checkpointer.checkpoint("i1")

    assert owner.values == ["i1"]


def test_a_lost_lease_is_told_as_such() -> None:
    with pytest.raises(ShutdownException, match="no longer holds the lease"):
        Owner(CheckpointOutcome.LEASE_LOST).checkpointer().checkpoint()


@pytest.mark.parametrize(("outcome", "timeout_millis"), [(CheckpointOutcome.UNKNOWN, 5_000), (None, 1)])
def test_no_answer_is_told_as_ambiguous(outcome: CheckpointOutcome | None, timeout_millis: int) -> None:
    with pytest.raises(DependencyException) as caught:
        Owner(outcome).checkpointer(timeout_millis).checkpoint()
    assert caught.value.kind is ErrorKind.AMBIGUOUS


def test_an_uncertain_position_may_be_tried_again_but_not_undercut() -> None:
    owner = Owner(None)
    checkpointer = owner.checkpointer(1)
    checkpointer.permit("i2")
    with pytest.raises(DependencyException):
        checkpointer.checkpoint("i2")
    owner.outcome = CheckpointOutcome.STORED

    with pytest.raises(ConfigurationError):
        checkpointer.checkpoint("i1")
    checkpointer.checkpoint("i2")
    assert owner.values == ["i2", "i2"]


def test_a_closed_checkpointer_stores_nothing() -> None:
    """A straggling thread of a replaced processor must not write beside its successor."""
    owner = Owner(CheckpointOutcome.STORED)
    checkpointer = owner.checkpointer()
    checkpointer.close("its processor was shut down")

    with pytest.raises(ShutdownException, match="its processor was shut down"):
        checkpointer.checkpoint()
    assert owner.values == []


def test_a_checkpoint_in_two_phases_sends_what_is_prepared_and_then_the_position() -> None:
    owner = Owner(CheckpointOutcome.STORED)
    checkpointer = owner.checkpointer()
    prepared = checkpointer.prepare_checkpoint(None, b"transaction 7")
    prepared.checkpoint()

    assert prepared.pending == PendingCheckpoint("i1", b"transaction 7", 5, 3)
    assert [(ticket.value, ticket.pending, ticket.progress) for ticket in owner.tickets] == [
        ("i1", prepared.pending, progress(5)),
        ("i1", None, progress(5)),
    ]


def test_completing_is_sent_although_the_position_is_stored_already() -> None:
    """Or what was prepared would stay in the table."""
    owner = Owner(CheckpointOutcome.STORED)
    checkpointer = owner.checkpointer()
    checkpointer.checkpoint()
    checkpointer.prepare_checkpoint("i1", b"").checkpoint()

    assert [ticket.pending is None for ticket in owner.tickets] == [True, False, True]


@pytest.mark.parametrize("state", [b"x" * (MOST_STATE_BYTES + 1), "text", None])
def test_a_state_that_does_not_fit_is_refused_before_anything_is_sent(state: object) -> None:
    owner = Owner(CheckpointOutcome.STORED)
    with pytest.raises(ConfigurationError, match="state must be bytes, at most 65536 of them, not"):
        owner.checkpointer().prepare_checkpoint(None, state)  # type: ignore[arg-type]

    assert owner.tickets == []


def test_preparing_tells_of_a_lost_lease_and_of_silence_as_storing_does() -> None:
    with pytest.raises(ShutdownException):
        Owner(CheckpointOutcome.LEASE_LOST).checkpointer().prepare_checkpoint(None, b"")
    with pytest.raises(DependencyException):
        Owner(None).checkpointer(1).prepare_checkpoint(None, b"")
    with pytest.raises(ConfigurationError):
        Owner(None).checkpointer(1).prepare_checkpoint("i9", b"")


def test_checkpoints_of_several_threads_take_turns_and_never_go_back() -> None:
    """Whatever thread comes first, the values sent only go forward."""
    owner = Owner(CheckpointOutcome.STORED)
    checkpointer = owner.checkpointer()
    texts = [f"i{number}" for number in range(2, 40)]
    for text in texts:
        checkpointer.permit(text)

    def store(text: str) -> None:
        with contextlib.suppress(ConfigurationError):
            checkpointer.checkpoint(text)

    threads = [threading.Thread(target=store, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    places = [texts.index(value) for value in owner.values]
    assert places == sorted(places)
    assert owner.values[-1] == texts[-1]
