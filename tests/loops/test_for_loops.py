"""``for batch in changes``: each event of a loop, and what it stores."""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streamclient import Backoff, Changes, FailurePolicy
from streamclient.errors import ShutdownException, StreamClientException, WorkerFailedError
from streamclient.loops.line_receiver import HandedBatch
from tests.loops.loop_scene import START, LoopScene, ids
from tests.patience import FOREVER_MILLIS, until
from tests.simulation.scene import UNREACHABLE
from tests.worker.stage import keys

QUICK_RESTART = Backoff(restart_backoff_min_millis=1, restart_backoff_max_millis=1)


def test_the_next_turn_commits_the_batch_whose_body_ended() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        assert ids(next(changes)) == keys(5)
        assert ids(next(changes)) == keys(5, 5)
        until(lambda: scene.stored() == "a@5")

    assert scene.stored() == "a@5"


def test_continue_ends_a_body_too() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        for number, batch in enumerate(changes):
            if number == 0:
                continue
            assert ids(batch) == keys(5, 5)
            break

    assert scene.stored() == "a@5"


@pytest.mark.parametrize("commit", ["turn", "explicit"])
def test_a_batch_that_break_leaves_is_not_stored(commit: Any) -> None:
    scene = LoopScene()
    scene.write("a", 5)
    with scene.changes(commit=commit) as changes:
        for _batch in changes:
            break

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_an_exception_leaves_the_batch_and_hands_the_leases_over_and_goes_on() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    def loop() -> None:
        with scene.changes() as changes:
            for batch in changes:
                if ids(batch) != keys(5):
                    raise LookupError

    with pytest.raises(LookupError):
        loop()

    assert (scene.stored(), scene.is_free()) == ("a@5", True)


def test_a_loop_that_begins_again_begins_with_the_batch_that_was_left() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        for _left in changes:
            break
        for batch in changes:
            assert ids(batch) == keys(5)
            break

    assert scene.stored() == START


def test_a_loop_that_begins_again_goes_on_after_a_batch_that_was_committed_by_name() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        left = next(changes)
        left.commit()
        for batch in changes:
            assert ids(batch) == keys(5, 5)
            break

    assert scene.stored() == "a@5"


