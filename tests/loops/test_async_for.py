"""``async for batch in changes``: as the plain loop, and with cancellation, time-outs and closed event loops."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress
from typing import Any

import pytest

from streamclient.aio import AsyncBatch, AsyncChanges
from streamclient.errors import ShutdownException, StreamClientException, WorkerFailedError
from tests.loops.loop_scene import START, LoopScene, ids
from tests.patience import FOREVER_MILLIS, until
from tests.worker.stage import keys


async def come(condition: Any, what: str = "what was waited for") -> None:
    """Wait in an event loop until the condition holds."""
    await asyncio.to_thread(until, condition, what)


def place(scene: LoopScene) -> int:
    """How many records of shard ``a`` are stored as done."""
    lease = scene.leases.get_lease("a")
    return 0 if lease is None or lease.checkpoint == START else int(lease.checkpoint.partition("@")[2])


def test_the_next_turn_commits_the_batch_whose_body_ended() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    async def main() -> None:
        async with scene.async_changes() as changes:
            async for batch in changes:
                if ids(batch) == keys(5, 5):
                    await come(lambda: scene.stored() == "a@5")
                    return

    asyncio.run(main())

    assert (scene.stored(), scene.is_free()) == ("a@5", True)


def test_break_leaves_and_a_new_loop_begins_with_the_same_batch() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    async def main() -> None:
        async with scene.async_changes() as changes:
            for _ in range(2):
                async for batch in changes:
                    assert ids(batch) == keys(5)
                    break

    asyncio.run(main())

    assert scene.stored() == START


def test_commit_is_awaited_until_it_is_stored() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    async def main() -> None:
        async with scene.async_changes(commit="explicit") as changes:
            first = await anext(changes)
            second = await anext(changes)
            assert scene.stored() == START
            await second.commit()
            assert scene.stored() == "a@10"
            await first.commit()

    asyncio.run(main())

    assert scene.stored() == "a@10"


def test_a_lost_lease_does_not_end_the_loop() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 5)

    async def main() -> None:
        async with scene.async_changes(lease_duration_millis=FOREVER_MILLIS) as changes:
            lost = await anext(changes)
            scene.take_away("a")
            with pytest.raises(ShutdownException):
                await lost.commit()
            await come(lambda: lost.is_lost)
            scene.write("b", 5)
            assert (await anext(changes)).shard.shard_id == "b"

    asyncio.run(main())

    assert scene.stored() == START


def test_a_cancelled_body_leaves_its_batch() -> None:
    scene = LoopScene()
    scene.write("a", 10)

    async def consume(changes: AsyncChanges, is_in_body: asyncio.Event) -> None:
        async with changes:
            async for _batch in changes:
                is_in_body.set()
                await asyncio.Event().wait()

    async def main() -> None:
        is_in_body = asyncio.Event()
        task = asyncio.create_task(consume(scene.async_changes(), is_in_body))
        await is_in_body.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_wait_that_is_cancelled_has_taken_nothing() -> None:
    scene = LoopScene()

    async def main() -> None:
        async with scene.async_changes() as changes:
            for _ in range(5):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.001)
            scene.write("a", 10)
            assert ids(await anext(changes)) == keys(5)
            assert ids(await anext(changes)) == keys(5, 5)

    asyncio.run(main())

    assert scene.stored() == "a@5"


@pytest.mark.parametrize("steps", range(12))
def test_cancelled_at_any_step_no_batch_falls_out(steps: int) -> None:
    """Whatever step of the event loop the cancellation meets, the records come in order, without a gap."""
    scene = LoopScene()
    scene.write("a", 15)
    stored: list[Any] = []

    async def main() -> None:
        seen: list[Any] = []
        changes = scene.async_changes()
        await anext(changes)
        task = asyncio.create_task(loop(changes, seen))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stored.extend(seen)
        await changes.aclose()

    async def loop(changes: AsyncChanges, seen: list[Any]) -> None:
        async for batch in changes:
            await asyncio.sleep(0)
            seen.extend(ids(batch))

    asyncio.run(main())

    assert stored == keys(len(stored))
    assert place(scene) <= len(stored)


def test_waits_that_are_cancelled_at_any_step_drop_no_batch() -> None:
    """A wait that was cancelled is followed by another one, which must not go on after a batch that was never given."""
    scene = LoopScene()
    scene.write("a", 200)

    async def main() -> list[Any]:
        seen: list[Any] = []
        async with scene.async_changes() as changes:
            for steps in itertools.cycle(range(6)):
                waiting = asyncio.ensure_future(anext(changes))
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    seen += ids(await waiting)
                assert place(scene) <= len(seen), "a batch is stored that no loop was given"
                if len(seen) == 200:
                    return seen
        raise AssertionError

    assert asyncio.run(main()) == keys(200)


def test_an_exception_in_the_body_is_raised_and_its_batch_left() -> None:
    scene = LoopScene()
    scene.write("a", 5)

    async def main() -> None:
        async with scene.async_changes() as changes:
            async for batch in changes:
                1 // (len(batch) - 5)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_loop_that_never_waits_lets_other_tasks_run() -> None:
    scene = LoopScene()
    scene.write("a", 100)
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        async with scene.async_changes() as changes:
            count = 0
            async for batch in changes:
                count += len(batch)
                if count == 100:
                    break
        ticking.cancel()

    asyncio.run(main())

    assert len(ticks) >= 20


def test_a_blocked_event_loop_stops_no_heartbeat() -> None:
    """They are sent by the worker's threads, and counted while the event loop is blocked."""
    scene = LoopScene("a", "b")
    scene.write("a", 5)

    async def main() -> None:
        async with scene.async_changes(lease_duration_millis=FOREVER_MILLIS) as changes:
            batch = await anext(changes)
            beat = scene.leases.list_workers()[0].beat
            until(lambda: scene.leases.list_workers()[0].beat >= beat + 5)  # blocks the event loop
            await batch.commit()

    asyncio.run(main())

    assert scene.stored() == "a@5"


