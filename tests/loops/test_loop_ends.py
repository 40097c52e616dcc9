"""How loops end: closed, stopped, dropped; in which thread, and with the leases handed over."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streamclient import Batch, Changes
from streamclient.errors import ShutdownException, StreamClientException
from streamclient.loops import consumption as consumption_module
from streamclient.loops.consumption import Consumption, NotedSigterm
from streamclient.loops.line import Line
from streamclient.loops.line_receiver import HandedBatch
from streamclient.worker.running import EndedBySigterm
from tests.loops.loop_scene import START, LoopScene, ids
from tests.patience import PATIENCE_SECONDS, until
from tests.worker.stage import keys


def test_close_wakes_a_loop_that_waits() -> None:
    scene = LoopScene()
    changes = scene.changes()
    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(list, changes)
        until(lambda: changes._consumption.line._wake is not None and bool(scene.leases.list_leases()))
        changes.close()
        assert looping.result() == []

    assert scene.is_free()


def test_a_close_in_another_thread_lets_the_present_body_end_and_commits_it() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 10)
    scene.write("b", 10)
    changes, bodies = scene.changes(), []
    is_in_body = threading.Event()

    def loop() -> None:
        for batch in changes:
            is_in_body.set()
            until(lambda: changes.worker.is_stopping)
            bodies.append((batch.shard.shard_id, ids(batch)))

    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(loop)
        until(is_in_body.is_set)
        changes.close()
        looping.result()

    ((shard_id, seen),) = bodies
    assert (seen, scene.stored(shard_id)) == (keys(5), f"{shard_id}@5")


class LeftError(Exception):
    """Raised in a body."""


def leave_by_break(changes: Changes) -> None:
    for _ in changes:
        break


def leave_by_return(changes: Changes) -> Batch | None:
    for batch in changes:
        return batch
    return None


def leave_by_error(changes: Changes) -> None:
    def loop() -> None:
        for _ in changes:
            raise LeftError

    with pytest.raises(LeftError):
        loop()


def leave_by_generator(changes: Changes) -> None:
    def batches() -> Iterator[Batch]:
        for batch in changes:  # noqa: UP028  # a body of its own
            yield batch

    for _ in batches():
        break


WAYS_OUT = [leave_by_break, leave_by_return, leave_by_error, leave_by_generator]

UNHURRIED = {"shutdown_timeout_millis": round(2_000 * PATIENCE_SECONDS)}
"""A close that waits for a body is not back before a test loses its patience."""


@pytest.mark.parametrize("leave", WAYS_OUT)
def test_a_close_in_another_thread_waits_for_no_body_after_a_loop_was_left(leave: Callable[[Changes], object]) -> None:
    scene = LoopScene()
    scene.write("a", 10)
    changes = scene.changes(**UNHURRIED)
    leave(changes)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(changes.close).result(PATIENCE_SECONDS)

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_close_that_waits_for_a_body_goes_on_when_the_body_breaks() -> None:
    """The loop's thread lives on, and asks for nothing more."""
    scene = LoopScene()
    scene.write("a", 10)
    changes, is_in_body, is_closed = scene.changes(**UNHURRIED), threading.Event(), threading.Event()

    def loop() -> None:
        for _ in changes:
            is_in_body.set()
            until(lambda: changes.worker.is_stopping)
            break
        assert is_closed.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(2) as pool:
        looping = pool.submit(loop)
        until(is_in_body.is_set)
        pool.submit(changes.close).result(PATIENCE_SECONDS)
        is_closed.set()
        looping.result()

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_close_in_another_thread_lets_the_caller_of_next_settle_its_batch() -> None:
    """Nothing tells whether it is still at it, also if an earlier loop was left."""
    scene = LoopScene()
    scene.write("a", 10)
    changes, has_batch = scene.changes(), threading.Event()

    def take() -> None:
        leave_by_break(changes)
        iter(changes)
        assert len(next(changes)) == 5
        has_batch.set()
        until(lambda: changes.worker.is_stopping)
        with pytest.raises(StopIteration):
            next(changes)

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        until(has_batch.is_set)
        changes.close()
        taking.result()

    assert (scene.stored(), scene.is_free()) == ("a@5", True)


