"""Programs with a loop, which say at which step they are: ``loop_program.py NAME``, with the instance in variables."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import streamclient
from streamclient import Batch, ClientConfig, StreamRecord, Worker, aio
from tests.patience import until

CONFIG = ClientConfig.for_lease(6, read_threads=8, renew_thread_pool_size=2)
kept: list[object] = []


def step(name: str) -> None:
    print(name, flush=True)


def for_loop(body: Callable[[Batch], object]) -> None:
    for batch in streamclient.changes("orders", group="test", config=CONFIG):
        step("in body")
        body(batch)


def waits_in_its_body() -> None:
    for_loop(lambda batch: threading.Event().wait())


def waits_for_a_batch() -> None:
    for_loop(lambda batch: batch.commit())


def raises_in_its_body() -> None:
    for_loop(lambda batch: batch["no such index"])  # type: ignore[call-overload]


def exits_in_its_body() -> None:
    for_loop(lambda batch: sys.exit(3))


def ends_with_an_open_loop() -> None:
    changes = streamclient.changes("orders", group="test", config=CONFIG)
    kept.append(changes)
    next(changes)
    step("in body")


async def async_loop() -> None:
    async with aio.changes("orders", group="test", config=CONFIG) as changes:
        async for _batch in changes:
            step("in body")
            while not changes.worker.is_stopping:
                await asyncio.sleep(0.01)
    step("after the loop")


def ends_its_async_loop() -> None:
    asyncio.run(async_loop())


async def left_open() -> None:
    changes = aio.changes("orders", group="test", config=CONFIG)
    kept.append(changes)
    await anext(changes)
    step("in body")


def leaves_an_async_loop() -> None:
    asyncio.run(left_open())


async def raising() -> None:
    async for batch in aio.changes("orders", group="test", config=CONFIG):
        step("in body")
        raise ValueError(len(batch))


def raises_in_an_async_body() -> None:
    asyncio.run(raising())


def runs_a_function() -> None:
    changes = streamclient.changes("orders", group="test", config=CONFIG)
    changes.run(lambda batch: step("in body"))


def breaks() -> None:
    for _batch in streamclient.changes("orders", group="test", config=CONFIG):
        step("in body")
        break


async def breaking() -> None:
    async for _batch in aio.changes("orders", group="test", config=CONFIG):
        step("in body")
        break


def breaks_an_async_loop() -> None:
    asyncio.run(breaking())


async def breaking_in_a_block() -> None:
    async with aio.changes("orders", group="test", config=CONFIG) as changes:
        async for _batch in changes:
            step("in body")
            break


def breaks_in_an_async_block() -> None:
    asyncio.run(breaking_in_a_block())


def ends_of(worker: Worker) -> None:
    """Wait until the worker has ended by itself."""
    until(lambda: worker.worker_status.name in ("SHUTDOWN", "ERROR"), lambda: worker.worker_status)


def drops_an_object() -> None:
    changes = streamclient.changes("orders", group="test", config=CONFIG)
    worker = changes.worker
    next(changes)
    step("in body")
    del changes
    gc.collect()
    ends_of(worker)


async def dropping() -> None:
    changes = aio.changes("orders", group="test", config=CONFIG)
    worker = changes.worker
    await anext(changes)
    step("in body")
    del changes
    gc.collect()
    await asyncio.to_thread(ends_of, worker)


def drops_an_async_object() -> None:
    asyncio.run(dropping())


def closes_its_event_loop() -> None:
    changes = aio.changes("orders", group="test", config=CONFIG)
    asyncio.run(taking(changes))
    ends_of(changes.worker)


async def taking(changes: aio.AsyncChanges) -> None:
    await anext(changes)
    step("in body")


async def cancelled_when_it_works(coroutine: Coroutine[Any, Any, None], is_at_work: asyncio.Event) -> None:
    task = asyncio.ensure_future(coroutine)
    await is_at_work.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    step("cancelled")


def at_work(is_at_work: asyncio.Event) -> None:
    if not is_at_work.is_set():
        step("in body")
    is_at_work.set()


async def cancelling_a_body() -> None:
    is_at_work = asyncio.Event()

    async def loop() -> None:
        async with aio.changes("orders", group="test", config=CONFIG) as changes:
            async for _batch in changes:
                at_work(is_at_work)
                await asyncio.Event().wait()

    await cancelled_when_it_works(loop(), is_at_work)


def cancels_a_body() -> None:
    asyncio.run(cancelling_a_body())


async def cancelling_a_run() -> None:
    is_at_work = asyncio.Event()

    async def handle(batch: aio.AsyncBatch) -> None:
        at_work(is_at_work)
        await asyncio.Event().wait()

    await cancelled_when_it_works(aio.changes("orders", group="test", config=CONFIG).run(handle), is_at_work)


def cancels_a_run() -> None:
    asyncio.run(cancelling_a_run())


async def cancelling_each() -> None:
    is_at_work = asyncio.Event()

    async def handle(record: StreamRecord) -> None:
        at_work(is_at_work)
        await asyncio.Event().wait()

    await cancelled_when_it_works(aio.changes("orders", group="test", config=CONFIG).each(handle), is_at_work)


def cancels_each() -> None:
    asyncio.run(cancelling_each())


async def endless() -> None:
    # Made before Ctrl-C is asked for: in the dev mode a new future notes its stack, for which Python reads files of
    # sources, and Ctrl-C may come anywhere in Python 3.10, which then leaves such a file open.
    unanswered = asyncio.get_running_loop().create_future()
    async with aio.changes("orders", group="test", config=CONFIG) as changes:
        async for _batch in changes:
            step("in body")
            await unanswered


def waits_in_an_async_body() -> None:
    asyncio.run(endless())


def catches_ctrl_c() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(endless())


async def ends_a_wait() -> None:
    async for batch in aio.changes("orders", group="test", config=CONFIG):
        await batch.commit()
        step("in body")


def waits_for_an_async_batch() -> None:
    asyncio.run(ends_a_wait())


def leaves_a_task_pending() -> None:
    """Not as it should be, so that it is seen to be noticed."""
    loop = asyncio.new_event_loop()
    kept.append(loop.create_task(asyncio.Event().wait()))
    step("in body")
    loop.call_soon(loop.stop)
    loop.run_forever()
    kept.clear()
    loop.close()


def runs_a_coroutine_in_threads() -> None:
    async def handle(batch: aio.AsyncBatch) -> None:
        step("in body")

    streamclient.changes("orders", group="test", config=CONFIG).run(handle)


def runs_a_function_of_a_record() -> None:
    streamclient.changes("orders", group="test", config=CONFIG).each(lambda record: step("in body"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