def test_aclose_by_another_task_lets_the_present_body_end() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    bodies: list[list[Any]] = []

    async def consume(changes: AsyncChanges, is_in_body: asyncio.Event) -> None:
        async for batch in changes:
            is_in_body.set()
            await come(lambda: changes.worker.is_stopping)
            bodies.append(ids(batch))

    async def main() -> None:
        is_in_body, changes = asyncio.Event(), scene.async_changes()
        task = asyncio.create_task(consume(changes, is_in_body))
        await is_in_body.wait()
        await changes.aclose()
        await task

    asyncio.run(main())

    assert (bodies, scene.stored(), scene.is_free()) == ([keys(5)], "a@5", True)


def test_the_end_of_an_async_block_lets_the_body_in_another_task_end() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    bodies: list[list[Any]] = []

    async def main() -> None:
        async with scene.async_changes() as changes:
            is_in_body = asyncio.Event()
            task = asyncio.create_task(consume(changes, is_in_body, bodies))
            await is_in_body.wait()
        assert (bodies, scene.stored(), scene.is_free()) == ([keys(5)], "a@5", True)
        await task

    asyncio.run(main())


async def consume(changes: AsyncChanges, is_in_body: asyncio.Event, bodies: list[list[Any]]) -> None:
    """Loop, with bodies that end once the worker is stopping."""
    async for batch in changes:
        is_in_body.set()
        await come(lambda: changes.worker.is_stopping)
        bodies.append(ids(batch))


def test_a_task_that_took_an_earlier_batch_is_not_the_loops_own() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    bodies: list[list[Any]] = []

    async def main() -> None:
        changes, is_in_body = scene.async_changes(), asyncio.Event()
        async for _ in changes:
            break
        task = asyncio.create_task(consume(changes, is_in_body, bodies))
        await is_in_body.wait()
        await changes.aclose()
        assert (bodies, scene.stored(), scene.is_free()) == ([keys(5)], "a@5", True)
        await task

    asyncio.run(main())


def test_a_task_of_a_task_that_took_an_earlier_batch_is_not_the_loops_own() -> None:
    """The task that took the earlier batch is over, so it does not take batches elsewhere."""
    scene = LoopScene()
    scene.write("a", 10)
    bodies: list[list[Any]] = []

    async def main() -> None:
        changes, is_in_body = scene.async_changes(), asyncio.Event()

        async def take_and_leave_a_task() -> asyncio.Task[None]:
            async for _ in changes:
                break
            return asyncio.create_task(close())

        async def close() -> None:
            await is_in_body.wait()
            await changes.aclose()
            assert (bodies, scene.stored(), scene.is_free()) == ([keys(5)], "a@5", True)

        closing = await asyncio.create_task(take_and_leave_a_task())
        await consume(changes, is_in_body, bodies)
        await closing

    asyncio.run(main())