def test_an_aclose_in_another_task_waits_for_no_body_after_a_break() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    async def main() -> None:
        changes, is_left, is_closed = scene.async_changes(**UNHURRIED), asyncio.Event(), asyncio.Event()

        async def loop() -> None:
            async for _ in changes:
                break
            is_left.set()
            await is_closed.wait()

        looping = asyncio.create_task(loop())
        await is_left.wait()
        await asyncio.wait_for(changes.aclose(), PATIENCE_SECONDS)
        is_closed.set()
        await looping

    asyncio.run(main())
    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_close_in_the_loops_own_body_leaves_its_batch() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    changes, bodies = scene.changes(), []
    for batch in changes:
        changes.close()
        bodies.append(len(batch))
        with pytest.raises(ShutdownException):
            batch.commit()

    assert (bodies, scene.stored(), scene.is_free()) == ([5], START, True)


def test_a_shutdown_of_the_worker_in_a_body_ends_the_loop_after_it_and_commits() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 10)
    scene.write("b", 10)
    changes, seen = scene.changes(), []
    for batch in changes:
        changes.worker.shutdown()
        seen.append(batch.shard.shard_id)

    assert len(seen) == 1
    assert (scene.stored(seen[0]), scene.is_free(seen[0])) == (f"{seen[0]}@5", True)


def test_a_stop_does_not_wait_for_the_end_of_a_shard_that_no_loop_takes() -> None:
    """The end of a shard waits in line as its last call, which no owner takes back."""
    scene = LoopScene()
    scene.write("a", 5)
    scene.stream.close("a")
    consumption = scene.consumption(commit="explicit")
    consumption.begin(lambda: True, EndedBySigterm(False))
    until(lambda: len(consumption.line._waiting) == 1)
    assert consumption.take() is not None
    consumption.turn()
    until(lambda: len(consumption.line._waiting) == 1)

    consumption.stop()
    consumption.wait()

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_stop_that_the_owner_has_not_seen_yet_gives_out_no_batch() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    consumption = scene.consumption()
    consumption.begin(lambda: True, EndedBySigterm(False))
    until(lambda: len(consumption.line._waiting) == 1)

    consumption._receivers.is_stopped = True
    assert consumption.take() is None

    consumption.stop()
    consumption.wait()
    assert scene.is_free()


def test_closed_before_it_begins_it_gives_nothing_and_runs_nothing() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes()
    changes.close()
    changes.close()

    assert list(changes) == []
    with pytest.raises(StreamClientException, match="works only once"):
        changes.run(print)


def test_a_worker_that_was_shut_down_before_the_first_turn_gives_nothing() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes()
    changes.worker.shutdown()

    assert (list(changes), list(changes)) == ([], [])


def test_run_after_a_shutdown_of_the_worker_says_so() -> None:
    changes = LoopScene().changes()
    changes.worker.shutdown()

    with pytest.raises(StreamClientException, match="shut down, which works only once"):
        changes.run(print)


def test_an_async_loop_whose_worker_was_shut_down_before_the_first_turn_gives_nothing() -> None:
    async def main() -> list[Any]:
        changes = LoopScene().async_changes()
        changes.worker.shutdown()
        return [batch async for batch in changes]

    assert asyncio.run(main()) == []


def test_a_closed_loop_gives_nothing_more() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        next(changes)

    assert list(changes) == []


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Install a handler of the program's own for SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    yield install
    signal.signal(signal.SIGUSR1, before)