@pytest.mark.parametrize("commit", ["turn", "explicit"])
def test_a_loop_after_ctrl_c_does_not_begin_with_a_batch_that_is_over(
    commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the turn has settled the batch, and has not forgotten it yet."""
    scene = LoopScene()
    scene.write("a", 10)
    end_turn = HandedBatch.end_turn

    def interrupted(self: HandedBatch) -> None:
        monkeypatch.undo()
        end_turn(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(HandedBatch, "end_turn", interrupted)
    seen = []
    with scene.changes(commit=commit) as changes:
        with pytest.raises(KeyboardInterrupt):
            list(changes)
        for batch in changes:
            seen.append(ids(batch))
            if ids(batch) == keys(5, 5):
                batch.commit()
                break

    assert scene.stored() == "a@10"
    assert commit == "turn" or seen == [keys(5, 5)]


def test_commit_in_the_body_has_stored_when_it_returns() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    with scene.changes() as changes:
        batch = next(changes)
        batch.commit()
        assert scene.stored() == "a@5"
        batch.commit()


def test_explicit_turns_store_nothing_and_a_commit_stores_all_batches_up_to_its_own() -> None:
    scene = LoopScene()
    scene.write("a", 15)
    with scene.changes(commit="explicit") as changes:
        first, second, _third = next(changes), next(changes), next(changes)
        assert scene.stored() == START
        second.commit()
        first.commit()
        assert ids(first) == keys(5)

    assert scene.stored() == "a@10"


def test_a_failed_batch_is_the_matter_of_its_shard_and_of_the_policy() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 5)
    policy = FailurePolicy(retries=1, first_pause_millis=0, bisect=False)
    seen: list[tuple[str, int]] = []
    with scene.changes(failure_policy=policy, backoff=QUICK_RESTART) as changes:
        for batch in changes:
            seen.append((batch.shard.shard_id, batch.attempt))
            if batch.shard.shard_id == "b":
                break
            if len(seen) < 3:
                batch.fail(ValueError("bad row"))
            else:
                scene.write("b", 1)

    assert seen == [("a", 0), ("a", 1), ("a", 0), ("b", 0)]
    assert scene.stored("a") == "a@5"


def test_a_shard_has_one_batch_out_at_a_time() -> None:
    """The next one may be read, not given: it waits for the answer to the commit of this one."""
    scene = LoopScene()
    scene.write("a", 15)
    with scene.changes() as changes:
        next(changes)
        until(lambda: scene.stream.reads >= 2)
        changes.worker.shard_statuses()  # the owner has done all that it had to do
        assert changes._consumption.line.drain() == []


def test_shards_take_turns() -> None:
    scene = LoopScene("a", "b", "c")
    for shard_id in "abc":
        scene.write(shard_id, 10)
    with scene.changes() as changes:
        first = [batch.shard.shard_id for batch in itertools.islice(changes, 1)]
        until(lambda: len(changes._consumption.line._waiting) == 2)
        rest = [next(changes).shard.shard_id for _ in range(2)]

    assert sorted(first + rest) == ["a", "b", "c"]


def test_a_lost_lease_is_one_line_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = LoopScene("a", "b")
    scene.write("a", 5)
    with scene.changes(lease_duration_millis=FOREVER_MILLIS) as changes:
        lost = next(changes)
        scene.take_away("a")
        with pytest.raises(ShutdownException):
            lost.commit()
        until(lambda: lost.is_lost)
        scene.write("b", 5)
        assert next(changes).shard.shard_id == "b"
        told = [each for each in caplog.records if "was handled and not stored" in each.message]

    assert [each.levelno for each in told] == [logging.INFO]
    assert scene.stored() == START


def test_a_lost_batch_that_was_left_does_not_come_again() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 5)
    with scene.changes(lease_duration_millis=FOREVER_MILLIS) as changes:
        lost = next(changes)
        scene.take_away("a")
        with pytest.raises(ShutdownException):
            lost.commit()
        until(lambda: lost.is_lost)
        scene.write("b", 5)
        assert next(iter(changes)).shard.shard_id == "b"


def test_a_batch_that_only_waits_in_line_moves_to_another_worker_while_one_is_out() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 5)
    scene.write("b", 5)
    with scene.changes("w1") as mine, scene.changes("w2") as others:
        held = next(mine)
        until(lambda: len(mine._consumption.line._waiting) == 1)

        moved = next(others)

        assert {held.shard.shard_id, moved.shard.shard_id} == {"a", "b"}
        assert not held.is_lost


def test_a_hand_over_waits_for_the_batch_that_is_out() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    first, second = scene.changes("w1"), scene.changes("w2")
    with ThreadPoolExecutor(1) as pool, first, second:
        batch = next(first)
        closing = pool.submit(first.close)
        until(lambda: first.worker.is_stopping)
        assert not closing.done()
        batch.commit()
        assert list(first) == []
        closing.result()
        scene.write("a", 1, 5)
        assert ids(next(second)) == keys(1, 5)


def next_is_stored(scene: LoopScene, position: str) -> None:
    until(lambda: scene.stored() == position)


def reason_of(changes: Changes, shard_id: str = "a") -> str:
    """Why a shard does not move."""
    status = changes.worker.shard_statuses().get(shard_id)
    return "" if status is None else status.reason


def test_a_paused_worker_gives_nothing_and_says_why() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes, ThreadPoolExecutor(1) as pool:
        next(changes)
        changes.worker.pause(reason="a look at the rows")
        told = pool.submit(until, lambda: "a look" in reason_of(changes))
        resumed = pool.submit(changes.worker.resume)
        assert ids(next(changes)) == keys(5, 5)
        assert (told.done(), resumed.result()) == (True, None)


def lose_records(scene: LoopScene) -> None:
    """Store a position, and trim five records after it."""
    scene.write("a", 5)
    with scene.changes() as changes:
        next(changes).commit()
    scene.write("a", 10, 5)
    scene.stream.trim("a", 10)


def test_after_an_accepted_loss_a_batch_says_where_records_were_lost() -> None:
    scene = LoopScene()
    lose_records(scene)

    def accept(changes: Changes) -> None:
        until(lambda: "accept_loss" in reason_of(changes))
        changes.worker.accept_loss("a")

    with scene.changes("w2") as changes, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept, changes)
        batch = next(changes)
        accepted.result()
        scene.write("a", 1, 15)
        assert (ids(batch), batch.lost_after) == (keys(5, 10), "a@5")
        assert next(changes).lost_after is None


def test_a_shard_that_lost_records_stands_and_the_loop_does_not_end() -> None:
    scene = LoopScene("a", "b")
    lose_records(scene)

    def write_once_it_stands(changes: Changes) -> None:
        until(lambda: "accept_loss" in reason_of(changes))
        scene.write("b", 1)

    with scene.changes("w2") as changes, ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_once_it_stands, changes)
        assert next(changes).shard.shard_id == "b"
        written.result()


def test_children_come_after_their_parents_stored_end() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    scene.stream.split("a", "b", "c")
    scene.write("b", 1, 10)
    scene.write("c", 1, 11)
    with scene.changes() as changes:
        seen = [(batch.shard.shard_id, ids(batch), batch.is_end) for batch in itertools.islice(changes, 4)]

    assert seen[:2] == [("a", keys(5), False), ("a", keys(5, 5), False)]
    assert sorted(seen[2:]) == [("b", keys(1, 10), False), ("c", keys(1, 11), False)]
    assert scene.stored() == "SHARD_END"


def test_an_explicit_loop_gets_the_end_of_a_shard_to_commit() -> None:
    """The commit of the last changes stores the end, so a child may come before the batch that tells the end."""
    scene = LoopScene()
    scene.write("a", 5)
    scene.stream.split("a", "b", "c")
    seen = []
    with scene.changes(commit="explicit") as changes:
        scene.write("b", 1, 5)
        for batch in changes:
            seen.append((batch.shard.shard_id, len(batch), batch.is_end))
            batch.commit()
            if len(seen) == 3:
                break

    assert seen[0] == ("a", 5, False)
    assert sorted(seen[1:]) == [("a", 0, True), ("b", 1, False)]


def test_an_explicit_end_that_is_not_committed_comes_again() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    scene.stream.close("a")
    with scene.changes(commit="explicit", backoff=QUICK_RESTART) as changes:
        assert [next(changes).is_end for _ in range(4)] == [False, True, False, True]

    assert scene.stored() == START


def test_a_worker_that_fails_for_good_raises_at_a_turn() -> None:
    scene = LoopScene()
    scene.stream.table_name = "another"
    changes = scene.changes()

    with pytest.raises(WorkerFailedError, match="has no stream"):
        next(changes)
    with pytest.raises(WorkerFailedError, match="has no stream"):
        next(changes)
    changes.close()


def test_a_block_raises_the_failure_that_its_loop_did_not_see() -> None:
    scene = LoopScene()
    scene.write("a", 5)

    def block() -> None:
        with scene.changes() as changes:
            next(changes)
            coordinator = changes.worker._streams["orders"].coordinator
            assert coordinator is not None
            coordinator._handle = raises_a_fault  # type: ignore[method-assign]
            until(lambda: bool(changes.worker.exceptions))

    with pytest.raises(WorkerFailedError, match="a fault of this package"):
        block()


def raises_a_fault(event: object) -> None:
    raise RuntimeError("a fault of this package")


def test_an_outage_of_the_status_table_ends_nothing() -> None:
    scene = LoopScene()
    scene.write("a", 15)
    with scene.changes() as changes:
        next(changes)
        scene.leases.is_cut_off = True
        with ThreadPoolExecutor(1) as pool:
            restored = pool.submit(restore_after_a_try, scene)
            assert ids(next(changes)) == keys(5, 5)
            restored.result()
        next(changes)
        next_is_stored(scene, "a@10")


def restore_after_a_try(scene: LoopScene) -> None:
    """Let the status table answer again once a write was refused."""
    refused = threading.Event()
    write_many = scene.leases.write_many

    def refuse(writes: Any) -> Any:
        answers = write_many(writes)
        if any(answer.error is UNREACHABLE for answer in answers):
            refused.set()
        return answers

    scene.leases.write_many = refuse  # type: ignore[method-assign]
    until(refused.is_set)
    scene.leases.is_cut_off = False


def test_another_thread_is_refused_by_name() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    with scene.changes() as changes, ThreadPoolExecutor(1, "second") as pool:
        next(changes)
        with pytest.raises(StreamClientException, match="thread second_0 takes a batch"):
            pool.submit(next, changes).result()


def test_run_after_a_loop_is_refused() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    with scene.changes() as changes:
        next(changes)
        with pytest.raises(StreamClientException, match="works only once"):
            changes.run(print)
