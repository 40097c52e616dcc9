"""One shard's batches, step by step: what the turn stores, what an answer changes, and what the end needs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from streamclient import Batch
from streamclient.base.outages import OutageLog
from streamclient.core.events import CheckpointOutcome
from streamclient.errors import ShutdownException, StreamClientException
from streamclient.model import ShutdownReason
from streamclient.worker.handlers import turn_commits
from tests.loops.loop_scene import OneShard, ids

STORED = "batch returned"


def test_a_batch_is_put_in_line_with_where_it_is_from() -> None:
    shard = OneShard()
    shard.give("p1", 3)

    batch = shard.taken().batch()

    assert ids(batch) == ["k0", "k1", "k2"]
    assert (batch.table, batch.shard.shard_id, batch.position, batch.attempt) == ("orders", "a", "p1", 0)
    assert (batch.is_end, batch.is_lost, batch.is_replay, batch.lost_after) == (False, False, False, None)


def test_the_turn_requests_its_position_and_the_answer_lets_the_shard_go_on() -> None:
    shard = OneShard()
    shard.give("p1")
    delivery = shard.taken()
    assert shard.requested == []

    delivery.end_turn()
    shard.turn()
    assert (shard.requested, shard.said) == (["p1"], ["initialize returned"])

    shard.answer()
    assert shard.said == ["initialize returned", STORED]


def test_a_batch_that_was_taken_back_is_never_given() -> None:
    """The owner has the token; a loop that comes later finds nothing."""
    shard = OneShard()
    call = shard.give("p1")

    assert call.cancel()
    assert shard.line.take() is None


def test_a_batch_that_was_given_is_not_taken_back() -> None:
    shard = OneShard()
    call = shard.give("p1")
    shard.taken()

    assert not call.cancel()


def test_an_end_after_the_batch_was_taken_back_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As when a consumer finishes a call that it never claimed: it must not end twice."""
    shard = OneShard()
    call = shard.give("p1")
    call.cancel()

    call.finish()
    shard.turn()

    assert shard.said == ["initialize returned"]
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_batch_that_is_left_has_neither_finished_nor_failed() -> None:
    shard = OneShard()
    shard.give("p1")

    shard.taken().leave()
    shard.turn()

    assert (shard.requested, shard.said[1:]) == ([], ["batch given back"])


def test_a_batch_that_failed_ends_its_call_with_the_error_also_when_it_is_left() -> None:
    for settle in ("end_turn", "leave"):
        shard = OneShard()
        shard.give("p1")
        delivery = shard.taken()
        delivery.batch().fail(ValueError("bad row"))

        getattr(delivery, settle)()
        shard.turn()

        assert (shard.requested, shard.said[1:]) == ([], ["batch ValueError: bad row"])


def test_explicit_turns_store_nothing_and_a_commit_stores_all_before_it() -> None:
    shard = OneShard("explicit")
    batches = []
    for position in ("p1", "p2", "p3"):
        shard.give(position)
        delivery = shard.taken()
        batches.append(delivery.batch())
        delivery.end_turn()
        shard.turn()
    assert (shard.requested, shard.said[1:]) == ([], [STORED] * 3)

    shard.stores = True
    batches[1].commit()
    batches[0].commit()
    batches[1].commit()
    assert shard.stored == ["p2"]