class SignalledLock:
    """A lock that sends SIGUSR1 once, when the main thread holds it."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.is_due = lock, False

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.is_due and threading.current_thread() is threading.main_thread():
            self.is_due = False
            signal.raise_signal(signal.SIGUSR1)

    def __exit__(self, *error: object) -> None:
        self.lock.release()


PLACES = [(HandedBatch, "claim"), (HandedBatch, "end_turn"), (Line, "sleep"), (Line, "drain"), (Consumption, "begin")]


@pytest.mark.parametrize(("home", "name"), PLACES, ids=[name for _, name in PLACES])
@pytest.mark.parametrize("end", [Changes.close, lambda changes: changes.worker.shutdown()], ids=["close", "shutdown"])
def test_a_signal_handler_may_end_the_loop_wherever_the_signal_meets_it(
    home: type, name: str, end: Callable[[Changes], object], on_signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in that method, where the line takes its lock if it does, and otherwise before the method."""
    scene = LoopScene()
    scene.write("a", 10)
    changes, bodies = scene.changes(**UNHURRIED), []
    line = changes._consumption.line
    line._lock = lock = SignalledLock(line._lock)  # type: ignore[assignment]
    method, is_first = getattr(home, name), True

    def signalled(self: Any, *given: Any) -> Any:
        nonlocal is_first
        if is_first and threading.current_thread() is threading.main_thread():
            is_first = False
            if home is Line:
                lock.is_due = True
            else:
                signal.raise_signal(signal.SIGUSR1)
        return method(self, *given)

    monkeypatch.setattr(home, name, signalled)
    on_signal(lambda: end(changes))
    for batch in changes:
        bodies.append(len(batch))
        if name == "drain":
            changes.close()

    assert not is_first
    assert scene.leases.get_lease("a") is None or scene.is_free()
    if bodies and name != "drain":
        assert scene.stored() == f"a@{sum(bodies)}"


def test_a_signal_handler_may_close_while_run_makes_the_worker(on_signal: Any) -> None:
    """Making the worker of a tunnel asks the service, which may take long."""
    consumption = LoopScene().consumption(**UNHURRIED)
    make, changes = consumption._make_worker, Changes(consumption)

    def made(*given: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return make(*given)

    consumption._make_worker = made
    on_signal(changes.close)
    changes.run(print)

    assert consumption.ended.is_set()


def test_a_dropped_object_gives_its_leases_back() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes()
    batch = next(changes)

    del changes
    until(scene.is_free)

    assert (ids(batch), scene.stored()) == (keys(5), START)


def test_a_loop_over_a_temporary_object_gives_its_leases_back_when_its_body_raises() -> None:
    scene = LoopScene()
    scene.write("a", 5)

    def loop() -> None:
        for batch in scene.changes():
            raise ValueError(len(batch))

    with pytest.raises(ValueError, match="5"):
        loop()

    until(scene.is_free)
    assert scene.stored() == START


def test_a_loop_whose_thread_has_ended_gives_its_leases_back() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes()
    thread = threading.Thread(target=lambda: next(changes))
    thread.start()
    thread.join()

    until(scene.is_free)
    assert scene.stored() == START
    changes.close()


def test_the_end_of_the_process_closes_what_is_open() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes()
    next(changes)

    consumption_module._close_open()

    assert (scene.stored(), scene.is_free(), list(changes)) == (START, True, [])


def test_no_thread_is_left_after_a_close() -> None:
    scene = LoopScene()
    scene.write("a", 5)
    before = set(threading.enumerate())
    with scene.changes("w-left") as changes:
        next(changes)
        assert [each for each in threading.enumerate() if each.name == "w-left-loop"]

    until(lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("w-left")])


def test_a_refused_thread_is_told_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamclient.errors import NoThreadError

    scene = LoopScene()

    def refuse(*given: Any, **named: Any) -> Any:
        raise NoThreadError.of("a thread", RuntimeError("can't start new thread"))

    monkeypatch.setattr(consumption_module, "start_thread", refuse)
    changes = scene.changes()
    with pytest.raises(NoThreadError):
        next(changes)

    assert changes._consumption not in consumption_module._open
    changes.close()


def test_run_gives_the_batches_to_a_function_and_commits_each() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 10)
    scene.write("b", 5)
    changes, seen = scene.changes(), []

    def handle(batch: Batch) -> None:
        seen.extend(ids(batch))
        if len(seen) == 15:
            changes.close()

    changes.run(handle, concurrency=1)

    assert sorted(seen) == sorted([*keys(10), *keys(5)])
    assert (scene.stored("a"), scene.stored("b"), scene.is_free()) == ("a@10", "b@5", True)


