"""The owner's inbox, its timers and rates, and the pools."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base import pools
from streamclient.base.pools import DaemonPool
from streamclient.base.reasons import Raised
from streamclient.errors import StreamClientException
from streamclient.worker import owner_loop as loop_module
from streamclient.worker.owner_loop import OwnerLoop, Question
from streamclient.worker.usercode import UserCode
from tests.patience import PATIENCE_SECONDS, until
from tests.worker.stage import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> OwnerLoop:
    return OwnerLoop(clock)


def test_messages_run_in_order_and_timers_when_due(loop: OwnerLoop, clock: Clock) -> None:
    ran: list[str] = []
    loop.call_later(5, lambda: ran.append("later"))
    cancelled = loop.call_later(1, lambda: ran.append("never"))
    cancelled.cancel()
    for name in "ab":
        loop.post(lambda name=name: ran.append(name))  # type: ignore[misc]
    loop.turn(0)
    clock.now += 5
    loop.turn(0)

    assert ran == ["a", "b", "later"]


@given(st.floats(0, 10_000), st.floats(0.001, 100), st.floats(0, 1), st.floats(0, 1))
def test_a_timer_with_slack_is_due_within_it_and_never_late(
    now: float, seconds: float, share: float, other_share: float
) -> None:
    """With half the slack of another one it may wait for the same moment."""
    loop = OwnerLoop(lambda: now)
    deadline, slack, other_slack = now + seconds, seconds * share, seconds * other_share
    due = loop.call_later(seconds, lambda: None, slack_seconds=slack).deadline
    other = loop.call_later(seconds, lambda: None, slack_seconds=other_slack).deadline

    assert deadline - slack <= due <= deadline
    assert slack > other_slack or due >= other


def test_timers_with_slack_that_are_due_close_together_run_in_one_turn(loop: OwnerLoop, clock: Clock) -> None:
    ran: list[float] = []
    for number in range(100):
        seconds = 4.0 + number / 100
        loop.call_later(seconds, lambda: ran.append(clock.now), slack_seconds=seconds / 20)
    while loop.next_timer is not None:
        clock.now = loop.next_timer
        loop.turn(0)

    assert len(ran) == 100
    assert len(set(ran)) <= 9  # an eighth of a second is the widest grid within a twentieth of four


def test_what_is_to_run_at_the_end_follows_messages_timers_and_the_look_around(loop: OwnerLoop) -> None:
    ran: list[str] = []

    def message() -> None:
        loop.at_end(lambda: loop.at_end(lambda: ran.append("what the end added")))
        loop.at_end(lambda: ran.append("end"))
        loop.call_later(0, lambda: ran.append("timer"))
        ran.append("message")

    loop.post(message)
    loop.post(lambda: ran.append("second message"))
    loop.turn(0, lambda: ran.append("look"))

    assert ran == ["message", "second message", "timer", "look", "end", "what the end added"]


def test_what_is_to_run_at_the_end_survives_a_message_that_raises_and_waits_for_nothing(loop: OwnerLoop) -> None:
    ran: list[str] = []
    loop.post(lambda: loop.at_end(lambda: ran.append("end")))
    loop.post(lambda: ran.append(str(1 // 0)))

    with pytest.raises(ZeroDivisionError):
        loop.turn(0)
    assert (ran, loop.has_messages) == ([], True)
    loop.turn(PATIENCE_SECONDS)  # a turn that waited for a message would never end
    assert (ran, loop.has_messages) == (["end"], False)


def test_what_is_to_run_at_the_end_runs_when_the_loop_closes_and_at_once_from_then_on(loop: OwnerLoop) -> None:
    ran: list[str] = []
    loop.at_end(lambda: ran.append("before"))
    loop.close()
    loop.at_end(lambda: ran.append("after"))

    assert ran == ["before", "after"]


def test_a_call_that_is_taken_back_before_the_end_of_its_turn_never_reaches_the_executor(loop: OwnerLoop) -> None:
    pool = DaemonPool("pool", 1)
    ran: list[object] = []
    code = UserCode(pool, loop)
    call = code.run("process_records", "shard", lambda: ran.append("ran"), ran.append)

    assert call.cancel()
    loop.turn(0)
    pool.shutdown(wait=True)
    assert (ran, call.future) == ([], None)


def test_a_call_that_the_executor_refused_cannot_be_taken_back_and_is_reported_once(loop: OwnerLoop) -> None:
    pool = DaemonPool("pool", 1)
    pool.shutdown(wait=True)
    told: list[Raised | None] = []
    call = UserCode(pool, loop).run("process_records", "shard", lambda: None, told.append)
    loop.turn(0)

    assert not call.cancel()
    loop.turn(0)
    (raised,) = told
    assert raised is not None
    assert raised.text == (
        "StreamClientException: the executor did not run process_records for shard shard: RuntimeError: pool pool is "
        "shut down"
    )


def test_a_second_thread_in_the_loop_is_an_error(loop: OwnerLoop) -> None:
    caught: list[BaseException] = []

    def enter() -> None:
        try:
            loop.turn(0)
        except StreamClientException as error:
            caught.append(error)

    def message() -> None:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(PATIENCE_SECONDS)

    loop.post(message)
    loop.turn(0)

    assert "entered the owner loop" in str(caught[0])


def test_a_message_that_raises_leaves_those_behind_it_in_the_inbox(loop: OwnerLoop) -> None:
    ran: list[int] = []
    loop.post(lambda: ran.append(1 // 0))
    loop.post(lambda: ran.append(2))

    with pytest.raises(ZeroDivisionError):
        loop.turn(0)
    loop.turn(0)
    assert ran == [2]


def test_a_question_that_the_loop_closes_upon_is_refused_once_and_one_that_was_answered_is_not(loop: OwnerLoop) -> None:
    heard: list[str] = []
    loop.post(Question(lambda: heard.append("answered"), lambda: heard.append("refused an answered one")))
    loop.turn(0)
    loop.post(Question(lambda: heard.append("answered late"), lambda: heard.append("refused")))
    loop.close()
    loop.close()

    assert heard == ["answered", "refused"]


def test_posting_to_a_full_inbox_waits_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "INBOX_SIZE", 2)
    loop = OwnerLoop(Clock())
    ran: list[int] = []

    assert loop.post(lambda: ran.append(1))
    assert loop.post(lambda: ran.append(2))
    assert not loop.post(lambda: ran.append(3), timeout_seconds=0.001)
    poster = threading.Thread(target=loop.post, args=(lambda: ran.append(4),))
    poster.start()
    loop.turn(0)
    poster.join(PATIENCE_SECONDS)
    loop.turn(0)
    assert ran == [1, 2, 4]


def test_a_closed_loop_takes_nothing_more(loop: OwnerLoop) -> None:
    loop.post(lambda: None)
    loop.close()

    assert not loop.post(lambda: None)
    assert (loop.is_closed, loop.has_messages) == (True, False)


def test_a_pool_grows_only_while_its_threads_are_busy() -> None:
    pool = DaemonPool("pool", 2)
    release = threading.Event()
    blocked = [pool.submit(release.wait, PATIENCE_SECONDS) for _ in range(3)]
    assert len(pool._threads) == 2

    release.set()
    assert [future.result(PATIENCE_SECONDS) for future in blocked] == [True] * 3
    pool.shutdown(wait=False)
    assert pool.join(PATIENCE_SECONDS)


def test_an_idle_thread_is_used_again() -> None:
    pool = DaemonPool("pool", 5)
    names = set()
    for _ in range(20):
        future: Future[str] = pool.submit(lambda: threading.current_thread().name)
        names.add(future.result(PATIENCE_SECONDS))
        until(lambda: len(pool._parked) == len(pool._threads))
    pool.shutdown()

    assert len(names) == 1


def test_messages_come_in_order_also_when_they_come_as_a_wait_ends() -> None:
    loop, seen, pace = OwnerLoop(time.monotonic), list[int](), threading.Event()

    def post() -> None:
        for number in range(2_000):
            assert loop.post(partial(seen.append, number))
            if number % 3 == 0:
                pace.wait(0.000_2)

    poster = threading.Thread(target=post)
    poster.start()
    while poster.is_alive() or loop.has_messages:
        loop.turn(0.000_2)

    assert seen == list(range(2_000))


def test_no_call_is_lost_while_idle_threads_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls come just when the time of idle threads runs out."""
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.000_2)
    pool, pace = DaemonPool("pool", 3), threading.Event()
    futures = []
    for number in range(2_000):
        futures.append(pool.submit(int, number))
        if number % 3 == 0:
            pace.wait(0.000_2)

    assert [future.result(PATIENCE_SECONDS) for future in futures] == list(range(2_000))
    pool.shutdown()


