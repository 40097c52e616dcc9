"""How soon leases move away from loops, and that a blocked one keeps them; over HTTP, with real clocks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

import streamclient
from streamclient import Changes, ClientConfig, ShutdownException, aio
from streamclient.model import Lease
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.worker.lease import LeaseManager
from tests.drill_kit import LOOP_THREADS, put
from tests.patience import until
from tests.stage import make_table, write

TABLE, STATUS_TABLE = "changes", "changes_figures"

BLOCKED_LEASE_SECONDS = 2.0
"""Of the loop that is blocked for three of them."""

SHARDS = 8

MOVE_SECONDS, BACK_SECONDS = 1.0, 2.0
"""What a move beside a batch that is out, and leases of an object that is dropped, may take."""


@frozen
class Row:
    """One figure."""

    what: str
    seconds: float
    limit: float | None
    """Most seconds, if the time is what matters."""
    trouble: str = ""

    @property
    def problem(self) -> str:
        """What is wrong."""
        if self.trouble or self.limit is None or self.seconds < self.limit:
            return self.trouble
        return f"takes {self.limit:g} s or more"

    def __str__(self) -> str:
        return f"{self.what:<66} {self.seconds:7.2f} s  {self.problem or 'ok'}"


class FigureScene:
    """A table of several shards, all with changes, and its leases."""

    def __init__(self, local: LocalTablestore, shards: int = SHARDS) -> None:
        self.client = local.client()
        make_table(self.client, TABLE, split_points=[f"{number:02}" for number in range(1, shards)])
        write(self.client, TABLE, [put(f"{number:02}-{row}") for number in range(shards) for row in range(3)])
        (stream,) = TablestoreStreamApi(self.client).list_stream(TABLE)
        self._leases = LeaseManager(self.client, STATUS_TABLE, stream.stream_id)
        self._leases.create_lease_table_if_not_exists()
        self._shards = shards

    def options(self, worker: str, lease_seconds: float = 6) -> dict[str, Any]:
        """What `changes` is given."""
        config = ClientConfig.for_lease(lease_seconds, **LOOP_THREADS)
        return {"table": TABLE, "group": "figures", "client": self.client, "worker": worker, "config": config}

    def leases(self) -> dict[str, Lease]:
        return {lease.lease_key: lease for lease in self._leases.list_leases()}

    def held(self, worker: str) -> set[str]:
        """The shards of a worker, without those that are being handed over to it."""
        return {key for key, lease in self.leases().items() if lease.owner == worker and not lease.stealer}

    def has_all(self, worker: str) -> bool:
        return len(self.held(worker)) == self._shards


@contextmanager
def taking(options: dict[str, Any]) -> Iterator[Changes]:
    """A loop in another thread, which takes batch after batch."""
    changes = streamclient.changes(**options)
    thread = threading.Thread(target=lambda: [None for _ in changes])
    thread.start()
    try:
        yield changes
    finally:
        changes.close()
        thread.join()


def blocked(local: LocalTablestore, lease_seconds: float = BLOCKED_LEASE_SECONDS) -> Row:
    """A body that blocks its event loop for three lease durations, while another worker looks for free leases."""
    scene = FigureScene(local)
    problems: list[str] = []

    async def main() -> float:
        async with aio.changes(**scene.options("blocked", lease_seconds)) as changes:
            batch = await anext(changes)
            shard = batch.shard.shard_id
            with taking(scene.options("other", lease_seconds)) as other:
                begun = time.monotonic()
                time.sleep(3 * lease_seconds)  # this is what the row is about
                seconds = time.monotonic() - begun
                lease = scene.leases()[shard]
                if lease.owner != "blocked" or batch.is_lost:
                    problems.append(f"the lease is that of {lease.owner or 'no worker'}")
                if not other.worker.has_begun:
                    problems.append("no other worker looked for leases")
                try:
                    await batch.commit()
                except ShutdownException:
                    problems.append("the batch could not be committed")
            return seconds

    seconds = asyncio.run(main())
    return Row("a body that blocks for three leases keeps that of its batch", seconds, None, "; ".join(problems))


def moved(local: LocalTablestore) -> Row:
    """A second worker comes while a batch is out and those of all other shards wait in line.

    The time begins when the status table shows that it wants its first shard.
    """
    scene = FigureScene(local)
    times: list[float] = []

    def has_half() -> bool:
        coming = {key for key, lease in scene.leases().items() if "second" in (lease.owner, lease.stealer)}
        if coming:
            times.append(time.monotonic())
        # If the shard whose batch is out is among those that move, it comes once its body has ended.
        return len(scene.held("second") | (coming & {batch.shard.shard_id})) == SHARDS // 2

    with streamclient.changes(**scene.options("first")) as first:
        batch = next(first)
        until(lambda: scene.has_all("first") and len(first._consumption.line._waiting) == SHARDS - 1)
        with taking(scene.options("second")):
            until(has_half, scene.leases)
            seconds = time.monotonic() - times[0]
            trouble = "" if not batch.is_lost else "the batch that is out lost its lease"
            if scene.leases()[batch.shard.shard_id].owner != "first":
                trouble = "the shard moved whose batch is out"
    return Row(
        "half of the shards move while their batches wait, beside one that is out", seconds, MOVE_SECONDS, trouble
    )


def given_back(local: LocalTablestore, way: str) -> Row:
    """Nobody closes the object: it is dropped, or its event loop is closed. One batch is out, and others wait."""
    scene = FigureScene(local)
    kept: list[Any] = []

    async def begin() -> None:
        changes = aio.changes(**scene.options("left"))
        kept.append(changes)
        await anext(changes)
        while not await asyncio.to_thread(scene.has_all, "left"):
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(begin())
        begun = time.monotonic()
        if way == "dropped object":
            kept.clear()
        else:
            loop.close()
        until(lambda: not any(lease.owner for lease in scene.leases().values()), scene.leases)
        seconds = time.monotonic() - begun
    finally:
        loop.close()
    moved_on = [key for key, lease in scene.leases().items() if lease.checkpoint != "TRIM_HORIZON"]
    trouble = f"stored, though no body ended: {moved_on}" if moved_on else ""
    return Row(f"a {way} gives {SHARDS} leases back", seconds, BACK_SECONDS, trouble)


FIGURES: dict[str, Callable[[LocalTablestore], Row]] = {
    "blocked": blocked,
    "moved": moved,
    "dropped object": lambda local: given_back(local, "dropped object"),
    "closed event loop": lambda local: given_back(local, "closed event loop"),
}


def figures() -> Iterator[Row]:
    """Measure all of them, each beside a server of its own."""
    for measure in FIGURES.values():
        with LocalTablestore() as local:
            yield measure(local)