def test_a_shielded_aclose_of_the_loops_own_task_leaves_the_batch() -> None:
    """``shield`` closes in a task of its own, for which the loop's task waits: its body would never end."""
    scene = LoopScene()
    scene.write("a", 5)

    async def main() -> None:
        changes = scene.async_changes()
        async for _batch in changes:
            break
        await asyncio.shield(changes.aclose())

    asyncio.run(main())

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_aclose_wakes_a_task_that_waits() -> None:
    scene = LoopScene()

    async def consume(changes: AsyncChanges) -> list[AsyncBatch]:
        return [batch async for batch in changes]

    async def main() -> None:
        changes = scene.async_changes()
        task = asyncio.create_task(consume(changes))
        await come(lambda: changes._consumption.line._wake is not None and bool(scene.leases.list_leases()))
        await changes.aclose()
        assert await task == []
        await changes.aclose()

    asyncio.run(main())
    assert scene.is_free()


def test_aclose_after_a_wait_in_a_task_that_has_ended_leaves_the_batch() -> None:
    """``wait_for`` may run ``anext`` in a task of its own, which is over when the body runs."""
    scene = LoopScene()
    scene.write("a", 5)

    async def main() -> None:
        changes = scene.async_changes()
        await asyncio.create_task(take(changes))
        await changes.aclose()

    async def take(changes: AsyncChanges) -> None:
        await anext(changes)

    asyncio.run(main())

    assert (scene.stored(), scene.is_free()) == (START, True)


def test_a_second_task_and_another_event_loop_are_refused() -> None:
    scene = LoopScene()
    changes = scene.async_changes()

    async def main() -> None:
        waiting = asyncio.create_task(take())
        await come(lambda: changes._consumption.line._wake is not None)
        with pytest.raises(StreamClientException, match="another task waits"):
            await anext(changes)
        in_a_thread = asyncio.to_thread(asyncio.run, other())
        with pytest.raises(StreamClientException, match="another"):
            await in_a_thread
        await changes.aclose()
        assert await waiting is None

    async def take() -> Any:
        return await anext(changes, None)

    async def other() -> None:
        await anext(changes)

    asyncio.run(main())


def test_without_an_event_loop_it_says_what_to_use() -> None:
    changes = LoopScene().async_changes()

    with pytest.raises(StreamClientException, match=r"streamclient\.changes in a plain function"):
        changes.__anext__().send(None)


def test_a_worker_that_fails_for_good_raises_at_a_turn() -> None:
    scene = LoopScene()
    scene.stream.table_name = "another"

    async def main() -> None:
        async with scene.async_changes() as changes:
            await anext(changes)

    with pytest.raises(WorkerFailedError, match="has no stream"):
        asyncio.run(main())


def test_a_closed_event_loop_and_a_dropped_object_give_their_leases_back() -> None:
    for keeps in (True, False):
        scene = LoopScene()
        scene.write("a", 5)
        kept: list[Any] = []

        async def main(scene: LoopScene = scene, kept: list[Any] = kept) -> None:
            changes = scene.async_changes()
            kept.append(changes)
            await anext(changes)

        asyncio.run(main())
        if not keeps:
            kept.clear()
        until(scene.is_free)
        assert scene.stored() == START


def test_a_hundred_shards_in_one_event_loop_need_few_threads() -> None:
    scene = LoopScene(*(f"s{number}" for number in range(100)))
    for number in range(100):
        scene.write(f"s{number}", 10)
    settings = {"read_threads": 8, "renew_thread_pool_size": 2}
    before, most, count = threading.active_count(), 0, 0

    async def main() -> None:
        nonlocal most, count
        async with scene.async_changes(**settings) as changes:
            async for batch in changes:
                count += len(batch)
                most = max(most, threading.active_count() - before)
                if count == 1_000:
                    break

    asyncio.run(main())

    assert count == 1_000
    assert most < 20


def test_two_loops_in_one_event_loop_share_the_shards() -> None:
    scene = LoopScene("a", "b")
    scene.write("a", 5)
    scene.write("b", 5)

    async def main() -> set[str]:
        async with scene.async_changes("w1") as mine, scene.async_changes("w2") as others:
            return {(await anext(mine)).shard.shard_id, (await anext(others)).shard.shard_id}

    assert asyncio.run(main()) == {"a", "b"}