def test_a_pool_keeps_no_process_alive_and_passes_errors_on() -> None:
    pool = DaemonPool("pool", 1)

    assert pool.submit(lambda: threading.current_thread().daemon).result(PATIENCE_SECONDS)
    assert isinstance(pool.submit(lambda: 1 // 0).exception(PATIENCE_SECONDS), ZeroDivisionError)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="pool pool is shut down"):
        pool.submit(print)


def test_a_call_without_a_future_may_raise_and_is_dropped_at_shutdown_if_no_thread_has_begun_it() -> None:
    pool, ran = DaemonPool("pool", 1), [0]
    release, begun = threading.Event(), threading.Event()
    pool.start(lambda: 1 // 0)
    pool.start(lambda: (ran.append(1), begun.set(), release.wait(PATIENCE_SECONDS)))
    assert begun.wait(PATIENCE_SECONDS)
    pool.start(lambda: ran.append(2))
    pool.shutdown(wait=False, cancel_futures=True)
    release.set()

    assert pool.join(PATIENCE_SECONDS)
    assert ran == [0, 1]
    with pytest.raises(RuntimeError, match="pool pool is shut down"):
        pool.start(print)


def test_waiting_calls_can_be_cancelled_at_shutdown() -> None:
    pool = DaemonPool("pool", 1)
    release, begun = threading.Event(), threading.Event()
    pool.submit(lambda: (begun.set(), release.wait(PATIENCE_SECONDS)))
    waiting = pool.submit(print)
    assert begun.wait(PATIENCE_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    release.set()

    assert waiting.cancelled()
    assert pool.join(PATIENCE_SECONDS)


def test_a_rate_does_not_drift_and_makes_up_for_one_run_of_those_missed(loop: OwnerLoop, clock: Clock) -> None:
    ticks: list[float] = []
    loop.call_every(6.0, lambda: ticks.append(clock.now))
    for moment in (100.0, 105.9, 106.1, 106.2, 111.9, 112.5, 200.0, 200.0, 201.9, 202.0, 207.9, 208.0):
        clock.now = moment
        loop.turn(0)

    assert ticks == [100.0, 106.1, 112.5, 200.0, 202.0, 208.0]


@given(
    st.floats(0.001, 1_000.0),
    st.floats(0.0, 10_000_000.0),
    st.lists(st.floats(0.0, 1_000_000.0) | st.floats(0.0, 0.01) | st.just(0.0), max_size=30),
)
def test_each_turn_runs_a_rate_once_if_a_moment_has_passed(interval: float, start: float, steps: list[float]) -> None:
    clock = Clock()
    clock.now = start
    loop = OwnerLoop(clock)
    ticks: list[float] = []
    loop.call_every(interval, lambda: ticks.append(clock.now))
    loop.turn(0)
    for step in steps:
        clock.now += step
        due, before = loop.next_timer, len(ticks)
        assert due is not None
        loop.turn(0)
        assert len(ticks) - before == (1 if due <= clock.now else 0)
        following = loop.next_timer
        assert following is not None
        assert clock.now < following <= clock.now + interval * 1.000_001 + 0.000_001
        whole = (following - start) / interval
        assert whole == pytest.approx(round(whole), abs=0.000_1)


def test_a_rate_goes_on_after_an_error_and_ends_with_the_loop(loop: OwnerLoop, clock: Clock) -> None:
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(clock.now)
        if len(ticks) == 1:
            raise ValueError("first")

    loop.call_every(6.0, tick)
    with pytest.raises(ValueError, match="first"):
        loop.turn(0)
    clock.now += 6
    loop.turn(0)
    loop.post(loop.close)
    loop.turn(0)

    assert ticks == [100.0, 106.0]