def test_run_with_explicit_commits_stores_what_the_handler_commits() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    changes = scene.changes(commit="explicit")

    def handle(batch: Batch) -> None:
        if batch.position == "a@5":
            batch.commit()
        else:
            changes.close()

    changes.run(handle)

    assert scene.stored() == "a@5"


def test_each_gives_the_records_to_a_function() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    changes, seen = scene.changes(), []

    def handle(record: Any) -> None:
        seen.append(record.key["id"])

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(changes.each, handle, concurrency=3, key=lambda record: "all")
        until(lambda: seen == keys(10))
        changes.close()
        running.result()

    assert scene.stored() == "a@10"


PATIENT = {"shutdown_timeout_millis": round(1_000 * PATIENCE_SECONDS)}
"""A worker waits this long for a function that itself waits for the worker; then it gives the function up."""


@pytest.mark.parametrize("way", ["run", "each"])
@pytest.mark.parametrize("end", [Changes.close, lambda changes: changes.worker.shutdown()], ids=["close", "shutdown"])
def test_a_function_may_end_its_own_run(
    way: str, end: Callable[[Changes], object], caplog: pytest.LogCaptureFixture
) -> None:
    scene = LoopScene()
    scene.write("a", 5)
    changes = scene.changes(**PATIENT)

    def handle(given: Any) -> None:
        end(changes)

    getattr(changes, way)(handle)

    assert (scene.is_free(), given_up(caplog)) == (True, [])


@pytest.mark.parametrize("way", ["run", "each"])
@pytest.mark.parametrize("end", ["aclose", "shutdown"])
def test_a_coroutine_may_end_its_own_run(way: str, end: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = LoopScene()
    scene.write("a", 5)

    async def main() -> None:
        changes = scene.async_changes(**PATIENT)

        async def handle(given: Any) -> None:
            await asyncio.sleep(0)
            if end == "aclose":
                await changes.aclose()
            else:
                changes.worker.shutdown()

        await getattr(changes, way)(handle)

    asyncio.run(main())

    assert (scene.is_free(), given_up(caplog)) == (True, [])


def given_up(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "gave up waiting" in text]


def test_an_aclose_in_another_task_waits_for_the_end_of_the_run() -> None:
    scene = LoopScene()
    scene.write("a", 5)

    async def main() -> None:
        changes, has_begun = scene.async_changes(), asyncio.Event()

        async def handle(batch: Any) -> None:
            has_begun.set()
            await asyncio.to_thread(until, lambda: changes.worker.is_stopping)

        running = asyncio.create_task(changes.run(handle))
        await has_begun.wait()
        await changes.aclose()
        assert (scene.stored(), scene.is_free()) == ("a@5", True)
        await running

    asyncio.run(main())


def test_close_in_another_thread_ends_run() -> None:
    scene = LoopScene()
    changes = scene.changes()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(changes.run, print)
        until(lambda: changes.worker.has_begun)
        changes.close()
        running.result()


def test_sigterm_is_noted_by_all_loops_and_ends_the_program_once_they_are_over() -> None:
    first, second = NotedSigterm(True), NotedSigterm(True)
    before = signal.getsignal(signal.SIGTERM)
    first.__enter__()
    second.__enter__()
    signal.raise_signal(signal.SIGTERM)
    assert (first.has_come, second.has_come) == (True, True)

    first.__exit__(None, None, None)
    second.has_come = False
    signal.raise_signal(signal.SIGTERM)
    assert second.has_come

    second.is_over = True
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    second.__exit__(None, None, None)

    assert (ended.value.code, signal.getsignal(signal.SIGTERM)) == (143, before)


def test_a_loop_in_another_thread_leaves_sigterm_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        sigterm = pool.submit(lambda: NotedSigterm(True).__enter__()).result()

    assert sigterm not in NotedSigterm._inside
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
