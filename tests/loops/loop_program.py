"""Programs with a loop, which say at which step they are: ``loop_program.py NAME``, with the instance in variables."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

import streamclient
from streamclient import Batch, ClientConfig, aio

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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