@pytest.mark.parametrize("outcome", [CheckpointOutcome.UNKNOWN, CheckpointOutcome.LEASE_LOST])
def test_a_commit_without_success_counts_as_accepted(
    outcome: CheckpointOutcome, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost lease is told in one line, without alarm; neither is the loop's trouble."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(turn_commits, "_outages", OutageLog(turn_commits._log))  # which has told nothing yet
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()

    shard.answer(outcome)

    levels = [each.levelno for each in caplog.records if "stored" in each.message]
    assert shard.said[1:] == [STORED]
    assert levels == [logging.INFO if outcome is CheckpointOutcome.LEASE_LOST else logging.WARNING]


def test_a_commit_that_can_never_be_stored_is_the_failure_of_its_shard() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()

    shard.answer(CheckpointOutcome.REJECTED)

    assert shard.said[1].startswith("batch ConfigurationError: checkpoint 'p1' of shard a was not stored")


def test_the_next_turn_stores_what_an_unanswered_one_did_not() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()
    shard.answer(CheckpointOutcome.UNKNOWN)

    shard.give("p2")
    shard.taken().end_turn()
    assert shard.requested == ["p2"]
    shard.answer()
    shard.shut_down(ShutdownReason.STOLEN)

    assert (shard.requested, shard.said[-1]) == ([], "shutdown returned")


def test_a_hand_over_stores_what_an_unanswered_turn_did_not() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()
    shard.answer(CheckpointOutcome.UNKNOWN)

    shard.shut_down(ShutdownReason.STOLEN)

    assert (shard.requested, shard.said[-1]) == (["p1"], STORED)
    shard.answer()
    assert shard.said[-1] == "shutdown returned"


def test_a_hand_over_stores_no_batch_that_was_left() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()
    shard.answer(CheckpointOutcome.UNKNOWN)
    shard.give("p2")
    shard.taken().leave()
    shard.turn()

    shard.shut_down(ShutdownReason.STOLEN)

    assert (shard.requested, shard.said[-1]) == (["p1"], "batch given back")


def test_a_shard_whose_batch_was_left_stores_nothing_at_its_end() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().leave()
    shard.turn()

    shard.shut_down(ShutdownReason.STOLEN)

    assert (shard.requested, shard.said[-1]) == ([], "shutdown returned")


def test_a_lost_shard_stores_nothing_at_its_end() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()
    shard.answer(CheckpointOutcome.UNKNOWN)

    shard.shut_down(ShutdownReason.ZOMBIE)

    assert (shard.requested, shard.said[-1]) == ([], "shutdown returned")


def test_the_end_of_the_shard_is_stored_with_turns() -> None:
    shard = OneShard()
    shard.give("p1")
    shard.taken().end_turn()
    shard.answer()
    shard.checkpointer.permit("SHARD_END")

    shard.shut_down(ShutdownReason.TERMINATE)

    assert shard.requested == ["SHARD_END"]
    shard.answer()
    assert shard.said[-1] == "shutdown returned"


def test_the_end_that_is_not_stored_is_told() -> None:
    shard = OneShard()
    shard.checkpointer.permit("SHARD_END")
    shard.shut_down(ShutdownReason.TERMINATE)

    shard.answer(CheckpointOutcome.UNKNOWN)

    assert shard.said[-1].startswith("shutdown DependencyException")


def test_an_explicit_end_comes_as_a_batch_without_records() -> None:
    shard = OneShard("explicit")
    shard.checkpointer.permit("SHARD_END")
    shard.shut_down(ShutdownReason.TERMINATE)

    delivery = shard.taken()
    batch = delivery.batch()

    assert (batch.is_end, len(batch), batch.position, shard.requested) == (True, 0, "SHARD_END", [])
    delivery.end_turn()
    shard.turn()
    assert (shard.requested, shard.said[-1]) == ([], "shutdown returned")


def test_an_explicit_end_that_nobody_takes_any_more_is_finished() -> None:
    """The last call of a shard is never taken back, so a stop must not wait for it."""
    shard = OneShard("explicit")
    shard.receivers.is_stopped = True
    shard.checkpointer.permit("SHARD_END")

    shard.shut_down(ShutdownReason.TERMINATE)

    assert (shard.line.take(), shard.said[-1]) == (None, "shutdown returned")


def test_an_explicit_end_in_line_is_finished_when_the_lease_is_lost() -> None:
    shard = OneShard("explicit")
    shard.checkpointer.permit("SHARD_END")
    shard.shut_down(ShutdownReason.TERMINATE)

    shard.session.close("the lease is lost")
    shard.turn()

    assert (shard.line.take(), shard.said[-1]) == (None, "shutdown returned")


def test_an_explicit_end_that_is_left_is_finished_and_not_given_back() -> None:
    shard = OneShard("explicit")
    shard.checkpointer.permit("SHARD_END")
    shard.shut_down(ShutdownReason.TERMINATE)

    shard.taken().leave()
    shard.turn()

    assert shard.said[-1] == "shutdown returned"


@pytest.mark.parametrize(
    "use", [len, list, lambda batch: batch[0], lambda batch: batch.arrow(), lambda batch: batch.commit()]
)
def test_a_batch_after_its_turn_is_refused(use: Callable[[Batch], object]) -> None:
    shard = OneShard()
    shard.give("p1")
    delivery = shard.taken()
    batch = delivery.batch()
    delivery.end_turn()

    with pytest.raises(StreamClientException, match="is over"):
        use(batch)


def test_with_explicit_commits_a_batch_may_be_read_after_its_turn() -> None:
    shard = OneShard("explicit")
    shard.give("p1")
    delivery = shard.taken()
    batch = delivery.batch()
    delivery.end_turn()

    assert ids(batch) == ["k0"]


def test_a_commit_after_the_lease_is_lost_says_so() -> None:
    shard = OneShard()
    shard.give("p1")
    batch = shard.taken().batch()
    shard.session.close("this worker no longer holds the lease")

    assert batch.is_lost
    with pytest.raises(ShutdownException, match="no longer holds the lease"):
        batch.commit()


def test_no_page_is_kept_for_a_shard_whose_batch_was_settled() -> None:
    shard = OneShard()
    shard.give("p1")
    delivery = shard.taken()

    assert delivery._shard.in_line is None


def test_the_limit_of_a_call_counts_from_the_last_taking_while_it_waits() -> None:
    shard = OneShard()
    call = shard.give("p1")
    queued = call.queued_at

    shard.line.last_taken_at = queued + 100
    assert call.queued_at == queued + 100
    shard.taken()
    assert call.queued_at == call.started_at
